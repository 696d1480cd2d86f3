"""Changes of a Job's gang after its objects were made: they take effect, or an event says that they do not."""

import pytest

from serried.api.level import FALLBACK, NATIVE_LEVELS, ApiLevel
from serried.kube.wire import JOBS, JSON, PODS, owners, pod_groups, workloads
from tests.support.apiserver import SERVED, FakeApiServer
from tests.support.controller_harness import GROUPS, controller_on, events, gang, job_pod, wait_until, wait_until_idle
from tests.support.parents import job_set

DOMAIN = "scheduling.serried.dev"
CHANGES = {
    "required-topology": "example.com/zone",
    "preferred-topology": "example.com/rack=30s,example.com/zone",
    "packing": "spread",
    "exclusive": "true",
    "disruption-mode": "all",
}
LEVELS = [FALLBACK, *NATIVE_LEVELS]


def annotate(server: FakeApiServer, name: str, value: str | None) -> None:
    server.patch(JOBS, "default", "train", {"metadata": {"annotations": {f"{DOMAIN}/{name}": value}}})


def made(server: FakeApiServer, level: ApiLevel) -> list[JSON]:
    """The objects that hold the gang: PodGroups, or the Workload that contains them."""
    kind = workloads if level.inline else pod_groups
    return server.list_objects(kind(level.group, level.version))


def words(server: FakeApiServer, level: ApiLevel, name: str) -> list[str | None]:
    """Return the value of an annotation on each of the gang's objects; None where it is missing."""
    return [item["metadata"].get("annotations", {}).get(f"{DOMAIN}/{name}") for item in made(server, level)]


@pytest.fixture(params=LEVELS, ids=lambda level: f"{level.name}-{level.version}")
def level(request: pytest.FixtureRequest) -> ApiLevel:
    found: ApiLevel = request.param
    return found


def serving(level: ApiLevel) -> FakeApiServer:
    of_level = [workloads(level.group, level.version)]
    if not level.inline:
        of_level.append(pod_groups(level.group, level.version))
    return FakeApiServer(served=tuple(dict.fromkeys((*SERVED, *of_level))))


@pytest.mark.parametrize("name", [name for name in CHANGES if name != "disruption-mode"])
async def test_a_job_that_runs_hears_that_it_is_too_late(level: ApiLevel, name: str) -> None:
    async with serving(level) as server, controller_on(server, level=level) as controller:
        server.add(JOBS, gang().raw())
        await wait_until(lambda: made(server, level))
        server.add(PODS, job_pod("train").on("n1").raw())
        before = made(server, level)
        annotate(server, name, CHANGES[name])
        await wait_until(lambda: events(server, "GangChangeIgnored"))
        await wait_until_idle(controller, server)
        (event,) = events(server, "GangChangeIgnored")
        assert event["count"] == 1
        assert f"{DOMAIN}/{name}" in event["message"]
        assert "delete it and create it again" in event["message"]
        assert made(server, level) == before


async def test_a_job_that_is_suspended_gets_its_objects_anew(level: ApiLevel) -> None:
    async with serving(level) as server, controller_on(server, level=level) as controller:
        server.add(JOBS, gang().suspended().raw())
        await wait_until(lambda: made(server, level))
        annotate(server, "required-topology", "example.com/zone")
        await wait_until(lambda: words(server, level, "required-topology") == ["example.com/zone"])
        annotate(server, "packing", "spread")
        await wait_until(lambda: words(server, level, "packing") == ["spread"])
        annotate(server, "packing", None)
        await wait_until(lambda: words(server, level, "packing") == [None])
        await wait_until_idle(controller, server)
        assert not events(server, "GangChangeIgnored")
        assert words(server, level, "required-topology") == ["example.com/zone"]


async def test_the_disruption_mode_of_a_suspended_job_can_be_changed(server: FakeApiServer) -> None:
    async with controller_on(server):
        server.add(JOBS, gang().annotation(f"{DOMAIN}/disruption-mode", "single").suspended().raw())
        await wait_until(lambda: server.list_objects(GROUPS))
        annotate(server, "disruption-mode", "all")
        await wait_until(
            lambda: [item["spec"].get("disruptionMode") for item in server.list_objects(GROUPS)] == [{"all": {}}]
        )


async def test_a_job_with_pods_keeps_its_objects_also_while_it_is_suspended(server: FakeApiServer) -> None:
    async with controller_on(server) as controller:
        server.add(JOBS, gang().raw())
        await wait_until(lambda: server.list_objects(GROUPS))
        server.add(PODS, job_pod("train").raw())
        await wait_until(lambda: controller.store.pods)
        before = server.list_objects(GROUPS)
        server.patch(JOBS, "default", "train", {"spec": {"suspend": True}})
        annotate(server, "packing", "spread")
        await wait_until(lambda: events(server, "GangChangeIgnored"))
        assert server.list_objects(GROUPS) == before


async def interfere(server: FakeApiServer) -> None:
    """Change our PodGroup as another client would. Wait until it is made anew, or an event says that it stays."""
    (group,) = server.list_objects(GROUPS)
    spread = {"metadata": {"annotations": {f"{DOMAIN}/packing": "spread"}}}
    server.patch(GROUPS, "default", group["metadata"]["name"], spread)

    def is_answered() -> bool:
        anew = [each for each in server.list_objects(GROUPS) if each["metadata"]["uid"] != group["metadata"]["uid"]]
        return bool(anew or events(server, "GangChangeIgnored"))

    await wait_until(is_answered)


async def test_objects_that_somebody_else_keeps_changing_are_not_made_anew_for_ever(server: FakeApiServer) -> None:
    async with controller_on(server) as controller:
        server.add(JOBS, gang().suspended().raw())
        await wait_until(lambda: server.list_objects(GROUPS))
        for _ in range(2):
            await interfere(server)
        await wait_until_idle(controller, server)
        assert len(events(server, "GangChangeIgnored")) == 1


async def test_a_foreign_pod_group_says_what_its_author_wants(server: FakeApiServer) -> None:
    async with controller_on(server) as controller:
        server.add(JOBS, gang().raw())
        await wait_until(lambda: server.list_objects(GROUPS))
        (group,) = server.list_objects(GROUPS)
        theirs = {"metadata": {"labels": {"app.kubernetes.io/managed-by": "me"}}}
        server.patch(GROUPS, "default", group["metadata"]["name"], theirs)
        await wait_until_idle(controller, server)
        annotate(server, "packing", "spread")
        await wait_until_idle(controller, server)
        assert not events(server, "GangChangeIgnored")


async def test_a_job_set_hears_it_too() -> None:
    sets = owners("JobSet")
    async with FakeApiServer(served=(*SERVED, sets)) as server, controller_on(server):
        server.add(sets, job_set("asks").gang_policy().replicated("workers", 2, 3).raw())
        await wait_until(lambda: server.list_objects(GROUPS))
        server.patch(sets, "default", "asks", {"metadata": {"annotations": {f"{DOMAIN}/exclusive": "true"}}})
        await wait_until(lambda: events(server, "GangChangeIgnored"))
        (event,) = events(server, "GangChangeIgnored")
        assert event["involvedObject"]["kind"] == "JobSet"
