"""How long the event loop is held at a time, in processor time, by the odd gangs of `bench.loop`.

Other work on the machine does not count, so that two versions can be compared beside it: each piece that the loop runs
is timed on the clock of its thread. `p99` is what 1 of 100 calls of filter would wait at least.

    python -m bench.held                 JSON to bench/results/, a table to standard output; milliseconds
    python -m bench.held --only forecast the cases whose name has this word
"""

import argparse
import asyncio
import gc
import json
import statistics
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.loop import CASES, RESULTS, Case, Run, Stage, probe, run_beside
from bench.machine import describe_machine

_SECONDS = 8.0


class _Pieces:
    """How long the loop was held by each piece that it ran, in seconds."""

    def __init__(self) -> None:
        self.held: list[float] = []
        self.counts = False

    def watch(self) -> None:
        """Time everything that asyncio's own loop runs from now on."""
        run = asyncio.Handle._run  # noqa: SLF001 - there is no other place where all pieces pass

        def timed(handle: asyncio.Handle) -> None:
            begun = time.thread_time()
            run(handle)
            if self.counts:
                self.held.append(time.thread_time() - begun)

        asyncio.Handle._run = timed  # type: ignore[assignment, method-assign]  # noqa: SLF001 - as above

    def find_wait(self, share: float) -> float:
        """How long a call waits at least that comes in the worst ``share`` of the time."""
        least, most = 0.0, max(self.held)
        for _ in range(40):
            middle = (least + most) / 2
            over = sum(each - middle for each in self.held if each > middle)
            least, most = (middle, most) if over > share * _SECONDS else (least, middle)
        return most


async def watch(case: Case, pieces: _Pieces) -> Run:
    """Let the odd gang come, and see how the others do."""
    stage, run = Stage(), Run()
    stage.fill(case.pods)
    gc.collect()
    gc.freeze()  # as the extender does with its caches
    gc.set_threshold(50_000, 20, 50)
    stage.store.dirty.clear_groups()
    async with run_beside(stage, run):
        await probe(stage, Run(), 1.0)
        case.come(stage)
        stage.core.groups.wake()
        await asyncio.sleep(0)
        pieces.held.clear()
        pieces.counts = True
        await probe(stage, run, _SECONDS)
        pieces.counts = False
    run.plans = dict(stage.heard.plans)
    return run


def measure(case: Case, pieces: _Pieces) -> dict[str, Any]:
    """One run."""
    with asyncio.Runner() as runner:
        run = runner.run(watch(case, pieces))
    gc.unfreeze()
    return {
        "case": case.name,
        "p99": round(pieces.find_wait(0.01) * 1000, 2),
        "longest": round(max(pieces.held) * 1000, 1),
        "busy": round(sum(pieces.held) / _SECONDS, 3),
        "small_gangs_median": round(statistics.median(run.small), 1) if run.small else None,
        "small_gangs": len(run.small),
        "plans": run.plans,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure every case."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.held", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="cases with this in their name")
    parser.add_argument("--name", default="held", help="how the file's name begins")
    parser.add_argument("--date", default=datetime.now(UTC).strftime("%Y-%m-%d"), help="part of the file's name")
    parser.add_argument("--results", type=Path, default=RESULTS, help="directory of the result")
    options = parser.parse_args(arguments)
    pieces, rows = _Pieces(), []
    pieces.watch()
    print("| gang | p99, ms | longest piece | share of a core | other gangs planned after, median | how many |")
    print("|---|---|---|---|---|---|")
    for case in CASES:
        if options.only in case.name:
            rows.append(measure(case, pieces))
            print("|", " | ".join(str(rows[-1][name]) for name in rows[-1] if name != "plans"), "|", flush=True)
    result = {"date": options.date, "machine": describe_machine(), "rows": rows}
    path: Path = options.results / f"{options.name}-{options.date}.json"
    path.write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
