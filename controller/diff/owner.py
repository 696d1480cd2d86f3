"""The diff: the changes that are needed for one owner (KEP-5547, Controller Workflow), and the warnings that it gets.

An owner has one Workload with a template for each of its gangs. It has a PodGroup for each template, and in a
LeaderWorkerSet for each template in each replica that has a leader: replicas that are only in the spec cost nothing. A
Job is an owner with one gang and no replicas. Objects that others have made are used as they are and never changed;
ours go once another's Workload matches, and of several of others, none is chosen.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum

from controller.diff.changes import (
    Change,
    ClearReplicas,
    CreatePodGroup,
    CreateWorkload,
    Delete,
    Observed,
    ReportAmbiguous,
    SetMinCount,
)
from controller.diff.objects import (
    counting_templates,
    desired_count,
    desired_counts,
    desired_templates,
    pod_group_name,
    successor_name,
    tracking_templates,
    workload_name,
)
from controller.diff.sentences import (
    Sentence,
    describe_groups,
    describe_templates,
    describe_workloads,
    tell_contradiction,
    tell_foreign_scheduler,
    tell_jobs_ignored,
    tell_many_stages,
    tell_no_gang,
    tell_problem,
    tell_stages,
    tell_stray,
    tell_waiting_pods,
)
from serried.api.group import PodGroup, Policy, Template, Workload
from serried.api.job import GangJobs, GangPolicy, Job, find_no_gang, is_anothers, is_gang_job
from serried.api.kinds import PARENTS
from serried.api.level import ApiLevel
from serried.api.names import DISRUPTION_MODE, REPLICA, REQUIRED_TOPOLOGY, Disruption
from serried.api.parent import MOST_TEMPLATES, Owner, Parent, find_no_gang_parent, gangs_of, is_ours
from serried.api.pod import Phase, Pod
from serried.api.preference import EXCLUSIVE, PACKING, PREFERRED_TOPOLOGY


class Elastic(StrEnum):
    """What happens to a gang's minCount when its Job's parallelism changes."""

    FOLLOW = "follow"
    """minCount follows."""
    REFUSE = "refuse"
    """minCount stays as it was."""


class Suspended(StrEnum):
    """What happens to the Workload and the PodGroup of a suspended Job."""

    KEEP = "keep"
    """They stay."""
    DELETE = "delete"
    """They are deleted, and created anew when the Job is resumed (KEP-5547, beta)."""


class Track(StrEnum):
    """Which Jobs get a Workload and a PodGroup."""

    GANGS = "gangs"
    """Only gangs."""
    ALL = "all"
    """All Jobs; policy basic where a Job is no gang."""


@dataclass(frozen=True, slots=True)
class GangSettings:
    """The settings that decide about owners."""

    schedulers: Collection[str]
    """The names of the schedulers that Serried serves."""

    gang_jobs: GangJobs = GangJobs.BY_SHAPE
    elastic: Elastic = Elastic.FOLLOW
    suspended: Suspended = Suspended.KEEP
    track: Track = Track.GANGS


class DesiredAction(Enum):
    """What the controller has to do for an owner."""

    START = "start"
    """Create its Workload and its PodGroups: it is a gang, and none of its pods has started."""
    TRACK = "track"
    """Create its objects with policy basic: it is a Job that is no gang."""
    COMPLETE = "complete"
    """Create no Workload, but the PodGroups of a Workload that refers to the owner: the pods wait for them.

    1.36 does the same, and KEP-5547 says it of restarts.
    """
    RELEASE = "release"
    """Delete our objects: it is a suspended Job."""
    NONE = "none"
    """Nothing: the owner has finished, or is not ours."""


def action_of_job(job: Job, pods: Collection[Pod], settings: GangSettings) -> DesiredAction:
    """The action towards a Job; ``pods`` are the Job's own."""
    if settings.gang_jobs is GangJobs.NONE:
        return DesiredAction.NONE
    gang = is_gang_job(job, settings.schedulers, settings.gang_jobs)
    if not gang and not _is_ours_to_complete(job, settings):
        return DesiredAction.NONE
    if job.suspended and settings.suspended is Suspended.DELETE and not pods and not job.completed:
        return DesiredAction.RELEASE
    if _has_begun(pods):
        return DesiredAction.COMPLETE
    if gang:
        return DesiredAction.START
    return DesiredAction.TRACK if settings.track is Track.ALL and not is_anothers(job) else DesiredAction.COMPLETE


def concerns_us(parent: Parent, settings: GangSettings) -> bool:
    """Whether there is any action towards a parent."""
    ours = parent.group is None and parent.schedulers <= frozenset(settings.schedulers)
    return ours and settings.gang_jobs is not GangJobs.NONE and not parent.finished and not parent.deleting


def is_unserved(job: Job, settings: GangSettings) -> bool:
    """Whether a Job asks to be a gang, or for something of a gang's, and its scheduler is none that Serried serves."""
    asks = job.gang_policy is GangPolicy.JOB_AS_GANG or (job.annotated and job.gang_policy is None)
    return (
        asks
        and settings.gang_jobs is not GangJobs.NONE
        and job.scheduler not in settings.schedulers
        and not job.finished
    )


def _is_ours_to_complete(job: Job, settings: GangSettings) -> bool:
    # Also of a Job that another object owns: a Workload that a user has made for it is used in any case.
    ours = job.group is None and job.scheduler in settings.schedulers
    return ours and not job.finished and not job.deleting


def _has_begun(pods: Iterable[Pod]) -> bool:
    return any((pod.node or pod.phase is not Phase.ACTIVE) and not pod.stranded for pod in pods)


def find_warnings(owner: Owner, action: DesiredAction, settings: GangSettings) -> list[Sentence]:
    """What is wrong with an owner, or has another effect than its author may expect."""
    if isinstance(owner, Job):
        concerned, found = action is not DesiredAction.NONE, find_warnings_of_job(owner, action, settings)
    else:
        concerned = settings.gang_jobs is not GangJobs.NONE and not owner.finished and not owner.deleting
        found = find_warnings_of_parent(owner, settings.schedulers) if concerned else []
    return [tell_stray(owner), *found] if concerned and owner.stray else found


def find_warnings_of_job(job: Job, action: DesiredAction, settings: GangSettings) -> list[Sentence]:
    """What is wrong with a Job."""
    warnings = [tell_foreign_scheduler(job, [job.scheduler], settings.schedulers)] if is_unserved(job, settings) else []
    if action is DesiredAction.NONE:
        return warnings
    if job.problem:
        warnings.append(tell_problem(job))
    if job.contradiction:
        warnings.append(tell_contradiction(job))
    return warnings


DEFAULT_SCHEDULER = "default-scheduler"
"""The scheduler of pods that name none: to have it asks for nothing."""


def refuse(owner: Owner, settings: GangSettings) -> Sentence | None:
    """Why an owner that asks for Serried is no gang: by an annotation, or by the name of a scheduler of ours.

    None if it is one, if it says itself that it is none, and of a Job that a parent controls which is told itself.
    """
    served = frozenset(settings.schedulers) - {DEFAULT_SCHEDULER}
    if isinstance(owner, Job):
        below = owner.owner is not None and owner.owner.kind in PARENTS
        found = None if below else find_no_gang(owner, settings.schedulers, settings.gang_jobs)
        named = owner.scheduler in served and owner.at_once > 1 and settings.gang_jobs is GangJobs.BY_SHAPE
    else:
        found = find_no_gang_parent(owner, settings.schedulers)
        named = owner.schedulers <= served
    return tell_no_gang(owner, found) if found is not None and found.remedy and (owner.annotated or named) else None


def find_warnings_of_parent(parent: Parent, schedulers: Collection[str]) -> list[Sentence]:
    """What is wrong with a parent that has not ended; ``schedulers`` are those that Serried serves."""
    if parent.problem:
        return [tell_problem(parent)]
    foreign = sorted(parent.schedulers - frozenset(schedulers))
    if not parent.asks and not (foreign and parent.annotated and not parent.gang_policy):
        return []
    if foreign:
        return [tell_foreign_scheduler(parent, foreign, schedulers)]
    if parent.obstacle:
        return [tell_waiting_pods(parent)]
    if (count := len(gangs_of(parent))) > MOST_TEMPLATES:
        return [tell_many_stages(parent, count)]
    ignored = [tell_jobs_ignored(parent)] if parent.jobs_ask else []
    return [tell_stages(parent), *ignored] if parent.staged else ignored


def find_ignored_changes(owner: Owner, observed: Observed) -> list[str]:
    """The names of the annotations that differ from the objects made by us; empty if all agree.

    Objects made by others are not compared: the owner's annotations have no effect on them.
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
        DISRUPTION_MODE: _is_other_mode(owner, workload),
    }
    if not workload.inline and any(each.topology_key not in (None, owner.topology_key) for each in workload.templates):
        differences[REQUIRED_TOPOLOGY] = True
    return [name for name, differs in differences.items() if differs]


def _is_other_mode(owner: Owner, workload: Workload) -> bool:
    # An API server without the gate for it drops the field, and another one fills in the default.
    wanted = owner.disruption or Disruption.SINGLE
    return any(each.policy.is_gang and each.disruption not in (None, wanted) for each in workload.templates)


class Follow(Enum):
    """How minCount follows the size of its owner."""

    PATCH = "patch"
    """By a patch of Workload and PodGroup, where the API server takes it (1.37)."""
    REPLACE = "replace"
    """By a second Workload that replaces the first (1.35, 1.36). For Jobs only: a parent's objects stay as they are."""
    NEVER = "never"


def find_follow(settings: GangSettings, level: ApiLevel) -> Follow:
    """How minCount follows the size of owners at an API level."""
    if settings.elastic is Elastic.REFUSE:
        return Follow.NEVER
    return Follow.PATCH if level.count_mutable else Follow.REPLACE


PodGroupsByPlace = Mapping[tuple[str | None, str], Sequence[PodGroup]]
"""The PodGroups of an owner by template name and replica index; the index is "" where there are no replicas."""


def diff(owner: Owner, observed: Observed, action: DesiredAction, follow: Follow) -> Iterator[Change]:
    """The next changes for an owner, none if all is as it should be. Creates come first: the rest may depend on them.

    Changes are made as they are taken. A LeaderWorkerSet may lack thousands of PodGroups, of which the caller writes a
    few at a time, so only the names of those few are computed.
    """
    if action is DesiredAction.NONE:
        return
    if action is DesiredAction.RELEASE:
        yield from release(owner, observed)
    elif not observed.workloads:
        yield from _begin(owner, action)
    else:
        yield from _continue(owner, observed, follow)


def _continue(owner: Owner, observed: Observed, follow: Follow) -> Iterator[Change]:
    """The next changes for an owner that has a Workload."""
    outdated = _delete_ours(owner, observed.outdated)
    if problem := _explain_workloads(owner, observed):
        yield ReportAmbiguous(owner, problem)
        yield from outdated
        return
    there = group_by_place(owner, observed)
    if problem := _explain_groups(owner, observed, there):
        yield ReportAmbiguous(owner, problem)
        return
    has_created = False
    for create in find_missing(owner, observed, there):
        yield create
        has_created = True
    if has_created and isinstance(owner, Job):
        return
    # Before another successor is made: of three generations, two might count once the middle one is gone.
    yield from outdated or _follow(owner, observed, there, follow) or _clear(owner, observed)


def _begin(owner: Owner, action: DesiredAction) -> Sequence[Change]:
    return (
        [begin_workload(owner, action)]
        if action in {DesiredAction.START, DesiredAction.TRACK} and not owner.problem
        else []
    )


def begin_workload(owner: Owner, action: DesiredAction) -> CreateWorkload:
    """The change that makes an owner's first Workload; a Job that is only tracked gets policy basic."""
    name = workload_name(owner)
    if isinstance(owner, Job) and action is DesiredAction.TRACK:
        return CreateWorkload(owner, name, tracking_templates(owner))
    return CreateWorkload(owner, name, desired_templates(owner))


def release(owner: Owner, observed: Observed) -> Sequence[Change]:
    """The deletes of our objects of an owner: what is replaced and PodGroups first, the Workload in the next look.

    After a restart in between, the PodGroups that are left are found through the Workload.
    """
    return _delete_ours(owner, [*observed.outdated, *observed.groups]) or _delete_ours(owner, observed.workloads)


def _delete_ours(owner: Owner, items: Sequence[Workload | PodGroup]) -> Sequence[Delete]:
    return [Delete(owner, item) for item in items if is_ours(item, owner)]


def _explain_workloads(owner: Owner, observed: Observed) -> str:
    """Why the Workloads do not say which groups the owner's pods form, "" if they do."""
    if len(observed.workloads) > 1:
        return describe_workloads(observed.workloads)
    workload = observed.workloads[0]
    return "" if counting_templates(owner, workload) else describe_templates(owner, workload)


def _explain_groups(owner: Owner, observed: Observed, there: PodGroupsByPlace) -> str:
    """Why it is not clear which PodGroup the owner's pods belong to, "" if it is."""
    groups = next((groups for groups in there.values() if len(groups) > 1), None)
    return "" if groups is None else describe_groups(owner, observed.workloads[0], groups)


def find_missing(owner: Owner, observed: Observed, there: PodGroupsByPlace) -> Iterator[CreatePodGroup]:
    """The creates of PodGroups that do not exist yet, one at a time.

    An owner with replicas gets them for the replicas that have a leader and that its spec still wants.
    """
    workload = observed.workloads[0]
    if workload.inline:
        return
    templates = counting_templates(owner, workload)
    has_replicas = not isinstance(owner, Job) and owner.replicas is not None
    for replica in observed.replicas if has_replicas else ("",):
        if not _has_replica(owner, replica):
            continue
        for template in templates:
            if (template.name, replica) not in there:
                yield begin_pod_group(owner, workload, template, replica)


def begin_pod_group(owner: Owner, workload: Workload, template: Template, replica: str = "") -> CreatePodGroup:
    """The change that makes a PodGroup from a template, for one replica where the owner has replicas."""
    part = f"{template.name}-{replica}" if replica else template.name
    name = pod_group_name(workload.key.name, part)
    return CreatePodGroup(owner, workload, template, name, replica=replica)


def _follow(owner: Owner, observed: Observed, there: PodGroupsByPlace, follow: Follow) -> Sequence[Change]:
    """The changes by which our objects follow a changed size. A user's Workload, and its PodGroups, never follow.

    The PodGroup of a Job that names a template of its controller's Workload follows that, as in 1.37.
    """
    workload = observed.workloads[0]
    if follow is Follow.PATCH and isinstance(owner, Job) and owner.delegation is not None:
        return _follow_template(owner, workload, there)
    if follow is Follow.NEVER or not is_ours(workload, owner):
        return []
    if follow is Follow.PATCH:
        return find_lagging(owner, observed, there)
    return _replace(owner, workload) if isinstance(owner, Job) else []


def find_lagging(owner: Owner, observed: Observed, there: PodGroupsByPlace) -> list[SetMinCount]:
    """The objects of ours whose minCount lags behind a changed size, the Workload first."""
    workload = observed.workloads[0]
    wanted = desired_counts(owner, workload)
    lagging = [
        SetMinCount(owner, workload, wanted[template.name], index)
        for index, template in enumerate(workload.templates)
        if not agrees(template.policy, wanted.get(template.name))
    ]
    for (template_name, _), groups in there.items():
        count = wanted.get(template_name or "")
        ours = (group for group in groups if is_ours(group, owner) and not agrees(group.policy, count))
        lagging += [SetMinCount(owner, group, count) for group in ours if count is not None]
    return lagging


def _follow_template(job: Job, workload: Workload, there: PodGroupsByPlace) -> list[SetMinCount]:
    (template,) = counting_templates(job, workload)
    count = template.policy.min_count
    lagging = (group for groups in there.values() for group in groups if not agrees(group.policy, count))
    return [SetMinCount(job, group, count) for group in lagging if count is not None and is_ours(group, job)]


def _replace(job: Job, workload: Workload) -> Sequence[Change]:
    wanted = desired_count(job)
    if not wanted or agrees(workload.templates[0].policy, wanted):
        return []
    # The successor comes first: at no time is there nothing that holds the Job's pods.
    return [CreateWorkload(job, successor_name(job, wanted), desired_templates(job), replaces=workload.uid)]


def agrees(policy: Policy, wanted: int | None) -> bool:
    """Whether the policy needs no change: it has the ``wanted`` minCount (None: any will do), or is no gang's."""
    return wanted is None or not policy.is_gang or policy.min_count == wanted


def _clear(owner: Owner, observed: Observed) -> Sequence[Change]:
    surplus = find_surplus(owner, observed)
    return [ClearReplicas(owner, surplus)] if surplus else []


def find_surplus(owner: Owner, observed: Observed) -> list[PodGroup]:
    """PodGroups of ours for replicas that the owner does not have any more."""
    if isinstance(owner, Job):
        return []
    ours = (group for group in observed.groups if is_ours(group, owner))
    return [group for group in ours if not _has_replica(owner, group.labels.get(REPLICA, ""))]


def _has_replica(owner: Owner, index: str) -> bool:
    """Whether the owner has a replica of this index, as labels write it. An owner without replicas has only ""."""
    if isinstance(owner, Job) or owner.replicas is None:
        return not index
    if not (index.isascii() and index.isdecimal()) or (len(index) > 1 and index[0] == "0"):
        return False
    return int(index) < owner.replicas


def group_by_place(owner: Owner, observed: Observed) -> PodGroupsByPlace:
    """The PodGroups by template and replica. Every PodGroup of a Job's Workload is for the Job's only place."""
    places: dict[tuple[str | None, str], list[PodGroup]] = {}
    only = counting_templates(owner, observed.workloads[0])[0].name if isinstance(owner, Job) else None
    for group in observed.groups:
        place = (group.template, group.labels.get(REPLICA, "")) if only is None else (only, "")
        places.setdefault(place, []).append(group)
    return places
