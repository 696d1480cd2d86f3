"""Members of several shapes on fewer sub-domains.

Classes that are packed one after another each take few sub-domains, but not always the same ones. So sets of fewer are
tried, those with most room first: in each the room of every class alone must do, and then a packing must succeed. As
many are tried as the trial's spare budget goes, which is not far in a large cluster.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations

from serried.plan.mixing import Budget, Counts
from serried.plan.steps import Work
from serried.plan.subdomains import Path
from serried.plan.topology import Placement
from serried.plan.trial import Trial

Nodes = Mapping[str, str]
"""Member uid to node name."""

Attempt = Callable[[Sequence[str]], Work[dict[str, str]]]
"""A packing of the same members that uses only these nodes."""


def narrow(trial: Trial, below: Sequence[str], placement: Placement, nodes: Nodes, attempt: Attempt) -> Work[Nodes]:
    """As many members on as few domains of the levels ``below`` as are found, the widest level first."""
    if len(trial.classes) > trial.spare_budget.left:
        return nodes
    free = [{name: slots for slots, name in trial.census.node_slots(kind, placement.names)} for kind in trial.classes]
    if not trial.spare_budget.take(sum(map(len, free))):
        return nodes
    names = sorted({name for each in free for name in each})
    for depth in range(1, len(below) + 1):
        paths = {name: tuple([trial.census.label(level, name) for level in below[:depth]]) for name in names}
        inside: dict[Path, list[str]] = {}
        for name in names:
            inside.setdefault(paths[name], []).append(name)
        rooms = {path: _count(free, each) for path, each in inside.items()}
        used = {paths[name] for name in nodes.values()}
        for chosen in _list_sets(_count_members(trial, nodes), len(used), rooms, trial.spare_budget):
            among = [name for path in chosen for name in inside[path]]
            if not trial.spare_budget.take(2 * len(among) * len(free)):
                break
            found = yield from attempt(among)
            if len(found) >= len(nodes):
                nodes = found
                used = set(chosen)
                break
        names = [name for name in names if paths[name] in used]
    return nodes


def _count_members(trial: Trial, nodes: Nodes) -> Counts:
    return tuple(sum(member.uid in nodes for member in kind.members) for kind in trial.classes)


def _count(free: Sequence[Mapping[str, int]], names: Sequence[str]) -> Counts:
    return tuple(sum(each.get(name, 0) for name in names) for each in free)


def _list_sets(wanted: Counts, used: int, rooms: Mapping[Path, Counts], budget: Budget) -> Iterator[tuple[Path, ...]]:
    """Sets of fewer domains than ``used`` in which there is room for each class alone, the smallest sets first."""

    def share(path: Path) -> float:
        return sum(min(1.0, room / count) for room, count in zip(rooms[path], wanted, strict=True) if count)

    ordered = sorted(rooms, key=lambda path: (-share(path), path))
    for size in range(1, used):
        if not _would_do(wanted, [sorted(column)[-size:] for column in zip(*rooms.values(), strict=True)]):
            continue
        for chosen in combinations(ordered, size):
            if not budget.take(size):
                return
            if _would_do(wanted, zip(*(rooms[path] for path in chosen), strict=True)):
                yield chosen


def _would_do(wanted: Counts, columns: Iterable[Iterable[int]]) -> bool:
    return all(sum(column) >= count for column, count in zip(columns, wanted, strict=True))
