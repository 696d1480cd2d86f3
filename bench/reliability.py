"""The page on reliability, `docs/reliability.md`, as the newest soak in `bench/results` has it.

    make soak                              makes the result: python -m tests.chaos
    python -m bench.reliability            prints the page
    python -m bench.reliability --write    writes it

A test compares the page with the result.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.generated import ROOT, offer_page
from bench.quotes.expressions import QuoteError
from bench.quotes.results import Results

PAGE = ROOT / "docs" / "reliability.md"
RESULTS = ROOT / "bench" / "results"
NAME = "soak"
STEADY = "soak-steady"
"""A soak in which nobody is killed: ``--faults proxy cluster --name soak-steady``."""

FALLBACK = "soak-fallback"
"""A soak at the other API level: ``--api fallback --name soak-fallback``."""

_ORDER = ("extender", "controller", "scheduler", "kube-apiserver", "etcd", "split brain")

_HEAD = """# Reliability

What happens when processes die, requests fail and nodes go, measured. This page is made from the newest result of
`make soak` by `python -m bench.reliability --write`. Anyone can run it: `python -m tests.chaos --minutes 10 --seed 1`.

A real control plane runs with nodes that kwok plays. A steady load has more gangs than fit: with and without a topology
key, elastic ones, trees, gangs that preempt, Jobs, plain pods. Faults come in rounds. In a storm processes die,
requests fail and the cluster changes. Then all processes become ready again, and for a while only watches are
disturbed. What was killed is started again. A long run aims at 10,000 faults on the way and 300 kills; the numbers
below say how far this one came. `make test` has a short run with a fixed seed (`tests/e2e/test_faults.py`).

## What is checked

A process of its own watches the API server and `/debug`, and judges four times a second. It shares no code with Serried
but the names of API versions. A unit test breaks each rule in turn and sees that it is caught.

| rule | broken if |
|---|---|
| half bound | 0 < bound < minCount for longer than 2 s + minCount / 200 s outside of a recovery; for trees likewise |
| domain | members of a gang or a tree run in two domains of the required key, or on a node without it |
| over-committed | a Binding of ours puts more on a node than it holds, and no other scheduler did so within 2 s |
| orphan | a Reservation is left without its gang, or a nomination of ours without a Reservation, for 15 s |
| silent | a gang waits for 10 s, and its condition or `/debug` gives no reason |
| leaked finalizer | a deleted group that no pod names any more stays for 75 s |
| write at rest | anything is written while nothing happens |
| overlooked | a gang fits, is not behind the first of the queue, and is not bound within 90 s of the last fault |

At the end no new gangs come, and every gang that is there has to complete. Then nothing may be remembered that is not
there: what the extender knows is compared with the API server (`/debug/cache/diff`), and it has no record, no kept slot
and no group but those that wait. Last of all one member of a gang of two is bound by hand. A checker that does not tell
of this is blind, and the run has failed.

A *recovery* lasts from the signal to the extender, the scheduler, the API server or etcd until 8 s after the process
is ready again, or as long as two extenders are active at once. For one gang it lasts, too, until 15 s after a write
about it was refused, lost or delayed on the way. A member that is deleted before it is bound, or whose planned node is
taken away, does not count as missing. Two extenders that are active at once may over-commit a node, as any two
schedulers may: the API server does not count.
<!-- not measured: 2 s, 200 s, 15 s, 10 s, 75 s, 90 s, 8 s -->

Not tried here: a wall clock that jumps (no variable of the environment moves the time of a process;
`tests/sim/test_death_anywhere.py` moves the clocks that the extender's core is given), a network that parts two nodes,
a full disk, and a loss of etcd's data.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the page, or write it."""
    return offer_page(PAGE, render, arguments, program="python -m bench.reliability", about=__doc__ or "")


def render(directory: Path = RESULTS) -> str:
    """The page."""
    results = Results(directory)
    found = results.read(NAME)
    parts = (_render_summary, _render_requests, _render_processes, _render_cluster, _render_recovery)
    lines = [line for part in parts for line in part(found)]
    return "\n".join([_HEAD, *lines, *_render_memory(results), *_render_fallback(results)]).rstrip("\n") + "\n"


def _render_summary(found: Mapping[str, Any]) -> Iterator[str]:
    totals, gangs, machine = found["totals"], found["gangs"], found["machine"]
    yield "## In short"
    yield ""
    yield f"{found['date']}, Kubernetes {found['kubernetes']}, API level {found['api']}, seed {found['seed']}."
    yield f"The machine has {machine['cores']} cores, and did other work as well."
    if "preempted" not in found:
        yield "This run is older than the checks at the end, and than the faults at writes and in the calm."
    yield ""
    yield "| what | number |"
    yield "|---|---|"
    rows = {
        "minutes": ("minutes", found["minutes"]),
        "faults on the way to the API server": ("totals.proxy", totals["proxy"]),
        "processes killed": ("totals.kills", totals["kills"]),
        "processes frozen for a while": ("totals.freezes", totals["freezes"]),
        "faults in the cluster": ("totals.cluster", totals["cluster"]),
        "times that two extenders were active": ("faults.split_brains", found["faults"]["split_brains"]),
        "gangs that were submitted": ("gangs.submitted", gangs.get("submitted", 0)),
        "gangs that completed": ("gangs.completed", gangs.get("completed", 0)),
        "gangs that a fault deleted": ("gangs.deleted", gangs.get("deleted", 0)),
        "Bindings of members": ("bindings", found["bindings"]),
        "violations": ("totals.violations", totals["violations"]),
    }
    if "preempted" in found:
        rows["pods that had to go for a gang of higher priority"] = ("preempted", found["preempted"])
    for label, (_, value) in rows.items():
        yield f"| {label} | {value:,} |"
    yield from _quote(list(rows.values()))
    for violation in found["violations"]:
        yield f"- `{violation}`"
    if found["violations"]:
        yield ""


def _render_requests(found: Mapping[str, Any]) -> Iterator[str]:
    yield "## Faults on the way"
    yield ""
    yield "Extender, controller and scheduler reach the API server through a proxy that answers in its place, loses"
    yield "answers, and cuts, delays, repeats and expires watches."
    yield ""
    yield from _draw("fault | number", {row: (number,) for row, number in found["faults"]["proxy"].items()})
    yield from _cite("faults.proxy[row]")


def _render_processes(found: Mapping[str, Any]) -> Iterator[str]:
    faults = found["faults"]
    yield "## Processes that die"
    yield ""
    yield "Killed by SIGKILL at random moments; frozen by SIGSTOP for 0.3 to 4 s."
    yield "<!-- not measured: 0.3 to 4 s -->"
    yield ""
    yield from _draw("process | killed | frozen", {r: (n, faults["freezes"][r]) for r, n in faults["kills"].items()})
    yield from _cite("faults.kills[row]", "faults.freezes[row]")
    if faults["at_writes"]:
        yield "Of the kills of the extender these came at a write between plan and bind:"
        yield ""
        yield from _draw("write | killed", {row: (number,) for row, number in faults["at_writes"].items()})
        yield from _cite("faults.at_writes[row]")


def _render_cluster(found: Mapping[str, Any]) -> Iterator[str]:
    faults = found["faults"]
    yield "## Faults in the cluster"
    yield ""
    between = faults.get("cluster_at_writes")
    if between is None:  # a result of before such faults
        yield from _draw("fault | number", {row: (number,) for row, number in faults["cluster"].items()})
        yield from _cite("faults.cluster[row]")
        return
    yield "At a random moment to anybody; or at a write of the extender between plan and last Binding, to the very gang"
    yield "or node that the write is about. The write goes on when it is done."
    yield ""
    yield from _draw("fault | at random | at a write", {row: (n, between[row]) for row, n in faults["cluster"].items()})
    yield from _cite("faults.cluster[row]", "faults.cluster_at_writes[row]")


def _render_recovery(found: Mapping[str, Any]) -> Iterator[str]:
    recovery, climb, lag = found["recovery_seconds"], found["climb_seconds"], found["watch_lag_seconds"]
    yield "## Recovery"
    yield ""
    yield "Seconds from the signal to the first Binding of a gang after the process is ready again. In a storm several"
    yield "fall at once, and once more while they start. A killed scheduler waits out its own Lease first, and after an"
    yield "end of the API server it waits before it watches again, longer each time (client-go's backoff). How long one"
    yield "failure alone takes is measured by `python -m bench.failover`."
    yield ""
    names = ("count", "p50", "p99", "max")
    known = {name: recovery[name] for name in _ORDER if name in recovery}
    yield from _draw("process | samples | p50 | p99 | longest", {r: [e[n] for n in names] for r, e in known.items()})
    yield from _cite(*(f"recovery_seconds[row].{name}" for name in names))
    yield "Seconds from the first Binding of a gang to minCount, recoveries included; and from the create of a PodGroup"
    yield "to its appearance on `/debug`, after each storm:"
    yield ""
    rows = {"gang from first Binding to minCount": climb, "watch lag": lag}
    yield from _draw("time | samples | p50 | p99 | longest", {r: [e[n] for n in names] for r, e in rows.items()})
    times = ("climb_seconds", "watch_lag_seconds")
    yield from _quote([(f"{time}.{name}", found[time][name]) for time in times for name in names])


def _render_memory(results: Results) -> Iterator[str]:
    try:
        found = results.read(STEADY)
    except QuoteError:
        return
    yield "## Memory"
    yield ""
    yield "Resident memory in MiB while requests fail and the cluster changes, but no process is killed: the middle"
    yield "of the samples up to this minute (`python -m tests.chaos --faults proxy cluster --name soak-steady`). It"
    yield "counts as grown if the middle of the last quarter is more than 5 % and 3 MiB above that of the second one."
    yield "<!-- not measured: 5 %, 3 MiB -->"
    yield ""
    rows = {f"{row['minute']:g}": (row["extender"], row["controller"]) for row in found["memory_mib"]}
    yield from _draw("minute | extender | controller", rows)
    each = "memory_mib(minute=label[0])"
    yield from _cite(f"{each}.extender", f"{each}.controller", name=STEADY)
    lag = found["watch_lag_seconds"]
    more = {f"watch lag in seconds, {name}": (f"watch_lag_seconds.{name}", lag[name]) for name in ("p50", "p99")}
    yield from _sum_up(found, STEADY, more)


def _render_fallback(results: Results) -> Iterator[str]:
    try:
        found = results.read(FALLBACK)
    except QuoteError:
        return
    yield "## At the fallback level"
    yield ""
    yield "The same faults where Serried's own API is used"
    yield "(`python -m tests.chaos --api fallback --name soak-fallback`)."
    yield ""
    more = {"processes killed": ("totals.kills", found["totals"]["kills"])}
    yield from _sum_up(found, FALLBACK, more)


def _sum_up(found: Mapping[str, Any], name: str, more: Mapping[str, tuple[str, float]]) -> Iterator[str]:
    shown = {
        "minutes": ("minutes", found["minutes"]),
        "faults on the way to the API server": ("totals.proxy", found["totals"]["proxy"]),
        **more,
        "gangs that completed": ("gangs.completed", found["gangs"].get("completed", 0)),
        "violations": ("totals.violations", found["totals"]["violations"]),
    }
    yield from _draw("in this run | number", {label: (value,) for label, (_, value) in shown.items()})
    yield from _quote(list(shown.values()), name=name)


def _draw(heading: str, rows: Mapping[str, Sequence[float]]) -> Iterator[str]:
    yield f"| {heading} |"
    yield "|" + "---|" * (heading.count("|") + 1)
    for label, numbers in rows.items():
        yield f"| {label} | {' | '.join(f'{number:,}' for number in numbers)} |"


def _quote(pairs: Sequence[tuple[str, float]], name: str = NAME) -> Iterator[str]:
    """The sources of the numbers above, in their order."""
    yield f"<!-- measured: {name}"
    yield from (f"{number:,} = {source}" for source, number in pairs[:-1])
    yield f"{pairs[-1][1]:,} = {pairs[-1][0]} -->"
    yield ""


def _cite(*sources: str, name: str = NAME) -> Iterator[str]:
    yield f"<!-- measured: {name}"
    yield f"| {' | '.join(sources)} | -->"
    yield ""


if __name__ == "__main__":
    sys.exit(main())
