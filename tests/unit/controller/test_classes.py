"""Fields of a new PodGroup that come from its PriorityClass."""

from dataclasses import replace

import pytest

from controller.diff.objects import resolve_class
from serried.api.group import Policy, Template
from serried.api.level import FALLBACK, NATIVE, V1ALPHA2, ApiLevel
from serried.api.priority import PreemptionPolicy
from tests.support.priorities import PriorityClassBuilder, priority_class

NEVER, LOWER = PreemptionPolicy.NEVER, PreemptionPolicy.LOWER_PRIORITY
V1ALPHA2_LEVEL = ApiLevel("native", "scheduling.k8s.io", V1ALPHA2)
HIGH = priority_class("high", 1000)
PLAIN = Template("t", Policy(2))
NAMING = replace(PLAIN, priority_class="high")


def resolved(template: Template, level: ApiLevel, *classes: PriorityClassBuilder) -> tuple[int | None, object]:
    made = resolve_class(template, level, {each.value().name: each.value() for each in classes})
    assert replace(made, priority=template.priority, preemption=template.preemption) == template
    return made.priority, made.preemption


@pytest.mark.parametrize(
    ("template", "classes", "priority"),
    [
        pytest.param(NAMING, [HIGH], 1000, id="that of the class"),
        pytest.param(NAMING, [], None, id="none before there is one"),
        pytest.param(replace(NAMING, priority=10**9), [HIGH], 1000, id="not what the template says beside the class"),
        pytest.param(replace(PLAIN, priority=10**9), [HIGH], 0, id="not what it says without one"),
        pytest.param(PLAIN, [HIGH.default()], 1000, id="the default"),
    ],
)
def test_at_the_fallback_level_its_priority(
    template: Template, classes: list[PriorityClassBuilder], priority: int | None
) -> None:
    assert resolved(replace(template, preemption=NEVER), FALLBACK, *classes) == (priority, None)


@pytest.mark.parametrize(
    ("level", "template", "classes", "preemption"),
    [
        pytest.param(NATIVE, NAMING, [HIGH], None, id="nothing where the class says nothing"),
        pytest.param(NATIVE, NAMING, [HIGH.never()], NEVER, id="never where the class says so"),
        pytest.param(NATIVE, PLAIN, [HIGH.never().default()], NEVER, id="never where the default says so"),
        pytest.param(NATIVE, PLAIN, [HIGH.never()], None, id="nothing where another class says never"),
        pytest.param(NATIVE, replace(NAMING, preemption=LOWER), [HIGH.never()], LOWER, id="what the template says"),
        pytest.param(V1ALPHA2_LEVEL, NAMING, [HIGH.never()], None, id="nothing in 1.36, which has no such field"),
    ],
)
def test_at_the_native_level_whether_others_are_evicted_for_it(
    level: ApiLevel, template: Template, classes: list[PriorityClassBuilder], preemption: object
) -> None:
    assert resolved(replace(template, priority=3), level, *classes) == (3, preemption)
