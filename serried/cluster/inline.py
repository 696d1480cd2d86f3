"""PodGroups that are parts of a Workload (v1alpha1, 1.35): one for each template, and one for each replica key in use.

Every ``podGroupReplicaKey`` is a gang of its own under the template's policy (WorkloadReference in
k8s.io/api/core/v1/types.go of 1.35).
"""

from collections.abc import Iterable

from serried.model.group import Key, PodGroup, Template, Workload, name_inline


def workload_of(group: Key) -> Key | None:
    """The Workload of which a group would be part, None for the key of a PodGroup object."""
    name, slash, _ = group.name.partition("/")
    return Key(group.namespace, name) if slash else None


def is_replica(group: Key) -> bool:
    """Whether a replica key made this group: it exists as long as a pod names it."""
    return group.name.count("/") > 1


def build_groups(workload: Workload, named: Iterable[Key]) -> dict[Key, PodGroup]:
    """The groups of an inline Workload: its templates, and those of ``named`` that are replicas of one of them."""
    groups: dict[Key, PodGroup] = {}
    for template in workload.templates:
        key = Key(workload.key.namespace, name_inline(workload.key.name, template.name))
        groups[key] = _build(workload, template, key)
        replicas = (name for name in named if name.name.startswith(f"{key.name}/"))
        groups.update({replica: _build(workload, template, replica) for replica in replicas})
    return groups


def _build(workload: Workload, template: Template, key: Key) -> PodGroup:
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
        inline=True,
        preference=template.preference,
    )
