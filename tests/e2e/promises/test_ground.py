"""The ground changes under gangs: gates go on and off, minors follow each other.

Meanwhile gangs wait, are planned, run, rest and grow. The control plane is restarted over the same etcd. Extender and
controller are killed as well, as a new node image would do, or live on and notice the change by themselves. 12 nodes of
32 CPU in 4 racks of 3.
"""

import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest

from bench.cluster import Spec
from bench.cluster.components import Name
from tests.e2e.jobs.stage import JobStage
from tests.support.cluster_stage import RACK, Raw, eventually, names, restart_scheduler
from tests.support.clusters import run_cluster
from tests.support.written import read_code_block

pytestmark = pytest.mark.e2e

WHOLE_NODE = "30"
HALF_A_NODE = "16"
OURS: tuple[Name, ...] = ("extender", "controller")
GANG = "scheduling.serried.dev/gang"

NOTICED_SECONDS = 180.0
"""The time until a living process turns to another API: discovery asks every 30 s, and needs the same answer twice."""

RESTS_SECONDS = 90.0
"""After several outages kube-scheduler and the Job controller rest for up to a minute before they watch again."""


class Ground(JobStage):
    """A stage whose ground can be changed."""

    def stand_on(self, to: Spec, *begun: Name) -> None:
        """The control plane goes on as another one. What is ours is killed, and these processes of it begin anew."""
        for name in OURS:
            self.cluster.kill(name, signal.SIGKILL)
        self.cluster.upgrade(to)
        self.native = to.api == "native"
        self.inline = to.api_version.endswith("/v1alpha1")
        self.begin(*(begun or OURS))
        restart_scheduler(self.cluster)
        found = self.selfcheck()["api"]
        assert f"{found['group']}/{found['version']}" == to.api_version

    def await_bound(self, prefix: str, count: int, seconds: float = RESTS_SECONDS) -> None:
        super().await_bound(prefix, count, seconds)

    def turn_to(self, to: Spec) -> None:
        """The control plane goes on as another one. What is ours lives on, and notices that.

        Only an outage that is longer than its Lease lasts ends the controller, and the kubelet starts it again.
        """
        extender = self.cluster.pids["extender"]
        self.cluster.upgrade(to)
        restart_scheduler(self.cluster)
        self.native = to.api == "native"
        eventually("what it turns to", lambda: self._find_version() == to.api_version, NOTICED_SECONDS)
        self.cluster.start("controller")
        for name in OURS:
            self.cluster.await_ready(name)
        assert self.cluster.pids["extender"] == extender

    def _find_version(self) -> str:
        found = self.selfcheck().get("api")  # between two levels there is no such page
        return f"{found['group']}/{found['version']}" if found else ""

    def leave(self) -> None:
        """The story is over, and the cluster goes."""
        self._debug.close()

    def begin(self, *begun: Name) -> None:
        """Start these processes and wait until they are ready."""
        for name in begun:
            self.cluster.start(name)
            self.cluster.await_ready(name)

    def run_job(self, name: str, size: int) -> dict[str, str]:
        """A gang of a Job, each member on a node of its own in one rack; where they run."""
        self.submit_for_a_rack(name, size, WHOLE_NODE)
        self.await_bound(f"{name}-", size)
        return self.bound(f"{name}-")

    def submit_for_a_rack(self, name: str, size: int, cpu: str) -> None:
        """A Job whose gang wants to be in one rack."""
        asks = {"annotations": {"scheduling.serried.dev/required-topology": RACK}}
        # Of each index alone the Job controller waits for 10 s; failures of a whole Job would make it wait longer.
        sizes: Raw = {"parallelism": size, "completions": size, "backoffLimitPerIndex": 9}
        self.submit_job(name, cpu=cpu, metadata=asks, **sizes)

    def plan_job(self, name: str) -> None:
        """A gang of a Job is planned. The extender is killed before the scheduler comes for the first of its three."""
        with self.stopped("scheduler"):
            self.submit_for_a_rack(name, 3, HALF_A_NODE)
            eventually(f"a plan for {name}", partial(self.is_planned, self.group_of_job(name)))
            self.cluster.kill("extender", signal.SIGKILL)

    def is_planned(self, group: str) -> bool:
        """Return whether room is held for a group."""
        return group in {each["name"] for each in self.held_in_ledger()}

    def await_rack(self, job: str) -> None:
        """The three of a Job's gang are bound, in one rack."""
        self.await_bound(f"{job}-", 3)
        assert len(self.racks(f"{job}-")) == 1

    def held(self, prefix: str) -> list[str]:
        """The pods that kube-scheduler has tried in vain."""
        waiting = [pod for pod in self.pods(prefix) if not pod["spec"].get("nodeName")]
        said = {pod["metadata"]["name"]: pod.get("status", {}).get("conditions", ()) for pod in waiting}
        return [name for name, all_said in said.items() if any(each["type"] == "PodScheduled" for each in all_said)]

    def lose(self, job: str) -> tuple[str, str]:
        """A member of a Job's gang is deleted; its name, and the node that it was on."""
        name, node = min(self.bound(f"{job}-").items())
        self.delete_pods(name)
        return name, node

    def await_repair(self, job: str, size: int, lost: tuple[str, str]) -> None:
        """Another pod runs where the lost one did, and the gang is whole."""

        def is_whole() -> bool:
            found = self.bound(f"{job}-")
            return len(found) == size and lost[0] not in found and lost[1] in found.values()

        eventually(f"{job} whole again", is_whole, RESTS_SECONDS)
        assert len(self.racks(f"{job}-")) == 1


@pytest.fixture
def ground(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Ground]:
    spec: Spec = getattr(request, "param", Spec(name="ground", nodes=12, racks=4, api="fallback", hold="filter"))
    with run_cluster(spec, tmp_path_factory) as cluster:
        for name in OURS:
            cluster.restart(name, "--api", "auto")
        stage = Ground(cluster, "ground")
        yield stage
        stage.leave()


@pytest.mark.full
def test_gangs_go_on_when_the_native_api_is_turned_on_and_off_again(ground: Ground) -> None:
    fallback = ground.cluster.spec
    native = replace(fallback, api="native")
    begin_at_the_fallback(ground)
    carried = ground.group_of_job("train")

    ground.plan_job("due")
    ground.stand_on(native)
    ground.await_rack("due")
    go_on_beside(ground)
    assert ground.debug_page(carried)["object"]["apiVersion"] == "scheduling.serried.dev/v1beta1"
    assert ground.list_groups() == []  # all of them have kept their objects
    mine = begin_at_the_native_level(ground)
    group = ground.group_of_job("fresh")

    ground.plan_job("next")
    # Off again: nobody can read the objects of the native level any more.
    ground.stand_on(fallback, "extender")
    lost = ground.lose("fresh")
    ground.await_reason("job:fresh", "PodGroupMissing")
    ground.await_reason("half", "PodGroupMissing")
    ground.await_reason("job:next", "PodGroupMissing")
    ground.resize_job("swells", 3)
    ground.change_job("pauses", suspend=False)
    for prefix in ("fresh-", "swells-", "pauses-"):
        eventually(f"one of {prefix} that is held", partial(ground.held, prefix))
    assert len(ground.bound("fresh-").keys() - {lost[0]}) == 2
    assert len(ground.bound("swells-")) == 2
    assert not ground.bound("pauses-")
    assert not ground.bound("next-")
    ground.begin("controller")
    ground.await_rack("next")
    ground.await_bound("swells-", 3)
    ground.await_bound("pauses-", 2)
    ground.await_repair("fresh", 3, lost)
    assert ground.group_of_job("fresh") == group
    ground.await_repair("train", 3, ground.lose("train"))
    assert ground.bound("mine") == mine
    assert not ground.bound("half")

    ground.stand_on(native)
    ground.create_pods(["half-2"], "half")
    ground.await_bound("half", 3)
    ground.await_repair("fresh", 3, ground.lose("fresh"))
    assert ground.bound("mine") == mine


@pytest.mark.full
def test_processes_that_live_on_turn_to_the_native_api_and_back_and_their_gangs_go_on(ground: Ground) -> None:
    fallback = ground.cluster.spec
    begin_at_the_fallback(ground)
    ground.turn_to(replace(fallback, api="native"))
    assert len(ground.bound("late")) == 0
    go_on_beside(ground)
    mine = begin_at_the_native_level(ground)

    ground.turn_to(fallback)
    ground.await_reason("half", "PodGroupMissing")
    ground.change_job("pauses", suspend=False)
    ground.await_bound("pauses-", 2)
    ground.await_repair("fresh", 3, ground.lose("fresh"))
    ground.await_repair("train", 3, ground.lose("train"))
    assert ground.bound("mine") == mine
    assert not ground.bound("half")


def begin_at_the_fallback(ground: Ground) -> None:
    """One that runs, one of a user's own, one that rests, one that will grow, one that waits."""
    ground.run_job("train", 3)
    ground.create_group("ring", 2)
    ground.create_pods(names("ring", 2), "ring")
    ground.await_bound("ring", 2)
    ground.submit_job("rests", suspend=True)
    ground.submit_job("grows")
    ground.await_bound("grows-", 2)
    ground.create_group("late", 3)
    ground.create_pods(names("late", 2), "late")
    ground.await_reason("late", "QuorumMissing")


def go_on_beside(ground: Ground) -> None:
    """Check that the gangs go on as they would have done."""
    ground.await_reason("late", "QuorumMissing")
    ground.await_repair("train", 3, ground.lose("train"))
    ring = ground.bound("ring")
    ground.delete_pods("ring-1")
    create_labelled(ground, "ring-2", "ring")
    whole = {"ring-0": ring["ring-0"], "ring-2": ring["ring-1"]}
    eventually("ring whole", lambda: ground.bound("ring") == whole)
    create_labelled(ground, "late-2", "late")
    ground.await_bound("late", 3)
    ground.resize_job("grows", 3)
    ground.await_bound("grows-", 3)
    ground.change_job("rests", suspend=False)
    ground.await_bound("rests-", 2)


def begin_at_the_native_level(ground: Ground) -> dict[str, str]:
    """One that runs, one of a user's own, one that rests, one that will grow, one that waits; where the second runs."""
    ground.run_job("fresh", 3)
    ground.submit_job("pauses", suspend=True)
    ground.submit_job("swells")
    ground.await_bound("swells-", 2)
    told = {pod["metadata"]["annotations"][GANG] for pod in ground.pods("fresh-")}
    assert told == {f"scheduling.k8s.io/v1beta1 {ground.group_of_job('fresh')}"}
    ground.create_group("mine", 2)
    ground.create_pods(names("mine", 2), "mine")
    ground.await_bound("mine", 2)
    ground.create_group("half", 3)
    ground.create_pods(names("half", 2), "half")
    ground.await_reason("half", "QuorumMissing")
    return ground.bound("mine")


def create_labelled(ground: Ground, name: str, group: str) -> None:
    """A member that names its group as at the fallback level."""
    ground.create_pods([name], labels={"scheduling.serried.dev/pod-group": group})


OLDEST = Spec(name="minors", nodes=12, racks=4, kubernetes="1.35.4", api="native", hold="filter")
LATER = (("1.36.4", "due"), ("1.37.1", "next"))
"""The minors that follow, and for each the gang that is planned as it comes."""
MINORS = pytest.param(OLDEST, marks=[pytest.mark.kubernetes(minor) for minor in ("1.35.4", "1.36.4", "1.37.1")])


@pytest.mark.full
@pytest.mark.parametrize("ground", [MINORS], indirect=True, ids=["from 1.35"])
def test_gangs_go_on_from_minor_to_minor(ground: Ground) -> None:
    """Minors have versions of their own and know no other: the objects are deleted before, as upgrades ask for."""
    begin_at_the_oldest(ground)
    for minor, planned in LATER:
        ground.plan_job(planned)
        clear_objects(ground)
        ground.stand_on(replace(ground.cluster.spec, kubernetes=minor), "extender")
        for job in (planned, "late"):
            ground.await_reason(f"job:{job}", "PodGroupMissing")
        assert not ground.bound(f"{planned}-")
        ground.begin("controller")
        go_on(ground, planned)
    end_at_the_newest(ground)


def begin_at_the_oldest(ground: Ground) -> None:
    """One that runs, one that rests, one that will grow, one that waits for four nodes of a rack, which has three."""
    ground.run_job("train", 3)
    ground.submit_job("rests", suspend=True)
    ground.submit_job("grows")
    ground.await_bound("grows-", 2)
    ground.submit_for_a_rack("late", 4, WHOLE_NODE)
    ground.await_reason(ground.group_of_job("late"), "NoDomainFits")


def go_on(ground: Ground, planned: str) -> None:
    """The planned one is bound whole, one that runs is repaired, and one that waits goes on waiting."""
    ground.await_rack(planned)
    ground.await_group("train")
    ground.await_repair("train", 3, ground.lose("train"))
    ground.await_reason(ground.group_of_job("late"), "NoDomainFits")
    assert not ground.bound("late-")


def end_at_the_newest(ground: Ground) -> None:
    """One grows, one shrinks to what fits, one rests no longer."""
    ground.resize_job("grows", 3)
    ground.await_count("grows", 3)
    ground.await_bound("grows-", 3)
    ground.resize_job("late", 3)
    ground.await_rack("late")
    ground.change_job("rests", suspend=False)
    ground.await_bound("rests-", 2)


def clear_objects(ground: Ground) -> None:
    """Remove the objects of all gangs, as the page says, while no process is there that makes them anew."""
    for name in OURS:
        ground.cluster.kill(name, signal.SIGKILL)
    stops, *commands = read_code_block("docs/api-levels.md", "### How do I remove native objects?", "sh").splitlines()
    assert "scale" in stops  # there are no Deployments: our processes were killed
    kubectl = f'kubectl() {{ "{ground.cluster.kubectl_program}" --kubeconfig "{ground.cluster.kubeconfig}" "$@"; }}'
    done = subprocess.run(["bash", "-c", "\n".join((kubectl, *commands))], capture_output=True, text=True, check=False)
    left = ground.list_groups() if not ground.inline else []
    assert not left, done.stderr


@pytest.mark.full
@pytest.mark.parametrize("ground", [MINORS], indirect=True, ids=["from 1.35"])
def test_gangs_go_on_though_the_next_minors_serve_no_native_api(ground: Ground) -> None:
    """The objects of 1.35 are still there. With the gate on, later API servers would not become ready over them."""
    begin_at_the_oldest(ground)
    ground.create_group("half", 3)
    ground.create_pods(names("half", 2), "half")
    ground.await_reason("half/half", "QuorumMissing")

    for minor, planned in LATER:
        ground.plan_job(planned)
        ground.stand_on(replace(OLDEST, kubernetes=minor, api="fallback"))
        go_on(ground, planned)
    end_at_the_newest(ground)
    # What upstream loses: from 1.36 on pods have no workloadRef, so these are of no group.
    assert [pod["spec"].get("workloadRef") for pod in ground.pods("half")] == [None, None]
    ground.await_bound("half", 2)
