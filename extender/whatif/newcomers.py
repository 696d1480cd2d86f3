"""Gangs that do not exist yet, from manifests: each group, and its members as they would be."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from serried.cluster.membership import find_template
from serried.cluster.store import Store
from serried.decode.compatible import decode_compatible_group
from serried.decode.fields import read_map, read_text
from serried.decode.groups import decode_pod_group, decode_workload
from serried.decode.jobs import decode_job
from serried.decode.malformed import Malformed
from serried.decode.pods import COMPLETION_INDEX, decode_pod
from serried.model.group import BASIC, GroupKey, GroupKind, Job, PodGroup, Policy, Template, Workload
from serried.model.parent import WHOLE
from serried.model.pod import Pod
from serried.model.priority import PriorityClass
from serried.model.tree import Branch
from serried.plan.steps import Work

MOST_PODS = 10_000
MOST_GANGS = 50

_PODS_PER_STEP = 100
_UID = "whatif:"
"""Before the UID of what does not exist; no true one has a colon."""

_READ = "Job, PodGroup, Workload, Pod, and Lists of them"


@dataclass(frozen=True, slots=True)
class Newcomer:
    """A gang, or a pod of none, for which a place is looked for."""

    source: str
    """What it comes from, for people: kind, namespace and name."""

    group: PodGroup

    members: tuple[Pod, ...]
    """Those that come; members that wait already are not among them."""


@dataclass(slots=True)
class _Read:
    """What the manifests say, so far."""

    groups: dict[GroupKey, tuple[str, PodGroup]] = field(default_factory=dict)
    members: dict[GroupKey, list[Pod]] = field(default_factory=dict)
    jobs: list[tuple[str, dict[str, Any], Job]] = field(default_factory=list)
    workloads: list[tuple[str, Workload]] = field(default_factory=list)
    single: list[Pod] = field(default_factory=list)
    pods: int = 0


def gather(objects: Iterable[tuple[str, Any]], store: Store, namespace: str) -> Work[list[Newcomer]]:
    """The gangs of some objects, each with where it stands. Raises ValueError: what, where, and what to do."""
    read = _Read()
    for place, raw in objects:
        _read_object(place, _complete(place, raw, namespace), store, read)
        yield
    templates = _find_templates(read)
    for place, raw, job in read.jobs:
        yield from _add_job(place, raw, job, templates.get(id(job)), store=store, read=read)
    found = [*_list_groups(store, read), *(_make_single(pod) for pod in read.single)]
    if not found:
        raise ValueError(f"there is no object in the body; what is read: {_READ}")
    if len(found) > MOST_GANGS:
        raise ValueError(f"there are {len(found)} gangs; ask for at most {MOST_GANGS} at a time")
    return found


def find_existing(store: Store, key: GroupKey) -> Newcomer:
    """A group that exists, to be planned with the members that it has. Raises ValueError if it is not known."""
    group = store.groups.get(key)
    if group is None:
        raise ValueError(f"no group {key} is known; see /debug/groups")
    return Newcomer(f"{key.kind} {key}", group, ())


# --- objects ----------------------------------------------------------------------------------------------------------


def _complete(place: str, raw: Any, namespace: str) -> dict[str, Any]:
    """An object as it would be created: without what an API server has written into it."""
    if not isinstance(raw, dict) or not isinstance(raw.get("kind"), str):
        raise ValueError(f"{place} is no manifest: it has no kind")  # noqa: TRY004 - what people have sent
    metadata: Any = raw.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    name = metadata.get("name") or metadata.get("generateName")
    if not isinstance(name, str):
        raise ValueError(f"{place}, {raw['kind']}: metadata.name is missing")  # noqa: TRY004 - as above
    home = metadata.get("namespace") or namespace
    kept = {key: metadata[key] for key in ("labels", "annotations", "ownerReferences") if key in metadata}
    made = {**kept, "name": name, "namespace": home, "uid": f"{_UID}{raw['kind']}:{home}/{name}"}
    return {**{key: value for key, value in raw.items() if key != "status"}, "metadata": made}


def _read_object(place: str, raw: dict[str, Any], store: Store, read: _Read) -> None:
    kind = raw["kind"]
    source = f"{kind} {raw['metadata']['namespace']}/{raw['metadata']['name']}"
    place = f"{place}, {source}"
    match kind:
        case "Job":
            job = _usable(place, decode_job(raw))
            if job.problem:
                raise ValueError(f"{place}: {job.problem}")
            read.jobs.append((place, raw, job))
        case "Pod":
            _count(read, 1)
            pod = _make_pod(place, raw, raw["metadata"], store)
            if pod.group is None:
                read.single.append(pod)
            else:
                read.members.setdefault(pod.group, []).append(pod)
        case "PodGroup":
            compatible = str(raw.get("apiVersion", "")).startswith("scheduling.x-k8s.io/")
            group = _usable(place, decode_compatible_group(raw) if compatible else decode_pod_group(raw))
            read.groups[group.key] = (source, group)
        case "Workload":
            read.workloads.append((place, _usable(place, decode_workload(raw))))
        case _:
            raise ValueError(
                f"{place}: this kind is not read; send the pods that it makes, or their Job. What is read: {_READ}"
            )


def _usable(place: str, found: Any) -> Any:
    if isinstance(found, Malformed):
        raise ValueError(f"{place}: {found.problem}")  # noqa: TRY004 - what people have sent
    return found


def _count(read: _Read, more: int) -> None:
    read.pods += more
    if read.pods > MOST_PODS:
        raise ValueError(f"there are more than {MOST_PODS} pods; ask for fewer at a time")


# --- pods -------------------------------------------------------------------------------------------------------------


def _make_pod(place: str, template: Mapping[str, Any], metadata: Mapping[str, Any], store: Store) -> Pod:
    """A pod of a template, as admission would let it in."""
    spec = template.get("spec")
    if not isinstance(spec, dict):
        raise ValueError(f"{place}: spec is missing")  # noqa: TRY004 - as above
    admitted = {**_admit(place, spec, store.priority_classes), "nodeName": ""}
    pod: Pod = _usable(place, decode_pod({"metadata": metadata, "spec": admitted}))
    if pod.scheduler not in store.schedulers:
        names = " or ".join(sorted(store.schedulers))
        raise ValueError(
            f"{place}: schedulerName is {pod.scheduler}, which Serried does not serve; it has to be {names}"
        )
    return store.show_pod(pod)


def _admit(place: str, spec: Mapping[str, Any], classes: Mapping[str, PriorityClass]) -> dict[str, Any]:
    name = read_text(spec, "priorityClassName")
    default = min((each for each in classes.values() if each.is_default), key=lambda each: each.value, default=None)
    found = classes.get(name) if name else default
    if name and found is None and spec.get("priority") is None:
        raise ValueError(f"{place}: PriorityClass {name} does not exist; create it, or name another one")
    said: dict[str, Any] = {}
    if found is not None:
        said["priority"] = found.value
        if found.preemption is not None:
            said["preemptionPolicy"] = found.preemption.value
    return {**said, **{key: value for key, value in spec.items() if value is not None}}


# --- Jobs -------------------------------------------------------------------------------------------------------------


def _find_templates(read: _Read) -> dict[int, Template]:
    """The template of each Job's Workload, by the ``id`` of the Job."""
    templates: dict[int, Template] = {}
    for place, workload in read.workloads:
        jobs = [job for _, _, job in read.jobs if (job.key.namespace, job.key.name) == (workload.key[0], workload.job)]
        if not jobs:
            raise ValueError(f"{place}: nothing says which pods it has; send its Job with it")
        template = find_template(workload, jobs[0], WHOLE)
        if template is None:
            raise ValueError(f"{place}: it needs one template for its Job, and has {len(workload.templates)}")
        templates[id(jobs[0])] = template
    return templates


def _add_job(
    place: str, raw: dict[str, Any], job: Job, template: Template | None, *, store: Store, read: _Read
) -> Work[None]:
    """The pods of a Job: a gang by the rules of the controller, or members of the group that its template names."""
    _count(read, job.at_once)
    key = job.group or GroupKey(job.key.namespace, job.key.name, GroupKind.JOB)
    if job.group is None:
        is_gang = template is not None or store.membership.is_eligible(job)
        read.groups[key] = (f"Job {job.key}", _make_group(key, job, template, is_gang=is_gang))
    pods = read.members.setdefault(key, [])
    spec = read_map(read_map(raw, "spec"), "template")
    labels = read_map(read_map(spec, "metadata"), "labels")
    metadata = {"name": f"{job.key.name}-0", "namespace": job.key.namespace, "labels": labels, "uid": f"{job.uid}-0"}
    first = _make_pod(place, spec, metadata | {"annotations": {COMPLETION_INDEX: "0"}}, store)
    for index in range(job.at_once):
        name = f"{job.key.name}-{index}"
        place_in_job = index if job.indexed else None
        pods.append(replace(first, name=name, uid=f"{job.uid}-{index}", index=place_in_job, group=key))
        if index % _PODS_PER_STEP == 0:
            yield


def _make_group(key: GroupKey, job: Job, template: Template | None, *, is_gang: bool) -> PodGroup:
    policy = Policy(max(1, min(job.min_count or job.at_once, job.at_once))) if is_gang else BASIC
    group = PodGroup(
        key=key,
        uid=job.uid,
        policy=policy,
        topology_key=job.topology_key,
        priority_class=job.priority_class,
        preference=job.preference,
    )
    if template is None:
        return group
    return replace(
        group,
        policy=template.policy,
        topology_key=template.topology_key or job.topology_key,
        priority_class=template.priority_class or job.priority_class,
        priority=template.priority,
        preemption=template.preemption,
    )


# --- groups -----------------------------------------------------------------------------------------------------------


def _list_groups(store: Store, read: _Read) -> Iterator[Newcomer]:
    for key in dict.fromkeys([*read.groups, *read.members]):
        members = tuple(read.members.get(key, ()))
        source, group = read.groups.get(key, (f"PodGroup {key}", None))
        known = store.groups.get(key)
        group = group or known
        if group is None:
            raise ValueError(f"pod {members[0].name} names PodGroup {key}, which does not exist; send it, too")
        if not members and not store.members.of_group(key):
            raise ValueError(f"{source} has no pods here, and none exist; send its pods, or the Job that makes them")
        if members and known is not None and isinstance(known.tree, Branch):
            raise ValueError(f"{source} is a tree of groups; new members of one are not read")
        yield Newcomer(source, group, members)


def _make_single(pod: Pod) -> Newcomer:
    key = GroupKey(pod.namespace, f"{_UID}{pod.name}")
    return Newcomer(f"Pod {pod.namespace}/{pod.name}", PodGroup(key, pod.uid, BASIC), (replace(pod, group=key),))
