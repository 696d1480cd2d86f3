"""One look at a JobSet or a LeaderWorkerSet: read the Store, decide, write, tell, as `jobs` does for a Job.

A parent has one Workload, with a template for each of its gangs, and a PodGroup for each template, in each replica that
has a leader: the number in the spec may be anything, and costs nothing. The PodGroups of replicas that are gone go once
no pod of theirs is left.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice

from controller.desired import Body, compose_pod_group, compose_workload
from controller.diff import Follow, Found, agrees, join_names
from controller.echoes import Echoes
from controller.jobs import Looked
from controller.names import pod_group_name, template_name, workload_name
from controller.owners import is_ours
from controller.rules import Rules
from controller.swallowed import describe_swallowed, find_swallowed
from controller.told import Told
from controller.writes import Writes
from serried.cluster.membership import find_template
from serried.cluster.owners import counts_as_started
from serried.cluster.store import Store
from serried.kube.errors import ApiError
from serried.model.eligibility import GangJobs
from serried.model.group import GroupKey, PodGroup, Policy, Template, Workload
from serried.model.level import ApiLevel
from serried.model.parent import (
    MOST_TEMPLATES,
    REPLICA,
    OwnerKey,
    Parent,
    ParentKind,
    Stage,
    gangs_of,
    owner_key_of,
    stages_of,
)
from serried.model.pod import Pod

_SECONDS_BETWEEN_READS = 5.0
"""While the pods of a replica that is gone, or of an earlier parent of the name, are still there."""

_WRITES_AT_ONCE = 8

Gang = tuple[Template, str]
"""A template and a replica's index, "" where there are no replicas."""

Lagging = tuple[Workload | PodGroup, int, int]
"""An object, the minCount that it should have, and the place of the template if it is a Workload."""


class Parents:
    """Looks at parents. ``follow`` and ``resolve`` are as for `jobs.Jobs`, ``read_pods`` is `reads.read_pods_of`."""

    def __init__(
        self,
        store: Store,
        echoes: Echoes,
        writes: Writes,
        rules: Rules,
        follow: Follow,
        resolve: Callable[[str], int | None],
        read_pods: Callable[[Parent], Awaitable[Sequence[Pod]]],
    ) -> None:
        self._store, self._echoes, self._writes, self._rules = store, echoes, writes, rules
        self._follow, self._resolve, self._read_pods = follow, resolve, read_pods
        self._told: Told[OwnerKey] = Told(writes)

    async def look(self, owner_key: OwnerKey, failures: int) -> Looked:
        """Do for the parent what its state asks for. Raises the API server's refusal.

        ``failures`` is how many looks at it have failed in a row.
        """
        looked = await self._work_off(owner_key, failures)
        self._told.succeed(owner_key)
        return looked

    def tell_obstacle(self) -> None:
        """Tell the parents that ask for gangs that nothing can be made for them, each once."""
        for parent in list(self._store.parents.values()):
            if self._store.membership.is_eligible(parent):
                said = f"Failed to create Workload for {parent.kind} {parent.key.name}: {self._store.obstacle}"
                self._told.tell_once(owner_key_of(parent), parent, "FailedWorkloadCreate", said)

    async def _work_off(self, owner_key: OwnerKey, failures: int) -> Looked:
        looked = Looked()
        # The parent is read anew each time: it may have gone, and come again, while a write was under way.
        while (parent := self._store.parents.get(owner_key)) is not None:
            self._complain(parent)
            if not _concerns_us(parent, self._rules):
                return looked
            found = self._find(parent)
            if not found.workloads:
                if (end := await self._begin(parent, failures)) is not None:
                    return end
            elif problem := find_problem(parent, found):
                said = f"{parent.kind} {parent.key.name} is scheduled pod by pod: {problem}"
                self._told.tell_once(owner_key, parent, "AmbiguousWorkload", said)
                return looked
            elif await self._create_pod_groups(parent, found, failures):
                pass
            elif lagging := self._find_lagging(parent, found):
                for item, count, template in lagging:
                    await self._set_min_count(parent, item, count, template, failures)
                return looked  # the watch will show what became of it, and ask for the next look
            else:
                left = await self._clear(parent, find_surplus(parent, found))
                return Looked(looked.created, _SECONDS_BETWEEN_READS) if left else looked
            looked = Looked(created=True)
        self._told.forget(owner_key)
        return looked

    def _find(self, parent: Parent) -> Found:
        """What is there for the parent; what it says and that does not, it hears of."""
        found = self._echoes.find_for_parent(parent)
        if swallowed := find_swallowed(parent, found):
            self._told.tell_once(
                owner_key_of(parent), parent, "GangChangeIgnored", describe_swallowed(parent, swallowed)
            )
        return found

    def _find_creatable(self, parent: Parent, found: Found) -> Iterator[Gang]:
        """What is missing, without what has to wait: an object that is being deleted has its name still."""
        for gang in find_missing(parent, found, self._find_inhabited(parent)):
            group = self._store.groups.get(GroupKey(parent.key.namespace, name_pod_group(found.workloads[0], gang)))
            if group is None or not group.deleting:
                yield gang

    def _find_inhabited(self, parent: Parent) -> Collection[str]:
        """The replicas that have a leader, in the order of their arrival; none where there are no replicas."""
        if parent.replicas is None:
            return ()
        places = (pod.place for pod in self._store.pods_of(owner_key_of(parent)) if not pod.deleting)
        return dict.fromkeys(place.replica for place in places if place is not None)

    def _find_lagging(self, parent: Parent, found: Found) -> list[Lagging]:
        return find_lagging(parent, found) if self._follow is Follow.PATCH else []

    async def _begin(self, parent: Parent, failures: int) -> Looked | None:
        """Create the Workload; if it must not be (yet), what comes of the look."""
        if parent.problem or not self._store.membership.is_eligible(parent):
            return Looked()
        pods = await self._read_pods(parent)
        if self._has_turned(parent):
            return Looked()  # what turned has asked for the next look
        if any(map(_counts_as_started, pods)):
            return Looked(again=_SECONDS_BETWEEN_READS if any(map(_is_left_over, pods)) else None)
        await self._create_workload(parent, failures)
        return None

    def _has_turned(self, parent: Parent) -> bool:
        """Whether the parent is another now, or has a Workload, since it was decided that it gets one."""
        return self._store.parents.get(owner_key_of(parent)) != parent or bool(
            self._echoes.find_for_parent(parent).workloads
        )

    async def _create_workload(self, parent: Parent, failures: int) -> None:
        body = workload_for(parent, self._writes.level)
        try:
            self._echoes.add(await self._writes.put_workload(parent, body))
        except ApiError as error:
            self._told.tell_failure(owner_key_of(parent), parent, ("Workload", "Create"), error, failures)
            raise

    async def _create_pod_groups(self, parent: Parent, found: Found, failures: int) -> bool:
        """Create what is missing, a batch at a time, while the parent stays as it is; whether anything was missing.

        Raises the first refusal, with everything else done; where a whole batch is refused, nothing more is tried.
        """
        creatable, refusals, tried = self._find_creatable(parent, found), list[ApiError](), False
        while batch := list(islice(creatable, _WRITES_AT_ONCE)):
            tried = True
            creates = (self._create_pod_group(parent, found.workloads[0], gang, failures) for gang in batch)
            refused = [error for error in await asyncio.gather(*creates) if error is not None]
            refusals += refused
            if len(refused) == len(batch) or self._store.parents.get(owner_key_of(parent)) != parent:
                break
        if refusals:
            raise refusals[0]
        return tried

    async def _create_pod_group(self, parent: Parent, workload: Workload, gang: Gang, failures: int) -> ApiError | None:
        body = pod_group_for(parent, workload, gang, self._writes.level, self._resolve(gang[0].priority_class))
        try:
            self._echoes.add(await self._writes.put_pod_group(parent, body))
        except ApiError as error:
            self._told.tell_failure(owner_key_of(parent), parent, ("PodGroup", "Create"), error, failures)
            return error
        return None

    async def _set_min_count(
        self, parent: Parent, item: Workload | PodGroup, count: int, template: int, failures: int
    ) -> None:
        try:
            await self._writes.set_min_count(parent, item, count, template)
        except ApiError as error:
            kind = "Workload" if isinstance(item, Workload) else "PodGroup"
            self._told.tell_failure(owner_key_of(parent), parent, (kind, "Update"), error, failures)
            raise

    async def _clear(self, parent: Parent, surplus: Sequence[PodGroup]) -> bool:
        """Delete PodGroups of replicas that are gone; whether some have to stay, because pods of theirs do."""
        if not surplus:
            return False
        inhabited = {pod.place.replica for pod in await self._read_pods(parent) if pod.place is not None}
        for group in surplus:
            if group.labels.get(REPLICA) not in inhabited:
                await self._writes.delete(parent, group)
        return any(group.labels.get(REPLICA) in inhabited for group in surplus)

    def _complain(self, parent: Parent) -> None:
        if self._rules.gang_jobs is GangJobs.NONE or parent.finished or parent.deleting:
            return
        for reason, said in find_complaints(parent, self._rules.schedulers):
            self._told.tell_once(owner_key_of(parent), parent, reason, said)


def find_complaints(parent: Parent, schedulers: Iterable[str]) -> list[tuple[str, str]]:
    """What a parent should hear of the gangs that it asks for, or seems to: reasons and messages of events."""
    name = f"{parent.kind} {parent.key.name}"
    if parent.problem:
        return [("FailedWorkloadCompilation", f"Failed to compile Workload for {name}: {parent.problem}")]
    if not parent.asks:
        return []
    foreign = sorted(parent.schedulers - frozenset(schedulers))
    if foreign:
        said = f"{name} asks for gangs, and its scheduler {', '.join(foreign)} is none that Serried serves"
        return [("SchedulerNotGangAware", said)]
    if parent.obstacle:
        return [("NoGang", f"{name} makes pods wait for the node of another ({parent.obstacle}), so it is no gang")]
    if (count := len(gangs_of(parent))) > MOST_TEMPLATES:
        return [("NoGang", f"{name} has {count} stages, and a Workload holds {MOST_TEMPLATES} gangs: it is none")]
    said = f"{name} is one gang, so what its Jobs say of gangs does not count"
    ignored = [("GangPolicyIgnored", said)] if parent.jobs_ask else []
    return [("GangPerStage", _explain_stages(parent)), *ignored] if parent.staged else ignored


def _explain_stages(parent: Parent) -> str:
    if parent.kind is ParentKind.LEADER_WORKER_SET:
        return (
            f"The workers of {parent.kind} {parent.key.name} start after their leader ({parent.staged}), "
            "so those of each replica are a gang without it"
        )
    return (
        f"The replicated Jobs of {parent.kind} {parent.key.name} start one after the other ({parent.staged}), "
        "so each of more than one pod is a gang of its own"
    )


def _counts_as_started(pod: Pod) -> bool:
    return pod.place is not None and counts_as_started(pod, pod.place.uid)


def _is_left_over(pod: Pod) -> bool:
    """Whether the pod may be one of an earlier parent of the name, and is about to go."""
    return pod.deleting and pod.place is not None and not pod.place.uid


def _concerns_us(parent: Parent, rules: Rules) -> bool:
    ours = parent.group is None and parent.schedulers <= frozenset(rules.schedulers)
    return ours and rules.gang_jobs is not GangJobs.NONE and not parent.finished and not parent.deleting


def workload_for(parent: Parent, level: ApiLevel) -> Body:
    """The Workload of a parent: a template of its stage's name for each gang, or the one for all."""
    templates = [
        Template(
            name=_name_template(parent, gang),
            policy=Policy(gang.size),
            topology_key=parent.topology_key,
            disruption=parent.disruption,
            priority_class=parent.priority_class,
        )
        for gang in gangs_of(parent)
    ]
    return compose_workload(parent, workload_name(parent), templates, level)


def _name_template(parent: Parent, stage: Stage) -> str:
    return stage.name or template_name(parent)


def pod_group_for(parent: Parent, workload: Workload, gang: Gang, level: ApiLevel, priority: int | None = None) -> Body:
    """The PodGroup of one gang, in one replica, whose index is its label then."""
    body = compose_pod_group(parent, workload, gang[0], name_pod_group(workload, gang), level, priority)
    if replica := gang[1]:
        body["metadata"]["labels"][REPLICA] = replica
    return body


def name_pod_group(workload: Workload, gang: Gang) -> str:
    """The name of a gang's PodGroup."""
    template, replica = gang
    return pod_group_name(workload.key.name, f"{template.name}-{replica}" if replica else template.name)


def find_problem(parent: Parent, found: Found) -> str:
    """Why it is not clear which groups the parent's pods form, "" if it is."""
    if len(found.workloads) > 1:
        return f"Workloads {join_names(found.workloads)} all refer to it; exactly one must"
    workload = found.workloads[0]
    if not _templates(parent, workload):
        return f"no template of Workload {workload.key.name} fits: one of the name of each stage is needed"
    for same in _sort(found.groups).values():
        if len(same) > 1:
            return f"PodGroups {join_names(same)} are all for the same pods of Workload {workload.key.name}"
    return ""


def find_missing(parent: Parent, found: Found, inhabited: Collection[str]) -> list[Gang]:
    """The gangs that have no PodGroup yet; of a parent with replicas, those of the ``inhabited`` ones that it wants."""
    workload, there = found.workloads[0], _sort(found.groups)
    if workload.inline:
        return []
    templates = _templates(parent, workload)
    replicas = [""] if parent.replicas is None else [index for index in inhabited if _has_replica(parent, index)]
    gangs = ((template, replica) for replica in replicas for template in templates)
    return [gang for gang in gangs if (gang[0].name, gang[1]) not in there]


def find_lagging(parent: Parent, found: Found) -> list[Lagging]:
    """What lags behind a changed size, the Workload first. A user's Workload, and what was made from it, never does.

    A gang that shrinks to one pod, or none, waits for one.
    """
    workload = found.workloads[0]
    if not is_ours(workload, parent):
        return []
    wanted = {_name_template(parent, stage): max(1, stage.size) for stage in stages_of(parent)}
    lagging: list[Lagging] = [
        (workload, wanted[template.name], place)
        for place, template in enumerate(workload.templates)
        if not agrees(template.policy, wanted.get(template.name))
    ]
    return lagging + [
        (group, wanted[group.template], 0)
        for group in found.groups
        if group.template in wanted and is_ours(group, parent) and not agrees(group.policy, wanted[group.template])
    ]


def find_surplus(parent: Parent, found: Found) -> list[PodGroup]:
    """PodGroups of ours for replicas that the parent does not have any more."""
    ours = (group for group in found.groups if is_ours(group, parent))
    return [group for group in ours if not _has_replica(parent, group.labels.get(REPLICA, ""))]


def _templates(parent: Parent, workload: Workload) -> list[Template]:
    """The templates of the Workload that count for some stage."""
    found = (find_template(workload, parent, stage.name) for stage in parent.stages)
    return list(dict.fromkeys(template for template in found if template is not None))


def _has_replica(parent: Parent, index: str) -> bool:
    """Whether the parent has a replica of this index, as labels write it; "" is the one of a kind without replicas."""
    if parent.replicas is None:
        return not index
    if not (index.isascii() and index.isdecimal()) or (len(index) > 1 and index[0] == "0"):
        return False
    return int(index) < parent.replicas


def _sort(groups: Iterable[PodGroup]) -> dict[tuple[str | None, str], list[PodGroup]]:
    """The PodGroups by template and replica."""
    places: dict[tuple[str | None, str], list[PodGroup]] = {}
    for group in groups:
        places.setdefault((group.template, group.labels.get(REPLICA, "")), []).append(group)
    return places
