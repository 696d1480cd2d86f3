"""The gangs of a what-if question: the groups in its manifests, and the pods that owners such as Jobs would create.

The entry is `find_gangs`. The groups of new pods are found in a second Store that has only the objects of the question.
The PodGroups that an owner would get are found with the templates of the controller (`controller.diff.objects`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple

from controller.diff.objects import desired_templates, list_used_templates
from controller.diff.sentences import describe_no_gang, describe_templates
from extender.look.manifests import READ, Manifests, SentOwner, make_pod, require_decoded, resolve_levels
from serried.api.device import NOTHING, HypotheticalClaims
from serried.api.group import BASIC, Leaf, PodGroup, Template, Workload, list_leaves
from serried.api.job import Job, NoGang, decode_job
from serried.api.kinds import PARENTS
from serried.api.layouts import LAYOUTS, Source, Stage
from serried.api.names import BARE_KINDS, JOB, GroupKey, GroupKind, Key, read_map
from serried.api.parent import WHOLE, Owner, Parent, explain_no_gang, kind_of, owner_key_of
from serried.api.pod import COMPLETION_INDEX, ControllerRef, Pod
from serried.api.priority import PriorityClass, find_class
from serried.cluster.cache import Store
from serried.cluster.membership import build_groups, find_template, owner_key_in, owner_of_provisional, provisional
from serried.plan.quorum import find_rank
from serried.rules.all import RULES

_Raw = Mapping[str, Any]


class _Expansion(NamedTuple):
    """The expansion of one owner of a what-if question, such as a JobSet, into its groups and pods.

    `find_gangs` creates one per owner. ``store`` has the objects of the cluster; the new groups and pods are added to
    ``manifests``.
    """

    asked: SentOwner
    store: Store

    question_store: Store
    """A Store with only the owners, groups and Workloads of the what-if question. It finds the group of a pod."""

    manifests: Manifests

    def make_pod(self, template: _Raw, labels: _Raw, annotations: _Raw = MappingProxyType({})) -> Pod:
        """Return the pod that a template creates. ``labels`` and ``annotations`` are added to those of the template."""
        said = read_map(template, "metadata")
        key = self.asked.owner.key
        metadata = {
            "namespace": key.namespace,
            "name": key.name,
            "uid": self.asked.owner.uid,
            "labels": {**read_map(said, "labels"), **labels},
            "annotations": {**read_map(said, "annotations"), **annotations},
        }
        return make_pod(self.asked.place, template, metadata, self.store, self.manifests.coming, alike=True)

    def find_members(self, like: Pod, alone: GroupKey, stage: str) -> tuple[GroupKey, list[Pod]]:
        """Return the group that pods like ``like`` are in, and the list of its members so far.

        The caller appends the new pods to that list, which belongs to the manifests.

        ``alone`` is the key of the group to use if the pods would be in no group. ``stage`` is the stage of the owner
        to which the pods belong, i.e. pods from one template such as a replicated Job of a JobSet; "" without stages. A
        new group is added to the manifests.
        """
        gang = like.group or self.question_store.membership.resolve(like)
        key = gang or alone
        owner_key = owner_of_provisional(key)
        owner = self.question_store.owners.find(owner_key) if owner_key is not None else None
        if owner is not None:
            sent = self.question_store.membership.workloads_of(owner)
            whole = gang is not None and isinstance(owner, Parent) and not owner.staged
            if whole and sent and len(sent[0].templates) == 1:
                key = key._replace(part=WHOLE)  # the Workload has one PodGroup for all stages
            if key not in self.manifests.groups:
                template = _find_template(owner, sent, key.part or stage, is_gang=gang is not None)
                self.manifests.groups[key] = _describe(owner, key), _make_group(key, owner, template)
        return key, self.manifests.members.setdefault(key, [])


def _find_template(owner: Owner, sent: Sequence[Workload], stage: str, *, is_gang: bool) -> Template:
    """Return the template from which the owner's PodGroup for this stage, i.e. pods from one template, is created.

    It is from the first Workload in ``sent``, the Workloads of the what-if question; otherwise from the Workload that
    the controller would create if the owner is a gang; otherwise one with policy basic.
    """
    found = find_template(sent[0], owner, stage) if sent else None
    if found is not None:
        return found
    made = {each.name: each for each in (desired_templates(owner) if is_gang else ())}
    alone = Template(stage, BASIC, topology_key=owner.topology_key, priority_class=owner.priority_class)
    return made.get(stage) or next(iter(made.values()), alone)


def _add_owner(expansion: _Expansion) -> None:
    owner = expansion.asked.owner
    if isinstance(owner, Job):
        expansion.question_store.put_job(owner)
    else:
        expansion.question_store.put_parent(owner)
    _check_workloads(expansion, owner)
    if isinstance(owner, Job):
        expansion.manifests.count(owner.at_once)
        _add_job(expansion, owner, _make_first_pod(expansion, expansion.asked.raw))
    else:
        _add_parent(expansion, owner)


def _check_workloads(expansion: _Expansion, owner: Owner) -> None:
    sent = expansion.question_store.membership.workloads_of(owner)
    if len(sent) > 1:
        raise ValueError(f"{expansion.asked.place}: {owner.key} has another Workload, too; send one")
    if sent and not list_used_templates(owner, sent[0]):
        raise ValueError(f"{expansion.asked.place}: {describe_templates(owner, sent[0])}")


def _make_first_pod(expansion: _Expansion, raw: _Raw, **labels: str) -> Pod:
    """Return the pod of index 0 of a Job, whose manifest is ``raw``.

    The other pods are copies of it. ``labels`` are added.
    """
    template = read_map(read_map(raw, "spec"), "template")
    return expansion.make_pod(template, labels, {COMPLETION_INDEX: "0"})


def _add_job(expansion: _Expansion, job: Job, first: Pod, parent: Parent | None = None) -> None:
    """Add the pods that a Job of a what-if question would create to their group.

    They are copies of ``first``, the pod of index 0. ``expansion`` collects the pods of the question by group.
    ``parent`` is the owner of the Job, such as a JobSet; None if it has none.
    """
    expansion.question_store.put_job(job)
    like = replace(first, owner=ControllerRef(JOB, job.key.name, job.uid))
    alone = provisional(owner_key_of(job))
    key, members = expansion.find_members(like, alone, like.place.stage if like.place is not None else "")
    rank = 0
    if parent is not None and like.place is not None and owner_of_provisional(key) == owner_key_of(parent):
        rank = find_rank(like.place, 0, parent) or 0
    for index in range(job.at_once):
        at = rank + index if job.indexed else None
        name = f"{job.key.name}-{index}"
        members.append(replace(first, name=name, uid=f"{job.uid}-{index}", index=at, group=key, place=None))


def _add_parent(expansion: _Expansion, parent: Parent) -> None:
    """Add the pods of a parent, such as a JobSet, to their groups, stage by stage.

    A stage has the pods from one template of the parent: a replicated Job of a JobSet, or the workers of a
    LeaderWorkerSet.
    """
    layout = LAYOUTS[parent.kind](expansion.asked.raw)
    expansion.manifests.count(layout.copies * sum(each.stage.size for each in layout.sources if each.jobs is None))
    first = 0
    for source in layout.sources:
        if source.jobs is not None:
            _add_jobs(expansion, parent, source, source.jobs)
        elif source.stage.size:
            _add_stage(expansion, parent, source, layout.copies, first)
        first += source.stage.size


def _add_jobs(expansion: _Expansion, parent: Parent, source: Source, jobs: int) -> None:
    """Add the pods of a stage that creates Jobs, such as a replicated Job of a JobSet.

    ``source`` has the Jobs' template, ``jobs`` is their number.
    """
    stage = source.stage.name
    manifest = _make_child(parent, source)
    child = resolve_levels(
        expansion.asked.place, require_decoded(expansion.asked.place, decode_job(manifest)), expansion.store
    )
    expansion.manifests.count(jobs * max(1, child.at_once))
    first = _make_first_pod(expansion, manifest, **_write_labels(parent, stage=stage, job="0"))
    for number in range(jobs):
        name = f"{parent.key.name}-{stage}-{number}"
        job = replace(child, key=Key(parent.key.namespace, name), uid=f"{parent.uid}-{name}")
        place = replace(first.place, job=number) if first.place is not None else None
        _add_job(expansion, job, replace(first, place=place), parent)


def _make_child(parent: Parent, source: Source) -> dict[str, Any]:
    """Return the manifest of one Job from the Job template in ``source``, as the parent's controller creates it."""
    owner = {"kind": kind_of(parent), "name": parent.key.name, "uid": parent.uid, "controller": True}
    metadata = {
        **read_map(source.template, "metadata"),
        "namespace": parent.key.namespace,
        "name": f"{parent.key.name}-{source.stage.name}",
        "uid": f"{parent.uid}-{source.stage.name}",
        "ownerReferences": [owner],
    }
    spec = {"completionMode": "Indexed", **read_map(source.template, "spec")}
    return {"kind": "Job", "metadata": metadata, "spec": spec}


def _add_stage(expansion: _Expansion, parent: Parent, source: Source, copies: int, first: int) -> None:
    """Add the pods of a stage without Jobs, such as the workers of a LeaderWorkerSet, for each replica of the parent.

    ``copies`` is the number of replicas, ``source`` has the pod template. ``first`` is the number of the stage's first
    pod among the pods of a replica, for instance 1 for the workers, because the leader has number 0.
    """
    labels = _write_labels(parent, stage=source.stage.name, replica="0", index=str(first))
    like = expansion.make_pod(source.template, labels)
    for replica in range(copies):
        _add_replica(expansion, parent, source.stage, like, replica=replica, first=first)


def _add_replica(expansion: _Expansion, parent: Parent, stage: Stage, like: Pod, *, replica: int, first: int) -> None:
    """Add the pods of a stage, such as the workers, in one replica of the parent as copies of ``like``.

    ``first`` is the number of the first of them among the pods of the replica.
    """
    place = replace(like.place, replica=str(replica)) if like.place is not None and like.place.replica else like.place
    alone = provisional(owner_key_of(parent), stage.name)
    key, members = expansion.find_members(replace(like, place=place), alone, stage.name)
    for index in range(first, first + stage.size):
        name = f"{parent.key.name}-{replica}" + (f"-{index}" if index else "")
        at = index if PARENTS[parent.kind].labels.index else None
        members.append(replace(like, name=name, uid=f"{parent.uid}-{name}", index=at, group=key, place=None))


def _write_labels(parent: Parent, **place: str) -> dict[str, str]:
    """Return the labels that the parent's own controller gives to a pod.

    ``place`` are the values of these labels by what they tell: stage, job, replica or index (the fields of
    `PodLabels`). Values for which the parent's kind has no label are left out.
    """
    said = {"name": parent.key.name, **place}
    labels = PARENTS[parent.kind].labels
    return {label: value for field, value in said.items() if (label := getattr(labels, field))}


def _describe(owner: Owner, key: GroupKey) -> str:
    part = f", {key.part}" if key.part else ""
    replica = f", replica {key.replica}" if key.replica else ""
    return f"{kind_of(owner)} {owner.key}{part}{replica}"


def _make_group(key: GroupKey, owner: Owner, template: Template) -> PodGroup:
    """Return the PodGroup with this key that would be created for an owner from a template."""
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
"""The prefix of the name of the group that a single pod gets here. Real names have no colon, so they differ."""


@dataclass(frozen=True, slots=True)
class AskedGang:
    """A gang that a what-if question asks about: new, existing, or a single pod as a group of its own."""

    source: str
    """The manifest that it comes from, or the existing group, for users: kind, namespace and name."""

    group: PodGroup

    members: tuple[Pod, ...]
    """The hypothetical members, each with the key of the PodGroup that it names.

    Existing members are not among them.
    """

    priority: int | None = None
    """The value of the group's PriorityClass if the what-if question has this class; None if not."""

    no_gang: str = ""
    """The reason why its pods would be placed one by one instead of as a gang, a phrase; "" for a gang."""


class FoundGangs(NamedTuple):
    """The gangs found in the manifests of a what-if question, and what could not be read."""

    gangs: list[AskedGang]

    refused: list[str]
    """A sentence about each object that could not be read or planned: its place, the error, and what to do."""


def find_gangs(
    objects: Iterable[tuple[str, Any]],
    store: Store,
    namespace: str,
    classes: Mapping[str, PriorityClass] = MappingProxyType({}),
    coming: HypotheticalClaims = NOTHING,
) -> FoundGangs:
    """Return the gangs that the objects of a what-if question would create.

    Each object comes with its place in the request body. ``classes`` are the PriorityClasses that were sent with the
    objects; their values are filled in already where an object names one (`separate_priority_classes`). ``coming`` are
    the claims for volumes and devices that were sent (`separate_claims`).

    The result also has the errors of the objects that are invalid. Raises ValueError if no object creates a gang or
    has an error, or if there are too many gangs.
    """
    manifests = Manifests(coming=coming)
    for place, raw in objects:
        with manifests.refusing():
            manifests.read(place, raw, namespace, store)
    _add_inline_groups(manifests)
    question_store = _make_question_store(manifests, store)
    for asked in manifests.owners:
        with manifests.refusing():
            more = Manifests(coming=coming, pods=manifests.pods)
            _add_owner(_Expansion(asked, store, question_store, more))
            manifests.add(more)
            manifests.pods = more.pods
    found = [*_list_groups(manifests, store, question_store), *(_make_single(pod) for pod in manifests.single)]
    if not found and not manifests.refused:
        raise ValueError(f"there is no object in the body; Serried reads {READ}")
    if len(found) > MOST_GANGS:
        raise ValueError(f"there are {len(found)} gangs; ask for at most {MOST_GANGS} at a time")
    return FoundGangs([_set_priority(each, classes) for each in found], manifests.refused)


def _set_priority(gang: AskedGang, classes: Mapping[str, PriorityClass]) -> AskedGang:
    """Return the gang with the priority of its PriorityClass if that is in ``classes``; otherwise unchanged.

    Groups of the kinds in `BARE_KINDS`, which get no priority, and groups that name a system class are unchanged, too.
    """
    named = classes.get(gang.group.priority_class)
    if named is None or gang.group.key.kind in BARE_KINDS:
        return gang
    found = find_class(named.name, classes)
    if found is None:
        return gang  # not a class that groups may name
    group = gang.group
    group = replace(group, priority_class="", priority=found.value, preemption=group.preemption or found.preemption)
    return replace(gang, group=group, priority=found.value)


def find_existing(store: Store, key: GroupKey) -> AskedGang:
    """Return an existing group as a gang of a what-if question. Raises ValueError if it is not known."""
    group = store.groups.get(key)
    if group is None:
        raise ValueError(f"no group {key} is known; see /debug/groups")
    return AskedGang(f"{key.kind} {key}", group, (), no_gang=_describe_no_gang(group, store))


def _add_inline_groups(manifests: Manifests) -> None:
    """Add to ``manifests`` the groups that its Workloads in v1alpha1 contain and that some of its pods name.

    In v1alpha1 there are no PodGroups: a pod names a Workload and a group in it.
    """
    for _, workload in manifests.workloads:
        for key, group in build_groups(workload, manifests.members).items():
            if workload.inline and key in manifests.members:
                manifests.groups[key] = (f"Workload {key}", group)


def _make_question_store(manifests: Manifests, store: Store) -> Store:
    """Return a Store with only the groups and Workloads of the what-if question, and with the settings of ``store``.

    A Workload of which neither the owner nor a PodGroup is in the question is left out, and the reason is added to
    ``manifests.refused``.
    """
    question_store = Store(store.schedulers, store.gang_jobs, level=store.level, rules=RULES)
    named = {owner_key_of(asked.owner) for asked in manifests.owners}
    made_from = {(group.key.namespace, group.workload) for _, group in manifests.groups.values()}
    for _, group in manifests.groups.values():
        question_store.put_group(group)
    for composite in manifests.composites:
        question_store.put_composite(composite)
    for place, workload in manifests.workloads:
        with manifests.refusing():
            if owner_key_in(workload) not in named and workload.key not in made_from:
                kind = workload.parent[0] if workload.parent is not None else "Job"
                said = f"Serried cannot tell which pods it has; send its {kind} with it, or its PodGroups"
                raise ValueError(f"{place}: {said}")
            # Owner references are dropped: their UIDs are not those that the question's owners got here.
            question_store.put_workload(replace(workload, owners=()))
    return question_store


def _list_groups(manifests: Manifests, store: Store, question_store: Store) -> Iterator[AskedGang]:
    members: dict[GroupKey, list[Pod]] = {}
    for key in dict.fromkeys([*manifests.groups, *manifests.members]):
        found = (question_store if key in manifests.groups else store).forest.find_tree_key(key)
        members.setdefault(found, []).extend(manifests.members.get(key, ()))
    for composite in manifests.composites:
        members.setdefault(question_store.forest.tree_key_of_composite(composite.key), [])
    for key, pods in members.items():
        with manifests.refusing():
            yield _make_asked_gang(key, tuple(pods), manifests, store, question_store)


def _make_asked_gang(
    key: GroupKey, members: tuple[Pod, ...], manifests: Manifests, store: Store, question_store: Store
) -> AskedGang:
    source = f"{key.kind if key.kind is GroupKind.COMPOSITE else 'PodGroup'} {key.object_key}"
    source, group = manifests.groups.get(key, (source, question_store.groups.get(key)))
    known = store.groups.get(key)
    group = group or known
    if group is None and key.kind is GroupKind.COMPOSITE:
        raise ValueError(f"{question_store.forest.find_gap(key)}; send the whole tree")
    if group is None:
        raise ValueError(f"pod {members[0].name} names PodGroup {key}, which does not exist; send it, too")
    if not members and not store.members.of_group(key):
        raise ValueError(f"{source} has no pods here, and none exist; send its pods, or the Job that makes them")
    _check_leaves(group, members)
    return AskedGang(source, group, members, no_gang=_describe_no_gang(group, question_store))


def _describe_no_gang(group: PodGroup, store: Store) -> str:
    """Return why the pods of a group are placed one by one, a phrase; "" for a gang.

    ``store`` has the group's owner.
    """
    if group.policy.is_gang:
        return ""
    owner_key = owner_of_provisional(group.key)
    owner = store.owners.find(owner_key) if owner_key is not None else None
    found = explain_no_gang(owner, store.schedulers, store.gang_jobs) if owner is not None else None
    return describe_no_gang(found or NoGang("its policy is basic"))


def _check_leaves(group: PodGroup, members: Iterable[Pod]) -> None:
    if isinstance(group.tree, Leaf):
        return
    leaves = {leaf.name for leaf in list_leaves(group.tree)}
    stray = next((pod.group.name for pod in members if pod.group is not None and pod.group.name not in leaves), None)
    if stray is not None:
        raise ValueError(f"PodGroup {stray} is new in the tree of {group.key.object_key}; send the whole tree")


def _make_single(pod: Pod) -> AskedGang:
    key = GroupKey(pod.namespace, f"{_UID}{pod.name}")
    alone = PodGroup(key, pod.uid, BASIC)
    no_gang = "kube-scheduler places the pod by itself: it names no PodGroup"
    return AskedGang(f"Pod {pod.namespace}/{pod.name}", alone, (replace(pod, group=key),), no_gang=no_gang)
