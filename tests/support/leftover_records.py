"""Records of a crashed extender, which the next extender finds when it starts."""

from extender.core.binding.records import Records
from serried.api.reservation import Reservation, Slot
from tests.support.extender_harness import GANG, Harness, gang


async def add_leftover_record(
    world: Harness, *names: str, committed: bool = False, nodes: str = "n1", domain: str = ""
) -> None:
    """Write the record of a crashed extender: members ``names`` with their slots, on nodes ``nodes``."""
    slots = {f"pod-{name}": Slot(f"pod-{name}", name, nodes) for name in names}
    left = Reservation(GANG, "podgroup-g", domain, len(names), slots, slots.keys() if committed else ())
    await Records(world.api.client(), "v1", "earlier").write(gang(2).value(), left)
