"""Least privilege: what no role may ever say."""

from collections.abc import Iterator, Sequence
from typing import Any

from tests.unit.manifests.shipped import Document


def rules(documents: Sequence[Document]) -> Iterator[dict[str, Any]]:
    for document in documents:
        if document.kind in {"Role", "ClusterRole"}:
            yield from document.content["rules"]


def test_no_wildcards(documents: Sequence[Document]) -> None:
    for rule in rules(documents):
        for field in ("apiGroups", "resources", "verbs"):
            assert not any("*" in value for value in rule[field]), rule
        assert "nonResourceURLs" not in rule


def test_no_secrets_no_impersonation_no_escalation(documents: Sequence[Document]) -> None:
    for rule in rules(documents):
        assert not {"secrets", "serviceaccounts", "serviceaccounts/token", "pods/exec"} & set(rule["resources"])
        assert not {"impersonate", "escalate", "bind"} & set(rule["verbs"])


def test_pods_are_never_created_or_updated(documents: Sequence[Document]) -> None:
    for rule in rules(documents):
        if "pods" in rule["resources"]:
            assert set(rule["verbs"]) <= {"get", "list", "watch", "patch", "delete"}


def test_only_the_extender_deletes_pods_and_a_policy_says_which(documents: Sequence[Document]) -> None:
    roles = [document for document in documents if document.kind in {"Role", "ClusterRole"}]
    deleting = [
        role.name
        for role in roles
        for rule in role.content["rules"]
        if "pods" in rule["resources"] and "delete" in rule["verbs"]
    ]
    assert deleting == ["serried-extender"]
    (policy,) = [each for each in documents if each.name == "serried-extender-deletions" and each.kind[-6:] == "Policy"]
    (rule,) = policy.content["spec"]["matchConstraints"]["resourceRules"]
    assert (rule["resources"], rule["operations"]) == (["pods"], ["DELETE"])


def test_single_objects_are_named(documents: Sequence[Document]) -> None:
    for rule in rules(documents):
        if {"leases", "configmaps"} & set(rule["resources"]):
            assert rule.get("resourceNames") or rule["verbs"] == ["create"]


def test_only_pods_that_need_a_token_mount_one(documents: Sequence[Document]) -> None:
    accounts = [document.content for document in documents if document.kind == "ServiceAccount"]
    assert len(accounts) == 3
    assert all(account["automountServiceAccountToken"] is False for account in accounts)
