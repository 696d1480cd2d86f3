"""docs/metrics.md names every metric there is, with its type and labels, and no other."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from prometheus_client import CollectorRegistry

from serried.observe.metrics import ControllerMetrics, ExtenderMetrics, Metrics

DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"
COMMON, ITSELF = "Both processes", "The processes themselves"
SECTIONS = {"Extender": ExtenderMetrics, "Controller": ControllerMetrics}


class Row(NamedTuple):
    """One metric, as the document or a registry has it."""

    name: str
    type: str
    labels: frozenset[str]


def read_cells() -> Iterator[tuple[str, list[str]]]:
    """Each row of each table with the heading above it."""
    section = ""
    for line in DOCUMENT.read_text().splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        elif line.startswith("| `"):
            yield section, [cell.strip() for cell in line.strip("|").split("|")]


def documented(*sections: str) -> set[Row]:
    return {
        Row(cells[0].strip("`"), cells[1], frozenset(cells[2].replace("`", "").replace(",", " ").split()))
        for section, cells in read_cells()
        if section in sections
    }


def registered(registry: CollectorRegistry) -> set[Row]:
    rows = set()
    for collector in registry._collector_to_names:  # noqa: SLF001 - it says nowhere else which labels are declared
        for family in collector.collect():
            name = f"{family.name}_total" if family.type == "counter" else family.name
            labels = {label for sample in family.samples for label in sample.labels} - {"le"}
            rows.add(Row(name, family.type, frozenset(getattr(collector, "_labelnames", labels))))
    return rows


@pytest.mark.parametrize("section", SECTIONS)
def test_the_document_names_the_metrics_of_a_process_and_no_others(section: str) -> None:
    metrics: Metrics = SECTIONS[section]()
    assert documented(COMMON, section, ITSELF) == registered(metrics.registry)


def test_what_both_have_stands_in_one_place() -> None:
    assert documented(COMMON, ITSELF) == registered(Metrics().registry)


def test_every_metric_has_a_unit_and_a_meaning_and_ours_have_an_alert() -> None:
    for section, cells in read_cells():
        name, _, _, unit, tells, alert = cells
        assert unit, name
        assert tells, name
        assert alert or section == ITSELF, name


def test_the_operations_page_leads_to_it() -> None:
    assert "](metrics.md)" in DOCUMENT.with_name("operations.md").read_text()
