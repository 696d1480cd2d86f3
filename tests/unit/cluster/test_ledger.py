from collections.abc import Callable

import pytest

from serried.api.names import GroupKey, IllegalTransition
from serried.api.pod import Pod
from serried.api.reservation import Reservation, ReservationPhase, Slot
from serried.cluster.ledger import Ledger
from serried.cluster.members import Dirty
from serried.cluster.usage import Occupancy, PendingVictims, UsageSource
from tests.support.builders import pod

GANG, OTHER = GroupKey("default", "gang"), GroupKey("default", "other")


def member(name: str) -> Pod:
    return pod(name).uid(name).cpu(1).value()


def reserve(group: GroupKey, **nodes: str) -> Reservation:
    """A reservation with a slot for each member: ``reserve(GANG, p="n1")``."""
    return Reservation(group, "uid", "r1", len(nodes), {name: Slot(name, name, node) for name, node in nodes.items()})


@pytest.fixture
def occupancy() -> Occupancy:
    return Occupancy()


@pytest.fixture
def ledger(occupancy: Occupancy) -> Ledger:
    return Ledger(occupancy, PendingVictims(Dirty(), {}))


def hold(ledger: Ledger, reservation: Reservation) -> Reservation:
    ledger.reserve(reservation, {uid: member(uid) for uid in reservation.slots})
    return reservation


def used_cpus(occupancy: Occupancy) -> dict[str, int]:
    return {node: used["cpu"] // 1000 for node, used in occupancy.used.items()}


def test_what_is_held_is_found_by_group_and_by_pod_and_takes_room(ledger: Ledger, occupancy: Occupancy) -> None:
    held = hold(ledger, reserve(GANG, p="n1", q="n1", r="n2"))
    assert ledger.of_group(GANG) is held
    assert ledger.of_pod("q") is held
    assert ledger.slot_of("r") == Slot("r", "r", "n2")
    assert list(ledger) == [held]
    assert used_cpus(occupancy) == {"n1": 2, "n2": 1}


def test_a_group_holds_one_reservation_at_a_time(ledger: Ledger) -> None:
    hold(ledger, reserve(GANG, p="n1"))
    with pytest.raises(ValueError, match="default/gang already holds a reservation"):
        hold(ledger, reserve(GANG, q="n1"))


def test_releasing_gives_everything_back(ledger: Ledger, occupancy: Occupancy) -> None:
    held = hold(ledger, reserve(GANG, p="n1", q="n2"))
    assert ledger.unreserve(GANG) is held
    assert (len(ledger), ledger.of_group(GANG), ledger.of_pod("p"), ledger.slot_of("q")) == (0, None, None, None)
    assert occupancy.used == {}
    assert ledger.unreserve(GANG) is None


def test_dropping_one_slot_keeps_the_rest(ledger: Ledger, occupancy: Occupancy) -> None:
    held = hold(ledger, reserve(GANG, p="n1", q="n2"))
    ledger.drop("p")
    ledger.drop("stranger")
    assert set(held.slots) == {"q"}
    assert used_cpus(occupancy) == {"n2": 1}


def test_a_member_moves_within_its_reservation(ledger: Ledger, occupancy: Occupancy) -> None:
    hold(ledger, reserve(GANG, p="n1"))
    ledger.move(member("p"), "n2")
    assert ledger.slot_of("p") == Slot("p", "p", "n2")
    assert used_cpus(occupancy) == {"n2": 1}


def test_a_member_is_added_to_a_reservation_that_exists(ledger: Ledger, occupancy: Occupancy) -> None:
    held = hold(ledger, reserve(GANG, p="n1"))
    ledger.add(held, member("q"), "n2")
    assert set(held.slots) == {"p", "q"}
    assert used_cpus(occupancy) == {"n1": 1, "n2": 1}
    with pytest.raises(IllegalTransition):
        ledger.add(reserve(OTHER), member("r"), "n2")


def test_a_bound_member_stays_counted_when_its_slot_goes(ledger: Ledger, occupancy: Occupancy) -> None:
    hold(ledger, reserve(GANG, p="n1"))
    occupancy.add_usage("p", UsageSource.BOUND, "n1", member("p").shape.requests)
    ledger.unreserve(GANG)
    assert used_cpus(occupancy) == {"n1": 1}


def test_a_pod_that_changes_its_group_takes_its_slot_along(ledger: Ledger, occupancy: Occupancy) -> None:
    old = hold(ledger, reserve(GANG, p="n1", q="n1"))
    new = hold(ledger, reserve(OTHER, p="n2"))
    assert (set(old.slots), set(new.slots)) == ({"q"}, {"p"})
    ledger.unreserve(GANG)
    assert ledger.of_pod("p") is new
    assert used_cpus(occupancy) == {"n2": 1}
    ledger.unreserve(OTHER)
    assert occupancy.used == {}


def test_who_has_a_slot_on_a_node_is_known_whatever_happens_to_it(ledger: Ledger) -> None:
    held = hold(ledger, reserve(GANG, p="n1", q="n1"))
    ledger.move(member("p"), "n2")
    ledger.add(held, member("r"), "n2")
    assert [list(ledger.list_on(name)) for name in ("n1", "n2", "n3")] == [["q"], ["p", "r"], []]
    ledger.add(held, member("r"), "n1")
    ledger.drop("q")
    hold(ledger, reserve(OTHER, p="n3"))
    assert [list(ledger.list_on(name)) for name in ("n1", "n2", "n3")] == [["r"], [], ["p"]]
    ledger.unreserve(OTHER)
    ledger.unreserve(GANG)
    assert not any(ledger.list_on(name) for name in ("n1", "n2", "n3"))


class TestTheStates:
    """Transitions that the drawing in `Ledger` allows, and others that are refused."""

    def test_a_commit_may_be_repeated_and_withdrawn_but_not_widened(self, ledger: Ledger) -> None:
        held = hold(ledger, reserve(GANG, p="n1", q="n2"))
        ledger.commit(held, {"p"})
        ledger.commit(held, {"p"})
        assert (held.phase, set(held.committed)) == (ReservationPhase.COMMITTED, {"p"})
        with pytest.raises(IllegalTransition, match="is Committed and cannot be committed"):
            ledger.commit(held, {"p", "q"})
        ledger.withdraw(held)
        assert held.phase is ReservationPhase.PLANNED
        ledger.commit(held, {"p", "q"})
        assert held.committed == {"p", "q"}

    @pytest.mark.parametrize("uids", [set[str](), {"stranger"}, {"p", "stranger"}])
    def test_only_members_with_a_slot_are_committed(self, ledger: Ledger, uids: set[str]) -> None:
        held = hold(ledger, reserve(GANG, p="n1"))
        with pytest.raises(IllegalTransition, match="cannot commit members that have no slot"):
            ledger.commit(held, uids)

    def test_the_quorum_is_fixed_by_the_commit(self, ledger: Ledger) -> None:
        held = hold(ledger, reserve(GANG, p="n1", q="n2"))
        ledger.adjust_quorum(held, {"": 1})
        assert (held.need, held.misses_quorum({"p"})) == (1, False)
        ledger.commit(held, {"p"})
        with pytest.raises(IllegalTransition, match="cannot change its quorum"):
            ledger.adjust_quorum(held, {"": 2})

    def test_a_committed_member_moves_and_loses_its_slot_as_any_other(self, ledger: Ledger) -> None:
        held = hold(ledger, reserve(GANG, p="n1", q="n2"))
        ledger.commit(held, {"p", "q"})
        ledger.move(member("p"), "n3")
        ledger.drop("q")
        assert {uid: slot.node for uid, slot in held.slots.items()} == {"p": "n3"}
        assert held.committed == {"p", "q"}

    def test_parts_of_a_tree_are_left_out_and_never_taken_in(self, ledger: Ledger) -> None:
        slots = {"p": Slot("p", "p", "n1", "a"), "q": Slot("q", "q", "n1", "b")}
        held = hold(ledger, Reservation(GANG, "uid", "", 2, slots, parts={"a": 1, "b": 1}))
        ledger.adjust_quorum(held, {"a": 1})
        assert (held.need, held.parts) == (1, {"a": 1})
        with pytest.raises(IllegalTransition, match="was not planned with"):
            ledger.adjust_quorum(held, {"a": 1, "b": 1})
        ledger.commit(held, {"p"})
        with pytest.raises(IllegalTransition, match="cannot change its quorum"):
            ledger.adjust_quorum(held, {})

    def test_what_is_over_changes_no_more(self, ledger: Ledger) -> None:
        old = hold(ledger, reserve(GANG, p="n1"))
        ledger.unreserve(GANG)
        hold(ledger, reserve(GANG, p="n1"))
        verbs: list[Callable[[], None]] = [
            lambda: ledger.commit(old, {"p"}),
            lambda: ledger.withdraw(old),
            lambda: ledger.adjust_quorum(old, {"": 1}),
            lambda: ledger.rename_domain(old, "r2"),
            lambda: ledger.add(old, member("q"), "n1"),
        ]
        for verb in verbs:
            with pytest.raises(IllegalTransition, match="does not hold this reservation"):
                verb()

    def test_a_restart_reserves_what_is_committed_for_the_members_that_wait(self, ledger: Ledger) -> None:
        slots = {"p": Slot("p", "p", "n1"), "bound": Slot("bound", "bound", "n1")}
        left = Reservation(GANG, "uid", "r1", 2, slots, {"p", "bound"})
        ledger.reserve(left, {"p": member("p")})
        ledger.rename_domain(left, "r2")
        assert (left.phase, set(left.slots), left.domain) == (ReservationPhase.COMMITTED, {"p"}, "r2")
