"""Who takes part in the demo, sized for 100 nodes of 32 CPU in 10 racks: 40 pods of 8 CPU fill a rack. Values only."""

from bench.cluster import Spec
from bench.cluster.nodes import RACK
from bench.load.objects import Gang, Load

CPU = "8"
PLAIN_PODS = 30
SCHEDULER = "serried"
RUN = "demo"

# In the order of submission. Together with the plain pods they leave room for 72 pods.
STARTERS = (
    Gang("train-a", 32, RACK),
    Gang("train-b", 32, RACK),
    Gang("train-c", 24, RACK),
    Gang("sweep", 60),
    Gang("simulation", 150),
)
GIANT = Gang("too-large", 48, RACK)
"""Fits the free room of the cluster, but no rack: waits for ever."""
PATIENT = Gang("patient", 120)
"""Fits when SIMULATION has gone."""
LATE = Gang("late", 110)
"""Comes at the end, and finds room for fewer."""
LEAVES = STARTERS[-1]
GANGS = (*STARTERS, GIANT, PATIENT, LATE)


def make_spec(name: str) -> Spec:
    """A stock cluster: no gate, no alpha API."""
    return Spec(name, nodes=100, racks=10, blocks=2, api="fallback")


def make_load(*gangs: Gang, plain: int = 0) -> Load:
    """These gangs as Jobs, and so many plain pods."""
    return Load(RUN, SCHEDULER, plain=plain, gangs=gangs, link="job", cpu=CPU)
