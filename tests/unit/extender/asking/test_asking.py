"""An autoscaler is asked for nodes for one whole gang at a time, and for nothing else.

The scene: Karpenter with a NodePool of two zones; a node in each with room for one member; gangs whose members are held
by gate.
"""

from collections.abc import AsyncIterator, Iterable

import pytest

from extender.autoscalers import NO_AUTOSCALERS
from extender.features.asking.asking import Asking
from serried.api.names import ASKED, GroupKey, Key, write_time
from serried.api.verdict import Reason, render
from tests.support.autoscalers import ZONE, add_karpenter, node_pool, remove_autoscalers, set_pools
from tests.support.builders import NodeBuilder, PodBuilder, PodGroupBuilder, node, pod, pod_group
from tests.support.extender_harness import SCHEDULER, Harness
from tests.support.fake_api import error


@pytest.fixture
async def world() -> AsyncIterator[Harness]:
    made = Harness()
    await add_karpenter(made)
    made.add(zone_node("n-a", "a", cpus=1), zone_node("n-b", "b", cpus=1))
    yield made
    await made.close()


def zone_node(name: str, zone: str, cpus: int = 2) -> NodeBuilder:
    return node(name).cpu(cpus).label(ZONE, zone)


def new_node(world: Harness, name: str, zone: str = "a", cpus: int = 2) -> NodeBuilder:
    """A node that comes now."""
    return zone_node(name, zone, cpus).with_field(write_time(world.wall_time()), "metadata", "creationTimestamp")


def gang(name: str, need: int, key: str | None = ZONE) -> PodGroupBuilder:
    made = pod_group(name).gang(need)
    return made if key is None else made.topology(key)


def members(name: str, count: int) -> list[PodBuilder]:
    """Members of a gang, one CPU each, held by gate."""
    return [pod(f"{name}{number}").cpu(1).scheduler(SCHEDULER).in_group(name).gate() for number in range(count)]


def visible(world: Harness) -> set[str]:
    """The pods that an autoscaler would add nodes for."""
    return {
        key.name
        for key, raw in world.api.pods.items()
        if not raw["spec"].get("schedulingGates")
        and not raw["spec"].get("nodeName")
        and not raw.get("status", {}).get("nominatedNodeName")
    }


def selectors(world: Harness, names: Iterable[str]) -> list[dict[str, str]]:
    return [world.api.pods[Key("default", name)]["spec"].get("nodeSelector", {}) for name in names]


def said(world: Harness, name: str = "g") -> str:
    verdict = world.groups.states[GroupKey("default", name)].verdict
    assert verdict is not None
    return render(verdict)


async def wait_for_ask(world: Harness) -> None:
    """Let those who lack room do so for long enough to ask."""
    await world.run_until_idle()
    for _ in range(4):
        await world.pass_time(0.6)


async def test_a_whole_gang_asks_with_as_many_members_as_it_needs_and_says_where(world: Harness) -> None:
    await wait_for_ask(world.add(gang("g", 3), *members("g", 5)))
    assert visible(world) == {"g0", "g1", "g2"}
    assert selectors(world, ["g0", "g1", "g2", "g3"]) == [{ZONE: "a"}] * 3 + [{}]
    assert world.annotations("g0")[ASKED].endswith(f"{ZONE}=a")
    assert said(world).startswith(
        "AskingForNodes: Serried asks an autoscaler for nodes in a: only 1 of 3 members fit; asked at 2023-11-14"
    )


async def test_the_domain_that_lacks_the_fewest_members_is_asked_for(world: Harness) -> None:
    await wait_for_ask(world.add(zone_node("more", "b", cpus=1), gang("g", 4), *members("g", 4)))
    assert selectors(world, ["g0"]) == [{ZONE: "b"}]


@pytest.mark.parametrize(
    ("count", "reason"),
    [
        pytest.param(2, Reason.QUORUM_MISSING, id="that waits for members"),
        pytest.param(1, Reason.QUORUM_MISSING, id="of which one member exists"),
    ],
)
async def test_a_gang_asks_for_nothing(world: Harness, count: int, reason: Reason) -> None:
    await wait_for_ask(world.add(gang("g", 3), *members("g", count)))
    assert visible(world) == set()
    assert world.reasons()[-1] is reason


async def test_a_gang_that_fits_asks_for_nothing(world: Harness) -> None:
    await wait_for_ask(world.add(zone_node("free", "a", cpus=8), gang("g", 3), *members("g", 3)))
    assert world.reasons()[-1] is Reason.PLANNED
    assert not world.core.feature(Asking).asks


async def test_of_two_gangs_the_second_asks_when_the_first_is_placed(world: Harness) -> None:
    await world.add(gang("g", 3), *members("g", 3)).run_until_idle()
    await wait_for_ask(world.add(gang("h", 2), *members("h", 2)))
    assert visible(world) == {"g0", "g1", "g2"}
    assert said(world, "h").endswith("Serried asks for nodes for default/g first")
    await world.add(new_node(world, "came", cpus=2)).run_until_idle()
    assert world.binding_cycle().reservation.domain == "a"
    await wait_for_ask(world)
    assert visible(world) & {"h0", "h1"} == {"h0", "h1"}


async def test_the_first_in_line_asks_and_not_the_first_that_was_refused(world: Harness) -> None:
    await world.add(gang("low", 3), *members("low", 3)).run_until_idle()
    await wait_for_ask(world.add(gang("high", 3).priority(7), *(each.priority(7) for each in members("high", 3))))
    assert visible(world) == {"high0", "high1", "high2"}


async def test_a_node_that_came_is_kept_from_gangs_behind_until_the_one_that_asked_has_it(world: Harness) -> None:
    await wait_for_ask(world.add(gang("g", 4), *members("g", 4)))
    await world.add(new_node(world, "came", cpus=2), gang("h", 2), *members("h", 2)).run_until_idle()
    assert world.reasons(GroupKey("default", "h"))[-1] is Reason.BEHIND_HEAD
    assert said(world, "h").startswith(
        "BehindHead: 2 members would fit, but Serried keeps the free resources for default/g"
    )
    await world.add(new_node(world, "came-too", cpus=2)).run_until_idle()
    assert set(world.binding_cycle().reservation.nodes) >= {"came"}


async def test_a_gang_of_higher_priority_may_take_a_node_that_came_for_another(world: Harness) -> None:
    await wait_for_ask(world.add(gang("g", 4), *members("g", 4)))
    await world.add(gang("h", 2).priority(9), *(each.priority(9) for each in members("h", 2))).run_until_idle()
    await world.add(new_node(world, "came", cpus=2)).run_until_idle()
    assert world.binding_cycle(GroupKey("default", "h")).reservation.domain == "a"


async def test_members_that_are_shown_get_no_second_write(world: Harness) -> None:
    await wait_for_ask(world.add(gang("g", 3), *members("g", 3)))
    before = len(world.api.list_calls("ungate"))
    await world.pass_time(60.0)
    assert len(world.api.list_calls("ungate")) == before


async def test_after_its_time_the_next_gang_asks_and_nothing_is_kept_for_the_first(world: Harness) -> None:
    await world.add(gang("g", 4), *members("g", 4)).run_until_idle()
    await wait_for_ask(world.add(gang("h", 3), *members("h", 3)))
    await world.pass_time(600.0)
    assert said(world).startswith("NoNodesCame: an autoscaler added too few nodes in a: only 1 of 4 members fit")
    await wait_for_ask(world)
    assert said(world, "h").startswith("AskingForNodes")
    await world.add(new_node(world, "came", cpus=2)).run_until_idle()
    assert world.binding_cycle(GroupKey("default", "h")).reservation.domain == "a"


async def test_what_the_autoscaler_says_is_in_the_reason(world: Harness) -> None:
    await world.add(gang("g", 3), *members("g", 3)).run_until_idle()
    world.api.add_event("g0", "karpenter", "FailedScheduling", "all available instance types exceed limits")
    world.api.add_event("g0", "serried-scheduler", "FailedScheduling", "0/2 nodes are available")
    await wait_for_ask(world)
    await world.pass_time(10.0)
    expected = "Karpenter: FailedScheduling: all available instance types exceed limits"
    assert said(world).endswith(expected)


async def test_what_it_says_of_a_member_that_fits_no_node_is_told_though_it_says_nothing_of_the_first(
    world: Harness,
) -> None:
    await world.add(gang("g", 3), *members("g", 3)).run_until_idle()
    world.api.add_event("g2", "cluster-autoscaler", "NotTriggerScaleUp", "max node group size reached")
    await wait_for_ask(world)
    await world.pass_time(10.0)
    assert said(world).endswith("NotTriggerScaleUp: max node group size reached")


async def test_a_gang_that_comes_while_another_one_asks_says_after_whom_it_may(world: Harness) -> None:
    await wait_for_ask(world.add(gang("g", 3), *members("g", 3)))
    await wait_for_ask(world.add(gang("h", 2), *members("h", 2)))
    assert said(world, "h").endswith("Serried asks for nodes for default/g first")


async def test_a_gang_that_was_refused_before_an_autoscaler_was_found_asks_when_it_is(world: Harness) -> None:
    await remove_autoscalers(world)
    await wait_for_ask(world.add(gang("g", 3), *members("g", 3)))
    assert visible(world) == set()
    await add_karpenter(world)
    await wait_for_ask(world)
    assert visible(world) == {"g0", "g1", "g2"}


async def test_what_was_asked_in_the_term_before_stays_until_it_is_known_which_autoscalers_there_are(
    world: Harness,
) -> None:
    await wait_for_ask(world.add(gang("g", 3), *members("g", 3)))
    asking = world.core.feature(Asking)
    before = asking.asks[GroupKey("default", "g")].at
    asking.end_term()
    world.core.autoscalers.seen, world.core.autoscalers.known = NO_AUTOSCALERS, False
    asking.recover([])
    await world.pass_time(2.0)
    await add_karpenter(world)
    await wait_for_ask(world)
    assert asking.asks[GroupKey("default", "g")].at == before


async def test_a_gang_whose_pod_group_is_deleted_asks_no_more(world: Harness) -> None:
    await wait_for_ask(world.add(gang("g", 3), *members("g", 3)))
    world.store.drop_group(GroupKey("default", "g"))
    await world.pass_time(1.0)
    assert not world.core.feature(Asking).asks


async def test_a_leader_that_dies_between_two_writes_leaves_what_the_next_one_needs(world: Harness) -> None:
    await world.add(gang("g", 3), *members("g", 3)).run_until_idle()
    raw = world.api.pods[Key("default", "g0")]
    raw["spec"] = {**raw["spec"], "schedulingGates": [], "nodeSelector": {ZONE: "b"}}
    raw["metadata"].setdefault("annotations", {})[ASKED] = f"{write_time(world.wall_time())} {ZONE}=b"
    world.sync_pods()
    world.core.feature(Asking).end_term()
    world.core.feature(Asking).recover([])
    await wait_for_ask(world.add(gang("h", 2), *members("h", 2)))
    assert visible(world) == {"g0", "g1", "g2"}
    assert selectors(world, ["g0", "g1", "g2"]) == [{ZONE: "b"}] * 3


async def test_a_gang_that_shrinks_while_it_asks_is_completed_in_the_same_domain(world: Harness) -> None:
    await wait_for_ask(world.add(gang("g", 3), *members("g", 3)))
    world.delete("g1")
    await world.run_until_idle()
    assert world.reasons()[-1] is Reason.QUORUM_MISSING
    await wait_for_ask(world.add(*members("g", 4)[3:]))
    assert visible(world) == {"g0", "g2", "g3"}
    assert selectors(world, ["g3"]) == [{ZONE: "a"}]


async def test_a_member_that_cannot_be_shown_is_said_and_tried_again(world: Harness) -> None:
    await world.add(gang("g", 2), *members("g", 2)).run_until_idle()
    world.api.fail("ungate", error(403, "Forbidden"))
    await wait_for_ask(world)
    assert "could not write the request for nodes into g0" in said(world)
    await world.pass_time(6.0)
    assert visible(world) == {"g0", "g1"}
    await world.run_until_idle()
    assert "could not write the request for nodes into g0" not in said(world)


async def test_beside_an_autoscaler_a_gang_that_no_gate_holds_says_that_nodes_may_come_early(world: Harness) -> None:
    ungated = [pod(f"g{number}").cpu(1).scheduler(SCHEDULER).in_group("g") for number in range(2)]
    await world.add(gang("g", 3), *ungated).run_until_idle()
    assert said(world).endswith(
        "its members have no scheduling gate, so Karpenter may add nodes before the gang can start"
    )


async def test_without_an_autoscaler_nobody_asks(world: Harness) -> None:
    await remove_autoscalers(world)
    await wait_for_ask(world.add(gang("g", 3), *members("g", 3)))
    assert visible(world) == set()
    assert world.reasons()[-1] is Reason.NO_DOMAIN_FITS


async def test_an_autoscaler_that_is_gone_is_asked_no_more(world: Harness) -> None:
    await wait_for_ask(world.add(gang("g", 3), *members("g", 3)))
    await remove_autoscalers(world)
    await world.run_until_idle()
    assert not world.core.feature(Asking).asks


async def test_a_gang_whose_pods_consume_a_request_of_others_asks_for_nothing(world: Harness) -> None:
    consuming = [
        each.annotation("autoscaling.x-k8s.io/consume-provisioning-request", "kueue") for each in members("g", 3)
    ]
    await wait_for_ask(world.add(gang("g", 3), *consuming))
    assert visible(world) == set()


@pytest.mark.parametrize(
    ("pool", "zone"),
    [
        pytest.param(node_pool(zones=("b",)), "b", id="in the zone that is left"),
        pytest.param(node_pool(limits={"cpu": "1"}), None, id="nowhere where its limits hold too little"),
    ],
)
async def test_the_node_pools_of_the_moment_count_and_not_those_of_the_last_look(
    world: Harness, pool: dict[str, object], zone: str | None
) -> None:
    set_pools(world, pool)
    await wait_for_ask(world.add(gang("g", 3), *members("g", 3)))
    assert selectors(world, ["g0"]) == [{} if zone is None else {ZONE: zone}]


async def test_a_gang_asks_by_the_room_of_that_moment_and_not_by_its_first_refusal(world: Harness) -> None:
    await world.add(gang("g", 3), *members("g", 3)).run_until_idle()
    world.add(pod("other").cpu(1).on("n-a"))  # what is taken wakes nobody
    await wait_for_ask(world)
    assert selectors(world, ["g0"]) == [{ZONE: "b"}]
    assert said(world).startswith("AskingForNodes: Serried asks an autoscaler for nodes in b: only 1 of 3 members fit")


def gpu_members(count: int) -> list[PodBuilder]:
    """Members of gang g that need a GPU each, which no node has."""
    return [each.request("nvidia.com/gpu", 1) for each in members("g", count)]


async def test_a_gang_that_needs_the_first_gpu_of_the_cluster_asks_when_it_is_whole(world: Harness) -> None:
    await wait_for_ask(world.add(gang("g", 2), *gpu_members(1)))
    assert visible(world) == set()
    await wait_for_ask(world.add(*gpu_members(2)[1:]))
    assert visible(world) == {"g0", "g1"}
    assert selectors(world, ["g0", "g1"]) == [{ZONE: "a"}] * 2
    assert said(world).startswith("AskingForNodes: Serried asks an autoscaler for nodes in a: only 0 of 2 members fit")
    await world.add(new_node(world, "gpus", cpus=8).allocatable("nvidia.com/gpu", 2)).run_until_idle()
    assert world.binding_cycle().reservation.domain == "a"


async def test_of_two_gangs_that_need_the_first_gpu_one_asks(world: Harness) -> None:
    others = [each.request("nvidia.com/gpu", 1) for each in members("h", 2)]
    world.add(gang("g", 2), *gpu_members(2), gang("h", 2), *others)
    await wait_for_ask(world)
    assert visible(world) in ({"g0", "g1"}, {"h0", "h1"})


async def test_a_gang_that_can_run_nowhere_for_another_reason_keeps_its_gates(world: Harness) -> None:
    claims = [{"name": "gpu", "resourceClaimTemplateName": "one"}]
    claiming = [each.with_field(claims, "spec", "resourceClaims") for each in members("g", 2)]
    await wait_for_ask(world.add(gang("g", 2), *claiming))
    assert visible(world) == set()
    assert "has no ResourceClaim from template one yet" in said(world)
