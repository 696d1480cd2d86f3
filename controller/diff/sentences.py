"""The texts of the controller's events, each with the event's reason. No other file of the controller contains texts.

Functions named ``..._event`` return a whole event, functions named ``describe_...`` a phrase that is used in one.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from serried.api.group import PodGroup, Workload
from serried.api.job import GangPolicy, Job, NoGang
from serried.api.kinds import OWNER_KINDS
from serried.api.names import GANG_POLICY, Malformed, join_some, quote
from serried.api.parent import MOST_TEMPLATES, Owner, Parent, kind_of

NO_GANG = f"{GANG_POLICY}: {GangPolicy.NO_GANG}"
"""The annotation by which the author of a Job or other owner says that it is no gang, as text for events."""

_MOST_NAMES = 3
"""The largest number of objects that an event names, because users may create any number of them."""


class EventText(NamedTuple):
    """Reason and message of an event."""

    reason: str

    message: str


# --- what was written ----------------------------------------------------------------------------------------------


def created_event(kind: str, name: str, owner: Owner) -> EventText:
    """Return the event for a created Workload or PodGroup."""
    return EventText(f"{kind}Created", f"Created {kind} {name} for {_name(owner)}")


def deleted_event(kind: str, name: str, owner: Owner) -> EventText:
    """Return the event for a deleted Workload or PodGroup."""
    return EventText(f"{kind}Deleted", f"Deleted {kind} {name} of {_name(owner)}")


def min_count_event(group: PodGroup, count: int, owner: Owner) -> EventText:
    """Return the event for a PodGroup whose minCount was changed to ``count``."""
    return EventText(
        "MinCountChanged", f"Changed minCount of PodGroup {group.key.name} to {count}, to follow {_name(owner)}"
    )


def failed_write_event(kind: str, verb: str, owner: Owner, error: Exception) -> EventText:
    """Return the event for a failed write of a Workload or PodGroup. ``verb`` is Create, Update or Delete."""
    return EventText(f"Failed{kind}{verb}", f"Failed to {verb.lower()} {kind} for {_name(owner)}: {error}")


def api_unavailable_event(owner: Owner, obstacle: str) -> EventText:
    """Return the event for an owner whose Workload cannot be created, because the API server offers no PodGroups.

    ``obstacle`` says what is missing.
    """
    return EventText("FailedWorkloadCreate", f"Failed to create Workload for {_name(owner)}: {obstacle}")


# --- what is wrong with an owner -----------------------------------------------------------------------------------


def invalid_annotation_event(owner: Owner) -> EventText:
    """Return the event for an owner with an annotation whose value is not allowed."""
    said = f"Failed to compile Workload for {_name(owner)}: {owner.problem}"
    return EventText("FailedWorkloadCompilation", said)


def unknown_name_event(owner: Owner) -> EventText:
    """Return the event for an owner with an annotation or label that looks like one of Serried's and is unknown."""
    return EventText("UnknownName", f"{_name(owner)}: {owner.stray}")


def foreign_scheduler_event(owner: Owner, schedulers: Iterable[str], served: Iterable[str]) -> EventText:
    """Return the event for an owner that asks to be a gang, but whose pods name schedulers that Serried does not serve.

    ``schedulers`` are those that its pods name, ``served`` those that Serried serves.
    """
    asks = "to be a gang" if isinstance(owner, Job) else "for gangs"
    said = f"{_name(owner)} asks {asks}, but Serried does not serve its scheduler {', '.join(schedulers)}"
    return EventText("SchedulerNotGangAware", f"{said}; create it again with schedulerName {min(served)}")


def no_gang_event(owner: Owner, found: NoGang) -> EventText:
    """Return the event for an owner that is no gang although its author might expect one. ``found`` has the reason."""
    said = f"{_name(owner)} is not a gang, so {describe_no_gang(found)}. To silence this event, set {NO_GANG}"
    return EventText("NoGang", said)


def describe_no_gang(found: NoGang) -> str:
    """Return a phrase about an owner that is no gang: how its pods are placed, why, and how to make it a gang.

    ``found`` has the last two.
    """
    remedy = f"; to make it a gang, create it again with {found.remedy}" if found.remedy else ""
    return f"kube-scheduler places its pods one by one: {found.why}{remedy}"


def contradiction_event(job: Job) -> EventText:
    """Return the event for a Job whose field spec.scheduling and annotation gang-policy contradict each other."""
    said = f"Serried ignores the annotation {GANG_POLICY} of {_name(job)}, because spec.scheduling contradicts it"
    return EventText("GangPolicyIgnored", said)


def jobs_ignored_event(parent: Parent) -> EventText:
    """Return the event for a JobSet or the like that is one gang, so that its Jobs' own annotation has no effect.

    The annotation asks that the Job be a gang of its own.
    """
    return EventText(
        "GangPolicyIgnored", f"{_name(parent)} is one gang, so Serried ignores the annotation {GANG_POLICY} of its Jobs"
    )


def dependent_pods_event(parent: Parent) -> EventText:
    """Return the event for an owner that cannot be a gang: some of its pods are created only when others run."""
    why = f"some of its pods are created only when another pod has a node ({parent.obstacle})"
    return EventText("NoGang", f"{_name(parent)} is not a gang: {why}")


def too_many_stages_event(parent: Parent, count: int) -> EventText:
    """Return the event for an owner with ``count`` stages, more than a Workload can have templates.

    A stage is a set of pods that are created together, such as a ReplicatedJob of a JobSet.
    """
    said = f"{_name(parent)} is not a gang: it has {count} stages, and a Workload has at most {MOST_TEMPLATES} gangs"
    return EventText("NoGang", said)


def gang_per_stage_event(parent: Parent) -> EventText:
    """Return the event for an owner whose stages start one after the other, so that each stage is a gang of its own.

    A stage is a set of pods that are created together, such as a ReplicatedJob of a JobSet.
    """
    said = OWNER_KINDS[parent.kind].staged
    return EventText("GangPerStage", said.format(owner=_name(parent), field=parent.staged))


def upstream_basic_event(workload: Workload, job: Job) -> EventText:
    """Return the event for a Job with a Workload of policy basic, so that it is no gang, although it looks like one.

    kube-controller-manager made the Workload.
    """
    said = f"kube-controller-manager made Workload {workload.key.name} for {_name(job)} with policy basic, so the Job"
    return EventText("NoGang", f"{said} is not a gang; to make it a gang, set spec.scheduling.schedulingPolicy.gang")


def ignored_changes_event(owner: Owner, annotations: Sequence[str]) -> EventText:
    """Return the event for an owner with annotations that were changed when its PodGroups existed already.

    Such changes have no effect.
    """
    said = (
        f"{', '.join(annotations)} of {_name(owner)} changed after its PodGroup was created, which has no effect: "
        "delete it and create it again"
    )
    return EventText("GangChangeIgnored", said)


def level_left_out_event(owner: Owner, levels: Sequence[str]) -> EventText:
    """Return the event for an owner that prefers topology levels for which no node label is known in this cluster."""
    said = (
        f"Serried knows no node label for level {', '.join(levels)} and ignores it, although {_name(owner)} prefers it"
    )
    return EventText("LevelLeftOut", said)


# --- which groups an owner's pods form -----------------------------------------------------------------------------


def ambiguous_event(owner: Owner, problem: str) -> EventText:
    """Return the event for an owner whose pods are no gang, because it is unclear which PodGroup is theirs.

    ``problem`` is the reason, by `describe_workloads`, `describe_templates` or `describe_groups`.
    """
    return EventText(
        "AmbiguousWorkload", f"{_name(owner)} is no gang, so kube-scheduler places its pods one by one: {problem}"
    )


def describe_workloads(workloads: Iterable[Workload]) -> str:
    """Return the reason that several Workloads refer to the owner, as a phrase for `ambiguous_event`."""
    return f"Workloads {_join_names(workloads)} all refer to it, but exactly one may"


def describe_templates(owner: Owner, workload: Workload) -> str:
    """Return the reason that no template of the Workload is for the owner, as a phrase for `ambiguous_event`."""
    name = workload.key.name
    if isinstance(owner, Job) and owner.delegation is not None:
        return f"Workload {name} has no template {quote(owner.delegation.template)}, which its annotation names"
    if isinstance(owner, Job):
        return f"Workload {name} has {len(workload.templates)} PodGroup templates, but must have exactly one"
    return f"Workload {name} needs one template with the name of each group of pods"


def describe_groups(owner: Owner, workload: Workload, groups: Iterable[PodGroup]) -> str:
    """Return the reason that several PodGroups are for the same pods of an owner, as a phrase for `ambiguous_event`."""
    names = _join_names(groups)
    if isinstance(owner, Job):
        return f"PodGroups {names} were all made from Workload {workload.key.name}, but exactly one may be"
    return f"PodGroups {names} are all for the same pods of Workload {workload.key.name}"


# --- objects that cannot be read -----------------------------------------------------------------------------------


def malformed_event(malformed: Malformed) -> EventText:
    """Return the event for an object that Serried ignores, because one of its fields cannot be decoded."""
    said = f"Serried cannot read this {malformed.kind} and ignores it until it changes: {malformed.problem}"
    return EventText("Malformed", said)


def _name(owner: Owner) -> str:
    return f"{kind_of(owner)} {owner.key.name}"


def _join_names(objects: Iterable[Workload | PodGroup]) -> str:
    return join_some([item.key.name for item in objects], _MOST_NAMES)
