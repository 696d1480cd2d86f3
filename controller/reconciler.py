"""The reconciler: compares the existing objects of one owner with those it needs, and writes the difference.

`Reconciler.reconcile` is called by a worker of the loop and repeats four steps until nothing is left to create:

    observe (Store + expectations) ──▶ diff ──changes──▶ write ──▶ events about the owner

An owner is a Job, or a parent of Jobs or pods such as a JobSet or LeaderWorkerSet. A restart between two writes does no
harm: the next process finds what is left. No owner gets the same event twice.

kube-controller-manager makes Workloads for Jobs, too, where its gate WorkloadWithJob is on. The API does not show
whether the gate is on, but the first Workload made by kube-controller-manager does. From then on, each Job that
kube-controller-manager manages is left to it for some seconds. If it creates nothing in that time, this controller
handles all Jobs until the next Workload of kube-controller-manager is seen
(docs/decisions/0010-beside-another-reconciler.md).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice

from controller.diff.changes import (
    Change,
    Create,
    CreatePodGroup,
    CreateWorkload,
    Delete,
    DeleteEmptyReplicas,
    Observed,
    ReportAmbiguous,
    SetMinCount,
    Write,
    kind_and_verb,
)
from controller.diff.objects import is_upstream_template, resolve_class, workload_name
from controller.diff.owner import (
    DesiredAction,
    GangSettings,
    MinCountUpdate,
    action_of_job,
    choose_min_count_update,
    diff,
    find_ignored_changes,
    find_no_gang_event,
    find_warnings,
    is_served,
    list_deletes,
)
from controller.diff.sentences import (
    EventText,
    ambiguous_event,
    api_unavailable_event,
    ignored_changes_event,
    level_left_out_event,
    upstream_basic_event,
)
from controller.writes import Expectations, Writes
from serried.api.group import PodGroup, Template, Workload
from serried.api.job import Job
from serried.api.names import REPLICA, REQUIRED_TOPOLOGY, GroupKey, Key
from serried.api.parent import Owner, OwnerKey, Parent, is_ours, owner_key_of
from serried.api.pod import Pod
from serried.api.preference import LEVELS, PREFERRED_TOPOLOGY, names_levels
from serried.api.resolved import Resolved, resolve_owner
from serried.api.topology import LevelTable
from serried.cluster.cache import Store
from serried.cluster.membership import counts_as_started, is_controlled_by, is_made_for, split_replaced
from serried.kube.errors import AlreadyExists, ApiError
from serried.ops.metrics import ControllerMetrics


def observe(store: Store, expectations: Expectations, owner: Owner) -> Observed:
    """Return the Workloads and PodGroups that refer to the owner.

    They are those in the Store, and those in ``expectations``, which the watch has not shown yet. PodGroups are only
    returned if exactly one Workload counts, apart from those of Workloads that another one has replaced.
    """
    referring = store.membership.referring_to(owner) + expectations.workloads_of(owner)
    counting, replaced = split_replaced(referring, owner)
    workloads = [workload for workload in counting if not workload.api] or counting  # as `Membership.workloads_of`
    outdated: list[Workload | PodGroup] = [group for each in replaced for group in _known_groups_of(store, each, owner)]
    outdated += replaced
    if len(workloads) != 1:
        return Observed(workloads, outdated=outdated)
    expected = [each for each in expectations.groups_of(workloads[0]) if is_made_for(owner, each, workloads[0])]
    groups = _known_groups_of(store, workloads[0], owner) + expected
    return Observed(workloads, groups, outdated, _find_replicas(store, owner))


def _known_groups_of(store: Store, workload: Workload, owner: Owner) -> list[PodGroup]:
    """Return the PodGroups in the Store that were made from the Workload for the owner.

    Return an empty list for an inline Workload (v1alpha1), which contains its groups as fields.
    """
    return [] if workload.inline else store.membership.groups_of(workload, owner)


def list_groups_and_templates(observed: Observed) -> list[PodGroup | Template]:
    """Return the existing PodGroups of an owner, followed by the templates in its Workloads."""
    return [*observed.groups, *(template for workload in observed.workloads for template in workload.templates)]


def list_labels(observed: Observed) -> frozenset[str]:
    """Return all node labels that the owner's objects name as required or preferred topology."""
    made = list_groups_and_templates(observed)
    preferred = (level.key for each in made for level in each.preference.levels)
    required = (each.topology_key for each in made if each.topology_key is not None)
    return frozenset((*required, *preferred))


def differs_from_level(level: str, table: LevelTable, observed: Observed) -> bool:
    """Return whether the owner's existing objects were made for another required topology than ``level``.

    A level is a name such as ``rack`` that an owner may use in place of a node label. ``table`` says which labels may
    stand for each level in this cluster. The result is True if one object requires no topology, or a label that may
    stand for another level. A label that stands for no level does not count as different.
    """
    made = {each.topology_key for each in list_groups_and_templates(observed)}
    others = (labels for name, labels in table.candidates.items() if name != level)
    return None in made or any(label in made for labels in others for label in labels)


def _find_replicas(store: Store, owner: Owner) -> Collection[str]:
    if isinstance(owner, Job) or owner.replicas is None:
        return ()
    places = (pod.place for pod in store.owners.pods_of(owner_key_of(owner)) if not pod.deleting)
    return dict.fromkeys(place.replica for place in places if place is not None)


class Renewals:
    """Decides whether a suspended Job's objects are deleted, to be created again with its changed annotations.

    That is done at most once for each change of a Job's annotations. If the objects differ from the Job again after
    that, another client must have created them, and deleting them again would not end.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._renewed: dict[OwnerKey, tuple[object, frozenset[str]]] = {}
        """By Job: (its UID and settings when its objects were last deleted, the UIDs of the deleted objects)."""

    def try_begin(self, owner: Owner, observed: Observed, action: DesiredAction) -> bool:
        """Return whether the owner's objects are to be deleted now, and if so, record that they are.

        Only objects of a suspended Job without pods are deleted, so no pod waits for them, and only if ``action`` says
        that the controller creates them (START or TRACK). Return False for other owners, and if the same change has
        been handled before.
        """
        if not isinstance(owner, Job) or not self._is_idle(owner, action):
            return False
        owner_key = owner_key_of(owner)
        wish = (owner.uid, owner.topology_key, owner.preference, owner.disruption)
        there = frozenset({each.uid for each in observed.workloads} | {each.uid for each in observed.groups})
        last_wish, leaving = self._renewed.get(owner_key, (None, frozenset[str]()))
        if last_wish == wish and not there <= leaving:
            return False
        self._renewed[owner_key] = (wish, leaving if last_wish == wish else there)
        return True

    def forget(self, owner_key: OwnerKey) -> None:
        """Forget for which change the objects of a Job were deleted last, because the Job was deleted itself."""
        self._renewed.pop(owner_key, None)

    def _is_idle(self, job: Job, action: DesiredAction) -> bool:
        pods = (pod for pod in self._store.owners.pods_of(owner_key_of(job)) if pod.owner and pod.owner.uid == job.uid)
        return action in {DesiredAction.START, DesiredAction.TRACK} and job.suspended and next(pods, None) is None


_ALREADY_EXISTS_BEFORE_EVENT = 4
"""Number of consecutive attempts that must fail with AlreadyExists before the owner gets an event about it.

Usually another client has created the object, and the watch has not shown it yet.
"""


_MOST_REMEMBERED = 16
"""The largest number of messages remembered per owner, because its author may cause any number of different ones."""


class OwnerEvents:
    """Writes events about owners, but none that the same owner has got already. One per reconciler.

    The memory is by the owner's UID: an owner that is deleted and created again gets all events again.
    """

    def __init__(self, writes: Writes) -> None:
        self._writes = writes
        self._messages: dict[OwnerKey, tuple[str, tuple[str, ...]]] = {}
        """By owner: its UID, and the latest messages of its events, newest last."""
        self._failing: set[OwnerKey] = set()
        """The owners whose last reconciliation failed and who have an event about it."""

    def report_once(self, owner: Owner, warning: EventText, kind: str = "Warning") -> None:
        """Write an event about the owner, unless one with the same message is among its last 16 messages.

        ``warning`` has the event's reason and message, ``kind`` is its type, Warning or Normal.
        """
        owner_key = owner_key_of(owner)
        uid, known = self._messages.get(owner_key, ("", ()))
        if uid != owner.uid:
            known = ()
        if warning.message not in known:
            self._messages[owner_key] = owner.uid, (*known[1 - _MOST_REMEMBERED :], warning.message)
            self._writes.emit(owner, kind, warning)

    def report_failure(self, owner: Owner, kind_and_verb: tuple[str, str], error: ApiError, failures: int) -> None:
        """Write a Warning about a failed write, but only one until the owner's reconciliation succeeds again.

        ``kind_and_verb`` says what was written (`changes.kind_and_verb`). ``failures`` is the number of consecutive
        failures before this one: AlreadyExists is reported only after a few.
        """
        owner_key = owner_key_of(owner)
        enough = _ALREADY_EXISTS_BEFORE_EVENT if isinstance(error, AlreadyExists) else 1
        if failures + 1 >= enough and owner_key not in self._failing:
            self._failing.add(owner_key)
            self._writes.emit_failure(owner, kind_and_verb, error)

    def succeed(self, owner_key: OwnerKey) -> None:
        """Record that the owner's reconciliation succeeded, so that its next failure is reported again."""
        self._failing.discard(owner_key)

    def forget(self, owner_key: OwnerKey) -> None:
        """Forget which events an owner has got, because the owner was deleted."""
        self._messages.pop(owner_key, None)


PATIENCE_SECONDS = 10.0
"""Seconds for which a Job is left to kube-controller-manager, which creates the Workload before the first pod."""


def is_made_by_upstream(workload: Workload, owner: Owner) -> bool:
    """Return whether kube-controller-manager has made the Workload for the owner, a Job.

    It has if the Workload's name is upstream's, the Job is its controlling owner, and Serried's label is missing.
    """
    # The comparison of names comes last, because computing the name costs a hash.
    return (
        isinstance(owner, Job)
        and not is_ours(workload, owner)
        and is_controlled_by(workload, owner)
        and workload.key.name == workload_name(owner)
    )


class UpstreamJobs:
    """Decides for which Jobs kube-controller-manager, not Serried, is expected to create the Workload.

    kube-controller-manager does so if its feature gate WorkloadWithJob is on. One per reconciler.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.is_seen = False
        """True if a Workload made by kube-controller-manager was seen, so that its gate is taken to be on."""
        self._clock = clock
        """Return the monotonic time in seconds."""
        self._left_since: dict[OwnerKey, tuple[str, float]] = {}
        """By Job that is left to kube-controller-manager: its UID, and the time since when."""

    def detect(self, owner: Owner, workloads: Sequence[Workload]) -> None:
        """Set `is_seen` if kube-controller-manager has made one of ``workloads``, which refer to the owner."""
        self.is_seen = self.is_seen or any(is_made_by_upstream(workload, owner) for workload in workloads)

    def forget(self, owner_key: OwnerKey) -> None:
        """Forget since when a Job is left to kube-controller-manager, because the Job was deleted."""
        self._left_since.pop(owner_key, None)

    def seconds_to_wait(self, owner: Owner) -> float:
        """Return for how many seconds the owner is still left to kube-controller-manager; 0 if it is not left to it.

        The time begins with the first call for the owner. If it ends without a Workload, kube-controller-manager's
        feature gate WorkloadWithJob is taken to be off, also for all other Jobs.
        """
        if not self.manages(owner):
            return 0.0
        owner_key = owner_key_of(owner)
        uid, since = self._left_since.get(owner_key, ("", 0.0))
        if uid != owner.uid:
            since = self._clock()
            self._left_since[owner_key] = owner.uid, since
        if (left := since + PATIENCE_SECONDS - self._clock()) > 0:
            return left
        self.is_seen = False  # the gate is off now, or another client made the Workload that was seen
        return 0.0

    def manages(self, owner: Owner) -> bool:
        """Return whether kube-controller-manager is expected to make the Workload of this owner.

        That is so for a Job that it manages, that has no controlling owner, and whose name is short enough for
        upstream's template name. False for all owners while kube-controller-manager's feature gate WorkloadWithJob
        seems to be off.
        """
        if not self.is_seen or not isinstance(owner, Job) or owner.managed_by:
            return False
        return owner.owner is None and is_upstream_template(owner)


log = logging.getLogger(__name__)

_SECONDS_BETWEEN_READS = 5.0
"""Seconds until a parent's pods are read again, while pods of a removed replica still exist.

Also while pods exist that may be of an earlier parent of the same name.
"""

_WRITES_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of the reconciliation of one owner, if it did not fail: of one task of the controller's loop."""

    created: bool = False
    """True if the task has created an object."""

    requeue_after_seconds: float | None = None
    """Seconds until the task is queued again; None if only a change in the Store queues it."""


@dataclass(eq=False)
class Reconciler:
    """Reconciles Jobs and parents such as JobSets and LeaderWorkerSets. One per process, owned by the loop."""

    store: Store
    writes: Writes
    settings: GangSettings

    read_pods: Callable[[Parent], Awaitable[Sequence[Pod]]]
    """Reads the pods of a parent from the API server (`writes.read_pods_of`)."""

    record_progress: Callable[[], None]
    """Called when the API server has answered a write, for the watchdog of the process."""

    metrics: ControllerMetrics

    clock: Callable[[], float]
    """Return the monotonic time in seconds."""

    def __post_init__(self) -> None:
        self.expectations = Expectations(self.store, self.clock)
        self._owner_events = OwnerEvents(self.writes)
        self._upstream = UpstreamJobs(self.clock)
        self._renewals = Renewals(self.store)
        self._unresolved: set[OwnerKey] = set()
        """Owners to reconcile when the table of levels changes: they lack the label of a level, or are suspended Jobs.
        """

    def pop_unresolved(self) -> set[OwnerKey]:
        """Return the owners to reconcile because the table of levels has changed, and forget them.

        The table says which node label stands for each topology level. The owners name a level for which no label was
        known, or are suspended Jobs, whose objects follow a change of the label.
        """
        taken, self._unresolved = self._unresolved, set()
        return taken

    async def reconcile(self, owner_key: OwnerKey, failures: int) -> Result:
        """Create, change and delete the owner's Workload and PodGroups until they are as the owner needs them.

        ``failures`` is the number of consecutive failures for the owner before this call. Raises the first ApiError of
        the writes.
        """
        result = await self._reconcile(owner_key, failures)
        self._owner_events.succeed(owner_key)
        return result

    async def _reconcile(self, owner_key: OwnerKey, failures: int) -> Result:
        has_created = False
        # The owner is read again each time: it may be deleted and created again during a write.
        while (owner := self.store.owners.find(owner_key)) is not None:
            changes = self._compute_changes(owner)
            first = next(changes, None)
            if first is None:
                return Result(has_created)
            if not isinstance(first, Create):
                seconds = await self._apply(chain((first,), changes), failures)
                return Result(has_created, seconds)  # the watch will show the result, and queue the owner again
            if (end := await self._postpone_create(owner, first)) is not None:
                return end
            await self._create(owner, chain((first,), changes), failures)
            has_created = True
        self._forget(owner_key)
        return Result(has_created)

    def _forget(self, owner_key: OwnerKey) -> None:
        self._owner_events.forget(owner_key)
        self._upstream.forget(owner_key)
        self._renewals.forget(owner_key)
        self._unresolved.discard(owner_key)

    # --- deciding --------------------------------------------------------------------------------------------------

    def action_of(self, owner: Owner) -> DesiredAction:
        """Return what the controller has to do for an owner in the Store.

        The values of `DesiredAction` are to create Workload and PodGroups (START, TRACK), to create missing PodGroups
        only (COMPLETE), to delete Serried's objects (RELEASE), or nothing (NONE). It is NONE for a Job whose parent,
        such as a JobSet, is the gang.
        """
        if isinstance(owner, Job):
            if self.store.membership.governs_job(owner):
                return DesiredAction.NONE
            pods = [
                pod
                for pod in self.store.owners.pods_of(owner_key_of(owner))
                if pod.owner and pod.owner.uid == owner.uid
            ]
            return action_of_job(owner, pods, self.settings)
        if not is_served(owner, self.settings):
            return DesiredAction.NONE
        return DesiredAction.START if self.store.membership.is_eligible(owner) else DesiredAction.COMPLETE

    def report_api_unavailable(self) -> None:
        """Write a Warning about each gang that cannot be created, because the API server does not offer PodGroups."""
        owners: list[Owner] = [*self.store.jobs.values(), *self.store.parents.values()]
        for owner in owners:
            if self.action_of(owner) is DesiredAction.START:
                self._owner_events.report_once(owner, api_unavailable_event(owner, self.store.obstacles.native))

    def _compute_changes(self, owner: Owner) -> Iterator[Change]:
        """Return the changes to write for the owner, creates first. Write events about the owner's mistakes.

        Each change is computed when the caller takes it.
        """
        action = self.action_of(owner)
        for warning in find_warnings(owner, action, self.settings):
            self._owner_events.report_once(owner, warning)
        if isinstance(owner, Job) and owner.problem:
            return iter(())
        observed = observe(self.store, self.expectations, owner)
        resolved, key = self._resolve_levels(owner, observed, action), owner.topology_key
        owner = resolved.owner
        self._detect_upstream(owner, observed, action)
        if action is DesiredAction.COMPLETE and not observed.workloads:
            self._report_no_gang(owner)
        if ignored := self._find_ignored_annotations(key, resolved, observed):
            if self._renewals.try_begin(owner, observed, action):
                return iter(list_deletes(owner, observed))
            if action is not DesiredAction.NONE:
                self._owner_events.report_once(owner, ignored_changes_event(owner, ignored))
        is_left = self._upstream.manages(owner)
        update = MinCountUpdate.NEVER if is_left else choose_min_count_update(self.settings, self.store.level)
        changes = (each for each in diff(owner, observed, action, update) if not self._is_name_taken(each))
        return self._filter_unresolved_creates(owner, changes) if resolved.missing else changes

    def _resolve_levels(self, owner: Owner, observed: Observed, action: DesiredAction) -> Resolved[Owner]:
        """Return the owner with node labels in place of the topology levels that it names, such as ``rack``.

        If its objects exist, the labels that they name stay, unless the owner is a suspended Job. A preferred level
        without a label in this cluster is left out. The owner gets an event about that if ``action`` is START, so that
        its Workload and PodGroups are to be created.
        """
        if not names_levels(owner.topology_key, owner.preference):
            return Resolved(owner)
        if isinstance(owner, Job) and owner.suspended:
            observed = Observed()
            self._unresolved.add(owner_key_of(owner))
        has_groups = bool(observed.groups) or any(workload.inline for workload in observed.workloads)
        published = self.store.levels.published
        resolved = resolve_owner(owner, published, list_labels(observed), has_groups=has_groups)
        if resolved.left_out and action is DesiredAction.START:
            self._owner_events.report_once(owner, level_left_out_event(owner, resolved.left_out), "Normal")
        return resolved

    def _find_ignored_annotations(self, key: str | None, resolved: Resolved[Owner], observed: Observed) -> list[str]:
        """Return the keys of the owner's annotations whose change had no effect, because its objects exist already.

        ``key`` is the required topology as the owner names it: a label or a level. ``resolved`` is the owner with
        labels in place of levels. If it is a level, its annotation is not returned if just the label that stands
        for the level has changed in the cluster, because its author changed nothing; but it is for a suspended Job,
        whose objects are created again.
        """
        unsure = {PREFERRED_TOPOLOGY} if resolved.left_out or resolved.missing else set()
        if key in LEVELS:
            table = self.store.levels.published
            # The objects of a suspended Job stay while new ones could not be created.
            suspended = isinstance(resolved.owner, Job) and resolved.owner.suspended and not resolved.missing
            if table is None or not (suspended or differs_from_level(key, table, observed)):
                unsure.add(REQUIRED_TOPOLOGY)
        return [name for name in find_ignored_changes(resolved.owner, observed) if name not in unsure]

    def _filter_unresolved_creates(self, owner: Owner, changes: Iterator[Change]) -> Iterator[Change]:
        """Yield the changes, except creates of objects that would name a topology level without a known node label.

        If one is left out, the owner is reconciled again when the table of levels changes. A PodGroup is not left out
        if its template names a label.
        """
        for change in changes:
            key = change.template.topology_key if isinstance(change, CreatePodGroup) else None
            if isinstance(change, Create) and names_levels(key or owner.topology_key, owner.preference):
                self._unresolved.add(owner_key_of(owner))
            else:
                yield change

    def _report_no_gang(self, owner: Owner) -> None:
        """Write an event that says why the owner is no gang, if it asks for Serried by annotations or schedulerName.

        If it only names the scheduler, the event is written only before its pods start, so that a restart of the
        controller does not repeat it. An owner that controls a PodGroup gets no event.
        """
        refusal = find_no_gang_event(owner, self.settings)
        is_told = owner.annotated or not self.store.owners.has_started(owner_key_of(owner), owner.uid)
        if refusal is not None and is_told and not self.store.membership.groups_controlled_by(owner):
            self._owner_events.report_once(owner, refusal, "Warning" if owner.annotated else "Normal")

    def _detect_upstream(self, owner: Owner, observed: Observed, action: DesiredAction) -> None:
        was_seen = self._upstream.is_seen
        self._upstream.detect(owner, observed.workloads)
        if self._upstream.is_seen and not was_seen:
            log.warning(
                "kube-controller-manager creates Workloads for Jobs (gate WorkloadWithJob), so Serried creates none"
            )
        made = next((workload for workload in observed.workloads if is_made_by_upstream(workload, owner)), None)
        is_basic = made is not None and not any(each.policy.is_gang for each in made.templates)
        if made is not None and is_basic and isinstance(owner, Job) and action is DesiredAction.START:
            self._owner_events.report_once(owner, upstream_basic_event(made, owner))

    def _is_name_taken(self, change: Change) -> bool:
        """Return whether an object of the name to be created exists and is being deleted.

        False for other changes than creates. When that object is gone, the owner is queued again.
        """
        match change:
            case CreateWorkload():
                workload = self.store.workloads.get(Key(change.owner.key.namespace, change.name))
                return workload is not None and workload.deleting
            case CreatePodGroup():
                group = self.store.groups.get(GroupKey(change.owner.key.namespace, change.name))
                return group is not None and group.deleting
        return False

    # --- creating --------------------------------------------------------------------------------------------------

    async def _postpone_create(self, owner: Owner, create: Create) -> Result | None:
        """Return the result of this reconciliation if ``create`` must not be sent now, None if it may be sent.

        There are two reasons not to send it now. The owner may be left to kube-controller-manager for some seconds. Or
        ``create`` is the Workload of a parent that may get none now (`_stop_if_started`), as its pods have started.
        """
        if seconds := self._upstream.seconds_to_wait(owner):
            return Result(requeue_after_seconds=seconds)
        if isinstance(owner, Parent) and isinstance(create, CreateWorkload):
            return await self._stop_if_started(owner)
        return None

    async def _stop_if_started(self, parent: Parent) -> Result | None:
        """Return the result of this reconciliation if no Workload may be created for the parent; None if one may.

        A Workload must not be created once a pod of the parent has started, because the pod did not start as part of a
        gang. It must not be created either if the parent has changed or got a Workload during this call. The pods are
        read from the API server, because only some are watched.
        """
        pods = await self.read_pods(parent)
        has_workload = bool(observe(self.store, self.expectations, parent).workloads)
        if self.store.owners.find(owner_key_of(parent)) != parent or has_workload:
            return Result()  # the change has queued the owner again
        if not any(map(_counts_as_started, pods)):
            return None
        return Result(
            requeue_after_seconds=_SECONDS_BETWEEN_READS if any(map(_may_be_of_earlier_parent, pods)) else None
        )

    async def _create(self, owner: Owner, changes: Iterable[Change], failures: int) -> None:
        """Send the creates among the changes, a batch at a time, until the owner changes in the Store.

        If all creates of a batch are rejected, no further batch is sent. Raises the first rejection at the end.
        """
        waiting = (each for each in changes if isinstance(each, Create))
        refusals: list[ApiError] = []
        while batch := list(islice(waiting, _WRITES_AT_ONCE)):
            outcomes = await asyncio.gather(*(self._write_or_report(create, failures) for create in batch))
            refused = [error for error in outcomes if error is not None]
            refusals += refused
            if len(refused) == len(batch) or self.store.owners.find(owner_key_of(owner)) != owner:
                break
        if refusals:
            raise refusals[0]

    # --- writing ---------------------------------------------------------------------------------------------------

    async def _apply(self, changes: Iterable[Change], failures: int) -> float | None:
        """Carry out the changes other than creates. Raise the first rejection by the API server.

        ``failures`` is the number of consecutive failures before. Return the seconds until the owner must be reconciled
        again; None if a change in the Store will queue it.
        """
        seconds = None
        for change in changes:
            match change:
                case ReportAmbiguous(owner, problem):
                    self._owner_events.report_once(owner, ambiguous_event(owner, problem))
                case DeleteEmptyReplicas():
                    seconds = await self._delete_empty_replicas(change, failures)
                case SetMinCount() | Delete():
                    if (error := await self._write_or_report(change, failures)) is not None:
                        raise error
        return seconds

    async def _delete_empty_replicas(self, change: DeleteEmptyReplicas, failures: int) -> float | None:
        """Delete those of the PodGroups in ``change`` that belong to a replica without pods.

        A replica is one leader pod of a LeaderWorkerSet or the like, with its workers. It has PodGroups of its own.

        Return the seconds until the other PodGroups are to be tried; None if all are deleted. Raises the first
        rejection by the API server, without trying further ones.
        """
        if not isinstance(change.owner, Parent):
            return None
        pods = await self.read_pods(change.owner)
        with_pods = {pod.place.replica for pod in pods if pod.place is not None}
        deletable = [group for group in change.groups if group.labels.get(REPLICA) not in with_pods]
        for group in deletable:
            if (error := await self._write_or_report(Delete(change.owner, group), failures)) is not None:
                raise error
        return _SECONDS_BETWEEN_READS if len(deletable) < len(change.groups) else None

    async def _write_or_report(self, write: Write, failures: int) -> ApiError | None:
        """Send one write. Return None if it succeeds.

        If the API server rejects it, report that to the owner (`OwnerEvents.report_failure`) and return the error.
        ``failures`` is the number of consecutive failures before.
        """
        try:
            await self._write(write)
        except ApiError as error:
            self._owner_events.report_failure(write.owner, kind_and_verb(write), error, failures)
            return error
        finally:
            self.record_progress()
        return None

    async def _write(self, write: Write) -> None:
        match write:
            case CreateWorkload():
                await self._create_workload(write)
            case CreatePodGroup():
                await self._create_pod_group(write)
            case SetMinCount():
                await self.writes.set_min_count(write)
            case Delete():
                await self.writes.delete(write)

    async def _create_workload(self, create: CreateWorkload) -> None:
        begun = self.clock()
        result = "error"
        try:
            self.expectations.expect(await self.writes.create_workload(create))
            result = "success"
        finally:
            if isinstance(create.owner, Job) and create.templates[0].policy.is_gang:
                self.metrics.created(result, self.clock() - begun)

    async def _create_pod_group(self, create: CreatePodGroup) -> None:
        level = self.store.level.second_level if create.workload.api else None
        template = resolve_class(create.template, level or self.store.level, self.store.priority_classes)
        result = "error"
        try:
            self.expectations.expect(await self.writes.create_pod_group(replace(create, template=template)))
            result = "success"
        finally:
            self.metrics.created_group(result)


def _counts_as_started(pod: Pod) -> bool:
    return pod.place is not None and counts_as_started(pod, pod.place.uid)


def _may_be_of_earlier_parent(pod: Pod) -> bool:
    """Return whether the pod may belong to an earlier parent of the same name, which was deleted.

    True for a pod that is being deleted and has no label with the UID of its parent.
    """
    return pod.deleting and pod.place is not None and not pod.place.uid
