"""The cluster and the gangs of the demo: 100 nodes of 32 CPUs in 10 racks, so that 40 pods of 8 CPUs fill a rack."""

from bench.cluster import Spec
from bench.cluster.nodes import RACK
from bench.load.objects import Gang, Load

CPU = "8"
PLAIN_PODS = 30
SCHEDULER = "serried"
RUN = "demo"

# In the order of creation. Beside them and the plain pods there is room for 72 more pods.
STARTERS = (
    Gang("train-a", 32, RACK),
    Gang("train-b", 32, RACK),
    Gang("train-c", 24, RACK),
    Gang("sweep", 60),
    Gang("simulation", 150),
)
GIANT = Gang("too-large", 48, RACK)
"""A gang that fits the free capacity of the cluster, but no rack: it waits for ever."""
PATIENT = Gang("patient", 120)
"""A gang that fits after `LEAVES` was deleted."""
LATE = Gang("late", 110)
"""A gang that is created at the end, when the capacity is too small for it."""
LEAVES = STARTERS[-1]
"""The gang that is deleted to make room."""
GANGS = (*STARTERS, GIANT, PATIENT, LATE)


def make_spec(name: str) -> Spec:
    """Return a stock cluster: without feature gates and alpha APIs."""
    return Spec(name, nodes=100, racks=10, blocks=2, api="fallback")


def make_load(*gangs: Gang, plain: int = 0) -> Load:
    """Return a load with the gangs as Jobs, and ``plain`` plain pods."""
    return Load(RUN, SCHEDULER, plain=plain, gangs=gangs, link="job", cpu=CPU)
