"""The alerts go off when they should, and alerts and dashboard name metrics that there are."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.links import ROOT, find_anchors
from bench.metrics import RUNBOOK
from serried.ops.metrics import ControllerMetrics, ExtenderMetrics
from tests.support.monitoring import SHIPPED, find_metrics, list_queries, needs_prometheus, read_rule_file, read_rules

FIRES = {
    "SerriedNobodyActive": {"serried_active": "0x90"},
    "SerriedFilterSlow": {
        'serried_verb_seconds_bucket{verb="filter",le="0.05"}': "0+1x90",
        'serried_verb_seconds_bucket{verb="filter",le="0.1"}': "0+60x90",
        'serried_verb_seconds_bucket{verb="filter",le="+Inf"}': "0+60x90",
    },
    "SerriedGangPartial": {"serried_partial_gangs": "1x90"},
    "SerriedRecordsUnwritten": {'serried_groups{state="RecordFailed"}': "1x90"},
    "SerriedDeadlinesExceeded": {'serried_groups{state="DeadlineExceeded"}': "2x90"},
    "SerriedBindingStuck": {
        'serried_groups{state="Binding"}': "1x90",
        'serried_bindings_total{result="Bound"}': "7x90",
    },
    "SerriedBoundElsewhere": {'serried_bindings_total{result="BoundElsewhere"}': "0+1x90"},
    "SerriedBindingsFail": {
        'serried_bindings_total{result="Failed"}': "0+2x90",
        'serried_bindings_total{result="Bound"}': "0+98x90",
    },
    "SerriedDomainConflict": {'serried_plans_total{outcome="DomainConflict"}': "0+1x90"},
    "SerriedReservationOld": {"serried_oldest_reservation_seconds": "0+60x90"},
    "SerriedWatchBroken": {'serried_watch_restarts_total{resource="pods",cause="forbidden"}': "0+1x90"},
    "SerriedWatchSilent": {'serried_watch_silent_seconds{resource="pods"}': "0+60x90"},
    "SerriedApiErrors": {'serried_api_errors_total{method="POST",status="503"}': "0+120x90"},
    "SerriedMalformedObjects": {'serried_malformed_objects_total{resource="pods"}': "0+1x90"},
    "SerriedReplacementsLost": {
        'serried_repairs_total{outcome="Lost"}': "0+1x90",
        'serried_repairs_total{outcome="SameNode"}': "0+4x90",
    },
    "SerriedCertificateExpired": {'serried_certificate_expiry_timestamp_seconds{certificate="serving"}': "4799x90"},
    "SerriedCertificateExpiresSoon": {
        'serried_certificate_expiry_timestamp_seconds{certificate="client_ca"}': "604799x90"
    },
    "SerriedNoControllerActive": {"serried_controller_active": "0x90"},
    "SerriedControllerErrors": {'serried_job_syncs_total{result="error"}': "0+1x90"},
    "SerriedWorkloadsRefused": {'serried_job_gang_workload_creation_total{result="error"}': "0+1x90"},
    "SerriedControllerBehind": {"serried_controller_queue_length": "1001x90"},
}

STUCK = {'serried_groups{state="Binding"}': "1x90"}

FIRES_ALSO = [
    pytest.param(
        "SerriedBindingStuck",
        {
            **STUCK,
            'serried_bindings_total{result="Bound"}': "7x90",
            'serried_bindings_total{result="Failed"}': "0+12x90",
        },
        id="every Binding is refused, and tried again and again",
    ),
    pytest.param(
        "SerriedBindingStuck",
        {**STUCK, 'serried_bindings_total{result="Failed"}': "0+12x90"},
        id="no Binding of this extender ever got through",
    ),
    pytest.param("SerriedBindingStuck", STUCK, id="no Binding was ever sent"),
    pytest.param("SerriedNobodyActive", {"serried_controller_active": "1x90"}, id="no extender runs"),
    pytest.param("SerriedNoControllerActive", {"serried_active": "1x90"}, id="no controller runs"),
]

HEALTHY = {
    "serried_active": "1x90",
    'serried_verb_seconds_bucket{verb="filter",le="0.05"}': "0+60x90",
    'serried_verb_seconds_bucket{verb="filter",le="+Inf"}': "0+60x90",
    "serried_partial_gangs": "0x90",
    'serried_groups{state="Binding"}': "1x90",
    'serried_groups{state="NoCapacity"}': "40x90",
    'serried_bindings_total{result="Bound"}': "0+98x90",
    'serried_plans_total{outcome="Planned"}': "0+1x90",
    "serried_oldest_reservation_seconds": "20x90",
    'serried_watch_restarts_total{resource="pods",cause="scheduled"}': "0+1x90",
    'serried_watch_silent_seconds{resource="pods"}': "60x90",
    'serried_api_errors_total{method="POST",status="409"}': "0+120x90",
    'serried_repairs_total{outcome="SameNode"}': "0+4x90",
    'serried_job_syncs_total{result="success"}': "0+9x90",
    'serried_certificate_expiry_timestamp_seconds{certificate="serving"}': "609700x90",
    'serried_controller_active{pod="a"}': "1x90",
    'serried_controller_active{pod="b"}': "0x90",
    "serried_controller_queue_length": "3x90",
}


def test_each_alert_is_tried() -> None:
    assert list(FIRES) == [rule["alert"] for rule in read_rules()]


@pytest.mark.parametrize("rule", read_rules(), ids=lambda rule: rule["alert"])
def test_an_alert_leads_to_the_heading_that_says_what_to_do(rule: dict[str, Any]) -> None:
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert page == RUNBOOK
    assert anchor in find_anchors(ROOT / "docs" / "troubleshooting.md")


@needs_prometheus
@pytest.mark.parametrize("alert", FIRES)
def test_an_alert_goes_off(tmp_path: Path, alert: str) -> None:
    assert not is_silent(tmp_path, [alert], FIRES[alert])


@needs_prometheus
@pytest.mark.parametrize(("alert", "series"), FIRES_ALSO)
def test_an_alert_goes_off_where_less_is_told(tmp_path: Path, alert: str, series: dict[str, str]) -> None:
    assert not is_silent(tmp_path, [alert], series)


@needs_prometheus
def test_no_alert_goes_off_where_all_is_well(tmp_path: Path) -> None:
    assert is_silent(tmp_path, list(FIRES), HEALTHY)


def test_alerts_and_dashboard_name_metrics_that_there_are() -> None:
    names = set()
    for metrics in (ExtenderMetrics(), ControllerMetrics()):
        for family in metrics.registry.collect():
            names.add(f"{family.name}_total" if family.type == "counter" else family.name)
    used = {name for query in list_queries() for name in find_metrics(query)}
    assert len(used) > 20
    assert used - names == set()


def test_each_panel_says_what_it_shows_and_has_a_place_of_its_own() -> None:
    panels = json.loads((SHIPPED / "dashboard.json").read_text())["panels"]
    assert all(panel["title"] and panel["targets"] for panel in panels)
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(places)) == len(panels)


def test_each_line_of_a_panel_has_its_unit() -> None:
    for panel in json.loads((SHIPPED / "dashboard.json").read_text())["panels"]:
        config = panel["fieldConfig"]
        own = {each["matcher"]["options"]: each["properties"][0]["value"] for each in config["overrides"]}
        for target in panel["targets"]:
            unit = own.get(target["refId"], config["defaults"]["unit"])
            assert unit == find_unit(target["expr"]), (panel["title"], target["refId"])


def find_unit(query: str) -> str:
    """The unit of what a query of the dashboard gives, as Grafana names it."""
    if "cpu" in query:
        return "suffix: cores"
    if "_bytes" in query:
        return "bytes"
    if "_seconds" in query:
        return "s"
    return "ops" if re.search(r"rate\(serried_(bindings|api)_", query) else "short"


def is_silent(directory: Path, alerts: list[str], series: dict[str, str]) -> bool:
    """Return whether none of these alerts fires after 80 minutes with a sample of each series every minute."""
    rules = directory / "rules.yml"
    rules.write_text(yaml.safe_dump(read_rule_file()))
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": [{"eval_time": "80m", "alertname": alert, "exp_alerts": []} for alert in alerts],
    }
    story = directory / "story.yml"
    story.write_text(yaml.safe_dump({"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": [test]}))
    done = subprocess.run(["promtool", "test", "rules", str(story)], capture_output=True, text=True, check=False)
    assert done.returncode == 0 or "exp:[]" in done.stdout + done.stderr, done.stderr
    return done.returncode == 0
