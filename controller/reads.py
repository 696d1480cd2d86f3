"""What the controller reads: its watches, and beside them which PodGroups the pods of a namespace name."""

from serried.decode.fields import read_map
from serried.decode.identity import read_group_field, read_group_label
from serried.decode.parents import JOB_SET_NAME, SET_NAME, WORKER_INDEX
from serried.decode.pods import decode_pod
from serried.feed import Kind
from serried.kube.client import ApiClient
from serried.kube.wire import JSON, PODS, Selection
from serried.model.group import GroupKey
from serried.model.level import FALLBACK, ApiLevel
from serried.model.parent import Parent, ParentKind
from serried.model.pod import Pod

LIVE = "status.phase!=Succeeded,status.phase!=Failed"
"""Field selector of the pods that have not ended; those being deleted are among them until they are gone."""

_KINDS = (
    *(Kind.PODS, Kind.LEADERS, Kind.JOBS, Kind.POD_GROUPS, Kind.WORKLOADS),
    *(Kind.JOB_SETS, Kind.LEADER_WORKER_SETS, Kind.PRIORITY_CLASSES),
)

JOB_PODS = Selection(labels="batch.kubernetes.io/job-name")
"""The pods that are watched, those of Jobs: only these can be a Job's gang.

The API server puts the label into each Job's template, but for those with ``manualSelector``, which are no gangs.
"""

LEADER_PODS = Selection(labels=f"{WORKER_INDEX}=0")
"""The other pods that are watched, the leaders of LeaderWorkerSets: each is the first pod of a replica."""


def watched_kinds(level: ApiLevel) -> tuple[Kind, ...]:
    """What is watched: composites only where no admission plugin gives them their priority."""
    return (*_KINDS, Kind.COMPOSITES) if level == FALLBACK else _KINDS


async def read_named_groups(client: ApiClient, namespace: str) -> frozenset[GroupKey]:
    """The PodGroups that a pod of the namespace names which has not ended; raises ApiError.

    Every pod counts that was there when the call began. So no ``resourceVersion=0``: that may be answered from the
    cache of an API server that lags behind. Without it the answer is the newest state, and on 1.34 and later also
    comes from the cache, once that has caught up. All pages are of one state; when it is forgotten between two of them
    (410), nothing is known: half of a list is no list.
    """
    named: set[GroupKey] = set()
    async for pod in client.items(PODS, Selection(namespace, fields=LIVE)):
        named.update(_groups_of(pod, namespace))
    return frozenset(named)


async def read_pods_of(client: ApiClient, parent: Parent) -> list[Pod]:
    """The pods of a parent, from the newest state; raises ApiError. Workers of a LeaderWorkerSet are not watched."""
    label = JOB_SET_NAME if parent.kind is ParentKind.JOB_SET else SET_NAME
    selection = Selection(parent.key.namespace, labels=f"{label}={parent.key.name}")
    found = [decode_pod(pod) async for pod in client.items(PODS, selection)]
    return [pod for pod in found if isinstance(pod, Pod) and pod.place and pod.place.uid in {"", parent.uid}]


def _groups_of(pod: JSON, namespace: str) -> list[GroupKey]:
    """What the pod names, by field or by label: if it says two things, both are kept."""
    field = read_group_field(read_map(pod, "spec"), namespace)
    label = read_group_label(read_map(pod, "metadata"), namespace)
    return [group for group in (field, label) if group is not None]
