"""The mixed queue beside Karpenter: what is drawn, and which NodeClaims count as bought in vain."""

from itertools import pairwise
from typing import Any

from bench.autoscaler import KINDS, POOL_NODES, STARTING, Bought, Gang, GangLife, draw, pod_object, render, summarize
from bench.karpenter import NODE_CPU, Batch


def gang(number: int, kind: str, size: int) -> Gang:
    return Gang(number, kind, size, at=0.0, key="", runs=10.0, withdrawn_after=60.0, spacing=0.0)


def row(summary: dict[str, Any], kind: str) -> dict[str, Any]:
    (found,) = (each for each in summary["rows"] if each["kind"] == kind)
    return dict(found)


def test_the_same_seed_draws_the_same_queue_and_an_hour_has_every_kind() -> None:
    gangs = draw(60, seed=1)

    assert gangs == draw(60, seed=1) != draw(60, seed=2)
    assert {each.kind for each in gangs} == set(KINDS)
    assert all(before.at < after.at < 3600 for before, after in pairwise(gangs))


def test_no_node_has_room_for_two_pods_and_each_gang_asks_for_an_amount_of_its_own() -> None:
    gangs = draw(60, seed=1)

    asked = [each.milli_cpu for each in gangs]
    assert len(set(asked)) == len(asked)
    assert all(NODE_CPU * 1000 / 2 < each < (NODE_CPU - 1) * 1000 for each in asked)
    assert pod_object(gangs[0], 0)["spec"]["containers"][0]["resources"]["requests"]["cpu"] == f"{asked[0]}m"


def test_gangs_that_should_not_start_lack_a_member_or_need_more_than_may_be_bought() -> None:
    for each in draw(60, seed=1):
        assert (each.pods < each.size) == (each.kind == "lacking")
        assert (each.size > POOL_NODES + 6) == (each.kind == "too large")
        assert (each.kind == "plain") == (each.size == 1)
    assert KINDS.keys() >= STARTING


def test_node_claims_of_gangs_that_never_started_are_wasted_but_for_those_that_were_withdrawn() -> None:
    ran, lacking, withdrawn = gang(1, "whole", 4), gang(2, "lacking", 4), gang(3, "withdrawn", 3)
    stories = [
        GangLife(ran, created=4, whole=1.0, bound=9.5),
        GangLife(lacking, created=3),
        GangLife(withdrawn, created=3),
    ]
    claims = {ran.milli_cpu: 5, lacking.milli_cpu: 3, withdrawn.milli_cpu: 2}

    summary = summarize(stories, Bought(claims, [Batch(5, 5), Batch(5, 5)]))

    assert (summary["came"], summary["node_claims"], summary["batches"]) == (3, 10, 2)
    assert (summary["wasted"], summary["wasted_by_withdrawn"]) == (3, 2)
    assert row(summary, "whole")["beyond_size"] == 1
    assert row(summary, "whole")["seconds"] == {"median": 8.5, "p90": 8.5, "max": 8.5}
    assert row(summary, "lacking")["started"] == 0
    assert row(summary, "late")["seconds"] is None


def test_a_gang_that_ran_on_nodes_that_were_there_says_nothing_of_the_time_that_new_nodes_take() -> None:
    there, bought = gang(1, "whole", 2), gang(2, "whole", 2)
    stories = [GangLife(there, 2, whole=1.0, bound=1.5), GangLife(bought, 2, whole=1.0, bound=13.0)]

    summary = summarize(stories, Bought({bought.milli_cpu: 2}))

    assert summary["seconds_with_new_nodes"] == {"median": 12.0, "p90": 12.0, "max": 12.0}
    assert "| whole | 2 | 2 | 2 | 0 | 0 | 6.2 |" in render(summary)
