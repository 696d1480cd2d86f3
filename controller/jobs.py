"""One look at a Job: read the Store, decide, write, tell.

A look goes on until nothing is left to be done, so a restart between two writes needs no care of its own: the next
process does what is left.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from controller.diff import (
    Change,
    CreatePodGroup,
    CreateWorkload,
    Delete,
    Follow,
    Found,
    ReportAmbiguous,
    SetMinCount,
    diff_job,
    release,
)
from controller.echoes import Echoes
from controller.rules import Duty, Rules, duty_for, is_unserved
from controller.swallowed import describe_swallowed, find_swallowed
from controller.told import Told
from controller.upstream import Upstream, is_upstreams
from controller.writes import Writes, describe
from serried.cluster.store import Store
from serried.kube.errors import ApiError
from serried.metrics import ControllerMetrics
from serried.model.group import GroupKey, Job, Key, Workload
from serried.model.pod import Pod

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Looked:
    """What came of a look: whether something was created, and after how many seconds to look again in any case."""

    created: bool = False
    again: float | None = None


class Jobs:
    """Looks at Jobs. ``follow`` is how minCount follows a Job's parallelism, ``clock`` is monotonic.

    ``resolve`` gives the priority for a PriorityClass ("": for none), None if it is not ours to say or does not exist.
    """

    def __init__(
        self,
        store: Store,
        echoes: Echoes,
        writes: Writes,
        rules: Rules,
        follow: Follow,
        resolve: Callable[[str], int | None],
        metrics: ControllerMetrics,
        clock: Callable[[], float],
    ) -> None:
        self._store, self._echoes, self._writes = store, echoes, writes
        self._rules, self._follow, self._resolve = rules, follow, resolve
        self._metrics, self._clock = metrics, clock
        self._told: Told[Key] = Told(writes)
        self._upstream = Upstream(clock)
        self._renewed: dict[Key, tuple[object, frozenset[str]]] = {}

    async def look(self, key: Key, failures: int) -> Looked:
        """Do for the Job what its state asks for. Raises the API server's refusal.

        ``failures`` is how many looks at it have failed in a row.
        """
        looked = await self._work_off(key, failures)
        self._told.succeed(key)
        return looked

    async def _work_off(self, key: Key, failures: int) -> Looked:
        looked = Looked()
        # The Job is read anew each time: it may have gone, and come again, while a write was under way.
        while (job := self._store.jobs.get(key)) is not None:
            changes = self._decide(job)
            if not changes:
                return looked
            creates = isinstance(changes[0], CreateWorkload | CreatePodGroup)
            if creates and (seconds := self._upstream.seconds_left(job)):
                return Looked(again=seconds)
            for change in changes:
                await self._carry_out(change, failures)
            if not creates:
                return looked  # the watch will show what became of it, and ask for the next look
            looked = Looked(created=True)
        self._told.forget(key)
        self._upstream.forget(key)
        self._renewed.pop(key, None)
        return looked

    def duty(self, job: Job) -> Duty:
        """The duty towards a Job as the Store has it; none towards a part of a larger gang."""
        if self._store.membership.governs_job(job):
            return Duty.NONE
        return duty_for(job, self._pods_of(job), self._rules)

    def tell_obstacle(self) -> None:
        """Tell the gangs that nothing can be made for them, each once."""
        for job in list(self._store.jobs.values()):
            if self.duty(job) is Duty.START:
                said = f"Failed to create Workload for Job {job.key.name}: {self._store.obstacle}"
                self._tell_once(job, "FailedWorkloadCreate", said)

    def _pods_of(self, job: Job) -> list[Pod]:
        return [pod for pod in self._store.pods_of_job(job.key) if pod.owner and pod.owner.uid == job.uid]

    def _decide(self, job: Job) -> list[Change]:
        duty = self.duty(job)
        self._complain(job, duty)
        if job.problem:
            return []
        found = self._echoes.find(job)
        self._meet_upstream(job, found.workloads, duty)
        if swallowed := find_swallowed(job, found):
            if self._may_renew(job, found, duty):
                return release(job, found)
            if duty is not Duty.NONE:
                self._tell_once(job, "GangChangeIgnored", describe_swallowed(job, swallowed))
        follow = Follow.NEVER if self._upstream.looks_after(job) else self._follow
        changes: list[Change] = []
        for action in diff_job(job, found, duty, follow):
            if isinstance(action, ReportAmbiguous):
                said = f"Job {job.key.name} is scheduled pod by pod: {action.message}"
                self._tell_once(job, "AmbiguousWorkload", said)
            elif not self._is_name_taken(action):
                changes.append(action)
        return changes

    def _may_renew(self, job: Job, found: Found, duty: Duty) -> bool:
        """Whether our objects may go, to be made anew from what the Job says now: nobody waits, and nobody will yet.

        Once for what it says: objects that say something else again are not ours to quarrel about.
        """
        begins = duty in {Duty.START, Duty.TRACK} and job.suspended and not self._pods_of(job)
        said = job.uid, job.topology_key, job.preference, job.disruption
        there = frozenset({each.uid for each in found.workloads} | {each.uid for each in found.groups})
        before, leaving = self._renewed.get(job.key, (None, frozenset[str]()))
        if not begins or (before == said and not there <= leaving):
            return False
        self._renewed[job.key] = said, leaving if before == said else there
        return True

    def _meet_upstream(self, job: Job, workloads: Sequence[Workload], duty: Duty) -> None:
        before = self._upstream.seen
        self._upstream.learn(job, workloads)
        if self._upstream.seen and not before:
            log.warning("kube-controller-manager makes Workloads (gate WorkloadWithJob): Jobs are left to it")
        made = next((workload for workload in workloads if is_upstreams(workload, job)), None)
        if made is not None and duty is Duty.START and not any(each.policy.is_gang for each in made.templates):
            said = (
                f"kube-controller-manager made Workload {made.key.name} of Job {job.key.name} with policy basic, so it"
            )
            self._tell_once(job, "NoGang", f"{said} is no gang; spec.scheduling.schedulingPolicy.gang makes it one")

    def _complain(self, job: Job, duty: Duty) -> None:
        name = job.key.name
        if is_unserved(job, self._rules):
            said = f"Job {name} asks to be a gang, and its scheduler {job.scheduler} is none that Serried serves"
            self._tell_once(job, "SchedulerNotGangAware", said)
        if duty is Duty.NONE:
            return
        if job.problem:
            said = f"Failed to compile Workload for Job {name}: {job.problem}"
            self._tell_once(job, "FailedWorkloadCompilation", said)
        if job.contradiction:
            said = f"spec.scheduling of Job {name} says otherwise than its gang-policy annotation, and counts"
            self._tell_once(job, "GangPolicyIgnored", said)

    def _tell_once(self, job: Job, reason: str, message: str) -> None:
        self._told.tell_once(job.key, job, reason, message)

    def _is_name_taken(self, action: Change) -> bool:
        """Whether an object that is being deleted still has the name; its end asks for the next look."""
        match action:
            case CreateWorkload(job, name):
                workload = self._store.workloads.get(Key(job.key.namespace, name))
                return workload is not None and workload.deleting
            case CreatePodGroup(job, _, name):
                group = self._store.groups.get(GroupKey(job.key.namespace, name))
                return group is not None and group.deleting
        return False

    async def _carry_out(self, change: Change, failures: int) -> None:
        try:
            await self._write(change)
        except ApiError as error:
            self._told.tell_failure(change.job.key, change.job, describe(change), error, failures)
            raise

    async def _write(self, change: Change) -> None:
        match change:
            case CreateWorkload():
                await self._create_workload(change)
            case CreatePodGroup():
                priority = self._resolve(change.workload.templates[0].priority_class)
                self._echoes.add(await self._writes.create_pod_group(change, priority))
            case SetMinCount():
                await self._writes.set_min_count(change.job, change.item, change.count)
            case Delete():
                await self._writes.delete(change.job, change.item)

    async def _create_workload(self, change: CreateWorkload) -> None:
        begun, result = self._clock(), "error"
        try:
            self._echoes.add(await self._writes.create_workload(change))
            result = "success"
        finally:
            if change.policy.is_gang:
                self._metrics.created(result, self._clock() - begun)
