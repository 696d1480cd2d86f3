"""The page on reliability is the one that the newest soak has."""

import json
from pathlib import Path

from bench import reliability
from bench.quotes.results import Results


def test_the_page_is_made_from_the_newest_result() -> None:
    assert reliability.PAGE.read_text() == reliability.render()


def test_the_page_names_every_violation(tmp_path: Path) -> None:
    found = Results(reliability.RESULTS).read(reliability.NAME)
    changed = {**found, "violations": ["half bound: chaos/g"], "totals": {**found["totals"], "violations": 1}}
    (tmp_path / "soak-2026-01-01.json").write_text(json.dumps(changed))
    assert "- `half bound: chaos/g`" in reliability.render(tmp_path)
    assert "| violations | 1 |" in reliability.render(tmp_path)


FORCE = {"half bound": 400, "overlooked": 45}


def test_the_page_says_for_how_long_each_rule_was_in_force_and_for_which_that_is_too_short(tmp_path: Path) -> None:
    found = Results(reliability.RESULTS).read(reliability.NAME)
    changed = {**found, "in_force_seconds": FORCE, "hardly_in_force": ["overlooked"]}
    for name in (reliability.NAME, reliability.STEADY):
        (tmp_path / f"{name}-2026-01-01.json").write_text(json.dumps(changed))
    page = reliability.render(tmp_path)
    assert "| half bound | 400 |" in page
    assert "| overlooked | 45 |" in page
    assert page.count("so this run says little about them:\noverlooked.") == len(list(tmp_path.iterdir()))


def test_a_run_in_which_every_rule_was_long_in_force_needs_no_such_word(tmp_path: Path) -> None:
    found = Results(reliability.RESULTS).read(reliability.NAME)
    changed = {**found, "in_force_seconds": {"half bound": 400}, "hardly_in_force": []}
    (tmp_path / "soak-2026-01-01.json").write_text(json.dumps(changed))
    assert "says little" not in reliability.render(tmp_path)


def test_the_page_says_which_run_has_judged_whose_memory(tmp_path: Path) -> None:
    found = Results(reliability.RESULTS).read(reliability.NAME)
    (tmp_path / "soak-2026-01-01.json").write_text(json.dumps({**found, "growth_judged": []}))
    alone = reliability.render(tmp_path)
    assert "`make soak` judged the memory of: none." in alone
    assert "There is no result of `make soak-steady`." in alone
    steady = {**found, "growth_judged": ["extender", "controller"]}
    (tmp_path / "soak-steady-2026-01-01.json").write_text(json.dumps(steady))
    assert "`make soak-steady` judged the memory of: extender, controller." in reliability.render(tmp_path)


def test_the_page_has_what_newer_soaks_measure(tmp_path: Path) -> None:
    found = Results(reliability.RESULTS).read(reliability.NAME)
    faults = {
        **found["faults"],
        "clocks": 9,
        "cluster_at_writes": dict.fromkeys(found["faults"]["cluster"], 7),
        "ambushes": {"POST binding": {"before": {"node deleted": 2, "Job deleted": 3}, "after": {}}},
    }
    changed = {**found, "preempted": 12, "faults": faults}
    for name in (reliability.NAME, reliability.STEADY, reliability.FALLBACK):
        (tmp_path / f"{name}-2026-01-01.json").write_text(json.dumps(changed))
    tight = {"refused_by_kubelets": {"OutOfcpu": 0}, "plain_wait_seconds": {"count": 56}}
    (tmp_path / f"{reliability.TIGHT}-2026-01-01.json").write_text(json.dumps({**changed, **tight}))
    page = reliability.render(tmp_path)
    assert "| plain pods that were bound | 56 |" in page
    assert "| pods that a kubelet refused (`OutOfcpu`) | 0 |" in page
    assert "| pods evicted for a gang of higher priority | 12 |" in page
    assert "| times that wall clocks were set | 9 |" in page
    assert "| fault | at random | at a write |" in page
    assert "| POST binding | 5 | 0 |" in page
    assert "## At the fallback level" in page
    assert "older than the checks" not in page
