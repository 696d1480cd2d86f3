"""The rights that the shipped roles grant, and what does not work without each.

A test holds the lists to the roles in `manifests/kustomize`.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

EXTENDER = "serried"
CONTROLLER = "serried-controller"

_WORKLOAD_API = ("scheduling.k8s.io", "scheduling.serried.dev")


class Right(NamedTuple):
    """One verb on one resource for one ServiceAccount."""

    account: str
    verb: str
    group: str
    resource: str
    """With its subresource, if it is about one: pods/binding."""

    name: str = ""
    """The only object that it is about; "" for every one."""

    home: bool = False
    """Whether it is about the namespace of the ServiceAccount alone."""

    def __str__(self) -> str:
        resource = f"{self.resource}.{self.group}" if self.group else self.resource
        return f"{self.verb} {resource}{f' {self.name}' if self.name else ''}"


class Need(NamedTuple):
    """What several rights are for."""

    verbs: tuple[str, ...]
    groups: tuple[str, ...]
    resources: tuple[str, ...]

    without: str
    """What follows where they are missing."""

    vital: bool = True
    """Whether gangs do not start as promised without them."""

    name: str = ""
    home: bool = False


_REVIEWS = (
    Need(
        ("create",),
        ("authentication.k8s.io",),
        ("tokenreviews",),
        "nobody may look at metrics and debug pages over the network",
        vital=False,
    ),
    Need(
        ("create",),
        ("authorization.k8s.io",),
        ("subjectaccessreviews",),
        "nobody may look at metrics and debug pages over the network",
        vital=False,
    ),
)

_FOLLOW = ("list", "watch")
_CORE = ("",)

NEEDS: dict[str, tuple[Need, ...]] = {
    EXTENDER: (
        Need(_FOLLOW, _CORE, ("nodes",), "nothing is planned"),
        Need(("get", *_FOLLOW), _CORE, ("pods",), "nothing is planned"),
        Need(
            _FOLLOW,
            _CORE,
            ("persistentvolumes", "persistentvolumeclaims"),
            "only the scheduler's refusals tell which nodes reach a volume",
            vital=False,
        ),
        Need(
            _FOLLOW,
            ("resource.k8s.io",),
            ("deviceclasses",),
            "only the scheduler knows which extended resources a node has without showing them",
            vital=False,
        ),
        Need(_FOLLOW, ("batch",), ("jobs",), "nothing is planned, and pods of Jobs wait as JobUnknown"),
        Need(_FOLLOW, ("jobset.x-k8s.io",), ("jobsets",), "JobSets are no gangs", vital=False),
        Need(_FOLLOW, ("leaderworkerset.x-k8s.io",), ("leaderworkersets",), "their replicas are no gangs", vital=False),
        Need(
            _FOLLOW, _WORKLOAD_API, ("podgroups", "workloads", "compositepodgroups"), "gangs wait: WorkloadAPIMissing"
        ),
        Need(_FOLLOW, ("scheduling.k8s.io",), ("priorityclasses",), "the priority of a group's class does not count"),
        Need(
            _FOLLOW,
            ("scheduling.x-k8s.io",),
            ("podgroups",),
            "PodGroups of scheduler-plugins are no gangs",
            vital=False,
        ),
        Need(
            ("patch",),
            _WORKLOAD_API,
            ("podgroups/status", "compositepodgroups/status"),
            "no condition says why a gang waits",
        ),
        Need(
            ("get", "list", "create", "update", "delete"),
            ("scheduling.serried.dev",),
            ("reservations",),
            "no plan can be recorded, so no gang starts",
        ),
        Need(("create",), _CORE, ("pods/binding",), "no member is bound"),
        Need(("patch",), _CORE, ("pods/status",), "members are not nominated, so the scheduler is not steered"),
        Need(("patch",), _CORE, ("pods",), "scheduling gates are not lifted, and members not woken"),
        Need(("delete",), _CORE, ("pods",), "a gang of disruption mode all goes in part"),
        Need(
            _FOLLOW,
            ("policy",),
            ("poddisruptionbudgets",),
            "only dry runs tell which pods may be evicted",
            vital=False,
        ),
        Need(("create",), _CORE, ("pods/eviction",), "nobody is evicted for a gang of higher priority"),
        Need(("create", "patch"), _CORE, ("events",), "no event says why a gang waits", vital=False),
        Need(_FOLLOW, ("coordination.k8s.io",), ("leases",), "the extender never leads", name="serried", home=True),
        Need(
            ("patch",),
            _CORE,
            ("configmaps",),
            "new members are never held by gate",
            vital=False,
            name="serried-hold",
            home=True,
        ),
        Need(
            ("create",),
            _CORE,
            ("podtemplates",),
            "nobody knows whether pods keep the field that names their group",
            vital=False,
            home=True,
        ),
        *_REVIEWS,
    ),
    CONTROLLER: (
        Need(_FOLLOW, _CORE, ("pods",), "PodGroups that are being deleted are not protected"),
        Need(_FOLLOW, ("batch",), ("jobs",), "no Job becomes a gang"),
        Need(_FOLLOW, ("jobset.x-k8s.io",), ("jobsets",), "no JobSet becomes a gang", vital=False),
        Need(_FOLLOW, ("leaderworkerset.x-k8s.io",), ("leaderworkersets",), "no replica becomes a gang", vital=False),
        Need(
            ("update",),
            ("batch",),
            ("jobs/finalizers",),
            "no Job becomes a gang where OwnerReferencesPermissionEnforcement is on",
            vital=False,
        ),
        Need(
            ("update",),
            ("jobset.x-k8s.io",),
            ("jobsets/finalizers",),
            "no JobSet becomes a gang where OwnerReferencesPermissionEnforcement is on",
            vital=False,
        ),
        Need(
            ("update",),
            ("leaderworkerset.x-k8s.io",),
            ("leaderworkersets/finalizers",),
            "no replica becomes a gang where OwnerReferencesPermissionEnforcement is on",
            vital=False,
        ),
        Need(
            (*_FOLLOW, "create", "delete", "patch"),
            _WORKLOAD_API,
            ("workloads", "podgroups"),
            "Jobs get no PodGroup, or keep an outdated one",
        ),
        Need(
            _FOLLOW,
            ("scheduling.serried.dev",),
            ("compositepodgroups",),
            "groups of a tree get no priority",
            vital=False,
        ),
        Need(_FOLLOW, ("scheduling.k8s.io",), ("priorityclasses",), "groups get no priority at the fallback level"),
        Need(
            ("patch",),
            ("scheduling.serried.dev",),
            ("compositepodgroups",),
            "groups of a tree get no priority",
            vital=False,
        ),
        Need(
            ("update",),
            ("scheduling.serried.dev",),
            ("podgroups/priority", "compositepodgroups/priority"),
            "groups get no priority at the fallback level",
        ),
        Need(("create", "patch"), _CORE, ("events",), "no event says what a Job lacks", vital=False),
        Need(("create",), ("coordination.k8s.io",), ("leases",), "no controller begins to work", home=True),
        Need(
            ("get", "update"),
            ("coordination.k8s.io",),
            ("leases",),
            "no controller begins to work",
            name="serried-controller",
            home=True,
        ),
        *_REVIEWS,
    ),
}

_LEADS = "no extender begins to lead"
_SERVED = "the Service leads to no extender"

ELECTING_NEEDS = {
    **NEEDS,
    EXTENDER: (
        *(need for need in NEEDS[EXTENDER] if need.resources != ("leases",)),
        Need(("create",), ("coordination.k8s.io",), ("leases",), _LEADS, home=True),
        Need(
            ("get", *_FOLLOW, "update"),
            ("coordination.k8s.io",),
            ("leases",),
            _LEADS,
            name="serried-extender",
            home=True,
        ),
        Need(("create",), ("discovery.k8s.io",), ("endpointslices",), _SERVED, home=True),
        Need(("get", "patch"), ("discovery.k8s.io",), ("endpointslices",), _SERVED, name="serried-verbs", home=True),
    ),
}
"""The same where the extenders elect their leader themselves (``--lease-mode hold``)."""


def list_rights(needs_by_account: Mapping[str, Iterable[Need]]) -> dict[Right, Need]:
    """Every right, and what it is for; the first need where several have it."""
    rights: dict[Right, Need] = {}
    for account, needs in needs_by_account.items():
        for need in needs:
            for group in need.groups:
                for resource in need.resources:
                    for verb in need.verbs:
                        rights.setdefault(Right(account, verb, group, resource, need.name, need.home), need)
    return rights
