"""Serried goes in an order in which nothing hangs, and takes with it what it has set; what is not its own stays."""

import io
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from serried.api.group import PROTECTION
from serried.api.names import GANG, LABELLED, POD_GROUP_LABEL
from serried.api.pod import HELD_GATE
from serried.cli.output import CommandError, ExitCode
from serried.cli.uninstall import (
    DEFINITIONS,
    DEPLOYMENTS,
    ELSEWHERE,
    FIRST,
    LAST,
    MUTATING,
    MUTATING_BINDINGS,
    NAMESPACES,
    PURGED,
    Removal,
    Uninstall,
    free_metadata,
)
from serried.kube.wire import JOBS, JSON, PODS, Resource, pod_groups, workloads
from tests.support.apiserver import FakeApiServer
from tests.support.commands import Run
from tests.unit.manifests.shipped import read_all

HOME = "serried-system"
NATIVE = pod_groups("scheduling.k8s.io", "v1beta1")
WORKLOADS = workloads("scheduling.k8s.io", "v1beta1")
INSTALLED = (*FIRST, *LAST, *(resource for resource, _, _ in ELSEWHERE), DEFINITIONS, DEPLOYMENTS, NAMESPACES)
REMOVAL = Removal(HOME, frozenset({"serried"}), hand_to="", purge=False, dry_run=False)
OURS = {"app.kubernetes.io/managed-by": "serried"}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serried.cli.uninstall._SETTLE", 0.0)


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    """A cluster with the native API in which Serried is installed, and whose processes have ended."""
    served = (*INSTALLED, PODS, JOBS, NATIVE, WORKLOADS)
    async with FakeApiServer(served=served) as server:
        for resource, names in {**FIRST, **LAST}.items():
            for name in names:
                server.add(resource, named(name, ""))
        for resource, namespace, name in ELSEWHERE:
            server.add(resource, named(name, namespace))
        for name in PURGED:
            server.add(DEFINITIONS, named(name, ""))
        for name in ("serried", "serried-controller"):
            server.add(DEPLOYMENTS, named(name, HOME))
        for name in (HOME, "kube-system", "default"):
            server.add(NAMESPACES, named(name, ""))
        yield server


def named(name: str, namespace: str = "default", **metadata: Any) -> JSON:
    own = {"namespace": namespace} if namespace else {}
    return {"metadata": {"name": name, **own, **metadata}}


def pod(name: str, *, node: str = "", gates: Sequence[str] = (), nominated: str = "", **metadata: Any) -> JSON:
    spec: JSON = {"schedulerName": "serried", "containers": [{"name": "c", "image": "none"}]}
    if node:
        spec["nodeName"] = node
    if gates:
        spec["schedulingGates"] = [{"name": gate} for gate in gates]
    status = {"nominatedNodeName": nominated} if nominated else {}
    return named(name, **metadata) | {"spec": spec, "status": status}


async def uninstall(server: FakeApiServer, removal: Removal = REMOVAL) -> list[str]:
    said: list[str] = []
    async with server.client() as client:
        await Uninstall(client, removal, said.append).run()
    return said


def count(server: FakeApiServer, *resources: Resource) -> int:
    return sum(len(server.all(resource)) for resource in resources)


async def test_all_that_the_manifests_make_goes_but_crds_with_what_people_made(server: FakeApiServer) -> None:
    await uninstall(server)
    assert count(server, *FIRST, *LAST, DEPLOYMENTS, *(resource for resource, _, _ in ELSEWHERE)) == 0
    assert [each["metadata"]["name"] for each in server.all(NAMESPACES)] == ["default", "kube-system"]
    assert count(server, DEFINITIONS) == 4


def test_what_it_deletes_by_name_is_what_the_manifests_make() -> None:
    shipped = {
        (f"{each.kind.lower()}s".replace("policys", "policies"), each.name)
        for each in read_all()
        if each.content["metadata"].get("namespace", "") != HOME
    }
    deleted = {(kind.plural, name) for kind, names in {**FIRST, **LAST}.items() for name in names}
    deleted |= {(kind.plural, name) for kind, _, name in ELSEWHERE}
    deleted |= {("customresourcedefinitions", name) for name in PURGED} | {("namespaces", HOME)}
    assert shipped == deleted | {("customresourcedefinitions", "podgroups.scheduling.x-k8s.io")}


async def test_a_second_time_and_without_an_installation_it_finds_nothing_to_do(server: FakeApiServer) -> None:
    await uninstall(server)
    assert await uninstall(server) == []


async def test_policies_go_first_so_that_none_refuses_or_gates_and_processes_before_pods_are_freed(
    server: FakeApiServer,
) -> None:
    server.add(PODS, pod("one", gates=[HELD_GATE]))
    await uninstall(server)
    writes = [request for request in server.requests if request.method != "GET"]
    places = [next(place for place, word in enumerate(_ORDER) if word in request.path) for request in writes]
    assert places == sorted(places)


_ORDER = ("admissionpolic", "deployments", "/pods/", "/kube-system/", "flowcontrol", "clusterrole", "/namespaces/")


async def test_waiting_pods_lose_gate_and_nomination_and_keep_those_of_others(server: FakeApiServer) -> None:
    server.add(PODS, pod("held", gates=["example.com/quota", HELD_GATE]))
    server.add(PODS, pod("nominated", nominated="n1"))
    other = pod("other", nominated="n1")
    other["spec"]["schedulerName"] = "default-scheduler"
    server.add(PODS, other)
    said = await uninstall(server)
    assert look(server, "held")["spec"]["schedulingGates"] == [{"name": "example.com/quota"}]
    assert "nominatedNodeName" not in look(server, "nominated")["status"]
    assert look(server, "other")["status"]["nominatedNodeName"] == "n1"
    assert "freed pods default/held\n" in said


def look(server: FakeApiServer, name: str) -> JSON:
    found = server.look(PODS, "default", name)
    assert found is not None
    return found


_KICK = "scheduling.serried.dev/kick"


def test_running_pods_lose_the_label_of_their_binding_and_keep_what_containers_read() -> None:
    told = {GANG: "g", LABELLED: "true", "scheduling.serried.dev/rank": "3", "scheduling.serried.dev/domain": "r1"}
    bound = pod("one", node="n1", annotations=told, labels={POD_GROUP_LABEL: "g", "app": "a"})
    assert free_metadata(bound) == {"annotations": {GANG: None, LABELLED: None}, "labels": {POD_GROUP_LABEL: None}}


def test_a_label_by_which_people_name_a_group_stays() -> None:
    assert free_metadata(pod("one", labels={POD_GROUP_LABEL: "g"})) == {}
    assert free_metadata(pod("one", labels={_KICK: "1.000", "app": "a"})) == {"labels": {_KICK: None}}
    assert free_metadata(pod("one", annotations={"scheduling.serried.dev/required-topology": "zone"})) == {}


async def test_groups_lose_the_finalizer_that_nobody_would_take_off(server: FakeApiServer) -> None:
    finalizers = ["example.com/mine", PROTECTION]
    server.add(NATIVE, named("ours", labels=OURS, finalizers=finalizers))
    server.add(NATIVE, named("theirs", finalizers=finalizers))
    server.add(NATIVE, named("leaving", finalizers=[PROTECTION]))
    server.remove(NATIVE, "default", "leaving")
    await uninstall(server)
    left = {each["metadata"]["name"]: each["metadata"]["finalizers"] for each in server.all(NATIVE)}
    assert left == {"ours": ["example.com/mine"], "theirs": finalizers}


async def test_a_purge_deletes_what_serried_made_and_its_kinds(server: FakeApiServer) -> None:
    server.add(NATIVE, named("ours", labels=OURS, finalizers=[PROTECTION]))
    server.add(NATIVE, named("theirs", finalizers=[PROTECTION]))
    server.add(WORKLOADS, named("ours", labels=OURS))
    await uninstall(server, asked(purge=True))
    assert [each["metadata"]["name"] for each in (*server.all(NATIVE), *server.all(WORKLOADS))] == ["theirs"]
    assert count(server, DEFINITIONS) == 0


def asked(**changes: Any) -> Removal:
    return Removal(**({name: getattr(REMOVAL, name) for name in REMOVAL.__slots__} | changes))


async def test_a_dry_run_says_the_same_and_writes_nothing(server: FakeApiServer) -> None:
    server.add(PODS, pod("one", gates=[HELD_GATE], nominated="n1"))
    server.add(NATIVE, named("ours", labels=OURS, finalizers=[PROTECTION]))
    would = await uninstall(server, asked(dry_run=True, purge=True))
    assert {request.method for request in server.requests} == {"GET"}
    assert await uninstall(server, asked(purge=True)) == would


async def test_a_namespace_with_pods_of_others_stays(server: FakeApiServer) -> None:
    server.add(PODS, pod("database", node="n1", namespace=HOME))
    said = await uninstall(server)
    assert said[-1].startswith(f"left namespace {HOME}")
    assert server.look(NAMESPACES, "", HOME) is not None


async def test_on_an_older_cluster_without_mutating_policies_and_groups_it_goes_as_well(server: FakeApiServer) -> None:
    server.served -= {MUTATING, MUTATING_BINDINGS, NATIVE, WORKLOADS}
    await uninstall(server)
    assert server.look(NAMESPACES, "", HOME) is None
    with pytest.raises(CommandError, match=r"needs MutatingAdmissionPolicies, of Kubernetes 1.36"):
        await uninstall(server, asked(hand_to="default-scheduler"))


async def test_pods_are_not_handed_to_the_scheduler_that_goes(server: FakeApiServer) -> None:
    with pytest.raises(CommandError, match="nobody serves it") as refused:
        await uninstall(server, asked(hand_to="serried"))
    assert refused.value.code is ExitCode.USAGE
    assert count(server, DEPLOYMENTS) == 2


async def test_what_does_not_go_is_named(server: FakeApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serried.cli.uninstall._SECONDS", 0.0)
    monkeypatch.setattr("serried.cli.uninstall._PAUSE", 0.0)
    server.add(PODS, pod("serried-0", node="n1", namespace=HOME, labels={"app.kubernetes.io/name": "serried"}))
    with pytest.raises(CommandError, match="the pods of Serried: not gone after 0 s") as late:
        await uninstall(server)
    assert late.value.code is ExitCode.NO


async def test_pods_that_are_handed_over_are_made_anew_and_those_of_a_job_are_no_failures(
    server: FakeApiServer,
) -> None:
    for name in ("train", "half"):
        server.add(JOBS, named(name, uid=name) | {"spec": {}, "status": {}})
    server.add(PODS, pod("train-0", ownerReferences=owned_by("Job", "train")))
    server.add(PODS, pod("half-0", ownerReferences=owned_by("Job", "half"), node="n1"))
    server.add(PODS, pod("half-1", ownerReferences=owned_by("Job", "half")))
    server.add(PODS, pod("web-0", ownerReferences=owned_by("ReplicaSet", "web")))
    server.add(PODS, pod("alone"))
    said = "".join(await uninstall(server, asked(hand_to="default-scheduler", dry_run=True)))
    assert "suspended jobs.batch default/train\nresumed jobs.batch default/train\n" in said
    assert "left 1 waiting pods of job default/half: others of it run\n" in said
    assert "deleted pods default/web-0\n" in said
    assert "left pod default/alone: nothing would make it anew\n" in said
    assert "created mutatingadmissionpolicies.admissionregistration.k8s.io serried-handover" in said


def owned_by(kind: str, name: str) -> list[JSON]:
    return [{"kind": kind, "name": name, "uid": name, "controller": True}]


@pytest.mark.parametrize("words", [("--hand-to", "it's"), ("--scheduler-name", "My Scheduler")])
def test_what_is_no_scheduler_s_name_is_refused(run: Run, words: tuple[str, str]) -> None:
    ended = run("uninstall", "--yes", *words)
    assert (ended.code, ended.err) == (2, f"serried: {words[1]!r} is not the name of a scheduler\n")


@pytest.mark.parametrize("answer", ["n\n", ""])
def test_without_a_yes_nothing_is_done(run: Run, monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    ended = run("uninstall")
    assert ended.code == 1
    assert "Remove Serried from namespace serried-system and the cluster?" in ended.out
    assert ended.err.endswith("serried: nothing was done; with --yes nobody is asked\n")
