"""A gang of mode all ends whole or not at all, whatever ends one of its members."""

from collections.abc import AsyncIterator, Sequence

import pytest

from extender.core.protocol import Candidate
from extender.features.plain_pods import Loss, choose_least_loss
from extender.options import DisruptionTrigger, EvictionMethod
from serried.api.level import FALLBACK
from serried.api.names import PREEMPTED, Disruption
from serried.api.pod import PREEMPTION_PREFIX, Pod
from serried.api.verdict import Reason, render_disruption
from serried.kube.errors import ApiError
from tests.support.builders import PodBuilder, PodGroupBuilder, pod, pod_group
from tests.support.composites import composite
from tests.support.extender_harness import GANG, SCHEDULER, Harness, members, small_nodes
from tests.support.fake_api import budget_refusal, error
from tests.support.priorities import PriorityClassBuilder, priority_class

ALL = Disruption.ALL
DRAINED = "EvictionByEvictionAPI"
EARLIER, SINCE, LATER = (f"2026-01-01T00:00:0{second}Z" for second in (0, 5, 9))


def loss(node_name: str, priority: int = 0, gangs: int = 0, others: int = 0, violations: int = 0) -> Loss:
    return Loss(Candidate(node_name, ("u",), violations), priority, gangs, others)


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        pytest.param([], "", id="nobody, where there is no candidate"),
        pytest.param([loss("a"), loss("b", 5)], "ab", id="kube-scheduler chooses where no gang goes"),
        pytest.param([loss("a", gangs=1), loss("b"), loss("c")], "bc", id="a gang is spared where others will do"),
        pytest.param([loss("a", gangs=1), loss("b", 5)], "a", id="not at the cost of pods of higher priority"),
        pytest.param([loss("a", gangs=1), loss("b", violations=1)], "a", id="nor of a budget"),
        pytest.param([loss("a", gangs=1, violations=1), loss("b", 9)], "b", id="a budget counts before the priority"),
        pytest.param([loss("a", 5, gangs=1), loss("b", 4, gangs=3)], "b", id="the gangs of lower priority go"),
        pytest.param([loss("a", gangs=2), loss("b", gangs=1, others=9)], "b", id="one gang rather than two"),
        pytest.param([loss("a", gangs=1, others=9), loss("b", gangs=1, others=2)], "b", id="the smaller gang"),
        pytest.param([loss("b", gangs=1), loss("a", gangs=1)], "a", id="always the same one of equal candidates"),
    ],
)
def test_kube_scheduler_may_choose_among_candidates(losses: Sequence[Loss], expected: str) -> None:
    assert "".join(candidate.node for candidate in choose_least_loss(losses)) == expected


def whole_gang(name: str = "g", size: int = 3, priority: int = 0) -> PodGroupBuilder:
    return pod_group(name).gang(size).disruption(ALL).priority(priority)


def running(name: str, *nodes: str, priority: int = 0) -> list[PodBuilder]:
    """Pods name0, name1, ... of a group, on these nodes."""
    made = (pod(f"{name}{index}").on(node_name) for index, node_name in enumerate(nodes))
    return [each.cpu(1).scheduler(SCHEDULER).in_group(name).priority(priority) for each in made]


def plain(name: str, node_name: str, priority: int = 0) -> PodBuilder:
    return pod(name).cpu(1).on(node_name).priority(priority)


def preemptor(priority: int = 100) -> Pod:
    return pod("p").cpu(1).priority(priority).value()


def may_go(world: Harness, *candidates: Candidate, priority: int = 100) -> dict[str, tuple[str, ...]]:
    """Nodes and victims that are left to kube-scheduler."""
    return {each.node: each.victims for each in world.service.preempt(preemptor(priority), candidates)}


ON_N1 = Candidate("n1", ("pod-g0",))
ON_N2 = Candidate("n2", ("pod-p2",))
EMPTY = Candidate("n3", ())


@pytest.fixture
async def by_class() -> AsyncIterator[Harness]:
    """A harness at the fallback API level, where a PriorityClass limits the priority of a group."""
    made = Harness(level=FALLBACK)
    yield made
    await made.close()


class TestTheQuestionWhereToPreempt:
    async def test_a_gang_is_offered_when_nothing_else_is_left(self, world: Harness) -> None:
        await world.add(*small_nodes(3), whole_gang(), *running("g", "n1", "n2", "n3")).run_until_idle()
        assert may_go(world, ON_N1) == {"n1": ("pod-g0",)}

    async def test_it_is_not_where_another_pod_of_its_priority_would_do(self, world: Harness) -> None:
        await world.add(
            *small_nodes(3), whole_gang(), *running("g", "n1", "n2", "n3"), plain("p2", "n2")
        ).run_until_idle()
        assert may_go(world, ON_N1, ON_N2) == {"n2": ("pod-p2",)}

    async def test_nor_where_a_pod_goes_that_kube_scheduler_has_still_to_see_gone(self, world: Harness) -> None:
        await world.add(
            *small_nodes(3), whole_gang(), *running("g", "n1", "n2", "n3"), plain("p2", "n2")
        ).run_until_idle()
        world.delete("p2")
        assert may_go(world, ON_N1, ON_N2) == {"n2": ("pod-p2",)}

    async def test_a_question_ends_nobody(self, world: Harness) -> None:
        await world.add(*small_nodes(3), whole_gang(), *running("g", "n1", "n2", "n3")).run_until_idle()
        may_go(world, ON_N1)
        await world.run_until_idle()
        assert world.api.list_calls("delete") == world.api.list_calls("evict") == world.api.list_calls("mark") == []

    @pytest.mark.parametrize(
        ("of_group", "of_pods"),
        [pytest.param(100, 0, id="of the group"), pytest.param(0, 100, id="of a member elsewhere")],
    )
    async def test_no_gang_of_equal_priority_goes(self, world: Harness, of_group: int, of_pods: int) -> None:
        first, *rest = running("g", "n1", "n2", "n3", priority=of_pods)
        await world.add(*small_nodes(3), whole_gang(priority=of_group), first.priority(0), *rest).run_until_idle()
        assert may_go(world, ON_N1) == {}
        assert may_go(world, ON_N1, priority=101) == {"n1": ("pod-g0",)}

    async def test_a_gang_of_mode_single_loses_a_member_like_any_pod(self, world: Harness) -> None:
        await world.add(*small_nodes(3), pod_group("g").gang(3), *running("g", "n1", "n2", "n3")).run_until_idle()
        await world.add(plain("p2", "n2")).run_until_idle()
        assert may_go(world, ON_N1, ON_N2) == {"n1": ("pod-g0",), "n2": ("pod-p2",)}

    async def test_no_member_goes_whose_group_has_not_a_lower_priority_whatever_it_says_itself(
        self, world: Harness
    ) -> None:
        await world.add(
            *small_nodes(3), pod_group("g").gang(3).priority(100), *running("g", "n1", "n2", "n3")
        ).run_until_idle()
        assert may_go(world, ON_N1) == {}
        assert may_go(world, ON_N1, priority=101) == {"n1": ("pod-g0",)}

    @pytest.mark.parametrize(
        "classes",
        [
            pytest.param([], id="no class"),
            pytest.param([priority_class("high", 50)], id="a class that was made anew with a lower value"),
        ],
    )
    async def test_a_number_in_the_group_that_its_class_does_not_give_protects_nobody(
        self, by_class: Harness, classes: list[PriorityClassBuilder]
    ) -> None:
        group = whole_gang(priority=10**9)
        group = group.with_field("high", "spec", "priorityClassName") if classes else group
        await by_class.add(*classes, *small_nodes(3), group, *running("g", "n1", "n2", "n3")).run_until_idle()
        assert may_go(by_class, ON_N1) == {"n1": ("pod-g0",)}

    async def test_the_class_of_a_group_protects_it_before_anybody_has_written_its_value(
        self, by_class: Harness
    ) -> None:
        group = pod_group("g").gang(3).disruption(ALL).with_field("high", "spec", "priorityClassName")
        await by_class.add(
            priority_class("high", 100), *small_nodes(3), group, *running("g", "n1", "n2", "n3")
        ).run_until_idle()
        assert may_go(by_class, ON_N1) == {}
        assert may_go(by_class, ON_N1, priority=101) == {"n1": ("pod-g0",)}

    async def test_victims_on_other_nodes_are_left_out_as_kube_scheduler_wants_it(self, world: Harness) -> None:
        """A kube-scheduler with gang scheduling on names the whole gang as candidates, and refuses it in an answer."""
        await world.add(*small_nodes(3), whole_gang(), *running("g", "n1", "n2", "n3")).run_until_idle()
        assert may_go(world, Candidate("n1", ("pod-g0", "pod-g1", "pod-g2"))) == {"n1": ("pod-g0",)}
        assert may_go(world, Candidate("n1", ("pod-g1",))) == {}

    async def test_a_node_without_victims_is_left_out_and_others_stay(self, world: Harness) -> None:
        """From 1.38 on, kube-scheduler names nodes where nobody has to go, so that an extender can add victims.

        It drops those that come back empty (pkg/scheduler/framework/preemption: callExtenders). The empty list is
        never taken for the least loss.
        """
        await world.add(
            *small_nodes(3), whole_gang(), *running("g", "n1", "n2", "n3"), plain("p2", "n2")
        ).run_until_idle()
        assert may_go(world, EMPTY) == {}
        assert may_go(world, EMPTY, ON_N1) == {"n1": ("pod-g0",)}
        assert may_go(world, EMPTY, ON_N1, ON_N2) == {"n2": ("pod-p2",)}

    async def test_of_a_tree_those_go_that_are_below_the_highest_group_of_mode_all(self, world: Harness) -> None:
        group = pod_group("g").gang(1).child_of("root").priority(0)
        await world.add(*small_nodes(2), composite("root").gang(2).disruption(ALL), group).run_until_idle()
        await world.add(pod_group("h").gang(1).child_of("root").priority(100)).run_until_idle()
        await world.add(*running("g", "n1"), *running("h", "n2", priority=100)).run_until_idle()
        assert may_go(world, ON_N1) == {}
        await world.add(composite("root").gang(2)).run_until_idle()
        assert may_go(world, ON_N1) == {"n1": ("pod-g0",)}

    async def test_nobody_who_waits_at_bind_for_the_others_goes(self, world: Harness) -> None:
        await world.add(*small_nodes(1), whole_gang(size=2), *members(2)).run_until_idle()
        world.bind("m0")
        await world.run_tasks()
        assert may_go(world, Candidate("n1", ("pod-m0",))) == {}

    async def test_nobody_of_a_gang_that_is_just_being_bound_goes(self, world: Harness) -> None:
        await world.add(*small_nodes(1), whole_gang(size=2), *members(2)).run_until_idle()
        world.api.fail("bind", error(403))  # which is tried again after a pause
        world.bind("m0")
        world.bind("m1")
        await world.run_until_idle()
        (bound,) = [name for name in ("m0", "m1") if world.node_of(name)]
        assert may_go(world, Candidate("n1", (f"pod-{bound}",))) == {}


@pytest.fixture
async def careful() -> AsyncIterator[Harness]:
    """A harness in which no gang ends for one of its members."""
    made = Harness(disrupted=DisruptionTrigger.KEEP)
    yield made
    await made.close()


@pytest.fixture
async def strict() -> AsyncIterator[Harness]:
    """A harness in which a gang ends with a member, whatever ends that."""
    made = Harness(disrupted=DisruptionTrigger.ANY)
    yield made
    await made.close()


class TestWhereNoGangMayBeEnded:
    async def test_a_pod_that_could_only_take_one_member_waits(self, careful: Harness) -> None:
        await careful.add(*small_nodes(3), whole_gang(), *running("g", "n1", "n2", "n3")).run_until_idle()
        assert may_go(careful, ON_N1) == {}

    async def test_a_gang_whose_members_are_all_victims_is_offered(self, careful: Harness) -> None:
        await careful.add(*small_nodes(3, 3), whole_gang(), *running("g", "n1", "n1", "n1")).run_until_idle()
        every = ("pod-g0", "pod-g1", "pod-g2")
        assert may_go(careful, Candidate("n1", every)) == {"n1": every}

    async def test_nobody_follows_a_member_that_is_preempted_by_others(self, careful: Harness) -> None:
        await start(careful)
        await careful.add(running("g", "n1")[0].disrupted().deleting()).run_until_idle()
        assert ended(careful) == set()


async def start(world: Harness, size: int = 3) -> None:
    """Gang g of mode all runs, each member on a node of its own with a start of its own."""
    nodes = [f"n{number}" for number in range(1, size + 1)]
    pods = [each.started(EARLIER) for each in running("g", *nodes)]
    await world.add(*small_nodes(size, 1), whole_gang(size=size), *pods).run_until_idle()
    assert world.reasons() == [Reason.SCHEDULED]


async def preempt_first(world: Harness) -> None:
    """kube-scheduler has written its condition on g0, and deletes it."""
    await world.add(running("g", "n1")[0].started(EARLIER).disrupted(at=SINCE).deleting()).run_until_idle()


def ended(world: Harness) -> set[str]:
    return {call.name for verb in ("delete", "evict") for call in world.api.list_calls(verb) if call.resource == "pods"}


class TestAMemberThatIsPreempted:
    async def test_all_others_are_deleted_and_say_before_that_they_go(self, world: Harness) -> None:
        await start(world)
        await preempt_first(world)
        assert ended(world) == {"g1", "g2"}
        verbs = [call.verb for call in world.api.calls if call.verb in ("mark", "delete")]
        assert verbs == ["mark", "mark", "delete", "delete"]
        conditions = {(each["type"], each["status"], each["reason"]) for each in world.api.conditions}
        assert conditions == {("DisruptionTarget", "True", "PreemptionByScheduler")}

    async def test_it_is_said_once_with_who_was_first(self, world: Harness) -> None:
        await start(world)
        await preempt_first(world)
        await world.pass_time(60.0)
        assert [text for _, text in world.heard.disruptions] == [
            "g0 is disrupted (PreemptionByScheduler), and 2 more members with it, because the disruption mode is all"
        ]

    async def test_one_that_is_gone_at_once_is_followed_too(self, world: Harness) -> None:
        await start(world)
        world.add(running("g", "n1")[0].disrupted(at=SINCE))
        world.delete("g0")
        await world.run_until_idle()
        assert ended(world) == {"g1", "g2"}

    async def test_the_slots_of_those_that_go_are_kept_for_nobody(self, world: Harness) -> None:
        await start(world)
        await preempt_first(world)
        for name in ("g0", "g1", "g2"):
            world.delete(name)
            await world.run_until_idle()
        assert list(world.store.vacancies) == []
        assert world.nothing_reserved

    async def test_the_gang_is_placed_anew_together(self, world: Harness) -> None:
        await start(world)
        await preempt_first(world)
        for name in ("g0", "g1", "g2"):
            world.delete(name)
        await world.add(*members(2)).run_until_idle()
        assert world.ledger.of_group(GANG) is None
        await world.add(*members(1, first=2)).run_until_idle()
        reservation = world.ledger.of_group(GANG)
        assert reservation is not None
        assert reservation.need == 3

    async def test_the_new_gang_does_not_follow_the_old_member_that_still_ends(self, world: Harness) -> None:
        await start(world, size=2)
        await preempt_first(world)
        world.delete("g1")
        anew = pod("h1").on("n2").cpu(1).scheduler(SCHEDULER).in_group("g").started(LATER)
        await world.add(anew).run_until_idle()
        assert ended(world) == {"g1"}

    async def test_nor_does_it_after_a_restart(self, world: Harness) -> None:
        old = running("g", "n1")[0].started(EARLIER).disrupted(at=SINCE).deleting()
        anew = [each.started(LATER) for each in running("h", "n2", "n3")]
        anew = [each.in_group("g") for each in anew]
        await world.add(*small_nodes(3), whole_gang(size=2), old, *anew).run_until_idle()
        assert ended(world) == set()

    async def test_one_that_only_says_so_takes_nobody_with_it(self, world: Harness) -> None:
        """A condition alone ends no gang: the deletion may be refused, or never be sent."""
        await start(world)
        await world.add(running("g", "n1")[0].started(EARLIER).disrupted(at=SINCE)).run_until_idle()
        assert ended(world) == set()
        await preempt_first(world)
        assert ended(world) == {"g1", "g2"}

    async def test_a_restart_ends_those_that_were_left(self, world: Harness) -> None:
        """The first one is gone, the second says why it is to follow, the third was not reached."""
        text = f"serried: {render_disruption('g9', PREEMPTED, 2)}"
        second, third = running("g", "n2", "n3")
        marked = second.started(EARLIER).disrupted(at=SINCE, message=text)
        await world.add(*small_nodes(3), whole_gang(size=3), marked, third.started(EARLIER)).run_until_idle()
        assert ended(world) == {"g0", "g1"}

    async def test_those_that_were_left_are_ended_when_our_turn_comes_again(self, world: Harness) -> None:
        """Our term ends between the conditions and the deletions, and nobody else leads meanwhile."""
        await start(world)
        world.api.hold("delete")
        await preempt_first(world)
        world.core.end_term()
        await world.run_tasks()
        assert len(world.api.list_calls("mark")) == 2
        world.api.stop_holding("delete")
        world.term.active = True
        world.group_scheduler.set_obstacle("")
        await world.run_until_idle()
        assert {key.name for key in world.api.pods} == {"g0"}  # which its preemptor deletes

    async def test_only_those_of_its_part_of_a_tree_go_with_it(self, world: Harness) -> None:
        await world.add(*small_nodes(4), composite("root").gang(2)).run_until_idle()
        await world.add(
            pod_group("g").gang(2).child_of("root").disruption(ALL), pod_group("h").gang(2).child_of("root")
        ).run_until_idle()
        await world.add(*running("g", "n1", "n2"), *running("h", "n3", "n4")).run_until_idle()
        await world.add(running("g", "n1")[0].disrupted(at=SINCE).deleting()).run_until_idle()
        assert ended(world) == {"g1"}

    @pytest.mark.parametrize(
        ("method", "verb"),
        [
            pytest.param(EvictionMethod.EVICTION, "evict", id="evicted, where budgets count for a preemption"),
            pytest.param(EvictionMethod.DELETION, "delete", id="deleted, where they do not"),
        ],
    )
    async def test_after_a_victim_of_a_gang_of_ours_they_are(self, method: EvictionMethod, verb: str) -> None:
        world = Harness(preempt_by=method)
        await start(world)
        victim = running("g", "n1")[0].started(EARLIER)
        await world.add(
            victim.disrupted(at=SINCE, message=f"{PREEMPTION_PREFIX}PodGroup default/h").deleting()
        ).run_until_idle()
        assert (
            {call.name for call in world.api.list_calls(verb) if call.resource == "pods"}
            == ended(world)
            == {"g1", "g2"}
        )
        await world.close()

    @pytest.mark.parametrize("verb", ["mark", "delete"])
    @pytest.mark.parametrize("fault", [error(403), error(404), error(409), error(500), error(0)], ids=str)
    async def test_one_that_cannot_be_written_to_keeps_no_other_one(
        self, world: Harness, verb: str, fault: ApiError
    ) -> None:
        await start(world)
        world.api.fail(verb, fault)
        await preempt_first(world)
        assert ended(world) == {"g1", "g2"}

    async def test_a_gang_of_mode_single_goes_on_without_it(self, world: Harness) -> None:
        await world.add(*small_nodes(2), pod_group("g").gang(2), *running("g", "n1", "n2")).run_until_idle()
        await world.add(running("g", "n1")[0].disrupted(at=SINCE).deleting()).run_until_idle()
        assert ended(world) == set()


class TestAMemberThatIsDrained:
    async def test_the_others_stay_unless_that_is_asked_for(self, world: Harness) -> None:
        await start(world)
        await world.add(running("g", "n1")[0].disrupted(DRAINED, at=SINCE)).run_until_idle()
        assert ended(world) == set()

    async def test_the_others_are_evicted_after_all_budgets_were_asked(self, strict: Harness) -> None:
        strict.api.add_budget()
        await start(strict)
        await strict.add(running("g", "n1")[0].disrupted(DRAINED, at=SINCE)).run_until_idle()
        verbs = [call.verb for call in strict.api.calls if call.verb in ("rehearse", "evict")]
        assert verbs == ["rehearse", "rehearse", "evict", "evict"]
        assert ended(strict) == {"g1", "g2"}

    async def test_a_budget_that_refuses_one_of_them_keeps_them_all(self, strict: Harness) -> None:
        await start(strict)
        strict.api.fail("rehearse", budget_refusal())
        await strict.add(running("g", "n1")[0].disrupted(DRAINED, at=SINCE)).run_until_idle()
        assert ended(strict) == set()

    async def test_then_the_one_that_went_is_replaced_in_its_place(self, strict: Harness) -> None:
        await start(strict)
        strict.api.fail("rehearse", budget_refusal())
        strict.add(running("g", "n1")[0].disrupted(DRAINED, at=SINCE))
        await strict.run_until_idle()
        strict.delete("g0")
        await strict.run_until_idle()
        await strict.add(*members(1)).run_until_idle()
        slot = strict.ledger.slot_of("pod-m0")
        assert slot is not None
        assert slot.node == "n1"

    async def test_a_node_that_shuts_down_takes_the_gang_with_it(self, strict: Harness) -> None:
        await start(strict)
        failed = running("g", "n1")[0].disrupted("TerminationByKubelet", at=SINCE).phase("Failed")
        await strict.add(failed).run_until_idle()
        assert ended(strict) == {"g1", "g2"}

    async def test_one_that_just_fails_does_not(self, strict: Harness) -> None:
        await start(strict)
        await strict.add(running("g", "n1")[0].phase("Failed")).run_until_idle()
        assert ended(strict) == set()


class TestAMemberAtBindThatIsDeleted:
    async def test_another_one_takes_its_place_at_once(self, world: Harness) -> None:
        await world.add(*small_nodes(1, 2), whole_gang(size=2), *members(3)).run_until_idle()
        call = world.bind("m0")
        await world.run_tasks()
        world.delete("m0")
        await world.run_until_idle()
        assert call.error == "serried: the pod is being deleted"
        world.bind("m1")
        world.bind("m2")
        await world.run_until_idle()
        assert (world.node_of("m1"), world.node_of("m2")) == ("n1", "n1")

    async def test_without_another_one_the_barrier_fails_at_once(self, world: Harness) -> None:
        await world.add(*small_nodes(1, 3), whole_gang(size=3), *members(3)).run_until_idle()
        call, other = world.bind("m0"), world.bind("m1")
        await world.run_tasks()
        world.delete("m0")
        await world.run_until_idle()
        assert "deleted" in call.error
        assert not other.waiting
        assert world.nothing_reserved
