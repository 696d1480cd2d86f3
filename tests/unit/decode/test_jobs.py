"""Decoding of Jobs: the fields about its gang, and its status."""

import pytest

from serried.api.group import SharedClaim
from serried.api.job import GangPolicy, decode_job
from serried.api.names import DISRUPTION_MODE, GANG_POLICY, REQUIRED_TOPOLOGY, Disruption, Malformed, is_label_key
from tests.support.builders import RACK, JobBuilder, job

GANG = {"schedulingPolicy": {"gang": {"minCount": 3}}}


@pytest.mark.parametrize(
    ("builder", "policy", "min_count"),
    [
        pytest.param(job("j"), None, None, id="nothing"),
        pytest.param(job("j").scheduling(), None, None, id="an empty field says nothing"),
        pytest.param(job("j").scheduling(**GANG), GangPolicy.JOB_AS_GANG, 3, id="a gang of three"),
        pytest.param(
            job("j").scheduling(schedulingPolicy={"gang": {}}),
            GangPolicy.JOB_AS_GANG,
            None,
            id="a gang as large as it is wide",
        ),
        pytest.param(
            job("j").scheduling(schedulingPolicy={"basic": {}}), GangPolicy.NO_GANG, None, id="basic is no gang"
        ),
        pytest.param(job("j").scheduling(**GANG).gang_policy("NoGang"), GangPolicy.JOB_AS_GANG, 3, id="the field wins"),
    ],
)
def test_whether_a_job_is_a_gang(builder: JobBuilder, policy: GangPolicy | None, min_count: int | None) -> None:
    decoded = builder.value()
    assert (decoded.gang_policy, decoded.min_count) == (policy, min_count)


def test_a_field_that_says_otherwise_than_the_annotation_is_a_contradiction() -> None:
    assert job("j").scheduling(**GANG).gang_policy("NoGang").value().contradiction
    assert not job("j").scheduling(**GANG).gang_policy("JobAsGang").value().contradiction
    assert not job("j").scheduling(**GANG).value().contradiction


def test_the_field_says_the_rest_of_a_template_too() -> None:
    decoded = (
        job("j")
        .topology("example.com/zone")
        .scheduling(
            schedulingConstraints={"topology": [{"key": RACK}]},
            disruptionMode={"all": {}},
            resourceClaims=[{"name": "net", "resourceClaimTemplateName": "fabric"}],
        )
        .value()
    )
    assert (decoded.topology_key, decoded.disruption) == (RACK, Disruption.ALL)
    assert decoded.claims == (SharedClaim("net", template="fabric"),)


@pytest.mark.parametrize(
    ("builder", "completed", "given_up"),
    [
        pytest.param(job("j"), 0, 0, id="none"),
        pytest.param(job("j").completed_indexes("0").failed_indexes("1"), 1, 1, id="one each"),
        pytest.param(job("j").completed_indexes("0,2-4,9").failed_indexes("5-8"), 5, 4, id="intervals"),
        pytest.param(
            job("j").not_indexed().with_field(3, "status", "succeeded"), 3, 0, id="without indexes, pods are counted"
        ),
    ],
)
def test_how_many_indexes_need_no_pod_any_more(builder: JobBuilder, completed: int, given_up: int) -> None:
    decoded = builder.value()
    assert (decoded.completed, decoded.given_up) == (completed, given_up)


def test_a_list_of_indexes_that_is_none_makes_the_job_malformed() -> None:
    decoded = decode_job(job("j").completed_indexes("1,x").raw())
    assert isinstance(decoded, Malformed)
    assert decoded.problem == "completedIndexes is no list of indexes"


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        pytest.param(GANG_POLICY, "JobAsGang", "", id="a word"),
        pytest.param(GANG_POLICY, "jobAsGang", "must be one of JobAsGang, NoGang", id="a word that does not exist"),
        pytest.param(GANG_POLICY, "", "must be one of JobAsGang, NoGang", id="no word"),
        pytest.param(DISRUPTION_MODE, "some", "must be one of single, all", id="a mode that does not exist"),
        pytest.param(REQUIRED_TOPOLOGY, RACK, "", id="a label key"),
        pytest.param(REQUIRED_TOPOLOGY, "no key", "is no label key", id="no label key"),
    ],
)
def test_what_an_annotation_says_wrongly_is_told(name: str, value: str, problem: str) -> None:
    found = job("j").annotation(name, value).value().problem
    assert problem in found
    assert bool(found) is bool(problem)
    assert not found or name in found


@pytest.mark.parametrize(
    ("text", "is_key"),
    [
        ("rack", True),
        ("example.com/rack", True),
        ("example.com/Rack_1.a", True),
        ("", False),
        ("/rack", False),
        ("a/b/c", False),
        ("-rack", False),
        ("Example.com/rack", False),
        ("r" * 63, True),
        ("r" * 64, False),
        ("a" * 254 + "/rack", False),
    ],
)
def test_label_keys(text: str, is_key: bool) -> None:  # noqa: FBT001
    assert is_label_key(text) is is_key
