"""The checker: its reactions to notes, and its counts."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.chaos.checker import Checker, Follower, Recoveries, Unseen, at_work, list_paths, summarize
from tests.chaos.excuses import SPLIT_BRAIN
from tests.unit.chaos.test_rules import BROKEN


def pod(name: str, node: str = "", version: str = "1") -> dict[str, object]:
    spec: dict[str, object] = {"containers": [], "schedulerName": "serried"}
    spec |= {"schedulingGroup": {"podGroupName": "g"}} | ({"nodeName": node} if node else {})
    return {"metadata": {"name": name, "namespace": "ns", "uid": name, "resourceVersion": version}, "spec": spec}


def group(count: int) -> dict[str, object]:
    spec = {"schedulingPolicy": {"gang": {"minCount": count}}}
    return {"metadata": {"name": "g", "namespace": "ns", "uid": "g"}, "spec": spec}


def test_a_violation_is_told_once_and_stands_in_the_report() -> None:
    told: list[str] = []
    checker = Checker(told.append)
    checker.seen.see("podgroups", group(2), 0.0)
    checker.seen.see("pods", pod("a", "n1"), 0.0)
    for now in (1.0, 3.0, 4.0):
        checker.look(now)
    assert [json.loads(line)["rule"] for line in told] == ["half bound"]
    assert [each["subject"] for each in checker.report()["violations"]] == ["ns/g"]


def test_what_the_harness_does_excuses_what_follows_from_it() -> None:
    told: list[str] = []
    checker = Checker(told.append)
    checker.seen.see("podgroups", group(2), 0.0)
    checker.note({"note": "fall", "about": "extender"}, 0.0)
    checker.seen.see("pods", pod("a", "n1"), 0.0)
    checker.look(20.0)
    checker.note({"note": "rise", "about": "extender"}, 20.0)
    checker.look(27.0)
    assert told == []
    checker.look(31.0)
    assert len(told) == 1


def test_rest_begins_and_ends_with_a_note() -> None:
    told: list[str] = []
    checker = Checker(told.append)
    checker.seen.see("podgroups", group(1), 1.0)
    checker.note({"note": "rest"}, 2.0)
    checker.look(3.0)
    assert told == []
    checker.seen.see("podgroups", group(1), 4.0)
    checker.note({"note": "work"}, 5.0)
    checker.look(6.0)
    assert told == []
    checker.note({"note": "rest"}, 3.0)
    checker.look(6.0)
    assert [json.loads(line)["rule"] for line in told] == ["write at rest"]


def test_the_report_has_the_way_of_each_gang_from_its_first_binding_to_the_last() -> None:
    checker = Checker(lambda _: None)
    checker.seen.see("podgroups", group(2), 0.0)
    checker.seen.see("pods", pod("a", "n1"), 1.0)
    checker.seen.see("pods", pod("b", "n1"), 1.5)
    report = checker.report()
    assert (report["bindings"], report["gangs_whole"], report["climb_seconds"]["max"]) == (2, 1, 0.5)


def test_the_report_counts_the_pods_that_went_for_somebody_of_higher_priority() -> None:
    checker = Checker(lambda _: None)
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    for name, conditions in (("a", [condition]), ("b", [])):
        checker.seen.see("pods", pod(name, "n1") | {"status": {"conditions": conditions}}, 0.0)
    assert checker.report()["preempted"] == 1


def watch(checker: Checker, begin: float, end: float) -> None:
    """The checker looks each second."""
    for now in range(int(begin), int(end) + 1):
        checker.look(float(now))


def test_the_report_says_for_how_long_nothing_excused_everybody_from_a_rule() -> None:
    checker = Checker(lambda _: None)
    watch(checker, 100, 120)
    checker.note({"note": "fall", "about": "extender"}, 120.0)
    watch(checker, 121, 130)
    checker.note({"note": "rise", "about": "extender"}, 130.0)
    watch(checker, 131, 230)
    checker.note({"note": "rest"}, 230.0)
    watch(checker, 231, 250)
    report = checker.report()
    clear = (120 - 100) + (250 - 138)
    assert report["in_force_seconds"] == {
        "half bound": clear - 20,
        **dict.fromkeys(("orphan", "silent", "leaked finalizer"), clear),
        "domain": 130,
        "over-committed": 130,
        "write at rest": 20,
        "overlooked": 20 + (230 - 220),
    }
    assert report["hardly_in_force"] == ["write at rest", "overlooked"]


def test_what_excuses_two_actives_is_no_time_in_which_a_node_could_not_be_over_committed() -> None:
    checker = Checker(lambda _: None)
    checker.look(0.0)
    checker.note({"note": "fall", "about": SPLIT_BRAIN}, 0.0)
    watch(checker, 1, 30)
    assert checker.report()["in_force_seconds"]["over-committed"] == 0


def test_the_report_counts_whom_kubelets_refuse() -> None:
    checker = Checker(lambda _: None)
    node = {"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "1", "pods": "2"}}}
    checker.seen.see("nodes", node, 1.0)
    for name in ("a", "b", "c"):
        checker.seen.see("pods", pod(name, "n"), 2.0)
    assert checker.report()["refused_by_kubelets"] == {"OutOfcpu": 0, "OutOfpods": 1}


def test_the_report_has_how_long_plain_pods_of_our_scheduler_have_waited() -> None:
    checker = Checker(lambda _: None)
    plain = {"spec": {"containers": [], "schedulerName": "serried"}}
    checker.seen.see("pods", pod("a") | plain, 1.0)
    checker.seen.see("pods", pod("b"), 1.0)
    bound = {"spec": plain["spec"] | {"nodeName": "n"}}
    checker.seen.see("pods", pod("a", version="2") | bound, 1.5)
    checker.seen.see("pods", pod("b", "n", "2"), 2.5)
    assert checker.report()["plain_wait_seconds"] == {"count": 1, "p50": 0.5, "p99": 0.5, "max": 0.5}


def test_every_rule_that_finds_something_says_how_long_it_was_in_force() -> None:
    checker = Checker(lambda _: None)
    checker.look(0.0)
    assert set(checker.report()["in_force_seconds"]) == {rule for _, rule in BROKEN}


def test_a_recovery_ends_with_the_first_binding_after_the_process_is_back() -> None:
    recoveries = Recoveries()
    recoveries.fall("extender", 10.0)
    recoveries.look(5, 11.0)
    recoveries.rise("extender", 5)
    recoveries.look(5, 13.0)
    recoveries.look(6, 14.0)
    recoveries.look(7, 15.0)
    assert recoveries.seconds == {"extender": [4.0]}


def test_one_that_falls_again_begins_anew() -> None:
    recoveries = Recoveries()
    recoveries.fall("extender", 10.0)
    recoveries.rise("extender", 5)
    recoveries.fall("extender", 12.0)
    recoveries.look(6, 13.0)
    recoveries.rise("extender", 6)
    recoveries.look(7, 15.0)
    assert recoveries.seconds == {"extender": [3.0]}


def test_figures_are_those_of_the_nearest_rank() -> None:
    assert summarize([3.0, 1.0, 2.0]) == {"count": 3, "p50": 2.0, "p99": 3.0, "max": 3.0}
    assert summarize([]) == {"count": 0, "p50": None, "p99": None, "max": None}


def test_composites_have_a_version_of_their_own() -> None:
    native = list_paths("scheduling.k8s.io/v1beta1")
    assert native["podgroups"] == "/apis/scheduling.k8s.io/v1beta1/podgroups"
    assert native["compositepodgroups"] == "/apis/scheduling.k8s.io/v1alpha3/compositepodgroups"


# --- parts of the checker that end ---------------------------------------------------------------------------------

Work = Coroutine[Any, Any, None]


async def go_on() -> None:
    """Run until cancelled, as a task should."""
    await asyncio.Event().wait()


async def come_to_an_end() -> None:
    """Return at once, without an error."""


async def break_down() -> None:
    raise KeyError("spec")


async def be_cancelled() -> None:
    raise asyncio.CancelledError


class Told:
    """The lines that a checker reports; a test can wait for the first one."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._said = asyncio.Event()

    def take(self, line: str) -> None:
        self.lines.append(line)
        self._said.set()

    async def hear_of(self, parts: dict[str, Work], checker: Checker) -> None:
        """Run the checker until it has reported something."""
        async with asyncio.timeout(10), at_work(parts, checker):
            await self._said.wait()


@pytest.mark.parametrize(
    ("work", "why"),
    [
        pytest.param(break_down, "KeyError('spec')", id="by an error"),
        pytest.param(come_to_an_end, "it came to its end", id="without a word"),
        pytest.param(be_cancelled, "it was cancelled", id="cancelled by nobody of ours"),
    ],
)
async def test_a_part_that_ends_is_a_violation_at_once(work: Callable[[], Work], why: str) -> None:
    told = Told()
    checker = Checker(told.take)
    await told.hear_of({"judge": go_on(), "pods": work()}, checker)
    (found,) = checker.report()["violations"]
    assert (found["rule"], found["subject"]) == ("checker", "pods")
    assert why in found["text"]
    assert [json.loads(line) for line in told.lines] == [found]


async def test_one_that_ends_with_the_input_is_a_violation_too() -> None:
    checker = Checker(lambda _: None)
    async with at_work({"pods": come_to_an_end()}, checker):
        await asyncio.sleep(0)
    assert [each["subject"] for each in checker.report()["violations"]] == ["pods"]


async def test_parts_that_are_cancelled_when_the_input_ends_are_none() -> None:
    checker = Checker(lambda _: None)
    async with at_work({"judge": go_on(), "pods": go_on()}, checker):
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert checker.report()["violations"] == []


async def test_a_judge_that_fails_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    told = Told()
    checker = Checker(told.take)
    monkeypatch.setattr("tests.chaos.checker.judge", fail)
    await told.hear_of({"judge": checker.judge()}, checker)
    assert "ZeroDivisionError" in told.lines[0]


@asynccontextmanager
async def serving(*items: dict[str, Any]) -> AsyncIterator[aiohttp.ClientSession]:
    """An API server that lists these pods."""

    async def list_pods(_: web.Request) -> web.Response:
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": items})

    app = web.Application()
    app.router.add_get("/api/v1/pods", list_pods)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        async with aiohttp.ClientSession(site.name) as session:
            yield session
    finally:
        await runner.cleanup()


async def test_an_object_that_cannot_be_taken_in_ends_its_follower() -> None:
    """The follower's next list would skip the object as known, so no rule would ever check it."""
    checker = Checker(lambda _: None)
    broken: dict[str, Any] = {"metadata": {"name": "a", "namespace": "ns", "uid": "a", "resourceVersion": "1"}}
    async with serving(broken) as session, asyncio.timeout(10):
        with pytest.raises(Unseen, match="pods"):
            await Follower("pods", "/api/v1/pods", session, checker.seen).run()
