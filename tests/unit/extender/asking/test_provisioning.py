"""Cluster Autoscaler is asked by one ProvisioningRequest for a whole gang, whose members stay behind their gates."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from extender.features.asking.asking import Asking
from extender.features.asking.provisioning import Answer, name_request, read_answer
from serried.api.names import CONSUMES, GroupKey, Key, write_time
from serried.api.verdict import Reason, render
from tests.support.autoscalers import ZONE, add_cluster_autoscaler
from tests.support.builders import NodeBuilder, PodBuilder, PodGroupBuilder, node, pod, pod_group
from tests.support.extender_harness import GANG, SCHEDULER, Harness
from tests.support.fake_api import error

CLASS = "best-effort-atomic-scale-up.autoscaling.x-k8s.io"
HELD = [{"name": "scheduling.serried.dev/held"}]


@pytest.fixture
async def world() -> AsyncIterator[Harness]:
    made = Harness()
    await add_cluster_autoscaler(made)
    made.add(zone_node("n-a", "a", cpus=1))
    yield made
    await made.close()


def zone_node(name: str, zone: str, cpus: int = 2) -> NodeBuilder:
    return node(name).cpu(cpus).label(ZONE, zone)


def gang(name: str, need: int) -> PodGroupBuilder:
    return pod_group(name).gang(need).topology(ZONE)


def members(name: str, count: int, cpu: int = 1) -> list[PodBuilder]:
    return [pod(f"{name}{number}").cpu(cpu).scheduler(SCHEDULER).in_group(name).gate() for number in range(count)]


def requests(world: Harness) -> list[dict[str, Any]]:
    return list(world.api.owners["provisioningrequests"].values())


def templates(world: Harness) -> list[dict[str, Any]]:
    return list(world.api.owners["podtemplates"].values())


def said(world: Harness, name: str = "g") -> str:
    verdict = world.groups.states[GroupKey("default", name)].verdict
    assert verdict is not None
    return render(verdict)


async def wait_for_ask(world: Harness) -> None:
    await world.run_until_idle()
    for _ in range(4):
        await world.pass_time(0.6)


async def test_one_request_counts_all_members_that_the_gang_needs_by_their_kind(world: Harness) -> None:
    await wait_for_ask(world.add(gang("g", 3), *members("g", 2), members("g", 3, cpu=2)[2], *members("g", 5)[3:]))
    [request] = requests(world)
    assert request["spec"]["provisioningClassName"] == CLASS
    assert sorted(each["count"] for each in request["spec"]["podSets"]) == [1, 2]
    named = {each["podTemplateRef"]["name"] for each in request["spec"]["podSets"]}
    assert named == {each["metadata"]["name"] for each in templates(world)}
    for each in templates(world):
        assert each["template"]["spec"]["nodeSelector"] == {ZONE: "a"}
        assert "schedulingGates" not in each["template"]["spec"]
        assert each["metadata"]["ownerReferences"][0]["name"] == request["metadata"]["name"]


async def test_its_members_consume_it_and_stay_behind_their_gates(world: Harness) -> None:
    await wait_for_ask(world.add(gang("g", 3), *members("g", 4)))
    name = requests(world)[0]["metadata"]["name"]
    assert [world.annotations(f"g{each}").get(CONSUMES) for each in range(4)] == [name] * 3 + [None]
    assert all(raw["spec"]["schedulingGates"] == HELD for raw in world.api.pods.values())
    assert said(world).startswith("AskingForNodes: Serried asks an autoscaler for nodes in a: only")


async def test_it_goes_when_the_gang_has_its_room(world: Harness) -> None:
    await wait_for_ask(world.add(gang("g", 3), *members("g", 3)))
    came = zone_node("came", "a").with_field(write_time(world.wall_time()), "metadata", "creationTimestamp")
    await world.add(came).run_until_idle()
    assert world.binding_cycle().reservation.domain == "a"
    assert requests(world) == []


async def test_a_request_that_cannot_be_deleted_is_deleted_later(world: Harness) -> None:
    await wait_for_ask(world.add(gang("g", 3), *members("g", 3)))
    world.api.fail("delete", error(403, "Forbidden"), error(403, "Forbidden"))
    world.store.drop_group(GANG)
    await world.pass_time(1.0)
    assert len(requests(world)) == 1
    await world.pass_time(6.0)
    assert len(requests(world)) == 1
    await world.pass_time(6.0)
    await world.run_until_idle()
    assert requests(world) == []
    assert not world.core.feature(Asking).busy


async def test_a_refusal_is_a_reason_and_the_next_gang_asks_at_once(world: Harness) -> None:
    await world.add(gang("g", 3), *members("g", 3)).run_until_idle()
    await wait_for_ask(world.add(gang("h", 2), *members("h", 2)))
    condition = {"type": "Provisioned", "status": "False", "reason": "CapacityIsNotFound", "message": "no group grows"}
    requests(world)[0]["status"] = {"conditions": [condition]}
    await world.pass_time(6.0)
    assert said(world).startswith("NoNodesCame: an autoscaler added too few nodes in a: only 1 of 3 members fit")
    assert said(world).endswith("Cluster Autoscaler: CapacityIsNotFound: no group grows")
    await wait_for_ask(world)
    assert [each["metadata"]["name"].rpartition("-")[0] for each in requests(world)] == ["serried-h"]


async def test_after_the_others_a_gang_behind_its_gates_asks_once_more(world: Harness) -> None:
    await wait_for_ask(world.add(gang("g", 3), *members("g", 3)))
    first = requests(world)[0]["metadata"]["name"]
    await world.pass_time(600.0)
    assert world.reasons()[-1] is Reason.NO_NODES_CAME
    await world.pass_time(601.0)
    await wait_for_ask(world)
    [second] = requests(world)
    assert second["metadata"]["name"] != first
    assert world.annotations("g0")[CONSUMES] == second["metadata"]["name"]


async def test_a_request_that_somebody_deletes_is_made_again(world: Harness) -> None:
    await wait_for_ask(world.add(gang("g", 3), *members("g", 3)))
    world.api.owners["provisioningrequests"].clear()
    await world.pass_time(6.0)
    await world.pass_time(1.0)
    assert len(requests(world)) == 1


async def test_a_leader_that_dies_before_it_has_made_the_templates_leaves_a_name_to_go_on_with(world: Harness) -> None:
    world.api.reject("get", Key("default", "g0"), error(0))
    await wait_for_ask(world.add(gang("g", 3), *members("g", 3)))
    assert (len(requests(world)), templates(world)) == (1, [])
    assert "could not create the ProvisioningRequest" in said(world)
    world.api.recover()
    await world.pass_time(6.0)
    assert (len(requests(world)), len(templates(world))) == (1, 1)


async def test_a_request_of_which_some_templates_exist_is_completed_without_the_right_to_read_them(
    world: Harness,
) -> None:
    kinds = [*members("g", 1), members("g", 2, cpu=2)[1]]
    world.api.reject("get", Key("default", "g1"), error(0))
    await wait_for_ask(world.add(gang("g", 2), *kinds))
    assert (len(requests(world)), len(templates(world))) == (1, 1)
    world.api.recover()
    await world.pass_time(6.0)
    assert len(templates(world)) == 2
    assert "podtemplates" not in {call.resource for call in world.api.list_calls("get")}
    assert world.core.feature(Asking).asks[GANG].request_exists


async def test_a_request_is_completed_when_a_member_of_which_a_template_was_to_be_made_is_replaced(
    world: Harness,
) -> None:
    world.api.reject("get", Key("default", "g0"), error(404, "NotFound"))
    await wait_for_ask(world.add(gang("g", 3), *members("g", 3)))
    assert (len(requests(world)), templates(world)) == (1, [])
    world.api.recover()
    await world.pass_time(6.0)
    assert (len(requests(world)), len(templates(world))) == (1, 1)


async def test_a_new_term_deletes_the_request_of_a_gang_that_is_placed_before_it_has_read_it(world: Harness) -> None:
    await wait_for_ask(world.add(gang("g", 3), *members("g", 3)))
    world.core.feature(Asking).end_term()
    world.core.feature(Asking).recover([])
    came = zone_node("came", "a").with_field(write_time(world.wall_time()), "metadata", "creationTimestamp")
    await world.add(came).run_until_idle()
    assert world.binding_cycle().reservation.domain == "a"
    assert requests(world) == []


async def test_members_that_are_shown_after_all_consume_no_request_any_more(world: Harness) -> None:
    await wait_for_ask(world.add(gang("g", 3), *members("g", 3)))
    await world.pass_time(600.0)
    world.api.api_groups.clear()
    await world.core.autoscalers.refresh()
    await world.pass_time(601.0)
    await wait_for_ask(world)
    for raw in world.api.pods.values():
        assert not raw["spec"].get("schedulingGates")
        assert not any(key.startswith("autoscaling.x-k8s.io/") for key in raw["metadata"]["annotations"])


async def test_a_new_term_goes_on_with_the_same_request(world: Harness) -> None:
    await wait_for_ask(world.add(gang("g", 3), *members("g", 3)))
    before = requests(world)[0]["metadata"]["uid"]
    world.core.feature(Asking).end_term()
    world.core.feature(Asking).recover([])
    world.groups.states[GANG].entry.force_retry()
    world.groups.mark_dirty(GANG)
    await wait_for_ask(world)
    await world.pass_time(6.0)
    assert [each["metadata"]["uid"] for each in requests(world)] == [before]
    assert world.core.feature(Asking).asks[GANG].request_exists


@pytest.mark.parametrize(
    ("conditions", "answer"),
    [
        pytest.param([], Answer("", rejected=False), id="nothing"),
        pytest.param(
            [{"type": "Accepted", "status": "True", "reason": "Accepted", "message": "seen"}],
            Answer("Accepted: seen", rejected=False),
            id="that it was accepted",
        ),
        pytest.param(
            [
                {"type": "Accepted", "status": "True", "reason": "Accepted", "message": "seen"},
                {"type": "Failed", "status": "True", "reason": "Invalid", "message": "no template"},
            ],
            Answer("Invalid: no template", rejected=True),
            id="that it failed",
        ),
        pytest.param(
            [
                {"type": "Failed", "status": "False", "reason": "x", "message": ""},
                {"type": "Provisioned", "status": "True", "reason": "CapacityIsProvisioned", "message": "done"},
            ],
            Answer("CapacityIsProvisioned: done", rejected=False),
            id="that nodes come",
        ),
    ],
)
def test_cluster_autoscaler_says(conditions: list[dict[str, str]], answer: Answer) -> None:
    assert read_answer({"status": {"conditions": conditions}}) == answer


def test_the_name_of_a_request_is_one_that_the_api_takes() -> None:
    name = name_request(GroupKey("default", "g" * 250), 1_700_000_000)
    assert len(name) <= 253 - len("-31")
    assert Key("default", name)
