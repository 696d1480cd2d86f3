"""What a soak measures: memory that grows is told, and what is flat is not."""

import pytest

from tests.chaos.measures import Sample, find_growth, sum_metric, summarize_memory, thin

METRICS = """# HELP serried_groups PodGroups by state.
# TYPE serried_groups gauge
serried_groups{state="NoCapacity"} 2.0
serried_groups{state="planned"} 1.0
serried_vacancies 3.0
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


def test_memory_is_told_in_parts() -> None:
    rows = list(summarize_memory(run([80.0] * 30 + [82.0] * 30), parts=2))
    assert [row["extender"] for row in rows] == [80.0, 82.0]
    assert rows[1]["minute"] == pytest.approx(9.8)
    assert list(summarize_memory([])) == []


def test_a_gauge_is_summed_over_its_labels() -> None:
    assert sum_metric(METRICS, "serried_groups") == 3.0
    assert sum_metric(METRICS, "serried_vacancies") == 3.0
    assert sum_metric(METRICS, "serried_held_pods") == 0.0


def test_of_many_rows_some_are_kept_and_the_last_one() -> None:
    kept = thin([{"second": float(at)} for at in range(100)])
    assert len(kept) == 9
    assert kept[-1] == {"second": 99.0}
    assert thin([]) == []
