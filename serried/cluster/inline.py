"""PodGroups that are parts of a Workload (v1alpha1, 1.35): one for each template, and one for each replica key in use.

Every ``podGroupReplicaKey`` is a gang of its own under the template's policy (WorkloadReference in
k8s.io/api/core/v1/types.go of 1.35).
"""

from collections.abc import Iterable

from serried.model.group import GroupKey, GroupKind, Key, PodGroup, Template, Workload


def workload_of(group: GroupKey) -> Key | None:
    """The Workload of which a group would be part, None for the key of a PodGroup object."""
    return group.object_key if group.kind is GroupKind.WORKLOAD else None


def is_replica(group: GroupKey) -> bool:
    """Whether a replica key made this group: it exists as long as a pod names it."""
    return group.kind is GroupKind.WORKLOAD and bool(group.replica)


def key_inline(workload: Workload, template: Template, replica: str = "") -> GroupKey:
    """The key of the group that a template of an inline Workload is, in one of its replicas if it has some."""
    return GroupKey(*workload.key, GroupKind.WORKLOAD, template.name, replica)


def build_groups(workload: Workload, named: Iterable[GroupKey]) -> dict[GroupKey, PodGroup]:
    """The groups of an inline Workload: its templates, and those of ``named`` that are replicas of one of them."""
    groups: dict[GroupKey, PodGroup] = {}
    for template in workload.templates:
        key = key_inline(workload, template)
        groups[key] = _build(workload, template, key)
        for group in named:
            if group.replica and group == key_inline(workload, template, group.replica):
                groups[group] = _build(workload, template, group)
    return groups


def _build(workload: Workload, template: Template, key: GroupKey) -> PodGroup:
    return PodGroup(
        key=key,
        uid=workload.uid,
        policy=template.policy,
        topology_key=template.topology_key,
        workload=workload.key.name,
        template=template.name,
        owners=workload.owners,
        labels=workload.labels,
        deleting=workload.deleting,
        version=workload.version,
        preference=template.preference,
    )
