"""Measure the CPU cost of a binding cycle's own state: marking members filtered, waiting and bound.

There is no planner and no API server.

python -m bench.cycle             JSON to bench/results/, a table to standard output; milliseconds for all members
python -m bench.cycle --members 512
"""

import argparse
import asyncio
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from bench.machine import describe_machine, measure_noise
from extender.core.scheduling.binding_cycle import BindingCycle
from serried.api.group import PodGroup, Policy
from serried.api.names import GroupKey
from serried.api.reservation import Reservation, Slot

RESULTS = Path(__file__).parent / "results"
_ROUNDS = 15


def make_cycle(members: int) -> BindingCycle:
    """Return a binding cycle with a plan, for a gang whose minCount is the number of its members."""
    key = GroupKey("default", "g")
    slots = {f"uid-{index}": Slot(f"uid-{index}", f"p-{index}", f"node-{index // 8}") for index in range(members)}
    return BindingCycle(PodGroup(key, "g", Policy(members)), Reservation(key, "g", "", members, slots), 0.0, 0.0)


def answer_filter(cycle: BindingCycle, uids: Sequence[str]) -> None:
    """Mark each member as filtered."""
    for uid in uids:
        cycle.mark_filtered(uid, 1.0)


def gather(cycle: BindingCycle, uids: Sequence[str]) -> None:
    """Open a bind call for each member, and check the quorum after each, as the cycle's task does when it is woken."""
    for uid in uids:
        cycle.open_call(uid, 2.0)
        complete = not cycle.out_of_reach() and cycle.quorum_at_bind()
        assert complete is (uid == uids[-1])  # noqa: S101 - else nothing was measured


def bind(cycle: BindingCycle, uids: Sequence[str]) -> None:
    """Mark each member as bound."""
    for uid in uids:
        cycle.mark_bound(uid, 3.0)


PHASES: dict[str, Callable[[BindingCycle, Sequence[str]], None]] = {
    "filter": answer_filter,
    "gather": gather,
    "bind": bind,
}


async def measure(members: int) -> dict[str, float]:
    """Return the median time of each phase, in milliseconds for all members together."""
    spent: dict[str, list[float]] = {name: [] for name in PHASES}
    for _ in range(_ROUNDS):
        cycle = make_cycle(members)
        uids = list(cycle.reservation.slots)
        gc.collect()
        for name, perform in PHASES.items():
            start = time.perf_counter()
            perform(cycle, uids)
            spent[name].append((time.perf_counter() - start) * 1000)
    return {name: round(statistics.median(times), 2) for name, times in spent.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table and write the result."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.cycle", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--members", type=int, default=5_000)
    parser.add_argument("--date", default=datetime.now(UTC).strftime("%Y-%m-%d"), help="part of the file's name")
    parser.add_argument("--results", type=Path, default=RESULTS, help="directory of the result")
    options = parser.parse_args(arguments)
    noise, found = measure_noise(), asyncio.run(measure(options.members))
    print("| members |", " | ".join(f"{name}, ms" for name in found), "|")
    print("|---" * (len(found) + 1) + "|")
    print(f"| {options.members:,} |", " | ".join(map(str, found.values())), "|")
    about = {"date": options.date, "machine": describe_machine(), "noise_before": round(noise, 2)}
    path: Path = options.results / f"cycle-{options.date}.json"
    path.write_text(json.dumps({**about, "members": options.members, "milliseconds": found}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
