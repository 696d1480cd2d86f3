"""PriorityClasses, and preemptionPolicy wherever it is said."""

import pytest

from serried.api.group import Workload, decode_workload
from serried.api.priority import PreemptionPolicy, PriorityClass, decode_priority_class
from tests.support.builders import Builder, pod, pod_group, require_valid, workload
from tests.support.composites import composite
from tests.support.priorities import priority_class


def test_a_class_has_a_value_maybe_is_the_default_and_maybe_evicts_nobody() -> None:
    assert priority_class("high", 7).value() == PriorityClass("high", 7)
    said = priority_class("usual", 50).default().never().version("3").value()
    assert said == PriorityClass("usual", 50, is_default=True, preemption=PreemptionPolicy.NEVER, version="3")


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("Never", PreemptionPolicy.NEVER),
        ("PreemptLowerPriority", PreemptionPolicy.LOWER_PRIORITY),
        ("Sometimes", None),
        (None, None),
    ],
)
@pytest.mark.parametrize("builder", [pod("p"), pod_group("g"), composite("c")], ids=["pod", "PodGroup", "Composite"])
def test_preemption_policy_is_a_word_of_the_spec(
    builder: Builder, word: str | None, expected: PreemptionPolicy | None
) -> None:
    assert builder.with_field(word, "spec", "preemptionPolicy").value().preemption is expected  # type: ignore[attr-defined]


def test_a_template_of_a_workload_says_it_too() -> None:
    template = {"name": "t", "schedulingPolicy": {"basic": {}}, "preemptionPolicy": "Never"}
    found = require_valid(decode_workload(workload("w").with_item(template, "spec", "podGroupTemplates").raw()))
    assert isinstance(found, Workload)
    assert [each.preemption for each in found.templates] == [PreemptionPolicy.NEVER]


def test_a_class_of_an_odd_value_is_malformed() -> None:
    assert not isinstance(decode_priority_class({"metadata": {"name": "x"}, "value": "many"}), PriorityClass)
