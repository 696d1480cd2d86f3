"""The planner against kube-scheduler's own filters: pods alone, and gangs whose members come one after the other.

`make fuzz` builds the program that answers for kube-scheduler (bench/oracle), and asks about more than 10,000 pods and
gangs. Other runs ask about a few, where the program is there. A failure prints the seed and all objects of the case.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pytest
import yaml
from hypothesis import event, given
from hypothesis import strategies as st

from bench.oracle import Oracle, find
from serried.plan.request import Plan
from tests.support.truth.devices import DeviceDraws
from tests.support.truth.filters import Filters, list_not_rejected, list_objects, list_passing
from tests.support.truth.ours import SerriedPlanner
from tests.support.truth.rules import Cluster, Raw
from tests.support.truth.storage import StorageDraws
from tests.support.truth.worlds import COUNTED, Draws, as_stored

PODS = 3
"""The number of pods of a cluster that are asked about, each alone."""

_SELECTED = "volume.kubernetes.io/selected-node"

seeds = st.integers(0, 1 << 32)


@dataclass(frozen=True)
class World:
    """A small cluster, and the pods that wait there, in the form in which they are sent to the API server."""

    cluster: Cluster
    pods: Sequence[Raw]
    gang: Sequence[Raw]
    need: int

    def say(self, found: object, pods: Sequence[Raw]) -> str:
        """Return a report with the objects that reproduce a failure."""
        return f"{found}\n{yaml.safe_dump_all([*list_objects(self.cluster), *pods])}"


def draw_pods(random: Random) -> World:
    draws = Draws(random, COUNTED)
    cluster = draws.cluster()
    cluster = replace(cluster, pods=[as_stored(pod) for pod in cluster.pods])
    return make_world(random, cluster, [draws.pod(f"p{index}") for index in range(PODS)], draws.gang())


def draw_volumes(random: Random) -> World:
    draws = StorageDraws(random)
    cluster = draws.cluster()
    gang = [draws.pod(f"m{index}") for index in range(random.randint(1, 4))]
    return make_world(random, cluster, [draws.pod(f"p{index}") for index in range(PODS)], gang)


def draw_devices(random: Random) -> World:
    draws = DeviceDraws(random)
    cluster = draws.cluster()
    return make_world(random, cluster, [draws.pod(f"p{index}") for index in range(PODS)], draws.gang())


def make_world(random: Random, cluster: Cluster, pods: Sequence[Raw], gang: Sequence[Raw]) -> World:
    """Members have the UIDs that they have in `SerriedPlanner`."""
    members = [{**each, "metadata": {**each["metadata"], "uid": str(at)}} for at, each in enumerate(gang)]
    return World(cluster, pods, members, random.randint(1, len(members)))


worlds = pytest.mark.parametrize(
    "draw", [draw_pods, draw_volumes, draw_devices], ids=["affinity and spread", "volumes", "devices"]
)


@pytest.fixture(scope="module")
def filters() -> Iterator[Filters]:
    program = find()
    if program is None:
        pytest.skip("needs kube-scheduler's filters: `make oracle` builds them, with Go")
    with Oracle(program) as oracle:
        yield Filters(oracle)


@worlds
@given(seed=seeds)
def test_the_planner_takes_the_nodes_for_a_pod_that_kube_schedulers_filters_leave(
    filters: Filters, draw: Callable[[Random], World], seed: int
) -> None:
    world = draw(Random(seed))  # noqa: S311 - not for secrets
    ours = SerriedPlanner(world.cluster)
    for pod, found in zip(world.pods, filters.ask(world.cluster, world.pods), strict=True):
        if found.invalid:
            event("the API server would not take the pod")
            continue
        nodes = ours.list_feasible(as_stored(pod))
        if is_an_error_of_one_node(found.failed):
            event("the attempt fails")
            assert nodes == list_not_rejected(world.cluster, found), world.say((sorted(nodes), found), [pod])
            continue
        event(f"{min(len(nodes), 2)} nodes or more")
        passing = list_passing(world.cluster, found)
        excused = nodes > passing and compete_for_volumes(world, [pod])
        assert nodes == passing or excused, world.say((sorted(nodes), found), [pod])


@worlds
@given(seed=seeds)
def test_kube_scheduler_takes_the_members_of_a_plan_on_their_nodes_one_after_the_other(
    filters: Filters, draw: Callable[[Random], World], seed: int
) -> None:
    world = draw(Random(seed))  # noqa: S311 - not for secrets
    plan = plan_in(world)
    if not isinstance(plan, Plan):
        event("no plan")
        return
    order = [uid for wave in plan.waves or (tuple(plan.nodes),) for uid in wave]
    placed = [(world.gang[int(uid)], plan.nodes[uid]) for uid in order]
    refusal = filters.find_refusal(world.cluster, placed)
    event(f"{min(len(placed), 3)} members or more")
    if refusal is None:
        return
    _, found = refusal
    excused = (
        is_an_error_of_one_node(found.failed)
        or waits_for_a_volume(world)
        or compete_for_volumes(world, world.gang)
        or chooses_devices(world)
    )
    event(f"refused, {excused=}")
    assert excused, world.say((plan, refusal), world.gang)


@worlds
@given(seed=seeds)
def test_a_gang_is_planned_if_kube_scheduler_can_take_its_members_in_some_order(
    filters: Filters, draw: Callable[[Random], World], seed: int
) -> None:
    random = Random(seed)  # noqa: S311 - not for secrets
    world = draw(random)
    placed = filters.place_some(world.cluster, world.gang, random)
    if len(placed) < world.need or share_what_one_pod_may_use(world):
        event("too few")
        return
    event(f"{min(len(placed), 3)} members or more")
    plan = plan_in(world)
    assert isinstance(plan, Plan), world.say((plan, placed), world.gang)


def plan_in(world: World) -> object:
    return SerriedPlanner(world.cluster).plan([as_stored(member) for member in world.gang], world.need)


# --- where the planner differs, and why ---------------------------------------------------------------------------


def is_an_error_of_one_node(failed: str) -> bool:
    """A claim wants all devices of its node, and the pool of some node is incomplete, or does not meet a constraint.

    kube-scheduler's attempt fails then, also if the claim could have the devices of other nodes (allocator of
    k8s.io/dynamic-resource-allocation/structured). The planner looks at each node for itself.
    """
    return "asks for all devices, but resource pool" in failed or "a claim constraint would not be satisfied" in failed


def waits_for_a_volume(world: World) -> bool:
    """Pods share a claim for which a volume is provisioned: until it is there, they have to be on the same node.

    The planner sees further: members of a later wave come when the volume is bound, to all nodes that reach it.
    """
    mounts = count_mounts([*world.cluster.pods, *world.gang])
    return any(
        mounts[claim["metadata"]["name"]] > 1
        and "volumeName" not in claim["spec"]
        and (claim["spec"]["storageClassName"] != "static" or _SELECTED in claim["metadata"].get("annotations", {}))
        for claim in list_kind(world, "PersistentVolumeClaim")
    )


def compete_for_volumes(world: World, pods: Sequence[Raw]) -> bool:
    """Several claims of one StorageClass could have a volume that is there already, and the class makes others.

    On a node where it makes none, only one of them gets it. The planner lets claims compete for volumes only where
    their class makes none anywhere.
    """
    mounts = count_mounts(pods)
    waiting = Counter(
        claim["spec"]["storageClassName"]
        for claim in list_kind(world, "PersistentVolumeClaim")
        if "volumeName" not in claim["spec"] and claim["metadata"]["name"] in mounts
    )
    there = {volume["spec"]["storageClassName"] for volume in list_kind(world, "PersistentVolume")}
    return any(count > 1 and name != "static" and name in there for name, count in waiting.items())


def share_what_one_pod_may_use(world: World) -> bool:
    """Members mount one ReadWriteOncePod claim: the planner decides by their names which of them has it."""
    mounts = count_mounts(world.gang)
    return any(
        mounts[claim["metadata"]["name"]] > 1 and "ReadWriteOncePod" in claim["spec"]["accessModes"]
        for claim in list_kind(world, "PersistentVolumeClaim")
    )


def chooses_devices(world: World) -> bool:
    """Members ask for different devices, or each for several: who comes first may take what only others could not.

    kube-scheduler's allocator takes the first devices that do. The planner counts for how many members there are some:
    exactly if all have equal claims of one request. Sets of devices of different sorts it counts each for itself.
    """
    names = {each["resourceClaimName"] for pod in world.gang for each in pod["spec"].get("resourceClaims", [])}
    found = [each["spec"]["devices"] for each in list_kind(world, "ResourceClaim") if each["metadata"]["name"] in names]
    return any(each != found[0] or len(each["requests"]) > 1 for each in found)


def count_mounts(pods: Sequence[Raw]) -> Counter[str]:
    volumes: list[Any] = [volume for pod in pods for volume in pod["spec"].get("volumes", [])]
    return Counter(volume["persistentVolumeClaim"]["claimName"] for volume in volumes)


def list_kind(world: World, kind: str) -> list[Raw]:
    return [each for each in world.cluster.storage if each["kind"] == kind]
