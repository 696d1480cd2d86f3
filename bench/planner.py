"""How long one plan takes: the first of its class, and later ones after a few changes; and how gangs are split.

A gang that no block holds is split over blocks and racks: in one pass, by the planner with its bounded search, and with
a search without bound.

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
from serried.plan.packing import MAX_STEPS, Path, distribute
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
    """A gang and a cluster; ``wanted`` is the first plan's bound in milliseconds, None without one."""

    members: int
    nodes: int
    racks: int
    wanted: float | None = None
    clusters: int = 5

    @property
    def name(self) -> str:
        """For tables and files."""
        return f"{self.members:,} members, {self.nodes:,} nodes, {self.racks:,} racks"


CASES = (
    Case(20, 1_000, 10),
    Case(512, 5_000, 50, wanted=20.0),
    Case(4_096, 100_000, 1_000, wanted=1_000.0, clusters=1),
)


def build_store(case: Case) -> Store:
    """A cluster of nodes with 64 CPUs, in racks, ten racks a block, each node up to a quarter full."""
    store = Store(["serried"], rules=RULES)
    for index in range(case.nodes):
        rack = index % case.racks
        built = node(f"node-{index:06d}").rack(f"rack-{rack:04d}").label(BLOCK, f"block-{rack // 10:03d}")
        store.put_node(built.cpu(64).memory("256Gi").value())
        filler = pod("f").cpu(index % 16).value().shape
        store.put_pod(Pod("load", f"f-{index}", f"f-{index}", filler, node=f"node-{index:06d}"))
    return store


def build_members(count: int, shapes: Sequence[Shape]) -> list[Pod]:
    """Members that take turns in their shapes."""
    return [Pod("default", f"p-{i}", f"uid-{i}", shapes[i % len(shapes)], index=i) for i in range(count)]


def build_tree(members: Sequence[Pod], groups: int) -> PlanRequest:
    """The members in so many groups of equal size."""
    size = len(members) // groups
    shares = [tuple(members[place * size : (place + 1) * size]) for place in range(groups)]
    parts = tuple(PlanRequest(share, size, RACK, name=f"group-{place}") for place, share in enumerate(shares))
    return PlanRequest(tuple(members), size * groups, BLOCK, name="root", parts=parts, wanted=groups)


def list_asks(case: Case) -> dict[str, PlanRequest]:
    """The questions that are measured, by name."""
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


def measure(case: Case, ask: PlanRequest) -> dict[str, float]:
    """The first plan of its class, the median of some clusters; and of later ones, each after nodes have changed."""
    first = []
    for _ in range(case.clusters):
        store = build_store(case)
        gc.collect()
        gc.freeze()  # as the extender does with its caches
        solve: Callable[[], Plan] = partial(_solve, store, ask)
        first.append(_time(solve))
        gc.unfreeze()
    later = []
    for turn in range(_ROUNDS):
        for index in range(_CHANGES):
            name = f"f-{(turn * _CHANGES + index) % case.nodes}"
            store.put_pod(Pod("load", name, name, pod("f").cpu(turn % 16).value().shape, node=f"node-{name[2:]:0>6}"))
        later.append(_time(solve))
    return {"first": round(statistics.median(first), 2), "later": round(statistics.median(later), 2)}


def _solve(store: Store, ask: PlanRequest) -> Plan:
    found = plan_group(store.snapshots.take(0, ()), ask, store.capacity)
    if not isinstance(found, Plan):
        raise SystemExit(f"refused: {found}")
    return found


def _time(solve: Callable[[], Plan]) -> float:
    begun = time.perf_counter()
    solve()
    return (time.perf_counter() - begun) * 1000


@dataclass(frozen=True, slots=True)
class Split:
    """Gangs that are too large for a block: the mean number of racks and the mean time, each for the three ways."""

    blocks: int
    racks: int
    nodes: int
    members: int
    racks_used: tuple[float, ...]
    milliseconds: tuple[float, ...]


_SPLITS = ((3, 4, 20, 150), (10, 10, 20, 1_000), (10, 10, 100, 4_000), (30, 10, 20, 1_000), (100, 10, 100, 4_096))
_WAYS = (0, MAX_STEPS, 10_000_000)
_DRAWS = 10


def measure_split(blocks: int, racks: int, nodes: int, members: int) -> Split:
    """Blocks of racks of nodes, each with 0 to 8 slots at random. The fewest blocks are the same in all ways."""
    used, spent = [0] * len(_WAYS), [0.0] * len(_WAYS)
    for seed in range(_DRAWS):
        source = random.Random(seed)
        rooms: dict[Path, int] = {
            (f"b{block:03d}", f"r{rack}"): sum(source.choice((0, 1, 2, 4, 8)) for _ in range(nodes))
            for block in range(blocks)
            for rack in range(racks)
        }
        for way, steps in enumerate(_WAYS):
            begun = time.perf_counter()
            shares = distribute(members, rooms, steps)
            spent[way] += (time.perf_counter() - begun) * 1000
            used[way] += sum(_count_racks(rooms, block, share) for share, block in shares)
    racks_used, milliseconds = (tuple(round(sum_ / _DRAWS, 2) for sum_ in sums) for sums in (used, spent))
    return Split(blocks, racks, nodes, members, racks_used, milliseconds)


def _count_racks(rooms: Mapping[Path, int], block: str, share: int) -> int:
    return len(distribute(share, {path[1:]: room for path, room in rooms.items() if path[0] == block}))


def print_splits() -> list[Split]:
    """Measure and print all of them."""
    print("\n| blocks of racks of nodes, members | racks: one pass | as planned | fewest | ms | ms | ms |")
    print("|---|---|---|---|---|---|---|")
    found = [measure_split(*sizes) for sizes in _SPLITS]
    for each in found:
        name = f"{each.blocks} of {each.racks} of {each.nodes}, {each.members:,}"
        print("|", " | ".join(map(str, (name, *each.racks_used, *each.milliseconds))), "|")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure every case; the exit code is 1 if one is over its bound."""
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
        for name, ask in list_asks(case).items():
            found = measure(case, ask)
            wanted = None if ask.parts else case.wanted
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
