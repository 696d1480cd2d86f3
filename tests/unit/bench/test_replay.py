"""Upstream's cases, replayed: what is asked for, on which nodes, and the table."""

import json
from pathlib import Path
from typing import Any

from bench.load.objects import leading_objects, pod_objects
from bench.quotes.__main__ import draw_replay
from bench.quotes.results import Results
from bench.replay import CASES, CONTENDERS, SMALL, choose_cases, find_ratios, render_table


def row(case: str, contender: str, rate: float, unbound: int = 0) -> dict[str, Any]:
    return {"workload": case, "contender": contender, "pods_per_second": {"median": rate}, "unbound": unbound}


def test_cases_are_called_as_upstream_calls_them_and_have_as_many_pods() -> None:
    assert [(case.name, case.upstream_pods) for case in CASES] == [
        ("GangScheduling/5000Nodes_1000Gangs_3000Pods", 3000),
        ("GangScheduling/5000Nodes_3Gangs_3000Pods_1000PerGroup", 3000),
        ("TopologyAwareScheduling/5000Nodes_750Gangs_3000Pods", 3000),
        ("TopologyAwareScheduling/5000Nodes_3Gangs_3000Pods_1000PerGroup", 3000),
    ]


def test_a_part_has_fewer_gangs_of_the_same_size() -> None:
    few, large, _, _ = choose_cases(CASES, 3, "live")

    assert [{gang.size for gang in case.load.gangs} for case in (few, large)] == [{3}, {1000}]
    assert [(len(case.load.gangs), case.upstream_pods) for case in (few, large)] == [(333, 3000), (1, 3000)]
    assert len(choose_cases(CASES, 100, "live")[1].load.gangs) == 1


def test_pods_come_while_schedulers_work_and_before() -> None:
    names = [(case.name, case.queue) for case in choose_cases(SMALL[:1], 1, "both")]

    assert names == [
        ("GangScheduling/100Nodes_10Gangs", "live"),
        ("GangScheduling/100Nodes_10Gangs, all waiting", "full"),
    ]
    assert [case.queue for case in choose_cases(SMALL, 1, "full")] == ["full", "full"]


def test_pods_ask_for_what_upstreams_ask_for_and_groups_for_a_rack() -> None:
    load = CONTENDERS[1].make_load(SMALL[1], "r0")
    _, group = next(leading_objects(load))
    _, pod = next(pod_objects(load))

    assert load.pods == 30
    assert pod["spec"]["containers"][0]["resources"] == {"requests": {"cpu": "100m", "memory": "100Mi"}}
    assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 3}}
    assert group["spec"]["schedulingConstraints"]["topology"] == [{"key": "topology.serried.dev/rack"}]


def test_nodes_have_upstreams_shape_for_each_scheduler_that_is_measured() -> None:
    specs = [contender.make_spec(5000) for contender in CONTENDERS]

    assert [contender.name for contender in CONTENDERS] == ["native", "serried"]
    assert {(spec.racks, spec.zones, spec.node_cpu, spec.node_memory, spec.node_pods) for spec in specs} == {
        (50, 50, "4", "32Gi", 110)
    }
    assert [spec.gates for spec in specs] == ["on", "off"]


def test_the_table_compares_with_native_gangs_and_leaves_out_who_has_not_bound_all(tmp_path: Path) -> None:
    name, other = "GangScheduling/100Nodes_10Gangs", "TopologyAwareScheduling/100Nodes_10Gangs"
    summary = [row(name, "native", 40.0), row(name, "serried", 90.0)]
    summary += [row(other, "native", 40.0), row(other, "serried", 9.0, unbound=1)]
    cases = [{"name": each, "pods": 30, "upstream_pods": 30} for each in (name, other)]
    result = {"cases": cases, "summary": summary, "ratios": find_ratios(summary)}

    assert result["ratios"] == {name: {"serried": 2.25}, other: {"serried": 0.23}}
    assert render_table(result).splitlines()[-2:] == [
        f"| {name} | 30 | 30 | 40 | 90 | 2.25 |",
        f"| {other} | 30 | 30 | 40 |  |  |",
    ]
    assert not draw_replay(Results(tmp_path))
    (tmp_path / "replay-2026-11-27.json").write_text(json.dumps(result))
    assert draw_replay(Results(tmp_path)) == render_table(result)
