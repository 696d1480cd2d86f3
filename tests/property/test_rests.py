"""A gang that the scheduler cannot place whole rests, and then it holds nothing and keeps nobody's place."""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from serried.api.names import GroupKey
from tests.support.builders import PodBuilder, node, pod, pod_group
from tests.support.devices import held_message, rejection_message
from tests.support.examples import scale
from tests.support.extender_harness import SCHEDULER, Harness

NOWHERE = rejection_message("12 node(s) didn't match pod anti-affinity rules")
RACK = "a rack"
SOON = 5
"""The number of seconds within which a gang that can run is bound."""


class Cluster:
    """Room for one gang of two. Of the gangs ``never-0``, ... the scheduler places one member, and then no other."""

    def __init__(self, never: int, want: str) -> None:
        self.world = Harness()
        self.never = [f"never-{index}" for index in range(never)]
        self.tried: set[str] = set()
        """The gangs of ``never`` that were rejected; before that the extender cannot know that they do not fit."""

        self._want = want
        self.world.add(*[node(f"n{index}").cpu(1).rack("r0") for index in range(2)])

    def submit(self, name: str) -> None:
        group = pod_group(name).gang(2)
        self.world.add(group.topology() if self._want == RACK else group)
        self.world.add(*members_of(name))

    async def pass_second(self) -> None:
        """Let the extender do all of its work, and kube-scheduler try the pods that have a slot."""
        await self.world.pass_time(1)
        for reservation in list(self.world.ledger):
            name = reservation.group.name
            first, second = (f"{name}-m{index}" for index in range(2))
            self.world.bind(first)
            if name not in self.never:
                self.world.bind(second)
                continue
            await self.world.run_tasks()
            self.tried.add(name)
            self.world.mark_unschedulable(second, NOWHERE)
            self.world.sync_pods()
            await self.world.run_until_idle()
            for each in (first, second):
                self.world.mark_unschedulable(each, held_message())
        self.world.sync_pods()
        await self.world.run_until_idle()

    def check_rest(self) -> None:
        """Assert that no room is kept for a rejected gang, and that one without a binding cycle has no slot."""
        for name in self.tried:
            key = GroupKey("default", name)
            assert not self.world.node_of(f"{name}-m0")
            assert self.world.core.backfill.head is None or self.world.core.backfill.head.group != key
            assert self.world.groups.states[key].cycle is not None or self.world.ledger.of_group(key) is None


def members_of(name: str) -> list[PodBuilder]:
    return [pod(f"{name}-m{index}").scheduler(SCHEDULER).in_group(name).cpu(1) for index in range(2)]


@given(never=st.integers(1, 6), want=st.sampled_from([RACK, "any nodes"]), comes=st.integers(0, 90))
@settings(max_examples=scale(20), deadline=None)
def test_however_many_gangs_rest_a_gang_that_can_run_does_at_once(never: int, want: str, comes: int) -> None:
    async def story() -> None:
        cluster = Cluster(never, want)
        for name in cluster.never:
            cluster.submit(name)
        for _ in range(comes):
            await cluster.pass_second()
            cluster.check_rest()
        cluster.submit("able")
        for _ in range(SOON):
            await cluster.pass_second()
            cluster.check_rest()
        assert cluster.world.node_of("able-m0")
        assert cluster.world.node_of("able-m1")
        await cluster.world.close()

    asyncio.run(story())
