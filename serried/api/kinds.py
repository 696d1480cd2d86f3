"""The kinds of owners: one row says all that there is to know of a kind, but for the shape of its manifest.

An owner is what pods and their groups are made for: a Job, or a parent. A new kind of parent is one row here, and a
reader of its shape in `serried.api.layouts`. Names of groups, watches, rights, what-if and the commands follow the
rows; `tests/unit/model/test_kinds.py` finds any other place that names a parent's kind.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PodLabels:
    """The labels in which a parent's pods say where they stand in it; "" for one that the kind does not have."""

    name: str = ""
    """The parent's name: it is how its pods are found, so each kind has one of its own."""

    uid: str = ""
    """The parent's UID."""

    stage: str = ""
    """The stage. Without this label a replica has a leader, whose number is 0, and all other pods are workers."""

    replica: str = ""
    """The index of the replica."""

    job: str = ""
    """The index of the pod's Job among those of its stage."""

    index: str = ""
    """The pod's number in its replica. Without this label it is the completion index, which pods of Jobs have."""


@dataclass(frozen=True, slots=True)
class OwnerKind:
    """One kind of owners."""

    kind: str

    group: str
    """The API group."""

    version: str
    plural: str

    gang: str
    """What is a gang: the whole owner (its kind), or a part of it, as sentences and the gang policy call that."""

    staged: str = ""
    """Why stages that wait for each other are gangs of their own, a sentence about an ``owner`` and a ``field``."""

    labels: PodLabels = PodLabels()
    """Jobs have none: their pods are found by the owner reference."""

    followed_pods: str = ""
    """A label selector of the pods that the controller follows; "" where Jobs make all of them, as it follows those."""

    short_names: tuple[str, ...] = ()
    """What kubectl calls it, too."""

    api_version: str = field(init=False)
    """What stands in an object's ``apiVersion``."""

    gang_policy: str = field(init=False)
    """The word of the annotation ``gang-policy`` that makes gangs of an owner."""

    word: str = field(init=False)
    """The kind as people write it to kubectl."""

    def __post_init__(self) -> None:
        """Set what follows from the rest, once: the controller asks for it with each object that it writes."""
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
"""Every kind of owners, by its name in the API."""

PARENTS: Mapping[str, OwnerKind] = {row.kind: row for row in _ROWS if row.labels.name}
"""The kinds of owners that are no Jobs. All are watched where they are served, and Serried works without them."""
