"""A mixed load at 70 % fill: plain pods that come and go, and gangs that need a rack each. Pure: a seed says it all.

Half of all CPUs are asked for by plain pods at any time. Each turn a quarter of them ends and as many CPUs come anew.
Then a gang comes that needs one rack: a third, two thirds or the whole of it. It ends three turns after it was bound.
Gangs that find their room at once ask for a fifth of all CPUs together.
"""

import random
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

RACKS = 10
GANG_TURNS = 3
"""How many turns a gang runs."""

_PLAIN_SHARE = 0.5
_LEAVING = 0.25
_PLAIN_CPUS = (2, 4, 8, 16)
_GANG_SHARES = (1 / 3, 2 / 3, 1.0)
_GANG_CPUS = (8, 16, 32)


@dataclass(frozen=True, slots=True)
class Turn:
    """What happens in one turn: the pods that end, those that come with their CPUs, and the gang.

    ``share`` is how much of a rack the gang's ``members`` of ``cpu`` CPUs each ask for.
    """

    ending: tuple[str, ...]
    coming: Mapping[str, int]
    gang: str
    share: float
    members: int
    cpu: int


def make_turns(count: int, nodes: int, node_cpu: int, seed: int) -> Iterator[Turn]:
    """The turns on so many equal nodes in `RACKS` racks."""
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
        shares = shares or source.sample(_GANG_SHARES, len(_GANG_SHARES))  # each as often as the others
        share, cpu = shares.pop(), source.choice(_GANG_CPUS)
        members = int(share * total / RACKS / cpu)
        yield Turn(ending, coming, f"gang-{number:02d}", round(share, 2), members, cpu)


@dataclass(frozen=True, slots=True)
class GangWait:
    """How long one gang waited until all its members were bound; None for both if it never was.

    ``turns`` counts the turns that began while it waited.
    """

    gang: str
    share: float
    turns: int | None
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Course:
    """One play. ``whole`` is after each turn's plain pods how many racks no plain pod ran in; waits are in seconds."""

    weight: int
    seed: int
    nodes: int
    whole: tuple[int, ...]
    gangs: tuple[GangWait, ...]
    plain_waits: tuple[float, ...]

    def describe(self) -> dict[str, Any]:
        """As JSON, without the single plain pods."""
        waits = sorted(self.plain_waits)
        found = asdict(self) | {"plain_p50": _round(statistics.median(waits)), "plain_pods": len(waits)}
        del found["plain_waits"]
        return found


def summarize(courses: Sequence[Course]) -> list[dict[str, Any]]:
    """One row for each weight, over all seeds. A gang that never ran counts as having waited for the rest of its play.

    Turns, because how long one takes is the machine's; the first turn's racks are counted before any gang came.
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
    """How those fared that ask for one of these shares of a rack."""
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
    """A Markdown table; nothing without rows."""
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
