"""Faults of a cluster are repaired in the end, also if the API server is down at that moment."""

from random import Random
from unittest.mock import Mock

from tests.chaos.cluster_faults import ClusterFaults


def test_a_namespace_whose_deletion_nobody_has_taken_is_deleted_later() -> None:
    cluster, load, noted = Mock(), Mock(spare=["chaos-1"]), []
    faults = ClusterFaults(cluster, load, Random(1), lambda note, about: noted.append((note, about)))
    cluster.api.delete.side_effect = OSError
    assert not faults.do("namespace deleted")
    assert not faults.repair()
    cluster.api.delete.side_effect = None
    assert faults.repair()
    asked = cluster.api.delete.call_count
    assert faults.repair()
    assert cluster.api.delete.call_count == asked
    load.lose_namespace.assert_called_once_with("chaos-1")
