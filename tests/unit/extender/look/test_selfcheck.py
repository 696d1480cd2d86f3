"""The self-check and `/metrics` say when certificates expire, and the self-check what comes of it."""

from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from weakref import WeakSet

import pytest

from extender.lead.holding import HoldSwitch, Isolation
from extender.lead.leadership import Leadership
from extender.look.routes import Gauges, SelfCheck, describe_certificates
from serried.api.level import NATIVE
from serried.feed import Feed
from serried.ops import tls as certificates
from serried.ops.metrics import ExtenderMetrics
from serried.ops.tls import CertificateFiles, ReloadingContext, Use
from tests.support.builders import pod_group
from tests.support.certificates import Authority
from tests.support.composites import composite
from tests.support.extender_harness import Harness

NOW = 1_785_585_600.0
DAY = 86_400.0

REPLACE = "Replace the file; no restart is needed"
SERVING = "clients that verify it cannot connect"
CLIENTS = "no client can call filter and bind"

WARNINGS = {
    "in a month": (Use.SERVING, 30.0, ""),
    "in a little more than a week": (Use.SERVING, 7.1, ""),
    "in less than a week": (
        Use.SERVING,
        6.9,
        f"the certificate in --tls-cert-file expires in 6.9 days; then {SERVING}. {REPLACE}",
    ),
    "now": (Use.SERVING, 0.0, f"the certificate in --tls-cert-file has expired: {SERVING}. {REPLACE}"),
    "long ago": (Use.CLIENT_CA, -90.0, f"the certificate in --client-ca-file has expired: {CLIENTS}. {REPLACE}"),
}


@pytest.mark.parametrize(("use", "days", "warning"), WARNINGS.values(), ids=WARNINGS)
def test_a_certificate_has_a_warning_from_a_week_before_its_end(use: Use, days: float, warning: str) -> None:
    (found,) = describe_certificates({use: NOW + days * DAY}, NOW).values()
    assert found["warning"] == warning


def test_its_end_is_written_as_the_api_writes_times() -> None:
    assert describe_certificates({Use.SERVING: NOW}, NOW)["serving"]["expires"] == "2026-08-01T12:00:00Z"


class SelfcheckHarness:
    """An extender with TLS, as far as its state is shown."""

    def __init__(self, directory: Path) -> None:
        authority = Authority(directory)
        certificate, key = authority.sign("serried", age=timedelta(days=2))
        self.context = ReloadingContext(CertificateFiles(str(certificate), str(key), client_ca=str(authority.file)))
        self.core = Harness().core
        self.feed = Mock(spec=Feed, reflectors={}, followed=(), synced=Mock())
        self.isolation = Mock(spec=Isolation)
        self.isolation.list_unmarked.return_value = []
        self.leadership = Mock(spec=Leadership, active=True)


@pytest.fixture
async def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SelfcheckHarness:
    monkeypatch.setattr(certificates, "_IN_USE", WeakSet())
    return SelfcheckHarness(tmp_path)


def describe(harness: SelfcheckHarness) -> dict[str, Any]:
    holding = Mock(spec=HoldSwitch, mode="auto", way="filter", obstacle="")
    selfcheck = SelfCheck(
        harness.core,
        harness.feed,
        NATIVE,
        harness.leadership,
        holding=holding,
        isolation=harness.isolation,
        endpoint_slice=None,
    )
    return selfcheck.describe()


async def test_the_selfcheck_has_the_certificates_that_the_process_listens_with(harness: SelfcheckHarness) -> None:
    found = describe(harness)["certificates"]
    assert set(found) == {"serving", "client_ca"}
    assert "--tls-cert-file has expired" in found["serving"]["warning"]


async def test_it_has_the_trees_that_1_38_takes_for_invalid_a_hundred_at_most(harness: SelfcheckHarness) -> None:
    store = harness.core.store
    store.put_composite(composite("fine").gang(1).value())
    assert describe(harness)["treesInvalidIn138"] == {}
    for number in range(101):
        store.put_composite(composite(f"t{number}").gang(1).value())
        store.put_group(pod_group(f"g{number}").child_of(f"t{number}").value())
    found = describe(harness)["treesInvalidIn138"]
    assert len(found) == 100
    assert found["default/t7"] == "t7 is a gang, and g7 below it is basic"


async def test_a_scrape_finds_when_they_expire(harness: SelfcheckHarness) -> None:
    metrics = ExtenderMetrics()
    Gauges(
        harness.core, harness.feed, NATIVE, harness.isolation, leadership=harness.leadership, metrics=metrics
    ).sample()
    for use, expiry in harness.context.expiries.items():
        labels = {"certificate": use.value}
        name = "serried_certificate_expiry_timestamp_seconds"
        assert metrics.registry.get_sample_value(name, labels) == expiry
