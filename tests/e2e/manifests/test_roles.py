"""An account may do its own work, and nothing else."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import pytest

from cli.check.checks import check_rights
from cli.check.observed import NEEDS, Need, list_rights
from tests.e2e.manifests.server import (
    CONTROLLER,
    EXTENDER,
    GROUP,
    KUSTOMIZE,
    NAMESPACE,
    SCHEDULER,
    Json,
    Server,
    eventually,
)
from tests.support.installations import shipped_installation

pytestmark = [pytest.mark.e2e, pytest.mark.full]


class Access(NamedTuple):
    user: str
    verb: str
    resource: str
    group: str = ""
    namespace: str = "default"
    name: str = ""

    def review(self) -> Json:
        resource, _, subresource = self.resource.partition("/")
        attributes = {
            "verb": self.verb, "group": self.group, "resource": resource, "subresource": subresource,
            "namespace": self.namespace, "name": self.name,
        }  # fmt: skip
        return {
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "spec": {"user": self.user, "groups": ["system:authenticated"], "resourceAttributes": attributes},
        }  # fmt: skip


LEASES = "coordination.k8s.io"
API_GROUPS = (GROUP, "scheduling.k8s.io")
COMPATIBLE = "scheduling.x-k8s.io"
NAMED_LEVELS = (("topologies", "kueue.x-k8s.io"), ("clustertopologybindings", "grove.io"))
PARENTS = (("jobsets", "jobset.x-k8s.io"), ("leaderworkersets", "leaderworkerset.x-k8s.io"))

ALLOWED = [
    *(Access(EXTENDER, verb, "nodes") for verb in ("list", "watch")),
    *(Access(EXTENDER, verb, "pods") for verb in ("get", "list", "watch")),
    *(
        Access(EXTENDER, verb, what)
        for what in ("persistentvolumes", "persistentvolumeclaims")
        for verb in ("list", "watch")
    ),
    *(
        Access(EXTENDER, verb, what, "storage.k8s.io")
        for what in ("storageclasses", "csistoragecapacities", "csidrivers", "csinodes")
        for verb in ("list", "watch")
    ),
    *(
        Access(EXTENDER, verb, what, "resource.k8s.io")
        for what in ("deviceclasses", "resourceslices", "resourceclaims", "devicetaintrules")
        for verb in ("list", "watch")
    ),
    *(Access(EXTENDER, verb, "namespaces") for verb in ("list", "watch")),
    *(Access(EXTENDER, verb, "jobs", "batch") for verb in ("list", "watch")),
    *(
        Access(EXTENDER, verb, what, group)
        for group in API_GROUPS
        for what in ("podgroups", "workloads")
        for verb in ("list", "watch")
    ),
    *(Access(EXTENDER, verb, "compositepodgroups", group) for group in API_GROUPS for verb in ("list", "watch")),
    *(Access(CONTROLLER, verb, "compositepodgroups", GROUP) for verb in ("list", "watch")),
    *(Access(EXTENDER, verb, "podgroups", COMPATIBLE) for verb in ("list", "watch")),
    *(Access(EXTENDER, "patch", "podgroups/status", group) for group in API_GROUPS),
    *(Access(EXTENDER, verb, "reservations", GROUP) for verb in ("get", "list", "create", "update", "delete")),
    *(Access(EXTENDER, verb, "topologylevels", GROUP) for verb in ("list", "watch", "create")),
    Access(EXTENDER, "patch", "topologylevels/status", GROUP),
    *(Access(CONTROLLER, verb, "topologylevels", GROUP) for verb in ("list", "watch")),
    *(Access(EXTENDER, verb, what, group) for what, group in NAMED_LEVELS for verb in ("list", "watch")),
    Access(EXTENDER, "create", "pods/binding"),
    Access(EXTENDER, "patch", "pods/status"),
    Access(EXTENDER, "patch", "pods"),
    Access(EXTENDER, "delete", "pods"),
    Access(EXTENDER, "create", "pods/eviction"),
    *(Access(EXTENDER, verb, "poddisruptionbudgets", "policy") for verb in ("list", "watch")),
    Access(EXTENDER, "create", "events"),
    Access(EXTENDER, "patch", "events"),
    *(Access(EXTENDER, verb, "leases", LEASES, NAMESPACE, "serried") for verb in ("list", "watch")),
    *(Access(EXTENDER, verb, "configmaps", "", NAMESPACE, "serried-hold") for verb in ("patch",)),
    Access(EXTENDER, "create", "podtemplates"),
    Access(EXTENDER, "list", "nodepools", "karpenter.sh", namespace=""),
    Access(EXTENDER, "get", "configmaps", "", "kube-system", "cluster-autoscaler-status"),
    Access(EXTENDER, "list", "events"),
    *(Access(EXTENDER, verb, "provisioningrequests", "autoscaling.x-k8s.io") for verb in ("get", "create", "delete")),
    *(
        Access(user, "create", what, f"{group}.k8s.io", "")
        for user in (EXTENDER, CONTROLLER)
        for what, group in (("tokenreviews", "authentication"), ("subjectaccessreviews", "authorization"))
    ),
    *(Access(CONTROLLER, verb, "jobs", "batch") for verb in ("list", "watch")),
    *(Access(CONTROLLER, verb, "pods") for verb in ("list", "watch")),
    *(
        Access(CONTROLLER, verb, what, group)
        for group in API_GROUPS
        for what in ("podgroups", "workloads")
        for verb in ("list", "watch", "create", "patch", "delete")
    ),
    *(
        Access(user, verb, "priorityclasses", "scheduling.k8s.io", "")
        for user in (EXTENDER, CONTROLLER)
        for verb in ("list", "watch")
    ),
    Access(CONTROLLER, "patch", "compositepodgroups", GROUP),
    *(Access(CONTROLLER, "update", f"{what}/priority", GROUP) for what in ("podgroups", "compositepodgroups")),
    *(
        Access(user, verb, what, group)
        for user in (EXTENDER, CONTROLLER)
        for what, group in PARENTS
        for verb in ("list", "watch")
    ),
    Access(CONTROLLER, "update", "jobs/finalizers", "batch"),
    Access(CONTROLLER, "create", "events"),
    Access(SCHEDULER, "create", "pods/binding"),
    Access(SCHEDULER, "delete", "pods"),
    Access(SCHEDULER, "update", "persistentvolumeclaims"),
    Access(SCHEDULER, "create", "leases", LEASES, NAMESPACE),
    *(Access(SCHEDULER, verb, "leases", LEASES, NAMESPACE, "serried") for verb in ("get", "update")),
    Access(SCHEDULER, "get", "configmaps", "", "kube-system", "extension-apiserver-authentication"),
]
REFUSED = [
    # What the watches show is never read one by one.
    *(Access(EXTENDER, "get", what) for what in ("nodes", "persistentvolumes", "persistentvolumeclaims")),
    *(Access(user, "get", "jobs", "batch") for user in (EXTENDER, CONTROLLER)),
    *(
        Access(user, "get", what, group)
        for user in (EXTENDER, CONTROLLER)
        for group in API_GROUPS
        for what in ("podgroups", "workloads", "compositepodgroups")
    ),
    *(Access(EXTENDER, verb, "reservations", GROUP) for verb in ("watch", "patch")),
    *(Access(user, verb, "topologylevels", GROUP) for user in (EXTENDER, CONTROLLER) for verb in ("patch", "delete")),
    Access(CONTROLLER, "patch", "topologylevels/status", GROUP),
    Access(EXTENDER, "get", "leases", LEASES, NAMESPACE, "serried"),
    Access(EXTENDER, "get", "configmaps", "", NAMESPACE, "serried-hold"),
    Access(CONTROLLER, "get", "pods"),
    *(
        Access(user, verb, "secrets", "", namespace)
        for user in (EXTENDER, CONTROLLER, SCHEDULER)
        for verb in ("get", "list")
        for namespace in ("default", NAMESPACE, "kube-system")
    ),
    *(Access(EXTENDER, verb, "pods") for verb in ("create", "update")),
    Access(EXTENDER, "get", "configmaps", "", "kube-system", "any-other"),
    *(Access(user, "create", "serviceaccounts/token", "", NAMESPACE) for user in (EXTENDER, CONTROLLER, SCHEDULER)),
    Access(EXTENDER, "patch", "nodes", namespace=""),
    *(Access(EXTENDER, verb, "workloads", group) for group in API_GROUPS for verb in ("create", "update", "patch")),
    *(Access(EXTENDER, verb, "podgroups", group) for group in API_GROUPS for verb in ("create", "patch", "delete")),
    *(Access(user, "create", "compositepodgroups", GROUP) for user in (EXTENDER, CONTROLLER)),
    *(Access(user, "update", "podgroups/priority", GROUP) for user in (EXTENDER, SCHEDULER)),
    Access(EXTENDER, "patch", "compositepodgroups", GROUP),
    Access(CONTROLLER, "patch", "compositepodgroups", "scheduling.k8s.io"),
    Access(EXTENDER, "patch", "jobs", "batch"),
    Access(EXTENDER, "patch", "podgroups/status", COMPATIBLE),
    *(
        Access(EXTENDER, verb, "leases", LEASES, NAMESPACE, "serried")
        for verb in ("create", "update", "patch", "delete")
    ),
    Access(EXTENDER, "get", "leases", LEASES, NAMESPACE, "other"),
    Access(EXTENDER, "get", "configmaps", "", NAMESPACE, "other"),
    Access(EXTENDER, "delete", "configmaps", "", NAMESPACE, "serried-hold"),
    Access(EXTENDER, "get", "configmaps", "", "default", "serried-hold"),
    Access(CONTROLLER, "patch", "pods"),
    Access(CONTROLLER, "create", "pods/binding"),
    Access(CONTROLLER, "patch", "jobs", "batch"),
    Access(CONTROLLER, "update", "jobs/status", "batch"),
    Access(CONTROLLER, "create", "reservations", GROUP),
    Access(CONTROLLER, "patch", "podgroups/status", GROUP),
    *(Access(user, "patch", what, group) for user in (EXTENDER, CONTROLLER) for what, group in PARENTS),
    *(Access(CONTROLLER, verb, "compositepodgroups", "scheduling.k8s.io") for verb in ("list", "watch")),
    Access(CONTROLLER, "list", "nodes", namespace=""),
    Access(SCHEDULER, "update", "leases", LEASES, NAMESPACE, "other"),
    *(Access(SCHEDULER, verb, "leases", LEASES, NAMESPACE, "serried") for verb in ("list", "watch")),
    Access(SCHEDULER, "create", "reservations", GROUP),
    Access(SCHEDULER, "create", "pods"),
    Access(SCHEDULER, "patch", "jobs", "batch"),
]


def apply_roles(server: Server) -> None:
    """The roles as they are shipped."""
    for part in ("rbac", "volumes-and-devices"):
        server.apply(part)


@pytest.fixture
def apart(server: Server) -> Iterator[Server]:
    """In the base one Pod, hence one account, is scheduler and extender: here each stands for itself."""
    apply_roles(server)
    server.run("delete", "--ignore-not-found", "-f", str(KUSTOMIZE / "base" / "sidecar-rbac.yaml"))
    yield server
    server.apply("overlays/isolated")


def test_each_account_may_do_its_work_and_nothing_else(apart: Server) -> None:
    asked = [*ALLOWED, *REFUSED]

    def wrong() -> set[Access]:
        answers = apart.write("create", *(access.review() for access in asked))
        allowed = {access for access, answer in zip(asked, answers, strict=True) if answer["status"]["allowed"]}
        return allowed ^ set(ALLOWED)

    eventually(lambda: not wrong())


ROLES = {
    EXTENDER: (
        ("clusterrole", "serried-extender"),
        ("clusterrole", "serried-extender-volumes-and-devices"),
        ("role", "serried-extender"),
    ),
    CONTROLLER: (("clusterrole", "serried-controller"), ("role", "serried-controller")),
}


def take_rules(server: Server, user: str, need: Need) -> None:
    """Take the rules that grant some of this out of the roles of an account."""
    for kind, name in ROLES[user]:
        place = ("-n", NAMESPACE) if kind == "role" else ()
        rules = server.get(kind, name, *place)["rules"]
        left = [rule for rule in rules if not _grants(rule, need)]
        server.patch(f"{kind}/{name}", {"rules": left}, *place)


def is_refused(server: Server, reviews: list[Json]) -> bool:
    return not any(each["status"]["allowed"] for each in server.write("create", *reviews))


def _grants(rule: Json, need: Need) -> bool:
    return any(
        right.group in rule["apiGroups"] and right.resource in rule["resources"] and right.verb in rule["verbs"]
        for right in list_rights({"": [need]})
    )


@pytest.mark.parametrize("bare", ["fallback"], indirect=True)
@pytest.mark.parametrize("user", ROLES)
def test_without_a_rule_its_rights_are_refused_and_the_check_says_what_follows(apart: Server, user: str) -> None:
    account = user.rpartition(":")[2]
    for need in NEEDS[account]:
        apply_roles(apart)
        take_rules(apart, user, need)
        rights = [
            right for right, of_need in list_rights(NEEDS).items() if right.account == account and of_need is need
        ]
        home = NAMESPACE if need.home else ""
        reviews = [Access(user, r.verb, r.resource, r.group, home, r.name).review() for r in rights]
        eventually(partial(is_refused, apart, reviews))
        seen = replace(shipped_installation(), denied=frozenset(rights), selfcheck=None)
        assert any(need.without in finding.what for finding in check_rights(seen)), need


GROUP_KINDS = ("workloads", "podgroups", "compositepodgroups")
READS = [
    Access("ann", verb, what, GROUP)
    for what in (*GROUP_KINDS, "podgroups/status", "compositepodgroups/status")
    for verb in ("get", "list", "watch")
]
PEOPLE = {
    "view": READS,
    "edit": [
        *READS,
        *(
            Access("ann", verb, what, GROUP)
            for what in GROUP_KINDS
            for verb in ("create", "update", "patch", "delete", "deletecollection")
        ),
    ],
}
PEOPLE["admin"] = PEOPLE["edit"]
NOBODYS = [
    *(Access("ann", "update", f"{what}/priority", GROUP) for what in ("podgroups", "compositepodgroups")),
    *(Access("ann", "patch", f"{what}/status", GROUP) for what in ("podgroups", "compositepodgroups")),
    *(Access("ann", verb, "reservations", GROUP) for verb in ("get", "list", "create", "delete")),
    *(Access("ann", verb, what, GROUP, namespace="other") for what in GROUP_KINDS for verb in ("get", "create")),
]


@pytest.mark.parametrize("role", PEOPLE)
def test_a_user_with_a_role_in_a_namespace_has_it_for_the_groups_there(bare: Server, role: str) -> None:
    bare.apply("crds")
    bare.apply("rbac")
    bare.run("create", "rolebinding", f"ann-{role}", f"--clusterrole={role}", "--user=ann", "-n", "default")
    asked = [*PEOPLE["edit"], *NOBODYS]

    def granted() -> set[Access]:
        answers = bare.write("create", *(access.review() for access in asked))
        return {access for access, answer in zip(asked, answers, strict=True) if answer["status"]["allowed"]}

    try:
        eventually(lambda: granted() == set(PEOPLE[role]))
    finally:
        bare.run("delete", "rolebinding", f"ann-{role}", "-n", "default")


def test_the_shared_pod_s_account_may_do_both_jobs(server: Server) -> None:
    asked = [access for access in ALLOWED if access.user in {EXTENDER, SCHEDULER}]
    reviews = [access._replace(user=EXTENDER).review() for access in asked]
    eventually(lambda: all(answer["status"]["allowed"] for answer in server.write("create", *reviews)))
