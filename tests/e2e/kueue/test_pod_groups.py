"""Plain pods that are a group of Kueue's: a gang, whether or not they are members of a PodGroup."""

import pytest

from tests.e2e.kueue.stage import KueueStage

pytestmark = [pytest.mark.e2e, pytest.mark.full]

ADMISSION, TOPOLOGY = "kueue.x-k8s.io/admission", "kueue.x-k8s.io/topology"
BOTH = pytest.mark.parametrize("member", [False, True], ids=["of no PodGroup", "of a PodGroup"])


@BOTH
def test_plain_pods_wait_for_their_gates_by_name_and_start_whole_once_they_are_admitted(
    stage: KueueStage, *, member: bool
) -> None:
    stage.create_queue("team", cpu="60")
    group = stage.queue_pods("team", "ours", 6, "20", member=member)
    stage.await_reason(group, "MemberGated", "6 members", f": {ADMISSION}, {TOPOLOGY}")
    assert not stage.bound("ours")

    stage.set_quota("team", "120")
    stage.await_bound("ours", 6)
    assert stage.starts(ours=6) == {"ours": [6]}
    assert stage.evictions("ours") == {}


@BOTH
def test_plain_pods_that_are_admitted_where_no_room_is_wait_whole(stage: KueueStage, *, member: bool) -> None:
    stage.create_queue("team", cpu="1000")
    stage.fill_a_node()
    group = stage.queue_pods("team", "ours", 12, "30", member=member)
    stage.await_reason(group, "NoCapacity", "11 of 12")
    assert not stage.bound("ours")

    stage.delete_pods("filler-0")
    stage.await_bound("ours", 12)
    assert stage.starts(ours=12) == {"ours": [12]}
    assert stage.evictions("ours") == {}
