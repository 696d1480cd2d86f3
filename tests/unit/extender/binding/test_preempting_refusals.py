"""A victim whose end the API server refuses is tried again, and in another way."""

from collections.abc import AsyncIterator

import pytest

from extender.core.scheduling.binding_cycle import CycleStage
from extender.options import EvictionMethod
from serried.api.names import PREEMPTED, Key
from serried.kube.errors import Fenced
from serried.kube.wire import Failure
from tests.support.builders import pod
from tests.support.extender_harness import Harness, gang, members, small_nodes
from tests.support.fake_api import error

HIGH = 100


@pytest.fixture(params=[EvictionMethod.EVICTION, EvictionMethod.DELETION])
async def either(request: pytest.FixtureRequest) -> AsyncIterator[Harness]:
    made = Harness(preempt_by=request.param)
    yield made
    await made.close()


async def preempt(world: Harness) -> None:
    """A gang needs the node of one victim."""
    world.add(*small_nodes(1), pod("low").cpu(2).on("n1"))
    await world.add(gang(1).priority(HIGH), members(1)[0].cpu(2).priority(HIGH)).run_until_idle()


async def test_a_condition_that_could_not_be_written_is_written_before_the_next_try(either: Harness) -> None:
    either.api.fail("mark", error(500))
    either.api.fail("delete", error(422))
    either.api.fail("evict", error(500))
    await preempt(either)
    assert either.pod("low").disruption == ""
    await either.pass_time(6)
    writes = [call for call in either.api.calls if call.resource == "pods" and call.verb in ("mark", "delete")]
    assert [call.verb for call in writes] == ["mark", "delete", "mark", "delete"]
    assert either.api.conditions[-1]["reason"] == PREEMPTED


async def test_a_conflict_is_not_taken_for_the_end_of_a_victim_that_still_runs(either: Harness) -> None:
    either.api.fail("delete", error(409))
    either.api.fail("evict", error(409))
    await preempt(either)
    assert either.node_of("low") == "n1"
    await either.pass_time(6)
    assert Key("default", "low") not in either.api.pods


async def test_one_of_a_victim_that_is_gone_is_its_end(either: Harness) -> None:
    either.api.hold("delete")
    await preempt(either)
    either.delete("low")
    either.api.fail("delete", error(409))
    either.api.fail("evict", error(409))
    either.api.release("delete")
    await either.run_until_idle()
    assert either.binding_cycle().stage is CycleStage.GATHERING


async def test_an_instance_that_leads_no_more_evicts_nobody_in_place_of_a_deletion(either: Harness) -> None:
    either.api.fail("delete", Fenced("delete", Failure(0, "NotLeading", "not sent")))
    await preempt(either)
    assert not either.api.list_calls("evict")
