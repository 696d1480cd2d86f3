"""A storm: what it does to whom, and that the calm after it ends all but the faults of watches."""

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

from tests.chaos import storm
from tests.chaos.aims import ANYBODY, Aim
from tests.chaos.excuses import SILENCE
from tests.chaos.mishaps import Request, Weather
from tests.chaos.rules import FIT_SECONDS
from tests.chaos.soak import sort_ambushes
from tests.chaos.storm import KINDS, Plan, Storm

QUICK = {"storm": 0.05, "quiet": 0.0, "snare": 0.0, "still": 0.0, "pause": (0.0, 0.002)}
BINDING = Request("POST", "/api/v1/namespaces/chaos-1/pods/keyed-00001-0/binding", b'{"target":{"name":"n1"}}')


class Way:
    """A proxy without clients."""

    def __init__(self) -> None:
        self.weather = Weather(Random(1))
        self.trap: Any = None
        self.silences: list[float] = []

    def silence(self, seconds: float) -> None:
        self.silences.append(seconds)


class World:
    """Processes and a cluster to which nothing happens: it is only noted. They are well if they may be."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()
        self.aims: list[Aim] = []
        self.kinds = {"node deleted": None, "PodGroup deleted": None}
        self.well = True

    def kill(self, name: str) -> bool:
        self.done[f"kill {name}"] += 1
        return True

    def freeze(self, name: str, seconds: float) -> bool:
        self.done["freeze" if seconds < 15 else f"long freeze of {name}"] += 1
        assert 0.3 <= seconds <= 20.0
        return True

    def do(self, kind: str, aim: Aim = ANYBODY) -> bool:
        self.done[kind] += 1
        self.aims.append(aim)
        return True

    def jump(self, seconds: float, lasting: float) -> None:
        self.done[f"clocks {'back' if seconds < 0 else 'ahead'}"] += 1
        assert 0.3 <= lasting <= 4.0

    def set_right(self) -> None:
        """Do nothing: the clocks are always right."""

    def repair(self) -> bool:
        return True

    def tidy(self) -> None:
        self.done["tidy"] += 1

    def forgive(self) -> None:
        self.done["forgive"] += 1

    def await_well(self, _seconds: float) -> bool:
        return self.well


class Stage:
    """A storm over such a world."""

    def __init__(self, *kinds: str, **times: float) -> None:
        self.world = World()
        self.proxies = {"extender": Way(), "controller": Way(), "scheduler": Way()}
        self.complaints: list[str] = []
        self.notes: list[tuple[str, str]] = []
        anything = cast("Any", self.world)
        self.storm = Storm(
            Plan(seed=1, rounds=1, kinds=kinds, **cast("Any", QUICK | times)),
            cast("Any", None),
            proxies=cast("Any", self.proxies),
            processes=anything,
            faults=anything,
            clocks=anything,
            source=Random(3),
            directory=Path(),
            note=lambda what, about: self.notes.append((what, about)),
            complain=self.complaints.append,
        )

    @property
    def weather(self) -> set[tuple[float, float]]:
        return {(way.weather.requests, way.weather.changes) for way in self.proxies.values()}

    def rage(self, until: Callable[[], bool] = lambda: True) -> None:
        """A storm, and more of them until something has happened."""
        deadline = time.monotonic() + 30
        self.storm.rage(0, lambda: None)
        while not until():
            assert time.monotonic() < deadline
            self.storm.rage(0, lambda: None)


@pytest.mark.parametrize(
    ("kinds", "done"),
    [
        pytest.param(("cluster",), {"node deleted", "PodGroup deleted"}, id="only the cluster"),
        pytest.param(("freezes",), {"freeze"}, id="only standing still"),
        pytest.param(("clocks",), {"clocks back", "clocks ahead"}, id="only clocks"),
        pytest.param(
            ("kills",),
            {f"kill {name}" for name in ("extender", "controller", "scheduler", "kube-apiserver", "etcd")},
            id="only deaths",
        ),
        pytest.param((), set(), id="nothing"),
    ],
)
def test_only_what_is_chosen_happens(kinds: tuple[str, ...], done: set[str]) -> None:
    stage = Stage(*kinds)
    stage.rage(lambda: set(stage.world.done) >= done)
    assert set(stage.world.done) == done
    assert stage.weather == {(0.0, 0.0)}


def test_a_soak_has_faults_of_all_kinds_unless_some_are_left_out() -> None:
    stage = Stage(*(kind for kind in Plan(seed=1, rounds=1).kinds if kind != "split"))
    wanted = {"kill extender", "freeze", "clocks back", "clocks ahead", "node deleted"}
    stage.rage(lambda: set(stage.world.done) >= wanted)
    assert stage.weather == {(0.12, 0.25)}


def test_in_a_storm_all_fails_and_in_the_calm_watches_alone() -> None:
    stage = Stage(*(kind for kind in KINDS if kind != "split"))
    stage.rage()
    assert stage.weather == {(0.12, 0.25)}
    stage.storm.calm_down(0, lambda: None)
    assert stage.weather == {(0.0, 0.25)}
    assert stage.proxies["extender"].trap is None
    assert stage.world.done["tidy"] == stage.world.done["forgive"] == 1
    stage.storm.end()
    assert stage.weather == {(0.0, 0.0)}
    assert stage.complaints == []


def test_each_eighth_calm_is_without_any_fault_and_longer_than_a_gang_that_fits_may_wait() -> None:
    stage = Stage("proxy")
    found = []
    for number in range(16):
        stage.storm.calm_down(number, lambda: None)
        found.append(stage.weather == {(0.0, 0.0)})
    assert found == ([False] * 7 + [True]) * 2
    assert Plan(seed=1, rounds=1).still > FIT_SECONDS


def test_a_still_calm_lasts_its_own_time() -> None:
    stage = Stage("proxy", still=0.1, quiet=60.0)
    begun = time.monotonic()
    stage.storm.calm_down(7, lambda: None)
    assert time.monotonic() - begun >= 0.1


def test_a_process_that_stays_down_is_complained_of() -> None:
    stage = Stage("kills")
    stage.world.well = False
    stage.storm.calm_down(0, lambda: None)
    assert stage.complaints == ["a process did not become ready again"]


def test_an_ambush_strikes_those_whom_a_write_is_about_and_lets_it_go_on() -> None:
    stage = Stage("cluster")
    stage.rage(lambda: stage.proxies["extender"].trap is not None)
    trap = stage.proxies["extender"].trap
    assert not trap.resets
    stage.world.aims.clear()
    trap.spring(BINDING)
    assert stage.world.aims == [Aim("chaos-1", "keyed-00001-0", ("n1",))]
    [((write, moment, kind), number)] = stage.storm.ambushed.items()
    assert (write.split()[0], moment, number) == (trap.method, "after" if trap.after else "before", 1)
    assert sort_ambushes(stage.storm.ambushed)[write][moment] == {kind: 1}


def test_the_extender_is_killed_at_the_ends_of_victims_too() -> None:
    stage = Stage("kills")
    laid: set[tuple[str, str]] = set()

    def look() -> bool:
        if (trap := stage.proxies["extender"].trap) is not None:
            laid.add((trap.method, trap.part))
            trap.sprung = True
        return ("DELETE", "/pods/") in laid

    stage.rage(look)


def test_a_trap_whose_write_does_not_come_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage("kills")
    stage.rage(lambda: stage.proxies["extender"].trap is not None)
    trap = stage.proxies["extender"].trap
    monkeypatch.setattr(storm, "_AWAITED_SECONDS", 0.0)
    stage.rage(lambda: stage.proxies["extender"].trap is not trap)


def test_a_trap_kills_the_extender_at_a_write_and_stays_until_then() -> None:
    stage = Stage("kills")
    stage.rage(lambda: stage.proxies["extender"].trap is not None)
    trap = stage.proxies["extender"].trap
    stage.rage()
    assert stage.proxies["extender"].trap is trap
    trap.spring(BINDING)
    trap.sprung = True
    assert sum(stage.storm.trapped.values()) == 1
    stage.rage(lambda: stage.proxies["extender"].trap is not trap)


def test_a_storm_begins_with_a_death_at_a_write_and_a_strike_at_one_that_it_waits_for() -> None:
    stage = Stage("kills", "cluster", snare=60.0, storm=0.0)
    proxy, laid = stage.proxies["extender"], []

    def write() -> None:
        laid.append(proxy.trap.resets)
        proxy.trap.sprung = True

    stage.storm.rage(0, write)
    assert laid == [True, False]


def test_a_storm_waits_for_other_writes_where_one_does_not_come_and_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(storm, "_REDRAW_SECONDS", 0.01)
    stage, traps = Stage("kills", snare=3.0, storm=0.0), []
    stage.storm.rage(0, lambda: traps.append(stage.proxies["extender"].trap))
    assert len({(trap.method, trap.part) for trap in traps}) > 1


def test_in_each_eighth_storm_one_that_has_a_lease_stands_still_for_longer_than_that_lasts() -> None:
    stage = Stage("freezes", storm=0.0)
    for number in range(24):
        stage.storm.rage(number, lambda: None)
    leased = ("extender", "controller", "scheduler")
    assert stage.world.done == {f"long freeze of {name}": 1 for name in leased}
    assert stage.storm.long_freezes == 3


def test_a_process_that_stands_still_for_long_is_not_killed_meanwhile() -> None:
    stage = Stage("kills", "freezes", storm=0.5)
    stage.storm.rage(4, lambda: None)
    assert stage.world.done["long freeze of extender"] == 1
    assert stage.world.done["kill controller"] > 0
    assert "kill extender" not in stage.world.done


def test_in_each_eighth_storm_no_watch_shows_anything_until_its_calm_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storm, "_SILENT_SECONDS", 0.2)
    stage = Stage("proxy", storm=0.0)
    for number in range(7):
        stage.storm.rage(number, lambda: None)
    assert stage.proxies["extender"].silences == [0.2]
    assert stage.notes == [("fall", SILENCE)]
    begun = time.monotonic()
    stage.storm.calm_down(6, lambda: None)
    assert stage.notes == [("fall", SILENCE), ("rise", SILENCE)]
    assert time.monotonic() - begun > 0.1
