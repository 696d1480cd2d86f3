"""Prioritize on a real socket: what kube-scheduler sends, and the HostPriorityList that it reads."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.builders import node, pod, pod_group
from tests.support.verbs_stage import GOOD_POD, Extender


@pytest.fixture
async def extender() -> AsyncIterator[Extender]:
    """Two racks, of which b is broken up, and a gang that asks for one."""
    made = await Extender().open()
    racks = [node(f"{rack}{number}").cpu(4).rack(rack) for rack in "ab" for number in "12"]
    made.world.add(*racks, pod("q").cpu(1).on("b1"), pod_group("r").gang(2).topology())
    yield made
    await made.close()


def ask(*names: str) -> dict[str, Any]:
    """ExtenderArgs as they are sent with nodeCacheCapable."""
    return {"Pod": GOOD_POD, "Nodes": None, "NodeNames": names}


async def test_every_offered_node_gets_an_integer_from_0_to_10_in_a_bare_list(extender: Extender) -> None:
    answer = await extender.call("prioritize", ask("b2", "a1", "b1", "n1"))
    assert answer.status_code == 200
    assert answer.json() == [
        {"Host": "b2", "Score": 5},
        {"Host": "a1", "Score": 0},
        {"Host": "b1", "Score": 5},
        {"Host": "n1", "Score": 10},
    ]
    assert "." not in answer.text  # Go reads no 10.0 into an int64


async def test_of_no_nodes_the_list_is_empty(extender: Extender) -> None:
    answer = await extender.call("prioritize", ask())
    assert (answer.status_code, answer.content) == (200, b"[]")


async def test_a_node_that_only_the_scheduler_knows_is_scored_as_well(extender: Extender) -> None:
    answer = await extender.call("prioritize", ask("a1", "new"))
    assert [each["Host"] for each in answer.json()] == ["a1", "new"]


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param({"Pod": GOOD_POD, "Nodes": {"items": []}, "NodeNames": None}, id="nodes instead of names"),
        pytest.param({"Pod": GOOD_POD, "NodeNames": [1]}, id="a name that is none"),
        pytest.param({"Pod": None, "NodeNames": ["a1"]}, id="no pod"),
        pytest.param([], id="no object"),
    ],
)
async def test_what_cannot_be_read_is_answered_with_400_which_the_scheduler_takes_for_no_opinion(
    extender: Extender, arguments: object
) -> None:
    answer = await extender.call("prioritize", json.dumps(arguments).encode())
    assert answer.status_code == 400
    assert answer.json()["Error"].startswith("serried prioritize: ")


async def test_a_standby_has_no_opinion_and_closes_the_connection(extender: Extender) -> None:
    extender.switch.active = False
    answer = await extender.call("prioritize", ask("a1", "b1"))
    assert (answer.status_code, answer.headers["connection"]) == (503, "close")
