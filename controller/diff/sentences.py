"""The sentences of the controller's events, each with the event's reason. No other file of the controller has any."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from serried.api.group import PodGroup, Workload
from serried.api.job import GangPolicy, Job, NoGang
from serried.api.kinds import OWNER_KINDS
from serried.api.names import GANG_POLICY, Malformed, quote
from serried.api.parent import MOST_TEMPLATES, Owner, Parent, kind_of

NO_GANG = f"{GANG_POLICY}: {GangPolicy.NO_GANG}"
"""What an owner that is meant to be no gang may say."""

_SHOWN = 3
"""How many objects are named; a user may make any number of them."""


class Sentence(NamedTuple):
    """What an event says."""

    reason: str

    message: str


# --- what was written ----------------------------------------------------------------------------------------------


def tell_created(kind: str, name: str, owner: Owner) -> Sentence:
    """A Workload or a PodGroup was created."""
    return Sentence(f"{kind}Created", f"Created {kind} {name} for {_name(owner)}")


def tell_deleted(kind: str, name: str, owner: Owner) -> Sentence:
    """A Workload or a PodGroup was deleted."""
    return Sentence(f"{kind}Deleted", f"Deleted {kind} {name} of {_name(owner)}")


def tell_min_count(group: PodGroup, count: int, owner: Owner) -> Sentence:
    """The minCount of a PodGroup was changed."""
    return Sentence(
        "MinCountChanged", f"minCount of PodGroup {group.key.name} is {count} now, as {_name(owner)} has it"
    )


def tell_failure(kind: str, verb: str, owner: Owner, error: Exception) -> Sentence:
    """A write of a Workload or a PodGroup was refused; ``verb`` is Create, Update or Delete."""
    return Sentence(f"Failed{kind}{verb}", f"Failed to {verb.lower()} {kind} for {_name(owner)}: {error}")


def tell_obstacle(owner: Owner, obstacle: str) -> Sentence:
    """Nothing can be created for any owner now."""
    return Sentence("FailedWorkloadCreate", f"Failed to create Workload for {_name(owner)}: {obstacle}")


# --- what is wrong with an owner -----------------------------------------------------------------------------------


def tell_problem(owner: Owner) -> Sentence:
    """An annotation of the owner has a value that is not allowed."""
    said = f"Failed to compile Workload for {_name(owner)}: {owner.problem}"
    return Sentence("FailedWorkloadCompilation", said)


def tell_stray(owner: Owner) -> Sentence:
    """An annotation or a label of the owner has a name that nothing reads."""
    return Sentence("UnknownName", f"{_name(owner)}: {owner.stray}")


def tell_foreign_scheduler(owner: Owner, schedulers: Iterable[str], served: Iterable[str]) -> Sentence:
    """The owner asks to be a gang of a scheduler that Serried does not serve."""
    asks = "to be a gang" if isinstance(owner, Job) else "for gangs"
    said = f"{_name(owner)} asks {asks}, but Serried does not serve its scheduler {', '.join(schedulers)}"
    return Sentence("SchedulerNotGangAware", f"{said}; create it anew with schedulerName {min(served)}")


def tell_no_gang(owner: Owner, found: NoGang) -> Sentence:
    """The owner is no gang, though its author might expect one."""
    said = f"{_name(owner)} is not a gang, so {describe_no_gang(found)}. With {NO_GANG} nothing is said"
    return Sentence("NoGang", said)


def describe_no_gang(found: NoGang) -> str:
    """What follows from that, why it is so, and what to do about it, a phrase."""
    remedy = f"; to make it one, create it anew with {found.remedy}" if found.remedy else ""
    return f"its pods are placed one by one: {found.why}{remedy}"


def tell_contradiction(job: Job) -> Sentence:
    """The Job's field and its annotation differ."""
    said = f"spec.scheduling and the gang-policy annotation of {_name(job)} differ; spec.scheduling counts"
    return Sentence("GangPolicyIgnored", said)


def tell_jobs_ignored(parent: Parent) -> Sentence:
    """Jobs of a gang ask to be gangs of their own."""
    return Sentence("GangPolicyIgnored", f"{_name(parent)} is one gang, so the gang-policy of its Jobs is ignored")


def tell_waiting_pods(parent: Parent) -> Sentence:
    """The parent's pods are made one after another, so they cannot wait for each other."""
    said = f"{_name(parent)} is not a gang: some of its pods wait for the node of another pod ({parent.obstacle})"
    return Sentence("NoGang", said)


def tell_many_stages(parent: Parent, count: int) -> Sentence:
    """The parent has more stages than a Workload has room for."""
    said = f"{_name(parent)} is not a gang: it has {count} stages, and a Workload has at most {MOST_TEMPLATES} gangs"
    return Sentence("NoGang", said)


def tell_stages(parent: Parent) -> Sentence:
    """The parent's stages are gangs of their own."""
    said = OWNER_KINDS[parent.kind].staged
    return Sentence("GangPerStage", said.format(owner=_name(parent), field=parent.staged))


def tell_upstream(workload: Workload, job: Job) -> Sentence:
    """The Job's shape is a gang's, and kube-controller-manager has made its Workload first, with policy basic."""
    said = f"kube-controller-manager made Workload {workload.key.name} of {_name(job)} with policy basic, so it"
    return Sentence("NoGang", f"{said} is not a gang; to make it one, set spec.scheduling.schedulingPolicy.gang")


def tell_ignored_changes(owner: Owner, annotations: Sequence[str]) -> Sentence:
    """Annotations were changed after the objects had been made."""
    said = (
        f"{', '.join(annotations)} of {_name(owner)} changed after its PodGroup was created, which has no effect: "
        "delete it and create it anew"
    )
    return Sentence("GangChangeIgnored", said)


def tell_left_out(owner: Owner, levels: Sequence[str]) -> Sentence:
    """Preferred levels that no label stands for are left out."""
    said = f"No node label stands for level {', '.join(levels)}, which {_name(owner)} prefers: it is placed without"
    return Sentence("LevelLeftOut", said)


# --- which groups an owner's pods form -----------------------------------------------------------------------------


def tell_ambiguity(owner: Owner, problem: str) -> Sentence:
    """It is not clear which groups the owner's pods form; ``problem`` is one of the phrases below."""
    return Sentence("AmbiguousWorkload", f"{_name(owner)} is scheduled pod by pod: {problem}")


def describe_workloads(workloads: Iterable[Workload]) -> str:
    """Several Workloads refer to the owner."""
    return f"Workloads {_join_names(workloads)} all refer to it; exactly one must"


def describe_templates(owner: Owner, workload: Workload) -> str:
    """No template of the Workload can be used for the owner."""
    name = workload.key.name
    if isinstance(owner, Job) and owner.delegation is not None:
        return f"Workload {name} has no template {quote(owner.delegation.template)}, which its annotation names"
    if isinstance(owner, Job):
        return f"Workload {name} has {len(workload.templates)} PodGroup templates; exactly one is needed"
    return f"no template of Workload {name} fits: one of the name of each stage is needed"


def describe_groups(owner: Owner, workload: Workload, groups: Iterable[PodGroup]) -> str:
    """Several PodGroups are for the same pods."""
    names = _join_names(groups)
    if isinstance(owner, Job):
        return f"PodGroups {names} were all made from Workload {workload.key.name}; one must be"
    return f"PodGroups {names} are all for the same pods of Workload {workload.key.name}"


# --- objects that cannot be read -----------------------------------------------------------------------------------


def tell_malformed(malformed: Malformed) -> Sentence:
    """An object has a field that cannot be understood."""
    said = f"Serried cannot read this {malformed.kind} and ignores it until it changes: {malformed.problem}"
    return Sentence("Malformed", said)


def _name(owner: Owner) -> str:
    return f"{kind_of(owner)} {owner.key.name}"


def _join_names(objects: Iterable[Workload | PodGroup]) -> str:
    names = [item.key.name for item in objects]
    shown = ", ".join(names[:_SHOWN])
    return f"{shown} and {len(names) - _SHOWN} more" if len(names) > _SHOWN else shown
