"""Resources that nodes do not show, against kube-scheduler's rule re-stated node by node, after any changes."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from serried.api.device import DeviceClass
from serried.api.node import Node
from serried.api.pod import Pod, Shape
from serried.cluster.cache import Store
from serried.plan.capacity import ShapeCounts
from serried.plan.limit import Limit
from serried.rules.all import RULES

GPU, NIC = "example.com/gpu", "example.com/nic"
IMPLICIT = "deviceclass.resource.kubernetes.io/c1"
RESOURCES = (GPU, NIC, IMPLICIT)
NODES = ("n1", "n2", "n3")
CLASSES = ("c1", "c2")
PODS = 6

names = st.sampled_from(NODES)
amounts = st.dictionaries(st.sampled_from(RESOURCES), st.integers(0, 4), max_size=3)
requests = st.dictionaries(st.sampled_from(RESOURCES), st.integers(1, 3), max_size=2)


class UncountedMachine(RuleBasedStateMachine):
    """A Store, and beside it what the API server has."""

    def __init__(self) -> None:
        super().__init__()
        self.store = Store(["serried"], rules=RULES)
        self.nodes: dict[str, dict[str, int]] = {}
        self.classes: dict[str, DeviceClass] = {}
        self.pods: dict[str, tuple[str, dict[str, int]]] = {}

    @initialize(have=amounts, asked=requests)
    def begin(self, have: dict[str, int], asked: dict[str, int]) -> None:
        self.put_node("n1", have)
        self.put_pod(0, "", asked)

    @rule(name=names, have=amounts)
    def put_node(self, name: str, have: dict[str, int]) -> None:
        self.nodes[name] = {"cpu": 8, "pods": 10, **have}
        self.store.put_node(Node(name, self.nodes[name]))

    @rule(name=names)
    def drop_node(self, name: str) -> None:
        self.nodes.pop(name, None)
        self.store.drop_node(name)

    @rule(name=st.sampled_from(CLASSES), resource=st.sampled_from(["", GPU, NIC]))
    def put_class(self, name: str, resource: str) -> None:
        self.classes[name] = DeviceClass(name, resource)
        self.store.put_object(self.classes[name])

    @rule(name=st.sampled_from(CLASSES))
    def drop_class(self, name: str) -> None:
        self.classes.pop(name, None)
        self.store.drop_object(DeviceClass, name)

    @rule(number=st.integers(0, PODS - 1), node=st.sampled_from([*NODES, ""]), asked=requests)
    def put_pod(self, number: int, node: str, asked: dict[str, int]) -> None:
        uid = f"u{number}"
        self.pods[uid] = node, {"cpu": 1, "pods": 1, **asked}
        shape = Shape(tuple(sorted(self.pods[uid][1].items())))
        self.store.put_pod(Pod("ns", uid, uid, shape, node=node))

    @rule(number=st.integers(0, PODS - 1))
    def drop_pod(self, number: int) -> None:
        self.pods.pop(f"u{number}", None)
        self.store.drop_pod(f"u{number}")

    @invariant()
    def slots_are_those_of_the_schedulers_rule(self) -> None:
        for uid, (_, asked) in self.pods.items():
            table = self.store.capacity.table(self.store.pods[uid].shape)
            anew = ShapeCounts(self.store.pods[uid].shape)
            anew.fill(self.store.nodes.values(), self.store.occupancy.used, Limit())
            assert table.by_node == anew.by_node
            assert {name: table.by_node.get(name, 0) for name in self.nodes} == {
                name: self._count(name, asked) for name in self.nodes
            }

    @invariant()
    def nothing_is_missing_that_a_node_has_or_a_class_provides(self) -> None:
        brought = {name for have in self.nodes.values() for name, amount in have.items() if amount}
        brought |= {resource for found in self.classes.values() for resource in found.provides}
        for uid, (_, asked) in self.pods.items():
            assert set(self.store.pods[uid].missing) == asked.keys() - brought - {"cpu", "pods"}

    def _count(self, name: str, asked: dict[str, int]) -> int:
        """Count as NodeResourcesFit does with DRAExtendedResource. Resources that no node has are left out."""
        have = self.nodes[name]
        provided = {resource for found in self.classes.values() for resource in found.provides}
        slots = 99
        for resource, amount in asked.items():
            shown = any(other.get(resource) for other in self.nodes.values())
            if not have.get(resource) and (resource in provided or not shown):
                continue
            used = sum(their.get(resource, 0) for node, their in self.pods.values() if node == name)
            slots = min(slots, max(0, have.get(resource, 0) - used) // amount)
        return slots


TestUncounted = UncountedMachine.TestCase
