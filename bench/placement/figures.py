"""The figures of played scenarios: results by scenario, seed, wave and rule; means; comparisons of rules. Pure."""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.placement.play import PROBES, Wave

Figure = Callable[["Result"], float | None]
"""Reads one figure of a result; None if the result does not have it."""


@dataclass(frozen=True, slots=True)
class Result:
    """The figures of one wave of a scenario, played by one rule."""

    scenario: str
    seed: int
    wave: int
    rule: str
    gangs: int
    placed: int
    """Number of gangs that were placed."""

    missed: int
    """Number of gangs that were not placed although they fitted."""

    members: int
    """Number of placed members."""

    cpus: int
    """CPUs of all placed members."""

    optimum: int | None
    """The most members that could be placed if all gangs were known in advance; None if that is too much to compute."""

    racks: float | None
    """Racks used by gangs that prefer one, divided by the fewest possible; None if there are no such gangs."""

    nodes: float | None
    """Nodes used, divided by the fewest possible; None if no gang was placed."""

    largest: Mapping[int, int]
    """By CPUs of a member: the size of the largest gang that still fits one rack."""

    def describe(self) -> dict[str, Any]:
        """Return the figures as JSON."""
        return {name: round(value, 3) if isinstance(value, float) else value for name, value in asdict(self).items()}


def _read_largest(cpu: int) -> Figure:
    return lambda result: result.largest[cpu]


FIGURES: Mapping[str, Figure] = {
    "gangs placed": lambda result: result.placed,
    "CPUs placed": lambda result: result.cpus,
    "racks / fewest": lambda result: result.racks,
    "nodes / fewest": lambda result: result.nodes,
    **{f"largest gang of {cpu} CPU left": _read_largest(cpu) for cpu in PROBES},
}
_LESS_IS_BETTER = frozenset({"racks / fewest", "nodes / fewest"})


def summarize_wave(scenario: str, seed: int, number: int, rule: str, wave: Wave, optimum: int | None = None) -> Result:
    """Return the result of one wave."""
    placed = [outcome for outcome in wave.outcomes if outcome.placed]
    free = [outcome for outcome in placed if outcome.gang.wish == "preferred"]
    return Result(
        scenario=scenario,
        seed=seed,
        wave=number,
        rule=rule,
        gangs=len(wave.outcomes),
        placed=len(placed),
        missed=sum(outcome.possible and not outcome.placed for outcome in wave.outcomes),
        members=sum(outcome.gang.size for outcome in placed),
        cpus=sum(outcome.gang.size * outcome.gang.cpu for outcome in placed),
        optimum=optimum,
        racks=_ratio((outcome.racks for outcome in free), (outcome.fewest_racks for outcome in free)),
        nodes=_ratio((outcome.nodes for outcome in placed), (outcome.fewest_nodes for outcome in placed)),
        largest=wave.largest,
    )


def average(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Return the means over all seeds: a row for each scenario, wave and rule, in order of first appearance."""
    rows = []
    for (scenario, wave, rule), found in _group(results, lambda each: (each.scenario, each.wave, each.rule)).items():
        figures = {name: _mean(map(figure, found)) for name, figure in FIGURES.items()}
        optimum = _mean(each.members / each.optimum if each.optimum else None for each in found)
        head = {
            "scenario": scenario,
            "wave": wave,
            "rule": rule,
            "seeds": len(found),
            "gangs": _mean(each.gangs for each in found),
        }
        rows.append({**head, **figures, "missed": sum(each.missed for each in found), "of the optimum": optimum})
    return rows


@dataclass(frozen=True, slots=True)
class Duel:
    """A comparison of two rules by one figure, over all seeds."""

    scenario: str
    wave: int
    figure: str
    rival: str
    better: int
    """Number of seeds for which the champion was better."""

    equal: int
    lost: tuple[int, ...]
    """The seeds for which the champion was worse."""


def compare(results: Sequence[Result], champion: str) -> list[Duel]:
    """Compare one rule, the champion, with every other rule by each figure."""
    duels = []
    for (scenario, wave), found in _group(results, lambda each: (each.scenario, each.wave)).items():
        mine = {each.seed: each for each in found if each.rule == champion}
        for rival, others in _group(found, lambda each: each.rule).items():
            if rival != champion and mine:
                pairs = [(mine[each.seed], each) for each in others if each.seed in mine]
                duels += [_compare_pairs(scenario, wave, name, rival, pairs) for name in FIGURES]
    return duels


def _compare_pairs(scenario: str, wave: int, name: str, rival: str, pairs: Sequence[tuple[Result, Result]]) -> Duel:
    sign = -1 if name in _LESS_IS_BETTER else 1
    better, equal, lost = 0, 0, []
    for mine, other in pairs:
        left, right = FIGURES[name](mine), FIGURES[name](other)
        gap = 0.0 if left is None or right is None else sign * (left - right)
        better += gap > 0
        equal += gap == 0
        if gap < 0:
            lost.append(mine.seed)
    return Duel(scenario, wave, name, rival, better, equal, tuple(lost))


def render_averages(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the averages as a Markdown table."""
    last = "of the optimum" if any(row["of the optimum"] is not None for row in rows) else ""
    titles = ["scenario", "wave", "placed by", "gangs", *FIGURES, "missed", *filter(None, [last])]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for row in rows:
        head = [row["scenario"], str(row["wave"] + 1), row["rule"]]
        cells = [_show(row[name]) for name in ("gangs", *FIGURES, "missed", *filter(None, [last]))]
        lines.append(f"| {' | '.join([*head, *cells])} |")
    return "\n".join(lines)


def render_duels(duels: Sequence[Duel], champion: str) -> str:
    """Return the comparisons as a Markdown table, with cells like better / equal / worse."""
    titles = ["scenario", "wave", f"{champion} against", *FIGURES]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for (scenario, wave, rival), found in _group(duels, lambda each: (each.scenario, each.wave, each.rival)).items():
        cells = [f"{duel.better} / {duel.equal} / {len(duel.lost)}" for duel in found]
        lines.append(f"| {' | '.join([scenario, str(wave + 1), rival, *cells])} |")
    return "\n".join(lines)


def _ratio(used: Iterable[int], least: Iterable[int]) -> float | None:
    below = sum(least)
    return sum(used) / below if below else None


def _mean(values: Iterable[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return round(statistics.fmean(found), 3) if found else None


def _group(items: Iterable[Any], key: Callable[[Any], Any]) -> dict[Any, list[Any]]:
    grouped: dict[Any, list[Any]] = {}
    for item in items:
        grouped.setdefault(key(item), []).append(item)
    return grouped


def _show(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if value >= 100 or value == int(value) else f"{value:.2f}"
