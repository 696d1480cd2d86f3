"""Names below our prefix: which are read, what is said of others, and that the admission policy knows the same."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from serried.api.names import ANNOTATION_PREFIX, KNOWN
from tests.support.builders import JobBuilder, job, pod_group
from tests.support.parents import job_set, leader_worker_set
from tests.unit.manifests.shipped import read_all

ROOT = Path(__file__).resolve().parents[3]
OTHERWISE = {"held", "member", "member-bind", "protects", "reads", "scheduler", "v1beta1"}
"""The names behind the prefix that users do not write: a gate, resources, an API, the marker of nodes."""


def read_policy_variables() -> dict[str, str]:
    (policy,) = [
        each.content
        for each in read_all()
        if (each.kind, each.name) == ("ValidatingAdmissionPolicy", "serried-annotations")
    ]
    return {each["name"]: each["expression"] for each in policy["spec"]["variables"]}


def test_the_admission_policy_knows_the_same_names() -> None:
    table = {
        f"{kind.lower()}s": {field: list(names) for field, names in known._asdict().items()}
        for kind, known in KNOWN.items()
    }
    assert json.loads(read_policy_variables()["known"]) == table


def test_the_prefix_is_as_long_as_the_policy_says() -> None:
    assert f"key.substring({len(ANNOTATION_PREFIX)})" in read_policy_variables()["strays"]


def test_every_name_that_the_product_writes_or_reads_is_known() -> None:
    sources = [
        *(path for folder in ("serried", "extender", "controller", "cli") for path in (ROOT / folder).rglob("*.py")),
        *(ROOT / "manifests" / "kustomize").rglob("*.yaml"),
    ]
    found = {
        name
        for path in sources
        for name in re.findall(r"""["'` ]scheduling\.serried\.dev/([a-z0-9-]+)""", path.read_text())
    }
    known = {name for each in KNOWN.values() for names in each for name in names}
    assert "required-topology" in found
    assert found - OTHERWISE - known == set()


TYPO = f"{ANNOTATION_PREFIX}required-topolgy"
MEANT = f"did you mean the annotation {ANNOTATION_PREFIX}required-topology of the"
TOPOLOGY = f"{ANNOTATION_PREFIX}required-topology"
LABEL = f"{ANNOTATION_PREFIX}pod-group"


@pytest.mark.parametrize(
    ("owner", "said"),
    [
        pytest.param(job("j").annotation(TYPO, "rack").value(), f"{MEANT} Job?", id="of a Job"),
        pytest.param(job_set("s").annotation(TYPO, "rack").value(), f"{MEANT} JobSet?", id="of a JobSet"),
        pytest.param(
            leader_worker_set("s").annotation(TYPO, "rack").value(), f"{MEANT} LeaderWorkerSet?", id="of a set"
        ),
        pytest.param(pod_group("g").annotation(TYPO, "rack").value(), f"{MEANT} PodGroup?", id="of a PodGroup"),
        pytest.param(
            job("j").annotation(f"{ANNOTATION_PREFIX}colour", "red").value(),
            "known are gang-policy, required-topology,",
            id="that is like none",
        ),
        pytest.param(
            job("j").label(TOPOLOGY, "rack").value(), f"{MEANT} Job?", id="that is a label of an annotation's name"
        ),
        pytest.param(
            job("j").annotation(f"{ANNOTATION_PREFIX}gang", "true").value(), "known are", id="that only Serried writes"
        ),
        pytest.param(
            pod_group("g").annotation(f"{ANNOTATION_PREFIX}gang-policy", "JobAsGang").value(),
            "known are required-topology",
            id="that another kind has",
        ),
    ],
)
def test_a_name_that_nothing_reads_is_told_with_what_was_meant(owner: Any, said: str) -> None:
    assert "has no effect, because nothing reads it" in owner.stray
    assert said in owner.stray


POD_TEMPLATE = ("spec", "template", "metadata")


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        pytest.param(
            job("j").with_field({TOPOLOGY: "rack"}, *POD_TEMPLATE, "annotations"),
            f"annotation {TOPOLOGY!r} of the pod template has no effect, because nothing reads it; {MEANT} Job?",
            id="an annotation of the Job in its pod template",
        ),
        pytest.param(
            job("j").with_field({f"{ANNOTATION_PREFIX}pod-grop": "g"}, *POD_TEMPLATE, "labels"),
            f"did you mean the label {LABEL} of its pods?",
            id="a label of pods, mistyped",
        ),
        pytest.param(
            job("j").with_field({LABEL: "g"}, *POD_TEMPLATE, "annotations"),
            f"did you mean the label {LABEL} of its pods?",
            id="a label of pods as an annotation",
        ),
        pytest.param(job("j").with_field({LABEL: "g"}, *POD_TEMPLATE, "labels"), "", id="a label of pods"),
        pytest.param(
            job("j").annotation(TOPOLOGY, "rack").with_field({TOPOLOGY: "rack"}, *POD_TEMPLATE, "annotations"),
            "",
            id="an annotation in both places, as kustomize writes common ones",
        ),
        pytest.param(job("j").label(f"{ANNOTATION_PREFIX}suspended", "true"), "", id="a mark of our command"),
        pytest.param(job("j").annotation("example.com/required-topolgy", "rack"), "", id="a name of somebody else"),
    ],
)
def test_it_counts_where_a_name_stands(raw: JobBuilder, said: str) -> None:
    stray = raw.value().stray
    assert stray == said or (said and said in stray)


def test_the_label_of_pods_on_a_pod_group_is_a_common_label() -> None:
    assert not pod_group("g").label(LABEL, "g").value().stray


def test_the_template_of_a_replicated_job_has_the_names_of_a_job() -> None:
    parent = job_set("s").replicated("w")
    assert not parent.value().stray
    template = parent.raw()["spec"]["replicatedJobs"][0]["template"]
    template["metadata"] = {"annotations": {TYPO: "rack"}}
    wrong = parent.with_field([{"name": "w", "template": template}], "spec", "replicatedJobs").value()
    assert wrong.stray.startswith(f"annotation {TYPO!r} of a template of Jobs has no effect")
