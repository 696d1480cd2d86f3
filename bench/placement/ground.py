"""The state of a scenario's cluster while it is played: running pods and free slots. Checks every placement."""

from collections.abc import Iterable, Mapping, Sequence

from bench.cluster.nodes import RACK
from bench.placement.scenario import Gang, Scenario
from serried.api.pod import Pod, Shape
from serried.api.resources import count_slots
from serried.cluster.cache import Store
from serried.plan.request import PlanRequest, Snapshot
from serried.rules.all import RULES

_SCHEDULER = "bench"


class BrokenPromiseError(Exception):
    """A placement breaks a rule. The message says which."""


class Ground:
    """The cluster of one played scenario. `bind` rejects wrong placements."""

    def __init__(self, scenario: Scenario) -> None:
        self._store = Store([_SCHEDULER], rules=RULES)
        self._racks = {node.name: node.labels[RACK] for node in scenario.nodes}
        for node in scenario.nodes:
            self._store.put_node(node)
        for filler in scenario.filler:
            self._store.put_pod(_pod(filler.name, shape_of(filler.cpu), filler.node))
        self._gangs: dict[str, list[str]] = {filler.name: [filler.name] for filler in scenario.filler}

    def snapshot(self, request: PlanRequest) -> Snapshot:
        """Return the snapshot of the cluster for a plan."""
        return self._store.snapshots.take(0, request.members)

    def bind(self, gang: Gang, nodes: Mapping[str, str]) -> None:
        """Bind the members of a gang to nodes, by pod name.

        Raise BrokenPromiseError if members are missing, if the gang is split over racks that must not be, or if a node
        is over-committed.
        """
        if len(nodes) != gang.size:
            raise BrokenPromiseError(f"{gang.name}: {len(nodes)} of {gang.size} members are placed")
        if gang.wish == "required" and len(self.racks_of(nodes.values())) > 1:
            raise BrokenPromiseError(f"{gang.name} is in more than one rack")
        shape = shape_of(gang.cpu)
        for name, node in nodes.items():
            self._store.put_pod(_pod(name, shape, node))
        self._gangs[gang.name] = list(nodes)
        for node in set(nodes.values()):
            used, room = self._store.occupancy.used[node], self._store.nodes[node].allocatable
            if any(amount > room[name] for name, amount in used.items()):
                raise BrokenPromiseError(f"{gang.name}: {node} is over-committed")

    def remove(self, names: Iterable[str]) -> list[str]:
        """Remove gangs and filler pods by name. Return the names of their pods."""
        pods = [pod for name in names for pod in self._gangs.pop(name)]
        for pod in pods:
            self._store.drop_pod(pod)
        return pods

    @property
    def running(self) -> Sequence[str]:
        """The names of all running gangs and filler pods."""
        return list(self._gangs)

    def racks_of(self, nodes: Iterable[str]) -> set[str]:
        """Return the racks of some nodes."""
        return {self._racks[node] for node in nodes}

    def slots(self, cpu: int) -> dict[str, list[int]]:
        """Return by rack the free slots of each node, for members of ``cpu`` CPUs. Full nodes are left out."""
        used, request = self._store.occupancy.used, dict(shape_of(cpu).requests)
        found: dict[str, list[int]] = {rack: [] for rack in self._racks.values()}
        for name, node in self._store.nodes.items():
            free = count_slots(node.allocatable, used.get(name, {}), request)
            if free:
                found[self._racks[name]].append(free)
        return found


def shape_of(cpu: int) -> Shape:
    """Return the shape of a pod with ``cpu`` CPUs."""
    return Shape((("cpu", 1000 * cpu), ("pods", 1)))


def members_of(gang: Gang) -> list[Pod]:
    """Return the unbound members of a gang."""
    shape = shape_of(gang.cpu)
    names = [f"{gang.name}-{index:04d}" for index in range(gang.size)]
    return [Pod("default", name, name, shape, _SCHEDULER, index=index) for index, name in enumerate(names)]


def _pod(name: str, shape: Shape, node: str) -> Pod:
    return Pod("default", name, name, shape, _SCHEDULER, node=node)
