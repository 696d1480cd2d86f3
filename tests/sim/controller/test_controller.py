"""The controller on a fake API server: every story waits for what it expects, never for time."""

import asyncio
from unittest.mock import Mock

import pytest

from controller import reconciler as upstream
from controller.loop import Task
from controller.process import Controller
from serried.api.group import PROTECTION
from serried.api.level import FALLBACK
from serried.api.names import Key
from serried.kube.wire import EVENTS, JOBS, JSON, PODS
from serried.ops.metrics import ControllerMetrics
from serried.settings import controller_settings
from tests.support.apiserver import FakeApiServer
from tests.support.builders import RACK, JobBuilder, pod, pod_group, workload
from tests.support.controller_harness import (
    CREATES_GROUP,
    CREATES_WORKLOAD,
    GROUPS,
    READS_PODS,
    RELEASE_TIMING,
    WORKLOADS,
    controller_on,
    events,
    gang,
    job_pod,
    names,
    wait_until,
    wait_until_idle,
)
from tests.support.faults import calls


async def test_a_gang_job_gets_its_workload_and_then_its_pod_group(server: FakeApiServer) -> None:
    async with controller_on(server) as controller:
        server.add(JOBS, gang().topology().uid("u-1").raw())
        await wait_until(lambda: len(server.list_objects(EVENTS)) == 2)
        (made,), (group,) = server.list_objects(WORKLOADS), server.list_objects(GROUPS)
        assert made["spec"]["controllerRef"] == {"apiGroup": "batch", "kind": "Job", "name": "train"}
        assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 3}}
        assert group["spec"]["schedulingConstraints"] == {"topology": [{"key": RACK}]}
        assert group["spec"]["workloadRef"]["workloadName"] == made["metadata"]["name"]
        (created,) = events(server, "WorkloadCreated")
        assert created["message"] == f"Created Workload {made['metadata']['name']} for Job train"
        assert created["involvedObject"]["uid"] == "u-1"
        assert len(events(server, "PodGroupCreated")) == 1
        await wait_until_idle(controller, server)
    writes = [r.path.rsplit("/", 1)[1] for r in server.list_requests(calls("POST")) if "/events" not in r.path]
    assert writes == ["workloads", "podgroups"]


async def test_two_creates_a_job_however_many_jobs_pods_and_slow_watches(server: FakeApiServer) -> None:
    async with controller_on(server) as controller:
        for number in range(40):
            server.add(JOBS, gang(f"train-{number}", 2).raw())
            for index in range(2):
                server.add(PODS, job_pod(f"train-{number}", index).raw())
                server.patch(JOBS, "default", f"train-{number}", {"status": {"active": index + 1}})
        await wait_until(lambda: len(server.list_objects(GROUPS)) == 40)
        await wait_until_idle(controller, server)
    assert len(server.list_requests(CREATES_WORKLOAD)) == 40
    assert len(server.list_requests(CREATES_GROUP)) == 40


async def test_a_second_look_before_the_watch_shows_the_create_writes_nothing(server: FakeApiServer) -> None:
    async with controller_on(server) as controller:
        server.drop_changes(WORKLOADS)
        server.drop_changes(GROUPS)
        server.add(JOBS, gang().raw())
        await wait_until(lambda: server.list_objects(GROUPS))
        server.patch(JOBS, "default", "train", {"status": {"active": 1}})
        await wait_until_idle(controller, server)
    assert len(server.list_requests(CREATES_WORKLOAD)) == 1
    assert len(server.list_requests(CREATES_GROUP)) == 1


async def test_a_create_whose_answer_is_lost_is_found_again(server: FakeApiServer) -> None:
    server.lose_answer(CREATES_WORKLOAD)
    server.lose_answer(CREATES_GROUP)
    async with controller_on(server) as controller:
        server.add(JOBS, gang().raw())
        await wait_until(lambda: server.list_objects(GROUPS))
        await wait_until_idle(controller, server)
    assert len(server.list_objects(WORKLOADS)) == len(server.list_objects(GROUPS)) == 1


async def test_another_reconciler_that_was_faster_is_discovered_without_a_complaint(
    server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream, "PATIENCE_SECONDS", 0.05)
    async with controller_on(server) as controller:
        gate = server.hold(CREATES_WORKLOAD, times=1)
        server.add(JOBS, gang().raw())
        async with asyncio.timeout(10):
            await gate.reached.wait()
        body = server.list_requests(CREATES_WORKLOAD)[0].body
        server.add(WORKLOADS, {**body, "metadata": {**body["metadata"], "labels": {"made-by": "another"}}})
        gate.open()
        await wait_until(lambda: server.list_objects(GROUPS))
        await wait_until_idle(controller, server)
        assert server.list_objects(WORKLOADS)[0]["metadata"]["labels"] == {"made-by": "another"}
        assert not events(server, "FailedWorkloadCreate")
    assert len(server.list_requests(CREATES_WORKLOAD)) == 1


async def test_a_foreign_workload_is_used_and_not_changed(server: FakeApiServer) -> None:
    theirs = server.add(WORKLOADS, workload("theirs").for_job("train").basic_template("t").raw())
    async with controller_on(server):
        server.add(JOBS, gang().raw())
        await wait_until(lambda: server.list_objects(GROUPS))
        (group,) = server.list_objects(GROUPS)
        assert group["spec"]["schedulingPolicy"] == {"basic": {}}
        assert group["spec"]["workloadRef"] == {"workloadName": "theirs", "templateName": "t"}
    assert server.list_objects(WORKLOADS) == [theirs]


async def test_a_foreign_pod_group_is_used_and_not_changed(server: FakeApiServer) -> None:
    server.add(WORKLOADS, workload("theirs").for_job("train").gang_template("t", 2).raw())
    theirs = server.add(GROUPS, pod_group("their-group").gang(2).priority(0).from_template("theirs", "t").raw())
    async with controller_on(server) as controller:
        server.add(JOBS, gang().raw())
        await wait_until_idle(controller, server)
    assert server.list_objects(GROUPS) == [theirs]
    assert not server.list_requests(CREATES_WORKLOAD)


async def test_a_users_workload_that_comes_after_its_job_takes_the_place_of_ours(server: FakeApiServer) -> None:
    async with controller_on(server) as controller:
        server.add(JOBS, gang().raw())
        await wait_until(lambda: server.list_objects(GROUPS))
        server.add(WORKLOADS, workload("theirs").for_job("train").gang_template("t", 2).raw())
        await wait_until(lambda: [each["metadata"]["name"] for each in server.list_objects(WORKLOADS)] == ["theirs"])
        await wait_until_idle(controller, server)
        (group,) = server.list_objects(GROUPS)
        assert group["spec"]["workloadRef"] == {"workloadName": "theirs", "templateName": "t"}
        assert not events(server, "AmbiguousWorkload")


async def test_several_workloads_are_ambiguous_until_one_is_left(server: FakeApiServer) -> None:
    for name in ("one", "two"):
        server.add(WORKLOADS, workload(name).for_job("train").gang_template("t", 2).raw())
    async with controller_on(server) as controller:
        server.add(JOBS, gang().raw())
        await wait_until(lambda: events(server, "AmbiguousWorkload"))
        server.patch(JOBS, "default", "train", {"status": {"active": 1}})
        await wait_until_idle(controller, server)
        (event,) = events(server, "AmbiguousWorkload")
        assert "one, two" in event["message"]
        assert (event["type"], event["count"]) == ("Warning", 1)
        assert not server.list_objects(GROUPS)
        server.remove(WORKLOADS, "default", "two")
        await wait_until(lambda: server.list_objects(GROUPS))
        assert server.list_objects(GROUPS)[0]["spec"]["workloadRef"]["workloadName"] == "one"


async def test_the_workload_of_a_namesake_is_no_match(server: FakeApiServer) -> None:
    left_over = workload("train-old").for_job("train").gang_template("t", 2).controlled_by("Job", "train", "old-uid")
    server.add(WORKLOADS, left_over.raw())
    server.add(PODS, job_pod("train", 0, "old-uid").on("n1").raw())
    async with controller_on(server):
        server.add(JOBS, gang().uid("new-uid").raw())
        await wait_until(lambda: server.list_objects(GROUPS))
        assert len(server.list_objects(WORKLOADS)) == 2
        assert not events(server, "AmbiguousWorkload")


@pytest.mark.parametrize(
    "builder",
    [
        pytest.param(gang(size=1), id="one pod"),
        pytest.param(gang().not_indexed(), id="not indexed"),
        pytest.param(gang().scheduler("default-scheduler"), id="another scheduler's"),
        pytest.param(gang().controlled_by("JobSet", "set"), id="another controller's"),
        pytest.param(gang().gang_policy("NoGang"), id="it says so itself"),
        pytest.param(gang().condition("Complete"), id="finished"),
        pytest.param(gang().uid("started"), id="one of its pods is bound"),
    ],
)
async def test_other_jobs_get_nothing(server: FakeApiServer, builder: JobBuilder) -> None:
    server.add(PODS, job_pod("train", 0, "started").on("n1").raw())
    async with controller_on(server) as controller:
        server.add(JOBS, builder.raw())
        await wait_until_idle(controller, server)
    assert {call.path.rpartition("/")[2] for call in server.list_requests(calls("POST"))} <= {"events"}


async def test_a_job_that_could_be_meant_as_a_gang_is_told_once_why_it_is_none(server: FakeApiServer) -> None:
    async with controller_on(server) as controller:
        server.add(JOBS, gang().not_indexed().raw())
        await wait_until(lambda: events(server, "NoGang"))
        server.patch(JOBS, "default", "train", {"status": {"active": 1}})
        await wait_until_idle(controller, server)
    (event,) = events(server, "NoGang")
    assert (event["type"], event["count"]) == ("Normal", 1)
    assert "it is not Indexed; to make it a gang, create it again with completionMode: Indexed" in event["message"]


async def test_after_a_restart_a_job_whose_pods_run_is_not_told_again(server: FakeApiServer) -> None:
    server.add(JOBS, gang().uid("started").not_indexed().raw())
    server.add(PODS, job_pod("train", 0, "started").on("n1").raw())
    async with controller_on(server) as controller:
        await wait_until_idle(controller, server)
    assert not events(server, "NoGang")


async def test_a_job_that_asks_and_cannot_be_a_gang_is_warned_also_while_it_runs(server: FakeApiServer) -> None:
    server.add(JOBS, gang(size=1).uid("started").topology().raw())
    server.add(PODS, job_pod("train", 0, "started").on("n1").raw())
    async with controller_on(server):
        await wait_until(lambda: events(server, "NoGang"))
    (event,) = events(server, "NoGang")
    assert event["type"] == "Warning"
    assert "it runs one pod at a time" in event["message"]


async def test_a_job_with_a_workload_of_its_users_is_a_gang_and_told_nothing(server: FakeApiServer) -> None:
    server.add(WORKLOADS, workload("own").gang_template("t", 2).for_job("train").raw())
    async with controller_on(server) as controller:
        server.add(JOBS, gang().not_indexed().raw())
        await wait_until_idle(controller, server)
    assert not events(server, "NoGang")


async def test_a_job_that_asks_to_be_a_gang_of_another_scheduler_is_told_once(server: FakeApiServer) -> None:
    async with controller_on(server) as controller:
        server.add(JOBS, gang().scheduler("default-scheduler").gang_policy("JobAsGang").raw())
        await wait_until(lambda: events(server, "SchedulerNotGangAware"))
        server.patch(JOBS, "default", "train", {"status": {"active": 1}})
        await wait_until_idle(controller, server)
    (event,) = events(server, "SchedulerNotGangAware")
    assert (event["type"], event["count"]) == ("Warning", 1)
    assert "default-scheduler" in event["message"]
    assert not server.list_objects(WORKLOADS)


async def test_a_job_that_is_deleted_between_the_writes_gets_no_pod_group(server: FakeApiServer) -> None:
    gate = server.hold(CREATES_WORKLOAD)
    async with controller_on(server) as controller:
        server.add(JOBS, gang().raw())
        async with asyncio.timeout(10):
            await gate.reached.wait()
        server.remove(JOBS, "default", "train")
        await wait_until(lambda: not controller.store.jobs)
        gate.open()
        await wait_until(lambda: server.list_objects(WORKLOADS) and controller.queue.idle)
    assert not server.list_requests(CREATES_GROUP)


async def test_a_job_made_anew_gets_objects_of_its_own(server: FakeApiServer) -> None:
    async with controller_on(server):
        server.add(JOBS, gang().uid("first").raw())
        await wait_until(lambda: len(server.list_objects(GROUPS)) == 1)
        server.remove(JOBS, "default", "train")
        server.add(JOBS, gang().uid("second").raw())
        await wait_until(lambda: len(server.list_objects(GROUPS)) == 2)
        assert len(set(names(server.list_objects(WORKLOADS)))) == 2


async def test_objects_that_were_deleted_by_mistake_come_again(server: FakeApiServer) -> None:
    async with controller_on(server):
        server.add(JOBS, gang().raw())
        await wait_until(lambda: server.list_objects(GROUPS))
        (before,) = server.list_objects(GROUPS)
        server.remove(GROUPS, "default", before["metadata"]["name"])
        await wait_until(lambda: server.list_objects(GROUPS))
        assert names(server.list_objects(GROUPS)) == [before["metadata"]["name"]]


async def test_malformed_jobs_stop_nobody(server: FakeApiServer) -> None:
    server.add(JOBS, gang("bad-1").with_field("many", "spec", "parallelism").raw())
    server.add(JOBS, gang("bad-2").with_field([1], "spec", "template").raw())
    async with controller_on(server) as controller:
        server.add(JOBS, gang("bad-3").with_field({"a": 1}, "metadata", "ownerReferences").raw())
        server.add(JOBS, gang("good").raw())
        await wait_until(lambda: server.list_objects(GROUPS))
        assert sum(controller.feed.malformed.values()) >= 3
        assert [item["spec"]["controllerRef"]["name"] for item in server.list_objects(WORKLOADS)] == ["good"]


async def test_a_job_whose_workload_is_wrong_stops_nobody_and_is_tried_again_when_it_changes(
    server: FakeApiServer,
) -> None:
    refused = server.reject(
        lambda r: CREATES_WORKLOAD(r) and r.body["metadata"]["name"].startswith("bad"), 99, status=422, reason="Invalid"
    )
    async with controller_on(server) as controller:
        server.add(JOBS, gang("bad").raw())
        await wait_until(lambda: refused.left < 99)
        server.add(JOBS, gang("good").raw())
        await wait_until(lambda: server.list_objects(GROUPS))
        await wait_until(lambda: not controller.queue.failures(Task("Job", Key("default", "bad"))))
        await wait_until(lambda: events(server, "FailedWorkloadCreate"))
        (event,) = events(server, "FailedWorkloadCreate")
        assert event["message"].startswith("Failed to create Workload for Job bad: ")
        assert (event["type"], event["count"]) == ("Warning", 1)

        refused.left = 0
        server.patch(JOBS, "default", "bad", {"metadata": {"labels": {"mended": "yes"}}})
        await wait_until(lambda: len(server.list_objects(GROUPS)) == 2)
        await wait_until(lambda: len(events(server, "WorkloadCreated")) == 2)


async def test_an_api_outage_is_waited_out(server: FakeApiServer) -> None:
    async with controller_on(server):
        outage = server.reject(CREATES_GROUP, 6, status=500)
        server.add(JOBS, gang().raw())
        await wait_until(lambda: server.list_objects(GROUPS))
        assert outage.left == 0
        assert len(events(server, "FailedPodGroupCreate")) == 1
    assert len(server.list_requests(CREATES_WORKLOAD)) == 1


async def test_nothing_is_written_before_everything_is_listed(server: FakeApiServer) -> None:
    theirs = server.add(WORKLOADS, workload("theirs").for_job("train").gang_template("t", 2).raw())
    server.add(JOBS, gang().raw())
    gate = server.hold(calls("GET", "/workloads"), times=1)
    async with server.client() as client:
        controller = Controller(controller_settings(["--lease="], {}), client, FALLBACK, ControllerMetrics())
        running = asyncio.create_task(controller.run())
        await wait_until(lambda: controller.store.jobs)
        assert controller.readiness() == {"synced": False}
        assert not server.list_requests(calls("POST"))
        gate.open()
        await wait_until(lambda: server.list_objects(GROUPS))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert server.list_objects(WORKLOADS) == [theirs]


def protected(name: str) -> JSON:
    return pod_group(name).priority(0).gang(2).finalizer("example.com/mine").finalizer(PROTECTION).raw()


async def test_a_protected_pod_group_is_freed_when_its_last_pod_has_ended(server: FakeApiServer) -> None:
    server.add(GROUPS, protected("g"))
    for name in ("a", "b"):
        server.add(PODS, pod(name).in_group("g").on("n1").raw())
    async with controller_on(server) as controller:
        server.remove(GROUPS, "default", "g")
        server.patch(PODS, "default", "a", {"status": {"phase": "Succeeded"}})
        await wait_until_idle(controller, server)
        assert not server.list_requests(calls("PATCH", "/podgroups"))
        server.remove(PODS, "default", "b")
        await wait_until(lambda: server.list_requests(calls("PATCH", "/podgroups")))
        await wait_until(lambda: server.list_objects(GROUPS)[0]["metadata"]["finalizers"] == ["example.com/mine"])
        await wait_until_idle(controller, server)
    assert len(server.list_requests(calls("PATCH", "/podgroups"))) == 1


async def test_a_pod_group_that_only_its_protection_keeps_goes(server: FakeApiServer) -> None:
    server.add(GROUPS, pod_group("g").priority(0).finalizer(PROTECTION).raw())
    async with controller_on(server):
        server.remove(GROUPS, "default", "g")
        await wait_until(lambda: not server.list_objects(GROUPS))


async def test_a_pod_group_that_changed_meanwhile_is_freed_at_the_next_try(server: FakeApiServer) -> None:
    server.add(GROUPS, pod_group("g").priority(0).finalizer(PROTECTION).raw())
    async with controller_on(server):
        gate = server.hold(calls("PATCH", "/podgroups"), times=1)
        server.remove(GROUPS, "default", "g")
        async with asyncio.timeout(10):
            await gate.reached.wait()
        server.patch(GROUPS, "default", "g", {"metadata": {"finalizers": [PROTECTION, "example.com/new"]}})
        gate.open()
        await wait_until(lambda: server.list_objects(GROUPS)[0]["metadata"]["finalizers"] == ["example.com/new"])


async def test_a_job_gets_the_pod_group_of_the_template_that_it_names_in_its_controllers_workload(
    server: FakeApiServer,
) -> None:
    reference = {"apiGroup": "trainer.kubeflow.org", "kind": "TrainJob", "name": "t"}
    made = workload("whole").gang_template("first", 7).gang_template("workers", 2)
    async with controller_on(server) as controller:
        server.add(JOBS, gang().delegated("workers").uid("j-1").raw())
        await wait_until_idle(controller, server)
        assert not server.list_objects(WORKLOADS)
        server.add(WORKLOADS, made.with_field(reference, "spec", "controllerRef").raw())
        await wait_until(lambda: len(server.list_objects(GROUPS)) == 1)
        (group,) = server.list_objects(GROUPS)
        assert group["spec"]["workloadRef"] == {"workloadName": "whole", "templateName": "workers"}
        assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 2}}
        assert [owner["uid"] for owner in group["metadata"]["ownerReferences"]] == ["j-1"]
        grown = workload("whole").gang_template("first", 7).gang_template("workers", 5).raw()["spec"]
        server.patch(WORKLOADS, "default", "whole", {"spec": {"podGroupTemplates": grown["podGroupTemplates"]}})
        await wait_until(
            lambda: server.list_objects(GROUPS)[0]["spec"]["schedulingPolicy"] == {"gang": {"minCount": 5}}
        )
        server.remove(GROUPS, "default", group["metadata"]["name"])
        await wait_until(lambda: names(server.list_objects(GROUPS)) == [group["metadata"]["name"]])
        await wait_until_idle(controller, server)
    assert len(server.list_objects(WORKLOADS)) == 1


async def test_a_job_that_names_a_template_which_is_not_there_is_told_so(server: FakeApiServer) -> None:
    reference = {"apiGroup": "trainer.kubeflow.org", "kind": "TrainJob", "name": "t"}
    async with controller_on(server):
        server.add(
            WORKLOADS, workload("whole").gang_template("a", 2).with_field(reference, "spec", "controllerRef").raw()
        )
        server.add(JOBS, gang().delegated("b").raw())
        await wait_until(lambda: len(events(server, "AmbiguousWorkload")) == 1)
    (said,) = events(server, "AmbiguousWorkload")
    assert said["message"].endswith("one by one: Workload whole has no template 'b', which its annotation names")
    assert not server.list_objects(GROUPS)


async def test_a_job_made_anew_gets_its_pod_group_once_that_of_the_last_job_of_the_name_is_gone(
    server: FakeApiServer,
) -> None:
    """A user's Workload, applied again with its Job, gives the PodGroups of both Jobs one name."""

    def apply(generation: str) -> None:
        server.add(WORKLOADS, workload("mine").uid(f"w-{generation}").for_job("train").gang_template("t", 3).raw())
        server.add(JOBS, gang().uid(f"j-{generation}").raw())

    def jobs_of_groups() -> list[str]:
        return [group["metadata"]["ownerReferences"][0]["uid"] for group in server.list_objects(GROUPS)]

    async with controller_on(server) as controller:
        apply("1")
        await wait_until(lambda: jobs_of_groups() == ["j-1"])
        (name,) = names(server.list_objects(GROUPS))
        server.patch(GROUPS, "default", name, {"metadata": {"finalizers": ["example.com/wait"]}})
        server.remove(JOBS, "default", "train")
        server.remove(WORKLOADS, "default", "mine")
        apply("2")
        await wait_until_idle(controller, server)  # garbage collection has not come yet
        server.remove(GROUPS, "default", name)
        await wait_until_idle(controller, server)
        assert len(server.list_requests(CREATES_GROUP)) == 1
        server.patch(GROUPS, "default", name, {"metadata": {"finalizers": None}})
        await wait_until(lambda: jobs_of_groups() == ["j-2"])


async def test_only_the_pods_of_jobs_and_the_leaders_of_replicas_are_watched(server: FakeApiServer) -> None:
    server.add(PODS, pod("bare").raw())
    server.add(PODS, job_pod("train").raw())
    async with controller_on(server) as controller:
        server.add(PODS, pod("later").raw())
        server.add(PODS, job_pod("train", 1).raw())
        for worker in (0, 1):
            server.add(PODS, pod(f"serve-{worker}").of_replica("serve", 0, worker).raw())
        await wait_until(lambda: len(controller.store.pods) == 3)
        assert {known.name for known in controller.store.pods.values()} == {"train-0", "train-1", "serve-0"}
    asked = {r.params.get("labelSelector") for r in server.list_requests(calls("GET", "/pods"))}
    assert asked == {"batch.kubernetes.io/job-name", "leaderworkerset.sigs.k8s.io/worker-index=0"}


async def test_a_known_job_pod_keeps_its_group_without_a_read_and_frees_it_by_its_end(server: FakeApiServer) -> None:
    server.add(GROUPS, pod_group("g").priority(0).finalizer(PROTECTION).raw())
    server.add(PODS, job_pod("train").in_group("g").on("n1").raw())
    async with controller_on(server) as controller:
        server.remove(GROUPS, "default", "g")
        await wait_until(lambda: any(group.deleting for group in controller.store.groups.values()))
        await asyncio.sleep(3 * RELEASE_TIMING.grace_seconds)
        assert not server.list_requests(READS_PODS)
        server.patch(PODS, "default", "train-0", {"status": {"phase": "Failed"}})
        await wait_until(lambda: not server.list_objects(GROUPS))
    assert len(server.list_requests(READS_PODS)) == 1


@pytest.mark.parametrize("status", [403, 410, 500])
async def test_a_group_is_kept_until_the_pods_can_be_read(server: FakeApiServer, status: int) -> None:
    server.add(GROUPS, pod_group("g").priority(0).finalizer(PROTECTION).raw())
    server.add(PODS, pod("a").labelled_group("g").raw())
    unread = server.reject(READS_PODS, 3, status=status)
    async with controller_on(server):
        server.remove(GROUPS, "default", "g")
        await wait_until(lambda: unread.left == 0)
        await asyncio.sleep(3 * RELEASE_TIMING.pause.cap)
        assert not server.list_requests(calls("PATCH", "/podgroups"))
        server.remove(PODS, "default", "a")
        await wait_until(lambda: not server.list_objects(GROUPS))


async def test_many_groups_that_go_at_once_share_their_reads(server: FakeApiServer) -> None:
    for number in range(200):
        server.add(GROUPS, pod_group(f"g-{number}").priority(0).finalizer(PROTECTION).raw())
    server.add(PODS, pod("last").labelled_group("g-7").raw())
    async with controller_on(server):
        for number in range(200):
            server.remove(GROUPS, "default", f"g-{number}")
        await wait_until(lambda: names(server.list_objects(GROUPS)) == ["g-7"])
        assert len(server.list_requests(READS_PODS)) <= 20
        server.remove(PODS, "default", "last")
        await wait_until(lambda: not server.list_objects(GROUPS))
    assert len(server.list_requests(calls("PATCH", "/podgroups"))) == 200


async def test_a_controller_that_was_killed_while_a_group_waited_frees_it_after_its_restart(
    server: FakeApiServer,
) -> None:
    server.add(GROUPS, pod_group("g").priority(0).finalizer(PROTECTION).raw())
    server.add(PODS, pod("a").labelled_group("g").raw())
    async with controller_on(server):
        server.remove(GROUPS, "default", "g")
        await wait_until(lambda: server.list_requests(READS_PODS))
    server.remove(PODS, "default", "a")
    async with controller_on(server):
        await wait_until(lambda: not server.list_objects(GROUPS))


async def test_the_status_of_jobs_and_groups_is_never_written(server: FakeApiServer) -> None:
    async with controller_on(server) as controller:
        server.add(JOBS, gang().raw())
        await wait_until(lambda: server.list_objects(GROUPS))
        await wait_until_idle(controller, server)
    assert not [r for r in server.requests if r.method in {"PUT", "PATCH", "DELETE"} and "/events" not in r.path]


async def test_what_is_done_every_few_seconds_goes_on_after_a_defect_of_ours(
    server: FakeApiServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("controller.loop.PROBE_SECONDS", 0.005)
    probe = Mock(side_effect=AttributeError("odd"))
    async with controller_on(server):
        monkeypatch.setattr("controller.loop.Retries.retry_oldest", probe)
        await wait_until(lambda: probe.call_count > 2)
        server.add(JOBS, gang().raw())
        await wait_until(lambda: len(server.list_objects(GROUPS)) == 1)
    assert "odd" in caplog.text
