"""A real control plane with Serried in it, for tests, benchmarks and the demo.

`python -m bench.cluster up --name NAME` starts one and leaves it running; `Cluster.up(Spec(...))` does the same from
Python.
"""

from bench.cluster.cluster import Cluster
from bench.cluster.errors import ClusterError
from bench.cluster.spec import Spec

__all__ = ["Cluster", "ClusterError", "Spec"]
