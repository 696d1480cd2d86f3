"""The gangs and the pods of Jobs, JobSets and LeaderWorkerSets, by the rules of the controller.

Gangs that do not exist yet, from manifests: each group, and its members as they would be.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple

from extender.simulation.manifests import READ, Asked, Manifests, make_pod, usable
from serried.api.group import BASIC, Leaf, PodGroup, Policy, Template, Workload, list_leaves
from serried.api.job import Job, decode_job
from serried.api.names import GroupKey, GroupKind, Key, ParentKind, read_int, read_map, read_objects, read_required
from serried.api.parent import (
    GROUP_INDEX,
    JOB_INDEX,
    JOB_SET_NAME,
    LEADER,
    REPLICATED_JOB,
    SET_NAME,
    WHOLE,
    WORKER_INDEX,
    Owner,
    Parent,
    Place,
    Stage,
    gangs_of,
    kind_of,
    owner_key_of,
)
from serried.api.pod import COMPLETION_INDEX, Pod
from serried.cluster.cache import Store
from serried.cluster.forest import Forest
from serried.cluster.membership import build_groups, find_template, owner_key_in, provisional
from serried.plan.quorum import find_rank
from serried.plan.steps import Work

_PODS_PER_STEP = 100

_Raw = Mapping[str, Any]


class _Origin(NamedTuple):
    """What the gangs of one owner are made from, and where they are put."""

    asked: Asked

    workload: Workload | None
    """The Workload that was sent with it."""

    store: Store
    manifests: Manifests

    def make_pod(self, template: _Raw, labels: _Raw, annotations: _Raw = MappingProxyType({})) -> Pod:
        """A pod of a template, with these labels and annotations besides its own."""
        said = read_map(template, "metadata")
        key = self.asked.owner.key
        metadata = {
            "namespace": key.namespace,
            "name": key.name,
            "uid": self.asked.owner.uid,
            "labels": {**read_map(said, "labels"), **labels},
            "annotations": {**read_map(said, "annotations"), **annotations},
        }
        return make_pod(self.asked.place, template, metadata, self.store)


def add_owners(manifests: Manifests, store: Store) -> Work[None]:
    """Add the gangs and pods of all owners that were read: each owner whole, or it is refused."""
    workloads = _assign(manifests)
    for asked in manifests.owners:
        with manifests.judging():
            more = Manifests(pods=manifests.pods)
            yield from _add_owner(_Origin(asked, workloads.get(id(asked)), store, more))
            manifests.add(more)
            manifests.pods = more.pods


def _add_owner(origin: _Origin) -> Work[None]:
    owner = origin.asked.owner
    if isinstance(owner, Job):
        yield from _add_single_job(origin, owner)
    elif owner.kind is ParentKind.JOB_SET:
        yield from _add_job_set(origin, owner)
    else:
        yield from _add_leader_worker_set(origin, owner)


def _assign(manifests: Manifests) -> dict[int, Workload]:
    """The Workload of each owner, by the ``id`` of what was asked."""
    found: dict[int, Workload] = {}
    made_from = {(group.key.namespace, group.workload) for _, group in manifests.groups.values()}
    for place, workload in manifests.workloads:
        owners = [asked for asked in manifests.owners if owner_key_of(asked.owner) == owner_key_in(workload)]
        with manifests.judging():
            if not owners and workload.key not in made_from:
                kind = workload.parent[0] if workload.parent is not None else "Job"
                raise ValueError(f"{place}: nothing says which pods it has; send its {kind} with it, or its PodGroups")
            for asked in owners:
                if id(asked) in found:
                    raise ValueError(f"{place}: {asked.owner.key} has another Workload, too; send one")
                found[id(asked)] = workload
    return found


# --- Jobs ------------------------------------------------------------------------------------------------------------


def _add_single_job(origin: _Origin, job: Job) -> Work[None]:
    origin.manifests.count(job.at_once)
    yield from _add_job(origin, job, _make_first(origin, origin.asked.raw), _find_template_of_job(origin, job))


def _find_template_of_job(origin: _Origin, job: Job) -> Template | None:
    if origin.workload is None:
        return None
    template = find_template(origin.workload, job, WHOLE)
    if template is None:
        count = len(origin.workload.templates)
        raise ValueError(f"Workload {origin.workload.key}: it needs one template for its Job, and has {count}")
    return template


def _make_first(origin: _Origin, raw: _Raw, **labels: str) -> Pod:
    """The pod of index 0 of a Job: all others are like it."""
    template = read_map(read_map(raw, "spec"), "template")
    return origin.make_pod(template, labels, {COMPLETION_INDEX: "0"})


def _add_job(origin: _Origin, job: Job, first: Pod, template: Template | None) -> Work[None]:
    """The pods of a Job: a gang by the rules of the controller, or members of the group that its template names."""
    key = job.group or provisional(owner_key_of(job))
    if job.group is None:
        origin.manifests.groups[key] = (f"Job {job.key}", _make_group(key, job, template or _judge(job, origin.store)))
    yield from _populate(origin.manifests.members.setdefault(key, []), first, job, key)


def _judge(job: Job, store: Store) -> Template:
    """The template that the controller would make for a Job."""
    count = max(1, min(job.min_count or job.at_once, job.at_once))
    return _make_template(WHOLE, Policy(count) if store.membership.is_eligible(job) else BASIC, job)


def _populate(members: list[Pod], first: Pod, job: Job, key: GroupKey, rank: int = 0) -> Work[None]:
    """Add the pods of a Job; ``rank`` is that of its index 0."""
    for index in range(job.at_once):
        at = rank + index if job.indexed else None
        name = f"{job.key.name}-{index}"
        members.append(replace(first, name=name, uid=f"{job.uid}-{index}", index=at, group=key, place=None))
        if index % _PODS_PER_STEP == 0:
            yield


# --- JobSets ---------------------------------------------------------------------------------------------------------


def _add_job_set(origin: _Origin, parent: Parent) -> Work[None]:
    _check_templates(origin.workload, parent)
    for raw in read_objects(read_map(origin.asked.raw, "spec"), "replicatedJobs"):
        yield from _add_replicated(origin, parent, raw)


def _add_replicated(origin: _Origin, parent: Parent, raw: _Raw) -> Work[None]:
    """The pods of one replicated Job: part of a gang of the JobSet, or each Job for itself."""
    stage = read_required(raw, "name")
    manifest = _make_child(parent, stage, raw)
    child = usable(origin.asked.place, decode_job(manifest))
    replicas = max(0, read_int(raw, "replicas", 1))
    origin.manifests.count(replicas * max(1, child.at_once))
    first = _make_first(origin, manifest, **{JOB_SET_NAME: parent.key.name, REPLICATED_JOB: stage, JOB_INDEX: "0"})
    gang = _find_gang(origin, parent, stage)
    for number in range(replicas):
        name = f"{parent.key.name}-{stage}-{number}"
        job = replace(child, key=Key(parent.key.namespace, name), uid=f"{parent.uid}-{name}")
        if gang is None or not gang.policy.is_gang:
            yield from _add_job(origin, job, first, gang)
            continue
        key = provisional(owner_key_of(parent), _find_part(origin, parent, gang))
        rank = find_rank(Place(parent.kind, parent.key.name, stage, job=number), 0, parent)
        yield from _populate(_join(origin, parent, key, gang), first, job, key, rank or 0)


def _make_child(parent: Parent, stage: str, raw: _Raw) -> dict[str, Any]:
    """The manifest of a Job of the JobSet, as JobSet's own controller makes it."""
    template = read_map(raw, "template")
    owner = {"kind": kind_of(parent), "name": parent.key.name, "uid": parent.uid, "controller": True}
    metadata = {
        **read_map(template, "metadata"),
        "namespace": parent.key.namespace,
        "name": f"{parent.key.name}-{stage}",
        "uid": f"{parent.uid}-{stage}",
        "ownerReferences": [owner],
    }
    spec = {"completionMode": "Indexed", **read_map(template, "spec")}
    return {"kind": "Job", "metadata": metadata, "spec": spec}


# --- LeaderWorkerSets ------------------------------------------------------------------------------------------------


def _add_leader_worker_set(origin: _Origin, parent: Parent) -> Work[None]:
    _check_templates(origin.workload, parent)
    spec = read_map(origin.asked.raw, "spec")
    template = read_map(spec, "leaderWorkerTemplate")
    leader = template.get("leaderTemplate") or read_map(template, "workerTemplate")
    replicas = max(0, read_int(spec, "replicas", 1))
    origin.manifests.count(replicas * sum(stage.size for stage in parent.stages))
    for stage, first in ((parent.stages[0], 0), (parent.stages[1], 1)):
        if not stage.size:
            continue
        labels = {SET_NAME: parent.key.name, GROUP_INDEX: "0", WORKER_INDEX: str(first)}
        like = origin.make_pod(leader if stage.name == LEADER else read_map(template, "workerTemplate"), labels)
        for replica in range(replicas):
            _add_stage(origin, parent, stage, like, replica=replica, first=first)
            yield


def _add_stage(origin: _Origin, parent: Parent, stage: Stage, like: Pod, *, replica: int, first: int) -> None:
    """The leader or the workers of one replica; ``first`` is the rank of the first of them."""
    gang = _find_gang(origin, parent, stage.name)
    if like.group is not None:
        key = like.group
        members = origin.manifests.members.setdefault(key, [])
    elif gang is not None and gang.policy.is_gang:
        key = provisional(owner_key_of(parent), _find_part(origin, parent, gang), str(replica))
        members = _join(origin, parent, key, gang)
    else:
        key = provisional(owner_key_of(parent), stage.name)
        members = _join(origin, parent, key, _make_template(stage.name, BASIC, parent))
    for index in range(first, first + stage.size):
        name = f"{parent.key.name}-{replica}" + (f"-{index}" if index else "")
        members.append(replace(like, name=name, uid=f"{parent.uid}-{name}", index=index, group=key, place=None))


# --- parents ---------------------------------------------------------------------------------------------------------


def _check_templates(workload: Workload | None, parent: Parent) -> None:
    names = [stage.name for stage in parent.stages]
    if workload is not None and not any(find_template(workload, parent, name) for name in names):
        raise ValueError(f"Workload {workload.key}: it needs a template of the name of each stage: {', '.join(names)}")


def _find_gang(origin: _Origin, parent: Parent, stage: str) -> Template | None:
    """The template of the group that a stage's pods are in; None if its Jobs, or the pods themselves, say that."""
    if parent.group is not None:
        return None
    alone = _make_template(stage, BASIC, parent)
    if origin.workload is not None:
        return find_template(origin.workload, parent, stage) or alone
    if not origin.store.membership.is_eligible(parent):
        return None
    name = stage if parent.staged else WHOLE
    size = next((gang.size for gang in gangs_of(parent) if gang.name == name), 0)
    return _make_template(name, Policy(size), parent) if size else alone


def _find_part(origin: _Origin, parent: Parent, gang: Template) -> str:
    """The part of the parent that the gang is: one template alone is for all stages that do not wait for each other."""
    is_whole = origin.workload is not None and len(origin.workload.templates) == 1 and not parent.staged
    return WHOLE if is_whole else gang.name


def _join(origin: _Origin, parent: Parent, key: GroupKey, template: Template) -> list[Pod]:
    """The members of a group of a parent, to which others are added."""
    part = f", {key.part}" if key.part else ""
    replica = f", replica {key.replica}" if key.replica else ""
    source = f"{kind_of(parent)} {parent.key}{part}{replica}"
    origin.manifests.groups.setdefault(key, (source, _make_group(key, parent, template)))
    return origin.manifests.members.setdefault(key, [])


# --- groups ----------------------------------------------------------------------------------------------------------


def _make_template(name: str, policy: Policy, owner: Owner) -> Template:
    return Template(name, policy, topology_key=owner.topology_key, priority_class=owner.priority_class)


def _make_group(key: GroupKey, owner: Owner, template: Template) -> PodGroup:
    """The PodGroup that would be made for an owner from a template."""
    levels = owner.preference.levels or template.preference.levels
    return PodGroup(
        key=key,
        uid=owner.uid,
        policy=template.policy,
        topology_key=template.topology_key or owner.topology_key,
        priority_class=template.priority_class or owner.priority_class,
        priority=template.priority,
        preemption=template.preemption,
        preference=replace(owner.preference, levels=levels),
    )


MOST_GANGS = 50

_UID = "whatif:"
"""Before the name of the group that a pod of no group is; no true one has a colon."""


@dataclass(frozen=True, slots=True)
class Newcomer:
    """A gang, or a pod of none, for which a place is looked for."""

    source: str
    """What it comes from, for people: kind, namespace and name."""

    group: PodGroup

    members: tuple[Pod, ...]
    """Those that come, each with the PodGroup that it names; members that wait already are not among them."""


class Gathered(NamedTuple):
    """What some manifests are."""

    newcomers: list[Newcomer]

    refused: list[str]
    """What cannot be answered for, a sentence each: where it stands, what is wrong, and what to do."""


def gather(objects: Iterable[tuple[str, Any]], store: Store, namespace: str) -> Work[Gathered]:
    """The gangs of some objects, each with where it stands. Raises ValueError if there are none, or too many."""
    manifests = Manifests()
    for place, raw in objects:
        with manifests.judging():
            manifests.read(place, raw, namespace, store)
        yield
    _add_inline_groups(manifests)
    yield from add_owners(manifests, store)
    found = [*_list_groups(manifests, store), *(_make_single(pod) for pod in manifests.single)]
    if not found and not manifests.refused:
        raise ValueError(f"there is no object in the body; what is read: {READ}")
    if len(found) > MOST_GANGS:
        raise ValueError(f"there are {len(found)} gangs; ask for at most {MOST_GANGS} at a time")
    return Gathered(found, manifests.refused)


def find_existing(store: Store, key: GroupKey) -> Newcomer:
    """A group that exists, to be planned with the members that it has. Raises ValueError if it is not known."""
    group = store.groups.get(key)
    if group is None:
        raise ValueError(f"no group {key} is known; see /debug/groups")
    return Newcomer(f"{key.kind} {key}", group, ())


def _add_inline_groups(manifests: Manifests) -> None:
    """The groups that pods name as parts of a Workload (v1alpha1)."""
    for _, workload in manifests.workloads:
        for key, group in build_groups(workload, manifests.members).items():
            if workload.inline and key in manifests.members:
                manifests.groups[key] = (f"Workload {key}", group)


def _list_groups(manifests: Manifests, store: Store) -> Iterator[Newcomer]:
    forest = _plant(manifests)
    members: dict[GroupKey, list[Pod]] = {}
    for key in dict.fromkeys([*manifests.groups, *manifests.members]):
        found = forest.lift(key) if key in manifests.groups else store.forest.lift(key)
        members.setdefault(found, []).extend(manifests.members.get(key, ()))
    for composite in manifests.composites:
        members.setdefault(forest.lift_composite(composite.key), [])
    for key, pods in members.items():
        with manifests.judging():
            yield _make_newcomer(key, tuple(pods), manifests, store, forest)


def _plant(manifests: Manifests) -> Forest:
    """The trees of the manifests."""
    groups = {key: group for key, (_, group) in manifests.groups.items()}
    forest = Forest(groups)
    for composite in manifests.composites:
        forest.put_composite(composite)
    for group in groups.values():
        forest.index_group(None, group)
    return forest


def _make_newcomer(
    key: GroupKey, members: tuple[Pod, ...], manifests: Manifests, store: Store, forest: Forest
) -> Newcomer:
    source = f"{key.kind if key.kind is GroupKind.COMPOSITE else 'PodGroup'} {key.object_key}"
    source, group = manifests.groups.get(key, (source, forest.build(key)))
    known = store.groups.get(key)
    group = group or known
    if group is None and key.kind is GroupKind.COMPOSITE:
        raise ValueError(f"{forest.find_gap(key)}; send the whole tree")
    if group is None:
        raise ValueError(f"pod {members[0].name} names PodGroup {key}, which does not exist; send it, too")
    if not members and not store.members.of_group(key):
        raise ValueError(f"{source} has no pods here, and none exist; send its pods, or the Job that makes them")
    _check_leaves(group, members)
    return Newcomer(source, group, members)


def _check_leaves(group: PodGroup, members: Iterable[Pod]) -> None:
    if isinstance(group.tree, Leaf):
        return
    leaves = {leaf.name for leaf in list_leaves(group.tree)}
    stray = next((pod.group.name for pod in members if pod.group is not None and pod.group.name not in leaves), None)
    if stray is not None:
        raise ValueError(f"PodGroup {stray} is new in the tree of {group.key.object_key}; send the whole tree")


def _make_single(pod: Pod) -> Newcomer:
    key = GroupKey(pod.namespace, f"{_UID}{pod.name}")
    return Newcomer(f"Pod {pod.namespace}/{pod.name}", PodGroup(key, pod.uid, BASIC), (replace(pod, group=key),))
