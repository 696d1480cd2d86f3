"""What a run shows, and runs side by side. Pure."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.comparison import Run, Spread, spread
from bench.preemption.cases import Case
from bench.preemption.watch import Life


@dataclass(frozen=True, slots=True)
class Figures:
    """One run's results; times in seconds from the first create of what comes.

    ``seconds`` is until the last of them was bound, ``first_ended`` and ``last_ended`` until the first and the last
    pod that goes for them was seen ending; None if nobody was. ``evicted`` is how many pods go, ``least`` how many
    have to; ``broken`` is how many gangs they are of, ``torn`` how many of these did not go whole.
    """

    pods: int
    bound: int
    seconds: float | None
    first_ended: float | None
    last_ended: float | None
    evicted: int
    least: int
    broken: int
    torn: int

    def describe(self) -> dict[str, Any]:
        """The figures as JSON, to the millisecond."""
        return {name: round(value, 3) if isinstance(value, float) else value for name, value in asdict(self).items()}


def compute_figures(case: Case, runners: Collection[Life], comers: Collection[Life], start: float) -> Figures:
    """The figures of a run that began at ``start``."""
    bound = [life.bound for life in comers if life.bound is not None]
    ended = [life.ended for life in runners if life.ended is not None]
    pods = case.gangs * case.size
    left: dict[str, list[bool]] = defaultdict(list)
    for life in runners:
        left[life.gang].append(life.ended is None)
    left.pop("", None)
    return Figures(
        pods=pods,
        bound=len(bound),
        seconds=max(bound) - start if len(bound) == pods else None,
        first_ended=min(ended) - start if ended else None,
        last_ended=max(ended) - start if ended else None,
        evicted=len(ended),
        least=case.least,
        broken=sum(not all(each) for each in left.values()),
        torn=sum(any(each) and not all(each) for each in left.values()),
    )


def summarize(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """One entry per case and contender, in the order of first appearance."""
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
    """What is not as wanted, one sentence each."""
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
    """A Markdown table: one line per case and contender."""
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
