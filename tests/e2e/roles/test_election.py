"""The rights for the extenders' own election, which the component for the cluster's scheduler brings, told likewise.

The scheduler is Serried's here, all the same: for any caller, the extender answers only while it leads.
"""

from collections.abc import Iterator

import pytest

from bench.cluster import Cluster
from tests.e2e.roles.audit import Audit
from tests.e2e.roles.rights import NAMESPACE
from tests.e2e.roles.stage import RoleStage
from tests.e2e.roles.stories import ADDRESS
from tests.e2e.roles.table import ELECTION_ROWS, Row
from tests.e2e.roles.telling import tell

pytestmark = [pytest.mark.e2e, pytest.mark.full]


@pytest.fixture(scope="module")
def elected(cluster: Cluster) -> Iterator[None]:
    """The extender holds a Lease of its own, and tells the Service that it does."""
    cluster.restart(
        "extender",
        f"--lease={NAMESPACE}/serried-extender",
        "--lease-mode=hold",
        f"--endpoint-slice={NAMESPACE}/serried-verbs",
        f"--endpoint-address={ADDRESS}",
    )
    yield
    usual = (f"--lease={NAMESPACE}/serried", "--lease-mode=follow", "--endpoint-slice=", "--endpoint-address=")
    cluster.restart("extender", *usual)


@pytest.mark.parametrize("cluster", ["native"], indirect=True)
@pytest.mark.parametrize("row", ELECTION_ROWS, ids=str)
def test_a_story_of_an_election_ends_with_its_right_alone(
    elected: None, stage: RoleStage, audit: Audit, row: Row
) -> None:
    tell(stage, audit, row)
