"""Measures of a soak: growing memory is reported, steady memory is not."""

from typing import Any
from unittest.mock import Mock

import httpx
import pytest

from serried.ops.metrics import ControllerMetrics, ExtenderMetrics
from tests.chaos import measures
from tests.chaos.measures import (
    DONE_AT_REST,
    GONE_AT_REST,
    Measures,
    Sample,
    find_growth,
    list_judged,
    sum_metric,
    summarize_memory,
    thin,
)

METRICS = """# HELP serried_groups PodGroups by state.
# TYPE serried_groups gauge
serried_groups{state="NoCapacity"} 2.0
serried_groups{state="planned"} 1.0
# TYPE serried_vacancies gauge
serried_vacancies 3.0
# TYPE serried_reservations gauge
serried_groups_total 9.0
"""


def run(memory: list[float], restart: int = 0) -> list[Sample]:
    """A sample each ten seconds; the process of the first ``restart`` samples is another one."""
    return [
        Sample(10.0 * at, dict.fromkeys(("extender", "controller", "scheduler"), 1 if at < restart else 2), each)
        for at, mib in enumerate(memory)
        for each in [dict.fromkeys(("extender", "controller", "scheduler"), mib)]
    ]


@pytest.mark.parametrize(
    ("samples", "grows"),
    [
        pytest.param(run([80.0] * 60), False, id="it stays as it was"),
        pytest.param(run([50.0] * 10 + [80.0] * 50), False, id="it has filled its caches at first"),
        pytest.param(run([80.0, 90.0] * 30), False, id="it goes up and down"),
        pytest.param(run([80.0 + at / 2 for at in range(60)]), True, id="it grows all the time"),
        pytest.param(run([80.0] * 40 + [90.0] * 20), True, id="it is larger in the end"),
        pytest.param(run([80.0 + at for at in range(20)]), False, id="too short a time to say so"),
        pytest.param(run([10.0] * 45 + [80.0] * 15, restart=45), False, id="it was started again a while ago"),
        pytest.param(run([99.0] * 20 + [80.0 + at for at in range(40)], restart=20), True, id="and has grown since"),
        pytest.param([], False, id="nobody looked"),
    ],
)
def test_memory_is_flat_or_it_grows(samples: list[Sample], grows: bool) -> None:  # noqa: FBT001 - of a table
    assert bool(list(find_growth(samples, "extender"))) is grows


@pytest.mark.parametrize(
    ("samples", "judged"),
    [
        pytest.param(run([80.0] * 60), 60, id="it has lived all the time"),
        pytest.param(run([80.0] * 60, restart=20), 40, id="it was started again early"),
        pytest.param(run([80.0] * 60, restart=45), 0, id="it was started again late"),
        pytest.param([], 0, id="nobody looked"),
    ],
)
def test_a_process_is_judged_by_its_last_life_if_that_is_long_enough(samples: list[Sample], judged: int) -> None:
    assert len(list_judged(samples, "extender")) == judged


def test_memory_is_told_in_parts() -> None:
    rows = list(summarize_memory(run([80.0] * 30 + [82.0] * 30), parts=2))
    assert [row["extender"] for row in rows] == [80.0, 82.0]
    assert rows[1]["minute"] == pytest.approx(9.8)
    assert list(summarize_memory([])) == []


def test_a_gauge_is_summed_over_its_labels() -> None:
    assert sum_metric(METRICS, "serried_groups") == 3.0
    assert sum_metric(METRICS, "serried_vacancies") == 3.0
    assert sum_metric(METRICS, "serried_reservations") == 0.0


def test_a_gauge_that_is_not_there_is_not_taken_for_none() -> None:
    with pytest.raises(ValueError, match="there is no gauge serried_group"):
        sum_metric(METRICS, "serried_group")


@pytest.mark.parametrize("name", [*GONE_AT_REST, "serried_groups"])
def test_what_is_compared_at_rest_the_extender_serves(name: str) -> None:
    assert sum_metric(ExtenderMetrics().render().decode(), name) == 0.0


@pytest.mark.parametrize("name", DONE_AT_REST)
def test_what_is_to_be_done_the_controller_serves(name: str) -> None:
    assert sum_metric(ControllerMetrics().render().decode(), name) == 0.0


AT_REST = "".join(
    f"# TYPE serried_{name} gauge\nserried_{name} {count}\n"
    for name, count in {"groups": 1, "vacancies": 0, "reservations": 0, "partial_gangs": 0}.items()
)
DONE = "# TYPE serried_controller_queue_length gauge\nserried_controller_queue_length 0\n"
BUSY = DONE.replace("length 0", "length 1")
SAME: dict[str, Any] = {"kind": "pods", "missing": [], "extra": [], "stale": [], "leftOff": 0, "error": ""}


@pytest.mark.parametrize(
    ("status", "kind", "metrics", "controller", "complaint"),
    [
        pytest.param(200, SAME, AT_REST, DONE, "", id="nothing beside what there is"),
        pytest.param(
            200, SAME | {"extra": ["a/b"]}, AT_REST, DONE, "pods are not those of the API server", id="one too many"
        ),
        pytest.param(
            200, SAME | {"error": "no"}, AT_REST, DONE, "pods are not those of the API server", id="not compared"
        ),
        pytest.param(500, SAME, AT_REST, DONE, "do not say what they remember", id="no answer"),
        pytest.param(
            200, SAME, AT_REST.replace("vacancies 0", "vacancies 2"), DONE, "vacancies is 2 at rest", id="a vacancy"
        ),
        pytest.param(200, SAME, "", DONE, "do not say what they remember", id="no metrics"),
        pytest.param(200, SAME, AT_REST, BUSY, "serried_controller_queue_length is 1", id="a Job to look at"),
    ],
)
def test_what_is_remembered_at_rest_is_compared(
    monkeypatch: pytest.MonkeyPatch, status: int, kind: dict[str, Any], metrics: str, controller: str, complaint: str
) -> None:
    def get(url: str, **_: object) -> httpx.Response:
        request = httpx.Request("GET", url)
        if url.endswith("/metrics"):
            return httpx.Response(200, text=controller if "controller" in url else metrics, request=request)
        return httpx.Response(status, json={"kinds": [kind]}, request=request)

    monkeypatch.setattr(httpx, "get", get)
    monkeypatch.setattr(measures, "_EQUAL_SECONDS", 0.0)
    urls = {"debug_url": "http://extender/look", "metrics_url": "http://extender/metrics"}
    cluster = Mock(**urls, controller_url="http://controller")
    complaints: list[str] = []
    Measures(cluster, complaints.append).compare(1)
    assert len(complaints) == bool(complaint)
    assert all(complaint in each for each in complaints)


def test_of_many_rows_some_are_kept_and_the_last_one() -> None:
    kept = thin([{"second": float(at)} for at in range(100)])
    assert len(kept) == 9
    assert kept[-1] == {"second": 99.0}
    assert thin([]) == []
