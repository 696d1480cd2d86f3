"""A Job of which somebody asks becomes the gang that the controller would make for it."""

from typing import Any

import pytest

from controller.diff.templates import desired_templates
from extender.whatif.newcomers import gather
from serried.cluster.store import Store
from serried.model.group import PodGroup
from serried.plan.steps import finish
from tests.support.builders import RACK, JobBuilder, job
from tests.support.extender_harness import SCHEDULER


def ask(builder: JobBuilder) -> PodGroup:
    raw: dict[str, Any] = {"kind": "Job", **builder.raw()}
    raw["spec"]["template"]["spec"] |= {"containers": [{"name": "main"}]}
    (found,) = finish(gather([("document 1", raw)], Store([SCHEDULER]), "default"))
    return found.group


ANNOTATIONS = "scheduling.serried.dev"


@pytest.mark.parametrize(
    "builder",
    [
        pytest.param(job("j").size(4), id="by its shape"),
        pytest.param(job("j").size(4).topology(RACK), id="with a required topology"),
        pytest.param(
            job("j").size(4).annotation(f"{ANNOTATIONS}/preferred-topology", f"{RACK}=30s"), id="with preferred levels"
        ),
        pytest.param(
            job("j").size(4).having({"gang": {"minCount": 3}}, "spec", "scheduling", "schedulingPolicy"),
            id="with a minCount of its own",
        ),
        pytest.param(
            job("j")
            .size(4)
            .having("batch", "spec", "template", "spec", "priorityClassName")
            .having(0, "spec", "template", "spec", "priority"),
            id="with a class",
        ),
        pytest.param(job("j").size(4).having(2, "spec", "completions"), id="of which fewer run at a time"),
    ],
)
def test_the_gang_is_the_controllers(builder: JobBuilder) -> None:
    builder = builder.having(SCHEDULER, "spec", "template", "spec", "schedulerName")
    builder = builder.annotation(f"{ANNOTATIONS}/gang-policy", "JobAsGang")
    (template,) = desired_templates(builder.value())
    group = ask(builder)
    assert group.policy == template.policy
    assert group.topology_key == template.topology_key
    assert group.priority_class == template.priority_class
    assert group.preference == builder.value().preference
