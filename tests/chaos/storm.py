"""Faults of all kinds, one after the other, while the weather is bad; and the calm after them."""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

from bench.cluster import Cluster
from bench.cluster.cluster import AnyName
from bench.cluster.components import Name
from tests.chaos.aims import read_aim
from tests.chaos.clock_faults import ClockFaults
from tests.chaos.cluster_faults import ClusterFaults
from tests.chaos.excuses import SILENCE, SPLIT_BRAIN
from tests.chaos.mishaps import Request
from tests.chaos.process_faults import ProcessFaults
from tests.chaos.proxy import Proxy, Trap
from tests.chaos.rival import rival
from tests.chaos.rules import FIT_SECONDS

CLOCKS = "clocks"
"""The wall clocks of extender and controller are set, back or ahead."""

KINDS = ("kills", "freezes", "proxy", "cluster", "split", CLOCKS)
"""The kinds of faults; each can be left out. ``split`` is two schedulers and extenders that are active at once."""

RESTARTED: tuple[AnyName, ...] = ("extender", "controller", "scheduler", "kube-apiserver", "etcd")
KILLED: tuple[AnyName, ...] = (*("extender",) * 6, *("controller",) * 6, "scheduler", "kube-apiserver", "etcd")
"""After an end of the API server kube-scheduler waits for up to a minute, so it ends in some storms only."""

_WRITES = (("POST", "/reservations"), ("PUT", "/reservations"), ("PATCH", "/pods/"), ("POST", "/binding"),
           ("DELETE", "/reservations"), ("DELETE", "/pods/"))  # fmt: skip
"""The writes between plan and bind: the record, its commit, a nomination, a Binding, the record's end, a victim's end.

No budget selects pods of the load, so victims are deleted. An eviction would be awaited in vain.
"""

_LOOK_SECONDS = 0.1
_REDRAW_SECONDS = 1.0
"""The time that the begin of a storm waits for a write before it waits for another one."""

_AWAITED_SECONDS = 4.0
"""The time that a trap waits for its write before another one may be laid: not each write comes in each storm."""

_LONG_SECONDS = (16.0, 20.0)
"""The time that a process stands still once in eight storms: longer than its Lease lasts."""

_SILENT_SECONDS = 35.0
"""The time, once in eight storms, in which no watch shows the extender anything."""

_LEASED: tuple[AnyName, ...] = ("extender", "controller", "scheduler")
"""The processes whose work depends on a Lease."""

_JUMPS = (-3600.0, -60.0, 60.0, 3600.0)
"""The steps by which wall clocks are set, in seconds."""

STILL_EACH = 8
"""Of so many calms the last one is still: without any fault, and so long that `FIT_SECONDS` pass in it."""

STILL_SECONDS = FIT_SECONDS + 30.0
"""The length of a still calm."""

Ambush = tuple[str, str, str]
"""The write, whether before or after it, and what was done."""

_LATE_SECONDS = 0.5
_REPAIR_SECONDS = 60.0
_WELL_SECONDS = 90.0


@dataclass(frozen=True, slots=True)
class Plan:
    """The length of a soak and how hard it is; times in seconds."""

    seed: int
    rounds: int
    kinds: tuple[str, ...] = KINDS
    killed: tuple[AnyName, ...] = KILLED
    storm: float = 15.0
    """The time in a round during which faults come."""

    quiet: float = 12.0
    """The calm after the faults, once all processes are ready again: only faults of watches come."""

    snare: float = 5.0
    """The time that a storm waits for each of the writes at which it begins. Later, while others die, hardly any comes.

    0.0 for not at all.
    """

    still: float = STILL_SECONDS
    """The time after each `STILL_EACH`-th storm in which no fault comes at all."""

    pause: tuple[float, float] = (0.3, 1.3)
    """The shortest and the longest time between two deeds of a storm."""

    alive: int = 40
    """The number of gangs at a time: more than fit."""

    mix: str = "any"
    """The mix from which the gangs are drawn, a name in `MIXES`."""

    requests: float = 0.12
    """The part of all requests that a fault befalls in a storm."""

    changes: float = 0.25
    """The part of all watched changes that a fault befalls."""

    patience: float = 150.0
    """The time that the last gangs may take once there are no more faults."""

    rest: float = 70.0
    """The time at the end in which nothing happens: at least a minute for the rule to say something; 0.0 for none."""


def _name_write(method: str, part: str) -> str:
    return f"{method} {part.strip('/')}"


def is_still(number: int) -> bool:
    """Return whether the calm of a round is without any fault; rounds are counted from 0."""
    return number % STILL_EACH == STILL_EACH - 1


class Storm:
    """Does it round after round. ``complain`` hears of what must not be."""

    def __init__(
        self,
        plan: Plan,
        cluster: Cluster,
        *,
        proxies: Mapping[Name, Proxy],
        processes: ProcessFaults,
        faults: ClusterFaults,
        clocks: ClockFaults,
        source: Random,
        directory: Path,
        note: Callable[[str, str], None],
        complain: Callable[[str], None],
    ) -> None:
        self._plan = plan
        self._cluster = cluster
        self._proxies = proxies
        self._processes = processes
        self._faults = faults
        self._clocks = clocks
        self._source = source
        self._directory = directory
        self._note = note
        self._complain = complain
        self._deeds = self._list_deeds()
        self._laid = 0.0
        """The time at which the last trap was laid."""

        self._spared: AnyName | None = None
        """The process that is not to be killed until `_spared_until`."""
        self._spared_until = 0.0

        self._silent_until = 0.0
        """The end of the time in which no watch shows the extender anything; 0.0 while watches do."""

        self.splits = 0
        self.long_freezes = 0
        self.silences = 0
        self.trapped: Counter[str] = Counter()
        """The number of times the extender was killed at a write, by the write."""

        self.ambushed: Counter[Ambush] = Counter()
        """The number of faults that were done at a write to the objects of that write."""

    def rage(self, number: int, sample: Callable[[], None]) -> None:
        """The storm of a round; ``sample`` is called now and then."""
        self._begin_at_writes(sample)
        end = time.monotonic() + self._plan.storm
        self._blow(self._plan.requests, self._plan.changes)
        self._do_rare(number)
        while time.monotonic() < end:
            for deeds in self._deeds:
                self._source.choice(deeds)()
            self._faults.repair()
            sample()
            time.sleep(self._source.uniform(*self._plan.pause))

    def calm_down(self, number: int, sample: Callable[[], None]) -> None:
        """The calm of a round, for a while after all is ready again: nothing but faults of watches, or no faults."""
        still = is_still(number)
        self._proxies["extender"].trap = None
        self._clocks.set_right()
        self._blow(0.0, 0.0 if still else self._plan.changes)
        self._processes.forgive()
        self._await_repair()
        self._await_sight(sample)
        if not self._processes.await_well(_WELL_SECONDS):
            self._complain("a process did not become ready again")
        end = time.monotonic() + (self._plan.still if still else self._plan.quiet)
        while time.monotonic() < end:
            sample()
            time.sleep(0.5)
        self._faults.tidy()

    def end(self) -> None:
        """Stop the faults of watches, too."""
        self._blow(0.0, 0.0)

    def _blow(self, requests: float, changes: float) -> None:
        bad = "proxy" in self._plan.kinds
        for proxy in self._proxies.values():
            proxy.weather.requests = requests if bad else 0.0
            proxy.weather.changes = changes if bad else 0.0

    def _await_repair(self) -> None:
        deadline = time.monotonic() + _REPAIR_SECONDS
        while not self._faults.repair() and time.monotonic() < deadline:
            time.sleep(0.3)

    # --- deeds -------------------------------------------------------------------------------------------------

    def _list_deeds(self) -> list[list[Callable[[], None]]]:
        """Of each list one is done at a time, with the same chance for each."""
        kinds = self._plan.kinds
        to_processes = [self._kill, self._kill, self._trap] if "kills" in kinds else []
        to_processes += [self._freeze] if "freezes" in kinds else []
        # Half as often as a freeze: while the clocks are off, a gang has an excuse.
        to_processes = to_processes * 2 + ([self._set_clocks] if CLOCKS in kinds else [])
        to_cluster = [self._strike, self._strike, self._ambush] if "cluster" in kinds else []
        return [deeds for deeds in (to_processes, to_cluster) if deeds]

    def _kill(self) -> None:
        self._kill_unless_spared(self._source.choice(self._plan.killed))

    def _kill_unless_spared(self, name: AnyName) -> bool:
        spared = name == self._spared and time.monotonic() < self._spared_until
        return not spared and self._processes.kill(name)

    def _freeze(self) -> None:
        self._processes.freeze(self._source.choice(RESTARTED), self._source.uniform(0.3, 4.0))

    def _set_clocks(self) -> None:
        self._clocks.jump(self._source.choice(_JUMPS), self._source.uniform(0.3, 4.0))

    def _strike(self) -> None:
        self._faults.do(self._source.choice(sorted(self._faults.kinds)))

    def _do_rare(self, number: int) -> None:
        """Do the faults that come once in eight rounds, because they last."""
        kinds, place = self._plan.kinds, number % 8
        if "split" in kinds and place == 2:
            self._split()
        if "freezes" in kinds and place == 4:
            self._freeze_long(_LEASED[number // 8 % len(_LEASED)])
        if "proxy" in kinds and place == 6:
            self._silence()

    def _freeze_long(self, name: AnyName) -> None:
        """Freeze a process for longer than its Lease. It is not killed meanwhile, which would wake it."""
        self._processes.await_well(_WELL_SECONDS)
        seconds = self._source.uniform(*_LONG_SECONDS)
        self._spared, self._spared_until = name, time.monotonic() + seconds
        self.long_freezes += self._processes.freeze(name, seconds)

    def _silence(self) -> None:
        self._note("fall", SILENCE)
        self._proxies["extender"].silence(_SILENT_SECONDS)
        self._silent_until = time.monotonic() + _SILENT_SECONDS
        self.silences += 1

    def _await_sight(self, sample: Callable[[], None]) -> None:
        """Wait until watches show something again, if they do not."""
        if self._silent_until == 0.0:
            return
        while time.monotonic() < self._silent_until:
            sample()
            time.sleep(_LOOK_SECONDS)
        self._silent_until = 0.0
        self._note("rise", SILENCE)

    def _begin_at_writes(self, sample: Callable[[], None]) -> None:
        """The first faults hit writes between plan and bind, if any come: the extender dies, then others are struck."""
        snares = [self._trap] * ("kills" in self._plan.kinds) + [self._ambush] * ("cluster" in self._plan.kinds)
        for lay in snares if self._plan.snare else ():
            deadline = time.monotonic() + self._plan.snare
            self._lay_anew(lay)
            while not self._has_sprung() and time.monotonic() < deadline:
                sample()
                time.sleep(_LOOK_SECONDS)
                if not self._has_sprung() and time.monotonic() - self._laid > _REDRAW_SECONDS:
                    self._lay_anew(lay)

    def _lay_anew(self, lay: Callable[[], None]) -> None:
        self._proxies["extender"].trap = None
        lay()

    def _has_sprung(self) -> bool:
        trap = self._proxies["extender"].trap
        return trap is None or trap.sprung

    def _trap(self) -> None:
        """The extender dies at its next write of some kind."""
        method, part = self._source.choice(_WRITES)

        def spring(_request: Request) -> None:
            if self._kill_unless_spared("extender"):
                self.trapped[_name_write(method, part)] += 1

        self._lay(Trap(method, part, self._draw_after(), spring))

    def _ambush(self) -> None:
        """At its next write of some kind somebody strikes at those whom it is about, and then it goes on."""
        method, part = self._source.choice(_WRITES)
        kind = self._source.choice(sorted(self._faults.kinds))
        after = self._draw_after()

        def spring(request: Request) -> None:
            begun = time.monotonic()
            if self._faults.do(kind, read_aim(request)):
                self.ambushed[_name_write(method, part), "after" if after else "before", kind] += 1
            if time.monotonic() - begun > _LATE_SECONDS:
                self._note("tamper", request.subject)

        self._lay(Trap(method, part, after, spring, resets=False))

    def _lay(self, trap: Trap) -> None:
        proxy, now = self._proxies["extender"], time.monotonic()
        if self._has_sprung() or now - self._laid > _AWAITED_SECONDS:
            proxy.trap, self._laid = trap, now

    def _draw_after(self) -> bool:
        return self._source.random() < 0.5

    def _split(self) -> None:
        """Two are active at once, for half a storm."""
        self._note("fall", SPLIT_BRAIN)
        try:
            with rival(self._cluster, self._directory):
                self.splits += 1
                time.sleep(self._plan.storm / 2)
        finally:
            self._note("rise", SPLIT_BRAIN)
