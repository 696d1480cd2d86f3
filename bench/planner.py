"""Measure how long one plan takes, and how well large gangs are split over racks.

Plans: the first plan for members of a shape, and later plans, each after some nodes have changed.

Splits: a gang that is too large for one block is split over blocks and racks. Compared are one pass without search, the
planner's bounded search, and a search without bound, which finds the fewest racks.

python -m bench.planner           JSON to bench/results/, a table to standard output; milliseconds
python -m bench.planner --quick   the small cases only
"""

import argparse
import gc
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path as FilePath

from bench.machine import describe_machine, measure_noise
from serried.api.pod import Pod, Shape
from serried.cluster.cache import Store
from serried.plan.packing import MAX_STEPS, DomainPath, distribute
from serried.plan.request import Plan, PlanRequest
from serried.plan.tree import plan_group
from serried.rules.all import RULES
from tests.support.builders import RACK, node, pod

RESULTS = FilePath(__file__).parent / "results"
BLOCK = "example.com/block"
_ROUNDS = 15
_CHANGES = 64


@dataclass(frozen=True, slots=True)
class Case:
    """The sizes of a gang and of a cluster."""

    members: int
    nodes: int
    racks: int
    wanted: float | None = None
    """The longest time in milliseconds that is allowed for the first plan; None if there is no bound."""

    clusters: int = 5
    """The number of new clusters in which a first plan is measured."""

    @property
    def name(self) -> str:
        """Name of the case in tables and results."""
        return f"{self.members:,} members, {self.nodes:,} nodes, {self.racks:,} racks"


CASES = (
    Case(20, 1_000, 10),
    Case(512, 5_000, 50, wanted=20.0),
    Case(4_096, 100_000, 1_000, wanted=1_000.0, clusters=1),
)


def build_store(case: Case) -> Store:
    """Return a Store with nodes of 64 CPUs in racks, ten racks in a block. Pods use 0 to 15 CPUs of each node."""
    store = Store(["serried"], rules=RULES)
    for index in range(case.nodes):
        rack = index % case.racks
        built = node(f"node-{index:06d}").rack(f"rack-{rack:04d}").label(BLOCK, f"block-{rack // 10:03d}")
        store.put_node(built.cpu(64).memory("256Gi").value())
        filler = pod("f").cpu(index % 16).value().shape
        store.put_pod(Pod("load", f"f-{index}", f"f-{index}", filler, node=f"node-{index:06d}"))
    return store


def build_members(count: int, shapes: Sequence[Shape]) -> list[Pod]:
    """Return ``count`` members, which have the shapes in turn."""
    return [Pod("default", f"p-{i}", f"uid-{i}", shapes[i % len(shapes)], index=i) for i in range(count)]


def build_tree(members: Sequence[Pod], groups: int) -> PlanRequest:
    """Return the request for a tree in one block: ``groups`` groups of equal size, each in one rack."""
    size = len(members) // groups
    shares = [tuple(members[place * size : (place + 1) * size]) for place in range(groups)]
    parts = tuple(PlanRequest(share, size, RACK, name=f"group-{place}") for place, share in enumerate(shares))
    return PlanRequest(tuple(members), size * groups, BLOCK, name="root", parts=parts, wanted=groups)


def list_requests(case: Case) -> dict[str, PlanRequest]:
    """Return the requests that are measured, by name."""
    one, two, large, larger = (pod("p").cpu(cpu).memory("1Gi").value().shape for cpu in (1, 2, 52, 56))
    members, mixed = build_members(case.members, [one]), build_members(case.members // 2, [one, two])
    split, split_mixed = build_members(case.members, [large]), build_members(case.members, [large, larger])
    return {
        "rack required": PlanRequest(members, case.members, RACK),
        "rack, then block preferred": PlanRequest(members, case.members, levels=(RACK, BLOCK)),
        "no key": PlanRequest(members, case.members),
        "a tree of 16 groups, a rack each, in one block": build_tree(members, 16),
        "half as many of two classes": PlanRequest(mixed, case.members // 2, RACK),
        "members that fill a node, rack, then block preferred": PlanRequest(split, case.members, levels=(RACK, BLOCK)),
        "the same of two classes": PlanRequest(split_mixed, case.members, levels=(RACK, BLOCK)),
    }


def measure(case: Case, request: PlanRequest) -> dict[str, float]:
    """Return the median milliseconds of first plans, each in a new cluster, and of later plans in the last cluster.

    Before each later plan the pods of `_CHANGES` nodes change.
    """
    first = []
    for _ in range(case.clusters):
        store = build_store(case)
        gc.collect()
        gc.freeze()  # as the extender does with its caches
        solve: Callable[[], Plan] = partial(_solve, store, request)
        first.append(_time(solve))
        gc.unfreeze()
    later = []
    for turn in range(_ROUNDS):
        for index in range(_CHANGES):
            name = f"f-{(turn * _CHANGES + index) % case.nodes}"
            store.put_pod(Pod("load", name, name, pod("f").cpu(turn % 16).value().shape, node=f"node-{name[2:]:0>6}"))
        later.append(_time(solve))
    return {"first": round(statistics.median(first), 2), "later": round(statistics.median(later), 2)}


def _solve(store: Store, request: PlanRequest) -> Plan:
    found = plan_group(store.snapshots.take(0, ()), request, store.capacity)
    if not isinstance(found, Plan):
        raise SystemExit(f"refused: {found}")
    return found


def _time(solve: Callable[[], Plan]) -> float:
    begun = time.perf_counter()
    solve()
    return (time.perf_counter() - begun) * 1000


@dataclass(frozen=True, slots=True)
class Split:
    """The split of a gang over clusters of one size, as means over `_DRAWS` random clusters."""

    blocks: int
    racks: int
    """Racks in each block."""

    nodes: int
    """Nodes in each rack."""

    members: int
    racks_used: tuple[float, ...]
    """The number of racks, for each search of `_SEARCH_STEPS`."""

    milliseconds: tuple[float, ...]
    """The time of the split, for each search of `_SEARCH_STEPS`."""


_SPLITS = ((3, 4, 20, 150), (10, 10, 20, 1_000), (10, 10, 100, 4_000), (30, 10, 20, 1_000), (100, 10, 100, 4_096))
_SEARCH_STEPS = (0, MAX_STEPS, 10_000_000)
"""The bounds of the compared searches: one pass, the planner's bound, and practically none."""

_DRAWS = 10


def measure_split(blocks: int, racks: int, nodes: int, members: int) -> Split:
    """Return how a gang is split over nodes with 0 to 8 slots at random.

    All searches use the fewest blocks, so only the number of racks differs.
    """
    used, spent = [0] * len(_SEARCH_STEPS), [0.0] * len(_SEARCH_STEPS)
    for seed in range(_DRAWS):
        source = random.Random(seed)
        counts_by_path: dict[DomainPath, int] = {
            (f"b{block:03d}", f"r{rack}"): sum(source.choice((0, 1, 2, 4, 8)) for _ in range(nodes))
            for block in range(blocks)
            for rack in range(racks)
        }
        for search, steps in enumerate(_SEARCH_STEPS):
            begun = time.perf_counter()
            shares = distribute(members, counts_by_path, steps)
            spent[search] += (time.perf_counter() - begun) * 1000
            used[search] += sum(_count_racks(counts_by_path, block, share) for share, block in shares)
    racks_used, milliseconds = (tuple(round(sum_ / _DRAWS, 2) for sum_ in sums) for sums in (used, spent))
    return Split(blocks, racks, nodes, members, racks_used, milliseconds)


def _count_racks(counts_by_path: Mapping[DomainPath, int], block: str, share: int) -> int:
    return len(distribute(share, {path[1:]: room for path, room in counts_by_path.items() if path[0] == block}))


def print_splits() -> list[Split]:
    """Measure all splits, print their table and return them."""
    print("\n| blocks of racks of nodes, members | racks: one pass | as planned | fewest | ms | ms | ms |")
    print("|---|---|---|---|---|---|---|")
    found = [measure_split(*sizes) for sizes in _SPLITS]
    for each in found:
        name = f"{each.blocks} of {each.racks} of {each.nodes}, {each.members:,}"
        print("|", " | ".join(map(str, (name, *each.racks_used, *each.milliseconds))), "|")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure every case and all splits, and write the result. Return 1 if a first plan took too long, else 0."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.planner", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="the small cases only")
    parser.add_argument("--date", default=datetime.now(UTC).strftime("%Y-%m-%d"), help="part of the file's name")
    parser.add_argument("--results", type=FilePath, default=RESULTS, help="directory of the result")
    options = parser.parse_args(arguments)
    noise, rows, missed = measure_noise(), [], []
    print(f"| gang and cluster | question | first plan, ms | after {_CHANGES} changes, ms |\n|---|---|---|---|")
    for case in CASES[:2] if options.quick else CASES:
        for name, request in list_requests(case).items():
            found = measure(case, request)
            wanted = None if request.parts else case.wanted
            rows.append({"case": case.name, "question": name, "wanted": wanted, **found})
            print(f"| {case.name} | {name} | {found['first']} | {found['later']} |", flush=True)
            if wanted is not None and found["first"] > wanted:
                missed.append(f"{case.name}, {name}: {found['first']} ms, wanted {wanted} ms")
    splits = [asdict(split) for split in print_splits()]
    result = {
        "date": options.date,
        "machine": describe_machine(),
        "noise_before": round(noise, 2),
        "plans": rows,
        "splits": splits,
    }
    path: FilePath = options.results / f"planner-{options.date}.json"
    path.write_text(json.dumps(result, indent=2) + "\n")
    for line in missed:
        print(f"missed: {line}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
