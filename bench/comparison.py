"""Compare contenders: summarize their runs, compute ratios and targets, find broken promises, render the table. Pure.

`bench.throughput` calls `summarize` with the runs of all contenders, and the other functions with the summary.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

PROMISED_RATIO = 2.0
PROMISED_SHARES = {"plain-isolated": 0.95, "plain-asked": 0.8}
"""By contender: the share of the stock scheduler's pods per second that Serried promises for plain pods."""

WAITING = ", all waiting"
"""Suffix in the name of a workload whose pods all exist before the scheduler starts."""

BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"

How = Literal["ratio", "more", "seconds"]
"""The kind of a target. ratio: ``of / to`` must be at least the bound. more: ``of - to`` must be at most the bound.
seconds: ``of`` must be at most the bound."""


@dataclass(frozen=True, slots=True)
class Side:
    """Names one measured figure: one side of a target's comparison."""

    workload: str
    contender: str = ""
    """The contender's name, "" for each contender that schedules gangs by Serried, one after the other."""

    where: Literal["", "empty", "1,000 nodes"] = ""
    """The cluster to take the figure from: "" for the same one as the other side, else an empty cluster of the same
    size, or a cluster of 1,000 nodes."""

    figure: str = "pods_per_second"
    """Key of the figure in a row of the summary."""


@dataclass(frozen=True, slots=True)
class Target:
    """A goal for Serried's speed."""

    name: str
    bound: float
    of: Side
    to: Side | None = None
    """The figure to compare with; None if ``how`` is seconds."""

    how: How = "ratio"


_PLAIN, _GANGS = f"1,000 plain pods{WAITING}", f"50 gangs of 20{WAITING}"
_RACKS, _PORTS = f"50 gangs of 20, each in one rack{WAITING}", f"50 gangs of 20, each on a port{WAITING}"
_ALONE, _TURNS = "20 plain pods a second", "one gang of 20 after the other"


def _wait_beside(load: str, name: str, contender: str = "") -> Target:
    """Return the target for plain pods beside a load: their p99 may be at most 0.3 s longer than without the load."""
    beside, alone = (Side(each, contender, figure="plain_p99") for each in (f"{_ALONE}, {load}", _ALONE))
    return Target(name, 0.3, beside, alone, "more")


TARGETS = (
    Target("gangs in racks to native gangs in racks", 8.0, Side(_RACKS), Side(_RACKS, "native")),
    Target("gangs to native gangs", 2.0, Side(_GANGS), Side(_GANGS, "native")),
    Target("gangs to plain pods", 1.2, Side(_GANGS), Side(_PLAIN, "plain")),
    Target("gangs to Bindings alone", 0.65, Side(_GANGS), Side(_PLAIN, "bindings")),
    Target("gangs on ports to plain pods", 0.9, Side(_PORTS), Side(_PLAIN, "plain")),
    Target("gangs in racks, filled to empty", 0.9, Side(_RACKS), Side(_RACKS, where="empty")),
    Target("plain pods, isolated to stock", 0.95, Side(_PLAIN, "plain-isolated"), Side(_PLAIN, "plain")),
    _wait_beside("50 gangs of 20", "plain pods' p99 while 50 gangs start, isolated", "plain-isolated"),
    _wait_beside("50 gangs of 20", "plain pods' p99 while 50 gangs start"),
    _wait_beside("5 gangs of 20 a second", "plain pods' p99 beside 5 gangs a second, isolated", "plain-isolated"),
    Target(
        "one gang of 1,000, last create to last bind",
        2.5,
        Side("1 gang of 1,000", figure="last_create_to_last_bind"),
        how="seconds",
    ),
    Target("quorum to last bind, p50", 0.15, Side(_TURNS, figure="quorum_p50"), how="seconds"),
    Target("quorum to last bind, p99", 0.5, Side(_TURNS, figure="quorum_p99"), how="seconds"),
    Target("gangs, more nodes to 1,000", 0.9, Side(_GANGS), Side(_GANGS, where="1,000 nodes")),
    Target("gangs in racks, more nodes to 1,000", 0.9, Side(_RACKS), Side(_RACKS, where="1,000 nodes")),
)
"""The goals for Serried's speed. All are checked on medians."""


@dataclass(frozen=True, slots=True)
class Run:
    """One contender's run of one workload."""

    contender: str
    workload: str
    repetition: int
    """Number of the repetition, from 0."""

    figures: Mapping[str, Any]
    """The figures of the load, as `bench.load.figures` computes them."""

    wall_seconds: float
    """Seconds since the schedulers started to work."""

    cpu_seconds: Mapping[str, float]
    """CPU seconds in that time, by process of the contender."""

    others_cpu: float
    """CPU seconds in that time of processes that have nothing to do with the measurement."""

    cores: int
    writes: Mapping[str, int]
    """Writes by the API server, by verb and resource, including the creation of the load."""

    speed_ms: float = 0.0
    """`bench.machine.measure_speed` before the run, in milliseconds."""

    @property
    def others_share(self) -> float:
        """The share of all cores that other processes took, from 0 to 1."""
        return self.others_cpu / (self.cores * self.wall_seconds)


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, minimum and maximum of the repetitions."""

    median: float
    least: float
    most: float

    def describe(self) -> dict[str, float]:
        """Return the JSON object with median, min and max."""
        return {"median": round(self.median, 3), "min": round(self.least, 3), "max": round(self.most, 3)}

    def __str__(self) -> str:
        """Return text like ``140 (131 to 150)``, or the median alone if all values are equal."""
        if self.least == self.most:
            return _short(self.median)
        return f"{_short(self.median)} ({_short(self.least)} to {_short(self.most)})"


def spread(values: Iterable[float]) -> Spread:
    """Return the spread of one or more values."""
    found = list(values)
    return Spread(statistics.median(found), min(found), max(found))


def summarize(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return one JSON object for each workload and contender, in order of first appearance."""
    grouped: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        grouped.setdefault((run.workload, run.contender), []).append(run)
    return [_summarize_group(*key, found) for key, found in grouped.items()]


def _summarize_group(workload: str, contender: str, runs: Sequence[Run]) -> dict[str, Any]:
    figures = (
        *("pods_per_second", "seconds", "p50", "p95", "p99", "longest_burst", "partial_gang_seconds"),
        *("last_create_to_last_bind", "plain_p50", "plain_p99", "quorum_p50", "quorum_p99"),
    )
    spreads = {
        name: spread(found).describe()
        for name in figures
        if (found := [run.figures[name] for run in runs if run.figures.get(name) is not None])
    }
    return {
        "workload": workload,
        "contender": contender,
        "runs": len(runs),
        **spreads,
        "unbound": sum(run.figures["pods"] - run.figures["bound"] for run in runs),
        "split_gangs": sum(run.figures["split_gangs"] for run in runs),
        "cpu_seconds": spread(sum(run.cpu_seconds.values()) for run in runs).describe(),
        "writes_per_pod": spread(sum(run.writes.values()) / max(1, run.figures["pods"]) for run in runs).describe(),
        "speed_ms": spread(run.speed_ms for run in runs).describe(),
        "others_cpu": spread(run.others_cpu for run in runs).describe(),
    }


def ratios(summary: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return Serried's pods per second divided by those of native gangs, by workload that both have run."""
    rates = {(row["workload"], row["contender"]): row["pods_per_second"]["median"] for row in summary}
    return {
        workload: round(rate / native, 2)
        for (workload, contender), rate in rates.items()
        if contender == "serried" and (native := rates.get((workload, "native")))
    }


def ratios_to_plain(summary: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return gangs' pods per second divided by those of plain pods on the stock scheduler, by workload and contender.

    A workload that waits before the scheduler starts is compared with plain pods that wait, too; a live one with plain
    pods that are created while the scheduler works.
    """
    rates = {(row["workload"], row["contender"]): row["pods_per_second"]["median"] for row in summary}
    plain = {_queue_suffix(workload): rate for (workload, contender), rate in rates.items() if contender == "plain"}
    found: dict[str, dict[str, float]] = {}
    for (workload, contender), rate in rates.items():
        if not contender.startswith("plain") and (stock := plain.get(_queue_suffix(workload))):
            found.setdefault(workload, {})[contender] = round(rate / stock, 2)
    return found


def _queue_suffix(workload: str) -> str:
    return WAITING if workload.endswith(WAITING) else ""


def shares(summary: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return plain pods per second by Serried's scheduler divided by the stock one's, by workload and contender."""
    rates = {(row["workload"], row["contender"]): row["pods_per_second"]["median"] for row in summary}
    found: dict[str, dict[str, float]] = {}
    for (workload, contender), rate in rates.items():
        if contender in PROMISED_SHARES and (stock := rates.get((workload, "plain"))):
            found.setdefault(workload, {})[contender] = round(rate / stock, 2)
    return found


Place = tuple[int, int]
"""A cluster: its number of nodes, and the percentage of their CPUs that was in use before the load."""


def compute_targets(results: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return an entry for each target and each cluster whose results have the needed rows.

    Some targets compare one cluster with another, so pass all results together. An entry has the keys ``target``,
    ``contender``, ``nodes``, ``filled``, ``value``, ``bound``, ``how`` (the kind of the target) and ``met``.
    """
    rows: dict[Place, dict[tuple[str, str], Mapping[str, Any]]] = {}
    for result in results:
        place = (result["nodes"], result.get("filled", 0))
        found = {(row["workload"], row["contender"]): row for row in result["summary"]}
        rows[place] = found | rows.get(place, {})
    ours = [name for found in rows.values() for _, name in found if name.startswith("serried")]
    entries = []
    for target in TARGETS:
        for place in rows:
            for contender in dict.fromkeys([target.of.contender] if target.of.contender else ours):
                value = _compare(target, contender, place, rows)
                if value is not None:
                    entries.append(_describe_target(target, contender, place, value))
    return entries


def _compare(
    target: Target,
    contender: str,
    place: Place,
    rows: Mapping[Place, Mapping[tuple[str, str], Mapping[str, Any]]],
) -> float | None:
    """Return the value of a target in one cluster. None if a row is missing, or would be compared with itself."""
    value = _find(target.of, contender, place, rows)
    if target.to is None or value is None:
        return value
    nodes, filled = place
    other = {"": place, "empty": (nodes, 0), "1,000 nodes": (1000, filled)}[target.to.where]
    base = _find(target.to, target.to.contender or contender, other, rows)
    if not base or (target.to.where and other == place):
        return None
    return value / base if target.how == "ratio" else value - base


def _find(
    side: Side, contender: str, place: Place, rows: Mapping[Place, Mapping[tuple[str, str], Mapping[str, Any]]]
) -> float | None:
    row = rows.get(place, {}).get((side.workload, contender), {})
    return row[side.figure]["median"] if side.figure in row else None


def _describe_target(target: Target, contender: str, place: Place, value: float) -> dict[str, Any]:
    return {
        "target": target.name,
        "contender": contender,
        "nodes": place[0],
        "filled": place[1],
        "value": round(value, 3),
        "bound": target.bound,
        "how": target.how,
        "met": value >= target.bound if target.how == "ratio" else value <= target.bound,
    }


def find_defects(summary: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return one sentence for each broken promise."""
    defects = [
        f"{workload}: Serried is {ratio:g} times as fast as native gangs, promised is {PROMISED_RATIO:g}"
        for workload, ratio in ratios(summary).items()
        if ratio < PROMISED_RATIO
    ]
    defects += [
        f"{workload}, {contender}: {share:g} of the stock scheduler's pods per second, promised is"
        f" {PROMISED_SHARES[contender]:g}"
        for workload, by_contender in shares(summary).items()
        for contender, share in by_contender.items()
        if share < PROMISED_SHARES[contender]
    ]
    for row in summary:
        where = f"{row['workload']}, {row['contender']}"
        if row["unbound"]:
            defects.append(f"{where}: {row['unbound']} pods were not bound in time")
        if row["split_gangs"]:
            defects.append(f"{where}: {row['split_gangs']} gangs in more than one domain")
    return defects


def find_disturbances(runs: Sequence[Run], tolerated: float) -> list[str]:
    """Return one sentence for each run in which other processes took more than the tolerated share of all cores."""
    return [
        f"{run.workload}, {run.contender}, repetition {run.repetition + 1}: "
        f"disturbed, other work took {run.others_share:.0%} of the machine"
        for run in runs
        if run.others_share > tolerated
    ]


def render_table(summary: Sequence[Mapping[str, Any]]) -> str:
    """Return a Markdown table with a line for each workload and contender."""
    found, kept, plain = ratios(summary), shares(summary), ratios_to_plain(summary)
    lines = [
        "| load | scheduled by | pods/s | first to last, s | p99 of a pod, s | burst, s | ratio | to plain | speed |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in summary:
        by_contender = {"serried": found.get(row["workload"]), **kept.get(row["workload"], {})}
        ratio = by_contender.get(row["contender"])
        cells = [
            row["workload"],
            row["contender"],
            *(_cell(row, name) for name in ("pods_per_second", "seconds", "p99", "longest_burst")),
            f"{ratio:g}" if ratio is not None else "",
            f"{plain.get(row['workload'], {}).get(row['contender'], '')}",
            _cell(row, "speed_ms"),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def replace_table(document: str, table: str, begin: str = BEGIN, end: str = END) -> str:
    """Return the document with ``table`` between the markers.

    Raise ValueError if a marker is missing, or if the end comes first.
    """
    before, first, rest = document.partition(begin)
    _, last, after = rest.partition(end)
    if not first or not last:
        raise ValueError(f"the document has no {begin} followed by {end}")
    return f"{before}{begin}\n{table}\n{end}{after}"


def _cell(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    return str(Spread(value["median"], value["min"], value["max"])) if value else ""


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"
