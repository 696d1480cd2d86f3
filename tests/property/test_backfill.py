"""Small gangs use the room that the head of the queue leaves, and never put off its start."""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from serried.api.names import GroupKey
from tests.support.builders import job, node, pod, pod_group
from tests.support.examples import scale
from tests.support.extender_harness import SCHEDULER, Harness

NODES = ("n0", "n1")
HEAD = GroupKey("default", "head")
CPUS = 8

Sizes = tuple[int, int]
"""The number of members, and the CPUs of each."""

sizes = st.tuples(st.integers(1, 4), st.integers(1, CPUS))


async def submit(world: Harness, name: str, size: Sizes) -> None:
    count, cpu = size
    pods = [pod(f"{name}-{index}").scheduler(SCHEDULER).in_group(name).cpu(cpu) for index in range(count)]
    await world.add(pod_group(name).gang(count), *pods).run_until_idle()


async def bind_all(world: Harness, name: str) -> None:
    """kube-scheduler binds the members of a gang that has its plan."""
    reservation = world.ledger.of_group(GroupKey("default", name))
    for slot in list(reservation.slots.values()) if reservation is not None else ():
        world.bind(slot.name)
    await world.run_until_idle()


@given(
    tenants=st.lists(st.tuples(st.sampled_from(NODES), st.integers(1, CPUS)), min_size=1, max_size=4),
    head=sizes,
    smalls=st.lists(st.tuples(st.integers(1, 2), st.integers(1, 3)), min_size=2, max_size=6),
)
@settings(max_examples=scale(200), deadline=None)
def test_the_head_starts_when_the_tenants_have_ended_even_if_gangs_have_passed_it(
    tenants: list[tuple[str, int]], head: Sizes, smalls: list[Sizes]
) -> None:
    async def story() -> None:
        world = Harness()
        world.add(*[node(name).cpu(CPUS) for name in NODES])
        for index, (name, cpu) in enumerate(tenants):
            world.add(job(f"job-{index}"), pod(f"tenant-{index}").of_job(f"job-{index}", 0).cpu(cpu).on(name))
        await submit(world, "head", head)
        if HEAD in world.core.backfill:
            for index, size in enumerate(smalls):
                await submit(world, f"small-{index}", size)
                await bind_all(world, f"small-{index}")
            for index in range(len(tenants)):
                world.delete(f"tenant-{index}")
            await world.run_until_idle()
            assert world.ledger.of_group(HEAD) is not None
        await world.close()

    asyncio.run(story())
