"""Without a right its story does not come to its end, and with it it does."""

import pytest

from tests.e2e.roles.audit import Audit
from tests.e2e.roles.stage import RoleStage
from tests.e2e.roles.table import FALLBACK_ROWS, NATIVE_ROWS, Row
from tests.e2e.roles.telling import tell

pytestmark = [pytest.mark.e2e, pytest.mark.full]


@pytest.mark.parametrize("cluster", ["native"], indirect=True)
@pytest.mark.parametrize("row", NATIVE_ROWS, ids=str)
def test_a_story_ends_with_its_right_alone(stage: RoleStage, audit: Audit, row: Row) -> None:
    tell(stage, audit, row)


@pytest.mark.parametrize("cluster", ["fallback"], indirect=True)
@pytest.mark.parametrize("row", FALLBACK_ROWS, ids=str)
def test_a_story_at_the_fallback_level_ends_with_its_right_alone(stage: RoleStage, audit: Audit, row: Row) -> None:
    tell(stage, audit, row)
