"""Measure for how long the odd gangs of `bench.loop` block the event loop at a time, in processor time.

Each callback of the loop is timed by the clock of its thread, so that other work on the machine does not count and two
versions can be compared on a busy machine. From these times `p99` is computed: of 100 filter calls at random times, one
would wait for at least so long.

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


class _CallbackTimes:
    """Times the callbacks that the event loop runs. One for the whole process: it patches asyncio."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        """The processor time of each callback."""

        self.recording = False
        """True while callbacks are timed; set by `watch`."""

    def install(self) -> None:
        """Time every callback of asyncio's own loop from now on."""
        run = asyncio.Handle._run  # noqa: SLF001 - there is no other place that all callbacks pass

        def timed(handle: asyncio.Handle) -> None:
            begun = time.thread_time()
            run(handle)
            if self.recording:
                self.seconds.append(time.thread_time() - begun)

        asyncio.Handle._run = timed  # type: ignore[assignment, method-assign]  # noqa: SLF001 - as above

    def find_wait(self, share: float) -> float:
        """Return the time in seconds that a call at a random time has to wait for, with the probability ``share``.

        Found by bisection: a call waits longer than t if it arrives more than t before the end of a callback.
        """
        least, most = 0.0, max(self.seconds)
        for _ in range(40):
            middle = (least + most) / 2
            over = sum(each - middle for each in self.seconds if each > middle)
            least, most = (middle, most) if over > share * _SECONDS else (least, middle)
        return most


async def watch(case: Case, callbacks: _CallbackTimes) -> Run:
    """Run an extender for 8 s after the odd gang was created. Record callbacks, filter calls and small gangs."""
    stage, run = Stage(), Run()
    stage.fill(case.pods)
    gc.collect()
    gc.freeze()  # as the extender does with its caches
    gc.set_threshold(50_000, 20, 50)
    stage.store.dirty.clear_groups()
    async with run_beside(stage, run):
        await probe(stage, Run(), 1.0)
        case.create(stage)
        stage.core.groups.wake()
        await asyncio.sleep(0)
        callbacks.seconds.clear()
        callbacks.recording = True
        await probe(stage, run, _SECONDS)
        callbacks.recording = False
    run.plans = dict(stage.reporter.plans)
    return run


def measure(case: Case, callbacks: _CallbackTimes) -> dict[str, Any]:
    """Run a case once, and return its row of the result. Times are in milliseconds, ``busy`` is a share of a core."""
    with asyncio.Runner() as runner:
        run = runner.run(watch(case, callbacks))
    gc.unfreeze()
    return {
        "case": case.name,
        "p99": round(callbacks.find_wait(0.01) * 1000, 2),
        "longest": round(max(callbacks.seconds) * 1000, 1),
        "busy": round(sum(callbacks.seconds) / _SECONDS, 3),
        "small_gangs_median": round(statistics.median(run.small), 1) if run.small else None,
        "small_gangs": len(run.small),
        "plans": run.plans,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure every case, print the table and write the result."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.held", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="cases with this in their name")
    parser.add_argument("--name", default="held", help="how the file's name begins")
    parser.add_argument("--date", default=datetime.now(UTC).strftime("%Y-%m-%d"), help="part of the file's name")
    parser.add_argument("--results", type=Path, default=RESULTS, help="directory of the result")
    options = parser.parse_args(arguments)
    callbacks, rows = _CallbackTimes(), []
    callbacks.install()
    print("| gang | p99, ms | longest piece | share of a core | other gangs planned after, median | how many |")
    print("|---|---|---|---|---|---|")
    for case in CASES:
        if options.only in case.name:
            rows.append(measure(case, callbacks))
            print("|", " | ".join(str(rows[-1][name]) for name in rows[-1] if name != "plans"), "|", flush=True)
    result = {"date": options.date, "machine": describe_machine(), "rows": rows}
    path: Path = options.results / f"{options.name}-{options.date}.json"
    path.write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
