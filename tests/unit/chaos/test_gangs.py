"""The load of the soak: everything that it submits can run, and is what it says on both API levels."""

from random import Random

import pytest

from bench.cluster.nodes import RACK
from tests.chaos.gangs import MIXES, Gang, Objects, draw_gang
from tests.chaos.objects import read_group, read_pod
from tests.chaos.soak import make_spec

GANGS = [draw_gang(MIXES["any"], Random(seed), seed, "chaos-0") for seed in range(300)]


def test_every_kind_is_drawn_and_fits_into_an_empty_rack() -> None:
    assert {gang.kind for gang in GANGS} == {"plain", "keyed", "elastic", "tree", "high", "job", "pod"}
    assert max(gang.milli_cpu for gang in GANGS) <= 8000
    assert max(gang.milli_cpu * gang.size * max(1, len(gang.groups)) for gang in GANGS) <= 3 * 8000
    assert any(gang.min_count < gang.size for gang in GANGS)


def test_a_tight_load_has_ten_shapes_and_as_many_plain_pods_as_gangs() -> None:
    drawn = [draw_gang(MIXES["tight"], Random(seed), seed, "chaos-0") for seed in range(300)]
    gangs = [gang for gang in drawn if gang.kind != "pod"]
    assert len({gang.milli_cpu for gang in gangs}) == 10
    assert 120 < len(gangs) < 180
    assert max(gang.milli_cpu * gang.size for gang in gangs) <= 3 * 8000


def test_bindings_of_plain_pods_alone_are_late_so_that_nobody_knows_of_their_room_yet() -> None:
    mix, source, binding = MIXES["tight"], Random(1), "/api/v1/namespaces/chaos-0/pods/{}/binding"
    assert any(mix.draw_delay(source, binding.format("pod-00012")) for _ in range(100))
    assert not any(mix.draw_delay(source, binding.format("plain-00012-0")) for _ in range(100))
    assert not any(MIXES["any"].draw_delay(source, binding.format("pod-00012")) for _ in range(100))


@pytest.mark.parametrize("api", ["native", "fallback"])
def test_both_levels_carry_quorum_key_and_members(api: str) -> None:
    objects = Objects(make_spec("x", api))
    gang = Gang("keyed", "ns", "g", 3, 2, 1000, 5, RACK)
    ((path, raw),) = objects.list_leading(gang)
    raw["metadata"] |= {"namespace": "ns", "uid": "u"}
    assert path.startswith("/apis/scheduling.")
    seen = read_group(raw)
    assert (seen.min_count, seen.key) == (2, RACK)
    member = objects.make_member(gang, *gang.members[0])
    member["metadata"] |= {"namespace": "ns", "uid": "u"}
    assert read_pod(member).group == ("ns", "g")
    assert (read_pod(member).milli_cpu, read_pod(member).ours) == (1000, True)


def test_a_tree_is_a_root_with_two_groups() -> None:
    objects = Objects(make_spec("x"))
    tree = Gang("tree", "ns", "t", 2, 2, 1000, 5, RACK)
    found = [raw for _, raw in objects.list_leading(tree)]
    assert [raw["kind"] for raw in found] == ["CompositePodGroup", "PodGroup", "PodGroup"]
    assert [raw["spec"].get("parentCompositePodGroupName") for raw in found] == [None, "t", "t"]
    assert len(tree.members) == 4
