"""The marker of a node says which annotations one installation has set, and no other annotation is ever changed."""

import pytest

from serried.api.names import Malformed
from serried.api.node import PROTECTED_BY, Node, Protection, decode_node, protect, read_protection, unprotect
from tests.support.builders import node

CA = "cluster-autoscaler.kubernetes.io/scale-down-disabled"
KARPENTER = "karpenter.sh/do-not-disrupt"
MARKER = f"here: {CA}, {KARPENTER}"
WHOLE = {CA: "true", KARPENTER: "true", PROTECTED_BY: MARKER}

READ = {
    "both are set and named": (WHOLE, Protection("here", frozenset({CA, KARPENTER}), frozenset())),
    "one is somebody else's": (
        {CA: "true", KARPENTER: "true", PROTECTED_BY: f"here: {CA}"},
        Protection("here", frozenset({CA}), frozenset()),
    ),
    "both are": ({CA: "true", KARPENTER: "true", PROTECTED_BY: "here:"}, Protection("here", frozenset(), frozenset())),
    "one was removed": (
        {CA: "true", PROTECTED_BY: MARKER},
        Protection("here", frozenset({CA}), frozenset({KARPENTER})),
    ),
    "one was given another value": (WHOLE | {CA: "false"}, Protection("here", frozenset({KARPENTER}), frozenset())),
    "a later release names more": (
        {PROTECTED_BY: f"here:{CA},example.com/more", CA: "true", KARPENTER: "no", "example.com/more": "true"},
        Protection("here", frozenset({CA}), frozenset()),
    ),
    "somebody has written nonsense": ({PROTECTED_BY: ",:,"}, Protection(",", frozenset(), frozenset({CA, KARPENTER}))),
    "there is no marker": ({CA: "true", KARPENTER: "true"}, None),
    "there is nothing": ({}, None),
}


@pytest.mark.parametrize(("annotations", "found"), READ.values(), ids=READ)
def test_a_marker_is_read(annotations: dict[str, str], found: Protection | None) -> None:
    assert read_protection(annotations) == found
    decoded = decode_node({"metadata": {"name": "n", "annotations": annotations}})
    assert isinstance(decoded, Node)
    assert decoded.protection == found


PROTECTED: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "nothing is there": ({"note": "mine"}, WHOLE),
    "one is there": ({CA: "true"}, {KARPENTER: "true", PROTECTED_BY: f"here: {KARPENTER}"}),
    "one is there that says the opposite": ({CA: "false"}, {KARPENTER: "true", PROTECTED_BY: f"here: {KARPENTER}"}),
    "both are there": ({CA: "true", KARPENTER: "true"}, {PROTECTED_BY: "here:"}),
    "it is protected already": (WHOLE, {}),
    "it is protected already, by others": ({CA: "true", KARPENTER: "true", PROTECTED_BY: "here:"}, {}),
    "one was removed": ({CA: "true", PROTECTED_BY: MARKER}, {KARPENTER: "true", PROTECTED_BY: MARKER}),
    "one was given another value": (WHOLE | {CA: "false"}, {PROTECTED_BY: f"here: {KARPENTER}"}),
    "another installation protects it": ({PROTECTED_BY: f"there: {CA}", CA: "true"}, {}),
}


@pytest.mark.parametrize(("before", "patch"), PROTECTED.values(), ids=PROTECTED)
def test_a_node_is_protected_without_a_change_of_what_others_have_set(
    before: dict[str, str], patch: dict[str, str]
) -> None:
    assert protect(before, "here") == patch
    assert protect(before | patch, "here") == {}


FREED: dict[str, tuple[dict[str, str], set[str]]] = {
    "both are ours": (WHOLE, {CA, KARPENTER, PROTECTED_BY}),
    "one is somebody else's": ({CA: "true", KARPENTER: "true", PROTECTED_BY: f"here: {CA}"}, {CA, PROTECTED_BY}),
    "one was given another value": (WHOLE | {CA: "false"}, {KARPENTER, PROTECTED_BY}),
    "one was removed": ({CA: "true", PROTECTED_BY: MARKER}, {CA, PROTECTED_BY}),
    "none is ours": ({CA: "true", KARPENTER: "true", PROTECTED_BY: "here:"}, {PROTECTED_BY}),
    "there is no marker": ({CA: "true", KARPENTER: "true"}, set()),
    "another installation protects it": ({PROTECTED_BY: f"there: {CA}", CA: "true"}, set()),
}


@pytest.mark.parametrize(("before", "removed"), FREED.values(), ids=FREED)
def test_what_is_removed_is_what_the_marker_names_and_still_has_our_value(
    before: dict[str, str], removed: set[str]
) -> None:
    assert unprotect(before, "here") == dict.fromkeys(removed)


def test_a_node_that_is_protected_from_nothing_is_as_it_was_before() -> None:
    before = {"note": "mine", CA: "maybe"}
    after = before | {key: value for key, value in protect(before, "here").items() if value is not None}
    assert {key: value for key, value in after.items() if key not in unprotect(after, "here")} == before


def test_a_marker_that_is_no_text_makes_the_node_malformed() -> None:
    raw = node("n").with_field(7, "metadata", "annotations", PROTECTED_BY).raw()
    assert decode_node(raw) == Malformed("Node", "n", f"{PROTECTED_BY} is not a string")


def test_a_protection_is_no_difference_between_two_states_of_a_node() -> None:
    """Room is not looked at anew because of it."""
    assert decode_node(node("n").raw()) == decode_node(
        node("n").with_field(MARKER, "metadata", "annotations", PROTECTED_BY).raw()
    )
