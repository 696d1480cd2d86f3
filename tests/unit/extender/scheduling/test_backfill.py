"""The first gang that does not fit has room kept for it, and who may use that meanwhile.

The scene: two racks, each of two nodes with two CPUs. Gang g wants one rack whole. In rack a runs a pod on one node, in
rack b one on each.
"""

import pytest

from extender.core.protocol import Hold, Steer
from extender.options import PATIENCE_SECONDS
from serried.api.names import GroupKey, write_time
from serried.api.preference import EXCLUSIVE
from serried.api.verdict import Reason, Verdict, render
from serried.ops.steps import finish
from tests.support.builders import Builder, JobBuilder, PodBuilder, PodGroupBuilder, job, node, pod, pod_group
from tests.support.extender_harness import DAY, EPOCH, GANG, SCHEDULER, Harness, gang, members

SMALL = GroupKey("default", "h")
MINUTE = 60


def wall(world: Harness, seconds: float = 0.0) -> str:
    """A moment from now, as the API writes it."""
    return write_time(EPOCH + world.clock() + seconds)


def runner(name: str, host: str, cpus: int = 2) -> PodBuilder:
    """A pod that runs, of a Job of its own."""
    return pod(name).of_job(f"job-of-{name}", 0).cpu(cpus).on(host)


def runner_job(name: str) -> JobBuilder:
    return job(f"job-of-{name}")


def smalls(count: int = 2, group: str = "h", first: int = 10) -> list[PodBuilder]:
    return [each.in_group(group) for each in members(count, first)]


def racks(world: Harness) -> Harness:
    """The scene without the gangs: who runs in rack a has ten minutes, who runs in rack b has an hour."""
    world.add(*[node(f"{rack}{place}").cpu(2).rack(rack) for rack in "ab" for place in (1, 2)])
    for name, host, minutes in (("x", "a1", 10), ("y", "b1", 60), ("z", "b2", 60)):
        began = runner(name, host).started(wall(world)).active_deadline(minutes * MINUTE)
        world.add(runner_job(name), began)
    return world


def large() -> list[Builder]:
    """Gang g: four members of one CPU in one rack."""
    return [gang(4).topology(), *members(4)]


def small(count: int = 2, group: str = "h", first: int = 10) -> list[Builder]:
    """Return a second gang, which has no topology key."""
    made: PodGroupBuilder = pod_group(group).gang(count)
    return [made, *smalls(count, group, first)]


def small_job(count: int = 2, **lasting: int) -> list[Builder]:
    """Gang h whose pods last so many ``seconds``, if that is said."""
    pods = [each.active_deadline(lasting["seconds"]) if lasting else each for each in smalls(count)]
    return [pod_group("h").gang(count), *pods]


def verdict(world: Harness, group: GroupKey = GANG) -> Verdict:
    found = world.groups.states[group].verdict
    assert found is not None
    return found


def planned(world: Harness) -> set[str]:
    return {reservation.group.name for reservation in world.ledger}


def kept(world: Harness) -> set[str]:
    head = world.core.backfill.head
    return set() if head is None else set(head.forecast.nodes)


async def send_small_gangs(world: Harness) -> None:
    """Add a small gang every half minute, for ten minutes."""
    for number in range(20):
        await world.add(*small(1, f"s{number}", first=100 + number)).pass_time(MINUTE / 2)


class TestTheHead:
    async def test_the_rack_that_is_free_first_is_kept_for_it_and_it_says_so(self, world: Harness) -> None:
        await racks(world).add(*large()).run_until_idle()
        assert kept(world) == {"a1", "a2"}
        told = f"Serried keeps 2 nodes of a for default/g, which is expected to fit at {wall(world, 600)}"
        assert verdict(world).reason is Reason.NO_DOMAIN_FITS
        assert render(verdict(world)).endswith(told)
        assert world.heard.promises == [600.0]

    async def test_it_starts_as_soon_as_it_fits_anywhere(self, world: Harness) -> None:
        await racks(world).add(*large()).run_until_idle()
        for name in ("y", "z"):
            world.delete(name)
        await world.run_until_idle()
        assert world.binding_cycle().reservation.domain == "b"
        assert kept(world) == set()

    async def test_a_smaller_gang_waits_behind_it_and_is_told_so(self, world: Harness) -> None:
        await racks(world).add(*large()).run_until_idle()
        await world.add(*small()).run_until_idle()
        assert planned(world) == set()
        assert (verdict(world, SMALL).reason, verdict(world, SMALL).key) == (Reason.BEHIND_HEAD, "default/g")
        assert render(verdict(world, SMALL)).startswith(
            "BehindHead: 2 members would fit, but Serried keeps the free resources for default/g, which is "
            "before this gang in the queue; "
        )
        world.delete("x")
        await world.run_until_idle()
        assert planned(world) == {"g"}

    async def test_it_is_told_the_name_that_people_gave_the_first_one(self, world: Harness) -> None:
        pods = [each.of_job("train", place) for place, each in enumerate(members(4))]
        await racks(world).add(gang(4).topology().controlled_by("Job", "train"), *pods).run_until_idle()
        await world.add(*small()).run_until_idle()
        assert verdict(world, SMALL).key == "job/train (default/g)"

    async def test_no_room_is_kept_once_its_pod_group_is_gone_though_its_pods_stay(self, world: Harness) -> None:
        await racks(world).add(*large()).run_until_idle()
        await world.add(*small()).run_until_idle()
        world.store.drop_group(GANG)
        await world.run_until_idle()
        assert kept(world) == set()
        assert planned(world) == {"h"}
        assert verdict(world).reason is Reason.POD_GROUP_MISSING

    async def test_small_gangs_that_keep_coming_do_not_keep_it_from_starting(self, world: Harness) -> None:
        await racks(world).add(*large()).run_until_idle()
        await send_small_gangs(world)
        assert planned(world) == set()
        world.delete("x")
        await world.run_until_idle()
        assert planned(world) == {"g"}

    async def test_without_backfill_small_gangs_take_its_room(self, world_without_backfill: Harness) -> None:
        world = world_without_backfill
        await racks(world).add(*large()).run_until_idle()
        await world.add(*small()).run_until_idle()
        assert planned(world) == {"h"}
        assert kept(world) == set()

    async def test_those_behind_it_are_let_on_when_it_goes(self, world: Harness) -> None:
        await racks(world).add(*large()).run_until_idle()
        await world.add(*small()).run_until_idle()
        world.store.drop_group(GANG)
        for index in range(4):
            world.delete(f"m{index}")
        await world.run_until_idle()
        assert planned(world) == {"h"}
        assert world.heard.settlements == [("withdrawn", None)]

    async def test_those_behind_it_are_let_on_when_it_loses_its_quorum(self, world: Harness) -> None:
        await racks(world).add(*large()).run_until_idle()
        await world.add(*small()).run_until_idle()
        world.delete("m0")
        await world.run_until_idle()
        assert planned(world) == {"h"}

    async def test_the_next_gang_that_does_not_fit_follows_it(self, world: Harness) -> None:
        second = [pod_group("second").gang(4).topology(), *smalls(4, "second", 20)]
        await racks(world).add(*large()).run_until_idle()
        await world.add(*second).run_until_idle()
        world.delete("x")
        await world.run_until_idle()
        await world.run_until_idle()
        head = world.core.backfill.head
        assert head is not None
        assert head.group == GroupKey("default", "second")
        assert kept(world) == {"b1", "b2"}

    async def test_a_gang_that_no_rack_could_ever_hold_is_never_the_head(self, world: Harness) -> None:
        await racks(world).add(gang(5).topology(), *members(5)).run_until_idle()
        await world.add(*small()).run_until_idle()
        assert planned(world) == {"h"}
        assert "kept" not in render(verdict(world))

    async def test_pods_that_stay_leave_no_room(self, world: Harness) -> None:
        world.add(node("a1").cpu(2), pod("web").cpu(1).on("a1").controlled_by("ReplicaSet", "web"))
        await world.add(gang(2), *members(2)).run_until_idle()
        await world.add(*small(1)).run_until_idle()
        assert planned(world) == {"h"}

    async def test_without_a_key_only_the_nodes_that_it_needs_are_kept(self, world: Harness) -> None:
        racks(world)
        await world.add(gang(4), *members(4)).run_until_idle()
        assert kept(world) == {"a1", "a2"}

    async def test_a_forecast_that_its_nodes_are_gone_from_is_made_anew(self, world: Harness) -> None:
        await racks(world).add(*large()).run_until_idle()
        world.store.drop_node("a2")
        await world.run_until_idle()
        assert kept(world) == {"b1", "b2"}


class TestDeadMembers:
    async def test_a_slot_that_is_kept_for_the_next_member_ends_as_that_will(self, world: Harness) -> None:
        await racks(world).run_until_idle()
        world.delete("x")
        running = [each.in_group("r").of_job("run", place).on("a1") for place, each in enumerate(members(2, first=20))]
        its_job = job("run").size(2).started(wall(world)).active_deadline(10 * MINUTE)
        await world.add(
            its_job, pod_group("r").gang(2).controlled_by("Job", "run", "job-run"), *running
        ).run_until_idle()
        world.delete("m20")
        await world.add(*large()).run_until_idle()
        assert len(world.store.vacancies) == 1
        assert kept(world) == {"a1", "a2"}
        assert render(verdict(world)).endswith(f"which is expected to fit at {wall(world, 600)}")

    async def test_what_is_left_of_the_head_itself_is_not_counted_on_to_leave(self, world: Harness) -> None:
        await racks(world).run_until_idle()
        left, *others = [each.cpu(2) for each in members(3)]
        began = left.on("a2").started(wall(world)).active_deadline(5 * MINUTE)
        await world.add(gang(3).condition("True", "Scheduled"), began, *others).run_until_idle()
        assert "a2" not in kept(world)
        assert render(verdict(world)).endswith(f"which is expected to fit at {wall(world, 3600)}")

    async def test_slots_that_are_kept_for_the_head_are_room_for_it(self, world: Harness) -> None:
        await racks(world).add(node("c1").cpu(2)).run_until_idle()
        group = gang(2).controlled_by("Job", "train", "job-train")
        pods = [each.of_job("train", place).cpu(2) for place, each in enumerate(members(2))]
        await world.add(job("train").size(2), group, pods[0].on("a2"), pods[1].on("c1")).run_until_idle()
        world.store.drop_node("c1")
        world.delete("m0")
        world.delete("m1")
        await world.add(*[each.uid(f"anew-{place}") for place, each in enumerate(pods)]).run_until_idle()
        assert kept(world) == {"a1", "a2"}
        assert render(verdict(world)).endswith(f"which is expected to fit at {wall(world, 600)}")


class TestPassing:
    async def test_a_gang_that_finds_room_elsewhere_passes(self, world: Harness) -> None:
        await racks(world).add(node("c1").cpu(2).rack("c"), *large()).run_until_idle()
        await world.add(*small()).run_until_idle()
        assert {slot.node for slot in world.binding_cycle(SMALL).reservation.slots.values()} == {"c1"}

    @pytest.mark.parametrize(
        ("seconds", "passes"),
        [
            pytest.param(9 * MINUTE, True, id="ends before"),
            pytest.param(10 * MINUTE, False, id="ends just with"),
            pytest.param(11 * MINUTE, False, id="ends after"),
        ],
    )
    async def test_a_gang_may_use_the_heads_nodes_if_it(self, world: Harness, seconds: int, *, passes: bool) -> None:
        await racks(world).add(*large()).run_until_idle()
        await world.add(*small_job(seconds=seconds)).run_until_idle()
        assert planned(world) == ({"h"} if passes else set())

    async def test_of_the_heads_nodes_none_is_closed_to_a_gang_that_passes(self, world: Harness) -> None:
        await racks(world).add(*large()).run_until_idle()
        await world.add(*small_job(seconds=9 * MINUTE)).run_until_idle()
        assert world.binding_cycle(SMALL).closed == frozenset()

    @pytest.mark.parametrize(
        ("ago", "passes"),
        [
            pytest.param(0, True, id="ends before the forecast: yes"),
            pytest.param(60 * MINUTE, False, id="is over before it begins, by a clock that is ahead: no"),
        ],
    )
    async def test_a_gang_passes_by_the_deadline_of_its_job_if_that(
        self, world: Harness, ago: int, *, passes: bool
    ) -> None:
        await racks(world).add(*large()).run_until_idle()
        short = job("short").size(2).scheduler(SCHEDULER).started(wall(world, -ago)).active_deadline(9 * MINUTE)
        pods = [each.of_job("short", place) for place, each in enumerate(smalls())]
        await world.add(short, pod_group("h").gang(2), *pods).run_until_idle()
        assert planned(world) == ({"h"} if passes else set())

    async def test_the_head_still_starts_when_those_that_passed_have_ended(self, world: Harness) -> None:
        await racks(world).add(*large()).run_until_idle()
        await world.add(*small_job(seconds=9 * MINUTE)).run_until_idle()
        for name in ("m10", "m11"):
            world.bind(name)
        await world.run_until_idle()
        world.delete("x")
        await world.pass_time(9 * MINUTE)
        assert planned(world) == set()
        for name in ("m10", "m11"):
            world.delete(name)
        await world.pass_time(30.0)
        assert planned(world) == {"g"}
        assert world.heard.settlements == [("kept", -30.0)]

    async def test_what_was_measured_lets_pass_until_a_forecast_was_missed(self, world: Harness) -> None:
        racks(world)
        work = job("again").size(2).scheduler(SCHEDULER)
        done = pod("done").of_job("again", 0).started(wall(world, -120)).succeeded(wall(world))
        world.add(work, done, *large())
        await world.run_until_idle()
        await world.add(pod_group("h").gang(2), *[each.of_job("again", 0) for each in smalls()]).run_until_idle()
        assert planned(world) == {"h"}
        await world.pass_time(11 * MINUTE)
        assert world.core.backfill.head is not None
        assert world.core.backfill.head.has_missed
        repeated = [pod_group("k").gang(2), *[each.of_job("again", 0) for each in smalls(2, "k", 20)]]
        world.add(node("a3").cpu(2).rack("a"), *repeated)
        world.delete("m10")
        world.delete("m11")
        await world.run_until_idle()
        assert GroupKey("default", "k") not in world.core.backfill.head.passed

    async def test_a_gang_of_higher_priority_takes_what_it_needs(self, world: Harness) -> None:
        await racks(world).add(*large()).run_until_idle()
        await world.add(pod_group("h").gang(2).priority(5), *smalls()).run_until_idle()
        assert planned(world) == {"h"}

    async def test_a_late_member_of_a_gang_that_runs_is_not_kept_away(self, world: Harness) -> None:
        racks(world).add(pod_group("h").gang(1).topology(), *[each.active_deadline(5 * MINUTE) for each in smalls(1)])
        await world.run_until_idle()
        world.bind("m10")
        await world.run_until_idle()
        home = world.node_of("m10")
        await world.add(*large()).run_until_idle()
        assert home in kept(world)
        await world.add(*smalls(1, first=11)).run_until_idle()
        assert world.ledger.slot_of("pod-m11") is not None

    async def test_a_member_that_takes_any_offered_node_does_not_take_one_of_the_heads(self, world: Harness) -> None:
        await racks(world).add(*large()).run_until_idle()
        await world.add(node("c1").cpu(2).rack("c"), *small(1)).run_until_idle()
        assert world.binding_cycle(SMALL).open_slots.any_node
        assert world.filter("m10", "a2") == Hold()
        assert world.filter("m10", "a2", "c1") == Steer("c1")


class TestRoomBesideTheHead:
    """On the one node, of 8 CPUs, runs a tenant of 4 of which nobody knows when it ends. The head wants 6."""

    async def scene(self, world: Harness, tenant: PodBuilder | None = None) -> Harness:
        world.add(node("n1").cpu(8), runner_job("x"), tenant or runner("x", "n1", 4))
        await world.add(gang(3), *[each.cpu(2) for each in members(3)]).run_until_idle()
        assert kept(world) == {"n1"}
        return world

    @pytest.mark.parametrize(
        ("cpus", "passes"),
        [
            pytest.param((1, 1), True, id="a gang that fits beside head and tenant's free room runs at once"),
            pytest.param((1, 2), False, id="a gang that fits beside the tenant, but not beside the head, waits"),
            pytest.param((2,), True, id="a single pod that takes all that the head leaves runs at once"),
        ],
    )
    async def test_that_the_head_will_never_need_is_not_kept(
        self, world: Harness, cpus: tuple[int, ...], *, passes: bool
    ) -> None:
        await self.scene(world)
        pods = [each.cpu(cpu) for each, cpu in zip(smalls(len(cpus)), cpus, strict=True)]
        await world.add(pod_group("h").gang(len(cpus)), *pods).run_until_idle()
        assert planned(world) == ({"h"} if passes else set())
        assert passes or verdict(world, SMALL).reason is Reason.BEHIND_HEAD
        world.delete("x")
        await world.run_until_idle()
        assert "g" in planned(world), "the head starts as soon as the tenant has ended"

    async def test_is_not_kept_either_where_the_forecast_has_a_time(self, world: Harness) -> None:
        await self.scene(world, runner("x", "n1", 4).started(wall(world)).active_deadline(10 * MINUTE))
        await world.add(*small(2)).run_until_idle()
        assert planned(world) == {"h"}

    async def test_is_given_once_to_the_gangs_that_come(self, world: Harness) -> None:
        await self.scene(world)
        await world.add(*small(2)).run_until_idle()
        await world.add(*small(1, "k", first=20)).run_until_idle()
        assert planned(world) == {"h"}
        assert verdict(world, GroupKey("default", "k")).reason is Reason.BEHIND_HEAD

    async def test_goes_to_the_next_gang_when_the_first_has_ended(self, world: Harness) -> None:
        await self.scene(world)
        await world.add(*small(2)).run_until_idle()
        for name in ("m10", "m11"):
            world.bind(name)
        await world.add(*small(1, "k", first=20)).run_until_idle()
        for name in ("m10", "m11"):
            world.delete(name)
        await world.run_until_idle()
        assert "k" in planned(world)

    async def test_is_taken_by_pods_that_came_since(self, world: Harness) -> None:
        await self.scene(world)
        await world.add(pod("late").cpu(1).on("n1")).run_until_idle()
        await world.add(*small(2)).run_until_idle()
        assert planned(world) == set()

    @pytest.mark.parametrize("keeps_off", ["head", "small"])
    async def test_is_kept_whole_where_one_gang_keeps_the_other_off(self, world: Harness, keeps_off: str) -> None:
        world.add(node("n1").cpu(8).label("kubernetes.io/hostname", "n1"), runner_job("x"), runner("x", "n1", 4))
        head, (other,) = members(1)[0].cpu(6).label("app", "head"), smalls(1)
        pairs = (
            (head.anti_affinity({"app": "small"}), other)
            if keeps_off == "head"
            else (head, other.anti_affinity({"app": "head"}))
        )
        await world.add(gang(1), pairs[0]).run_until_idle()
        await world.add(pod_group("h").gang(1), pairs[1].cpu(1).label("app", "small")).run_until_idle()
        assert planned(world) == set()
        world.delete("x")
        await world.run_until_idle()
        assert "g" in planned(world)

    async def test_is_not_for_members_that_come_after_the_plan(self, world: Harness) -> None:
        await self.scene(world)
        await world.add(*small(1)).run_until_idle()
        assert planned(world) == {"h"}
        await world.add(*[each.cpu(1) for each in smalls(4)[1:]]).run_until_idle()
        reservation = world.ledger.of_group(SMALL)
        assert reservation is not None
        assert len(reservation.slots) == 1

    async def test_is_all_that_the_head_does_not_request(self, world: Harness) -> None:
        world.add(node("n1").cpu(8).allocatable("a/gpu", 4))
        world.add(runner_job("x"), runner("x", "n1", 1).request("a/gpu", 4))
        await world.add(gang(1), members(1)[0].cpu(1).request("a/gpu", 4)).run_until_idle()
        await world.add(*small(5)).run_until_idle()
        assert planned(world) == {"h"}


class TestAnExclusiveHead:
    """Gang g wants rack a for itself, and two whole nodes of it. One has a1 for ten minutes, a3 is used in part."""

    async def scene(self, world: Harness, *holding: PodGroupBuilder) -> Harness:
        world.add(*[node(f"a{place}").cpu(2).rack("a") for place in (1, 2, 3)])
        began = runner("x", "a1").scheduler(SCHEDULER).in_group("o").started(wall(world)).active_deadline(10 * MINUTE)
        stays = pod("web").cpu(1).on("a3").controlled_by("ReplicaSet", "web")
        await world.add(*holding, runner_job("x"), began, stays).run_until_idle()
        await world.add(self.alone("g", 2), *[each.cpu(2) for each in members(2)]).run_until_idle()
        return world

    def alone(self, name: str, count: int) -> PodGroupBuilder:
        return pod_group(name).gang(count).topology().annotation(EXCLUSIVE, "true")

    async def test_is_kept_the_rack_of_one_that_ends(self, world: Harness) -> None:
        await self.scene(world, self.alone("o", 1))
        assert kept(world) == {"a1", "a2"}
        assert render(verdict(world)).endswith(
            f"Serried keeps 2 nodes of a for default/g, which is expected to fit at {wall(world, 600)}"
        )
        world.delete("x")
        await world.run_until_idle()
        assert world.binding_cycle().reservation.domain == "a"

    @pytest.mark.parametrize(
        ("seconds", "passes"),
        [
            pytest.param(595, True, id="by then a gang that wants it too has ended"),
            pytest.param(596, False, id="a gang that wants it too would still be there"),
        ],
    )
    async def test_keeps_its_whole_rack_as(self, world: Harness, seconds: int, *, passes: bool) -> None:
        await self.scene(world)
        await world.add(self.alone("h", 1), smalls(1)[0].active_deadline(seconds)).run_until_idle()
        assert planned(world) == ({"h"} if passes else set())
        assert passes or verdict(world, SMALL).reason is Reason.BEHIND_HEAD

    async def test_lets_those_that_do_not_onto_the_rest_of_its_rack(self, world: Harness) -> None:
        await self.scene(world)
        await world.add(*small(1)).run_until_idle()
        assert planned(world) == {"h"}

    async def test_gets_the_last_rack_that_its_namespace_may_have(self) -> None:
        world = Harness(share_percent=50)
        world.add(node("b1").cpu(1).rack("b"))
        await self.scene(world)
        await world.add(self.alone("h", 1), *smalls(1)).run_until_idle()
        assert planned(world) == set()
        assert "gangs of namespace default have 1 of 2 domains exclusively" in render(verdict(world, SMALL))
        world.delete("x")
        await world.run_until_idle()
        assert planned(world) == {"g"}
        await world.close()


class TestItsEnd:
    async def scene(self, world: Harness) -> Harness:
        """A pod without a known end runs in rack a, and pods that stay run in rack b."""
        world.add(*[node(f"{rack}{place}").cpu(2).rack(rack) for rack in "ab" for place in (1, 2)])
        world.add(runner_job("x"), runner("x", "a1"))
        for name in ("b1", "b2"):
            world.add(pod(f"web-{name}").cpu(2).on(name).controlled_by("ReplicaSet", "web"))
        await world.add(*large()).run_until_idle()
        await world.add(*small()).run_until_idle()
        return world

    async def test_room_is_kept_for_a_time_if_nobody_can_tell_when_it_will_be_enough(self, world: Harness) -> None:
        await self.scene(world)
        assert kept(world) == {"a1", "a2"}
        assert "cannot tell when the gang will fit" in render(verdict(world))
        await world.pass_time(PATIENCE_SECONDS - 1)
        assert planned(world) == set()

    async def test_then_those_behind_it_go_on(self, world: Harness) -> None:
        await self.scene(world)
        await world.pass_time(PATIENCE_SECONDS)
        assert planned(world) == {"h"}

    async def test_after_they_had_their_turn_it_has_a_longer_one(self, world: Harness) -> None:
        await self.scene(world)
        await world.pass_time(PATIENCE_SECONDS)
        assert kept(world) == set()
        await world.pass_time(PATIENCE_SECONDS)
        assert kept(world) == {"a1", "a2"}
        await world.pass_time(2 * PATIENCE_SECONDS - 1)
        assert kept(world) == {"a1", "a2"}

    async def test_and_elsewhere_if_what_ran_there_has_not_ended(self, world: Harness) -> None:
        world.add(*[node(f"{rack}{place}").cpu(2).rack(rack) for rack in "ab" for place in (1, 2)])
        world.add(runner_job("x"), runner("x", "a1"), runner_job("y"), runner("y", "b1"))
        await world.add(*large(), *small()).run_until_idle()
        assert kept(world) == {"a1", "a2"}
        await world.pass_time(PATIENCE_SECONDS)
        world.delete("m10")
        world.delete("m11")
        await world.pass_time(PATIENCE_SECONDS)
        assert kept(world) == {"b1", "b2"}

    @pytest.mark.parametrize(
        ("waves", "age"),
        [
            pytest.param(1, 3600, id="a pod that has run for an hour"),
            pytest.param(9, 0, id="a new pod of a Job that has used the room for an hour"),
        ],
    )
    async def test_is_taken_to_stay_longer_than_a_new_pod(self, world: Harness, waves: int, age: int) -> None:
        world.add(*[node(f"{rack}{place}").cpu(2).rack(rack) for rack in "ab" for place in (1, 2)])
        world.add(runner_job("x").size(1, waves).started(wall(world, -3600)), runner_job("y"))
        began = runner("x", "a1").started(wall(world, -age))
        await world.add(began, runner("y", "b1").started(wall(world)), *large()).run_until_idle()
        assert kept(world) == {"b1", "b2"}

    async def test_while_it_rests_another_gang_may_be_the_head(self, world: Harness) -> None:
        await self.scene(world)
        await world.add(pod_group("k").gang(4), *smalls(4, "k", 30)).run_until_idle()
        await world.pass_time(PATIENCE_SECONDS)
        await world.run_until_idle()
        head = world.core.backfill.head
        assert head is not None
        assert head.group == GroupKey("default", "k")

    async def test_a_gang_without_a_forecast_that_starts_after_all_is_counted_as_unforeseen(
        self, world: Harness
    ) -> None:
        await self.scene(world)
        world.delete("x")
        await world.run_until_idle()
        assert planned(world) == {"g"}
        assert world.heard.settlements == [("unforeseen", None)]

    async def test_a_forecast_that_is_missed_is_made_anew_and_counted(self, world: Harness) -> None:
        await racks(world).add(*large()).run_until_idle()
        await world.pass_time(10 * MINUTE + 1)
        head = world.core.backfill.head
        assert head is not None
        assert head.forecast.at is not None
        assert head.forecast.at > world.clock()
        world.delete("x")
        await world.pass_time(MINUTE)
        assert planned(world) == {"g"}
        assert world.heard.settlements == [("missed", 61.0)]


class TestAgeing:
    async def test_after_a_day_a_gang_counts_as_of_the_next_priority_and_goes_first(self, world: Harness) -> None:
        await racks(world).add(*large()).run_until_idle()
        await world.pass_time(DAY)
        await world.add(pod_group("h").gang(2).priority(5), *smalls()).pass_time(MINUTE)
        await world.add(pod_group("k").gang(2).priority(5), *smalls(2, "k", 20)).run_until_idle()
        described = world.queue.describe(GANG, world.groups.states[GANG])
        assert world.queue.raised_priority(described) == 5
        assert finish(world.group_scheduler.sort_in_queue_order({GANG, SMALL})) == [GANG, SMALL]


class TestWakingUp:
    async def test_of_many_gangs_only_those_are_planned_again_that_freed_room_could_help(self, world: Harness) -> None:
        world.add(node("n1").cpu(8), pod("p").cpu(1).on("n1"), pod("q").cpu(7).on("n1"))
        for number in range(6):
            world.add(*small(2 + number, f"s{number}", first=100 * number))
        await world.run_until_idle()
        for _ in range(3):
            await world.pass_time(1.0)
        before = len(world.heard.plans)
        world.delete("p")
        await world.run_until_idle()
        assert len(world.heard.plans) == before
        world.delete("q")
        await world.run_until_idle()
        assert "s0" in planned(world)

    async def test_a_round_that_failed_rests_the_longer_the_larger_it_is(self, world: Harness) -> None:
        await world.add(node("n1").cpu(8), gang(4), *members(4)).run_until_idle()
        world.clock.advance(61.0)
        world.binding_cycle().changed.set()
        await world.run_tasks()
        assert world.reasons()[-1] is Reason.DEADLINE_EXCEEDED
        assert world.groups.states[GANG].entry.backoff_until == world.clock() + 1.0
