"""The table of owner kinds (`OWNER_KINDS`): one row for Job, JobSet and LeaderWorkerSet each.

An owner is the object for which pods and groups are created: a Job, or a parent (an owner that is no Job). To support
another parent, add a row here and a reader of its manifest in `serried.api.layouts`. All other code follows the rows;
`tests/unit/model/test_kinds.py` fails for code that names the kind of a parent.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PodLabels:
    """The keys of the labels that a parent's controller sets on its pods; "" for a label that the kind lacks."""

    name: str = ""
    """The parent's name. Its presence identifies the kind, so each kind must have a different key."""

    uid: str = ""
    """The parent's UID."""

    stage: str = ""
    """The stage. If the kind has no such label, pod 0 of a replica is its leader and all others are workers."""

    replica: str = ""
    """The index of the replica."""

    job: str = ""
    """The index of the pod's Job among those of its stage."""

    index: str = ""
    """The pod's number in its replica. If the kind has no such label, it is the completion index of the pod's Job."""


@dataclass(frozen=True, slots=True)
class OwnerKind:
    """One row of the table: a kind of owner."""

    kind: str

    group: str
    """The API group."""

    version: str
    plural: str

    gang: str
    """The word for what is one gang: the owner's kind, or a part of the owner such as ``replica``."""

    staged: str = ""
    """The sentence why stages that start one after the other are separate gangs; placeholders ``owner``, ``field``."""

    labels: PodLabels = PodLabels()
    """The labels of the kind's pods. Pods of Jobs have none: they are found by their owner reference."""

    followed_pods: str = ""
    """The label selector of the pods that Serried's controller watches; "" if it watches their Jobs instead."""

    short_names: tuple[str, ...] = ()
    """Short names of the resource in kubectl."""

    api_version: str = field(init=False)
    """The ``apiVersion`` of the kind's objects."""

    gang_policy: str = field(init=False)
    """The value of the annotation ``gang-policy`` that makes the owner a gang, such as ``JobSetAsGang``."""

    word: str = field(init=False)
    """The kind in lower case, as kubectl takes it."""

    def __post_init__(self) -> None:
        """Compute the derived fields once, because the controller needs them for every object that it writes."""
        object.__setattr__(self, "api_version", f"{self.group}/{self.version}")
        object.__setattr__(self, "gang_policy", f"{self.gang[0].upper()}{self.gang[1:]}AsGang")
        object.__setattr__(self, "word", self.kind.lower())


_ROWS = (
    OwnerKind(kind="Job", group="batch", version="v1", plural="jobs", gang="Job"),
    OwnerKind(
        kind="JobSet",
        group="jobset.x-k8s.io",
        version="v1alpha2",
        plural="jobsets",
        gang="JobSet",
        staged="The replicated Jobs of {owner} start one after the other ({field}), "
        "so each of more than one pod is a gang of its own",
        labels=PodLabels(
            name="jobset.sigs.k8s.io/jobset-name",
            uid="jobset.sigs.k8s.io/jobset-uid",
            stage="jobset.sigs.k8s.io/replicatedjob-name",
            job="jobset.sigs.k8s.io/job-index",
        ),
    ),
    OwnerKind(
        kind="LeaderWorkerSet",
        group="leaderworkerset.x-k8s.io",
        version="v1",
        plural="leaderworkersets",
        gang="replica",
        staged="The workers of {owner} start after their leader ({field}), "
        "so those of each replica are a gang without it",
        labels=PodLabels(
            name="leaderworkerset.sigs.k8s.io/name",
            replica="leaderworkerset.sigs.k8s.io/group-index",
            index="leaderworkerset.sigs.k8s.io/worker-index",
        ),
        # The leaders: each is the first pod of a replica.
        followed_pods="leaderworkerset.sigs.k8s.io/worker-index=0",
        short_names=("lws",),
    ),
)

OWNER_KINDS: Mapping[str, OwnerKind] = {row.kind: row for row in _ROWS}
"""All owner kinds, by kind."""

PARENTS: Mapping[str, OwnerKind] = {row.kind: row for row in _ROWS if row.labels.name}
"""The owner kinds other than Job. Each is watched if the cluster serves it; none is required."""
