"""Measurements beside the rules: resident memory, what the extender remembers, and how far its watches lag."""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from bench.cluster import Cluster
from bench.cluster.api import ApiError
from tests.chaos.checker import summarize

MEASURED = ("extender", "controller", "scheduler")
JUDGED = ("extender", "controller")
"""The processes whose memory must be flat. kube-scheduler is shown beside them."""

GROWTH = 1.05
GROWTH_MIB = 3.0
"""Memory is flat if the middle of the last quarter is at most that much above the middle of the second one."""

_JUDGED_SECONDS = 240.0
"""A process that has not lived so long is still filling its caches."""

_SAMPLE_SECONDS = 5.0
_PROBES = 3
_LONGEST_LAG_SECONDS = 20.0
_EQUAL_SECONDS = 30.0
_DIFFERENCES = ("missing", "extra", "stale", "leftOff", "error")
GONE_AT_REST = dict.fromkeys(("serried_vacancies", "serried_reservations", "serried_partial_gangs"), 0)
DONE_AT_REST = {"serried_controller_queue_length": 0}
"""The metrics of the controller that must be 0 at rest: work that is left."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at the processes."""

    second: float
    pids: dict[str, int]
    mib: dict[str, float]


class Measures:
    """Takes samples when it is asked to; what must not be it tells to ``complain``."""

    def __init__(self, cluster: Cluster, complain: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._complain = complain
        self._begun = time.monotonic()
        self._lags: list[float] = []
        self._remembered: list[dict[str, float]] = []
        self._memory: list[Sample] = []

    @property
    def seconds(self) -> float:
        """Since the run has begun."""
        return time.monotonic() - self._begun

    def sample(self) -> None:
        """Look at memory, if the last look was a while ago."""
        if self._memory and self.seconds - self._memory[-1].second < _SAMPLE_SECONDS:
            return
        pids = {name: self._cluster.pids[name] for name in MEASURED}
        found = {name: read_resident_mib(pid) for name, pid in pids.items()}
        self._memory.append(Sample(round(self.seconds, 1), pids, found))

    def probe(self, number: int) -> None:
        """Measure how long the extender takes to know of new PodGroups, and record how many objects it knows."""
        version = self._cluster.spec.api_version
        path = f"/apis/{version}/namespaces/default/podgroups"
        for place in range(_PROBES):
            name = f"probe-{number}-{place}"
            spec = {"schedulingPolicy": {"gang": {"minCount": 2}}}
            body = {"apiVersion": version, "kind": "PodGroup", "metadata": {"name": name}, "spec": spec}
            try:
                self._cluster.api.post(path, body)
                self._lags += self._await_known(f"{self._cluster.debug_url}/groups/default/{name}?diagnosis=none")
                self._cluster.api.request("DELETE", f"{path}/{name}")
                objects = httpx.get(f"{self._cluster.debug_url}/selfcheck").json()["objects"]
            except (ApiError, OSError, httpx.HTTPError, ValueError):
                return
            self._remembered.append({"second": round(self.seconds, 1), **objects})

    def _await_known(self, url: str) -> Sequence[float]:
        begun = time.monotonic()
        while time.monotonic() - begun < _LONGEST_LAG_SECONDS:
            if httpx.get(url).status_code == httpx.codes.OK:
                return [time.monotonic() - begun]
            time.sleep(0.005)
        self._complain(f"watch lag: {url} is not known for {_LONGEST_LAG_SECONDS:.0f} s")
        return []

    def compare(self, gangs: int) -> None:
        """At rest, with so many gangs left, all of them waiting: nothing is remembered beside what there is."""
        deadline = time.monotonic() + _EQUAL_SECONDS
        found = self._find_remains(gangs)
        while found and time.monotonic() < deadline:
            time.sleep(1.0)
            found = self._find_remains(gangs)
        for remains in found:
            self._complain(f"index: {remains}")

    def _find_remains(self, gangs: int) -> list[str]:
        limits = {
            self._cluster.metrics_url: {**GONE_AT_REST, "serried_groups": gangs},
            f"{self._cluster.controller_url}/metrics": DONE_AT_REST,
        }
        try:
            kinds = httpx.get(f"{self._cluster.debug_url}/cache/diff", timeout=30.0).raise_for_status().json()["kinds"]
            texts = {url: httpx.get(url, timeout=10.0).raise_for_status().text for url in limits}
            counts = [(name, sum_metric(texts[url], name), limits[url][name]) for url in limits for name in limits[url]]
        except (httpx.HTTPError, ValueError) as error:
            return [f"extender or controller do not say what they remember: {error!r}"]
        found = [
            f"{each['kind']} are not those of the API server: {each}"
            for each in kinds
            if any(each[what] for what in _DIFFERENCES)
        ]
        return found + [f"{name} is {count:g} at rest, not {limit}" for name, count, limit in counts if count > limit]

    def describe(self) -> dict[str, Any]:
        """All of it, for the result; memory that grows is complained of."""
        for name in JUDGED:
            for text in find_growth(self._memory, name):
                self._complain(text)
        return {
            "watch_lag_seconds": summarize(self._lags),
            "remembered": thin(self._remembered),
            "memory_mib": list(summarize_memory(self._memory)),
            "growth_judged": [name for name in JUDGED if list_judged(self._memory, name)],
        }


def sum_metric(text: str, name: str) -> float:
    """The sum of a gauge over its labels, from the text of ``/metrics``. Raises ValueError without such a gauge."""
    if f"# TYPE {name} gauge\n" not in text:
        raise ValueError(f"there is no gauge {name}")
    lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return sum(float(value) for series, _, value in lines if series.partition("{")[0] == name)


def find_growth(samples: Sequence[Sample], name: str) -> Iterator[str]:
    """Yield a sentence if a process's memory grows."""
    alive = list_judged(samples, name)
    if not alive:
        return
    length = alive[-1].second - alive[0].second
    early, late = (
        statistics.median(each.mib[name] for each in alive if first <= (each.second - alive[0].second) / length <= last)
        for first, last in ((0.25, 0.5), (0.75, 1.0))
    )
    if late > early * GROWTH + GROWTH_MIB:
        yield f"memory: {name} has grown from {early:.1f} to {late:.1f} MiB in {length * 0.5 / 60:.1f} min"


def list_judged(samples: Sequence[Sample], name: str) -> list[Sample]:
    """The samples by which a process is judged; none of one that was started again a moment ago."""
    alive = [each for each in samples if each.pids[name] == samples[-1].pids[name] and each.mib[name]]
    return alive if alive and alive[-1].second - alive[0].second >= _JUDGED_SECONDS else []


def summarize_memory(samples: Sequence[Sample], parts: int = 8) -> Iterator[dict[str, float]]:
    """The middle of the samples of each part of a run."""
    if not samples:
        return
    length = (samples[-1].second + 1.0) / parts
    for part in range(parts):
        inside = [each for each in samples if part * length <= each.second < (part + 1) * length]
        if inside:
            middle = {name: round(statistics.median(each.mib[name] for each in inside), 1) for name in MEASURED}
            yield {"minute": round((part + 1) * length / 60, 1), **middle}


def thin(rows: Sequence[dict[str, float]], parts: int = 8) -> list[dict[str, float]]:
    """Some of them, the last one among them."""
    step = max(1, len(rows) // parts)
    return list(rows[::-1][::step][::-1])


def read_resident_mib(pid: int) -> float:
    """The resident memory of a process; 0.0 for none."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    kib = next((int(line.split()[1]) for line in lines if line.startswith("VmRSS:")), 0)
    return round(kib / 1024, 1)
