"""A mixed load that uses 70 % of a cluster: plain pods that start and end, and gangs that need a rack. Pure.

A seed determines everything. Plain pods always request half of all CPUs. In each turn a quarter of them ends, and new
ones with as many CPUs are created. Then a gang is created that needs one rack: a third, two thirds or the whole of it.
It ends three turns after it was bound. If all gangs are bound at once, they request a fifth of all CPUs together.
"""

import random
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

RACKS = 10
GANG_TURNS = 3
"""The number of turns for which a gang runs."""

_PLAIN_SHARE = 0.5
_LEAVING = 0.25
_PLAIN_CPUS = (2, 4, 8, 16)
_GANG_SHARES = (1 / 3, 2 / 3, 1.0)
_GANG_CPUS = (8, 16, 32)


@dataclass(frozen=True, slots=True)
class Turn:
    """The changes of one turn."""

    ending: tuple[str, ...]
    """The names of plain pods that end."""

    coming: Mapping[str, int]
    """By name of a new plain pod: its CPUs."""

    gang: str
    """Name of the new gang."""

    share: float
    """The share of one rack's CPUs that the gang requests."""

    members: int
    cpu: int
    """CPUs of a member."""


def make_turns(count: int, nodes: int, node_cpu: int, seed: int) -> Iterator[Turn]:
    """Yield ``count`` turns for a cluster of equal nodes in `RACKS` racks."""
    source = random.Random(seed)
    running: dict[str, int] = {}
    shares: list[float] = []
    total = nodes * node_cpu
    for number in range(count):
        ending = tuple(source.sample(sorted(running), round(_LEAVING * len(running))))
        for name in ending:
            del running[name]
        coming: dict[str, int] = {}
        while sum(running.values()) < _PLAIN_SHARE * total:
            name = f"plain-{number:02d}-{len(coming):04d}"
            coming[name] = running[name] = source.choice(_PLAIN_CPUS)
        shares = shares or source.sample(_GANG_SHARES, len(_GANG_SHARES))  # so that all are equally frequent
        share, cpu = shares.pop(), source.choice(_GANG_CPUS)
        members = int(share * total / RACKS / cpu)
        yield Turn(ending, coming, f"gang-{number:02d}", round(share, 2), members, cpu)


@dataclass(frozen=True, slots=True)
class GangWait:
    """The wait of one gang until all of its members were bound."""

    gang: str
    share: float
    turns: int | None
    """Number of turns that began while the gang waited; None if it was never bound."""

    seconds: float | None
    """Seconds from its creation; None if it was never bound."""


@dataclass(frozen=True, slots=True)
class Course:
    """The figures of one run of all turns."""

    weight: int
    """Weight of the extender's scores."""

    seed: int
    nodes: int
    whole: tuple[int, ...]
    """For each turn: the number of racks without plain pods, counted before the gang is created."""

    gangs: tuple[GangWait, ...]
    plain_waits: tuple[float, ...]
    """For each plain pod: the seconds from its creation to its Binding."""

    def describe(self) -> dict[str, Any]:
        """Return the figures as JSON, with the median and number of plain pods instead of all their waits."""
        waits = sorted(self.plain_waits)
        found = asdict(self) | {"plain_p50": _round(statistics.median(waits)), "plain_pods": len(waits)}
        del found["plain_waits"]
        return found


def summarize(courses: Sequence[Course]) -> list[dict[str, Any]]:
    """Return a row for each weight, over all seeds.

    Waits of gangs are counted in turns, because the seconds of a turn depend on the machine. A gang that never ran
    counts as waiting until the last turn.
    """
    rows = []
    for weight, nodes in sorted({(course.weight, course.nodes) for course in courses}):
        found = [course for course in courses if (course.weight, course.nodes) == (weight, nodes)]
        whole = [count for course in found for count in course.whole]
        rows.append(
            {
                "weight": weight,
                "nodes": nodes,
                "racks": RACKS,
                "plays": len(found),
                "whole_racks": _round(statistics.mean(whole)),
                "fewest_whole_racks": min(whole),
                "plain_p50": _round(statistics.median(wait for course in found for wait in course.plain_waits)),
                "all_gangs": _summarize_gangs(_list_shares(found), found),
                "gangs": [{"share": share} | _summarize_gangs([share], found) for share in _list_shares(found)],
            }
        )
    return rows


def _list_shares(courses: Sequence[Course]) -> list[float]:
    return sorted({gang.share for course in courses for gang in course.gangs})


def _summarize_gangs(shares: Collection[float], courses: Sequence[Course]) -> dict[str, Any]:
    """Return the figures of the gangs that request one of these shares of a rack."""
    turns, seconds = [], []
    for course in courses:
        for place, gang in enumerate(course.gangs):
            if gang.share in shares:
                turns.append(len(course.gangs) - place if gang.turns is None else gang.turns)
                seconds += [] if gang.seconds is None else [gang.seconds]
    return {
        "gangs": len(turns),
        "ran": len(seconds),
        "at_once": turns.count(0),
        "turns_waited": _round(statistics.mean(turns)),
        "seconds": _round(statistics.median(seconds)) if seconds else None,
    }


def render_mixed(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows as a Markdown table; "" without rows."""
    if not rows:
        return ""
    shares = [each["share"] for each in rows[0]["gangs"]]
    titles = [
        "weight",
        "nodes",
        "whole racks",
        "plain p50, s",
        *(f"gangs of {share:g} racks at once" for share in shares),
    ]
    lines = [
        [row["weight"], row["nodes"], row["whole_racks"], row["plain_p50"]]
        + [
            f"{each['at_once']} of {each['gangs']}, ran {each['ran']}, {each['turns_waited']} turns"
            for each in row["gangs"]
        ]
        for row in rows
    ]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in [titles, ["---"] * len(titles), *lines])


def _round(value: float) -> float:
    return round(value, 2)
