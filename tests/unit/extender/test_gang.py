import pytest

from extender.gang import EXCLUSION_SECONDS, Gang, ask_for, find_misfit
from serried.cluster.ledger import Ledger
from serried.cluster.occupancy import Hand
from serried.cluster.store import Store
from serried.model.group import Key
from serried.model.plan import Ask
from serried.model.reservation import Reservation, Slot
from serried.model.verdict import Reason, Verdict
from serried.plan.fit import slots
from serried.plan.levels import open_levels
from serried.plan.quorum import size_up
from serried.testing.builders import RACK, NodeBuilder, PodBuilder, PodGroupBuilder, node, pod
from tests.unit.extender.world import SCHEDULER, gang, members

MEMBER = members(1)[0].value()


class TestExclusions:
    def test_a_refused_node_is_out_for_every_member_of_the_class(self) -> None:
        nodes = {"n1": node("n1").value()}
        same, other = members(2)[1].value(), pod("big").cpu(8).value()
        remembered = Gang(0.0)
        remembered.refuse(MEMBER.shape, "n1", 0.0, nodes)
        assert remembered.exclusions([MEMBER, same, other], 1.0, nodes) == {("pod-m0", "n1"), ("pod-m1", "n1")}

    def test_an_exclusion_ends_with_its_time(self) -> None:
        nodes = {"n1": node("n1").value()}
        remembered = Gang(0.0)
        remembered.refuse(MEMBER.shape, "n1", 0.0, nodes)
        assert remembered.exclusions([MEMBER], EXCLUSION_SECONDS - 0.1, nodes)
        assert not remembered.exclusions([MEMBER], EXCLUSION_SECONDS, nodes)
        assert remembered.refusals == {}

    def test_an_exclusion_ends_when_the_node_changes(self) -> None:
        nodes = {"n1": node("n1").value()}
        remembered = Gang(0.0)
        remembered.refuse(MEMBER.shape, "n1", 0.0, nodes)
        nodes["n1"] = node("n1").rack("r1").value()
        assert not remembered.exclusions([MEMBER], 1.0, nodes)

    def test_a_refusal_by_an_unknown_node_holds_until_the_node_is_known(self) -> None:
        remembered = Gang(0.0)
        remembered.refuse(MEMBER.shape, "n1", 0.0, {})
        assert remembered.exclusions([MEMBER], 1.0, {})
        assert not remembered.exclusions([MEMBER], 1.0, {"n1": node("n1").value()})


def ask(group: PodGroupBuilder, pods: list[PodBuilder], *nodes: NodeBuilder) -> Ask | Verdict:
    standing = size_up([each.value() for each in pods], [SCHEDULER])
    known = {each.name: each for each in (builder.value() for builder in nodes)}
    return ask_for(group.value(), standing, frozenset(), known, open_levels((), 0.0))


class TestAsking:
    def test_a_fresh_gang_asks_for_its_quorum_and_takes_what_fits_of_the_rest(self) -> None:
        asked = ask(gang(2), members(3))
        assert isinstance(asked, Ask)
        assert (asked.need, len(asked.members), asked.topology_key) == (2, 3, None)

    def test_bound_members_count_and_pin_their_domain(self) -> None:
        bound, waiting = members(2)
        asked = ask(gang(2).topology(), [bound.on("n1"), waiting], node("n1").rack("r1"))
        assert isinstance(asked, Ask)
        assert (asked.need, asked.topology_key, asked.pinned) == (1, RACK, frozenset({"r1"}))

    def test_a_member_on_a_node_that_is_gone_pins_nothing(self) -> None:
        bound, waiting = members(2)
        asked = ask(gang(2).topology(), [bound.on("gone"), waiting])
        assert isinstance(asked, Ask)
        assert asked.pinned == frozenset()

    def test_a_member_on_a_node_without_the_label_is_a_conflict_that_names_the_node(self) -> None:
        bound, waiting = members(2)
        answer = ask(gang(2).topology(), [bound.on("n1"), waiting], node("n1"))
        assert isinstance(answer, Verdict)
        assert answer.reason is Reason.DOMAIN_CONFLICT
        assert "n1" in answer.detail


@pytest.fixture
def planned() -> tuple[Store, Reservation]:
    """Members m0 and m1 with slots on n1, which they fill."""
    store = Store([SCHEDULER])
    store.put_node(node("n1").cpu(2).value())
    pods = [builder.value() for builder in members(2)]
    for each in pods:
        store.put_pod(each)
    slots = {each.uid: Slot(each.uid, each.name, "n1") for each in pods}
    reservation = Reservation(Key("default", "g"), "podgroup-g", "", 2, slots)
    Ledger(store.occupancy).hold(reservation, {each.uid: each for each in pods})
    return store, reservation


class TestRecheckBeforeCommit:
    BOTH = ("pod-m0", "pod-m1")

    def test_a_plan_that_still_holds_has_no_misfit(self, planned: tuple[Store, Reservation]) -> None:
        store, reservation = planned
        assert find_misfit(reservation, self.BOTH, store) is None

    def test_another_pod_took_the_room(self, planned: tuple[Store, Reservation]) -> None:
        store, reservation = planned
        store.occupancy.claim("plain", Hand.ASSUMED, "n1", pod("plain").cpu(1).value().shape.requests)
        assert find_misfit(reservation, self.BOTH, store) == "node n1 is full"

    def test_another_pod_that_asks_for_something_else_is_no_misfit(self, planned: tuple[Store, Reservation]) -> None:
        store, reservation = planned
        requests = (("example.com/gpu", 1000),)
        store.occupancy.claim("plain", Hand.BOUND, "n1", requests)
        assert find_misfit(reservation, self.BOTH, store) is None

    def test_another_pod_took_the_port(self, planned: tuple[Store, Reservation]) -> None:
        store, reservation = planned
        listening = members(1)[0].host_port(80)
        store.put_pod(listening.value())
        store.occupancy.claim("pod-m0", Hand.RESERVED, "n1", listening.value().shape.requests)
        assert find_misfit(reservation, self.BOTH, store) is None
        store.occupancy.claim("plain", Hand.BOUND, "n1", pod("plain").host_port(80).value().shape.requests)
        assert find_misfit(reservation, self.BOTH, store) == "node n1 is full"

    def test_the_node_is_gone(self, planned: tuple[Store, Reservation]) -> None:
        store, reservation = planned
        store.drop_node("n1")
        assert find_misfit(reservation, self.BOTH, store) == "node n1 is gone"

    def test_the_node_is_cordoned_or_tainted(self, planned: tuple[Store, Reservation]) -> None:
        store, reservation = planned
        store.put_node(node("n1").cpu(2).cordoned().value())
        assert find_misfit(reservation, self.BOTH, store) == "node n1 does not admit m0 any more"

    def test_the_node_went_to_another_domain(self, planned: tuple[Store, Reservation]) -> None:
        store, reservation = planned
        reservation.domain = "r1"
        store.put_group(gang(2).topology().value())
        store.put_node(node("n1").cpu(2).rack("r1").value())
        assert find_misfit(reservation, self.BOTH, store) is None
        store.put_node(node("n1").cpu(2).rack("r2").value())
        assert find_misfit(reservation, self.BOTH, store) == "node n1 is not in r1 any more"

    def test_the_node_shrank(self, planned: tuple[Store, Reservation]) -> None:
        store, reservation = planned
        store.put_node(node("n1").cpu(1).value())
        assert find_misfit(reservation, self.BOTH, store) == "node n1 is full"

    @pytest.mark.parametrize(
        "change",
        [
            pytest.param(members(1)[0].deleting(), id="is being deleted"),
            pytest.param(members(1)[0].on("n2"), id="is bound already"),
            pytest.param(members(1)[0].phase("Failed"), id="has failed"),
        ],
    )
    def test_a_member(self, planned: tuple[Store, Reservation], change: PodBuilder) -> None:
        store, reservation = planned
        store.put_pod(change.value())
        assert find_misfit(reservation, self.BOTH, store) == "member pod-m0 is gone"

    def test_a_member_has_no_slot_any_more(self, planned: tuple[Store, Reservation]) -> None:
        store, reservation = planned
        del reservation.slots["pod-m1"]
        assert find_misfit(reservation, self.BOTH, store) == "member pod-m1 is gone"


def test_room_left_is_what_a_class_finds_free() -> None:
    store = Store([])
    store.occupancy.claim("x", Hand.BOUND, "n1", (("cpu", 3000), ("pods", 1)))
    assert slots(MEMBER.shape, node("n1").cpu(8).value(), store.occupancy.used.get("n1")) == 5
    assert slots(MEMBER.shape, node("n1").cpu(8).cordoned().value(), store.occupancy.used.get("n1")) == 0
