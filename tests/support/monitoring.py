"""Read the shipped alerts and dashboard in the forms that Prometheus and Grafana accept."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

SHIPPED = Path(__file__).resolve().parents[2] / "manifests" / "kustomize" / "monitoring"

needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="neither prometheus nor promtool is installed: apt-get install prometheus",
)


def read_rules() -> list[dict[str, Any]]:
    """Return the shipped alerts, as Prometheus rules."""
    (group,) = read_rule_file()["groups"]
    rules: list[dict[str, Any]] = group["rules"]
    return rules


def read_rule_file() -> dict[str, Any]:
    """Return the shipped alerts in the form of a rule file of Prometheus."""
    spec: dict[str, Any] = yaml.safe_load((SHIPPED / "rules.yaml").read_text())["spec"]
    return spec


def list_queries() -> Iterator[str]:
    """Yield every query of the dashboard and the alerts as valid PromQL (Grafana's variables are replaced)."""
    for panel in json.loads((SHIPPED / "dashboard.json").read_text())["panels"]:
        for target in panel["targets"]:
            yield target["expr"].replace("$__rate_interval", "1m")
    for rule in read_rules():
        yield rule["expr"]


def find_metrics(query: str) -> set[str]:
    """Return the names of Serried's metrics in a query, without suffixes such as _bucket."""
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in re.findall(r"\bserried_\w+", query)}
