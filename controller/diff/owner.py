"""The diff: which changes one owner needs (KEP-5547, Controller Workflow), and which warnings its author gets.

The reconciler first decides what to do for an owner (`DesiredAction`): for a Job it calls `action_of_job`, for a parent
such as a JobSet `is_served`. Then it calls `diff` for the changes, and `find_warnings` for the events.

An owner is a Job, or a parent of Jobs or pods such as a JobSet or LeaderWorkerSet. It has one Workload, with a template
for each of its gangs, and a PodGroup for each template. A LeaderWorkerSet has a PodGroup for each template in each
replica that has a leader pod; for replicas without a leader pod, nothing is created. A Job is an owner with one gang
and no replicas. Objects made by other clients are used and never changed. If one Workload of another client refers to
the owner, the objects made by Serried are deleted. If several do, none is used.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum

from controller.diff.changes import (
    Change,
    CreatePodGroup,
    CreateWorkload,
    Delete,
    DeleteEmptyReplicas,
    Observed,
    ReportAmbiguous,
    SetMinCount,
)
from controller.diff.objects import (
    desired_count,
    desired_counts,
    desired_templates,
    list_used_templates,
    pod_group_name,
    successor_name,
    tracking_templates,
    workload_name,
)
from controller.diff.sentences import (
    EventText,
    contradiction_event,
    dependent_pods_event,
    describe_groups,
    describe_templates,
    describe_workloads,
    foreign_scheduler_event,
    gang_per_stage_event,
    invalid_annotation_event,
    jobs_ignored_event,
    no_gang_event,
    too_many_stages_event,
    unknown_name_event,
)
from serried.api.group import PodGroup, Policy, Template, Workload
from serried.api.job import GangJobs, GangPolicy, Job, find_no_gang, is_decided_elsewhere, is_gang_job
from serried.api.kinds import PARENTS
from serried.api.level import ApiLevel
from serried.api.names import DISRUPTION_MODE, REPLICA, REQUIRED_TOPOLOGY, Disruption
from serried.api.parent import MOST_TEMPLATES, Owner, Parent, find_no_gang_parent, gangs_of, is_ours
from serried.api.pod import Phase, Pod
from serried.api.preference import EXCLUSIVE, PACKING, PREFERRED_TOPOLOGY


class Elastic(StrEnum):
    """The setting that decides whether a gang's minCount follows its Job's parallelism when that changes, or stays."""

    FOLLOW = "follow"
    """minCount follows the parallelism of the Job."""
    REFUSE = "refuse"
    """minCount stays as it is when the parallelism of the Job changes."""


class Suspended(StrEnum):
    """The setting that decides whether the Workload and PodGroup of a suspended Job are kept or deleted."""

    KEEP = "keep"
    """The Workload and the PodGroup of a suspended Job stay."""
    DELETE = "delete"
    """The Workload and the PodGroup of a suspended Job are deleted, and created again when the Job is resumed.

    KEP-5547 plans that for beta.
    """


class Track(StrEnum):
    """The setting that decides which Jobs get a Workload and a PodGroup: only gangs, or all Jobs."""

    GANGS = "gangs"
    """Only the Jobs that are gangs."""
    ALL = "all"
    """All Jobs. A Job that is no gang gets policy basic."""


@dataclass(frozen=True, slots=True)
class GangSettings:
    """The controller's settings that decide which owners are gangs, and what their objects look like."""

    schedulers: Collection[str]
    """The names of the schedulers that Serried serves."""

    gang_jobs: GangJobs = GangJobs.BY_SHAPE
    elastic: Elastic = Elastic.FOLLOW
    suspended: Suspended = Suspended.KEEP
    track: Track = Track.GANGS


class DesiredAction(Enum):
    """The work that the controller has to do for an owner.

    The actions are: create the Workload and PodGroups of a gang (START), or those of a Job that is no gang (TRACK);
    create only the missing PodGroups of an existing Workload (COMPLETE); delete the objects that Serried has made for a
    suspended Job (RELEASE); do nothing (NONE).
    """

    START = "start"
    """Create Workload and PodGroups: the owner is a gang, and none of its pods has started."""
    TRACK = "track"
    """Create Workload and PodGroup with policy basic: the owner is a Job that is no gang (`Track.ALL`)."""
    COMPLETE = "complete"
    """Create the missing PodGroups of an existing Workload, but no Workload.

    For an owner whose pods have started, or that is a gang only by a user's Workload: pods may wait for these
    PodGroups. kube-controller-manager 1.36 does the same, and KEP-5547 says it of restarts.
    """
    RELEASE = "release"
    """Delete the objects made by Serried: the owner is a suspended Job (`Suspended.DELETE`)."""
    NONE = "none"
    """Do nothing: the owner has finished, or is not for Serried."""


def action_of_job(job: Job, pods: Collection[Pod], settings: GangSettings) -> DesiredAction:
    """Return what the controller has to do for a Job. ``pods`` are all pods that the Job owns, whatever their state."""
    if settings.gang_jobs is GangJobs.NONE:
        return DesiredAction.NONE
    gang = is_gang_job(job, settings.schedulers, settings.gang_jobs)
    if not gang and not _is_ours_to_complete(job, settings):
        return DesiredAction.NONE
    if job.suspended and settings.suspended is Suspended.DELETE and not pods and not job.completed:
        return DesiredAction.RELEASE
    if _has_started(pods):
        return DesiredAction.COMPLETE
    if gang:
        return DesiredAction.START
    return (
        DesiredAction.TRACK if settings.track is Track.ALL and not is_decided_elsewhere(job) else DesiredAction.COMPLETE
    )


def is_served(parent: Parent, settings: GangSettings) -> bool:
    """Return whether the controller acts for a JobSet, LeaderWorkerSet or another parent.

    All its pods must name schedulers that Serried serves. It must not have finished, nor be in deletion.
    """
    ours = parent.group is None and parent.schedulers <= frozenset(settings.schedulers)
    return ours and settings.gang_jobs is not GangJobs.NONE and not parent.finished and not parent.deleting


def is_unserved(job: Job, settings: GangSettings) -> bool:
    """Return whether a Job asks by annotations to be a gang, but names a scheduler that Serried does not serve."""
    asks = job.gang_policy is GangPolicy.JOB_AS_GANG or (job.annotated and job.gang_policy is None)
    return (
        asks
        and settings.gang_jobs is not GangJobs.NONE
        and job.scheduler not in settings.schedulers
        and not job.finished
    )


def _is_ours_to_complete(job: Job, settings: GangSettings) -> bool:
    # Also for a Job that another object controls: a Workload that a user created for the Job is used in any case.
    ours = job.group is None and job.scheduler in settings.schedulers
    return ours and not job.finished and not job.deleting


def _has_started(pods: Iterable[Pod]) -> bool:
    return any((pod.node or pod.phase is not Phase.ACTIVE) and not pod.stranded for pod in pods)


def find_warnings(owner: Owner, action: DesiredAction, settings: GangSettings) -> list[EventText]:
    """Return the warnings for an owner's author: mistakes, and effects that may be unexpected.

    ``action`` is what the controller does for the owner; if that is nothing, most warnings do not apply.
    """
    if isinstance(owner, Job):
        concerned, found = action is not DesiredAction.NONE, find_warnings_of_job(owner, action, settings)
    else:
        concerned = settings.gang_jobs is not GangJobs.NONE and not owner.finished and not owner.deleting
        found = find_warnings_of_parent(owner, settings.schedulers) if concerned else []
    return [unknown_name_event(owner), *found] if concerned and owner.stray else found


def find_warnings_of_job(job: Job, action: DesiredAction, settings: GangSettings) -> list[EventText]:
    """Return the warnings for a Job's author, as `find_warnings`."""
    warnings = (
        [foreign_scheduler_event(job, [job.scheduler], settings.schedulers)] if is_unserved(job, settings) else []
    )
    if action is DesiredAction.NONE:
        return warnings
    if job.problem:
        warnings.append(invalid_annotation_event(job))
    if job.contradiction:
        warnings.append(contradiction_event(job))
    return warnings


DEFAULT_SCHEDULER = "default-scheduler"
"""The scheduler of pods that name none. To name it does not mean to ask for Serried, even if Serried serves it."""


def find_no_gang_event(owner: Owner, settings: GangSettings) -> EventText | None:
    """Return the event that says why an owner is no gang, although it asks for Serried; None if it needs none.

    An owner asks for Serried by an annotation, or by naming a scheduler that Serried serves, except default-scheduler.
    For a Job the name counts only if it runs several pods at a time and Jobs are made gangs by their shape. Return None
    for a gang, for an owner with the annotation that it is no gang, and for a Job whose parent gets the event.
    """
    served = frozenset(settings.schedulers) - {DEFAULT_SCHEDULER}
    if isinstance(owner, Job):
        below = owner.owner is not None and owner.owner.kind in PARENTS
        found = None if below else find_no_gang(owner, settings.schedulers, settings.gang_jobs)
        named = owner.scheduler in served and owner.at_once > 1 and settings.gang_jobs is GangJobs.BY_SHAPE
    else:
        found = find_no_gang_parent(owner, settings.schedulers)
        named = owner.schedulers <= served
    return no_gang_event(owner, found) if found is not None and found.remedy and (owner.annotated or named) else None


def find_warnings_of_parent(parent: Parent, schedulers: Collection[str]) -> list[EventText]:
    """Return the warnings for the author of a JobSet, LeaderWorkerSet or another parent that has not finished.

    ``schedulers`` are the names of the schedulers that Serried serves.
    """
    if parent.problem:
        return [invalid_annotation_event(parent)]
    foreign = sorted(parent.schedulers - frozenset(schedulers))
    if not parent.asks and not (foreign and parent.annotated and not parent.gang_policy):
        return []
    if foreign:
        return [foreign_scheduler_event(parent, foreign, schedulers)]
    if parent.obstacle:
        return [dependent_pods_event(parent)]
    if (count := len(gangs_of(parent))) > MOST_TEMPLATES:
        return [too_many_stages_event(parent, count)]
    ignored = [jobs_ignored_event(parent)] if parent.jobs_ask else []
    return [gang_per_stage_event(parent), *ignored] if parent.staged else ignored


def find_ignored_changes(owner: Owner, observed: Observed) -> list[str]:
    """Return the keys of the owner's annotations whose values disagree with its Workload and PodGroups.

    These annotations were changed after the objects were created, so the changes had no effect. Return an
    empty list if another client made the Workload: then the annotations never had an effect. Return an empty list also
    unless there is exactly one Workload.
    """
    if len(observed.workloads) != 1 or not is_ours(observed.workloads[0], owner):
        return []
    workload = observed.workloads[0]
    ours = [group for group in observed.groups if is_ours(group, owner)]
    made: Sequence[PodGroup | Template] = workload.templates if workload.inline else ours
    differences = {
        REQUIRED_TOPOLOGY: any(each.topology_key != owner.topology_key for each in made),
        PREFERRED_TOPOLOGY: any(each.preference.levels != owner.preference.levels for each in made),
        PACKING: any(each.preference.style != owner.preference.style for each in made),
        EXCLUSIVE: any(each.preference.exclusive != owner.preference.exclusive for each in made),
        DISRUPTION_MODE: _differs_in_disruption(owner, workload),
    }
    if not workload.inline and any(each.topology_key not in (None, owner.topology_key) for each in workload.templates):
        differences[REQUIRED_TOPOLOGY] = True
    return [name for name, differs in differences.items() if differs]


def _differs_in_disruption(owner: Owner, workload: Workload) -> bool:
    # An API server without the gate drops disruptionMode, one with the gate sets the default.
    wanted = owner.disruption or Disruption.SINGLE
    return any(each.policy.is_gang and each.disruption not in (None, wanted) for each in workload.templates)


class MinCountUpdate(Enum):
    """The way to change minCount when an owner's size changes: patch it, create a second Workload, or never."""

    PATCH = "patch"
    """Patch minCount in Workload and PodGroup, if the API server allows that (1.37)."""
    REPLACE = "replace"
    """Create a second Workload, which replaces the first one (1.35, 1.36).

    Only for Jobs: the objects of parents such as JobSets stay unchanged.
    """
    NEVER = "never"


def choose_min_count_update(settings: GangSettings, level: ApiLevel) -> MinCountUpdate:
    """Return how minCount is changed, by the controller's settings and by what the API server allows.

    ``level`` is the version of the PodGroup API in use, which tells whether minCount can be patched.
    """
    if settings.elastic is Elastic.REFUSE:
        return MinCountUpdate.NEVER
    return MinCountUpdate.PATCH if level.count_mutable else MinCountUpdate.REPLACE


PodGroupsByPlace = Mapping[tuple[str | None, str], Sequence[PodGroup]]
"""The PodGroups of an owner, by the name of their template and the index of their replica.

The template is None for a PodGroup that names none. The index is "" for an owner without replicas.
"""


def diff(owner: Owner, observed: Observed, action: DesiredAction, update: MinCountUpdate) -> Iterator[Change]:
    """Yield the next changes for an owner, creates first, because the others may depend on them.

    ``action`` is what the controller has to do for the owner, such as create its objects or delete them. ``update``
    says how minCount is changed: by a patch, by a second Workload, or never.

    After these are written, the next diff yields the rest. Each change is computed when the caller takes it: a
    LeaderWorkerSet may lack thousands of PodGroups, and the caller writes a few at a time, so only the names of these
    few are computed.
    """
    if action is DesiredAction.NONE:
        return
    if action is DesiredAction.RELEASE:
        yield from list_deletes(owner, observed)
    elif not observed.workloads:
        yield from _changes_without_workload(owner, action)
    else:
        yield from _changes_with_workload(owner, observed, update)


def _changes_with_workload(owner: Owner, observed: Observed, update: MinCountUpdate) -> Iterator[Change]:
    outdated = _deletes_of_ours(owner, observed.outdated)
    if problem := _explain_workloads(owner, observed):
        yield ReportAmbiguous(owner, problem)
        yield from outdated
        return
    by_place = group_by_place(owner, observed)
    if problem := _explain_groups(owner, observed, by_place):
        yield ReportAmbiguous(owner, problem)
        return
    has_created = False
    for create in find_missing_groups(owner, observed, by_place):
        yield create
        has_created = True
    if has_created and isinstance(owner, Job):
        return
    # Outdated objects first: with three generations of Workloads, two would count once the middle one is deleted.
    yield from outdated or _set_min_counts(owner, observed, by_place, update) or _list_surplus_deletes(owner, observed)


def _changes_without_workload(owner: Owner, action: DesiredAction) -> Sequence[Change]:
    return (
        [make_workload_create(owner, action)]
        if action in {DesiredAction.START, DesiredAction.TRACK} and not owner.problem
        else []
    )


def make_workload_create(owner: Owner, action: DesiredAction) -> CreateWorkload:
    """Return the create of an owner's first Workload.

    For `DesiredAction.TRACK`, i.e. a Job that is no gang but gets a Workload all the same, the policy is basic.
    """
    name = workload_name(owner)
    if isinstance(owner, Job) and action is DesiredAction.TRACK:
        return CreateWorkload(owner, name, tracking_templates(owner))
    return CreateWorkload(owner, name, desired_templates(owner))


def list_deletes(owner: Owner, observed: Observed) -> Sequence[Change]:
    """Return the deletes of the owner's objects that Serried made.

    While there are PodGroups, or older Workloads that were replaced by a newer one (`MinCountUpdate.REPLACE`), return
    only the deletes of these. When none is left, return the delete of the Workload in use. It comes last, because the
    controller finds the PodGroups by their Workload, also after a restart.
    """
    return _deletes_of_ours(owner, [*observed.outdated, *observed.groups]) or _deletes_of_ours(
        owner, observed.workloads
    )


def _deletes_of_ours(owner: Owner, items: Sequence[Workload | PodGroup]) -> Sequence[Delete]:
    return [Delete(owner, item) for item in items if is_ours(item, owner)]


def _explain_workloads(owner: Owner, observed: Observed) -> str:
    """Return why none of the owner's Workloads can be used, as a phrase; "" if one can.

    There must be exactly one, and one of its templates must be for the owner.
    """
    if len(observed.workloads) > 1:
        return describe_workloads(observed.workloads)
    workload = observed.workloads[0]
    return "" if list_used_templates(owner, workload) else describe_templates(owner, workload)


def _explain_groups(owner: Owner, observed: Observed, by_place: PodGroupsByPlace) -> str:
    """Return why it is unclear which PodGroup is that of the owner's pods, as a phrase; "" if it is clear.

    ``by_place`` has the owner's PodGroups. It is unclear if several are for the same template and replica.
    """
    groups = next((groups for groups in by_place.values() if len(groups) > 1), None)
    return "" if groups is None else describe_groups(owner, observed.workloads[0], groups)


def find_missing_groups(owner: Owner, observed: Observed, by_place: PodGroupsByPlace) -> Iterator[CreatePodGroup]:
    """Yield a create for each PodGroup that the owner needs and that does not exist.

    ``by_place`` has the existing ones. An owner with replicas needs PodGroups for each replica that its spec still
    contains and that has a leader pod which is not being deleted. In v1alpha1 there are no PodGroups to create.
    """
    workload = observed.workloads[0]
    if workload.inline:
        return
    templates = list_used_templates(owner, workload)
    has_replicas = not isinstance(owner, Job) and owner.replicas is not None
    for replica in observed.replicas if has_replicas else ("",):
        if not _has_replica(owner, replica):
            continue
        for template in templates:
            if (template.name, replica) not in by_place:
                yield make_pod_group_create(owner, workload, template, replica)


def make_pod_group_create(owner: Owner, workload: Workload, template: Template, replica: str = "") -> CreatePodGroup:
    """Return the create of the PodGroup for a template of the Workload.

    ``replica`` is the index of the replica that it is for, "" if the owner has no replicas.
    """
    part = f"{template.name}-{replica}" if replica else template.name
    name = pod_group_name(workload.key.name, part)
    return CreatePodGroup(owner, workload, template, name, replica=replica)


def _set_min_counts(
    owner: Owner, observed: Observed, by_place: PodGroupsByPlace, update: MinCountUpdate
) -> Sequence[Change]:
    """Return the changes of minCount that the owner's present size needs.

    A Workload that a user created, and its PodGroups, never change. A Job of a TrainJob, for instance, may name a
    template in the TrainJob's Workload. Then the Job's PodGroup copies minCount from that template, as in 1.37.
    ``by_place`` has the existing PodGroups, by their template and replica. ``update`` says whether minCount is patched,
    a second Workload replaces the first one, or nothing changes.
    """
    workload = observed.workloads[0]
    if update is MinCountUpdate.PATCH and isinstance(owner, Job) and owner.delegation is not None:
        return _copy_template_min_count(owner, workload, by_place)
    if update is MinCountUpdate.NEVER or not is_ours(workload, owner):
        return []
    if update is MinCountUpdate.PATCH:
        return find_outdated_counts(owner, observed, by_place)
    return _replace_workload(owner, workload) if isinstance(owner, Job) else []


def find_outdated_counts(owner: Owner, observed: Observed, by_place: PodGroupsByPlace) -> list[SetMinCount]:
    """Return a change for each minCount that does not fit the owner's size: in its Workload and in its PodGroups.

    Serried made the Workload, which the caller has checked. PodGroups that another client made are left as they are.
    ``by_place`` has the owner's PodGroups. The changes of the Workload, one for each template, come first.
    """
    workload = observed.workloads[0]
    wanted = desired_counts(owner, workload)
    lagging = [
        SetMinCount(owner, workload, wanted[template.name], index)
        for index, template in enumerate(workload.templates)
        if not min_count_agrees(template.policy, wanted.get(template.name))
    ]
    for (template_name, _), groups in by_place.items():
        count = wanted.get(template_name or "")
        ours = (group for group in groups if is_ours(group, owner) and not min_count_agrees(group.policy, count))
        lagging += [SetMinCount(owner, group, count) for group in ours if count is not None]
    return lagging


def _copy_template_min_count(job: Job, workload: Workload, by_place: PodGroupsByPlace) -> list[SetMinCount]:
    (template,) = list_used_templates(job, workload)
    count = template.policy.min_count
    lagging = (group for groups in by_place.values() for group in groups if not min_count_agrees(group.policy, count))
    return [SetMinCount(job, group, count) for group in lagging if count is not None and is_ours(group, job)]


def _replace_workload(job: Job, workload: Workload) -> Sequence[Change]:
    wanted = desired_count(job)
    if not wanted or min_count_agrees(workload.templates[0].policy, wanted):
        return []
    # The new Workload is created before the old one is deleted, so that the Job's pods always have one.
    return [CreateWorkload(job, successor_name(job, wanted), desired_templates(job), replaces=workload.uid)]


def min_count_agrees(policy: Policy, wanted: int | None) -> bool:
    """Return whether the policy of a template or PodGroup has the minCount that is ``wanted``.

    True also if ``wanted`` is None, which stands for any value, and for policy basic, which has no minCount.
    """
    return wanted is None or not policy.is_gang or policy.min_count == wanted


def _list_surplus_deletes(owner: Owner, observed: Observed) -> Sequence[Change]:
    surplus = find_surplus_groups(owner, observed)
    return [DeleteEmptyReplicas(owner, surplus)] if surplus else []


def find_surplus_groups(owner: Owner, observed: Observed) -> list[PodGroup]:
    """Return the PodGroups made by Serried that are for replicas which the owner no longer has.

    For instance, those of replica 3 of a LeaderWorkerSet that was scaled down from 4 replicas to 3.
    """
    if isinstance(owner, Job):
        return []
    ours = (group for group in observed.groups if is_ours(group, owner))
    return [group for group in ours if not _has_replica(owner, group.labels.get(REPLICA, ""))]


def _has_replica(owner: Owner, index: str) -> bool:
    """Return whether the owner's spec contains the replica ``index``, which is a number as text.

    An owner without replicas, such as a Job, contains only "".
    """
    if isinstance(owner, Job) or owner.replicas is None:
        return not index
    if not (index.isascii() and index.isdecimal()) or (len(index) > 1 and index[0] == "0"):
        return False
    return int(index) < owner.replicas


def group_by_place(owner: Owner, observed: Observed) -> PodGroupsByPlace:
    """Return the PodGroups of the owner's Workload by template and replica.

    All PodGroups of a Job's Workload count as those of the Job's only template.
    """
    places: dict[tuple[str | None, str], list[PodGroup]] = {}
    only = list_used_templates(owner, observed.workloads[0])[0].name if isinstance(owner, Job) else None
    for group in observed.groups:
        place = (group.template, group.labels.get(REPLICA, "")) if only is None else (only, "")
        places.setdefault(place, []).append(group)
    return places
