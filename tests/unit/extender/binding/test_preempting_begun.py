"""Only a preemption of an earlier term that has marked all of its victims counts as begun."""

import pytest

from serried.api.names import Key
from serried.api.verdict import Reason
from tests.support.builders import pod
from tests.support.extender_harness import Harness, gang, members, small_nodes

HIGH = 100


@pytest.mark.parametrize("others", [("low1",), ("low1", "low2")])
async def test_what_somebody_else_says_of_victims_does_not_spare_them_the_dry_runs(
    world: Harness, others: tuple[str, ...]
) -> None:
    """kube-scheduler preempts them, too; a budget keeps one of them."""
    world.api.add_budget()
    world.api.guarded.add(Key("default", "low2"))
    running = [pod(f"low{i}").cpu(2).on(f"n{i}") for i in (1, 2)]
    world.add(*small_nodes(2), *(each.disrupted() if each.value().name in others else each for each in running))
    await world.add(gang(2).priority(HIGH), *(each.cpu(2).priority(HIGH) for each in members(2))).run_until_idle()
    assert Reason.EVICTION_REFUSED in world.reasons()
    assert not world.api.list_evicted()
    assert not world.api.list_calls("mark")
