"""The extender dies at every turn of the event loop between plan and last Binding; what comes after it ends whole.

A turn lies between any two awaits, so there is no instant of a binding cycle that is left out. What the dead one has
done until then is what the API server has; all that it knew is gone.
"""

import asyncio
from collections.abc import Callable, Set
from copy import deepcopy
from typing import NamedTuple

import pytest

from extender.core.protocol import Steer
from extender.options import NominationPolicy
from serried.api.names import GroupKey, GroupKind, Key
from tests.support.builders import Builder, PodBuilder, node, pod, pod_group
from tests.support.composites import composite
from tests.support.extender_harness import GANG, SCHEDULER, BindCall, Harness
from tests.support.fake_api import FakeApi

NAMES = ("m0", "m1", "m2")
MOST_TURNS = 400
HOUR = 3600.0


class Shape(NamedTuple):
    """The group or tree of groups to which the three members belong."""

    name: str
    key: GroupKey
    groups: Callable[[], list[Builder]]
    group_of: dict[str, str]
    stands: Callable[[Set[str]], bool]
    """Returns whether the members with these names may run without the others."""


GANG_OF_THREE = Shape(
    "a gang", GANG, lambda: [pod_group("g").gang(3)], dict.fromkeys(NAMES, "g"), lambda bound: len(bound) == 3
)
ELASTIC = Shape(
    "an elastic gang", GANG, lambda: [pod_group("g").gang(2)], dict.fromkeys(NAMES, "g"), lambda bound: len(bound) > 1
)
TREE = Shape(
    "a tree",
    GroupKey("default", "root", GroupKind.COMPOSITE),
    lambda: [
        composite("root").gang(2),
        pod_group("a").gang(1).child_of("root"),
        pod_group("b").gang(2).child_of("root"),
    ],
    {"m0": "a", "m1": "b", "m2": "b"},
    lambda bound: len(bound) == 3,
)
SHAPES = (GANG_OF_THREE, ELASTIC, TREE)


class JumpyHarness(Harness):
    """An extender whose wall clock somebody sets."""

    offset = 0.0

    def wall_time(self) -> float:
        return super().wall_time() + self.offset


def begin(api: FakeApi, policy: NominationPolicy, shape: Shape, nodes: int = 3) -> JumpyHarness:
    """An extender that has seen what the API server has: three members, and so many nodes of one CPU."""
    world = JumpyHarness(api=api, nomination=policy)
    world.start_nominating()
    world.add(*[node(f"n{index}").cpu(1) for index in range(nodes)], *shape.groups())
    pods = dict(api.pods)
    if not pods:
        world.add(*[build_member(shape, name) for name in NAMES])
    for raw in pods.values():
        world.store.put_pod(PodBuilder(deepcopy(raw)).value())
    return world


def build_member(shape: Shape, name: str) -> PodBuilder:
    return pod(name).cpu(1).scheduler(SCHEDULER).in_group(shape.group_of[name])


class Play:
    """kube-scheduler and the watch beside an extender, a turn of the loop at a time."""

    def __init__(self, world: JumpyHarness) -> None:
        self.world = world
        self.calls: dict[str, BindCall] = {}
        """The last bind call for each pod, by its UID."""

    @property
    def bound(self) -> set[str]:
        return {name for name in self.list_names() if self.world.node_of(name)}

    @property
    def over(self) -> bool:
        return len(self.bound) == len(NAMES) and self.world.nothing_reserved

    def list_names(self) -> list[str]:
        """Return the names of the members that the API server has."""
        return [name for name in NAMES if Key("default", name) in self.world.api.pods]

    def hear(self) -> None:
        """Deliver the events of the watches."""
        self.world.sync_pods()

    def offer(self, name: str) -> tuple[str, ...]:
        """The nodes that kube-scheduler itself finds for a member; without any it does not ask."""
        return tuple(self.world.store.nodes)

    async def turn(self) -> None:
        self.hear()
        self.world.schedule_groups()
        for name in self.list_names():
            if not self.world.node_of(name):
                self._try(name)
        await asyncio.sleep(0)

    def _try(self, name: str) -> None:
        uid, offered = self.world.pod(name).uid, self.offer(name)
        if not offered or (uid in self.calls and self.calls[uid].waiting):
            return
        answer = self.world.filter(name, *offered)
        if isinstance(answer, Steer):
            self.calls[uid] = self.world.bind(name, answer.node)

    async def run(self, turns: int) -> int:
        """Play so many turns, or fewer if all members are bound before. Return how many were played."""
        for number in range(turns):
            if self.over:
                return number
            await self.turn()
            if number % 40 == 39:
                self.world.clock.advance(2.0)
        return turns


def inherit(api: FakeApi) -> FakeApi:
    """Return a copy of the API server's state at this moment; later writes of the dead extender do not reach it."""
    left = FakeApi()
    left.pods = deepcopy(api.pods)
    left.records = deepcopy(api.records)
    return left


@pytest.fixture(params=list(NominationPolicy), ids=lambda policy: policy.name.lower())
def policy(request: pytest.FixtureRequest) -> NominationPolicy:
    found: NominationPolicy = request.param
    return found


@pytest.fixture(params=SHAPES, ids=lambda shape: shape.name)
def shape(request: pytest.FixtureRequest) -> Shape:
    found: Shape = request.param
    return found


@pytest.fixture
async def length(policy: NominationPolicy, shape: Shape) -> int:
    """The number of turns of a life without a death."""
    world = begin(FakeApi(), policy, shape)
    turns = await Play(world).run(MOST_TURNS)
    await world.close()
    assert 5 < turns < MOST_TURNS
    return turns


async def test_a_death_at_any_turn_ends_whole(policy: NominationPolicy, shape: Shape, length: int) -> None:
    seen = set()
    for turn in range(length + 1):
        first = begin(FakeApi(), policy, shape)
        await Play(first).run(turn)
        api = inherit(first.api)
        await first.close()
        phase = next((record["spec"]["phase"] for record in api.records.values()), None)
        bound = {key.name for key, raw in api.pods.items() if raw["spec"].get("nodeName")}
        seen.add((phase, min(len(bound), 1)))
        assert not bound or shape.stands(bound) or phase == "Committed", f"turn {turn}: bound without a commit"
        await finish(api, policy, shape, f"turn {turn}, left {phase} with {len(bound)} bound")
    # Else the loop never stood where it matters.
    assert seen >= {(None, 0), ("Committed", 0), ("Committed", 1), (None, 1)}


async def finish(api: FakeApi, policy: NominationPolicy, shape: Shape, told: str) -> None:
    """Let the next extender take over, and assert that it binds all members and leaves nothing behind."""
    second = begin(api, policy, shape)
    second.term.active = False
    assert await second.recovery.recover(), told
    second.term.active = True
    play = Play(second)
    await play.run(MOST_TURNS)
    assert play.bound == set(NAMES), told
    assert len({second.node_of(name) for name in NAMES}) == len(NAMES), told
    assert second.nothing_reserved, told
    assert not api.records, told
    await second.close()


async def test_a_death_at_any_turn_after_which_the_gang_is_gone_leaves_nothing(
    policy: NominationPolicy, shape: Shape, length: int
) -> None:
    for turn in range(length + 1):
        first = begin(FakeApi(), policy, shape)
        await Play(first).run(turn)
        api = inherit(first.api)
        await first.close()
        for name in NAMES:
            if not api.pods[Key("default", name)]["spec"].get("nodeName"):
                del api.pods[Key("default", name)]
        second = JumpyHarness(api=api, nomination=policy)
        second.start_nominating()
        second.add(*[node(f"n{index}").cpu(1) for index in range(3)])
        second.sync_pods()
        assert await second.recovery.recover()
        await second.run_until_idle()
        assert second.nothing_reserved, f"turn {turn}"
        await second.close()


def begin_anew(api: FakeApi, policy: NominationPolicy) -> JumpyHarness:
    """Return a world as `begin` does. The gang is the second one of its name."""
    world = JumpyHarness(api=api, nomination=policy)
    world.start_nominating()
    world.add(*[node(f"n{index}").cpu(1) for index in range(3)], pod_group("g").gang(3).uid("g-again"))
    world.sync_pods()
    return world


async def leave_record(api: FakeApi, policy: NominationPolicy) -> JumpyHarness:
    """A gang was bound and is made anew; its record is left, as another gang is on its way."""
    world = begin(api, policy, GANG_OF_THREE)
    world.add(
        node("busy").cpu(1), pod_group("busy").gang(1), pod("busy-0").cpu(1).scheduler(SCHEDULER).in_group("busy")
    )
    play = Play(world)
    for _ in range(MOST_TURNS):
        if [reservation.group.name for reservation in world.ledger] == ["busy"] and play.bound == set(NAMES):
            break
        await play.turn()
    assert [record["metadata"]["name"] for record in world.api.records.values()] == ["g"]
    for name in NAMES:
        world.delete(name)
    world.store.drop_group(GANG)
    again = [build_member(GANG_OF_THREE, name).uid(f"{name}-again") for name in NAMES]
    world.add(pod_group("g").gang(3).uid("g-again"), *again)
    return world


async def test_a_death_at_any_turn_of_a_gang_that_comes_again_beside_its_old_record_ends_whole(
    policy: NominationPolicy,
) -> None:
    seen = set()
    for turn in range(MOST_TURNS):
        first = await leave_record(FakeApi(), policy)
        play = Play(first)
        await play.run(turn)
        api, done = inherit(first.api), play.bound == set(NAMES)
        await first.close()
        owners = {record["metadata"]["ownerReferences"][0]["uid"] for record in api.records.values()}
        seen.add("new" if "g-again" in owners else "old" if owners else "none")
        del api.pods[Key("default", "busy-0")]
        second = begin_anew(api, policy)
        second.term.active = False
        assert await second.recovery.recover(), f"turn {turn}"
        second.term.active = True
        succession = Play(second)
        await succession.run(MOST_TURNS)
        assert succession.over, f"turn {turn}"
        assert len({second.node_of(name) for name in NAMES}) == len(NAMES), f"turn {turn}"
        await second.close()
        if done:
            break
    assert seen == {"old", "none", "new"}


@pytest.mark.parametrize("jump", [-HOUR, HOUR], ids=["back", "ahead"])
async def test_a_jump_of_the_wall_clock_at_any_turn_changes_nothing(
    policy: NominationPolicy, shape: Shape, length: int, jump: float
) -> None:
    for turn in range(length + 1):
        world = begin(FakeApi(), policy, shape)
        play = Play(world)
        await play.run(turn)
        world.offset = jump
        await play.run(MOST_TURNS)
        assert play.bound == set(NAMES), f"turn {turn}"
        assert world.reasons(shape.key)[-1].value == "Scheduled"
        assert world.nothing_reserved
        await world.close()
