"""A plan that still holds after changes is one whose members kube-scheduler would take where it has them, in its order.

The rules are those of `tests.support.truth.rules`, with no code of the planner.
"""

import copy
from collections.abc import Set
from dataclasses import replace
from random import Random

from hypothesis import event, given
from hypothesis import strategies as st

from serried.api.interpod import Namespace
from serried.api.node import decode_node
from serried.plan.gang import plan_gang
from serried.plan.request import Plan
from serried.plan.revalidate import revalidate
from tests.support.builders import require_valid
from tests.support.truth.ours import SerriedPlanner, read_pod
from tests.support.truth.rules import Cluster, Raw, list_feasible
from tests.support.truth.worlds import COUNTED, HOSTNAME, RACK, ZONE, Draws, as_stored

sources = st.integers(0, 1 << 32).map(Random)


class Changing:
    """A cluster that changes, as kube-scheduler's rules see it and as a Store does."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._draws = Draws(random, COUNTED)
        drawn = self._draws.cluster()
        self.cluster = replace(drawn, pods=[as_stored(pod) for pod in drawn.pods])
        self.members = [as_stored(member) for member in self._draws.gang(most_members=4)]
        self.ours = SerriedPlanner(self.cluster)
        self.ours.add_members(self.members)
        self._uids = [f"bound-{index}" for index in range(len(self.cluster.pods))]

    def change(self, planned: Set[str]) -> None:
        """Something changes, most often on one of the nodes that are ``planned``."""
        kinds = ["node", "node", "drop node", "namespace", "pod comes", "pod comes", "pod comes"]
        kinds += ["pod goes", "pod changes", "pod changes"] if self._uids else []
        kind = self._random.choice(kinds)
        nodes, pods = list(self.cluster.nodes), list(self.cluster.pods)
        match kind:
            case "node":
                self._change_node(nodes)
            case "drop node" if len(nodes) > 1:
                self.ours.store.drop_node(nodes.pop(self._random.randrange(len(nodes)))["metadata"]["name"])
            case "namespace":
                self._change_namespace()
            case "pod comes":
                pod = as_stored(self._draws.pod("new"))
                names = [node["metadata"]["name"] for node in nodes]
                pod["spec"]["nodeName"] = self._random.choice([*names, *sorted(planned & set(names)) * 2])
                pods.append(pod)
                self._uids.append(f"new-{len(pods)}-{self._random.random()}")
                self.ours.store.put_pod(read_pod(pod, self._uids[-1]))
            case "pod goes":
                at = self._random.randrange(len(pods))
                del pods[at]
                self.ours.store.drop_pod(self._uids.pop(at))
            case "pod changes":
                at = self._random.randrange(len(pods))
                pods[at] = self._vary(pods[at])
                self.ours.store.put_pod(read_pod(pods[at], self._uids[at]))
        self.cluster = replace(self.cluster, nodes=nodes, pods=pods)

    def _change_node(self, nodes: list[Raw]) -> None:
        at = self._random.randrange(len(nodes))
        found = copy.deepcopy(nodes[at])
        match self._random.choice(["label", "taint", "cordon", "resize"]):
            case "label":
                found["metadata"]["labels"][self._random.choice([RACK, ZONE])] = self._random.choice(["a", "b", "r1"])
            case "taint":
                found["spec"]["taints"] = [{"key": "dedicated", "effect": "NoSchedule", "value": "x"}]
            case "cordon":
                found["spec"]["unschedulable"] = not found["spec"].get("unschedulable", False)
            case "resize":
                found["status"]["allocatable"]["cpu"] = self._random.choice(["1", "4", "16"])
        nodes[at] = found
        self.ours.store.put_node(require_valid(decode_node(found)))

    def _change_namespace(self) -> None:
        name = self._random.choice(sorted(self.cluster.namespaces))
        labels = {**self.cluster.namespaces[name], "team": self._random.choice(["red", "blue", "none"])}
        self.cluster = replace(self.cluster, namespaces={**self.cluster.namespaces, name: labels})
        self.ours.store.put_object(Namespace(name, labels))

    def _vary(self, pod: Raw) -> Raw:
        found = copy.deepcopy(pod)
        if self._random.random() < 0.5:
            found["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        else:
            found["metadata"]["labels"]["app"] = self._random.choice("abc")
        return found


def come_in_order(cluster: Cluster, members: list[Raw], plan: Plan, key: str | None) -> bool:
    """Return whether kube-scheduler finds the planned node for each member, after those before it, in one domain."""
    labels = {node["metadata"]["name"]: node["metadata"]["labels"] for node in cluster.nodes}
    for uid, node in plan.nodes.items():
        if key is not None and labels.get(node, {}).get(key) != plan.domain:
            return False
        if node not in list_feasible(cluster, members[int(uid)]):
            return False
        cluster = cluster.joined_by(members[int(uid)], node)
    return True


@given(random=sources, key=st.sampled_from([None, RACK, ZONE, HOSTNAME]))
def test_a_plan_that_still_holds_is_one_that_kube_scheduler_would_carry_out(random: Random, key: str | None) -> None:
    world = Changing(random)
    store, count = world.ours.store, len(world.members)
    need = random.randint(1, count)
    ask = world.ours.ask(count, need, key)
    then = dict(store.nodes)
    plan = plan_gang(store.snapshots.take(0, ask.members), ask, store.capacity)
    if not isinstance(plan, Plan):
        event("no plan")
        return
    assert come_in_order(world.cluster, world.members, plan, key)
    for _ in range(random.randint(0, 6)):
        world.change(frozenset(plan.nodes.values()))
        now = world.ours.ask(count, need, key)
        holds = revalidate(plan, now, then, store.snapshots.take(0, now.members))
        carried = come_in_order(world.cluster, world.members, plan, key)
        event(f"holds: {holds}, would be carried out: {carried}")
        assert not holds or carried
