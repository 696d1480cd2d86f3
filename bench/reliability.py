"""The page on reliability, `docs/reliability.md`, as the newest soak in `bench/results` has it.

    make soak                              makes the result: python -m tests.chaos
    make soak-steady                       makes the one that judges memory
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
"""A soak in which nobody is killed: ``make soak-steady``."""

FALLBACK = "soak-fallback"
"""A soak at the other API level: ``--api fallback --name soak-fallback``."""

_ORDER = ("extender", "controller", "scheduler", "kube-apiserver", "etcd", "split brain", "clock")

_HEAD = """# Reliability

This page shows what happens when processes die, requests fail and nodes disappear. The command
`python -m bench.reliability --write` generates it from the newest result of `make soak`. You can run the soak yourself:
`python -m tests.chaos --minutes 10 --seed 1`.

The soak runs a real control plane with nodes that kwok simulates. A steady load has more gangs than fit: gangs with and
without a topology key, elastic gangs, trees, gangs that preempt, Jobs, plain pods. Faults come in rounds. In a storm
processes die, requests fail and the cluster changes. The soak restarts every process that it killed. Then it waits
until all processes are ready, and for a while it disturbs only watches. After each eighth storm it disturbs nothing for
two minutes. `make soak` fails if it has fewer than 10,000 faults on the way, or fewer than 300 kills. The numbers below
say how many this run had. `make test` includes a short run with a fixed seed (`tests/e2e/test_faults.py`).

## What is checked

A separate process, the checker, watches the API server and `/debug`. It checks the rules below four times a second. It
shares no code with Serried except the names of API versions. A unit test breaks each rule in turn, and asserts that the
checker notices.

| rule | broken if |
|---|---|
| half bound | 0 < bound < minCount for longer than 2 s + minCount / 200 s outside of a recovery. Trees likewise |
| domain | members of a gang or a tree run in two domains of the required key, or on a node without that key |
| over-committed | Serried binds more pods or CPU to a node than it holds, and no other scheduler did so within 2 s |
| orphan | a Reservation without its gang, or a nomination without a Reservation, for 15 s (beyond the quorum 60 s) |
| silent | a gang waits for 10 s, and its condition or `/debug` gives no reason |
| leaked finalizer | a deleted group still exists after 75 s, although no pod names it any more |
| write at rest | while nothing happens, a process of Serried or the scheduler sends a write, whatever it changes |
| overlooked | a gang or tree fits, is not behind the first in the queue, and is not bound 90 s after the last fault |

A watched change that comes late or twice is no fault for *overlooked*. This rule does not judge a tree in which single
groups have a topology key, because whether they fit takes a search. The load has no such tree.

*overlooked* also judges a gang that has lost members, once others wait in their place and have room where the rest of
the gang runs. Trees that have lost members are judged at the end, when all gangs must complete. *silent* judges gangs
that have not had their quorum yet.

For *write at rest* the soak counts requests on their way: a write that changes nothing is one. Leases, reviews of
tokens, and Events of kube-scheduler are not counted. At rest one gang waits that never fits, and kube-scheduler looks
at it again every five minutes.

At the end the load stops, and every gang that exists must complete. After that Serried must not remember anything that
no longer exists. The soak compares the cache of the extender with the API server (`/debug/cache/diff`). The extender
must have no record, no kept slot, and no group except those that wait. The controller must have nothing left to do.
Finally the soak binds one member of a gang of two by hand. If the checker does not report it, the checker is blind, and
the run has failed. What grows too slowly for a soak is found by `tests/sim/test_nothing_grows.py`: it counts the items
of every container in the controller and in the extender's core.

A *recovery* begins with the signal to the extender, the scheduler, the API server or etcd. It ends 8 s after the
process is ready again. It is a recovery, too, while two extenders are active at once, while wall clocks are wrong,
and while no watch shows the extender anything: then it sees nobody renew the Lease. For *leaked finalizer* the
controller counts as well. For *orphan* and *silent* the time counts as well in which a list or a watch of the extender
was refused or lost for more than a second: it cannot speak of a pod that it does not know. If a write about a gang was
refused, lost or delayed on the way, the recovery of this gang lasts until 15 s after that write. A member does not
count as missing if it is deleted before it is bound, or if its planned node is taken away. Two extenders that are
active at once may over-commit a node, as any two schedulers may, because the API server does not check it.
<!-- not measured: 2 s, 200 s, 15 s, 60 s, 10 s, 75 s, 90 s, 8 s -->

The soak sets the wall clocks of extender and controller back or ahead by up to an hour, for a few seconds.
`tests/sim/test_death_anywhere.py` and `tests/sim/test_clock_jumps.py` move the clocks of the extender's core, and
`tests/e2e/promises/test_clocks.py` those of both processes. The soak has one extender and no standby:
`tests/e2e/promises/test_failover.py` tests failovers, and `python -m bench.failover` measures them. The soak does not
test a network that separates two nodes, a full disk, or a loss of etcd's data.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the page, or write it."""
    return offer_page(PAGE, render, arguments, program="python -m bench.reliability", about=__doc__ or "")


def render(directory: Path = RESULTS) -> str:
    """The page."""
    results = Results(directory)
    found = results.read(NAME)
    parts = (_render_summary, _render_force, _render_requests, _render_processes, _render_cluster, _render_recovery)
    lines = [line for part in parts for line in part(found)]
    return "\n".join([_HEAD, *lines, *_render_memory(results, found), *_render_fallback(results)]).rstrip("\n") + "\n"


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
        rows["pods that had to go for a gang of higher priority"] = ("preempted", found["preempted"])
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
    yield from _quote(list(rows.values()))
    for violation in found["violations"]:
        yield f"- `{violation}`"
    if found["violations"]:
        yield ""
    yield from _warn(found)


def _render_force(found: Mapping[str, Any]) -> Iterator[str]:
    yield "## For how long each rule was in force"
    yield ""
    if "in_force_seconds" not in found:
        yield "This run did not measure it, so its number of violations says little about the rules with excuses."
        yield ""
        return
    yield "A rule is in force while nothing excuses all gangs from it. A recovery excuses from *half bound*, *orphan*,"
    yield "*silent* and *leaked finalizer*. *Overlooked* begins 90 s after the last fault. *Write at rest* is in force"
    yield "only at rest, and the rules about Bindings only before it. A write that was refused or delayed excuses one"
    yield "gang for a while, which the table ignores."
    yield "<!-- not measured: 90 s -->"
    yield ""
    yield from _draw("rule | seconds", {row: (seconds,) for row, seconds in found["in_force_seconds"].items()})
    yield from _cite("in_force_seconds[row]")


def _warn(found: Mapping[str, Any]) -> Iterator[str]:
    """What the number of violations does not say."""
    if rules := found.get("hardly_in_force"):
        yield "These rules were in force for less than a minute, so this run says little about them:"
        yield f"{', '.join(rules)}."
        yield ""


def _render_requests(found: Mapping[str, Any]) -> Iterator[str]:
    yield "## Faults on the way"
    yield ""
    yield "Extender, controller and scheduler reach the API server through a proxy. The proxy answers in the place of"
    yield "the API server, loses answers, and cuts, delays, repeats and expires watches."
    yield ""
    yield from _draw("fault | number", {row: (number,) for row, number in found["faults"]["proxy"].items()})
    yield from _cite("faults.proxy[row]")


def _render_processes(found: Mapping[str, Any]) -> Iterator[str]:
    faults = found["faults"]
    yield "## Processes that die"
    yield ""
    yield "The soak kills processes with SIGKILL at random moments. It freezes processes with SIGSTOP for 0.3 to 4 s."
    yield "In each eighth storm it freezes the extender, the controller or the scheduler for 16 to 20 s. A storm"
    yield "begins with a kill of the extender at a write between plan and bind, if one comes within 5 s."
    yield "<!-- not measured: 0.3 to 4 s, 16 to 20 s, 5 s -->"
    yield ""
    yield from _draw("process | killed | frozen", {r: (n, faults["freezes"][r]) for r, n in faults["kills"].items()})
    yield from _cite("faults.kills[row]", "faults.freezes[row]")
    if faults["at_writes"]:
        yield "These kills of the extender happened at a write between plan and bind:"
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
    yield "A fault at random hits any object at a random moment. A fault at a write happens while the extender"
    yield "writes, between plan and last Binding. It hits the gang or node that the write is about. The write"
    yield "continues after it."
    yield ""
    yield from _draw("fault | at random | at a write", {row: (n, between[row]) for row, n in faults["cluster"].items()})
    yield from _cite("faults.cluster[row]", "faults.cluster_at_writes[row]")
    if ambushes := faults.get("ambushes"):
        yield "The faults at writes happened before or after these writes:"
        yield ""
        rows = {write: (sum(each["before"].values()), sum(each["after"].values())) for write, each in ambushes.items()}
        yield from _draw("write | before it | after it", rows)
        yield from _cite("sum(faults.ambushes[row].before)", "sum(faults.ambushes[row].after)")


def _render_recovery(found: Mapping[str, Any]) -> Iterator[str]:
    recovery, climb, lag = found["recovery_seconds"], found["climb_seconds"], found["watch_lag_seconds"]
    yield "## Recovery"
    yield ""
    yield "The table shows seconds from the signal to the first Binding of a gang after the process is ready again."
    yield "In a storm several processes die at once, and may die again while they start. A killed scheduler first"
    yield "waits until its own Lease expires. After the API server ends, the scheduler pauses before it watches"
    yield "again, longer each time (client-go's backoff). `python -m bench.failover` measures single failures."
    yield ""
    names = ("count", "p50", "p99", "max")
    known = {name: recovery[name] for name in _ORDER if name in recovery}
    yield from _draw("process | samples | p50 | p99 | longest", {r: [e[n] for n in names] for r, e in known.items()})
    yield from _cite(*(f"recovery_seconds[row].{name}" for name in names))
    yield "The next table shows seconds from the first Binding of a gang to minCount, including recoveries. Watch lag"
    yield "is the time from the creation of a PodGroup until `/debug` shows it, after each storm."
    yield ""
    rows = {"gang from first Binding to minCount": climb, "watch lag": lag}
    yield from _draw("time | samples | p50 | p99 | longest", {r: [e[n] for n in names] for r, e in rows.items()})
    times = ("climb_seconds", "watch_lag_seconds")
    yield from _quote([(f"{time}.{name}", found[time][name]) for time in times for name in names])


def _render_memory(results: Results, stormy: Mapping[str, Any]) -> Iterator[str]:
    yield "## Memory"
    yield ""
    yield "A run judges whether the memory of extender or controller grows if it lives until the end of the run, for"
    yield "240 s at least. `make soak` kills processes, so `make soak-steady` judges them. In the second run requests"
    yield "fail and the cluster changes, but no process is killed. Memory has grown if the median of the last quarter"
    yield "of this life is more than 5 % plus 3 MiB above the median of the second quarter."
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
    yield "The table shows resident memory in MiB for each part of `make soak-steady`: the median of its samples. The"
    yield "minute is the end of the part."
    yield ""
    rows = {f"{row['minute']:g}": (row["extender"], row["controller"]) for row in found["memory_mib"]}
    yield from _draw("minute | extender | controller", rows)
    each = "memory_mib(minute=label[0])"
    yield from _cite(f"{each}.extender", f"{each}.controller", name=STEADY)
    lag = found["watch_lag_seconds"]
    more = {f"watch lag in seconds, {name}": (f"watch_lag_seconds.{name}", lag[name]) for name in ("p50", "p99")}
    yield from _sum_up(found, STEADY, more)


def _name_judged(command: str, found: Mapping[str, Any]) -> str:
    """A line that says whose memory a run has judged."""
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
    yield from _warn(found)


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
