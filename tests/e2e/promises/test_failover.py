"""Two pairs of the shipped Pod, with its probes: the leader may fail in any way, and the other one goes on.

kwok has no kubelets, so a stand-in runs the containers as the manifests say (`bench.failover.kubelet`).
"""

import itertools
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import pytest

from bench.cluster import Cluster, Spec
from bench.failover.bindings import make_binding_log_flags
from bench.failover.kubelet import Kubelet
from bench.failover.pairs import Pairs
from bench.failover.rolling import roll
from bench.failover.run import await_leader, strike
from bench.failover.ways import WAYS
from bench.failover.witness import Witness
from serried.api.reservation import FORMAT
from serried.kube import election
from tests.e2e.promises.test_repair import WHOLE_NODE, await_vacancy, fail, run_gang
from tests.support.cluster_stage import ClusterStage, eventually, staged
from tests.support.clusters import run_cluster
from tests.support.preload import import_first

pytestmark = pytest.mark.e2e

LONG_SECONDS = 60.0
"""Longer than a failover takes beside other work; how long it takes is measured by `bench.failover`."""


IDLE_SECONDS = 180.0
"""Longer than an extender may lead without planning, and than the scheduler takes to be ended after it."""


SHORT_SECONDS = 15.0
"""Shorter than the Lease: a leader that ends in good order gives it up, and its successor need not wait."""

CONTROLLERS = "serried-controller"
"""The name of the controllers' Lease."""

_SLACK_SECONDS = 5.0
"""For a machine with other work: from the Lease to a Workload and a PodGroup that are seen."""

SUCCESSION_SECONDS = election.TIMING.lease + 5.0 + _SLACK_SECONDS
"""From the death of the leader until a Job has its objects: the Lease, and 5 s for a standby that sees its end late."""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A control plane without Serried."""
    flags = make_binding_log_flags(tmp_path_factory.mktemp("audit"))
    spec = Spec(name="failover", nodes=12, racks=4, serried=False, hold="filter", server_flags=flags)
    with run_cluster(spec, tmp_path_factory) as started:
        yield started


@contextmanager
def two_pairs(cluster: Cluster, directory: Path) -> Iterator[Pairs]:
    """One of them leads."""
    made = Pairs(cluster, directory)
    try:
        for _ in range(2):
            made.run_another()
        await_leader(made)
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def pairs(bare: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pairs]:
    with two_pairs(bare, tmp_path_factory.mktemp("pairs")) as made:
        yield made


def test_the_standby_is_warm_and_refuses_to_answer(pairs: Pairs) -> None:
    leader = await_leader(pairs)
    (standby,) = pairs.others(leader)
    told = pairs.selfcheck(standby)
    assert (told["active"], told["planning"]) == (False, False)
    assert all(watch["listed"] for watch in told["watches"].values() if watch["served"])
    answer = httpx.post(f"http://127.0.0.1:{standby.ports[8910]}/filter", content=b"{}")
    assert answer.status_code == httpx.codes.SERVICE_UNAVAILABLE
    assert answer.headers["connection"] == "close"


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("frozen", id="an extender that stands still costs its scheduler the Lease"),
        pytest.param("node", id="a pair whose node dies is replaced when the Lease runs out", marks=pytest.mark.full),
        pytest.param("update", id="a Pod that is deleted gives the Lease up"),
        pytest.param("loop", id="an extender that dies at once, again and again, does, too", marks=pytest.mark.full),
        pytest.param("scheduler", id="a scheduler that dies is replaced, or comes back", marks=pytest.mark.full),
        pytest.param("stopped", id="a scheduler that stands still is replaced", marks=pytest.mark.full),
        pytest.param("both", id="so are both", marks=pytest.mark.full),
        pytest.param("extender", id="an extender that dies once may be back before that", marks=pytest.mark.full),
    ],
)
def test_gangs_go_on(pairs: Pairs, name: str) -> None:
    seen = strike(pairs, name, WAYS[name], f"story-{name}")
    assert seen.defects == ()
    assert seen.first < LONG_SECONDS
    assert seen.leader_changed or name in {"extender", "scheduler", "both"}


@pytest.mark.full
def test_a_rolling_update_under_load_has_no_gap(pairs: Pairs) -> None:
    before = set(pairs.pods)
    rolled = roll(pairs, "story-rolling")
    assert rolled.defects == ()
    assert rolled.slowest < SHORT_SECONDS
    assert not before & set(pairs.pods)


@contextmanager
def seen_formats(pairs: Pairs) -> Iterator[set[str]]:
    """At its end: the formats that records said while the body ran, "" for none.

    Each change is watched: looks now and then would miss records, which are there for moments.
    """
    found: set[str] = set()
    command = [str(pairs.cluster.kubectl_program), "--kubeconfig", str(pairs.cluster.kubeconfig)]
    command += ["get", "reservations.scheduling.serried.dev", "-A", "--watch", "-o", r'jsonpath={.spec.format}{"\n"}']
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watching:
        try:
            yield found
        finally:
            watching.terminate()
            said, _ = watching.communicate()
            found.update(said.splitlines())


@pytest.mark.full
def test_a_rolling_update_to_a_release_that_knew_no_formats_and_one_back_have_no_gap(
    pairs: Pairs, tmp_path: Path
) -> None:
    releases: dict[str, Mapping[str, str]] = {
        "older": import_first("tests.support.older_release", tmp_path),
        "this": {},
    }
    try:
        for name, environment in releases.items():
            pairs.environment = environment
            with seen_formats(pairs) as formats:
                rolled = roll(pairs, f"story-to-{name}")
                # The last Pod that is replaced may be the leader's: then the load is over when the new ones begin.
                after = Witness(pairs.cluster, f"story-after-{name}")
                after.create("last", 4)
                eventually("a gang of the new leader", lambda after=after: after.count_bound("last") == 4)  # type: ignore[misc]
                after.clear()
            assert rolled.defects == ()
            assert rolled.slowest < SHORT_SECONDS
            # Both have led.
            assert formats == {"", str(FORMAT)}
    finally:
        pairs.environment = {}


@pytest.mark.full
def test_a_standby_whose_extender_is_dead_does_not_last_long_enough_to_lead(pairs: Pairs) -> None:
    leader = await_leader(pairs)
    (standby,) = pairs.others(leader)
    WAYS["loop"].strike(pairs, standby)
    eventually("the kubelet has ended its scheduler", lambda: standby.restarts("scheduler") > 0)
    assert pairs.holder() == leader.pod
    WAYS["loop"].heal(pairs, standby)
    await_leader(pairs)


@contextmanager
def hidden_pods(pairs: Pairs) -> Iterator[None]:
    """Extenders may not list or watch pods while the body runs; watches that are open go on."""
    path = "/apis/rbac.authorization.k8s.io/v1/clusterroles/serried-extender"
    rules = pairs.cluster.api.get(path)["rules"]
    (shown,) = [rule for rule in rules if rule["resources"] == ["pods"] and "watch" in rule["verbs"]]
    hidden = [{**rule, "verbs": ["get"]} if rule is shown else rule for rule in rules]
    pairs.cluster.api.patch(path, {"rules": hidden})
    try:
        yield
    finally:
        pairs.cluster.api.patch(path, {"rules": rules})


@pytest.mark.full
def test_an_extender_that_comes_back_and_may_not_see_pods_costs_its_scheduler_the_lease(pairs: Pairs) -> None:
    leader = await_leader(pairs)
    (standby,) = pairs.others(leader)
    before = leader.restarts("extender")
    with hidden_pods(pairs):
        leader.send("extender", signal.SIGKILL)
        eventually("the other pair leads", lambda: pairs.holder() == standby.pod, IDLE_SECONDS)
        eventually("the other pair plans", lambda: pairs.selfcheck(standby).get("planning"))
        assert not pairs.selfcheck(leader).get("planning")
    assert leader.restarts("extender") == before + 1
    leader.repair()
    await_leader(pairs)


class PairsStage(ClusterStage):
    """A namespace of a story about one gang and another, which asks one pair after the other."""

    def ask(self, pod: Kubelet) -> None:
        """Read the debug pages of this pair's extender from now on."""
        self._debug.base_url = httpx.URL(f"http://127.0.0.1:{pod.ports[8912]}")


@pytest.fixture
def kept(pairs: Pairs, request: pytest.FixtureRequest) -> Iterator[PairsStage]:
    with closing(PairsStage(pairs.cluster, f"story-kept-{request.param}")) as made:
        yield made


def lose_by_deletion(pairs: Pairs, stage: PairsStage, member: str) -> None:
    """Delete a member, and wait until both pairs see that: nothing is left of it in the API."""
    stage.delete_pods(member)
    for pod in pairs.pods.values():
        stage.ask(pod)
        await_vacancy(stage, member)


def lose_by_failure(pairs: Pairs, stage: PairsStage, member: str) -> None:
    """Let a member fail, and start the only standby afterwards: it has not seen the member run."""
    (standby,) = pairs.others(await_leader(pairs))
    WAYS["node"].strike(pairs, standby)
    fail(stage, member)
    WAYS["node"].heal(pairs, standby)


@pytest.mark.full
@pytest.mark.parametrize(
    ("kept", "lose"),
    [
        pytest.param("deleted", lose_by_deletion, id="was deleted"),
        pytest.param("failed", lose_by_failure, id="failed before the standby was there"),
    ],
    indirect=["kept"],
)
def test_the_node_of_a_member_is_kept_over_a_failover_for_the_one_that_replaces_it_if_it(
    pairs: Pairs, kept: PairsStage, lose: Callable[[Pairs, PairsStage, str], None]
) -> None:
    ring = run_gang(kept, "ring", 12)
    lose(pairs, kept, "ring-3")
    leader = await_leader(pairs)

    WAYS["node"].strike(pairs, leader)
    kept.create_group("rival", 1)
    kept.create_pods(["rival-0"], "rival", cpu=WHOLE_NODE)
    successor = eventually("the other pair leads", pairs.leader, LONG_SECONDS)
    WAYS["node"].heal(pairs, leader)
    kept.ask(successor)
    kept.await_reason("rival", "NoCapacity")
    assert await_vacancy(kept, "ring-3")["node"] == ring["ring-3"]

    kept.delete_pods("ring-3")
    # Not by the same name: kwok, which saw that pod end, sometimes deletes what has its name a moment later.
    kept.create_pods(["ring-12"], "ring", cpu=WHOLE_NODE)
    eventually("its node", lambda: kept.bound("ring-12") == {"ring-12": ring["ring-3"]})
    others = {name: node for name, node in ring.items() if name != "ring-3"}
    assert kept.bound("ring") == others | {"ring-12": ring["ring-3"]}
    assert not kept.bound("rival")

    # It would have fitted there.
    kept.delete_pods(*kept.bound("ring"))
    kept.await_bound("rival", 1)
    assert pairs.holder() == successor.pod
    await_leader(pairs)


_POD = itertools.count()


def run_controller(pairs: Pairs) -> Kubelet:
    """One more controller, in a Pod whose name none had."""
    return pairs.run_controller(f"controller-{next(_POD)}")


def controller_at_work(pairs: Pairs) -> Kubelet | None:
    """The controller that holds the Lease."""
    return pairs.controllers.get(pairs.holder(CONTROLLERS))


@pytest.fixture
def controllers(pairs: Pairs) -> Iterator[None]:
    """Two controllers, both warm; those that there are at the end give the Lease up."""
    for made in [run_controller(pairs) for _ in range(2)]:
        eventually("a warm controller", made.is_ready, LONG_SECONDS)
    eventually("a controller that works", lambda: controller_at_work(pairs))
    yield
    for controller in pairs.controllers.values():
        controller.delete()
    pairs.controllers.clear()
    assert pairs.lease(CONTROLLERS)["holderIdentity"] == ""


@pytest.fixture
def stage(bare: Cluster) -> Iterator[ClusterStage]:
    with staged(ClusterStage, bare) as made:
        yield made


def objects_of(stage: ClusterStage, job: str) -> dict[str, list[str]]:
    """The UIDs of what controllers have made for a Job, by kind."""
    found = {"Workload": stage.workloads_of(job), "PodGroup": stage.groups_of(job)}
    return {kind: [each["metadata"]["uid"] for each in objects] for kind, objects in found.items()}


def is_served(stage: ClusterStage, job: str) -> bool:
    """Return whether a Job has its Workload and its PodGroup. Nothing may be there twice."""
    counts = {len(uids) for uids in objects_of(stage, job).values()}
    assert counts <= {0, 1}
    return counts == {1}


@pytest.mark.full
@pytest.mark.usefixtures("controllers")
def test_a_controller_that_stands_still_is_replaced_and_writes_nothing_when_it_goes_on(
    pairs: Pairs, stage: ClusterStage
) -> None:
    frozen = eventually("a controller that works", lambda: controller_at_work(pairs))
    frozen.send("controller", signal.SIGSTOP)
    stage.submit_job("meanwhile")
    eventually("its objects", lambda: is_served(stage, "meanwhile"), SUCCESSION_SECONDS)
    assert controller_at_work(pairs) not in {frozen, None}
    before = objects_of(stage, "meanwhile")
    frozen.send("controller", signal.SIGCONT)
    eventually("it finds its Lease lost, ends and is started again", lambda: frozen.restarts("controller") == 1)
    eventually("it is warm again", frozen.is_ready, LONG_SECONDS)
    stage.submit_job("later")
    eventually("the objects of a later Job", lambda: is_served(stage, "later"))
    assert controller_at_work(pairs) is not frozen
    assert objects_of(stage, "meanwhile") == before


@pytest.mark.full
@pytest.mark.usefixtures("controllers")
def test_a_controller_whose_node_dies_is_replaced(pairs: Pairs, stage: ClusterStage) -> None:
    dead = eventually("a controller that works", lambda: controller_at_work(pairs))
    del pairs.controllers[dead.pod]
    dead.power_off()
    stage.submit_job("meanwhile")
    eventually("its objects", lambda: is_served(stage, "meanwhile"), SUCCESSION_SECONDS)


@pytest.mark.full
@pytest.mark.usefixtures("controllers")
def test_a_rolling_update_of_the_controllers_has_no_gap(pairs: Pairs, stage: ClusterStage) -> None:
    jobs: list[str] = []
    old = list(pairs.controllers.values())
    with ThreadPoolExecutor(1) as thread:
        for each in old:
            made = run_controller(pairs)
            eventually("a warm controller", made.is_ready, LONG_SECONDS)
            jobs += [f"before-{each.pod}", f"after-{each.pod}"]
            stage.submit_job(jobs[-2])
            del pairs.controllers[each.pod]
            deleted = thread.submit(each.delete)
            stage.submit_job(jobs[-1])
            for job in jobs[-2:]:
                eventually("its objects", lambda job=job: is_served(stage, job), SHORT_SECONDS)  # type: ignore[misc]
            deleted.result()
    assert controller_at_work(pairs) is not None
    assert all(is_served(stage, job) for job in jobs)
