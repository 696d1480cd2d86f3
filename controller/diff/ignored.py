"""What an owner's annotations say now, and its objects do not: they were made from what it said before."""

from collections.abc import Sequence

from controller.diff.changes import Observed
from controller.diff.labels import is_ours
from serried.decode.identity import DISRUPTION_MODE, REQUIRED_TOPOLOGY
from serried.decode.preferences import EXCLUSIVE, PACKING, PREFERRED_TOPOLOGY
from serried.model.disruption import Disruption
from serried.model.group import PodGroup, Template, Workload
from serried.model.parent import Owner, kind_of


def find_ignored_changes(owner: Owner, observed: Observed) -> list[str]:
    """The annotations that objects of ours were not made from, none if all is as the owner says.

    Foreign objects say what their authors want, and nobody reads annotations of the owner into them.
    """
    if len(observed.workloads) != 1 or not is_ours(observed.workloads[0], owner):
        return []
    workload = observed.workloads[0]
    ours = [group for group in observed.groups if is_ours(group, owner)]
    made: Sequence[PodGroup | Template] = workload.templates if workload.inline else ours
    differences = {
        REQUIRED_TOPOLOGY: any(each.topology_key != owner.topology_key for each in made),
        PREFERRED_TOPOLOGY: any(each.preference.levels != owner.preference.levels for each in made),
        PACKING: any(each.preference.style != owner.preference.style for each in made),
        EXCLUSIVE: any(each.preference.exclusive != owner.preference.exclusive for each in made),
        DISRUPTION_MODE: _is_other_mode(owner, workload),
    }
    if not workload.inline and any(each.topology_key not in (None, owner.topology_key) for each in workload.templates):
        differences[REQUIRED_TOPOLOGY] = True
    return [name for name, differs in differences.items() if differs]


def _is_other_mode(owner: Owner, workload: Workload) -> bool:
    # An API server without the gate for it drops the field, and another one fills in the default.
    wanted = owner.disruption or Disruption.SINGLE
    return any(each.policy.is_gang and each.disruption not in (None, wanted) for each in workload.templates)


def describe_ignored_changes(owner: Owner, names: Sequence[str]) -> str:
    """The sentence of an event."""
    which = ", ".join(names)
    return (
        f"What {kind_of(owner)} {owner.key.name} says in {which} is not what its PodGroup was made from, and changes "
        "nothing any more: delete it and create it anew"
    )
