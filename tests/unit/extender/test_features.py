"""A feature is one class and one line in the list: what it says is heard, and what it says nothing of costs nothing."""

from dataclasses import dataclass

import pytest

from extender.core.feature import Decision, Feature, Features, Memory, Refused
from extender.core.parts import Parts
from serried.api.names import GroupKey
from serried.api.verdict import Reason, Verdict
from serried.ops.steps import finish
from serried.plan.request import Plan, PlanRequest, Waiting
from tests.support import extender_harness
from tests.support.extender_harness import GANG, Harness, gang, members, small_nodes


@dataclass
class Tries(Memory):
    """The number of times a gang was refused."""

    for_wait = True

    count: int = 0


class Keeper(Feature):
    """A feature that keeps node n1 from all gangs, and says how often a gang was refused."""

    memories = (Tries,)

    def __init__(self, parts: Parts) -> None:
        self._queue = parts.queue
        self.left_by: list[tuple[GroupKey, bool]] = []

    def list_closed_nodes(self, waiting: Waiting, request: PlanRequest) -> frozenset[str]:
        return frozenset({"n1"})

    def filter(self, waiting: Waiting, request: PlanRequest, plan: Plan) -> Plan | Verdict:
        answer = self._queue.plan_again(request.closing(self.list_closed_nodes(waiting, request)))
        if isinstance(answer, Verdict):
            self._queue.put_back(waiting.group, request, answer)
        return answer

    def post_filter(self, refused: Refused, refusal: Verdict) -> Decision | Verdict:
        memory = refused.gang.memory.get_or_create(Tries)
        memory.count += 1
        return Verdict(refusal.reason, detail=f"try {memory.count}")

    def left_queue(self, group: GroupKey, *, placed: bool) -> None:
        self.left_by.append((group, placed))


class Idle(Keeper):
    """The same, which has nothing to keep."""

    busy = ()


@pytest.fixture
def features(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extender_harness, "FEATURES", (Keeper,))


def test_a_feature_is_asked_only_where_it_has_a_method_of_its_own_in_the_order_of_the_list() -> None:
    class First(Feature):
        def begin_term(self, now: float) -> None:
            """Take part at this point."""

    class Second(First):
        def end_term(self) -> None:
            """Take part at this point, too."""

    made = Features()
    silent, first, second = Feature(), First(), Second()
    made.install([second, silent, first])
    assert made[Feature.begin_term] == (second, first)
    assert made[Feature.end_term] == (second,)
    assert {point for point, asked in made.items() if asked} == {Feature.begin_term, Feature.end_term}


def test_what_the_base_says_at_each_point_is_nothing() -> None:
    silent = Feature()
    assert list(finish(silent.list_requeues())) == []
    assert list(silent.list_kept_from_pod(None)) == []
    assert list(silent.list_protected_nodes()) == []


@pytest.mark.usefixtures("features")
class TestOneThatKeepsANode:
    async def test_is_heard_by_plans(self) -> None:
        world = Harness()
        await world.add(*small_nodes(2), gang(2), *members(2)).run_until_idle()
        assert {slot.node for slot in world.binding_cycle().reservation.slots.values()} == {"n2"}
        assert world.core.feature(Keeper).left_by[0] == (GANG, True)
        await world.close()

    async def test_is_heard_of_a_refusal_and_what_it_remembers_ends_with_the_wait(self) -> None:
        world = Harness()
        await world.add(*small_nodes(1), gang(2), *members(2)).run_until_idle()
        said = world.groups.states[GANG].verdict
        assert said is not None
        assert (said.reason, said.detail) == (Reason.NO_CAPACITY, "try 1")
        await world.add(*small_nodes(2)).run_until_idle()
        assert world.binding_cycle().reservation.slots
        assert world.groups.states[GANG].memory.find(Tries) is None
        await world.close()

    async def test_what_it_remembers_ends_with_the_term(self) -> None:
        world = Harness()
        await world.add(*small_nodes(1), gang(2), *members(2)).run_until_idle()
        assert world.groups.states[GANG].memory.get_or_create(Tries).count == 1
        world.core.end_term()
        assert not world.groups.states[GANG].memory
        await world.close()


async def test_one_that_is_not_busy_is_not_asked_by_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extender_harness, "FEATURES", (Idle,))
    world = Harness()
    await world.add(*small_nodes(1), gang(2), *members(2)).run_until_idle()
    assert {slot.node for slot in world.binding_cycle().reservation.slots.values()} == {"n1"}
    assert world.core.feature(Idle).left_by == []
    await world.close()


def test_a_feature_that_was_left_out_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extender_harness, "FEATURES", ())
    with pytest.raises(LookupError, match="Keeper"):
        Harness().core.feature(Keeper)
