"""A gang whose objects were made anew, as those under which it was bound cannot be read any more."""

from dataclasses import replace

import pytest

from tests.support.extender_harness import GANG, Harness, gang, members, small_nodes


@pytest.mark.parametrize(
    ("stranded", "kept"),
    [
        pytest.param(True, 1, id="it is a gang that runs, so the slot of its dead member is kept"),
        pytest.param(False, 0, id="of one that nobody has bound as a gang nothing is known to have run"),
    ],
)
def test_a_gang_that_was_bound_under_other_objects_has_run(world: Harness, *, stranded: bool, kept: int) -> None:
    world.add(*small_nodes(2), gang(2))
    for each, node in zip(members(2), ("n1", "n2"), strict=True):
        world.store.put_pod(replace(each.on(node).value(), stranded=stranded))
    world.store.drop_pod("pod-m1")
    world.look()
    assert len(world.store.vacancies.of_group(GANG)) == kept


def test_it_is_broken_if_it_lacks_a_member(world: Harness) -> None:
    world.add(*small_nodes(2), gang(2))
    world.store.put_pod(replace(members(1)[0].on("n1").value(), stranded=True))
    world.look()
    assert world.groups.states[GANG].broken_since is not None
