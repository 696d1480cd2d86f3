"""The manifests name the kinds of owners as the table does."""

from collections.abc import Sequence
from typing import Any

from serried.api.job import GangPolicy
from serried.api.kinds import OWNER_KINDS, PARENTS
from tests.unit.manifests.shipped import Document

RESOURCES = {(row.group, row.plural) for row in OWNER_KINDS.values()}
PROCESSES = {"serried-extender": {"list", "watch"}, "serried-controller": {"list", "watch"}}


def list_resources(rules: Sequence[Any], verbs: frozenset[str] = frozenset()) -> set[tuple[str, str]]:
    """Groups and resources of some rules, those that have all of these verbs."""
    return {
        (group, resource)
        for rule in rules
        if verbs <= set(rule.get("verbs", ()))
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def find(documents: Sequence[Document], kind: str, name: str) -> dict[str, Any]:
    (found,) = [each.content for each in documents if (each.kind, each.name) == (kind, name)]
    return found


def test_both_processes_may_follow_each_kind_and_the_controller_may_make_what_its_objects_control(
    documents: Sequence[Document],
) -> None:
    for name, verbs in PROCESSES.items():
        rules = find(documents, "ClusterRole", name)["rules"]
        assert list_resources(rules, frozenset(verbs)) >= RESOURCES
    rules = find(documents, "ClusterRole", "serried-controller")["rules"]
    made = list_resources(rules, frozenset({"update"}))
    assert made >= {(group, f"{plural}/finalizers") for group, plural in RESOURCES}


def test_the_policy_about_annotations_judges_each_kind_and_the_words_of_its_gang_policy(
    documents: Sequence[Document],
) -> None:
    policy = find(documents, "ValidatingAdmissionPolicy", "serried-annotations")["spec"]
    assert list_resources(policy["matchConstraints"]["resourceRules"]) >= RESOURCES
    (said,) = [each["expression"] for each in policy["variables"] if each["name"] == "policies"]
    cases = [
        f"request.resource.resource == '{row.plural}' ? ['{row.gang_policy}', '{GangPolicy.NO_GANG.value}']"
        for row in PARENTS.values()
    ]
    assert said == " : ".join([*cases, "[]"])


def test_the_marker_is_for_all_pods_that_could_be_of_a_parent(documents: Sequence[Document]) -> None:
    policies = [each.content for each in documents if each.kind == "MutatingAdmissionPolicy" and "marker" in each.name]
    assert policies
    for policy in policies:
        said = {each["name"]: each["expression"] for each in policy["spec"]["matchConditions"]}["could-be-a-member"]
        for row in PARENTS.values():
            assert f"object.metadata.?labels[?'{row.labels.name}'].hasValue()" in said
