"""The cluster changes at every turn of the event loop in a gang's life, and the gang ends whole, or not at all.

A member, its group, its Job or its namespace is deleted; a node goes, is drained, cordoned, not ready, or its room is
taken by another scheduler. The turns begin before the last member is there and end when all are bound. After each of
them the rest of the cluster goes on as a real one does: owners make pods anew, kube-scheduler tries what waits.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple

import pytest
from _pytest.mark import ParameterSet

from extender.options import NominationPolicy
from serried.api.names import GroupKey, Key
from serried.api.reservation import decode_reservation
from serried.api.verdict import Reason
from tests.sim.test_death_anywhere import (
    GANG_OF_THREE,
    MOST_TURNS,
    NAMES,
    SHAPES,
    TREE,
    JumpyHarness,
    Play,
    Shape,
    begin,
    build_member,
)
from tests.support.builders import NodeBuilder, node, pod
from tests.support.composites import CompositeBuilder
from tests.support.fake_api import FakeApi, error
from tests.support.storm import retry_without_delay

ARRIVAL = 2
"""The turn in which the last member comes."""

GRACE = 12
"""The number of turns that a bound pod takes to end."""

LATE = 4
"""The number of turns by which the watches are behind, in the cases in which they are."""

PARTS = 3
"""The turns are struck in so many parts: every third one from the first on, from the second, from the third."""

REST = 60
"""The number of turns after which nothing changes any more without a fault or a repair."""

OTHER = Key("default", "other")

WAITS = {Reason.NO_CAPACITY, Reason.GROUPS_UNPLACED, Reason.BROKEN, Reason.PLAN_OUTDATED, Reason.BINDING}
"""The reasons with which a gang may wait that lacks a node."""


class Cluster(Play):
    """All that is around an extender: what is in the API server, and who acts on it.

    What the extender has heard may be less: ``late`` is for how many turns its watches stand still after a strike. What
    the door must not do is noted in ``broken``.
    """

    def __init__(self, world: JumpyHarness, shape: Shape, late: int) -> None:
        super().__init__(world)
        self.shape = shape
        self.late = late
        self.turns = 0
        self.owned = True
        """True while a controller replaces members that are gone."""
        self.nodes: dict[str, NodeBuilder] = {name: node(name).cpu(1) for name in world.store.nodes}
        self.shut: set[str] = set()
        """The nodes that kube-scheduler leaves out."""
        self.evicting: set[str] = set()
        """The nodes whose pods are evicted, as after a NoExecute taint."""
        self.closed: set[str] = set()
        """Names of nodes and UIDs of pods for which no Binding may be sent: the extender has observed the fault."""
        self.began_before = False
        """True if a Binding was sent before the extender observed the last strike: then there is no way back."""
        self.broken: list[str] = []
        self._deaf_until = 0
        self._unheard: list[Callable[[], None]] = []
        self._ends: dict[Key, int] = {}
        self._later: list[tuple[int, Callable[[], None]]] = []
        self._births = 0
        self._whole = False
        """True while the quorum has been bound, and at least one member ever since."""
        self._seen = 0
        world.api.before_bind = self._note_binding
        world.delete("m2")

    # --- what there is -----------------------------------------------------------------------------------------

    @property
    def phase(self) -> str | None:
        return next((str(record["spec"]["phase"]) for record in self.world.api.records.values()), None)

    @property
    def stands(self) -> bool:
        return self.shape.stands(self.bound)

    @property
    def planned(self) -> str:
        """The node of a member that is not bound yet; of one that is, if all are; any, if there is no plan."""
        homes = {slot.uid: slot.node for reservation in self.world.ledger for slot in reservation.slots.values()}
        at = {name: self.world.node_of(name) for name in self.list_names()}
        waiting = [homes[uid] for name in at if not at[name] and (uid := self._uid(name)) in homes]
        return next(iter([*waiting, *filter(None, at.values())]), "n0")

    def list_planned_on(self, node_name: str) -> list[Key]:
        """The members with a slot on a node."""
        slots = [slot for reservation in self.world.ledger for slot in reservation.slots.values()]
        return [Key("default", slot.name) for slot in slots if slot.node == node_name]

    @property
    def occupied(self) -> set[str]:
        return {str(raw["spec"]["nodeName"]) for raw in self.world.api.pods.values() if raw["spec"].get("nodeName")}

    @property
    def forgotten_calls(self) -> list[str]:
        """The UIDs of pods that no longer exist, but whose bind calls are not answered yet."""
        there = {self._uid(name) for name in self.list_names()}
        return [uid for uid, call in self.calls.items() if call.waiting and uid not in there]

    @property
    def nominated(self) -> list[str]:
        """The members that wait with a nomination."""
        waiting = [self.world.pod(name) for name in self.list_names()]
        return [each.name for each in waiting if each.pending and each.nominated]

    @property
    def tells_that_all_is_well(self) -> bool:
        """True if the gang is reported as scheduled, and nothing is left to do in the cluster."""
        idle = not self._ends and not self._later and not self._unheard and self.turns >= self._deaf_until
        return idle and self.world.reasons(self.shape.key)[-1:] == [Reason.SCHEDULED]

    @property
    def reasons_to_wait(self) -> set[Reason | None]:
        """The last reasons of the groups whose members wait; None for a group without any."""
        waiting = [uid for name in self.list_names() if not self.world.node_of(name) and (uid := self._uid(name))]
        groups = {self.world.store.members.group_of(uid) for uid in waiting}
        return {next(reversed(self.world.reasons(group)), None) for group in groups if group is not None}

    def _uid(self, name: str) -> str:
        return str(self.world.api.pods[Key("default", name)]["metadata"]["uid"])

    # --- what strikes, and heals -------------------------------------------------------------------------------

    def fall_behind(self) -> None:
        """Hold back the events of the extender's watches for a while, if they are late."""
        self._deaf_until = self.turns + self.late

    def tell(self, *changes: Callable[[], None]) -> None:
        """The watches bring changes, now or when they go on."""
        self._unheard.extend(changes)
        self._catch_up()

    def do_later(self, turns: int, change: Callable[[], None]) -> None:
        """Something else happens so many turns later."""
        self._later.append((self.turns + turns, change))

    def end_pod(self, key: Key) -> None:
        """Delete a pod. One that is bound takes a while to end."""
        raw = self.world.api.pods[key]
        if raw["spec"].get("nodeName"):
            raw["metadata"].setdefault("deletionTimestamp", "2026-01-01T00:00:00Z")
            self._ends.setdefault(key, self.turns + GRACE)
        else:
            del self.world.api.pods[key]
        self._catch_up()

    def erase_pod(self, key: Key) -> None:
        """A pod is gone at once, as one that is deleted by force."""
        self.world.api.pods.pop(key, None)
        self._catch_up()

    def put_node(self, builder: NodeBuilder) -> None:
        name = str(builder.raw()["metadata"]["name"])
        self.nodes[name] = builder
        self.tell(lambda: self.world.store.put_node(builder.value()))

    def drop_node(self, name: str) -> None:
        del self.nodes[name]
        self.tell(lambda: self.world.store.drop_node(name))

    def close(self, name: str) -> None:
        """Forbid Bindings to a node once the extender has observed its fault."""
        self.tell(lambda: self.closed.add(name))

    def drop_groups(self, *names: str) -> None:
        """Delete those of the groups with these names that exist."""
        for builder in self.shape.groups():
            name = str(builder.raw()["metadata"]["name"])
            if name in names:
                composite = isinstance(builder, CompositeBuilder)
                self.tell(partial(self._drop_composite if composite else self._drop_group, name))
        self.tell(self._close_uncommitted)

    def put_groups(self) -> None:
        """Create all groups anew."""
        for builder in self.shape.groups():
            self.world.add(builder.uid(f"{builder.raw()['metadata']['uid']}-again"))
        self.closed.clear()

    def _drop_group(self, name: str) -> None:
        self.world.store.drop_group(GroupKey("default", name))

    def _drop_composite(self, name: str) -> None:
        self.world.store.drop_composite(Key("default", name))

    def _close_uncommitted(self) -> None:
        # A commit of which a Binding was sent goes on without its group; nobody else is bound.
        going_on = self._list_committed() if self.world.api.list_calls("bind") else set()
        self.closed |= {self._uid(name) for name in self.list_names()} - going_on

    # --- who acts ----------------------------------------------------------------------------------------------

    def hear(self) -> None:
        self._catch_up()
        if self.turns >= self._deaf_until:
            super().hear()

    def offer(self, name: str) -> tuple[str, ...]:
        assumed = {call.node for call in self.calls.values() if call.waiting}
        return tuple(sorted(self.nodes.keys() - self.shut - self.occupied - assumed))

    async def turn(self) -> None:
        self.turns += 1
        self._act()
        await super().turn()
        self._check_sent()
        if self.turns % 5 == 0:
            self.world.clock.advance(2.0)

    async def go_on(self, until: Callable[[], bool], turns: int = MOST_TURNS) -> None:
        """Play turns until the condition holds. Assert that no forbidden Binding was sent meanwhile."""
        for _ in range(turns):
            await self.turn()
            if until():
                break
        assert not self.broken, self.broken

    def _act(self) -> None:
        for each in [each for each in self._later if each[0] <= self.turns]:
            self._later.remove(each)
            each[1]()
        for key, raw in list(self.world.api.pods.items()):
            home = raw["spec"].get("nodeName")
            if home in self.evicting and "deletionTimestamp" not in raw["metadata"] and key != OTHER:
                self.end_pod(key)
            if (home and home not in self.nodes) or self._ends.get(key, self.turns + 1) <= self.turns:
                self._ends.pop(key, None)
                self.erase_pod(key)
        if self.owned and self.turns >= ARRIVAL:
            for name in NAMES:
                if name not in self.list_names():
                    self._births += 1
                    member = build_member(self.shape, name).uid(f"{name}-{self._births}")
                    self.world.api.pods[Key("default", name)] = member.raw()

    def _catch_up(self) -> None:
        if self.turns < self._deaf_until:
            return
        if self._unheard:
            self.began_before = bool(self.world.api.list_calls("bind"))
        for change in self._unheard:
            change()
        self._unheard.clear()
        there = {raw["metadata"]["uid"]: raw["metadata"] for raw in self.world.api.pods.values()}
        for uid in list(self.world.store.pods):
            if uid not in there or "deletionTimestamp" in there[uid]:
                self.closed.add(uid)
            if uid not in there:
                self.world.store.drop_pod(uid)

    def _note_binding(self, key: Key) -> None:
        # Called when a Binding is about to have its effect.
        bound, committed = self.bound, self._list_committed()
        self._whole = bool(bound) and (self._whole or self.shape.stands(bound))
        coming = {name for name in self.list_names() if self._uid(name) in committed}
        if not self._whole and key.name not in coming and not self.shape.stands(bound | coming | {key.name}):
            self.broken.append(f"{key.name} is bound without a commit")

    def _list_committed(self) -> set[str]:
        records = [decode_reservation(record) for record in self.world.api.records.values()]
        return {uid for record in records if record is not None for uid in record.committed}

    def _check_sent(self) -> None:
        sent = self.world.api.list_calls("bind")
        for call in sent[self._seen :]:
            wrong = {call.body["node"], call.body["uid"]} & self.closed
            self.broken.extend(f"a Binding of {call.name} to {call.body['node']} is sent: {each}" for each in wrong)
        self._seen = len(sent)


# --- strikes ---------------------------------------------------------------------------------------------------


class Strike(NamedTuple):
    """A fault in a cluster, and its repair."""

    told: str
    strike: Callable[[Cluster], None]
    heal: Callable[[Cluster], None] = lambda cluster: None

    def __str__(self) -> str:
        return self.told


def delete_member(cluster: Cluster) -> None:
    cluster.end_pod(Key("default", "m1"))


def force_member(cluster: Cluster) -> None:
    cluster.erase_pod(Key("default", "m1"))


def delete_group(cluster: Cluster) -> None:
    cluster.drop_groups("g", "b")


def delete_root(cluster: Cluster) -> None:
    cluster.drop_groups("root")


def delete_all_groups(cluster: Cluster) -> None:
    cluster.drop_groups("root", "a", "b", "g")


def delete_job(cluster: Cluster) -> None:
    cluster.owned = False
    for name in cluster.list_names():
        cluster.end_pod(Key("default", name))
    delete_all_groups(cluster)


def delete_namespace(cluster: Cluster) -> None:
    cluster.owned = False
    delete_all_groups(cluster)
    for name in cluster.list_names():
        cluster.end_pod(Key("default", name))


def wipe_by_force(cluster: Cluster) -> None:
    cluster.owned = False
    for name in cluster.list_names():
        cluster.erase_pod(Key("default", name))
    delete_all_groups(cluster)


def delete_node(cluster: Cluster) -> None:
    name = cluster.planned
    cluster.drop_node(name)
    cluster.close(name)


def delete_node_after_failures(cluster: Cluster) -> None:
    """A member cannot be bound for some turns, then its node is deleted."""
    name = cluster.planned
    for key in cluster.list_planned_on(name):
        cluster.world.api.reject("bind", key, error(500))

    def give_up() -> None:
        cluster.world.api.recover()
        cluster.drop_node(name)
        cluster.close(name)

    cluster.do_later(2 * LATE, give_up)


def cordon(cluster: Cluster) -> None:
    name = cluster.planned
    cluster.shut.add(name)
    cluster.put_node(cluster.nodes[name].cordoned())
    cluster.close(name)


def drain(cluster: Cluster) -> None:
    cluster.evicting.add(cluster.planned)
    cordon(cluster)


def lose_kubelet(cluster: Cluster) -> None:
    name = cluster.planned
    cluster.evicting.add(name)
    cluster.shut.add(name)
    cluster.put_node(cluster.nodes[name].taint("node.kubernetes.io/not-ready", "NoExecute"))
    cluster.close(name)


def take_room(cluster: Cluster) -> None:
    """Bind another scheduler's pod to a planned node that is free; to any other free node if there is none."""
    free = sorted(cluster.nodes.keys() - cluster.occupied, key=lambda name: name != cluster.planned)
    if free:
        taken = pod("other").cpu(1).scheduler("another").on(free[0])
        cluster.world.api.pods[OTHER] = taken.raw()
        cluster.tell(partial(cluster.world.store.put_pod, taken.value()))
        cluster.close(free[0])


def bring_nodes_back(cluster: Cluster) -> None:
    cluster.shut.clear()
    cluster.evicting.clear()
    cluster.closed -= {f"n{index}" for index in range(4)}
    for index in range(3):
        cluster.put_node(node(f"n{index}").cpu(1))


def end_other(cluster: Cluster) -> None:
    if OTHER in cluster.world.api.pods:
        cluster.erase_pod(OTHER)
    cluster.closed -= {f"n{index}" for index in range(4)}


MEMBER_GOES = [Strike("a member is deleted", delete_member), Strike("a member is deleted by force", force_member)]
GROUP_GOES = [
    Strike("its PodGroup is deleted", delete_group, Cluster.put_groups),
    Strike("all of its groups are deleted", delete_all_groups, Cluster.put_groups),
]
ROOT_GOES = Strike("its CompositePodGroup is deleted", delete_root, Cluster.put_groups)
ALL_GOES = [
    Strike("its Job is deleted", delete_job),
    Strike("its namespace is deleted", delete_namespace),
    Strike("all is deleted by force", wipe_by_force),
]
NODE_GOES = [
    Strike("its node is deleted", delete_node, bring_nodes_back),
    Strike("its Binding fails and then its node is deleted", delete_node_after_failures, bring_nodes_back),
    Strike("its node is drained", drain, bring_nodes_back),
    Strike("its node is cordoned", cordon, bring_nodes_back),
    Strike("its node is not ready", lose_kubelet, bring_nodes_back),
    Strike("another scheduler takes its node", take_room, end_other),
]


# --- stories ---------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    retry_without_delay(monkeypatch)


@pytest.fixture(
    params=[
        policy if policy is NominationPolicy.AUTO else pytest.param(policy, marks=pytest.mark.full)
        for policy in NominationPolicy
    ],
    ids=lambda policy: policy.name.lower(),
)
def policy(request: pytest.FixtureRequest) -> NominationPolicy:
    found: NominationPolicy = request.param
    return found


def mark_wide(shape: Shape, late: int) -> ParameterSet:
    """Mark a case for the full run, unless the watches are on time or the shape is a gang."""
    told = f"{shape.name}, the watches are late" if late else shape.name
    return pytest.param((shape, late), id=told, marks=[pytest.mark.full] if late and shape is not GANG_OF_THREE else [])


@pytest.fixture(params=[mark_wide(shape, late) for shape in SHAPES for late in (0, LATE)])
def setting(request: pytest.FixtureRequest) -> tuple[Shape, int]:
    """The kind of group that the members form, and the number of turns by which the watches are late."""
    found: tuple[Shape, int] = request.param
    return found


@pytest.fixture(params=[pytest.param(part, marks=[pytest.mark.full] if part else []) for part in range(PARTS)])
def part(request: pytest.FixtureRequest) -> int:
    """The part of the turns at which strikes come; `make test` has only the first part."""
    found: int = request.param
    return found


class Lives:
    """The same life again and again, struck some turns later each time."""

    def __init__(self, policy: NominationPolicy, shape: Shape, late: int, part: int) -> None:
        self._policy, self._shape, self._late, self._part = policy, shape, late, part

    async def strike(self, strike: Strike, after: Callable[[Cluster, Strike], Awaitable[None]], nodes: int = 3) -> None:
        """Play on after a strike at each turn of the part, from the first to some after all are bound."""
        for turn in range(self._part, await self._count_turns(nodes) + PARTS, PARTS):
            cluster = self._begin(nodes)
            for _ in range(turn):
                await cluster.turn()
            told = f"at turn {turn}, with {len(cluster.bound)} bound, phase {cluster.phase}"
            cluster.fall_behind()
            strike.strike(cluster)
            try:
                await after(cluster, strike)
            except AssertionError as failed:
                failed.add_note(f"{strike} {told}")
                raise
            finally:
                await cluster.world.close()

    async def _count_turns(self, nodes: int) -> int:
        """Return the number of turns until all members are bound in a life without strikes."""
        cluster, seen = self._begin(nodes), set[tuple[str | None, int]]()
        while not cluster.over and cluster.turns < MOST_TURNS:
            seen.add((cluster.phase, min(1, len(cluster.bound))))
            await cluster.turn()
        seen.add((cluster.phase, min(1, len(cluster.bound))))
        await cluster.world.close()
        # Else no strike would come where it matters.
        assert seen >= {(None, 0), ("Committed", 0), ("Committed", 1), (None, 1)}
        return cluster.turns

    def _begin(self, nodes: int) -> Cluster:
        return Cluster(begin(FakeApi(), self._policy, self._shape, nodes), self._shape, self._late)


@pytest.fixture
def lives(policy: NominationPolicy, setting: tuple[Shape, int], part: int) -> Lives:
    return Lives(policy, *setting, part)


async def end_whole(cluster: Cluster, _: Strike) -> None:
    """The gang is whole in the end, and nothing is left of its way."""
    await cluster.go_on(lambda: cluster.over and cluster.tells_that_all_is_well)
    assert cluster.bound == set(NAMES)
    assert len({cluster.world.node_of(name) for name in NAMES}) == len(NAMES)
    assert cluster.world.nothing_reserved
    assert cluster.forgotten_calls == []
    assert cluster.tells_that_all_is_well


async def wait_until_healed(cluster: Cluster, strike: Strike) -> None:
    """While there is no room the gang is whole or waits with a reason; then it is whole."""
    await cluster.go_on(lambda: False, REST)
    if cluster.shape.stands(set(NAMES[1:])):
        assert cluster.stands, f"there is room for the quorum, and {cluster.bound or 'nobody'} is bound"
    assert not cluster.bound or cluster.stands or cluster.began_before, cluster.bound
    assert cluster.reasons_to_wait <= WAITS
    strike.heal(cluster)
    await end_whole(cluster, strike)


async def go_with_the_group(cluster: Cluster, strike: Strike) -> None:
    """Assert that without the group only members of a complete gang are bound, and that with it all are."""
    await cluster.go_on(lambda: False, REST)
    assert not cluster.bound or cluster.stands, cluster.bound
    assert cluster.world.nothing_reserved
    assert cluster.nominated == []
    assert cluster.reasons_to_wait <= {Reason.POD_GROUP_MISSING, Reason.QUORUM_MISSING}
    strike.heal(cluster)
    await end_whole(cluster, strike)


async def leave_nothing(cluster: Cluster, _: Strike) -> None:
    """Assert that nothing is left after all pods are deleted."""
    await cluster.go_on(lambda: False, REST)
    assert not cluster.world.api.pods
    assert cluster.world.nothing_reserved
    assert cluster.forgotten_calls == []
    assert not cluster.world.groups.states


@pytest.mark.parametrize("strike", MEMBER_GOES, ids=str)
async def test_a_gang_is_whole_again_after_any_turn_at_which(strike: Strike, lives: Lives) -> None:
    await lives.strike(strike, end_whole)


@pytest.mark.parametrize("strike", GROUP_GOES, ids=str)
async def test_a_gang_is_bound_whole_or_not_at_all_after_any_turn_at_which(strike: Strike, lives: Lives) -> None:
    await lives.strike(strike, go_with_the_group)


@pytest.mark.parametrize("setting", [mark_wide(TREE, 0), mark_wide(TREE, LATE)], indirect=True)
async def test_a_tree_is_bound_whole_or_not_at_all_after_any_turn_at_which_its_root_goes(lives: Lives) -> None:
    await lives.strike(ROOT_GOES, go_with_the_group)


@pytest.mark.parametrize("strike", ALL_GOES, ids=str)
async def test_nothing_is_left_after_any_turn_at_which(strike: Strike, lives: Lives) -> None:
    await lives.strike(strike, leave_nothing)


@pytest.mark.parametrize("strike", NODE_GOES, ids=str)
async def test_a_gang_takes_another_node_after_any_turn_at_which(strike: Strike, lives: Lives) -> None:
    await lives.strike(strike, end_whole, nodes=4)


@pytest.mark.parametrize("strike", NODE_GOES, ids=str)
async def test_a_gang_waits_as_a_whole_for_its_node_after_any_turn_at_which(strike: Strike, lives: Lives) -> None:
    await lives.strike(strike, wait_until_healed)
