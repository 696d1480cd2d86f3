"""What is taken back when a gang goes after its first victims: not what is true by then."""

from serried.model.disruption import Disruption
from serried.model.group import Key
from serried.model.pod import PREEMPTED
from tests.support.builders import pod, pod_group
from tests.support.extender_harness import GANG, SCHEDULER, Harness, gang, members, small_nodes
from tests.support.fake_api import budget_refusal

HIGH = 100


async def test_who_ends_keeps_the_condition_though_the_watch_has_not_shown_the_end_yet(world: Harness) -> None:
    """The deletion of v0 is answered, that of v1 is refused; then the gang goes, and the watch lags."""
    world.api.guard_all()
    world.api.graceful.update(Key("default", f"v{i}") for i in range(2))
    world.api.hold("evict")
    world.add(*small_nodes(2), *(pod_group(f"v{i}").gang(1).disruption(Disruption.ALL) for i in range(2)))
    world.add(*(pod(f"v{i}").cpu(2).on(f"n{i + 1}").scheduler(SCHEDULER).in_group(f"v{i}") for i in range(2)))
    await world.add(gang(2).priority(HIGH), *(each.cpu(2).priority(HIGH) for each in members(2))).go()
    world.api.fail("evict", budget_refusal())
    world.api.let_go("evict")
    world.store.drop_group(GANG)
    world.look()
    await world.settle()
    world.look()
    await world.settle()
    ending = {name for name in ("v0", "v1") if "deletionTimestamp" in world.api.pods[Key("default", name)]["metadata"]}
    assert len(ending) == 1
    assert {name for name in ("v0", "v1") if world.pod(name).disruption == PREEMPTED} == ending
    staying = {"v0", "v1"} - ending
    assert world.heard.spared == [f"default/{name}" for name in staying]
