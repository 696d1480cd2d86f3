"""Results side by side: medians and spreads, the ratios that Serried promises, and their table. Pure."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

PROMISED_RATIO = 2.0
PROMISED_SHARES = {"plain-isolated": 0.95, "plain-asked": 0.8}
"""What plain pods are to keep of the stock scheduler's pods per second."""

WAITING = ", all waiting"
"""How the names of loads end whose pods all exist before a scheduler begins."""

BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"


@dataclass(frozen=True, slots=True)
class Run:
    """One contender's run of one workload.

    ``figures`` as in bench.load.figures; ``wall_seconds`` and the CPU seconds count from when the schedulers begin.
    ``others_cpu`` is foreign work, ``writes`` is what the API server had to write, with the creates, and ``speed_ms``
    what a piece of work took before it that is always the same.
    """

    contender: str
    workload: str
    repetition: int
    figures: Mapping[str, Any]
    wall_seconds: float
    cpu_seconds: Mapping[str, float]
    others_cpu: float
    cores: int
    writes: Mapping[str, int]
    speed_ms: float = 0.0

    @property
    def others_share(self) -> float:
        """The share of the machine that other work took."""
        return self.others_cpu / (self.cores * self.wall_seconds)


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, least and most of the repetitions."""

    median: float
    least: float
    most: float

    def describe(self) -> dict[str, float]:
        """As JSON."""
        return {"median": round(self.median, 3), "min": round(self.least, 3), "max": round(self.most, 3)}

    def __str__(self) -> str:
        """``140 (131 to 150)``; the median alone where there is nothing else."""
        if self.least == self.most:
            return _short(self.median)
        return f"{_short(self.median)} ({_short(self.least)} to {_short(self.most)})"


def spread(values: Iterable[float]) -> Spread:
    """The spread of at least one value."""
    found = list(values)
    return Spread(statistics.median(found), min(found), max(found))


def summarize(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """One entry per workload and contender, in the order of first appearance."""
    grouped: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        grouped.setdefault((run.workload, run.contender), []).append(run)
    return [_summarize_group(*key, found) for key, found in grouped.items()]


def _summarize_group(workload: str, contender: str, runs: Sequence[Run]) -> dict[str, Any]:
    figures = ("pods_per_second", "seconds", "p50", "p95", "p99", "longest_burst", "partial_gang_seconds")
    spreads = {
        name: spread(found).describe()
        for name in figures
        if (found := [run.figures[name] for run in runs if run.figures[name] is not None])
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
    """Serried's median pods per second over the native gangs', by workload that both have run."""
    rates = {(row["workload"], row["contender"]): row["pods_per_second"]["median"] for row in summary}
    return {
        workload: round(rate / native, 2)
        for (workload, contender), rate in rates.items()
        if contender == "serried" and (native := rates.get((workload, "native")))
    }


def ratios_to_plain(summary: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Gangs' median pods per second over that of plain pods on the stock scheduler, by workload and contender.

    Compared is with the plain pods that came as the gangs did: while it worked, or before.
    """
    rates = {(row["workload"], row["contender"]): row["pods_per_second"]["median"] for row in summary}
    plain = {_way(workload): rate for (workload, contender), rate in rates.items() if contender == "plain"}
    found: dict[str, dict[str, float]] = {}
    for (workload, contender), rate in rates.items():
        if not contender.startswith("plain") and (stock := plain.get(_way(workload))):
            found.setdefault(workload, {})[contender] = round(rate / stock, 2)
    return found


def _way(workload: str) -> str:
    return WAITING if workload.endswith(WAITING) else ""


def shares(summary: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Plain pods' median pods per second by our scheduler over the stock scheduler's, by workload and contender."""
    rates = {(row["workload"], row["contender"]): row["pods_per_second"]["median"] for row in summary}
    found: dict[str, dict[str, float]] = {}
    for (workload, contender), rate in rates.items():
        if contender in PROMISED_SHARES and (stock := rates.get((workload, "plain"))):
            found.setdefault(workload, {})[contender] = round(rate / stock, 2)
    return found


def find_defects(summary: Sequence[Mapping[str, Any]]) -> list[str]:
    """What is not as promised, one sentence each."""
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
    """The runs during which other work took more than the tolerated share of all cores, one sentence each."""
    return [
        f"{run.workload}, {run.contender}, repetition {run.repetition + 1}: "
        f"disturbed, other work took {run.others_share:.0%} of the machine"
        for run in runs
        if run.others_share > tolerated
    ]


def render_table(summary: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table: one line per workload and contender."""
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


def replace_table(document: str, table: str) -> str:
    """The document with ``table`` between the markers. Raises ValueError where they are missing or out of order."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the document has no {BEGIN} followed by {END}")
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def _cell(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    return str(Spread(value["median"], value["min"], value["max"])) if value else ""


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"
