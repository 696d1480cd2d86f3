import pytest

from serried.api.group import PodGroup, Workload, decode_pod_group, decode_workload
from serried.api.job import Job, decode_job
from serried.api.names import Malformed
from serried.api.preference import (
    EXCLUSIVE,
    NO_PREFERENCE,
    PACKING,
    PREFERRED_TOPOLOGY,
    Level,
    Preference,
    Style,
    find_preference_problem,
    parse_preference,
)
from serried.api.preference import write_preference as write
from tests.support.builders import job, pod_group, workload


@pytest.mark.parametrize(
    ("topology", "levels"),
    [
        pytest.param("rack", (Level("rack"),), id="one level"),
        pytest.param(
            "a.io/rack=30s, block=5m,zone", (Level("a.io/rack", 30), Level("block", 300), Level("zone")), id="waits"
        ),
        pytest.param("rack=0s", (Level("rack"),), id="no wait"),
        pytest.param("rack=1h", (Level("rack", 3600),), id="an hour"),
        pytest.param("rack=999999m", (Level("rack", 59999940),), id="more seconds than can be written"),
        pytest.param("rack=999999h", (Level("rack", 3599996400),), id="more minutes than can be written"),
    ],
)
def test_levels_are_read_and_written_again(topology: str, levels: tuple[Level, ...]) -> None:
    preference = parse_preference({PREFERRED_TOPOLOGY: topology})
    assert preference == Preference(levels)
    assert parse_preference(write(preference)) == preference


def test_packing_is_read_and_written_again() -> None:
    spread = parse_preference({PACKING: "spread"})
    assert spread == Preference(style=Style.SPREAD)
    assert write(spread) == {PACKING: "spread"}
    assert parse_preference({PACKING: "pack"}) == parse_preference({}) == NO_PREFERENCE
    assert write(NO_PREFERENCE) == {}


def test_whether_a_domain_is_shared_is_read_and_written_again() -> None:
    alone = parse_preference({EXCLUSIVE: "true"})
    assert alone == Preference(exclusive=True)
    assert write(alone) == {EXCLUSIVE: "true"}
    assert parse_preference({EXCLUSIVE: "false"}) == NO_PREFERENCE


@pytest.mark.parametrize(
    ("annotations", "said"),
    [
        pytest.param({EXCLUSIVE: "yes"}, "'yes', and must be one of true, false", id="neither true nor false"),
        pytest.param({PACKING: "scatter"}, "'scatter', and must be one of pack, spread", id="an unknown style"),
        pytest.param({PREFERRED_TOPOLOGY: ""}, "'' is no label key", id="nothing"),
        pytest.param({PREFERRED_TOPOLOGY: "rack,"}, "'' is no label key", id="a comma too many"),
        pytest.param({PREFERRED_TOPOLOGY: "-rack"}, "'-rack' is no label key", id="no label key"),
        pytest.param({PREFERRED_TOPOLOGY: "rack=30"}, "'rack=30' is no label key", id="a wait without a unit"),
        pytest.param({PREFERRED_TOPOLOGY: "rack=-1s"}, "'rack=-1s' is no label key", id="a negative wait"),
        pytest.param({PREFERRED_TOPOLOGY: "rack,rack=5s"}, "named twice", id="a level twice"),
        pytest.param({PREFERRED_TOPOLOGY: "a,b,c,d,e"}, "may have 4 levels", id="too many levels"),
    ],
)
def test_what_nobody_can_follow_is_said(annotations: dict[str, str], said: str) -> None:
    assert said in find_preference_problem(annotations)
    assert parse_preference(annotations) == NO_PREFERENCE
    (name, value), *_ = annotations.items()
    group = decode_pod_group(pod_group("g").gang(2).annotation(name, value).raw())
    assert isinstance(group, Malformed)
    assert said in group.problem
    found = decode_job(job("j").size(2).annotation(name, value).raw())
    assert isinstance(found, Job)
    assert said in found.problem


LEVELS = (Level("example.com/rack", 30), Level("zone"))


def test_the_field_says_what_the_annotation_says() -> None:
    by_field = decode_pod_group(pod_group("g").gang(2).preferring(*LEVELS).raw())
    by_annotation = decode_pod_group(
        pod_group("g").gang(2).annotation(PREFERRED_TOPOLOGY, "example.com/rack=30s,zone").raw()
    )
    assert isinstance(by_field, PodGroup)
    assert isinstance(by_annotation, PodGroup)
    assert by_field.preference == by_annotation.preference == Preference(LEVELS)


@pytest.mark.parametrize("said", ["block", "no label key"])
def test_where_both_are_there_the_field_wins_whatever_the_annotation_says(said: str) -> None:
    group = (
        pod_group("g").gang(2).preferring(*LEVELS).annotation(PREFERRED_TOPOLOGY, said).annotation(PACKING, "spread")
    )
    found = decode_pod_group(group.raw())
    assert isinstance(found, PodGroup)
    assert found.preference == Preference(LEVELS, Style.SPREAD)


def test_an_empty_field_leaves_it_to_the_annotation() -> None:
    found = decode_pod_group(pod_group("g").gang(2).preferring().annotation(PREFERRED_TOPOLOGY, "block").raw())
    assert isinstance(found, PodGroup)
    assert found.preference == Preference((Level("block"),))


def test_a_template_has_the_field_too() -> None:
    found = decode_workload(workload("w").gang_template("a", 2).preferring(*LEVELS).gang_template("b", 2).raw())
    assert isinstance(found, Workload)
    assert [template.preference for template in found.templates] == [Preference(LEVELS), NO_PREFERENCE]


@pytest.mark.parametrize(
    ("field", "said"),
    [
        pytest.param("rack", "preferredTopology is not a list of objects", id="a word"),
        pytest.param([{}], "preferredTopology has ''", id="no key"),
        pytest.param([{"key": "-rack"}], "preferredTopology has '-rack'", id="no label key"),
        pytest.param([{"key": "rack", "waitSeconds": -1}], "with a wait of -1 s", id="a negative wait"),
        pytest.param([{"key": "rack", "waitSeconds": "1m"}], "waitSeconds is not an integer", id="a wait in words"),
        pytest.param([{"key": "a"}, {"key": "a"}], "is not up to 4 different keys", id="a level twice"),
        pytest.param([{"key": key} for key in "abcde"], "is not up to 4 different keys", id="too many levels"),
    ],
)
def test_a_field_that_nobody_can_follow_is_said(field: object, said: str) -> None:
    path = ("spec", "schedulingConstraints", "preferredTopology")
    group = decode_pod_group(pod_group("g").gang(2).with_field(field, *path).raw())
    assert isinstance(group, Malformed)
    assert said in group.problem
