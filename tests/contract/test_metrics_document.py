"""docs/metrics.md names every metric there is, with its type and labels, and no other."""

import pytest
from prometheus_client import CollectorRegistry

from bench import metrics
from serried.ops.metrics import ControllerMetrics, ExtenderMetrics

REGISTRIES = {"extender": ExtenderMetrics().registry, "controller": ControllerMetrics().registry}
REGISTERED = [each for registry in REGISTRIES.values() for each in metrics.list_metrics(registry)]


def test_the_page_is_made_from_the_metrics_of_today() -> None:
    assert metrics.PAGE.read_text() == metrics.render(), "python -m bench.metrics --write"


@pytest.mark.parametrize("process", REGISTRIES)
def test_what_a_process_serves_is_on_the_page(process: str) -> None:
    page = metrics.render()
    assert all(f"| `{name}` | {kind} |" in page for name, kind in served(REGISTRIES[process]))


def served(registry: CollectorRegistry) -> set[tuple[str, str]]:
    """Names and types as `/metrics` has them."""
    families = registry.collect()
    return {(f"{each.name}_total" if each.type == "counter" else each.name, each.type) for each in families}


def test_every_metric_says_what_it_tells() -> None:
    assert [metric.name for metric in REGISTERED if not metric.text] == []


def test_every_metric_has_a_unit_and_ours_have_an_alert() -> None:
    assert {metric.name for metric in REGISTERED} == set(metrics.REMARKS)
    assert all(remark.unit for remark in metrics.REMARKS.values())
    alerted = {name for name, remark in metrics.REMARKS.items() if remark.alert}
    assert {name for name in metrics.REMARKS if name.startswith(metrics.OUR_PREFIX)} <= alerted


def test_the_operations_page_leads_to_it() -> None:
    assert "](metrics.md)" in metrics.PAGE.with_name("operations.md").read_text()
