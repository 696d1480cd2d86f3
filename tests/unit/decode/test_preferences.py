import pytest

from serried.decode.groups import decode_pod_group
from serried.decode.jobs import decode_job
from serried.decode.malformed import Malformed
from serried.decode.preferences import PACKING, PREFERRED_TOPOLOGY, find_preference_problem, parse_preference
from serried.decode.preferences import write_preference as write
from serried.model.group import Job
from serried.model.preference import NO_PREFERENCE, Level, Preference, Style
from serried.testing.builders import job, pod_group


@pytest.mark.parametrize(
    ("topology", "levels"),
    [
        pytest.param("rack", (Level("rack"),), id="one level"),
        pytest.param(
            "a.io/rack=30s, block=5m,zone", (Level("a.io/rack", 30), Level("block", 300), Level("zone")), id="waits"
        ),
        pytest.param("rack=0s", (Level("rack"),), id="no wait"),
        pytest.param("rack=1h", (Level("rack", 3600),), id="an hour"),
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


@pytest.mark.parametrize(
    ("annotations", "said"),
    [
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
