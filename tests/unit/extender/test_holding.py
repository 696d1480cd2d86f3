from typing import Any

import pytest

from extender.holding import HoldSwitch
from serried.kube.client import ApiClient
from serried.kube.errors import ApiError
from serried.model.group import Key
from tests.unit.extender.world import error


class Switchboard(ApiClient):
    """Takes what would be written to the ConfigMap."""

    def __init__(self) -> None:
        self.written: list[str] = []
        self.fault: ApiError | None = None

    async def patch_merge(self, *args: Any) -> dict[str, Any]:
        if self.fault is not None:
            raise self.fault
        self.written.append(args[3]["data"]["hold"])
        return {}


@pytest.fixture
def board() -> Switchboard:
    return Switchboard()


def switch(board: Switchboard, mode: str = "auto") -> HoldSwitch:
    return HoldSwitch(board, Key("serried", "hold"), mode, limit=100)


async def test_auto_turns_to_gates_above_the_limit_and_back_below_half_of_it(board: Switchboard) -> None:
    holding = switch(board)
    for held in (0, 100, 101, 60, 50, 49, 80, 101):
        await holding.settle(held)
    assert board.written == ["filter", "gate", "filter", "gate"]


@pytest.mark.parametrize("mode", ["filter", "gate"])
async def test_a_fixed_mode_is_written_once_and_stays(board: Switchboard, mode: str) -> None:
    holding = switch(board, mode)
    for held in (0, 1000, 0):
        await holding.settle(held)
    assert board.written == [mode]


async def test_a_switch_that_could_not_be_written_is_tried_again(board: Switchboard) -> None:
    holding = switch(board)
    board.fault = error(500)
    await holding.settle(0)
    assert holding.way == ""
    board.fault = None
    await holding.settle(0)
    assert (holding.way, board.written) == ("filter", ["filter"])


async def test_a_cluster_without_the_switch_holds_by_filter_and_does_not_ask_every_second(board: Switchboard) -> None:
    holding = switch(board)
    board.fault = error(404)
    await holding.settle(0)
    assert holding.way == "filter"
