"""The measurement itself, small: it runs, keeps its promises about gangs, and leaves nothing behind.

And one ratio that any machine shows, however busy: gangs are not much slower than plain pods.
"""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from bench import throughput
from bench.cluster import Cluster, state
from bench.contenders import ALL
from bench.load.objects import Load, make_gangs
from bench.load.run import clear, open_client, run_load
from tests.support.clusters import at_one_level

pytestmark = pytest.mark.e2e

ROUNDS = 3
PLAIN = Load(scheduler="default-scheduler", plain=100)
GANGS = Load(scheduler="serried", gangs=make_gangs(5, 20))


@at_one_level("fallback")
def test_gangs_start_at_a_third_of_the_rate_of_plain_pods_or_more(cluster: Cluster) -> None:
    """A timing is no test, so the margin is wide: one round of three is enough, and usual is 0.7 and more.

    It fails if gangs wait for a clock instead of an event: a flush of kube-scheduler's queue (up to 5 minutes), a rest
    of a second that each gang takes, or commits that wait for each other. How fast gangs are is for `make bench`.
    """
    assert any(asyncio.run(compare(cluster, number)) >= 0.3 for number in range(ROUNDS))


async def compare(cluster: Cluster, number: int) -> float:
    """Gangs' pods per second over plain pods', one after the other."""
    rates = []
    async with open_client(cluster.kubeconfig) as client:
        for name, load in (("plain", PLAIN), ("gangs", GANGS)):
            named = replace(load, run=f"{name}-{number}", link=cluster.spec.api)
            figures = await run_load(client, named, {}, seconds=120)
            await clear(client, cluster.spec.api)
            assert figures.bound == load.pods
            rates.append(figures.pods_per_second)
    return rates[1] / rates[0]


@pytest.mark.full
def test_a_quick_run_measures_all_contenders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(state.STATE, str(tmp_path / "state"))

    code = throughput.main(["--quick", "--filled", "30", "--results", str(tmp_path), "--date", "2026-01-01"])

    result = json.loads((tmp_path / "throughput-2026-01-01.json").read_text())
    assert code == 0
    assert {row["contender"] for row in result["summary"]} == {contender.name for contender in ALL}
    assert all(row["unbound"] == row["split_gangs"] == 0 for row in result["summary"])
    assert len(result["ratios"]) == 4
    assert [sorted(shares) for shares in result["shares"].values()] == [["plain-asked", "plain-isolated"]] * 2
    assert "| 5 gangs of 20 | serried |" in capsys.readouterr().out
    assert state.places() == []
