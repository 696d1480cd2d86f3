"""Members that are bound because one of their kind was judged."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from extender.options import Alike
from extender.protocol import Answer, Steer
from extender.scheduling import alike
from extender.scheduling.binding_cycle import CycleStage
from tests.support.builders import PodBuilder, node, pod, pod_group
from tests.support.extender_harness import SCHEDULER, BindCall, Harness, members, small_nodes

ASKS_FOR_A_FEATURE = {"name": "main", "resources": {"requests": {"cpu": "1"}}, "restartPolicyRules": [{}]}

MEMBERS = ["m0", "m1", "m2", "m3", "m4", "m5", "m6", "m7"]
NEXT, REST = MEMBERS[1:5], MEMBERS[5:]
"""Those to which kube-scheduler comes next, and those to which it need not come any more."""


@pytest.fixture
async def together() -> AsyncIterator[Harness]:
    """Six nodes of four CPUs; a gang has run whose only member was like those of gang g: it came to its bind call."""
    made = Harness(alike=Alike.TOGETHER)
    made.add(*small_nodes(6, cpus=4), pod_group("before").gang(1), pod("first").cpu(1).in_group("before"))
    await made.go()
    made.filter("first")
    call = made.bind("first")
    await made.go()
    assert call.error == ""
    yield made
    await made.close()


async def plan(world: Harness, *pods: PodBuilder) -> None:
    """Gang g of these pods is planned."""
    await world.add(pod_group("g").gang(len(pods)), *pods).go()
    assert world.cycle().stage is CycleStage.GATHERING


async def bind(world: Harness, name: str) -> BindCall:
    call = world.bind(name)
    await world.go()
    return call


async def ask(world: Harness, name: str, *nodes: str, written: Sequence[str] = ()) -> Answer:
    """kube-scheduler asks about a member, and waits for the answer; before it has it, it has ``written`` on others."""
    answer = world.filter(name, *nodes)
    if isinstance(answer, Steer) and not answer.alone:
        waiting = asyncio.create_task(world.service.wait_for_mates())
        await asyncio.sleep(0)
        await world.go()
        for other in written:
            assert not world.node_of(other)
            world.give_up(other)
            world.api.pods[world.pod_key(other)]["metadata"]["resourceVersion"] = "later"
        await world.go()
        async with asyncio.timeout(5):
            await waiting
    return answer


def bound(world: Harness) -> list[str]:
    return [name for name in MEMBERS if world.node_of(name)]


class TestOneIsJudgedForAll:
    async def test_when_the_scheduler_asks_about_one_the_others_are_bound_and_then_it_is(
        self, together: Harness
    ) -> None:
        await plan(together, *members(8))
        answer = await ask(together, "m0")
        assert isinstance(answer, Steer)
        assert not answer.alone
        await together.go()
        assert bound(together) == REST
        assert (await bind(together, "m0")).error == ""
        for name in NEXT:
            await ask(together, name)
            assert (await bind(together, name)).error == ""
        assert bound(together) == MEMBERS
        assert together.nothing_reserved

    async def test_the_commit_is_recorded_with_all_of_them_before_a_binding_leaves(self, together: Harness) -> None:
        await plan(together, *members(8))
        await ask(together, "m0")
        uids = {together.pod(name).uid for name in MEMBERS}
        assert together.cycle().reservation.committed == uids

    async def test_the_answer_waits_for_the_others(self, together: Harness) -> None:
        await plan(together, *members(8))
        together.filter("m0")
        waiting = asyncio.create_task(together.service.wait_for_mates())
        await asyncio.sleep(0)
        assert not waiting.done()
        await together.go()
        async with asyncio.timeout(5):
            await waiting

    async def test_a_bind_call_that_never_comes_is_not_waited_for_for_ever(self, together: Harness) -> None:
        await plan(together, *members(8))
        await ask(together, "m0")
        assert bound(together) == REST
        await together.pass_time(4)
        assert bound(together) == MEMBERS

    async def test_a_member_whose_room_a_plain_pod_has_got_meanwhile_gets_another_node(self, together: Harness) -> None:
        await plan(together, *members(8))
        await ask(together, "m0")
        last = together.cycle().reservation.slots[together.pod("m1").uid].node
        together.add(pod("p").cpu(4).scheduler(SCHEDULER).on(last))
        async with asyncio.timeout(5):  # a refused Binding rests by the real clock
            while bound(together) != MEMBERS:
                await together.pass_time(1)
                await asyncio.sleep(0.02)
        assert together.node_of("m1") != last

    async def test_no_binding_leaves_while_the_scheduler_does_not_wait_and_is_at_work(self, together: Harness) -> None:
        """It may be about to try one that it learns is bound: it could not assume it, and would write so."""
        await plan(together, *members(8))
        together.filter("m0")
        await together.go()
        assert together.cycle().reservation.committed
        assert bound(together) == []
        await together.pass_time(4)
        assert bound(together) == MEMBERS

    async def test_a_member_that_was_just_turned_away_is_bound_when_that_is_written(self, together: Harness) -> None:
        """kube-scheduler's word that it found no node must not come after the Binding."""
        together.add(*members(8))
        together.filter("m7")
        await plan(together, *members(8))
        await ask(together, "m0", written=["m7"])
        assert bound(together) == REST

    async def test_nobody_is_bound_as_long_as_one_of_them_has_to_wait(self, together: Harness) -> None:
        together.add(*members(8))
        together.filter("m7")
        await plan(together, *members(8))
        together.filter("m0")
        waiting = asyncio.create_task(together.service.wait_for_mates())
        await asyncio.sleep(0)
        await together.go()
        assert together.cycle().reservation.committed
        assert bound(together) == []
        together.give_up("m7")
        together.api.pods[together.pod_key("m7")]["metadata"]["resourceVersion"] = "later"
        await together.go()
        assert bound(together) == REST
        await waiting

    async def test_a_member_whose_binding_is_on_its_way_is_answered_at_once(self, together: Harness) -> None:
        """kube-scheduler has it in hand already, and must assume it before it learns that it is bound."""
        await plan(together, *members(8))
        together.api.hold("bind")
        together.filter("m0")
        waiting = asyncio.create_task(together.service.wait_for_mates())
        await together.go()
        answer = together.filter("m7")
        assert isinstance(answer, Steer)
        assert answer.alone
        together.api.let_go("bind")
        await together.go()
        await waiting
        assert (await bind(together, "m7")).error == ""

    async def test_a_scheduler_that_has_not_seen_that_a_member_is_bound_is_sent_to_its_node(
        self, together: Harness
    ) -> None:
        """Whatever else it is told, it writes on the bound pod that it could not be scheduled."""
        await plan(together, *members(8))
        await ask(together, "m0")
        await together.pass_time(4)
        assert together.nothing_reserved
        assert together.filter("m5") == Steer(together.node_of("m5"))
        late = together.bind("m5", together.node_of("m5"))
        await together.go()
        assert late.error == ""

    async def test_slots_move_to_the_nodes_that_were_offered(self, together: Harness) -> None:
        await plan(together, *members(8))
        await ask(together, "m0", "n5", "n6")
        assert {together.node_of(name) for name in REST} <= {"n5", "n6"}

    async def test_nobody_is_woken_but_the_one_that_is_judged(self, together: Harness) -> None:
        together.nominate()
        together.add(*members(4))
        for name in MEMBERS[:4]:
            together.filter(name)  # there is no gang yet, so they are held
        await together.add(pod_group("g").gang(4)).go()
        assert len(together.api.said("activate")) == 1
        assert together.api.said("nominate") == []

    async def test_all_are_woken_if_nobody_comes_to_be_judged(self, together: Harness) -> None:
        together.nominate()
        together.add(*members(4))
        for name in MEMBERS[:4]:
            together.filter(name)
        await together.add(pod_group("g").gang(4)).go()
        await together.pass_time(1)
        assert len({call.name for call in together.api.said("nominate")}) == 4

    async def test_nobody_is_woken_while_others_are_judged(
        self, together: Harness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A nomination costs as much as a Binding, and the next answer may be about them."""
        monkeypatch.setattr(alike, "_MAX_SENT", 7)
        together.nominate()
        together.add(*[pod(f"o{index}").cpu(1).in_group("other") for index in range(4)])
        for index in range(4):
            together.filter(f"o{index}")
        together.add(pod_group("other").gang(4))
        await plan(together, *members(8))
        await together.pass_time(0.4)
        await ask(together, "m0")
        await together.pass_time(0.2)
        assert not together.api.said("nominate")
        async with asyncio.timeout(5):  # it is looked at again by the real clock
            while not together.api.said("nominate"):
                await together.pass_time(1)
                await asyncio.sleep(0.02)
        assert {call.name for call in together.api.said("nominate")} == {"o0", "o1", "o2", "o3"}

    async def test_other_gangs_of_the_kind_that_are_planned_are_bound_on_the_same_word(self, together: Harness) -> None:
        more = [pod(f"o{index}").cpu(1).in_group("other") for index in range(4)]
        together.add(pod_group("other").gang(4), *more)
        await plan(together, *members(8))
        await ask(together, "m0")
        assert bound(together) == REST
        assert all(together.node_of(f"o{index}") for index in range(4))

    @pytest.mark.parametrize(
        ("plain", "also"),
        [
            pytest.param([], ["o0", "o1", "o2", "o3"], id="the next member of the gang has more gangs bound"),
            pytest.param([pod("p").cpu(1).scheduler(SCHEDULER)], [], id="but a plain pod that waits comes first"),
        ],
    )
    async def test_more_gangs_than_one_answer_has(
        self, together: Harness, monkeypatch: pytest.MonkeyPatch, plain: list[PodBuilder], also: list[str]
    ) -> None:
        monkeypatch.setattr(alike, "_MAX_SENT", 7)
        more = [pod(f"o{index}").cpu(1).in_group("other") for index in range(4)]
        together.add(node("big").cpu(9), pod_group("other").gang(4), *more)
        await plan(together, *members(8))
        await ask(together, "m0")
        assert bound(together) == REST
        assert not any(together.node_of(f"o{index}") for index in range(4))
        together.add(*plain)
        await bind(together, "m0")
        await ask(together, "m1")
        assert [name for name in ("o0", "o1", "o2", "o3") if together.node_of(name)] == also

    async def test_a_gang_with_no_room_on_the_nodes_that_were_offered_is_left_as_it_is(self, together: Harness) -> None:
        more = [pod(f"o{index}").cpu(1).in_group("other") for index in range(4)]
        together.add(pod_group("other").gang(4), *more)
        await plan(together, *members(8))
        await ask(together, "m0", "n5", "n6")
        assert bound(together) == REST
        assert not any(together.node_of(f"o{index}") for index in range(4))


class TestEachIsJudgedByItself:
    @pytest.mark.parametrize(
        "others",
        [
            pytest.param([each.cpu(2) for each in members(3, first=1)], id="members of another size"),
            pytest.param([each.host_port(80) for each in members(3, first=1)], id="members with a host port"),
            pytest.param(
                [each.having([{"name": "d", "iscsi": {}}], "spec", "volumes") for each in members(3, first=1)],
                id="members with a disk of their own",
            ),
            pytest.param([each.mounting("data") for each in members(3, first=1)], id="members with a claim"),
            pytest.param(
                [each.having([ASKS_FOR_A_FEATURE], "spec", "containers") for each in members(3, first=1)],
                id="members that not every kubelet can run",
            ),
            pytest.param([each.apart({"app": "x"}) for each in members(3, first=1)], id="members that keep others off"),
            pytest.param([each.priority(7) for each in members(3, first=1)], id="members of another priority"),
            pytest.param(
                [each.tried(message="0/6 nodes are available: 6 x.") for each in members(3, first=1)],
                id="members that were refused",
            ),
        ],
    )
    async def test_others_have_to_come_themselves(self, together: Harness, others: list[PodBuilder]) -> None:
        together.add(pod_group("g").gang(4), *members(1), *others)
        await together.go()
        answer = together.filter("m0")
        assert not isinstance(answer, Steer) or answer.alone
        await together.go()
        assert not any(together.node_of(name) for name in MEMBERS[:4])

    async def test_a_kind_of_which_none_has_come_to_bind_is_not_known(self) -> None:
        world = Harness(alike=Alike.TOGETHER)
        world.add(*small_nodes(2, cpus=4))
        await plan(world, *members(4))
        assert world.filter("m0") == Steer("n1")
        await world.close()

    async def test_nothing_is_judged_for_others_unless_that_is_chosen(self, world: Harness) -> None:
        world.add(*small_nodes(2, cpus=4), pod_group("before").gang(1), pod("first").cpu(1).in_group("before"))
        await world.go()
        world.filter("first")
        world.bind("first")
        await world.go()
        await plan(world, *members(4))
        answer = world.filter("m0")
        assert isinstance(answer, Steer)
        assert answer.alone

    async def test_a_node_that_a_waiting_plain_pod_could_need_is_taken_by_each_itself(self, together: Harness) -> None:
        await plan(together, *members(4))
        together.add(pod("p").cpu(1).scheduler(SCHEDULER))
        answer = together.filter("m0", "n2")
        assert isinstance(answer, Steer)
        assert answer.alone

    async def test_where_a_plain_pod_comes_that_could_need_the_room_each_comes_itself(self, together: Harness) -> None:
        """The scheduler may have placed it before our watch has shown it, and nobody may ask us about plain pods."""
        await plan(together, *members(4))
        answer = together.filter("m0")
        assert isinstance(answer, Steer)
        assert not answer.alone
        together.add(pod("p").cpu(1).scheduler(SCHEDULER))
        async with asyncio.timeout(1):
            await together.service.wait_for_mates()
        await together.pass_time(4)
        assert not any(together.node_of(name) for name in MEMBERS[:4])
        calls = []
        for name in MEMBERS[:4]:
            together.filter(name)
            calls.append(together.bind(name))
        await together.go()
        assert [call.error for call in calls] == [""] * 4

    async def test_a_node_with_room_for_both_is_taken_on_one_word(self, together: Harness) -> None:
        together.add(node("big").cpu(9))
        await plan(together, *members(4))
        together.add(pod("p").cpu(1).scheduler(SCHEDULER))
        answer = together.filter("m0", "big")
        assert isinstance(answer, Steer)
        assert not answer.alone

    async def test_an_offer_without_room_for_all_moves_nobody(self, together: Harness) -> None:
        await plan(together, *members(4))
        together.add(pod("p").cpu(2).on("n2"))
        before = dict(together.cycle().reservation.slots)
        answer = together.filter("m3", "n2")
        assert answer == Steer("n2")
        after = dict(together.cycle().reservation.slots)
        assert [before[uid].node for uid in before if uid != together.pod("m3").uid] == [
            after[uid].node for uid in before if uid != together.pod("m3").uid
        ]
