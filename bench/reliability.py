"""Generate the page on reliability, `docs/contributing/reliability.md`, from the newest results of soaks.

    make soak                              makes the main result: python -m tests.chaos
    make soak-steady                       makes the result about memory
    python -m bench.reliability            prints the page
    python -m bench.reliability --write    writes the page

A test compares the page with the results in `bench/results`.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.generated import ROOT, offer_page
from bench.quotes.expressions import QuoteError
from bench.quotes.results import Results

PAGE = ROOT / "docs" / "contributing" / "reliability.md"
RESULTS = ROOT / "bench" / "results"
NAME = "soak"
STEADY = "soak-steady"
"""Name of the soak without kills: ``make soak-steady``."""

FALLBACK = "soak-fallback"
"""Name of the soak at the fallback API level: ``--api fallback --name soak-fallback``."""

TIGHT = "soak-tight"
"""Name of the soak with as many plain pods as gangs on full nodes: ``make soak-tight``."""

_RECOVERY_ORDER = ("extender", "controller", "scheduler", "kube-apiserver", "etcd", "split brain", "clock")

_HEAD = """# Reliability

What happens when processes die, requests fail and nodes disappear, from the newest result of `make soak` (`python -m
bench.reliability --write`). To run it yourself: `python -m tests.chaos --minutes 10 --seed 1`.

The soak runs a real control plane with nodes that kwok simulates, under more gangs than fit: with and without a
topology key, elastic ones, trees, gangs that preempt, Jobs, plain pods. For some minutes processes are killed,
requests fail and the cluster changes: a *storm*. Between storms only watches are disturbed; after each eighth storm
nothing is disturbed for two minutes. `make soak` fails with fewer than 10,000 faults between Serried and the API
server, or fewer than 300 kills. `make soak-tight` has as many plain pods as gangs, on full nodes, in an isolated
installation.

## What is checked

A separate process, the checker, reads the API server and `/debug` four times a second. The checker shares no code with
Serried except the names of API versions. A unit test breaks each rule, and asserts that the checker reports it.

| rule | broken if |
|---|---|
| half bound | 0 < bound < minCount for longer than 2 s + minCount / 200 s outside of a recovery. Trees likewise |
| domain | members of a gang or a tree run in two domains of the required key, or on a node without that key |
| over-committed | Serried binds more pods or CPU to a node than it holds, and no other scheduler did so within 2 s |
| orphan | a Reservation without gang, or a nomination without a record or plan, for 15 s (beyond the quorum 60 s) |
| silent | a gang that never had its quorum waits for 10 s, and its condition or `/debug` gives no reason |
| leaked finalizer | a deleted group still exists after 75 s, although no pod names it any more |
| write at rest | while nothing happens, a process of Serried or the scheduler sends a write, whatever it changes |
| overlooked | a gang or tree fits, is not behind the first in the queue, and is not bound 90 s after the last fault |

For *over-committed*, the checker also admits each bound pod as a kubelet does, and sets a pod that does not fit to
Failed (`OutOfcpu`). *overlooked* judges gangs that lost members, too, but no tree in which single groups have a
topology key. *write at rest* leaves out Leases, reviews of tokens, and Events of kube-scheduler. At the end every
gang must complete, the cache must be that of the API server (`/debug/cache/diff`), and no process may remember what
no longer exists. Finally the soak binds one member of a gang of two by hand: if the checker does not report it, the
run has failed.

A *recovery* begins with the signal to the extender, the scheduler, the API server or etcd, and ends 8 s after the
process is ready again. The time while two extenders are active, wall clocks are wrong, or no watch shows events is a
recovery, too. A disturbed write excuses its gang until 15 s after it. A member that is deleted, or loses its node,
before it is bound does not count as missing. Neither does a member in a namespace that is being deleted.
<!-- not measured: 2 s, 200 s, 15 s, 60 s, 10 s, 75 s, 90 s, 8 s -->

The soak has one extender: [failovers](../operations.md#what-happens-when-a-scheduler-or-node-fails) are measured
alone. Not tested: a network that separates two nodes, a full disk, a loss of etcd's data.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the page, or write it with ``--write``."""
    return offer_page(PAGE, render, arguments, program="python -m bench.reliability", about=__doc__ or "")


def render(directory: Path = RESULTS) -> str:
    """Return the text of the page, from the results in the directory. Raise QuoteError if there is no soak."""
    results = Results(directory)
    found = results.read(NAME)
    parts = (_render_summary, _render_in_force, _render_proxy, _render_processes, _render_cluster, _render_recovery)
    lines = [line for part in parts for line in part(found)]
    others = (*_render_memory(results, found), *_render_fallback(results), *_render_tight(results))
    return "\n".join([_HEAD, *lines, *others]).rstrip("\n") + "\n"


def _render_summary(found: Mapping[str, Any]) -> Iterator[str]:
    totals, gangs, machine = found["totals"], found["gangs"], found["machine"]
    yield "## In short"
    yield ""
    yield f"{found['date']}, Kubernetes {found['kubernetes']}, API level {found['api']}, seed {found['seed']}."
    yield f"The machine has {machine['cores']} cores. It also did other work."
    if "preempted" not in found:
        yield "This run is older than the checks at the end, the faults at writes, and the faults between storms."
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
        rows["pods evicted for a gang of higher priority"] = ("preempted", found["preempted"])
    if "clocks" in found["faults"]:
        rows["times that wall clocks were set"] = ("faults.clocks", found["faults"]["clocks"])
    if "silences" in found["faults"]:
        rows["times that a process stood still for longer than its Lease"] = (
            "faults.long_freezes",
            found["faults"]["long_freezes"],
        )
        rows["times that no watch showed anything for longer than a Lease lasts"] = (
            "faults.silences",
            found["faults"]["silences"],
        )
    for label, (_, value) in rows.items():
        yield f"| {label} | {value:,} |"
    yield from _cite_numbers(list(rows.values()))
    for violation in found["violations"]:
        yield f"- `{violation}`"
    if found["violations"]:
        yield ""
    yield from _warn_of_short_rules(found)


def _render_in_force(found: Mapping[str, Any]) -> Iterator[str]:
    yield "## For how long each rule was in force"
    yield ""
    if "in_force_seconds" not in found:
        yield "This run did not measure it, so its number of violations says little about the rules with excuses."
        yield ""
        return
    yield "While nothing excuses all gangs from it. *Overlooked* begins 90 s after the last fault."
    yield "<!-- not measured: 90 s -->"
    yield ""
    yield from _draw("rule | seconds", {row: (seconds,) for row, seconds in found["in_force_seconds"].items()})
    yield from _cite_columns("in_force_seconds[row]")


def _warn_of_short_rules(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield a warning about rules that were in force too briefly for their number of violations to mean much."""
    if rules := found.get("hardly_in_force"):
        yield "These rules were in force for less than a minute, so this run says little about them:"
        yield f"{', '.join(rules)}."
        yield ""


def _render_proxy(found: Mapping[str, Any]) -> Iterator[str]:
    yield "## Faults on the way"
    yield ""
    yield "Extender, controller and scheduler reach the API server through a proxy."
    yield ""
    yield from _draw("fault | number", {row: (number,) for row, number in found["faults"]["proxy"].items()})
    yield from _cite_columns("faults.proxy[row]")


def _render_processes(found: Mapping[str, Any]) -> Iterator[str]:
    faults = found["faults"]
    yield "## Processes that die"
    yield ""
    yield "Killed with SIGKILL at random moments, frozen with SIGSTOP for 0.3 to 4 s, each eighth storm for 16 to 20 s."
    yield "<!-- not measured: 0.3 to 4 s, 16 to 20 s -->"
    yield ""
    yield from _draw("process | killed | frozen", {r: (n, faults["freezes"][r]) for r, n in faults["kills"].items()})
    yield from _cite_columns("faults.kills[row]", "faults.freezes[row]")
    if faults["at_writes"]:
        yield "These kills of the extender happened at a write between plan and bind:"
        yield ""
        yield from _draw("write | killed", {row: (number,) for row, number in faults["at_writes"].items()})
        yield from _cite_columns("faults.at_writes[row]")


def _render_cluster(found: Mapping[str, Any]) -> Iterator[str]:
    faults = found["faults"]
    yield "## Faults in the cluster"
    yield ""
    between = faults.get("cluster_at_writes")
    if between is None:  # the result is older than these faults
        yield from _draw("fault | number", {row: (number,) for row, number in faults["cluster"].items()})
        yield from _cite_columns("faults.cluster[row]")
        return
    yield "A fault at a write hits the gang or node that the extender writes about, between plan and last Binding."
    yield ""
    yield from _draw("fault | at random | at a write", {row: (n, between[row]) for row, n in faults["cluster"].items()})
    yield from _cite_columns("faults.cluster[row]", "faults.cluster_at_writes[row]")
    if ambushes := faults.get("ambushes"):
        yield "The faults at writes happened before or after these writes:"
        yield ""
        rows = {write: (sum(each["before"].values()), sum(each["after"].values())) for write, each in ambushes.items()}
        yield from _draw("write | before it | after it", rows)
        yield from _cite_columns("sum(faults.ambushes[row].before)", "sum(faults.ambushes[row].after)")


def _render_recovery(found: Mapping[str, Any]) -> Iterator[str]:
    recovery, climb, lag = found["recovery_seconds"], found["climb_seconds"], found["watch_lag_seconds"]
    yield "## Recovery"
    yield ""
    yield "Seconds from the signal to the first Binding of a gang after the process is ready again. In a storm several"
    yield "processes die at once. A killed scheduler first waits until its own Lease expires."
    yield ""
    names = ("count", "p50", "p99", "max")
    known = {name: recovery[name] for name in _RECOVERY_ORDER if name in recovery}
    yield from _draw("process | samples | p50 | p99 | longest", {r: [e[n] for n in names] for r, e in known.items()})
    yield from _cite_columns(*(f"recovery_seconds[row].{name}" for name in names))
    yield "Watch lag is the time from the creation of a PodGroup until `/debug` shows it, after each storm."
    yield ""
    rows = {"gang from first Binding to minCount": climb, "watch lag": lag}
    yield from _draw("time | samples | p50 | p99 | longest", {r: [e[n] for n in names] for r, e in rows.items()})
    times = ("climb_seconds", "watch_lag_seconds")
    yield from _cite_numbers([(f"{time}.{name}", found[time][name]) for time in times for name in names])


def _render_memory(results: Results, stormy: Mapping[str, Any]) -> Iterator[str]:
    yield "## Memory"
    yield ""
    yield "`make soak-steady` kills no process, so it judges memory: memory has grown if the median of the last quarter"
    yield "of a process's life (240 s at least) is more than 5 % plus 3 MiB above that of the second quarter."
    yield "<!-- not measured: 240 s, 5 %, 3 MiB -->"
    yield ""
    yield _name_judged("make soak", stormy)
    try:
        found = results.read(STEADY)
    except QuoteError:
        yield "There is no result of `make soak-steady`."
        yield ""
        return
    yield _name_judged("make soak-steady", found)
    if ended := found["faults"].get("own_ends", {}).keys() & found["growth_judged"]:
        yield f"Judged only since it ended by itself and was started again: {', '.join(sorted(ended))}."
    yield ""
    yield "Resident memory in MiB (the median of each part of `make soak-steady`):"
    yield ""
    rows = {f"{row['minute']:g}": (row["extender"], row["controller"]) for row in found["memory_mib"]}
    yield from _draw("minute | extender | controller", rows)
    each = "memory_mib(minute=label[0])"
    yield from _cite_columns(f"{each}.extender", f"{each}.controller", name=STEADY)
    lag = found["watch_lag_seconds"]
    more = {f"watch lag in seconds, {name}": (f"watch_lag_seconds.{name}", lag[name]) for name in ("p50", "p99")}
    yield from _sum_up(found, STEADY, more)


def _name_judged(command: str, found: Mapping[str, Any]) -> str:
    """Return the line that names the processes whose memory a run judged."""
    if "growth_judged" not in found:
        return f"This result of `{command}` does not say whose memory it judged."
    return f"`{command}` judged the memory of: {', '.join(found['growth_judged']) or 'none'}."


def _render_fallback(results: Results) -> Iterator[str]:
    try:
        found = results.read(FALLBACK)
    except QuoteError:
        return
    yield "## At the fallback level"
    yield ""
    yield "This run has the same faults, on a cluster that uses Serried's own API"
    yield "(`python -m tests.chaos --api fallback --name soak-fallback`)."
    yield ""
    more = {"processes killed": ("totals.kills", found["totals"]["kills"])}
    yield from _sum_up(found, FALLBACK, more)


def _render_tight(results: Results) -> Iterator[str]:
    try:
        found = results.read(TIGHT)
    except QuoteError:
        return
    yield "## With plain pods on full nodes"
    yield ""
    yield "`make soak-tight`: as many plain pods as gangs, of ten shapes, on full nodes, in an isolated installation."
    yield "Some Bindings of plain pods are late."
    yield ""
    more = {
        "processes killed": ("totals.kills", found["totals"]["kills"]),
        "Bindings of members": ("bindings", found["bindings"]),
        "pods that a kubelet refused (`OutOfcpu`)": (
            "refused_by_kubelets.OutOfcpu",
            found["refused_by_kubelets"]["OutOfcpu"],
        ),
        "plain pods that were bound": ("plain_wait_seconds.count", found["plain_wait_seconds"]["count"]),
    }
    yield from _sum_up(found, TIGHT, more)


def _sum_up(found: Mapping[str, Any], name: str, more: Mapping[str, tuple[str, float]]) -> Iterator[str]:
    shown = {
        "minutes": ("minutes", found["minutes"]),
        "faults on the way to the API server": ("totals.proxy", found["totals"]["proxy"]),
        **more,
        "gangs that completed": ("gangs.completed", found["gangs"].get("completed", 0)),
        "violations": ("totals.violations", found["totals"]["violations"]),
    }
    yield from _draw("in this run | number", {label: (value,) for label, (_, value) in shown.items()})
    yield from _cite_numbers(list(shown.values()), name=name)
    yield from _warn_of_short_rules(found)


def _draw(heading: str, rows: Mapping[str, Sequence[float]]) -> Iterator[str]:
    """Yield the lines of a Markdown table: a label and its numbers in each row."""
    yield f"| {heading} |"
    yield "|" + "---|" * (heading.count("|") + 1)
    for label, numbers in rows.items():
        yield f"| {label} | {' | '.join(f'{number:,}' for number in numbers)} |"


def _cite_numbers(pairs: Sequence[tuple[str, float]], name: str = NAME) -> Iterator[str]:
    """Yield a comment for `bench.quotes`: the source in the result and the value of each number above, in order."""
    yield f"<!-- measured: {name}"
    yield from (f"{number:,} = {source}" for source, number in pairs[:-1])
    yield f"{pairs[-1][1]:,} = {pairs[-1][0]} -->"
    yield ""


def _cite_columns(*sources: str, name: str = NAME) -> Iterator[str]:
    """Yield a comment for `bench.quotes`: the source in the result of each column of the table above."""
    yield f"<!-- measured: {name}"
    yield f"| {' | '.join(sources)} | -->"
    yield ""


if __name__ == "__main__":
    sys.exit(main())
