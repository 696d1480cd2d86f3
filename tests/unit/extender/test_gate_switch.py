from collections.abc import Callable
from typing import Any

import pytest

from extender.core.scheduling.group import HeldPods
from extender.lead.holding import HoldSwitch
from serried.api.names import Key
from serried.api.pod import Pod
from serried.kube.client import ApiClient
from serried.kube.errors import ApiError
from tests.support.builders import PodBuilder, pod
from tests.support.clock import Clock
from tests.support.fake_api import error


class Switchboard(ApiClient):
    """A client that records the writes to the ConfigMap."""

    def __init__(self) -> None:
        self.written: list[str] = []
        self.asked = 0
        self.fault: ApiError | None = None
        self.meanwhile: Callable[[], None] = lambda: None
        """A function that is called while a write is on its way."""

    async def patch_merge(self, *args: Any) -> dict[str, Any]:
        self.asked += 1
        self.meanwhile()
        if self.fault is not None:
            raise self.fault
        self.written.append(args[3]["data"]["hold"])
        return {}


@pytest.fixture
def board() -> Switchboard:
    return Switchboard()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def switch(board: Switchboard, mode: str = "auto", clock: Clock | None = None, native: str = "") -> HoldSwitch:
    """``native`` is who schedules gangs beside us, nobody for ""."""
    return HoldSwitch(board, Key("serried", "hold"), mode, 100, lambda: bool(native), clock or Clock())


async def test_auto_turns_to_gates_above_the_limit_and_back_below_half_of_it(board: Switchboard) -> None:
    holding = switch(board)
    for held in (0, 100, 101, 60, 50, 49, 80, 101):
        await holding.reconcile(held)
    assert board.written == ["filter", "gate", "filter", "gate"]


@pytest.mark.parametrize("mode", ["filter", "gate"])
async def test_a_fixed_mode_is_written_once_and_stays(board: Switchboard, mode: str) -> None:
    holding = switch(board, mode)
    for held in (0, 1000, 0):
        await holding.reconcile(held)
    assert board.written == [mode]


@pytest.mark.parametrize(("mode", "written"), [("auto", ["filter"]), ("gate", ["gate"])])
async def test_beside_native_gang_scheduling_auto_never_turns_to_gates(
    board: Switchboard, mode: str, written: list[str]
) -> None:
    holding = switch(board, mode, native="kube-scheduler")
    for held in (0, 1000):
        await holding.reconcile(held)
    assert board.written == written


async def test_a_switch_that_could_not_be_written_is_tried_again(board: Switchboard) -> None:
    holding = switch(board)
    board.fault = error(500)
    await holding.reconcile(0)
    assert holding.way == ""
    board.fault = None
    await holding.reconcile(0)
    assert (holding.way, board.written) == ("filter", ["filter"])


class TestLeadershipThatTurns:
    async def test_has_the_switch_written_again_for_another_leader_may_have_set_it(self, board: Switchboard) -> None:
        holding = switch(board, "gate")
        await holding.reconcile(0)
        holding.forget()
        assert holding.way == ""
        await holding.reconcile(0)
        assert (holding.way, board.written) == ("gate", ["gate", "gate"])

    @pytest.mark.parametrize("answer", [None, error(404)], ids=["that succeeds", "that finds no switch"])
    async def test_under_a_write_leaves_open_how_pods_are_held(
        self, board: Switchboard, answer: ApiError | None
    ) -> None:
        holding = switch(board)
        board.meanwhile = holding.forget
        board.fault = answer
        await holding.reconcile(0)
        assert holding.way == ""
        board.meanwhile = lambda: None
        board.fault = None
        await holding.reconcile(0)
        assert (holding.way, board.written[-1]) == ("filter", "filter")

    async def test_has_a_switch_that_was_not_there_asked_for_at_once(self, board: Switchboard) -> None:
        holding = switch(board, "gate")
        board.fault = error(404)
        await holding.reconcile(0)
        holding.forget()
        board.fault = None
        await holding.reconcile(0)
        assert (holding.way, holding.obstacle) == ("gate", "")


class TestWithoutTheSwitch:
    """A cluster without the gate's overlay."""

    @pytest.mark.parametrize(("mode", "held"), [("auto", 0), ("auto", 1000), ("gate", 0)])
    async def test_pods_are_held_by_filter_whatever_was_chosen_and_it_is_said_why(
        self, board: Switchboard, mode: str, held: int
    ) -> None:
        holding = switch(board, mode)
        board.fault = error(404)
        await holding.reconcile(held)
        assert holding.way == "filter"
        assert "ConfigMap serried/hold does not exist" in holding.obstacle

    async def test_holding_by_filter_lacks_nothing_if_it_was_asked_for(self, board: Switchboard) -> None:
        holding = switch(board, "filter")
        board.fault = error(404)
        await holding.reconcile(0)
        assert (holding.way, holding.obstacle) == ("filter", "")

    @pytest.mark.parametrize("status", [404, 403])
    async def test_it_is_asked_for_again_but_rarely(self, board: Switchboard, clock: Clock, status: int) -> None:
        holding = switch(board, clock=clock)
        board.fault = error(status)
        for _ in range(600):
            await holding.reconcile(1000)
            clock.advance(1.0)
        assert board.asked == 10

    async def test_it_is_used_and_nothing_is_said_any_more_once_it_is_there(
        self, board: Switchboard, clock: Clock
    ) -> None:
        holding = switch(board, clock=clock)
        board.fault = error(404)
        await holding.reconcile(1000)
        board.fault = None
        clock.advance(61.0)
        await holding.reconcile(1000)
        assert (holding.way, holding.obstacle, board.written) == ("gate", "", ["gate"])


class TestHeldPods:
    @pytest.fixture
    def known(self) -> dict[str, Pod]:
        return {}

    async def test_a_stranger_is_known_as_soon_as_the_watch_shows_it_however_late(self, known: dict[str, Pod]) -> None:
        held = HeldPods(known)
        held.add("pod-p", 0.0)
        held.prune(300.0)
        assert (len(held), "pod-p" in held) == (0, True)
        known["pod-p"] = pod("p").value()
        held.prune(301.0)
        assert list(held) == ["pod-p"]

    async def test_a_stranger_that_nobody_ever_shows_is_forgotten_in_the_end(self, known: dict[str, Pod]) -> None:
        held = HeldPods(known)
        held.add("pod-p", 0.0)
        held.prune(400.0)
        assert "pod-p" not in held

    async def test_of_too_many_strangers_the_oldest_are_forgotten(
        self, known: dict[str, Pod], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("extender.core.scheduling.group._MAX_UNSEEN", 3)
        held = HeldPods(known)
        for number in range(1000):
            held.add(f"pod-{number}", 0.0)
        assert [number for number in range(1000) if f"pod-{number}" in held] == [997, 998, 999]

    @pytest.mark.parametrize("now", [pod("p").on("n1"), pod("p").phase("Failed"), None], ids=["bound", "ended", "gone"])
    async def test_a_pod_that_waits_no_longer_is_not_held(self, known: dict[str, Pod], now: PodBuilder | None) -> None:
        known["pod-p"] = pod("p").value()
        held = HeldPods(known)
        held.add("pod-p", 0.0)
        known.clear()
        if now is not None:
            known["pod-p"] = now.value()
        held.prune(1.0)
        assert "pod-p" not in held


async def test_beside_an_autoscaler_members_are_held_by_gate_however_few_they_are(board: Switchboard) -> None:
    holding = HoldSwitch(board, Key("serried", "hold"), "auto", 100, lambda: False, Clock(), lambda: True)
    await holding.reconcile(0)
    assert board.written == ["gate"]


async def test_before_it_is_known_whether_there_is_an_autoscaler_the_switch_stays(board: Switchboard) -> None:
    holding = HoldSwitch(board, Key("serried", "hold"), "auto", 100, lambda: False, Clock(), lambda: None)
    await holding.reconcile(0)
    assert board.written == []
