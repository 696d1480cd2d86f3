"""Compare the figures of phases with their targets, and render the tables. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.jobs.figures import Marks, Memory, Phase, Rest, Restart, Syncs

SLO_SECONDS = 1.0
"""99 % of the Jobs must have their objects within this time."""

MOST_MEMORY = 50.0
"""The largest growth of the controller's memory, in MB."""

LARGEST_SHARE, LARGEST_DELAY = 0.10, 0.010
"""The largest growth of a controller's mean sync: as a share, and in seconds."""

MOST_CPU = 0.002
"""The most CPU seconds of the controller for one gang Job."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One target and the measured value, as text for a table."""

    what: str
    wanted: str
    found: str
    met: bool


def judge_creation(phase: Phase) -> Iterator[Verdict]:
    """Judge how soon gang Jobs have their Workloads."""
    yield Verdict(
        f"99 % of Workloads after the Job's creation, {phase.state} gang Jobs at {phase.rate:.0f}/s",
        f"<= {SLO_SECONDS:g} s",
        f"{_seconds(phase.workloads)} (PodGroups {_seconds(phase.pod_groups)})",
        is_in_time(phase.workloads, phase.jobs),
    )


def judge_creates(phase: Phase) -> Iterator[Verdict]:
    """Judge how many objects are created for a Job: two for a gang, none for a plain Job."""
    wanted = 2 if phase.kind == "gang" else 0
    found = phase.creates_per_job
    yield Verdict(f"creates per {phase.kind} Job, {phase.jobs:,} Jobs", str(wanted), f"{found:g}", found == wanted)


def judge_own_syncs(gang: Phase, plain: Phase) -> Iterator[Verdict]:
    """Judge how much longer the controller's syncs of gang Jobs take than those of plain Jobs."""
    if gang.controller_syncs and plain.controller_syncs:
        yield _compare("controller's mean sync, gang Jobs beside others", plain.controller_syncs, gang.controller_syncs)


def judge_own_cpu(gang: Phase) -> Iterator[Verdict]:
    """Judge the controller's CPU time for a gang Job, including watch events, until all Jobs have their objects."""
    spent = gang.cpu_seconds["controller"] / gang.jobs
    yield Verdict(
        f"controller's CPU for a gang Job at {gang.rate:.0f}/s",
        f"<= {MOST_CPU * 1e3:g} ms",
        f"{spent * 1e3:.2f} ms",
        spent <= MOST_CPU,
    )


def judge_manager_syncs(alone: Sequence[Phase], phase: Phase) -> Iterator[Verdict]:
    """Judge how much longer kube-controller-manager's syncs take beside the controller.

    ``alone`` are the phases without the controller, before and after.
    """
    without = [one.manager_syncs for one in alone if one.manager_syncs]
    if without and phase.manager_syncs:
        count = sum(one.count for one in without)
        mean = sum(one.mean * one.count for one in without) / count
        before = Syncs(count, mean, max(one.p99_at_most for one in without))
        what = f"kube-controller-manager's mean Job sync, {phase.kind} Jobs and controller beside neither"
        yield _compare(what, before, phase.manager_syncs)


def judge_memory(jobs: int, memory: Memory) -> Iterator[Verdict]:
    """Judge the growth of the controller's memory by the Jobs."""
    more = memory.more
    yield Verdict(
        f"controller's RSS for {jobs:,} gang Jobs", f"<= {MOST_MEMORY:g} MB more", f"{more:.1f} MB", more <= MOST_MEMORY
    )


def judge_flood(phase: Phase) -> Iterator[Verdict]:
    """Judge whether all gang Jobs of a flood have their PodGroup."""
    found = phase.pod_groups.count if phase.pod_groups else 0
    last = "" if phase.last is None else f", the last after {phase.last:.1f} s"
    yield Verdict(
        f"gang Jobs created at once ({phase.rate:.0f}/s) with Workload and PodGroup",
        f"{phase.jobs:,}",
        f"{found:,}{last}",
        found == phase.jobs,
    )


def judge_rest(rest: Rest) -> Iterator[Verdict]:
    """Judge whether the controller writes while nothing happens."""
    rate = rest.controller_rate
    yield Verdict(f"controller's writes a second at rest, over {rest.seconds:.0f} s", "0", f"{rate:g}", rate == 0)


def judge_restart(jobs: int, restart: Restart) -> Iterator[Verdict]:
    """Judge whether the controller writes after a restart."""
    count = sum(restart.writes.values())
    what = f"controller's writes after a restart with {jobs:,} gang Jobs"
    yield Verdict(what, "0", f"{count} (ready after {restart.seconds:.1f} s)", count == 0)


def judge_ladder(rungs: Sequence[Phase]) -> Iterator[Verdict]:
    """Judge the creation of Workloads at the highest rate at which kube-controller-manager creates pods in time."""
    highest = max(filter(is_sustained, rungs), key=lambda rung: rung.rate, default=None)
    if highest is None:
        yield Verdict("running gang Jobs/s with pods in time", "any rate", "none of those tried", met=False)
    else:
        yield from judge_creation(highest)


def is_sustained(phase: Phase) -> bool:
    """Return whether 99 % of the Jobs had a pod within the SLO, at about the wanted rate."""
    wanted = phase.wanted_rate or 0.0
    return is_in_time(phase.pods, phase.jobs) and phase.rate >= 0.95 * wanted


def is_in_time(marks: Marks | None, jobs: int) -> bool:
    """Return whether all Jobs got the object, and 99 % of them within the SLO."""
    return marks is not None and marks.count == jobs and marks.p99 <= SLO_SECONDS


def render_verdicts(verdicts: Sequence[Verdict]) -> str:
    """Return a Markdown table of the targets; missed ones are marked in capitals."""
    lines = ["| number | wanted | found | |", "|---|---|---|---|"]
    lines += [f"| {one.what} | {one.wanted} | {one.found} | {'met' if one.met else 'MISSED'} |" for one in verdicts]
    return "\n".join(lines)


def render_phases(phases: Sequence[Phase]) -> str:
    """Return a Markdown table with a line for each phase. Times are milliseconds."""
    titles = ["phase", "Jobs/s", "create p99", "Workload p50", "p90", "p99", "max", "PodGroup p99", "pod p99",
              "mean sync of kube-controller-manager", "ours"]  # fmt: skip
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for one in phases:
        cells = [
            one.name,
            f"{one.rate:.0f}",
            *_cells(one.creates, "p99"),
            *_cells(one.workloads, "p50", "p90", "p99", "longest"),
            *_cells(one.pod_groups, "p99"),
            *_cells(one.pods, "p99"),
            *_cells(one.manager_syncs, "mean"),
            *_cells(one.controller_syncs, "mean"),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _compare(what: str, before: Syncs, after: Syncs) -> Verdict:
    more = after.mean - before.mean
    share = more / before.mean
    found = f"{before.mean * 1e3:.2f} to {after.mean * 1e3:.2f} ms ({share:+.0%})"
    return Verdict(what, "<= +10 %, < 10 ms more", found, share <= LARGEST_SHARE and more < LARGEST_DELAY)


def _seconds(marks: Marks | None) -> str:
    return f"{marks.p99:.3f} s" if marks else "none seen"


def _cells(times: Marks | Syncs | None, *names: str) -> list[str]:
    return ["" if times is None else f"{getattr(times, name) * 1e3:.1f}" for name in names]
