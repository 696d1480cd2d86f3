"""The field that the fallback API has beyond scheduling.k8s.io: ``schedulingConstraints.preferredTopology``."""

from typing import Any, NamedTuple

import pytest

from tests.e2e.manifests.endpoint import Endpoint, ours
from tests.e2e.manifests.objects import branch, composite, deep, gang, largest, template, tree, workload
from tests.e2e.manifests.server import Json, Server, changed

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.full,
    pytest.mark.parametrize("bare", ["fallback"], indirect=True, scope="session"),
]


def preferred(*levels: Json, **others: Any) -> Json:
    """A group's or a template's field."""
    return {"schedulingConstraints": {"preferredTopology": list(levels), **others}}


class Rule(NamedTuple):
    """Levels that are refused, and the words for it: of a PodGroup, and of a template where they are others."""

    sentence: str
    levels: list[Json]
    message: str
    of_template: str = ""


NO_KEY, PATTERN = "must be a label key", "should match '^"
RULES = [
    Rule("five levels", [{"key": key} for key in "abcde"], "must have at most 4 items"),
    Rule("a level twice", [{"key": "a"}, {"key": "a", "waitSeconds": 5}], "no key may be named twice"),
    Rule("a level without key", [{"waitSeconds": 5}], "key: Required value"),
    Rule("an empty key", [{"key": ""}], "should be at least 1 chars long"),
    Rule("a key of two words", [{"key": "my rack"}], NO_KEY, PATTERN),
    Rule("a key in capitals", [{"key": "Example.com/rack"}], NO_KEY, PATTERN),
    Rule("a key of two slashes", [{"key": "a/b/c"}], NO_KEY, PATTERN),
    Rule("a key of 64 characters", [{"key": "a" * 64}], NO_KEY, PATTERN),
    Rule("a key of a long prefix", [{"key": "a" * 254 + "/rack"}], NO_KEY, "253 characters"),
    Rule("a negative wait", [{"key": "a", "waitSeconds": -1}], "should be greater than or equal to 0"),
    Rule("a wait of more than a week", [{"key": "a", "waitSeconds": 604801}], "should be less than or equal to 604800"),
    Rule("a wait in words", [{"key": "a", "waitSeconds": "5m"}], "must be of type integer"),
    Rule("an unknown word", [{"key": "a", "wait": 5}], "unknown field"),
]
LEVELS: list[Json] = [
    {"key": "example.com/rack", "waitSeconds": 604800},
    {"key": "block", "waitSeconds": 0},
    {"key": "room"},
    {"key": "zone"},
]
TOPOLOGY = [{"key": "topology.kubernetes.io/region"}]


@pytest.fixture(scope="session")
def api(server: Server) -> Endpoint:
    return ours(server.cluster)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.sentence)
def test_a_pod_group_is_refused_with_a_reason(api: Endpoint, rule: Rule) -> None:
    assert rule.message in api.refusal(gang(**preferred(*rule.levels)))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.sentence)
def test_a_template_is_refused_with_a_reason_at_the_top_and_at_the_bottom(api: Endpoint, rule: Rule) -> None:
    bad = template(**preferred(*rule.levels))
    for item in (workload(bad), tree(deep(3, bad))):
        assert (rule.of_template or rule.message) in api.refusal(item)


@pytest.mark.parametrize(
    "item",
    [
        pytest.param(gang("choosy", **preferred(*LEVELS, topology=TOPOLOGY)), id="a PodGroup"),
        pytest.param(gang("choosy", **preferred(*LEVELS)), id="a PodGroup without a required key"),
        pytest.param(workload(template(**preferred(*LEVELS, topology=TOPOLOGY)), name="choosy"), id="a template"),
        pytest.param(tree(deep(3, template(**preferred(*LEVELS))), name="choosy"), id="a template at the bottom"),
    ],
)
def test_four_levels_in_their_order_are_kept_as_they_are(api: Endpoint, item: Json) -> None:
    taken = api.rehearse(item)["spec"]
    assert {**taken, "disruptionMode": None} == {**item["spec"], "disruptionMode": None}


@pytest.mark.parametrize(
    ("item", "path"),
    [
        pytest.param(gang("fixed", **preferred(*LEVELS)), "", id="a PodGroup"),
        pytest.param(workload(template(**preferred(*LEVELS)), name="fixed"), "podGroupTemplates.0.", id="a template"),
    ],
)
def test_it_cannot_be_changed(api: Endpoint, item: Json, path: str) -> None:
    stored = api.keep(item)
    field = f"{path}schedulingConstraints.preferredTopology"
    for value in ([*LEVELS[1:], LEVELS[0]], LEVELS[:2], None):
        assert "schedulingConstraints is immutable" in api.refusal(changed(stored, field, value), "replace")


def test_it_cannot_be_given_later(api: Endpoint) -> None:
    wanted = changed(api.keep(gang("plain")), "schedulingConstraints", preferred(*LEVELS)["schedulingConstraints"])
    assert "schedulingConstraints is immutable" in api.refusal(wanted, "replace")


@pytest.mark.parametrize(
    "item", [composite(**preferred(*LEVELS)), tree(branch("c", template(), **preferred(*LEVELS)))], ids=["kind", "tree"]
)
def test_composite_groups_do_not_have_it(api: Endpoint, item: Json) -> None:
    assert "unknown field" in api.refusal(item)


def test_a_large_tree_whose_templates_all_have_it_stays_within_the_budget_of_its_rules(api: Endpoint) -> None:
    item = largest()

    def fill(node: Json) -> None:
        for each in node.get("podGroupTemplates", ()):
            each.update(preferred(*LEVELS[:2]))
        for each in node.get("compositePodGroupTemplates", ()):
            fill(each)

    fill(item["spec"])
    assert api.rehearse(item)["spec"] == item["spec"]
