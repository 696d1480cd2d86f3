"""The life of Jobs: 12 pods of 30 CPU fill the shared clusters."""

import pytest

from tests.e2e.jobs.stage import JobStage


@pytest.fixture(scope="package")
def stage_class() -> type[JobStage]:
    return JobStage
