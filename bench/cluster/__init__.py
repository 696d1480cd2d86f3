"""Starts local clusters for tests, benchmarks and the demo: a real control plane, simulated nodes, and Serried.

`python -m bench.cluster up --name NAME` starts a cluster and leaves it running; `Cluster.up(Spec(...))` does the same
from Python.
"""

from bench.cluster.cluster import Cluster
from bench.cluster.errors import ClusterError
from bench.cluster.spec import Spec

__all__ = ["Cluster", "ClusterError", "Spec"]
