"""The verbs under what Hypothesis thinks of: wrong arguments in good requests, and bytes that are hardly HTTP.

Whatever comes, the answer is one of the protocol or a clean end, others are answered meanwhile, no error is logged, and
the state is as it was.
"""

import asyncio
import json
import re
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.builders import pod
from tests.support.extender_harness import SCHEDULER, members
from tests.support.logged_errors import collect_errors
from tests.support.malformed_http import RawConnection, requests, streams
from tests.support.odd_objects import Json, odd_objects
from tests.support.verbs_stage import ANSWERS, GOOD, Extender

BUDGETS = pytest.mark.parametrize("examples", [80, pytest.param(2_000, marks=pytest.mark.full)])
"""The numbers of examples that are tried."""


class Stage:
    """An extender that lives for all examples of one test, with a loop of its own kind."""

    def __init__(self, errors: list[str]) -> None:
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self.extender = Extender()
        self.errors = errors

    def run(self, story: Coroutine[Any, Any, None]) -> None:
        self._runner.run(asyncio.wait_for(story, 60.0))

    def close(self) -> None:
        self._runner.run(self.extender.close())
        self._runner.close()


@pytest.fixture
def stage() -> Iterator[Stage]:
    with collect_errors() as errors:
        made = Stage(errors)
        made.run(_open(made.extender))
        yield made
        made.close()


async def _open(extender: Extender) -> None:
    await extender.open()


async def assert_as_before(stage: Stage) -> None:
    """Assert that no resources are reserved, no pod was bound, and calls of kube-scheduler are answered as usual."""
    world = stage.extender.world
    assert stage.errors == []
    assert len(world.ledger) == 0
    assert world.store.occupancy.used == {}
    assert not any(raw["spec"].get("nodeName") for raw in world.api.pods.values())
    # A Binding may be tried, if there can be such a pod; it finds none.
    assert {call.verb for call in world.api.calls} <= {"get", "bind"}
    assert all(re.fullmatch(r"[a-z0-9][-.a-z0-9]{0,252}", call.name) for call in world.api.calls)
    assert sorted(world.store.pods) == ["pod-m0", "pod-p"]
    assert sorted(world.store.nodes) == ["n1", "n2"]
    for verb in ("filter", "prioritize", "preempt"):
        answer = await stage.extender.call(verb, GOOD[verb])
        assert (answer.status_code, answer.json()) == (200, ANSWERS[verb])


# --- arguments -------------------------------------------------------------------------------------------------

NODE_NAMES = st.sampled_from(["n1", "n2", "nowhere", "", "N1", "n1\u0000", "\U0001f4a9", "x" * 5000])
PODS = (
    st.sampled_from(
        [
            GOOD["filter"]["Pod"],
            members(1)[0].raw(),
            pod("stranger").cpu(1).scheduler(SCHEDULER).in_group("g").raw(),
            pod("orphan").cpu(1).scheduler(SCHEDULER).in_group("nobody").raw(),
        ]
    )
    | odd_objects()
    | Json
)
NAMES = st.lists(NODE_NAMES, max_size=5) | st.lists(NODE_NAMES | Json, max_size=3) | Json
UIDS = st.sampled_from(["pod-p", "pod-m0", "nobody", ""]) | Json
VICTIMS = st.fixed_dictionaries(
    {},
    optional={
        "Pods": st.lists(st.fixed_dictionaries({}, optional={"UID": UIDS, "metadata": Json}) | Json, max_size=3) | Json,
        "NumPDBViolations": st.integers(-(2**64), 2**64) | Json,
    },
)
CANDIDATES = st.dictionaries(st.text(max_size=6) | NODE_NAMES, VICTIMS | Json, max_size=3) | Json
WORDS = st.sampled_from(
    [
        "p",
        "q",
        "m0",
        "default",
        "n1",
        "..",
        "../../nodes",
        "p/eviction?",
        "p#",
        "p%2f",
        "p\r\nX: y",
        " p",
        "P",
        "x" * 254,
    ]
)


def fields(**of: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Draw objects in which each field may be missing, and an unknown field may be added."""
    return st.fixed_dictionaries({}, optional={**of, "Unknown": Json})


ARGUMENTS: dict[str, st.SearchStrategy[Any]] = {
    "filter": fields(Pod=PODS, Nodes=Json, NodeNames=NAMES) | Json,
    "prioritize": fields(Pod=PODS, Nodes=Json, NodeNames=NAMES) | Json,
    "preempt": fields(Pod=PODS, NodeNameToVictims=CANDIDATES, NodeNameToMetaVictims=CANDIDATES) | Json,
    "bind": fields(PodName=WORDS | Json, PodNamespace=WORDS | Json, PodUID=UIDS, Node=WORDS | Json).filter(
        lambda args: (args.get("PodName"), args.get("PodNamespace")) != ("p", "default")
    )  # that is a good call
    | Json,
}


def assert_answers(verb: str, status: int, answer: Any) -> None:
    """Assert that kube-scheduler can decode an answer into the verb's type."""
    if status != 200:
        assert (status, list(answer)) == (400, ["Error"])
    elif verb == "prioritize":
        assert all(type(each["Score"]) is int and isinstance(each["Host"], str) for each in answer)
        assert all(0 <= each["Score"] <= 10 for each in answer)
    elif verb == "preempt":
        for each in answer["NodeNameToMetaVictims"].values():
            assert all(isinstance(victim["UID"], str) for victim in each["Pods"])
            assert isinstance(each["NumPDBViolations"], int)
    else:
        assert isinstance(answer.get("Error", ""), str)
        assert all(isinstance(name, str) for name in answer.get("NodeNames", ()))
    assert "internal error" not in str(answer)


@BUDGETS
def test_any_arguments_get_an_answer_of_the_verb_and_change_nothing(stage: Stage, examples: int) -> None:
    async def ask(verb: str, arguments: Any) -> None:
        answer = await stage.extender.call(verb, arguments)
        assert_answers(verb, answer.status_code, answer.json())
        assert stage.errors == []

    @settings(max_examples=examples)
    @given(asked=st.one_of([st.tuples(st.just(verb), arguments) for verb, arguments in ARGUMENTS.items()]))
    def fuzz(asked: tuple[str, Any]) -> None:
        stage.run(ask(*asked))

    fuzz()
    stage.run(assert_as_before(stage))


# --- bytes -----------------------------------------------------------------------------------------------------

BODIES = st.sampled_from(
    [json.dumps(GOOD[verb]).encode() for verb in ("filter", "prioritize", "preempt")]
    + [json.dumps({**GOOD["bind"], "PodName": "q", "PodUID": "nobody"}).encode(), b"", b"{", b"\x00" * 40]
)
TARGETS = st.sampled_from([b"/filter", b"/prioritize", b"/preempt", b"/bind", b"/", b"*", b"//filter", b"/filter?x#y"])


def read_replies(heard: bytes) -> list[tuple[int, Any]]:
    """The replies that a connection has got, which must be whole."""
    replies = []
    while heard:
        head, found, heard = heard.partition(b"\r\n\r\n")
        assert found, f"half a head: {head!r}"
        line = re.fullmatch(rb"HTTP/1\.1 (\d{3}) [A-Za-z ]+", head.split(b"\r\n")[0])
        assert line, head
        length = re.search(rb"content-length: (\d+)", head)
        size = int(length[1]) if length else 0
        assert len(heard) >= size, "half a body"
        replies.append((int(line[1]), json.loads(heard[:size]) if size else None))
        heard = heard[size:]
    return replies


@BUDGETS
def test_any_bytes_get_whole_answers_or_an_end_and_others_are_served_meanwhile(stage: Stage, examples: int) -> None:
    good = json.dumps(GOOD["filter"]).encode()

    async def talk(pieces: list[bytes]) -> None:
        line = RawConnection()
        await line.send(stage.extender.port, pieces)
        other = await stage.extender.call("filter", good)  # while this connection is open, whatever it waits for
        assert other.json() == ANSWERS["filter"]
        for status, answer in read_replies(await line.read_all()):
            assert status in {100, 200, 400, 404, 405, 431}
            assert answer is None if status == 100 else "internal error" not in str(answer)
        assert stage.errors == []

    @settings(max_examples=examples)
    @given(pieces=streams(requests(st.tuples(st.sampled_from([b"POST", b"POST", b"GET"]), TARGETS, BODIES))))
    def fuzz(pieces: list[bytes]) -> None:
        stage.run(talk(pieces))

    fuzz()
    stage.run(assert_as_before(stage))
