"""A node that kube-scheduler refuses to a gang though others have ended for it there: the next time others go.

Its own plugins may know of a node what Serried does not: anti-affinity to pods, spread, volumes. The cluster is full,
so it does not even call filter when they refuse the only node with room. Each victim has a controller that replaces it.
"""

from collections.abc import Iterator, Sequence
from itertools import count

from extender.core.protocol import Hold, Steer
from extender.core.scheduling.binding_cycle import CycleStage
from serried.api.names import Key
from serried.api.verdict import Reason
from tests.support.builders import PodBuilder, pod
from tests.support.extender_harness import GANG, Harness, gang, members, small_nodes

HIGH = 100
STEP = 5


class Cluster:
    """Nodes n1, n2, ..., each full of one pod, cheaper than that of the next node; the gang is of one member."""

    def __init__(self, world: Harness, nodes: int) -> None:
        self.world = world
        self.evicted: list[str] = []
        """The nodes on which pods were evicted for the gang, in their order."""

        self.moments: list[float] = []
        """The times of these evictions, by the clock of the story."""

        self._numbers: Iterator[int] = count()
        self._names = [f"n{number + 1}" for number in range(nodes)]
        world.start_nominating()
        world.add(*small_nodes(nodes), *(self._make(name) for name in self._names))
        world.add(gang(1).priority(HIGH), members(1)[0].cpu(2).priority(HIGH))

    async def live(self, seconds: int, refused: Sequence[str] = ()) -> None:
        """Time passes; when the scheduler tries the member on one of the refused nodes, its plugins say no."""
        for _ in range(seconds // STEP):
            self._try_member(refused)
            await self.world.pass_time(STEP)
            self._note_evicted()

    async def replace(self) -> None:
        """The controllers of those that were evicted make others in their place, where the gang is not any more."""
        for name in self._names:
            if not any(each.node == name for each in self.world.store.pods.values()):
                self.world.add(self._make(name))
        if self.world.pod("m0").pending and not self.is_open():
            self._give_up(f"{len(self._names)} Insufficient cpu")  # which wakes it as soon as the room was free
        await self.world.run_until_idle()
        self._note_evicted()

    def is_open(self) -> bool:
        """Return whether slots are reserved for the gang."""
        return self.world.ledger.of_group(GANG) is not None

    def _make(self, name: str) -> PodBuilder:
        return pod(f"low-{name}-{next(self._numbers)}").cpu(2).on(name).priority(int(name[1:]))

    def _try_member(self, refused: Sequence[str]) -> None:
        gathers = self.is_open() and self.world.binding_cycle().stage is CycleStage.GATHERING
        if gathers and self.world.pod("m0").nominated in refused:
            self.world.erase_nomination("m0")
            others = f"{len(self._names) - 1} Insufficient cpu, " if self._names[1:] else ""
            self._give_up(f"{others}1 node(s) didn't match pod anti-affinity rules")

    def _give_up(self, reasons: str) -> None:
        self.world.mark_unschedulable("m0", f"0/{len(self._names)} nodes are available: {reasons}.")
        self.world.sync_pods()

    def _note_evicted(self) -> None:
        for name in self.world.api.list_evicted()[len(self.evicted) :]:
            self.evicted.append(name.split("-")[1])
            self.moments.append(self.world.clock())
        for each in [each for each in self.world.store.pods.values() if each.bound]:
            if Key(each.namespace, each.name) not in self.world.api.pods:
                self.world.store.drop_pod(each.uid)


async def evict_in_vain(cluster: Cluster, refused: Sequence[str]) -> None:
    """Wait until pods were evicted for the gang, and it has given up all the same. Replace them."""
    before = len(cluster.evicted)
    for _ in range(1000):
        await cluster.live(STEP, refused)
        if len(cluster.evicted) > before and not cluster.is_open():
            await cluster.replace()
            return
    raise AssertionError("nobody was evicted")


async def test_others_go_and_the_gang_is_bound(world: Harness) -> None:
    cluster = Cluster(world, 2)
    await evict_in_vain(cluster, ["n1"])
    assert Reason.NO_CAPACITY in world.reasons()
    assert Reason.DEADLINE_EXCEEDED not in world.reasons()
    await cluster.live(60, ["n1"])
    assert cluster.evicted == ["n1", "n2"]
    assert world.filter("m0") == Steer("n2")
    call = world.bind("m0")
    await world.run_until_idle()
    assert (call.error, world.node_of("m0")) == ("", "n2")


async def test_what_was_learnt_first_is_not_forgotten_while_the_next_is_tried(world: Harness) -> None:
    cluster = Cluster(world, 4)
    for _ in range(4):
        await evict_in_vain(cluster, ["n1", "n2", "n3"])
        if len(cluster.evicted) == 3:
            break
    await cluster.live(600)
    assert cluster.evicted == ["n1", "n2", "n3", "n4"]


async def test_nor_in_the_longest_pause(world: Harness) -> None:
    cluster = Cluster(world, 2)
    await cluster.live(STEP)
    world.groups.states[GANG].refusals.failed_preemptions = 10
    await cluster.live(100, ["n1"])
    await cluster.replace()
    await evict_in_vain(cluster, ["n1"])
    assert cluster.evicted == ["n1", "n2"]
    assert cluster.moments[1] - cluster.moments[0] > 32 * 60


async def test_where_only_that_node_would_do_it_is_tried_again_in_the_end(world: Harness) -> None:
    cluster = Cluster(world, 1)
    await evict_in_vain(cluster, ["n1"])
    await evict_in_vain(cluster, ["n1"])
    first, second = cluster.moments
    assert second - first >= 5 * 60


async def test_of_a_scheduler_that_was_away_nothing_is_learnt(world: Harness) -> None:
    """The member was tried in vain before others ended for it. It carries its nomination still: nobody has since."""
    cluster = Cluster(world, 2)
    world.mark_unschedulable("m0")
    world.sync_pods()
    for _ in range(2):
        await evict_in_vain(cluster, [])
        assert world.reasons()[-1] is Reason.DEADLINE_EXCEEDED
    assert cluster.evicted == ["n1", "n1"]


async def test_a_node_that_filter_was_not_offered_is_left_out_as_long(world: Harness) -> None:
    cluster = Cluster(world, 2)
    await cluster.live(STEP)
    assert cluster.evicted == ["n1"]
    await cluster.live(2 * STEP)
    for _ in range(2):
        assert world.service.filter(world.pod("m0"), []) == Hold()
        await world.run_tasks()
    await cluster.replace()
    assert Reason.PLAN_OUTDATED in world.reasons()
    await cluster.live(120)
    assert cluster.evicted == ["n1", "n2"]
