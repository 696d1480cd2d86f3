"""What the controller reads: the selections of its watches, and lists of pods that it does not watch."""

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
"""Field selector of the pods that have not ended. Pods that are being deleted are among them."""

_KINDS = (
    *(Kind.PODS, Kind.LEADERS, Kind.JOBS, Kind.POD_GROUPS, Kind.WORKLOADS),
    *(Kind.JOB_SETS, Kind.LEADER_WORKER_SETS, Kind.PRIORITY_CLASSES),
)

JOB_PODS = Selection(labels="batch.kubernetes.io/job-name")
"""The pods of Jobs: only these can be a Job's gang.

The API server puts the label into the pod template of each Job, except of those with ``manualSelector``, which are no
gangs.
"""

LEADER_PODS = Selection(labels=f"{WORKER_INDEX}=0")
"""The leaders of LeaderWorkerSets: each is the first pod of a replica."""


def watched_kinds(level: ApiLevel) -> tuple[Kind, ...]:
    """The kinds that are watched. CompositePodGroups only where no admission plugin gives them their priority."""
    composites = Kind.COMPOSITES if level == FALLBACK else Kind.COMPOSITES_BESIDE
    return (*_KINDS, Kind.POD_GROUPS_BESIDE, Kind.WORKLOADS_BESIDE, composites)


async def read_named_groups(client: ApiClient, namespace: str) -> frozenset[GroupKey]:
    """The PodGroups that live pods of the namespace name; raises ApiError.

    Every pod that existed when the call began counts. So the list is not asked for with ``resourceVersion=0``, which
    the API server may answer from a cache that lags behind. Without it the answer is the newest state; from 1.34 on it
    comes from the cache as well, once that has caught up. All pages are of one state. If the server forgets it between
    two pages (410), the call fails: half of a list is no list.
    """
    named: set[GroupKey] = set()
    async for pod in client.items(PODS, Selection(namespace, fields=LIVE)):
        named.update(_groups_of(pod, namespace))
    return frozenset(named)


async def read_pods_of(client: ApiClient, level: ApiLevel, parent: Parent) -> list[Pod]:
    """The pods of a parent, from the newest state; raises ApiError. Workers of a LeaderWorkerSet are not watched."""
    label = JOB_SET_NAME if parent.kind is ParentKind.JOB_SET else SET_NAME
    selection = Selection(parent.key.namespace, labels=f"{label}={parent.key.name}")
    found = [decode_pod(pod, level.read) async for pod in client.items(PODS, selection)]
    return [pod for pod in found if isinstance(pod, Pod) and pod.place and pod.place.uid in {"", parent.uid}]


def _groups_of(pod: JSON, namespace: str) -> list[GroupKey]:
    """The PodGroups that the pod names by field and by label; two if they differ."""
    field = read_group_field(read_map(pod, "spec"), namespace)
    label = read_group_label(read_map(pod, "metadata"), namespace)
    return [group for group in (field, label) if group is not None]
