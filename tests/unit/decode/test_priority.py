"""Whether others may be evicted for a group: what it says, its class and its members."""

import pytest

from serried.decode.priority import decode_priority_class
from serried.model.priority import PreemptionPolicy, PriorityClass, may_preempt
from tests.support.builders import pod, pod_group
from tests.support.composites import composite

LOWER, NEVER = PreemptionPolicy.LOWER, PreemptionPolicy.NEVER


@pytest.mark.parametrize(
    ("word", "policy"), [(None, None), ("Never", NEVER), ("PreemptLowerPriority", LOWER), ("Always", None)]
)
def test_a_group_may_say_whether_it_has_others_evicted(word: str | None, policy: PreemptionPolicy | None) -> None:
    assert pod_group("g").having(word, "spec", "preemptionPolicy").value().preemption is policy
    assert composite("c").having(word, "spec", "preemptionPolicy").value().preemption is policy


def test_pods_and_classes_have_others_evicted_unless_they_say_never() -> None:
    assert pod("p").value().preemption is LOWER
    assert pod("p").having("Never", "spec", "preemptionPolicy").value().preemption is NEVER
    assert decode_priority_class({"metadata": {"name": "c"}, "value": 7}) == PriorityClass("c", 7)
    never = {"metadata": {"name": "c"}, "value": 7, "preemptionPolicy": "Never"}
    assert decode_priority_class(never) == PriorityClass("c", 7, preemption=NEVER)


@pytest.mark.parametrize(
    ("of_group", "of_class", "of_pods", "may"),
    [
        pytest.param(None, None, [LOWER, LOWER], True, id="nobody says anything"),
        pytest.param(None, LOWER, [LOWER, NEVER], False, id="one member says never"),
        pytest.param(None, NEVER, [LOWER], False, id="the class says never"),
        pytest.param(LOWER, NEVER, [NEVER], True, id="the group itself says that it may"),
        pytest.param(NEVER, LOWER, [LOWER], False, id="the group itself says never"),
    ],
)
def test_the_group_decides_before_its_class_and_its_members(
    of_group: PreemptionPolicy | None,
    of_class: PreemptionPolicy | None,
    of_pods: list[PreemptionPolicy],
    may: bool,  # noqa: FBT001
) -> None:
    assert may_preempt(of_group, of_class, of_pods) is may
