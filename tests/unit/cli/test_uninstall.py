"""Serried goes in an order in which nothing hangs, and takes with it what it has set; what is not its own stays."""

import asyncio
import io
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest

from cli.output import CommandError, ExitCode
from cli.uninstall import (
    DEFINITIONS,
    DEPLOYMENTS,
    MUTATING,
    MUTATING_BINDINGS,
    SUSPENDED,
    Removal,
    Uninstall,
    free_metadata,
)
from serried.api.group import PROTECTION
from serried.api.names import GANG, INSTALLATION, LABELLED_BY_BINDING, POD_GROUP_LABEL
from serried.api.node import protect
from serried.api.pod import HELD_GATE
from serried.kube.wire import (
    JOBS,
    JSON,
    LEASES,
    NAMESPACES,
    NODES,
    PODS,
    VOLUME_CLAIMS,
    Resource,
    pod_groups,
    workloads,
)
from tests.support.apiserver import FakeApiServer
from tests.support.commands import Run, done_line
from tests.support.faults import calls
from tests.unit.manifests.shipped import read_all

HOME = "serried-system"
NATIVE = pod_groups("scheduling.k8s.io", "v1beta1")
WORKLOADS = workloads("scheduling.k8s.io", "v1beta1")
SECRETS = Resource("", "v1", "secrets")
CONFIG_MAPS = Resource("", "v1", "configmaps")
ACCOUNTS = Resource("", "v1", "serviceaccounts")
REPLICA_SETS = Resource("apps", "v1", "replicasets")
REMOVAL = Removal(HOME, frozenset({"serried"}), hand_to="", purge=False, dry_run=False)
OURS = {"app.kubernetes.io/managed-by": "serried", "scheduling.serried.dev/job-uid": "1"}
MINE = {INSTALLATION: HOME}


def kind_of(obj: JSON) -> Resource:
    group, _, version = obj["apiVersion"].rpartition("/")
    plural = f"{obj['kind'].lower()}s".replace("policys", "policies")
    of_cluster = "namespace" not in obj["metadata"]
    return Resource(group, version, plural, namespaced=not of_cluster)


SHIPPED = [(kind_of(each.content), each.content) for each in read_all()]
CLUSTER_ROLES = Resource("rbac.authorization.k8s.io", "v1", "clusterroles", namespaced=False)
SMALL = [
    (kind, obj)
    for kind, obj in SHIPPED
    if kind in {DEPLOYMENTS, NAMESPACES, CLUSTER_ROLES}
    or (kind in {MUTATING, MUTATING_BINDINGS} and obj["metadata"]["name"] == "serried-gate")
]
"""An installation with few objects."""

CLUSTER_WIDE = {kind for kind, _ in SHIPPED if not kind.namespaced} - {DEFINITIONS, NAMESPACES}
BESIDE = (NODES, PODS, JOBS, LEASES, VOLUME_CLAIMS, SECRETS, CONFIG_MAPS, ACCOUNTS, REPLICA_SETS, NATIVE, WORKLOADS)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.uninstall._POLICY_SECONDS", 0.0)
    monkeypatch.setattr("cli.uninstall._PAUSE", 0.005)


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    """A cluster with the native API in which Serried is installed, and whose processes have ended."""
    async with make_server() as server:
        install(server)
        yield server


def make_server() -> FakeApiServer:
    return FakeApiServer(served=(*dict.fromkeys(kind for kind, _ in SHIPPED), *BESIDE))


def install(server: FakeApiServer, shipped: Sequence[tuple[Resource, JSON]] = SHIPPED) -> None:
    """Add these objects of the manifests, and what kube-controller-manager makes in each namespace."""
    for kind, obj in shipped:
        if kind == DEFINITIONS:
            group = obj["spec"]["group"]
            server.add(kind, named(obj["metadata"]["name"], "") | {"spec": {"group": group}})
        elif kind != NAMESPACES:
            place = obj["metadata"].get("namespace", "")
            server.add(kind, named(obj["metadata"]["name"], place, labels=MINE))
    server.add(NAMESPACES, named(HOME, "", labels=MINE))
    server.add(ACCOUNTS, named("default", HOME))
    server.add(CONFIG_MAPS, named("kube-root-ca.crt", HOME))
    for name in ("kube-system", "default"):
        server.add(NAMESPACES, named(name, ""))


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
        await Uninstall(client, removal, "the API server", said.append).run()
    return said


def count(server: FakeApiServer, *resources: Resource) -> int:
    return sum(len(server.list_objects(resource)) for resource in resources)


async def test_all_that_the_manifests_make_goes_but_crds_with_what_people_made(server: FakeApiServer) -> None:
    await uninstall(server)
    left = {(kind, each["metadata"]["name"]) for kind in server.served for each in server.list_objects(kind)}
    definitions = {(kind, obj["metadata"]["name"]) for kind, obj in SHIPPED if kind == DEFINITIONS}
    made_by_kubernetes = {(ACCOUNTS, "default"), (CONFIG_MAPS, "kube-root-ca.crt")}  # here nothing empties a namespace
    assert left == definitions | made_by_kubernetes | {(NAMESPACES, "default"), (NAMESPACES, "kube-system")}


async def test_policies_go_first_so_that_none_refuses_or_gates_and_processes_before_pods_are_freed(
    server: FakeApiServer,
) -> None:
    server.add(PODS, pod("one", gates=[HELD_GATE]))
    await uninstall(server)
    writes = [request for request in server.requests if request.method != "GET"]
    writes = [request for request in writes if "selfsubjectaccessreviews" not in request.path]
    assert writes[-1].path == f"/api/v1/namespaces/{HOME}"
    places = [next(place for place, word in enumerate(_ORDER) if word in request.path) for request in writes]
    assert places == sorted(places)


_ORDER = ("policybindings", "admissionpolicies", "/deployments/", "/pods/", "/")


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
    found = server.get_object(PODS, "default", name)
    assert found is not None
    return found


_RETRY_KEY = "scheduling.serried.dev/kick"


def test_running_pods_lose_the_label_of_their_binding_and_keep_what_containers_read() -> None:
    told = {
        GANG: "g",
        LABELLED_BY_BINDING: "true",
        "scheduling.serried.dev/rank": "3",
        "scheduling.serried.dev/domain": "r1",
    }
    bound = pod("one", node="n1", annotations=told, labels={POD_GROUP_LABEL: "g", "app": "a"})
    assert free_metadata(bound) == {
        "annotations": {GANG: None, LABELLED_BY_BINDING: None},
        "labels": {POD_GROUP_LABEL: None},
    }


def test_a_label_by_which_people_name_a_group_stays() -> None:
    assert free_metadata(pod("one", labels={POD_GROUP_LABEL: "g"})) == {}
    assert free_metadata(pod("one", labels={_RETRY_KEY: "1.000", "app": "a"})) == {"labels": {_RETRY_KEY: None}}
    assert free_metadata(pod("one", annotations={"scheduling.serried.dev/required-topology": "zone"})) == {}


async def test_groups_of_serried_lose_its_finalizer_and_those_of_others_keep_it(
    server: FakeApiServer,
) -> None:
    finalizers = ["example.com/mine", PROTECTION]
    server.add(NATIVE, named("ours", labels=OURS, finalizers=finalizers))
    server.add(NATIVE, named("theirs", finalizers=finalizers))
    server.add(NATIVE, named("leaving", finalizers=[PROTECTION]))
    server.remove(NATIVE, "default", "leaving")
    await uninstall(server)
    left = {each["metadata"]["name"]: each["metadata"]["finalizers"] for each in server.list_objects(NATIVE)}
    # kube-controller-manager guards the groups of others by the same finalizer, also while they are being deleted.
    assert left == {"ours": ["example.com/mine"], "theirs": finalizers, "leaving": [PROTECTION]}


def protected(name: str, home: str = HOME, **others: str) -> JSON:
    """A node that an installation keeps autoscalers off."""
    return named(name, "", annotations={**others, **protect(others, home)})


@pytest.mark.parametrize("as_hook", [False, True], ids=["by the command", "by the chart's hook"])
async def test_nodes_lose_the_annotations_of_the_installation_and_keep_those_of_others(
    server: FakeApiServer, *, as_hook: bool
) -> None:
    theirs = {"karpenter.sh/do-not-disrupt": "true", "note": "mine"}
    server.add(NODES, protected("n1", **theirs))
    server.add(NODES, protected("n2", home="other"))
    server.add(NODES, named("n3", "", annotations=theirs))
    said = await free(server) if as_hook else await uninstall(server)
    left = {each["metadata"]["name"]: each["metadata"]["annotations"] for each in server.list_objects(NODES)}
    assert left == {"n1": theirs, "n2": protected("n2", home="other")["metadata"]["annotations"], "n3": theirs}
    assert [line for line in said if " nodes " in line] == ["freed nodes n1\n"]


async def test_nodes_are_freed_beside_another_installation_too(server: FakeApiServer) -> None:
    for kind, obj in ((DEPLOYMENTS, "serried"), (NAMESPACES, "")):
        name = obj or "elsewhere"
        server.add(kind, named(name, "elsewhere" if obj else "", labels={INSTALLATION: "elsewhere"}))
    server.add(NODES, protected("n1"))
    said = await uninstall(server)
    assert "left pods and groups: the installation in elsewhere serves them\n" in said
    assert server.list_objects(NODES)[0]["metadata"]["annotations"] == {}


async def test_a_purge_deletes_what_serried_made_and_its_kinds(server: FakeApiServer) -> None:
    server.add(NATIVE, named("ours", labels=OURS, finalizers=[PROTECTION]))
    server.add(NATIVE, named("theirs", finalizers=[PROTECTION]))
    server.add(WORKLOADS, named("ours", labels=OURS))
    await uninstall(server, asked(purge=True))
    assert [each["metadata"]["name"] for each in (*server.list_objects(NATIVE), *server.list_objects(WORKLOADS))] == [
        "theirs"
    ]
    assert [each["spec"]["group"] for each in server.list_objects(DEFINITIONS)] == ["scheduling.x-k8s.io"]


def asked(**changes: Any) -> Removal:
    return Removal(**({name: getattr(REMOVAL, name) for name in REMOVAL.__slots__} | changes))


async def test_a_dry_run_says_the_same_and_writes_nothing(server: FakeApiServer) -> None:
    server.add(PODS, pod("one", gates=[HELD_GATE], nominated="n1"))
    server.add(NATIVE, named("ours", labels=OURS, finalizers=[PROTECTION]))
    would = await uninstall(server, asked(dry_run=True, purge=True))
    asked_rights = {request.path.rpartition("/")[2] for request in server.requests if request.method != "GET"}
    assert asked_rights == {"selfsubjectaccessreviews"}
    assert await uninstall(server, asked(purge=True)) == [done_line(line) for line in would]
    assert f"would delete namespaces {HOME}\n" in would


# ---------------------------------------------------------------- the namespace


@pytest.mark.parametrize(
    "resource",
    [
        pytest.param(PODS, id="a pod"),
        pytest.param(VOLUME_CLAIMS, id="a claim with data, and no pod"),
        pytest.param(SECRETS, id="a secret"),
        pytest.param(DEPLOYMENTS, id="a Deployment that is scaled to 0"),
    ],
)
@pytest.mark.parametrize("dry_run", [False, True], ids=["", "in a dry run"])
async def test_a_namespace_stays_with_what_others_have_in_it(
    server: FakeApiServer, resource: Resource, *, dry_run: bool
) -> None:
    server.add(resource, pod("theirs", namespace=HOME))
    said = await uninstall(server, asked(dry_run=dry_run))
    begin = "would leave" if dry_run else "left"
    assert said[-1] == f"{begin} namespace {HOME}: it contains {resource} theirs\n"
    assert server.get_object(NAMESPACES, "", HOME) is not None
    assert server.get_object(resource, HOME, "theirs") is not None


async def test_what_the_installation_owns_and_what_its_processes_write_keep_no_namespace(server: FakeApiServer) -> None:
    deployment = server.get_object(DEPLOYMENTS, HOME, "serried")
    assert deployment is not None
    owner = [{"kind": "Deployment", "name": "serried", "uid": deployment["metadata"]["uid"], "controller": True}]
    replicas = server.add(REPLICA_SETS, named("serried-7f", HOME, ownerReferences=owner))
    owner = [{"kind": "ReplicaSet", "name": "serried-7f", "uid": replicas["metadata"]["uid"], "controller": True}]
    server.add(PODS, pod("serried-7f-1", namespace=HOME, node="n1", ownerReferences=owner))
    server.add(LEASES, named("serried", HOME))
    server.add(WORKLOADS, named("train", HOME, labels=OURS))
    said = await uninstall(server, asked(dry_run=True))
    assert said[-1] == f"would delete namespaces {HOME}\n"
    assert f"would delete leases.coordination.k8s.io {HOME}/serried\n" in said


async def test_a_namespace_that_the_installation_has_not_made_stays_without_it(server: FakeApiServer) -> None:
    server.patch(NAMESPACES, "", HOME, {"metadata": {"labels": {INSTALLATION: None}}})
    server.add(SECRETS, named("shared", HOME))
    for kind in (DEPLOYMENTS, ACCOUNTS):
        release = {"meta.helm.sh/release-name": "gangs", "meta.helm.sh/release-namespace": HOME}
        server.patch(kind, HOME, "serried", {"metadata": {"annotations": release}})
    said = await uninstall(server)
    assert said[-2:] == [
        f"left namespace {HOME}: Serried did not create it\n",
        f"left the record of Helm's release gangs: helm uninstall gangs --namespace {HOME} --no-hooks\n",
    ]
    assert [each["metadata"]["name"] for each in server.list_objects(SECRETS)] == ["shared"]
    assert count(server, *CLUSTER_WIDE, DEPLOYMENTS) == 0


async def test_a_namespace_of_which_a_kind_cannot_be_listed_stays(server: FakeApiServer) -> None:
    server.reject(calls("GET", f"/namespaces/{HOME}/persistentvolumeclaims"), times=99, message="etcd is slow")
    said = await uninstall(server)
    assert said[-1] == f"left namespace {HOME}: its content could not be listed: persistentvolumeclaims: etcd is slow\n"


@pytest.mark.parametrize("removed_before", [False, True], ids=["without Serried", "after it was uninstalled"])
async def test_a_namespace_without_a_trace_of_serried_is_an_error(*, removed_before: bool) -> None:
    async with make_server() as server:
        if removed_before:
            install(server)
            await uninstall(server)
        server.add(NAMESPACES, named("training-data", ""))
        server.add(VOLUME_CLAIMS, named("dataset", "training-data"))
        await refuse(
            server,
            "Serried is not installed in namespace training-data of the API server",
            asked(home="training-data"),
        )


async def refuse(server: FakeApiServer, said: str, removal: Removal, code: ExitCode = ExitCode.USAGE) -> None:
    """Uninstall in vain: with these words, and without a write."""
    before = server.storage.revision
    with pytest.raises(CommandError, match=said) as refused:
        await uninstall(server, removal)
    assert refused.value.code is code
    assert server.storage.revision == before


async def test_a_wrong_namespace_takes_nothing_from_the_installation_in_another_one(server: FakeApiServer) -> None:
    server.add(VOLUME_CLAIMS, named("dataset", "training-data"))
    server.add(PODS, pod("held", gates=[HELD_GATE]))
    said = f"Serried is not installed in namespace training-data, but in {HOME}"
    await refuse(server, said, asked(home="training-data"))


async def test_what_is_left_of_a_second_installation_goes_without_what_both_share(server: FakeApiServer) -> None:
    server.add(DEPLOYMENTS, named("serried", "gangs", labels={INSTALLATION: "gangs"}))
    server.add(PODS, pod("held", gates=[HELD_GATE]))
    await refuse(server, "CRDs are also of the installation in namespace", asked(home="gangs", purge=True))
    assert await uninstall(server, asked(home="gangs")) == [
        "deleted deployments.apps gangs/serried\n",
        "left pods and groups: the installation in serried-system serves them\n",
    ]
    assert look(server, "held")["spec"]["schedulingGates"] == [{"name": HELD_GATE}]


async def test_an_installation_without_labels_is_to_be_upgraded_before() -> None:
    async with make_server() as server:
        labels = {"app.kubernetes.io/name": "serried"}
        server.add(DEPLOYMENTS, named("serried", HOME, labels=labels))
        await refuse(server, "upgrade it to this release", REMOVAL)
        await refuse(server, f", but in {HOME}", asked(home="gangs"))


async def test_what_kubectl_or_helm_have_left_behind_is_freed() -> None:
    async with make_server() as server:
        server.add(PODS, pod("held", gates=[HELD_GATE]))
        server.add(NATIVE, named("ours", labels=OURS, finalizers=[PROTECTION]))
        said = await uninstall(server)
        assert said == ["freed pods default/held\n", "freed podgroups.scheduling.k8s.io default/ours\n"]


# ---------------------------------------------------------------- rights


@pytest.mark.parametrize(
    ("denied", "said"),
    [
        pytest.param(("delete", "clusterroles"), "delete clusterroles.rbac.authorization.k8s.io", id="of roles"),
        pytest.param(("patch", "pods"), "patch pods, patch pods/status", id="of pods"),
    ],
)
async def test_without_a_right_nothing_is_done(server: FakeApiServer, denied: tuple[str, str], said: str) -> None:
    server.denied.add(denied)
    whole = f"nothing was done: you may not {said}; run the command as an administrator"
    for dry_run in (False, True):
        await refuse(server, whole, asked(dry_run=dry_run), ExitCode.NO)


async def test_a_viewer_is_told_what_cannot_be_looked_for(server: FakeApiServer) -> None:
    server.reject(calls("GET", "/secrets"), times=99, status=403, reason="Forbidden")
    await refuse(server, "you may not list secrets; run the command as an administrator", REMOVAL, ExitCode.NO)


# ---------------------------------------------------------------- older clusters, and what does not go


async def test_on_an_older_cluster_without_mutating_policies_and_groups_it_goes_as_well(server: FakeApiServer) -> None:
    server.served -= {MUTATING, MUTATING_BINDINGS, NATIVE, WORKLOADS}
    await uninstall(server)
    assert server.get_object(NAMESPACES, "", HOME) is None
    with pytest.raises(CommandError, match=r"needs MutatingAdmissionPolicies, of Kubernetes 1.36"):
        await uninstall(server, asked(hand_to="default-scheduler"))


async def test_pods_are_not_handed_to_the_scheduler_that_goes(server: FakeApiServer) -> None:
    with pytest.raises(CommandError, match="no scheduler has this name") as refused:
        await uninstall(server, asked(hand_to="serried"))
    assert refused.value.code is ExitCode.USAGE
    assert count(server, DEPLOYMENTS) == 2


async def test_what_does_not_go_is_named(server: FakeApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.uninstall._SECONDS", 0.0)
    server.add(PODS, pod("serried-0", node="n1", namespace=HOME, labels={"app.kubernetes.io/name": "serried"}))
    with pytest.raises(CommandError, match="the pods of Serried: not gone after 0 s") as late:
        await uninstall(server)
    assert late.value.code is ExitCode.NO


# ---------------------------------------------------------------- the hook of the chart


async def free(server: FakeApiServer, removal: Removal = REMOVAL) -> list[str]:
    said: list[str] = []
    async with server.client() as client:
        await Uninstall(client, removal, "the API server", said.append).free_pods_and_groups()
    return said


async def test_after_the_installation_pods_and_groups_are_freed_and_nothing_is_deleted(server: FakeApiServer) -> None:
    server.add(PODS, pod("one", gates=[HELD_GATE]))
    server.add(NATIVE, named("ours", labels=OURS, finalizers=[PROTECTION]))
    assert await free(server) == ["freed pods default/one\n", f"freed {NATIVE} default/ours\n"]
    (freed,) = server.list_objects(PODS)
    assert freed["spec"]["schedulingGates"] == []
    assert {request.method for request in server.requests} == {"GET", "PATCH"}


async def test_the_hook_frees_nothing_beside_pods_of_serried(
    server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hook that is applied as part of `helm template` frees nothing while Serried runs."""
    monkeypatch.setattr("cli.uninstall._SECONDS", 0.0)
    server.add(PODS, pod("one", gates=[HELD_GATE]))
    labels = {"app.kubernetes.io/name": "serried", "app.kubernetes.io/component": "scheduler"}
    server.add(PODS, pod("serried-0", node="n1", namespace=HOME, labels=labels))
    with pytest.raises(CommandError, match="the pods of Serried: not gone after 0 s"):
        await free(server)
    assert await free(server, asked(home="gangs")) == [
        f"left pods and groups: the installation in {HOME} serves them\n"
    ]
    waiting = server.get_object(PODS, "default", "one")
    assert waiting is not None
    assert waiting["spec"]["schedulingGates"] == [{"name": HELD_GATE}]


@pytest.mark.parametrize("more", [["--purge"], ["--hand-to", "default-scheduler"]], ids=lambda each: each[0])
def test_what_deletes_does_not_go_with_what_only_frees(run: Run, more: list[str]) -> None:
    ended = run("uninstall", "--free-only", "--yes", *more)
    assert ended.code == 2
    assert "--free-only deletes nothing: leave out --hand-to and --purge" in ended.err


# ---------------------------------------------------------------- hand-over


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
    said = "".join(map(done_line, await uninstall(server, asked(hand_to="default-scheduler", dry_run=True))))
    assert "suspended jobs.batch default/train\nresumed jobs.batch default/train\n" in said
    assert "left 1 waiting pods of job default/half: other pods of it run\n" in said
    assert "deleted pods default/web-0\n" in said
    assert "left pod default/alone: no controller would create the pod again\n" in said
    assert "created mutatingadmissionpolicies.admissionregistration.k8s.io serried-handover" in said


def owned_by(kind: str, name: str) -> list[JSON]:
    return [{"kind": kind, "name": name, "uid": name, "controller": True}]


HANDED = {"hand_to": "default-scheduler"}


class JobController:
    """Deletes the pods of suspended Jobs, so many at a time, as kube-controller-manager does."""

    def __init__(self, server: FakeApiServer, at_a_time: int, seconds: float = 0.02) -> None:
        self._server = server
        self._at_a_time = at_a_time
        self._seconds = seconds

    async def run(self) -> None:
        while True:
            self.step()
            await asyncio.sleep(self._seconds)

    def step(self) -> None:
        for job in self._server.list_objects(JOBS):
            self._reconcile(job)

    def _reconcile(self, job: JSON) -> None:
        name = job["metadata"]["name"]
        pods = [each for each in self._server.list_objects(PODS) if is_alive(each) and is_of(each, name)]
        suspended = bool(job["spec"].get("suspend"))
        for each in pods[: self._at_a_time] if suspended else ():
            self._server.remove(PODS, "default", each["metadata"]["name"])
        active = len(pods[self._at_a_time :]) if suspended else len(pods)
        condition = {"type": "Suspended", "status": str(suspended)}
        self._server.patch(JOBS, "default", name, {"status": {"active": active, "conditions": [condition]}})


def is_alive(obj: JSON) -> bool:
    return "deletionTimestamp" not in obj["metadata"]


def is_of(obj: JSON, job: str) -> bool:
    return bool(obj["metadata"]["ownerReferences"][0]["uid"] == job)


def add_job(server: FakeApiServer, name: str, size: int, **of_pods: Any) -> None:
    server.add(JOBS, named(name, uid=name) | {"spec": {}, "status": {"active": size}})
    for index in range(size):
        server.add(PODS, pod(f"{name}-{index}", ownerReferences=owned_by("Job", name), **of_pods))


async def with_controller(server: FakeApiServer, at_a_time: int, work: Callable[[], Any]) -> Any:
    task = asyncio.create_task(JobController(server, at_a_time).run())
    try:
        return await work()
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def is_as_before(server: FakeApiServer) -> bool:
    """Return whether each Job runs without a mark of Serried."""
    jobs = server.list_objects(JOBS)
    return not any(job["spec"].get("suspend") or SUSPENDED in job["metadata"].get("labels", {}) for job in jobs)


async def test_a_job_of_5000_waiting_pods_is_waited_for_as_long_as_some_of_them_go(
    server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever the command says how many are left, another 500 go, and 59 of the 60 seconds are over."""
    add_job(server, "big", 5000)
    controller = JobController(server, at_a_time=500)
    said: list[str] = []
    monkeypatch.setattr("cli.uninstall._PROGRESS_SECONDS", 0.0)
    monkeypatch.setattr("cli.uninstall.monotonic", lambda: 59.0 * len(said))

    def say(text: str) -> None:
        if text.startswith("waiting for the pods of suspended Jobs: "):
            said.append(text)
            controller.step()

    async with server.client() as client:
        await Uninstall(client, asked(**HANDED), "the API server", say).run()
    assert len(said) == 10
    assert said[-1].endswith(": 500 left\n")
    assert count(server, PODS) == 0
    assert is_as_before(server)


async def test_a_job_is_resumed_though_a_finalizer_of_others_keeps_its_pod(server: FakeApiServer) -> None:
    add_job(server, "kept", 2, finalizers=["example.com/audit"])
    said = await with_controller(server, 2, lambda: uninstall(server, asked(**HANDED)))
    assert is_as_before(server)
    assert "resumed jobs.batch default/kept\n" in said
    assert not [each for each in said if each.startswith("left")]


async def test_a_job_is_resumed_though_its_controller_deletes_no_pod(
    server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.uninstall._SECONDS", 0.0)
    add_job(server, "stuck", 3)
    said = await uninstall(server, asked(**HANDED))
    assert is_as_before(server)
    assert "left 3 pods of job default/stuck: none has ended for 0 s\n" in said


async def test_after_an_interrupt_at_any_write_the_next_run_ends_all(server: FakeApiServer) -> None:
    """Ctrl-C before the answer to each write, once when it has had its effect and once when it has not."""
    writes = 0
    ended = False
    while not ended:
        for effective in (False, True):
            async with FakeApiServer(served=(*dict.fromkeys(kind for kind, _ in SMALL), *BESIDE)) as fresh:
                install(fresh, shipped=SMALL)
                add_job(fresh, "train", 2, gates=[HELD_GATE], nominated="n1")
                fresh.add(NATIVE, named("ours", labels=OURS, finalizers=[PROTECTION]))
                ended = await with_controller(fresh, 2, lambda: interrupt(fresh, writes, effective=effective))  # noqa: B023
                if not ended:
                    with suppress(CommandError):  # nothing may be left to do
                        await with_controller(fresh, 2, lambda: uninstall(fresh, asked(**HANDED)))
                assert is_as_before(fresh)
                assert fresh.get_object(NAMESPACES, "", HOME) is None
                assert count(fresh, DEPLOYMENTS, CLUSTER_ROLES) == 0
                assert [
                    each["metadata"]["finalizers"] for each in fresh.list_objects(NATIVE) if PROTECTION in str(each)
                ] == []
        writes += 1
    assert writes > 12


async def interrupt(server: FakeApiServer, after: int, *, effective: bool) -> bool:
    """Uninstall, and cut it off at its next write after so many; return whether it has ended before."""
    seen = 0

    def is_next(request: Any) -> bool:
        nonlocal seen
        writes = request.method != "GET" and "selfsubjectaccessreviews" not in request.path
        seen += writes
        return writes and seen == after + 1

    if effective:
        server.lose_answer(is_next)
        with suppress(Exception):
            await uninstall(server, asked(**HANDED))
        return seen <= after
    gate = server.hold(is_next, times=1)
    task = asyncio.create_task(uninstall(server, asked(**HANDED)))
    reached = asyncio.create_task(gate.reached.wait())
    await asyncio.wait({task, reached}, return_when=asyncio.FIRST_COMPLETED)
    reached.cancel()
    done = task.done()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    return done


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
    assert ended.err.endswith("serried: nothing was done: confirm with y, or use --yes\n")


def test_a_server_that_does_not_answer_is_named_with_its_context(run: Run) -> None:
    ended = run("uninstall", "--yes", "--context", "away")
    assert ended.code == 3
    assert "the API server http://127.0.0.1:1 (context away of " in ended.err
    assert "nothing listens at this address (connection refused); fix this and run the command again" in ended.err
