"""Preemption side by side: what runs and comes, what a watch of it shows, and what is said of it."""

from collections import Counter
from typing import Any

import pytest

from bench.comparison import Run
from bench.load.objects import GANG, RUN
from bench.preemption.cases import CASES, QUICK, WARM_UP, Case, RunningPods
from bench.preemption.figures import Figures, compute_figures, find_defects, render_table, summarize
from bench.preemption.objects import CaseRun, preemptor_groups, preemptor_pods, running_groups, running_pods
from bench.preemption.watch import Life, Watch
from serried.api.resources import parse_cpu
from serried.kube.reflector import Deleted, Event, Upserted
from serried.kube.wire import JSON
from tests.support.builders import RACK

ALL = (*CASES, *QUICK, WARM_UP)
PAIR = Case(
    "a pair", (RunningPods((0, 1), "1", size=2), RunningPods((2,), "2")), gangs=1, size=2, cpu="4", least=2, key=RACK
)
CASE_RUN = CaseRun(PAIR, "r0", "serried")


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_what_runs_fits_and_what_comes_does_not_without_others_going(case: Case) -> None:
    used: Counter[str] = Counter()
    for pods in case.running:
        for node in pods.hosts:
            used[node] += parse_cpu(pods.cpu)
    assert len(used) == 100
    assert max(used.values()) <= 4000
    assert min(used.values()) + parse_cpu(case.cpu) > 4000


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_as_many_have_to_go_as_are_on_the_nodes_with_fewest(case: Case) -> None:
    each: Counter[str] = Counter(node for pods in case.running for node in pods.hosts)
    fewest = sorted(each.values())[: case.gangs * case.size]
    assert sum(fewest) == case.least


@pytest.mark.parametrize("case", [case for case in ALL if case.running[0].size], ids=lambda case: case.name)
def test_no_two_pods_of_a_group_share_a_node(case: Case) -> None:
    [pods] = case.running
    groups = [pods.nodes[first : first + pods.size] for first in range(0, len(pods.nodes), pods.size)]
    assert all(len(set(group)) == pods.size for group in groups)


def test_groups_that_run_go_whole_and_are_of_lower_priority() -> None:
    [(_, group)] = running_groups(CASE_RUN)
    assert group["spec"]["disruptionMode"] == {"all": {}}
    assert group["spec"]["priorityClassName"] == "bench-runs"
    pods = list(running_pods(CASE_RUN))
    assert [pod["spec"]["nodeName"] for pod in pods] == ["node-00000", "node-00001", "node-00002"]
    assert [pod["spec"].get("schedulingGroup") for pod in pods] == [{"podGroupName": group["metadata"]["name"]}] * 2 + [
        None
    ]
    assert {pod["spec"]["priorityClassName"] for pod in pods} == {"bench-runs"}


def test_gangs_that_come_are_of_higher_priority_and_in_a_domain() -> None:
    [(_, group)] = preemptor_groups(CASE_RUN)
    assert group["spec"]["priorityClassName"] == "bench-comes"
    assert group["spec"]["schedulingConstraints"] == {"topology": [{"key": RACK}]}
    assert [pod["spec"]["priorityClassName"] for pod in preemptor_pods(CASE_RUN)] == ["bench-comes"] * 2


def test_names_of_pods_and_groups_are_different() -> None:
    names = [pod["metadata"]["name"] for pod in (*running_pods(CASE_RUN), *preemptor_pods(CASE_RUN))]
    assert len(set(names)) == len(names) == 5
    groups = [group["metadata"]["name"] for _, group in (*running_groups(CASE_RUN), *preemptor_groups(CASE_RUN))]
    assert len(set(groups)) == len(groups) == 2


def seen(uid: str, run: str, gang: str = "", node: str = "n", phase: str = "", **metadata: str) -> Upserted:
    labels = {RUN: run} | ({GANG: gang} if gang else {})
    pod: JSON = {"metadata": {"uid": uid, "labels": labels, **metadata}, "spec": {}, "status": {}}
    if node:
        pod["spec"]["nodeName"] = node
    if phase:
        pod["status"]["phase"] = phase
    return Upserted(pod)


def test_the_watch_notes_each_moment_once() -> None:
    now = [0.0]
    watch = Watch("r0-comes", running=1, coming=1, clock=lambda: now[0])
    events: list[Event] = [
        seen("a", "r0-runs0", "g"),
        seen("a", "r0-runs0", "g", phase="Running"),
        seen("a", "r0-runs0", "g", phase="Running", deletionTimestamp="2026-01-01T00:00:00Z"),
        Deleted({"metadata": {"uid": "a"}}),
        seen("b", "r0-comes", "g", node=""),
        seen("b", "r0-comes", "g"),
        seen("b", "r0-comes", "g"),
        Deleted({"metadata": {"uid": "of nobody"}}),
    ]
    for event in events:
        now[0] += 1.0
        watch(event)
    assert watch.candidates == {"a": Life("r0-runs0/g", running=2.0, ended=3.0)}
    assert watch.preemptors == {"b": Life("r0-comes/g", bound=6.0)}
    assert watch.all_run.is_set()
    assert watch.all_bound.is_set()


def test_a_pod_that_goes_without_notice_ends_when_it_is_gone() -> None:
    watch = Watch("r0-comes", running=2, coming=1, clock=lambda: 5.0)
    watch(seen("a", "r0-runs0", phase="Running"))
    watch(Deleted({"metadata": {"uid": "a"}}))
    assert watch.candidates["a"].ended == 5.0
    assert not watch.all_run.is_set()


RUNNERS = (Life("g", ended=12.0), Life("g", ended=14.0), Life("h"), Life("h"), Life("", ended=13.0), Life(""))


def test_a_run_counts_pods_and_gangs_that_go() -> None:
    found = compute_figures(PAIR, RUNNERS, [Life("c", bound=15.0), Life("c", bound=16.0)], 10.0)
    assert found == Figures(2, 2, 6.0, 2.0, 4.0, evicted=3, least=2, broken=1, torn=0)


def test_a_group_that_loses_a_part_is_torn() -> None:
    assert compute_figures(PAIR, [*RUNNERS, Life("g")], [], 10.0).torn == 1


def test_a_run_without_end_has_no_time() -> None:
    found = compute_figures(PAIR, [], [Life("c", bound=15.0), Life("c")], 10.0)
    assert (found.bound, found.seconds, found.first_ended, found.evicted) == (1, None, None, 0)


def run(contender: str, seconds: float | None, evicted: int, **figures: Any) -> Run:
    found = Figures(2, 2, seconds, 1.0, 2.0, evicted=evicted, least=2, broken=1, torn=0).describe() | figures
    return Run(contender, "a pair", 0, found, 5.0, {"etcd": 1.0}, 0.1, 2, {"POST pods": 4})


def test_fewer_pods_go_and_not_later() -> None:
    summary = summarize([run("native", 6.0, 5), run("serried", 5.0, 2), run("serried", 7.0, 2), run("serried", 6.0, 4)])
    assert find_defects(summary) == []
    assert render_table(summary).splitlines()[2:] == [
        "| a pair | native | 5.0 | 1.0 | 1.0 | 6.0 |",
        "| a pair | serried | 2.0 (2.0 to 4.0) | 1.0 | 1.0 | 6.0 (5.0 to 7.0) |",
    ]


@pytest.mark.parametrize(
    ("ours", "defect"),
    [
        (run("serried", 6.5, 5), "a pair, serried: bound after 6.5 s, natively 6.0 s"),
        (run("serried", 6.0, 6), "a pair, serried: 6 pods go, not 5"),
        (run("serried", None, 5, bound=1), "a pair, serried: 1 pods were not bound in time"),
        (run("serried", 6.0, 5, torn=1), "a pair, serried: 1 gangs that go whole lost a part of their pods"),
    ],
)
def test_what_is_not_as_wanted_is_said(ours: Run, defect: str) -> None:
    assert find_defects(summarize([run("native", 6.0, 5), ours])) == [defect]
