"""Members whose node is chosen already: a nodeSelector names a host, as Kueue's topology-aware scheduling does."""

from dataclasses import replace

import pytest

from serried.api.interpod import HOSTNAME
from serried.api.pod import Pod
from serried.api.verdict import Reason, Verdict
from serried.plan.gang import plan_gang
from serried.plan.limit import Limit
from serried.plan.request import Plan, PlanRequest, Snapshot
from tests.support.builders import RACK, node, pod
from tests.support.rules import PLAN_RULES

MEMBERS = 512


def cluster(count: int, used: dict[str, int] | None = None) -> Snapshot:
    """Nodes n0, n1, ... of 8 CPUs, 64 in a rack."""
    nodes = [node(f"n{at}").label(HOSTNAME, f"n{at}").rack(f"r{at // 64}").cpu(8).value() for at in range(count)]
    taken = {name: {"cpu": cpus * 1000, "pods": 1} for name, cpus in (used or {}).items()}
    return Snapshot({each.name: each for each in nodes}, taken, rules=PLAN_RULES)


def bound_for(*hosts: str) -> list[Pod]:
    """Members p0, p1, ... of one CPU, each for one host."""
    made = [pod(f"p{at}").uid(f"p{at}").cpu(1) for at in range(len(hosts))]
    return [each.node_selector(HOSTNAME, host).value() for each, host in zip(made, hosts, strict=True)]


@pytest.mark.parametrize(
    ("key", "hosts"),
    [
        pytest.param(None, [f"n{at * 3}" for at in range(MEMBERS)], id="one on each host, in all racks"),
        pytest.param(None, [f"n{at // 8}" for at in range(MEMBERS)], id="eight on each host"),
        pytest.param(RACK, [f"n{at // 8}" for at in range(MEMBERS)], id="eight on each host of the required rack"),
    ],
)
def test_a_large_gang_is_planned_onto_exactly_its_hosts(key: str | None, hosts: list[str]) -> None:
    plan = plan_gang(cluster(2_000), PlanRequest(bound_for(*hosts), MEMBERS, topology_key=key))
    assert isinstance(plan, Plan)
    assert plan.nodes == {f"p{at}": host for at, host in enumerate(hosts)}
    assert plan.domain == ("r0" if key else "")


@pytest.mark.parametrize("key", [None, RACK], ids=["anywhere", "in one rack"])
def test_no_member_is_looked_at_on_every_node(key: str | None) -> None:
    """Each selector makes a class of its own: 512 classes by 2,000 nodes would be a million questions."""
    limit = Limit()
    snapshot = replace(cluster(2_000), limit=limit)
    plan_gang(snapshot, PlanRequest(bound_for(*(f"n{at // 8}" for at in range(MEMBERS))), MEMBERS, topology_key=key))
    assert limit.spent < 40 * MEMBERS


def test_one_full_host_keeps_the_whole_gang_waiting() -> None:
    refusal = plan_gang(cluster(64, used={"n3": 8}), PlanRequest(bound_for("n2", "n3", "n4"), 3))
    assert isinstance(refusal, Verdict)
    assert (refusal.reason, refusal.have, refusal.need) == (Reason.NO_CAPACITY, 2, 3)


def test_hosts_of_two_racks_are_no_rack() -> None:
    refusal = plan_gang(cluster(128), PlanRequest(bound_for("n0", "n64"), 2, topology_key=RACK))
    assert isinstance(refusal, Verdict)
    assert refusal.reason is Reason.NO_DOMAIN_FITS


def test_a_member_without_a_host_goes_beside_those_that_have_one() -> None:
    members = [*bound_for("n64", "n65"), pod("free").uid("free").cpu(1).value()]
    plan = plan_gang(cluster(128), PlanRequest(members, 3, topology_key=RACK))
    assert isinstance(plan, Plan)
    assert plan.domain == "r1"
    assert (plan.nodes["p0"], plan.nodes["p1"]) == ("n64", "n65")
