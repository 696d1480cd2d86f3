"""One look at an owner: observe, diff, write, report.

A look goes on until nothing is left to be done. A restart between two writes does no harm: the next process finds what
is left.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
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
from controller.diff.complaints import find_complaints
from controller.diff.duty import Duty, GangSettings, concerns_us, duty_of_job
from controller.diff.ignored import find_ignored_changes
from controller.diff.owner import Follow, diff, release
from controller.diff.sentences import tell_ambiguity, tell_ignored_changes, tell_obstacle, tell_upstream
from controller.expectations import Expectations
from controller.observation import observe
from controller.renewals import Renewals
from controller.reported import Reported
from controller.upstream import Upstream, is_upstreams
from controller.writes import Writes
from serried.cluster.owners import counts_as_started
from serried.cluster.store import Store
from serried.kube.errors import ApiError
from serried.metrics import ControllerMetrics
from serried.model.group import GroupKey, Job, Key, Template
from serried.model.level import ApiLevel
from serried.model.parent import REPLICA, Owner, OwnerKey, Parent, owner_key_of
from serried.model.pod import Pod

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


class Reconciler:
    """Looks at Jobs and parents."""

    def __init__(
        self,
        store: Store,
        expectations: Expectations,
        writes: Writes,
        settings: GangSettings,
        *,
        follow: Follow,
        resolve_class: Callable[[Template, ApiLevel], Template],
        read_pods: Callable[[Parent], Awaitable[Sequence[Pod]]],
        note_finished: Callable[[], None],
        metrics: ControllerMetrics,
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._expectations = expectations
        self._writes = writes
        self._settings = settings
        self._follow = follow
        """How minCount follows the size of an owner."""
        self._resolve_class = resolve_class
        """Adds to a template what its PodGroup has to say of its PriorityClass (`diff.templates.resolve_class`)."""
        self._read_pods = read_pods
        """Reads the pods of a parent from the API server (`reads.read_pods_of`)."""
        self._note_finished = note_finished
        """Called when a write was answered."""
        self._metrics = metrics
        self._clock = clock
        """The monotonic time in seconds."""
        self._reported = Reported(writes)
        self._upstream = Upstream(clock)
        self._renewals = Renewals(store)

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
        while (owner := self._store.owners.find(owner_key)) is not None:
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

    # --- deciding --------------------------------------------------------------------------------------------------

    def duty_of(self, owner: Owner) -> Duty:
        """The duty towards an owner in the Store. There is none towards a Job that is a part of a larger gang."""
        if isinstance(owner, Job):
            if self._store.membership.governs_job(owner):
                return Duty.NONE
            pods = [
                pod
                for pod in self._store.owners.pods_of(owner_key_of(owner))
                if pod.owner and pod.owner.uid == owner.uid
            ]
            return duty_of_job(owner, pods, self._settings)
        if not concerns_us(owner, self._settings):
            return Duty.NONE
        return Duty.START if self._store.membership.is_eligible(owner) else Duty.COMPLETE

    def report_obstacle(self) -> None:
        """Warn each owner whose objects cannot be created now, once."""
        owners: list[Owner] = [*self._store.jobs.values(), *self._store.parents.values()]
        for owner in owners:
            if self.duty_of(owner) is Duty.START:
                self._reported.report_once(owner, tell_obstacle(owner, self._store.obstacles.native))

    def _decide(self, owner: Owner) -> Iterator[Change]:
        """The changes that can be made now, creates first; each is computed when it is taken."""
        duty = self.duty_of(owner)
        for complaint in find_complaints(owner, duty, self._settings):
            self._reported.report_once(owner, complaint)
        if isinstance(owner, Job) and owner.problem:
            return iter(())
        observed = observe(self._store, self._expectations, owner)
        self._meet_upstream(owner, observed, duty)
        if ignored := find_ignored_changes(owner, observed):
            if self._renewals.begin(owner, observed, duty):
                return iter(release(owner, observed))
            if duty is not Duty.NONE:
                self._reported.report_once(owner, tell_ignored_changes(owner, ignored))
        follow = Follow.NEVER if self._upstream.looks_after(owner) else self._follow
        return (each for each in diff(owner, observed, duty, follow) if not self._is_name_taken(each))

    def _meet_upstream(self, owner: Owner, observed: Observed, duty: Duty) -> None:
        was_seen = self._upstream.is_seen
        self._upstream.learn(owner, observed.workloads)
        if self._upstream.is_seen and not was_seen:
            log.warning("kube-controller-manager makes Workloads (gate WorkloadWithJob): Jobs are left to it")
        made = next((workload for workload in observed.workloads if is_upstreams(workload, owner)), None)
        is_basic = made is not None and not any(each.policy.is_gang for each in made.templates)
        if made is not None and is_basic and isinstance(owner, Job) and duty is Duty.START:
            self._reported.report_once(owner, tell_upstream(made, owner))

    def _is_name_taken(self, change: Change) -> bool:
        """Whether an object that is being deleted still has the name to be created; its end asks for the next look."""
        match change:
            case CreateWorkload():
                workload = self._store.workloads.get(Key(change.owner.key.namespace, change.name))
                return workload is not None and workload.deleting
            case CreatePodGroup():
                group = self._store.groups.get(GroupKey(change.owner.key.namespace, change.name))
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
        pods = await self._read_pods(parent)
        has_workload = bool(observe(self._store, self._expectations, parent).workloads)
        if self._store.owners.find(owner_key_of(parent)) != parent or has_workload:
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
            if len(refused) == len(batch) or self._store.owners.find(owner_key_of(owner)) != owner:
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
        pods = await self._read_pods(change.owner)
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
            self._note_finished()
        return None

    async def _write(self, write: Write) -> None:
        match write:
            case CreateWorkload():
                await self._create_workload(write)
            case CreatePodGroup():
                level = self._store.level.beside if write.workload.api else None
                template = self._resolve_class(write.template, level or self._store.level)
                resolved = replace(write, template=template)
                self._expectations.expect(await self._writes.create_pod_group(resolved))
            case SetMinCount():
                await self._writes.set_min_count(write)
            case Delete():
                await self._writes.delete(write)

    async def _create_workload(self, create: CreateWorkload) -> None:
        begun = self._clock()
        result = "error"
        try:
            self._expectations.expect(await self._writes.create_workload(create))
            result = "success"
        finally:
            if isinstance(create.owner, Job) and create.templates[0].policy.is_gang:
                self._metrics.created(result, self._clock() - begun)


def _counts_as_started(pod: Pod) -> bool:
    return pod.place is not None and counts_as_started(pod, pod.place.uid)


def _is_left_over(pod: Pod) -> bool:
    """Whether the pod may belong to an earlier parent of the same name; it is about to go."""
    return pod.deleting and pod.place is not None and not pod.place.uid
