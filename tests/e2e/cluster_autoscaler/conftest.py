"""Cluster Autoscaler is played beside real control planes; each file has the cluster that its stories need."""

import pytest

from tests.e2e.cluster_autoscaler.stage import AutoscaledStage


@pytest.fixture(scope="package")
def stage_class() -> type[AutoscaledStage]:
    return AutoscaledStage
