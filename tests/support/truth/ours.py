"""What the planner says of the same objects, read as the feed reads them."""

from collections.abc import Sequence

from serried.api.neighbours import Namespace
from serried.api.node import decode_node
from serried.api.pod import Pod, decode_pod
from serried.api.verdict import Verdict
from serried.cluster.cache import Store
from serried.plan.gang import plan_gang
from serried.plan.request import Plan, PlanRequest
from tests.support.builders import usable
from tests.support.truth.rules import Cluster, Raw


class Ours:
    """A Store with a cluster in it, which answers questions about pods that are not there."""

    def __init__(self, cluster: Cluster) -> None:
        self.store = Store(["default-scheduler"])
        self.store.note_namespaces(seen=True)
        for name, labels in cluster.namespaces.items():
            self.store.put_namespace(Namespace(name, labels))
        for node in cluster.nodes:
            self.store.put_node(usable(decode_node(node)))
        for index, pod in enumerate(cluster.pods):
            self.store.put_pod(read_pod(pod, f"bound-{index}"))

    def list_feasible(self, pod: Raw) -> frozenset[str]:
        """The names of the nodes that the planner would take for a pod."""
        names = self.store.nodes.keys()
        found = {name: self.plan([pod], closed=frozenset(names - {name})) for name in names}
        return frozenset(name for name, answer in found.items() if isinstance(answer, Plan))

    def plan(
        self,
        members: Sequence[Raw],
        need: int | None = None,
        topology_key: str | None = None,
        closed: frozenset[str] = frozenset(),
    ) -> Plan | Verdict:
        """Where the planner would have the members, each of which has its number as its UID."""
        pods = [read_pod(member, str(index)) for index, member in enumerate(members)]
        for pod in pods:
            self.store.put_pod(pod)
        try:
            waiting = [self.store.pods[pod.uid] for pod in pods]
            # As the scheduler's request does: nobody fits anywhere with what nothing brings (`Pod.missing`).
            nowhere = [(pod.uid, node) for pod in waiting if pod.missing for node in self.store.nodes]
            count = len(pods) if need is None else need
            ask = PlanRequest(waiting, count, topology_key, excluded=frozenset(nowhere), closed=closed)
            return plan_gang(self.store.snapshots.take(ask.priority, waiting), ask, self.store.capacity)
        finally:
            for pod in pods:
                self.store.drop_pod(pod.uid)


def read_pod(pod: Raw, uid: str) -> Pod:
    """A pod as the feed reads it, with this UID."""
    return usable(decode_pod({**pod, "metadata": {**pod["metadata"], "uid": uid}}))
