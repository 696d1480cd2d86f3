"""Annotations from Bindings show a process that a gang has run, whatever has become of its objects since."""

from dataclasses import replace

import pytest

from extender.features.repair import broken_since
from serried.api.names import GANG as TOLD
from serried.api.names import write_time
from tests.support.builders import PodBuilder
from tests.support.extender_harness import GANG, Harness, gang, members, small_nodes


def bound(count: int, *, told: bool) -> list[PodBuilder]:
    """Members on n1, n2, ..., bound with or without a word of their gang."""
    pods = [each.on(f"n{place}") for place, each in enumerate(members(count), 1)]
    return [each.annotation(TOLD, "scheduling.k8s.io/v1beta1 g") for each in pods] if told else pods


@pytest.mark.parametrize(
    ("told", "kept"),
    [
        pytest.param(True, 1, id="it is a gang that runs, so the slot of its dead member is kept"),
        pytest.param(False, 0, id="of one that nobody has bound as a gang nothing is known to have run"),
    ],
)
def test_a_gang_without_a_condition_has_run_if_its_bindings_say_so(world: Harness, *, told: bool, kept: int) -> None:
    world.add(*small_nodes(2), gang(2), *bound(2, told=told))
    world.delete("m1")
    world.schedule_groups()
    assert len(world.store.vacancies.of_group(GANG)) == kept


@pytest.mark.parametrize(
    ("stranded", "broken"),
    [
        pytest.param(True, True, id="under objects that cannot be read any more: it was whole, and is broken"),
        pytest.param(False, False, id="under objects that can be: these may ask for more than was ever there"),
    ],
)
def test_a_gang_that_was_bound_and_lacks_a_member(world: Harness, *, stranded: bool, broken: bool) -> None:
    world.add(*small_nodes(2), gang(2))
    world.store.put_pod(replace(bound(1, told=True)[0].value(), stranded=stranded))
    world.schedule_groups()
    assert (broken_since(world.groups.states[GANG]) is not None) is broken


def test_a_kill_right_after_the_bindings_leaves_the_slot_of_one_that_failed_to_the_next_process(world: Harness) -> None:
    ended = {"terminated": {"exitCode": 1, "finishedAt": write_time(world.wall_time() - 1)}}
    failed, runs = bound(2, told=True)
    failed = failed.phase("Failed").with_field([{"state": ended}], "status", "containerStatuses")
    world.add(*small_nodes(2), gang(2), failed, runs)
    world.group_scheduler.begin_term(world.wall_time())
    world.schedule_groups()
    assert [vacancy.pod.name for vacancy in world.store.vacancies.of_group(GANG)] == ["m0"]
