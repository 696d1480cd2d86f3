"""Without ProvisioningRequests the members of one whole gang ask Cluster Autoscaler by being visible, all at once."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from bench.cluster import Cluster
from bench.cluster.nodes import ZONE
from tests.e2e.cluster_autoscaler.stage import SPEC, AutoscaledStage, autoscaled
from tests.support.cluster_stage import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.full]

WITHOUT_CRD = "without the CRD"
WITHOUT_CLASS = "without a provisioning class"


@pytest.fixture(scope="module", params=[WITHOUT_CRD, WITHOUT_CLASS])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    served = request.param == WITHOUT_CLASS
    arguments = ("--provisioning-class", "") if served else ()
    spec = replace(SPEC, name="visible-class" if served else "visible", serried_args=arguments)
    with autoscaled(spec, tmp_path_factory, requests=served) as started:
        yield started


def test_exactly_the_members_that_a_gang_needs_are_candidates_with_their_zone(stage: AutoscaledStage) -> None:
    stage.create_gang("part", 5, members=2)
    stage.create_gang("ring", 4, members=6)
    stage.create_gang("next", 3)
    eventually("four candidates", lambda: len(stage.candidates()) == 4)
    assert stage.candidates() < {f"ring-{number}" for number in range(6)}
    assert sorted(map(str, stage.selectors("ring"))) == sorted(map(str, [{ZONE: "zone-0"}] * 4 + [{}] * 2))
    stage.await_reason("next", "NoDomainFits", "Serried asks for nodes for ")
    stage.await_reason("part", "QuorumMissing")

    stage.autoscaler.loop()
    assert len(stage.autoscaler.added) == 3
    stage.await_bound("ring", 4)
    assert stage.zones("ring") == {"zone-0"}

    # Then the next gang asks and the two members that the first one can do without, in either order.
    def grow() -> bool:
        stage.autoscaler.loop()
        return len(stage.bound("ring-")) == 6 and len(stage.bound("next-")) == 3

    eventually("all members of both gangs on nodes", grow, 60)
    assert (stage.zones("ring"), stage.zones("next")) == ({"zone-0"}, {"zone-1"})
    assert (len(stage.autoscaler.added), stage.candidates()) == (3 + 2 + 2, set())


def test_what_it_says_of_a_member_for_which_no_node_comes_is_in_the_reason(stage: AutoscaledStage) -> None:
    stage.limit(0)
    stage.create_gang("ring", 3)
    eventually("three candidates", lambda: len(stage.candidates()) == 3)
    stage.autoscaler.loop()
    said = "Cluster Autoscaler: NotTriggerScaleUp: pod didn't trigger scale-up"
    stage.await_reason("ring", "AskingForNodes", said, seconds=60)
