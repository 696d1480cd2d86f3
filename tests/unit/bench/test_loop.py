"""The loop benchmark: the times of other gangs, while an odd one is planned, are of gangs that were planned."""

import asyncio

import pytest

from bench import loop


def test_small_gangs_of_others_are_planned_and_their_times_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "_NODES", 100)
    monkeypatch.setattr(loop, "_SMALL_INTERVAL", 0.02)
    monkeypatch.setattr(loop, "_WARM_UP", 0.0)
    monkeypatch.setattr(loop, "_SECONDS", 0.5)
    run = asyncio.run(loop.watch(loop.Case("nothing odd", lambda _: None, 200)))
    assert run.plans["Planned"] >= len(run.small) > 0
    assert run.waits
