"""The table of owner kinds (`OWNER_KINDS`): one row for Job, JobSet and LeaderWorkerSet each.

An owner is an object whose pods may be gangs: a Job, or a parent (an owner that is no Job). To support another kind of
parent, add a row here and a reader of its manifest in `serried.api.layouts`. All other code uses the rows;
`tests/unit/model/test_kinds.py` fails for code that contains the name of a parent's kind.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PodLabels:
    """The keys of the labels that a parent's controller sets on its pods; "" for a label that the kind lacks."""

    name: str = ""
    """The key of the label with the parent's name. A pod with this label belongs to a parent of the kind.

    So each kind must have a different key.
    """

    uid: str = ""
    """The key of the label with the parent's UID."""

    stage: str = ""
    """The key of the label with the pod's stage, such as the replicated Job.

    If the kind has no such label, pod 0 of a replica is its leader and all others are workers.
    """

    replica: str = ""
    """The key of the label with the index of the pod's replica."""

    job: str = ""
    """The key of the label with the index of the pod's Job among the Jobs of its stage."""

    index: str = ""
    """The key of the label with the pod's number in its replica.

    If the kind has no such label, the pod's completion index in its Job counts.
    """


@dataclass(frozen=True, slots=True)
class OwnerKind:
    """One row of the table OWNER_KINDS: a kind of object whose pods may be gangs."""

    kind: str

    group: str
    """The API group of the kind, such as ``batch``."""

    version: str
    plural: str

    gang: str
    """The word for what forms one gang: the kind itself, or a part of the object such as ``replica``."""

    staged: str = ""
    """The sentence for users that says why stages which start one after the other are separate gangs.

    It has placeholders for the ``owner`` and for the ``field`` that orders the stages.
    """

    labels: PodLabels = PodLabels()
    """The keys of labels on the kind's pods. All are "" for Jobs, whose pods are found by their owner reference."""

    followed_pods: str = ""
    """The label selector of those pods of the kind that Serried's controller watches; "" if it watches Jobs instead.

    The controller has to know when pods exist or run.
    """

    short_names: tuple[str, ...] = ()
    """The short names of the kind in kubectl, such as ``lws``."""

    api_version: str = field(init=False)
    """The ``apiVersion`` of the kind's objects."""

    gang_policy: str = field(init=False)
    """The value of the annotation ``gang-policy`` that makes the owner a gang, such as ``JobSetAsGang``."""

    word: str = field(init=False)
    """The kind in lower case, as kubectl takes it."""

    def __post_init__(self) -> None:
        """Set the fields that follow from the other ones.

        For instance for JobSet: ``api_version`` is ``jobset.x-k8s.io/v1alpha2``, ``gang_policy`` (the value of the
        annotation by which an author asks for gangs) is ``JobSetAsGang``, and ``word`` is ``jobset``, as in kubectl.
        """
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
        "so each of them with more than one pod is a separate gang",
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
        "so the workers of each replica are a gang without their leader",
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
"""The owner kinds other than Job, by kind. Serried watches each that the API server serves; none is required."""
