"""The decision on one group, made again from a capture, and beside it the one that was made then."""

from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from extender.core import Core
from extender.replay.restoring import restore
from extender.scheduling.effects import WorkOnStudies
from extender.scheduling.group_state import GroupState
from serried.model.capture import Capture
from serried.model.group import GroupKey
from serried.model.reservation import Slot, Victim
from serried.model.verdict import Reason, Verdict, render

_MAX_LOOKS = 50
"""How often a group is looked at: once more after each study that it has asked for."""


@dataclass(frozen=True, slots=True)
class Ruling:
    """A plan, or why there is none."""

    domain: str = ""

    nodes: Mapping[str, str] = field(default_factory=dict)
    """Node by the name of the member; empty without a plan."""

    victims: tuple[str, ...] = ()
    """Namespace and name of each pod that has to end before the plan holds, sorted."""

    verdict: Verdict | None = None
    """Why there is no plan; None with one."""

    def describe(self) -> str:
        """One sentence."""
        if self.verdict is not None:
            return render(self.verdict)
        place = f" in {self.domain}" if self.domain else ""
        cost = f", once {len(self.victims)} pods have ended: {', '.join(self.victims)}" if self.victims else ""
        return f"{Reason.PLANNED}: {len(self.nodes)} members on {len(set(self.nodes.values()))} nodes{place}{cost}"


class Match(StrEnum):
    """How a decision compares with the one that was recorded."""

    EQUAL = "equal"

    OTHER_NUMBERS = "other numbers"
    """The same reason with other numbers: room has changed since, and not so that it could have helped."""

    DIFFERENT = "different"

    UNRECORDED = "unrecorded"
    """Nothing had been decided by then."""


def recall(capture: Capture, group: GroupKey) -> Ruling | None:
    """What was decided on a group by then; None if nothing was."""
    bound = {pod.uid for pod in capture.pods if pod.bound}
    for reserved in capture.reservations:
        if reserved.group == group:
            return _describe_plan(reserved.domain, [s for s in reserved.slots if s.uid not in bound], reserved.victims)
    for memory in capture.memories:
        if memory.group == group:
            return None if memory.verdict is None else Ruling(verdict=memory.verdict)
    return None


def decide(capture: Capture, group: GroupKey) -> Ruling:
    """The decision on a group as it would be made anew: without the reservation that it may have.

    Raises ValueError if the group is not in the capture.
    """
    core = restore(capture)
    if group not in core.store.groups and not core.store.members.of_group(group):
        raise ValueError(f"group {group} is not in the snapshot")
    _take_back(core, capture, group)
    known = core.groups.states.setdefault(group, GroupState(capture.clock))
    known.cycle = None
    known.verdict = None
    for _ in range(_MAX_LOOKS):
        core.group_scheduler.consider(group)
        if not _carry_out(core):
            break
    reservation = core.ledger.of_group(group)
    if reservation is not None:
        return _describe_plan(reservation.domain, reservation.slots.values(), reservation.victims.values())
    state = core.groups.states.get(group)
    return Ruling(verdict=state.verdict if state is not None else None)


def _take_back(core: Core, capture: Capture, group: GroupKey) -> None:
    """As if the group had no plan yet, and what followed from that had not come either."""
    core.ledger.unreserve(group)
    head = core.queue.backfill.head
    since = next((each.since for each in capture.reservations if each.group == group), None)
    if head is not None and since is not None and head.made >= since:
        core.queue.backfill.head = None


def compare(recorded: Ruling | None, found: Ruling) -> Match:
    """How a decision that was made again compares with the recorded one; what else a verdict says does not count."""
    if recorded is None:
        return Match.UNRECORDED
    if _without_detail(recorded) == _without_detail(found):
        return Match.EQUAL
    if recorded.verdict is not None and found.verdict is not None and recorded.verdict.reason is found.verdict.reason:
        return Match.OTHER_NUMBERS
    return Match.DIFFERENT


def list_waiting(capture: Capture) -> list[GroupKey]:
    """The groups that waited for something, in the order of their names."""
    reserved = {each.group for each in capture.reservations}
    done = frozenset({Reason.SCHEDULED})
    waiting = {each.group for each in capture.memories if each.verdict is not None and each.verdict.reason not in done}
    return sorted(waiting | reserved)


def _carry_out(core: Core) -> bool:
    """Finish the studies that were asked for; whether there were any. Everything else stays undone."""
    asked = any(isinstance(effect, WorkOnStudies) for effect in core.outbox.take())
    if asked:
        _finish(core.studies.work())
    return asked


def _finish(work: Coroutine[Any, Any, None]) -> None:
    # It never waits for anything: whoever rests between two slices here rests for no time.
    try:
        work.send(None)
    except StopIteration:
        return
    raise RuntimeError("a study waits for something")


def _describe_plan(domain: str, slots: Iterable[Slot], victims: Iterable[Victim]) -> Ruling:
    return Ruling(
        domain,
        {slot.name: slot.node for slot in sorted(slots, key=lambda slot: slot.name)},
        tuple(sorted(f"{victim.namespace}/{victim.name}" for victim in victims)),
    )


def _without_detail(decision: Ruling) -> Ruling:
    verdict = decision.verdict
    return decision if verdict is None else replace(decision, verdict=replace(verdict, detail=""))
