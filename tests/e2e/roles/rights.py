"""The rights of the shipped roles: what they are, and how one of them is taken away and given back."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import NamedTuple

from bench.cluster import Cluster
from bench.cluster.components import Name
from tests.support.cluster_stage import Raw, eventually

NAMESPACE = "serried-system"
_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"

PROCESSES: dict[str, Name] = {
    "serried": "extender",
    "serried-controller": "controller",
    "serried-scheduler": "scheduler",
}
"""The process of each account."""

_HOME = f"namespaces/{NAMESPACE}/roles"

ROLES = {
    "serried": (
        "clusterroles/serried-extender",
        "clusterroles/serried-extender-volumes-and-devices",
        f"{_HOME}/serried-extender",
        f"{_HOME}/serried-extender-election",
    ),
    "serried-controller": ("clusterroles/serried-controller", f"{_HOME}/serried-controller"),
    "serried-scheduler": (f"{_HOME}/serried-scheduler",),
}
"""The roles that are shipped for an account; the scheduler has those of Kubernetes beside it."""


class Grant(NamedTuple):
    """One right of an account: a verb on a resource, with its subresource, of an API group."""

    account: str
    verb: str
    group: str
    resource: str

    name: str = ""
    """The only object that it is about; "" for every one."""

    def __str__(self) -> str:
        resource = f"{self.resource}.{self.group}".rstrip(".")
        return " ".join(filter(None, (self.account, self.verb, resource, self.name)))

    def write(self) -> Raw:
        """The rule that grants it and nothing else."""
        rule: Raw = {"apiGroups": [self.group], "resources": [self.resource], "verbs": [self.verb]}
        return rule | ({"resourceNames": [self.name]} if self.name else {})


def list_grants(account: str, rules: Iterable[Raw]) -> Iterator[Grant]:
    """Yield the single rights that rules grant to an account."""
    for rule in rules:
        names = rule.get("resourceNames", ("",))
        for group, resource, verb, name in product(rule["apiGroups"], rule["resources"], rule["verbs"], names):
            yield Grant(account, verb, group, resource, name)


def leave_out(account: str, rules: Iterable[Raw], taken: Grant) -> list[Raw]:
    """Rules that grant the same, but for one right."""
    return [grant.write() for grant in list_grants(account, rules) if grant != taken]


class Rights:
    """The roles of one account as they are shipped, of which one right at a time is taken away."""

    def __init__(self, cluster: Cluster, account: str) -> None:
        self._api = cluster.api
        self._account = account
        paths = [f"{_RBAC}/{path}" for path in ROLES[account]]
        self._shipped: dict[str, Sequence[Raw]] = {path: self._api.get(path)["rules"] for path in paths}

    def take(self, grant: Grant) -> None:
        """Grant everything but this; returns when the API server goes by it."""
        for path, rules in self._shipped.items():
            self._write(path, leave_out(self._account, rules, grant))
        eventually(f"that nobody may {grant}", lambda: not self._is_allowed(grant))

    def give_back(self, grants: Sequence[Grant]) -> None:
        """Grant everything; returns when the API server goes by it for these."""
        for path, rules in self._shipped.items():
            self._write(path, rules)
        eventually(f"that one may {', '.join(map(str, grants))}", lambda: all(map(self._is_allowed, grants)))

    def _write(self, path: str, rules: Sequence[Raw]) -> None:
        self._api.patch(path, {"rules": list(rules)})

    def _is_allowed(self, grant: Grant) -> bool:
        resource, _, subresource = grant.resource.partition("/")
        attributes = {
            "verb": grant.verb, "group": grant.group, "resource": resource, "subresource": subresource,
            "namespace": NAMESPACE, "name": grant.name,
        }  # fmt: skip
        user = f"system:serviceaccount:{NAMESPACE}:{grant.account}"
        spec = {"user": user, "resourceAttributes": attributes}
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        return bool(self._api.post(_REVIEWS, body)["status"]["allowed"])
