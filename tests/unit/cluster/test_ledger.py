import pytest

from serried.cluster.ledger import Ledger
from serried.cluster.occupancy import ClaimKind, Occupancy
from serried.model.group import GroupKey
from serried.model.pod import Pod
from serried.model.reservation import Reservation, Slot
from serried.testing.builders import pod

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
    return Ledger(occupancy)


def hold(ledger: Ledger, reservation: Reservation) -> Reservation:
    ledger.hold(reservation, {uid: member(uid) for uid in reservation.slots})
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
    assert ledger.release(GANG) is held
    assert (len(ledger), ledger.of_group(GANG), ledger.of_pod("p"), ledger.slot_of("q")) == (0, None, None, None)
    assert occupancy.used == {}
    assert ledger.release(GANG) is None


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
    ledger.add(GANG, member("q"), "n2")
    assert set(held.slots) == {"p", "q"}
    assert used_cpus(occupancy) == {"n1": 1, "n2": 1}
    with pytest.raises(KeyError):
        ledger.add(OTHER, member("r"), "n2")


def test_a_bound_member_stays_counted_when_its_slot_goes(ledger: Ledger, occupancy: Occupancy) -> None:
    hold(ledger, reserve(GANG, p="n1"))
    occupancy.claim("p", ClaimKind.BOUND, "n1", member("p").shape.requests)
    ledger.release(GANG)
    assert used_cpus(occupancy) == {"n1": 1}


def test_a_pod_that_changes_its_group_takes_its_slot_along(ledger: Ledger, occupancy: Occupancy) -> None:
    old = hold(ledger, reserve(GANG, p="n1", q="n1"))
    new = hold(ledger, reserve(OTHER, p="n2"))
    assert (set(old.slots), set(new.slots)) == ({"q"}, {"p"})
    ledger.release(GANG)
    assert ledger.of_pod("p") is new
    assert used_cpus(occupancy) == {"n2": 1}
    ledger.release(OTHER)
    assert occupancy.used == {}
