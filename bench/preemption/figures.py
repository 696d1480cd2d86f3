"""Compute the figures of a run, summarize runs, and compare contenders. Pure."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.comparison import Run, Spread, spread
from bench.preemption.cases import Case
from bench.preemption.watch import Life


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one run. Times are seconds from the first create of a preemptor."""

    pods: int
    """Number of the preemptors' members."""

    bound: int
    """Number of the preemptors' members that were bound."""

    seconds: float | None
    """The time of the last Binding; None unless all members were bound."""

    first_ended: float | None
    """The time at which the first victim was seen ending; None without victims."""

    last_ended: float | None
    """The time at which the last victim was seen ending; None without victims."""

    evicted: int
    """Number of victims."""

    least: int
    """The fewest victims that are possible."""

    broken: int
    """Number of running gangs that lost pods."""

    torn: int
    """Number of running gangs that lost only a part of their pods."""

    def describe(self) -> dict[str, Any]:
        """Return the figures as JSON, rounded to milliseconds."""
        return {name: round(value, 3) if isinstance(value, float) else value for name, value in asdict(self).items()}


def compute_figures(case: Case, candidates: Collection[Life], preemptors: Collection[Life], start: float) -> Figures:
    """Return the figures of a run that began at ``start`` (monotonic clock)."""
    bound = [life.bound for life in preemptors if life.bound is not None]
    ended = [life.ended for life in candidates if life.ended is not None]
    pods = case.gangs * case.size
    survived: dict[str, list[bool]] = defaultdict(list)
    for life in candidates:
        survived[life.gang].append(life.ended is None)
    survived.pop("", None)
    return Figures(
        pods=pods,
        bound=len(bound),
        seconds=max(bound) - start if len(bound) == pods else None,
        first_ended=min(ended) - start if ended else None,
        last_ended=max(ended) - start if ended else None,
        evicted=len(ended),
        least=case.least,
        broken=sum(not all(each) for each in survived.values()),
        torn=sum(any(each) and not all(each) for each in survived.values()),
    )


def summarize(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return one JSON object for each case and contender, in order of first appearance."""
    grouped: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        grouped.setdefault((run.workload, run.contender), []).append(run)
    return [_summarize_group(*key, found) for key, found in grouped.items()]


def _summarize_group(case: str, contender: str, runs: Sequence[Run]) -> dict[str, Any]:
    figures = ("seconds", "first_ended", "last_ended", "evicted", "broken")
    spreads = {
        name: spread(found).describe()
        for name in figures
        if (found := [run.figures[name] for run in runs if run.figures[name] is not None])
    }
    return {
        "case": case,
        "contender": contender,
        "runs": len(runs),
        "least": runs[0].figures["least"],
        **spreads,
        "unbound": sum(run.figures["pods"] - run.figures["bound"] for run in runs),
        "torn": sum(run.figures["torn"] for run in runs),
        "cpu_seconds": spread(sum(run.cpu_seconds.values()) for run in runs).describe(),
        "writes": spread(sum(run.writes.values()) for run in runs).describe(),
        "others_cpu": spread(run.others_cpu for run in runs).describe(),
    }


def find_defects(summary: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a sentence for each broken promise, and for each figure in which Serried is worse than native."""
    defects = []
    native = {row["case"]: row for row in summary if row["contender"] == "native"}
    for row in summary:
        where = f"{row['case']}, {row['contender']}"
        if row["unbound"]:
            defects.append(f"{where}: {row['unbound']} pods were not bound in time")
        if row["torn"]:
            defects.append(f"{where}: {row['torn']} gangs that go whole lost a part of their pods")
        if row["contender"] != "native" and row["case"] in native:
            defects += [f"{where}: {text}" for text in _compare(row, native[row["case"]])]
    return defects


def _compare(ours: Mapping[str, Any], native: Mapping[str, Any]) -> Iterable[str]:
    for name, text in (("seconds", "bound after {:.1f} s, natively {:.1f} s"), ("evicted", "{:g} pods go, not {:g}")):
        if name in ours and name in native and ours[name]["median"] > native[name]["median"]:
            yield text.format(ours[name]["median"], native[name]["median"])


def render_table(summary: Sequence[Mapping[str, Any]]) -> str:
    """Return a Markdown table with a line for each case and contender."""
    lines = [
        "| what runs, and what comes | by | pods that go | gangs that break | first of them, s | last bound, s |",
        "|---|---|---|---|---|---|",
    ]
    names = ("evicted", "broken", "first_ended", "seconds")
    for row in summary:
        cells = [row["case"], row["contender"], *(_cell(row, name) for name in names)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    return str(Spread(value["median"], value["min"], value["max"])) if value else ""
