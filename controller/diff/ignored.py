"""Changes of an owner's annotations that have no effect, because its objects were made before."""

from collections.abc import Sequence

from controller.diff.changes import Observed
from serried.decode.identity import DISRUPTION_MODE, REQUIRED_TOPOLOGY
from serried.decode.preferences import EXCLUSIVE, PACKING, PREFERRED_TOPOLOGY
from serried.decode.provenance import is_ours
from serried.model.disruption import Disruption
from serried.model.group import PodGroup, Template, Workload
from serried.model.parent import Owner


def find_ignored_changes(owner: Owner, observed: Observed) -> list[str]:
    """The names of the annotations that differ from the objects made by us; empty if all agree.

    Objects made by others are not compared: the owner's annotations have no effect on them.
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
