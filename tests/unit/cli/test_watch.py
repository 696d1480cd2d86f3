"""``--watch``: the rows at first, and then each one that changes, until Ctrl-C."""

from typing import Any

import pytest

from tests.support.commands import Run
from tests.support.pod_proxy import PodProxy
from tests.unit.cli.conftest import Step
from tests.unit.cli.test_queue import waiting


def answer(proxy: PodProxy, *rows: dict[str, Any]) -> Step:
    document = {"head": None, "waiting": list(rows), "leftOff": 0}
    return lambda: proxy.answer_debug("serried-0:8912", "queue", document)


def test_rows_that_change_are_printed_and_the_others_are_not(proxy: PodProxy, run: Run, steps: list[Step]) -> None:
    answer(proxy, waiting(1, "a"), waiting(2, "b"))()
    steps += [
        lambda: None,
        answer(proxy, waiting(1, "a"), waiting(2, "b") | {"message": "NoCapacity: less room"}),
        answer(proxy, waiting(1, "b")),
    ]
    ended = run("queue", "-w")
    assert ended.code == 130
    rows = [line.split() for line in ended.out.splitlines()]
    assert [(row[0], row[2]) for row in rows if row[0].isdigit()] == [("1", "a"), ("2", "b"), ("2", "b"), ("1", "b")]
    assert ended.out.count("TURN") == 1
    assert ended.out.endswith("team/a no longer waits for resources.\n")


def test_an_extender_that_does_not_answer_for_a_while_is_asked_again(
    proxy: PodProxy, run: Run, steps: list[Step]
) -> None:
    answer(proxy, waiting(1, "a"))()
    steps += [
        lambda: proxy.answer_debug("serried-0:8912", "queue", {"detail": "starting"}, status=503),
        answer(proxy, waiting(1, "a"), waiting(2, "b")),
    ]
    ended = run("queue", "-w")
    assert "pod serried-system/serried-0 does not answer: starting" in ended.err
    assert [line.split()[2] for line in ended.out.splitlines()[1:]] == ["a", "b"]


def test_a_first_answer_that_does_not_come_ends_it(proxy: PodProxy, run: Run, steps: list[Step]) -> None:
    proxy.answer_debug("serried-0:8912", "queue", {"detail": "starting"}, status=503)
    assert run("queue", "-w").code == 3


def test_new_decisions_come_last(proxy: PodProxy, run: Run, steps: list[Step]) -> None:
    def decide(*numbers: int) -> Step:
        said = [{"id": str(n), "at": f"2026-01-01T09:0{n}:00Z", "group": "team/a", "text": f"X: {n}"} for n in numbers]
        return lambda: proxy.answer_debug("serried-0:8912", "decisions", said)

    decide(2, 1)()
    steps.append(decide(3, 2))
    assert [line.split()[-1] for line in run("decisions", "-w").out.splitlines()[1:]] == ["1", "2", "3"]


def test_a_gang_is_watched_by_its_job(proxy: PodProxy, run: Run, steps: list[Step]) -> None:
    name = {"namespace": "team", "name": "train-5d9c7", "owner": "job/train"}
    state = {
        **name,
        "state": "Waiting",
        "reason": "NoCapacity",
        "members": 4,
        "placed": 0,
        "message": "NoCapacity: no room",
    }
    proxy.answer_debug("serried-0:8912", "lookup/team/job/train", [name])
    path = "groups/team/train-5d9c7"
    proxy.answer_debug("serried-0:8912", path, state)
    bound = state | {"state": "Scheduled", "placed": 4, "message": "Scheduled: 4 of 4 members are placed"}
    steps.append(lambda: proxy.answer_debug("serried-0:8912", path, bound))
    lines = run("explain", "job/train", "-w").out.splitlines()
    assert [line.split()[1:4] for line in lines[1:]] == [
        ["job/train", "Waiting", "0/4"],
        ["job/train", "Running", "4/4"],
    ]


@pytest.mark.parametrize("output", ["json", "yaml", "name"])
def test_documents_are_not_watched(run: Run, output: str) -> None:
    ended = run("top", "-w", "-o", output)
    assert ended.code == 2
    assert f"--watch prints rows of a table: leave out -o {output}" in ended.err
