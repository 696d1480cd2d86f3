"""Records that an earlier term leaves behind when it crashes."""

from extender.core.binding.records import Records
from serried.api.reservation import Reservation, Slot
from tests.support.extender_harness import GANG, Harness, gang


async def add_leftover_record(
    world: Harness, *names: str, committed: bool = False, nodes: str = "n1", domain: str = ""
) -> None:
    """Write the record of an earlier, crashed term, with these members on one node."""
    slots = {f"pod-{name}": Slot(f"pod-{name}", name, nodes) for name in names}
    left = Reservation(GANG, "podgroup-g", domain, len(names), slots, slots.keys() if committed else ())
    await Records(world.api.client(), "v1", "earlier").write(gang(2).value(), left)
