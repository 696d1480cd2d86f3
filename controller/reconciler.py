"""One look at an owner: observe, diff, write, report. It goes on until nothing is left to be done.

A restart between two writes does no harm: the next process finds what is left. What exists for an owner is in the
Store, or created and not yet in it. No owner gets the same event twice.

Where kube-controller-manager has its gate WorkloadWithJob on, it makes Workloads for Jobs, too. The API does not say
so; its first Workload does. From then on each Job that it manages is left to it for a while. If it makes nothing in
that time, all Jobs are ours until its next Workload is seen (docs/decisions/0010-beside-another-reconciler.md).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice

from controller.diff.changes import (
    Change,
    ClearReplicas,
    Create,
    CreatePodGroup,
    CreateWorkload,
    Delete,
    Observed,
    ReportAmbiguous,
    SetMinCount,
    Write,
    describe,
)
from controller.diff.objects import is_upstream_template, resolve_class, workload_name
from controller.diff.owner import (
    DesiredAction,
    Follow,
    GangSettings,
    action_of_job,
    concerns_us,
    diff,
    find_follow,
    find_ignored_changes,
    find_warnings,
    refuse,
    release,
)
from controller.diff.sentences import (
    Sentence,
    tell_ambiguity,
    tell_ignored_changes,
    tell_left_out,
    tell_obstacle,
    tell_upstream,
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
    """The objects of an owner, found by reference, with those that we have created a moment ago."""
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
    """The Workload's PodGroups that are objects of their own; inline ones are a part of the Workload."""
    return [] if workload.inline else store.membership.groups_of(workload, owner)


def list_made(observed: Observed) -> list[PodGroup | Template]:
    """The PodGroups of an owner, and the templates of its Workloads."""
    return [*observed.groups, *(template for workload in observed.workloads for template in workload.templates)]


def list_labels(observed: Observed) -> frozenset[str]:
    """The labels of the topology that the objects of an owner name."""
    made = list_made(observed)
    preferred = (level.key for each in made for level in each.preference.levels)
    required = (each.topology_key for each in made if each.topology_key is not None)
    return frozenset((*required, *preferred))


def means_another(level: str, table: LevelTable, observed: Observed) -> bool:
    """Whether something was made for an owner without a topology, or by a label of another level."""
    made = {each.topology_key for each in list_made(observed)}
    others = (labels for name, labels in table.candidates.items() if name != level)
    return None in made or any(label in made for labels in others for label in labels)


def _find_replicas(store: Store, owner: Owner) -> Collection[str]:
    if isinstance(owner, Job) or owner.replicas is None:
        return ()
    places = (pod.place for pod in store.owners.pods_of(owner_key_of(owner)) if not pod.deleting)
    return dict.fromkeys(place.replica for place in places if place is not None)


class Renewals:
    """Decides which Jobs' objects are made anew.

    Once for each change of a Job: if the new objects differ from it as well, another client wants it so.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._renewed: dict[OwnerKey, tuple[object, frozenset[str]]] = {}
        """What each Job asked for when its objects were last given up, and the UIDs of these objects."""

    def begin(self, owner: Owner, observed: Observed, action: DesiredAction) -> bool:
        """Whether the Job's objects may be deleted, to be made anew; no pod waits for them while it is suspended."""
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
        """The owner has gone."""
        self._renewed.pop(owner_key, None)

    def _is_idle(self, job: Job, action: DesiredAction) -> bool:
        pods = (pod for pod in self._store.owners.pods_of(owner_key_of(job)) if pod.owner and pod.owner.uid == job.uid)
        return action in {DesiredAction.START, DesiredAction.TRACK} and job.suspended and next(pods, None) is None


_ALREADY_EXISTS_BEFORE_EVENT = 4
"""How many looks in a row have to end with AlreadyExists before an event says so.

The first ones only mean that our caches do not show yet what another client has created.
"""


_MOST_REMEMBERED = 16
"""How many messages are remembered of an owner: its author may bring out any number of them, one after the other."""


class Reported:
    """The memory of events. An owner that is made anew under its name gets all of them again."""

    def __init__(self, writes: Writes) -> None:
        self._writes = writes
        self._messages: dict[OwnerKey, tuple[str, tuple[str, ...]]] = {}
        """The UID of the owner that has got the events, and the latest of their messages, the newest last."""
        self._failing: set[OwnerKey] = set()
        """The owners whose last look failed and who have got an event about it."""

    def report_once(self, owner: Owner, warning: Sentence, kind: str = "Warning") -> None:
        """Write an event, Warning or Normal, unless the same has been written for this owner before."""
        owner_key = owner_key_of(owner)
        uid, heard = self._messages.get(owner_key, ("", ()))
        if uid != owner.uid:
            heard = ()
        if warning.message not in heard:
            self._messages[owner_key] = owner.uid, (*heard[1 - _MOST_REMEMBERED :], warning.message)
            self._writes.emit(owner, kind, warning)

    def report_failure(self, owner: Owner, what: tuple[str, str], error: ApiError, failures: int) -> None:
        """Write an event of the first failure in a row of failed looks.

        ``what`` is the kind of the object and the verb, ``failures`` is how many looks have failed before this one.
        """
        owner_key = owner_key_of(owner)
        enough = _ALREADY_EXISTS_BEFORE_EVENT if isinstance(error, AlreadyExists) else 1
        if failures + 1 >= enough and owner_key not in self._failing:
            self._failing.add(owner_key)
            self._writes.emit_failure(owner, what, error)

    def succeed(self, owner_key: OwnerKey) -> None:
        """A look at the owner has succeeded: the next failure gets an event again."""
        self._failing.discard(owner_key)

    def forget(self, owner_key: OwnerKey) -> None:
        """The owner has gone."""
        self._messages.pop(owner_key, None)


PATIENCE_SECONDS = 10.0
"""How long a Job is left to kube-controller-manager, which creates a Workload before the first pod."""


def is_upstreams(workload: Workload, owner: Owner) -> bool:
    """Whether kube-controller-manager made the Workload: its name and its owner, and not our label."""
    # In this order, because only the last one costs a hash.
    return (
        isinstance(owner, Job)
        and not is_ours(workload, owner)
        and is_controlled_by(workload, owner)
        and workload.key.name == workload_name(owner)
    )


class Upstream:
    """What is known of kube-controller-manager."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.is_seen = False
        """Whether a Workload that it made has been seen, so that its gate counts as on."""
        self._clock = clock
        """The monotonic time in seconds."""
        self._left: dict[OwnerKey, tuple[str, float]] = {}
        """The UID of each Job that is left to it, and the time since when."""

    def learn(self, owner: Owner, workloads: Sequence[Workload]) -> None:
        """Look whether it made one of these Workloads, which refer to the owner."""
        self.is_seen = self.is_seen or any(is_upstreams(workload, owner) for workload in workloads)

    def forget(self, owner_key: OwnerKey) -> None:
        """The owner has gone."""
        self._left.pop(owner_key, None)

    def seconds_left(self, owner: Owner) -> float:
        """How long the owner is still left to kube-controller-manager; 0 for one that is ours."""
        if not self.looks_after(owner):
            return 0.0
        owner_key = owner_key_of(owner)
        uid, since = self._left.get(owner_key, ("", 0.0))
        if uid != owner.uid:
            since = self._clock()
            self._left[owner_key] = owner.uid, since
        if (left := since + PATIENCE_SECONDS - self._clock()) > 0:
            return left
        self.is_seen = False  # it has stopped, or what was seen was another's
        return 0.0

    def looks_after(self, owner: Owner) -> bool:
        """Whether it makes Workloads for such an owner: its own Job, that no controller owns, of a name it can use."""
        if not self.is_seen or not isinstance(owner, Job) or owner.managed_by:
            return False
        return owner.owner is None and is_upstream_template(owner)


log = logging.getLogger(__name__)

_SECONDS_BETWEEN_READS = 5.0
"""How often pods are read while those of a replica that is gone, or of an earlier owner of the name, still exist."""

_WRITES_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a look."""

    created: bool = False
    """Whether something was created."""

    requeue_after_seconds: float | None = None
    """When to look again even if nothing changes; None if only a change asks for a look."""


@dataclass(eq=False)
class Reconciler:
    """Looks at Jobs and parents."""

    store: Store
    writes: Writes
    settings: GangSettings

    read_pods: Callable[[Parent], Awaitable[Sequence[Pod]]]
    """Reads the pods of a parent from the API server (`writes.read_pods_of`)."""

    note_finished: Callable[[], None]
    """Called when a write was answered."""

    metrics: ControllerMetrics

    clock: Callable[[], float]
    """The monotonic time in seconds."""

    def __post_init__(self) -> None:
        self.expectations = Expectations(self.store, self.clock)
        self._reported = Reported(self.writes)
        self._upstream = Upstream(self.clock)
        self._renewals = Renewals(self.store)
        self._unresolved: set[OwnerKey] = set()
        """The owners whose objects another table of levels changes: those without a label, and suspended Jobs."""

    def take_unresolved(self) -> set[OwnerKey]:
        """Return the owners that another table of levels may change, to be looked at again, and forget them."""
        taken, self._unresolved = self._unresolved, set()
        return taken

    async def reconcile(self, owner_key: OwnerKey, failures: int) -> Result:
        """Do what is needed for the owner. Raises the first ApiError of its writes.

        ``failures`` is how many looks at the owner have failed in a row.
        """
        result = await self._work_off(owner_key, failures)
        self._reported.succeed(owner_key)
        return result

    async def _work_off(self, owner_key: OwnerKey, failures: int) -> Result:
        has_created = False
        # The owner is read anew each time: it may have gone, and come again, while a write was under way.
        while (owner := self.store.owners.find(owner_key)) is not None:
            changes = self._decide(owner)
            first = next(changes, None)
            if first is None:
                return Result(has_created)
            if not isinstance(first, Create):
                seconds = await self._carry_out(chain((first,), changes), failures)
                return Result(has_created, seconds)  # the watch will show what became of it, and ask for the next look
            if (end := await self._wait_before(owner, first)) is not None:
                return end
            await self._create(owner, chain((first,), changes), failures)
            has_created = True
        self._forget(owner_key)
        return Result(has_created)

    def _forget(self, owner_key: OwnerKey) -> None:
        self._reported.forget(owner_key)
        self._upstream.forget(owner_key)
        self._renewals.forget(owner_key)
        self._unresolved.discard(owner_key)

    # --- deciding --------------------------------------------------------------------------------------------------

    def action_of(self, owner: Owner) -> DesiredAction:
        """The action towards an owner in the Store. There is none towards a Job that is a part of a larger gang."""
        if isinstance(owner, Job):
            if self.store.membership.governs_job(owner):
                return DesiredAction.NONE
            pods = [
                pod
                for pod in self.store.owners.pods_of(owner_key_of(owner))
                if pod.owner and pod.owner.uid == owner.uid
            ]
            return action_of_job(owner, pods, self.settings)
        if not concerns_us(owner, self.settings):
            return DesiredAction.NONE
        return DesiredAction.START if self.store.membership.is_eligible(owner) else DesiredAction.COMPLETE

    def report_obstacle(self) -> None:
        """Warn each owner whose objects cannot be created now, once."""
        owners: list[Owner] = [*self.store.jobs.values(), *self.store.parents.values()]
        for owner in owners:
            if self.action_of(owner) is DesiredAction.START:
                self._reported.report_once(owner, tell_obstacle(owner, self.store.obstacles.native))

    def _decide(self, owner: Owner) -> Iterator[Change]:
        """The changes that can be made now, creates first; each is computed when it is taken."""
        action = self.action_of(owner)
        for warning in find_warnings(owner, action, self.settings):
            self._reported.report_once(owner, warning)
        if isinstance(owner, Job) and owner.problem:
            return iter(())
        observed = observe(self.store, self.expectations, owner)
        resolved, key = self._resolve(owner, observed, action), owner.topology_key
        owner = resolved.owner
        self._meet_upstream(owner, observed, action)
        if action is DesiredAction.COMPLETE and not observed.workloads:
            self._tell_refusal(owner)
        if ignored := self._find_ignored(key, resolved, observed):
            if self._renewals.begin(owner, observed, action):
                return iter(release(owner, observed))
            if action is not DesiredAction.NONE:
                self._reported.report_once(owner, tell_ignored_changes(owner, ignored))
        left = self._upstream.looks_after(owner)
        follow = Follow.NEVER if left else find_follow(self.settings, self.store.level)
        changes = (each for each in diff(owner, observed, action, follow) if not self._is_name_taken(each))
        return self._hold_creates(owner, changes) if resolved.missing else changes

    def _resolve(self, owner: Owner, observed: Observed, action: DesiredAction) -> Resolved[Owner]:
        """The owner with labels in place of levels. What was made for it keeps its labels, unless it is suspended."""
        if not names_levels(owner.topology_key, owner.preference):
            return Resolved(owner)
        if isinstance(owner, Job) and owner.suspended:
            observed = Observed()
            self._unresolved.add(owner_key_of(owner))
        has_groups = bool(observed.groups) or any(workload.inline for workload in observed.workloads)
        published = self.store.levels.published
        resolved = resolve_owner(owner, published, list_labels(observed), has_groups=has_groups)
        if resolved.left_out and action is DesiredAction.START:
            self._reported.report_once(owner, tell_left_out(owner, resolved.left_out), "Normal")
        return resolved

    def _find_ignored(self, key: str | None, resolved: Resolved[Owner], observed: Observed) -> list[str]:
        """The annotations that have changed in vain; ``key`` is the required topology as the owner says it.

        What levels mean may change, too: of a running gang that is no change of its owner's.
        """
        unsure = {PREFERRED_TOPOLOGY} if resolved.left_out or resolved.missing else set()
        if key in LEVELS:
            table = self.store.levels.published
            # What was made for a suspended Job stays while nothing could be made in its place.
            suspended = isinstance(resolved.owner, Job) and resolved.owner.suspended and not resolved.missing
            if table is None or not (suspended or means_another(key, table, observed)):
                unsure.add(REQUIRED_TOPOLOGY)
        return [name for name in find_ignored_changes(resolved.owner, observed) if name not in unsure]

    def _hold_creates(self, owner: Owner, changes: Iterator[Change]) -> Iterator[Change]:
        """The changes but for creates that would name a level, for which a label is awaited.

        The extender says so where pods wait. A PodGroup gets the label of its template, if that has one.
        """
        for change in changes:
            key = change.template.topology_key if isinstance(change, CreatePodGroup) else None
            if isinstance(change, Create) and names_levels(key or owner.topology_key, owner.preference):
                self._unresolved.add(owner_key_of(owner))
            else:
                yield change

    def _tell_refusal(self, owner: Owner) -> None:
        """Tell an owner that has no objects why it is no gang, if it asks for Serried.

        One that only names the scheduler hears it once, before its pods start: else each restart would tell all again.
        """
        refusal = refuse(owner, self.settings)
        is_told = owner.annotated or not self.store.owners.has_started(owner_key_of(owner), owner.uid)
        if refusal is not None and is_told and not self.store.membership.groups_controlled_by(owner):
            self._reported.report_once(owner, refusal, "Warning" if owner.annotated else "Normal")

    def _meet_upstream(self, owner: Owner, observed: Observed, action: DesiredAction) -> None:
        was_seen = self._upstream.is_seen
        self._upstream.learn(owner, observed.workloads)
        if self._upstream.is_seen and not was_seen:
            log.warning("kube-controller-manager makes Workloads (gate WorkloadWithJob): Jobs are left to it")
        made = next((workload for workload in observed.workloads if is_upstreams(workload, owner)), None)
        is_basic = made is not None and not any(each.policy.is_gang for each in made.templates)
        if made is not None and is_basic and isinstance(owner, Job) and action is DesiredAction.START:
            self._reported.report_once(owner, tell_upstream(made, owner))

    def _is_name_taken(self, change: Change) -> bool:
        """Whether an object that is being deleted still has the name to be created; its end asks for the next look."""
        match change:
            case CreateWorkload():
                workload = self.store.workloads.get(Key(change.owner.key.namespace, change.name))
                return workload is not None and workload.deleting
            case CreatePodGroup():
                group = self.store.groups.get(GroupKey(change.owner.key.namespace, change.name))
                return group is not None and group.deleting
        return False

    # --- creating --------------------------------------------------------------------------------------------------

    async def _wait_before(self, owner: Owner, create: Create) -> Result | None:
        """The end of the look if nothing is to be created (yet), else None."""
        if seconds := self._upstream.seconds_left(owner):
            return Result(requeue_after_seconds=seconds)
        if isinstance(owner, Parent) and isinstance(create, CreateWorkload):
            return await self._find_started(owner)
        return None

    async def _find_started(self, parent: Parent) -> Result | None:
        """The end of the look if a pod of the parent has started. Not all of them are watched, so they are read."""
        pods = await self.read_pods(parent)
        has_workload = bool(observe(self.store, self.expectations, parent).workloads)
        if self.store.owners.find(owner_key_of(parent)) != parent or has_workload:
            return Result()  # what has changed meanwhile has asked for the next look
        if not any(map(_counts_as_started, pods)):
            return None
        return Result(requeue_after_seconds=_SECONDS_BETWEEN_READS if any(map(_is_left_over, pods)) else None)

    async def _create(self, owner: Owner, changes: Iterable[Change], failures: int) -> None:
        """Carry out the creates among the changes, a batch at a time, while the owner stays as it is.

        Raises the first refusal, with everything else done; where a whole batch is refused, nothing more is tried.
        """
        waiting = (each for each in changes if isinstance(each, Create))
        refusals: list[ApiError] = []
        while batch := list(islice(waiting, _WRITES_AT_ONCE)):
            outcomes = await asyncio.gather(*(self._try(create, failures) for create in batch))
            refused = [error for error in outcomes if error is not None]
            refusals += refused
            if len(refused) == len(batch) or self.store.owners.find(owner_key_of(owner)) != owner:
                break
        if refusals:
            raise refusals[0]

    # --- writing ---------------------------------------------------------------------------------------------------

    async def _carry_out(self, changes: Iterable[Change], failures: int) -> float | None:
        """Carry out the changes that create nothing; raises the first refusal.

        Returns after how many seconds to look again, None if only a change asks for it.
        """
        seconds = None
        for change in changes:
            match change:
                case ReportAmbiguous(owner, problem):
                    self._reported.report_once(owner, tell_ambiguity(owner, problem))
                case ClearReplicas():
                    seconds = await self._clear(change, failures)
                case SetMinCount() | Delete():
                    if (error := await self._try(change, failures)) is not None:
                        raise error
        return seconds

    async def _clear(self, change: ClearReplicas, failures: int) -> float | None:
        """Delete the PodGroups whose replicas have no pods. Returns after how many seconds to look at the others."""
        if not isinstance(change.owner, Parent):
            return None
        pods = await self.read_pods(change.owner)
        with_pods = {pod.place.replica for pod in pods if pod.place is not None}
        deletable = [group for group in change.groups if group.labels.get(REPLICA) not in with_pods]
        for group in deletable:
            if (error := await self._try(Delete(change.owner, group), failures)) is not None:
                raise error
        return _SECONDS_BETWEEN_READS if len(deletable) < len(change.groups) else None

    async def _try(self, write: Write, failures: int) -> ApiError | None:
        """Carry one write out. Returns the API server's refusal, about which the owner gets an event."""
        try:
            await self._write(write)
        except ApiError as error:
            self._reported.report_failure(write.owner, describe(write), error, failures)
            return error
        finally:
            self.note_finished()
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
        level = self.store.level.beside if create.workload.api else None
        template = resolve_class(create.template, level or self.store.level, self.store.priority_classes)
        result = "error"
        try:
            self.expectations.expect(await self.writes.create_pod_group(replace(create, template=template)))
            result = "success"
        finally:
            self.metrics.created_group(result)


def _counts_as_started(pod: Pod) -> bool:
    return pod.place is not None and counts_as_started(pod, pod.place.uid)


def _is_left_over(pod: Pod) -> bool:
    """Whether the pod may belong to an earlier parent of the same name; it is about to go."""
    return pod.deleting and pod.place is not None and not pod.place.uid
