"""The planner's rules, and helpers to finish the work that rules defer to later steps."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import serried.rules.devices.cluster
import serried.rules.devices.inventory
import serried.rules.extended.cluster
import serried.rules.features.cluster
import serried.rules.interpod.cluster
import serried.rules.volumes.cluster
from serried.cluster import cache
from serried.cluster.cache import Store
from serried.rules.all import RULES

PLAN_RULES = tuple(each.plan for each in RULES if each.plan is not None)
"""The rules that the planner uses."""

_ROOMS = (
    serried.rules.devices.cluster,
    serried.rules.extended.cluster,
    serried.rules.features.cluster,
    serried.rules.interpod.cluster,
    serried.rules.volumes.cluster,
)


def run_deferred_work(store: Store) -> int:
    """Process everything that rules have deferred; return the number of steps."""
    pieces = 0
    while store.apply_rule_changes():
        pieces += 1
    return pieces


@contextmanager
def one_item_per_step() -> Iterator[None]:
    """Limit the rules and the Store to one deferred item per step until the block ends."""
    with ExitStack() as stack:
        for room in _ROOMS:
            stack.enter_context(patch.object(room, "AT_ONCE", 1))
        stack.enter_context(patch.object(serried.rules.devices.inventory, "MATCHED_AT_ONCE", 1))
        stack.enter_context(patch.object(cache, "MAX_UPDATES", 1))
        yield
