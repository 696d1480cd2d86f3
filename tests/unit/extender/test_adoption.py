"""A new term takes over what an earlier one has promised."""

import pytest

from extender.adoption import Adoption
from extender.records import Records
from serried.kube.errors import ApiError
from serried.model.reservation import Reservation, Slot
from tests.unit.extender.world import GANG, World, error, gang, members, small_nodes


async def leave_behind(world: World, *names: str, committed: bool = False, nodes: str = "n1") -> None:
    """An earlier term has written a record with these members on a node, and died."""
    slots = {f"pod-{name}": Slot(f"pod-{name}", name, nodes) for name in names}
    left = Reservation(GANG, "podgroup-g", "", len(names), slots)
    left.committed = frozenset(slots) if committed else frozenset()
    await Records(world.api.client(), "v1", "earlier").write(gang(2).value(), left)


async def adopt(world: World) -> None:
    await Adoption(world.conductor, world.records, world.api.client(), world.steering).adopt()
    await world.settle()


@pytest.fixture
def cluster(world: World) -> World:
    return world.add(*small_nodes(2), gang(2), *members(2))


async def test_a_committed_record_is_rolled_forward_without_any_call_of_the_scheduler(cluster: World) -> None:
    await leave_behind(cluster, "m0", "m1", committed=True)
    await adopt(cluster)
    await cluster.go()
    assert (cluster.node_of("m0"), cluster.node_of("m1")) == ("n1", "n1")
    assert cluster.nothing_reserved


async def test_half_a_burst_is_finished(cluster: World) -> None:
    cluster.add(members(1)[0].on("n1"))
    await leave_behind(cluster, "m0", "m1", committed=True)
    await adopt(cluster)
    await cluster.go()
    assert [call.name for call in cluster.api.said("bind")] == ["m1"]
    assert cluster.nothing_reserved


async def test_a_planned_record_is_taken_up_where_it_was_left(cluster: World) -> None:
    await leave_behind(cluster, "m0", "m1")
    await adopt(cluster)
    assert {slot.node for slot in cluster.round().reservation.slots.values()} == {"n1"}
    calls = [cluster.bind("m0"), cluster.bind("m1")]
    await cluster.go()
    assert [call.error for call in calls] == ["", ""]


async def test_a_planned_record_that_does_not_hold_any_more_is_dropped(cluster: World) -> None:
    await leave_behind(cluster, "m0", "m1", nodes="gone")
    await adopt(cluster)
    assert cluster.nothing_reserved


async def test_a_planned_record_that_misses_a_member_is_dropped(cluster: World) -> None:
    await leave_behind(cluster, "m0", "m1")
    cluster.delete("m1")
    await adopt(cluster)
    assert cluster.nothing_reserved


@pytest.mark.parametrize("uid", ["another", ""])
async def test_a_record_of_a_podgroup_that_is_gone_or_another_is_dropped(cluster: World, uid: str) -> None:
    await leave_behind(cluster, "m0", "m1")
    cluster.store.drop_group(GANG)
    if uid:
        cluster.add(gang(2).uid(uid))
    await adopt(cluster)
    assert cluster.nothing_reserved


async def test_a_record_whose_members_are_all_bound_is_removed(cluster: World) -> None:
    cluster.add(*[each.on("n1") for each in members(2)])
    await leave_behind(cluster, "m0", "m1", committed=True)
    await adopt(cluster)
    assert cluster.nothing_reserved


async def test_adopting_again_after_an_error_takes_nothing_twice(cluster: World) -> None:
    await leave_behind(cluster, "m0", "m1")
    await adopt(cluster)
    held = cluster.round()
    await adopt(cluster)
    assert cluster.round() is held


async def test_an_error_of_the_api_server_is_the_callers_to_wait_out(cluster: World) -> None:
    cluster.api.fail("list", error(500))
    with pytest.raises(ApiError):
        await adopt(cluster)


MANAGED = {"manager": "serried", "fieldsV1": {"f:status": {"f:nominatedNodeName": {}}}}


class TestStrayStamps:
    async def test_ours_are_taken_off_members_that_hold_no_slot(self, cluster: World) -> None:
        left = members(1)[0].nominated("n1").having([MANAGED], "metadata", "managedFields")
        await adopt(cluster.add(left))
        assert cluster.pod("m0").nominated == ""

    async def test_those_of_others_stay(self, cluster: World) -> None:
        other = {**MANAGED, "manager": "kube-scheduler"}
        await adopt(cluster.add(members(1)[0].nominated("n1").having([other], "metadata", "managedFields")))
        assert cluster.pod("m0").nominated == "n1"

    async def test_those_of_adopted_members_stay(self, cluster: World) -> None:
        left = members(1)[0].nominated("n1").having([MANAGED], "metadata", "managedFields")
        cluster.add(left)
        await leave_behind(cluster, "m0", "m1")
        await adopt(cluster)
        assert cluster.pod("m0").nominated == "n1"
