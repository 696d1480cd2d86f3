"""Least privilege: what no role may ever say."""

from collections.abc import Iterator, Sequence
from typing import Any

from cli.check.checks import POLICIES
from serried.feed import OPTIONAL_KINDS, Kind
from tests.unit.manifests.shipped import MANIFESTS, Document

READERS = {"serried-debug-reader", "serried-metrics-reader", "serried-commands"}
"""Roles of people and of Prometheus; no process of ours has one."""


def rules(documents: Sequence[Document]) -> Iterator[dict[str, Any]]:
    """Yield the rules of the roles of our own processes."""
    for document in documents:
        if document.kind in {"Role", "ClusterRole"} and document.name not in READERS:
            yield from document.content["rules"]


def test_readers_read_and_no_process_of_ours_is_one(documents: Sequence[Document]) -> None:
    bindings = [each.content for each in documents if each.kind.endswith("RoleBinding")]
    bound = {
        (each["roleRef"]["name"], subject["name"])
        for each in bindings
        if each["roleRef"]["name"] in READERS
        for subject in each["subjects"]
    }
    assert bound == {(name, name) for name in ("serried-debug-reader", "serried-metrics-reader")}


def test_no_wildcards(documents: Sequence[Document]) -> None:
    for rule in rules(documents):
        for field in ("apiGroups", "resources", "verbs"):
            assert not any("*" in value for value in rule.get(field, ())), rule
        assert "*" not in rule.get("nonResourceURLs", ())


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
        if "pods" in rule.get("resources", ()) and "delete" in rule["verbs"]
    ]
    assert deleting == ["serried-extender"]
    (policy,) = [each for each in documents if each.name == "serried-extender-deletions" and each.kind[-6:] == "Policy"]
    (rule,) = policy.content["spec"]["matchConstraints"]["resourceRules"]
    assert (rule["resources"], rule["operations"]) == (["pods"], ["DELETE"])


PARTS_OF_PLANS = (
    *(Kind.VOLUMES, Kind.VOLUME_CLAIMS, Kind.STORAGE_CLASSES),
    *(Kind.STORAGE_CAPACITIES, Kind.CSI_DRIVERS, Kind.CSI_NODES),
    *(Kind.DEVICE_CLASSES, Kind.RESOURCE_SLICES, Kind.RESOURCE_CLAIMS, Kind.DEVICE_TAINT_RULES),
)


def test_storage_and_devices_can_be_left_out_of_the_rights_by_one_role(documents: Sequence[Document]) -> None:
    granting = {
        (document.name, resource)
        for document in documents
        if document.kind in {"Role", "ClusterRole"}
        for rule in document.content["rules"]
        for resource in rule.get("resources", ())
        if resource in set(PARTS_OF_PLANS)
    }
    assert granting == {("serried-extender-volumes-and-devices", str(kind)) for kind in PARTS_OF_PLANS}
    assert set(PARTS_OF_PLANS) <= OPTIONAL_KINDS


def test_the_page_about_rights_names_each_account_and_all_that_is_written(documents: Sequence[Document]) -> None:
    page = (MANIFESTS.parent / "docs" / "operations.md").read_text()
    table = page.split("## What may Serried do in my cluster?", 1)[1].split("\n## ", 1)[0]
    written = {
        resource
        for rule in rules(documents)
        if not set(rule["verbs"]) <= {"get", "list", "watch"}
        for resource in rule["resources"]
    }
    by_another_name = {"leases": "leases", "configmaps": "`serried-hold`", "endpointslices": "`serried-verbs`"}
    finalizers = {each for each in written if each.endswith("/finalizers")} - {"jobs/finalizers"}
    for resource in written - finalizers:
        assert by_another_name.get(resource, f"`{resource}`") in table, resource
    about_us = "request.userInfo.username == 'system:serviceaccount:"
    narrowing = {each.name for each in documents if each.name in POLICIES and about_us in str(each.content)}
    assert narrowing
    assert all(f"`{name}`" in table for name in narrowing)


RESERVATION_WRITES = {"create", "update", "delete"}


def grants_on_reservations(document: Document) -> set[str]:
    """The verbs that a role has on Reservations, beside reading them."""
    rules = [rule for rule in document.content["rules"] if "reservations" in rule.get("resources", ())]
    return {verb for rule in rules for verb in rule["verbs"]} - {"get", "list", "watch"}


def test_only_the_extender_writes_reservations_and_in_the_whole_cluster(documents: Sequence[Document]) -> None:
    """The policy asks for the right in the whole cluster: a Role would not do, whatever the shape of installation."""
    roles = [document for document in documents if document.kind in {"Role", "ClusterRole"}]
    writing = {(role.kind, role.name): grants_on_reservations(role) for role in roles if grants_on_reservations(role)}
    assert writing == {("ClusterRole", "serried-extender"): RESERVATION_WRITES}
    bound = [
        each.content for each in documents if each.kind == "ClusterRoleBinding" and each.name == "serried-extender"
    ]
    ((subject,),) = [each["subjects"] for each in bound if each["roleRef"]["name"] == "serried-extender"]
    pods = [each.content["spec"]["template"]["spec"] for each in documents if each.kind == "Deployment"]
    extenders = {
        pod["serviceAccountName"]
        for pod in pods
        for container in (*pod.get("initContainers", ()), *pod["containers"])
        if "extender" in str(container.get("command", ()))
    }
    assert extenders == {subject["name"]}


def test_a_policy_asks_for_each_write_of_a_reservation(documents: Sequence[Document]) -> None:
    (policy,) = [each for each in documents if each.name == "serried-reservations" and each.kind[-6:] == "Policy"]
    spec = policy.content["spec"]
    (rule,) = spec["matchConstraints"]["resourceRules"]
    assert (rule["apiGroups"], rule["apiVersions"]) == (["scheduling.serried.dev"], ["*"])
    assert (rule["resources"], rule["operations"]) == (["reservations"], ["CREATE", "UPDATE", "DELETE"])
    assert spec["failurePolicy"] == "Fail"
    assert not spec.get("matchConditions")
    (validation,) = spec["validations"]
    # Without a namespace a check is about the whole cluster; a role in a namespace does not give it.
    assert "authorizer.group('scheduling.serried.dev').resource('reservations').check(" in validation["expression"]
    assert ".namespace(" not in validation["expression"]
    assert not validation["expression"].startswith("true")


def test_single_objects_are_named(documents: Sequence[Document]) -> None:
    for rule in rules(documents):
        if {"leases", "configmaps"} & set(rule["resources"]):
            assert rule.get("resourceNames") or rule["verbs"] == ["create"]


def test_all_that_anybody_may_do_with_a_lease_goes_by_the_level_of_elections(documents: Sequence[Document]) -> None:
    allowed = [set(rule["verbs"]) for rule in rules(documents) if "leases" in rule["resources"]]
    (flow,) = [each.content["spec"] for each in documents if each.name == "serried-leader-election"]
    ((served,),) = [rule["resourceRules"] for rule in flow["rules"]]
    assert set().union(*allowed) <= set(served["verbs"])


def test_only_pods_that_need_a_token_mount_one(documents: Sequence[Document]) -> None:
    accounts = [document.content for document in documents if document.kind == "ServiceAccount"]
    assert len(accounts) == 5
    assert all(account["automountServiceAccountToken"] is False for account in accounts)
