"""How long one plan takes, and where the time goes: the first of its class, and later ones after a few changes.

python -m bench.planner           JSON to bench/results/, a table to standard output; milliseconds
python -m bench.planner --quick   the small cases only
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from bench.machine import describe_machine, measure_noise
from serried.cluster.store import Store
from serried.model.plan import Ask, Plan
from serried.model.pod import Pod, Shape
from serried.plan.tree import plan_group
from serried.testing.builders import RACK, node, pod

RESULTS = Path(__file__).parent / "results"
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

    @property
    def name(self) -> str:
        """For tables and files."""
        return f"{self.members:,} members, {self.nodes:,} nodes, {self.racks:,} racks"


CASES = (Case(20, 1_000, 10), Case(512, 5_000, 50, wanted=20.0), Case(4_096, 100_000, 1_000, wanted=1_000.0))


def build_store(case: Case) -> Store:
    """A cluster of nodes with 64 CPUs, in racks, ten racks a block, each node up to a quarter full."""
    store = Store(["serried"])
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


def build_tree(members: Sequence[Pod], groups: int) -> Ask:
    """The members in so many groups of equal size."""
    size = len(members) // groups
    shares = [tuple(members[place * size : (place + 1) * size]) for place in range(groups)]
    parts = tuple(Ask(share, size, RACK, name=f"group-{place}") for place, share in enumerate(shares))
    return Ask(tuple(members), size * groups, BLOCK, name="root", parts=parts, wanted=groups)


def list_asks(case: Case) -> dict[str, Ask]:
    """The questions that are measured, by name."""
    one, two, large, larger = (pod("p").cpu(cpu).memory("1Gi").value().shape for cpu in (1, 2, 52, 56))
    members, mixed = build_members(case.members, [one]), build_members(case.members // 2, [one, two])
    split, split_mixed = build_members(case.members, [large]), build_members(case.members, [large, larger])
    return {
        "rack required": Ask(members, case.members, RACK),
        "rack, then block preferred": Ask(members, case.members, levels=(RACK, BLOCK)),
        "no key": Ask(members, case.members),
        "a tree of 16 groups, a rack each, in one block": build_tree(members, 16),
        "half as many of two classes": Ask(mixed, case.members // 2, RACK),
        "members that fill a node, rack, then block preferred": Ask(split, case.members, levels=(RACK, BLOCK)),
        "the same of two classes": Ask(split_mixed, case.members, levels=(RACK, BLOCK)),
    }


def measure(case: Case, ask: Ask, store: Store) -> dict[str, float]:
    """The first plan of its class, and the median of later ones, each after some nodes have changed."""
    solve: Callable[[], Plan] = lambda: _solve(store, ask)  # noqa: E731
    first = _time(solve)
    later = []
    for turn in range(_ROUNDS):
        for index in range(_CHANGES):
            name = f"f-{(turn * _CHANGES + index) % case.nodes}"
            store.put_pod(Pod("load", name, name, pod("f").cpu(turn % 16).value().shape, node=f"node-{name[2:]:0>6}"))
        later.append(_time(solve))
    return {"first": round(first, 2), "later": round(statistics.median(later), 2)}


def _solve(store: Store, ask: Ask) -> Plan:
    found = plan_group(store.view(0, ()), ask, store.capacity)
    if not isinstance(found, Plan):
        raise SystemExit(f"refused: {found}")
    return found


def _time(solve: Callable[[], Plan]) -> float:
    begun = time.perf_counter()
    solve()
    return (time.perf_counter() - begun) * 1000


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure every case; the exit code is 1 if one is over its bound."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.planner", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="the small cases only")
    parser.add_argument("--date", default=datetime.now(UTC).strftime("%Y-%m-%d"), help="part of the file's name")
    parser.add_argument("--results", type=Path, default=RESULTS, help="directory of the result")
    options = parser.parse_args(arguments)
    noise, rows, missed = measure_noise(), [], []
    print(f"| gang and cluster | question | first plan, ms | after {_CHANGES} changes, ms |\n|---|---|---|---|")
    for case in CASES[:2] if options.quick else CASES:
        for name, ask in list_asks(case).items():
            found = measure(case, ask, build_store(case))
            wanted = None if ask.parts else case.wanted
            rows.append({"case": case.name, "question": name, "wanted": wanted, **found})
            print(f"| {case.name} | {name} | {found['first']} | {found['later']} |", flush=True)
            if wanted is not None and found["first"] > wanted:
                missed.append(f"{case.name}, {name}: {found['first']} ms, wanted {wanted} ms")
    result = {"date": options.date, "machine": describe_machine(), "noise_before": round(noise, 2), "plans": rows}
    path: Path = options.results / f"planner-{options.date}.json"
    path.write_text(json.dumps(result, indent=2) + "\n")
    for line in missed:
        print(f"missed: {line}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
