"""Where the members of a group are: its domain, and the nodes of each PodGroup of its tree."""

from collections.abc import Iterable, Mapping, Sequence

from serried.model.group import PodGroup
from serried.model.node import Node
from serried.model.reservation import Reservation
from serried.plan.quorum import GroupMembers

Homes = Mapping[str, Sequence[str]]
"""PodGroup in the tree to the nodes of its members."""


def find_home(group: PodGroup, group_members: GroupMembers, nodes: Mapping[str, Node]) -> str:
    """The domain of the first resident whose node is there; "" if no key is asked for.

    If the nodes of all of them are gone it is what their Bindings have told them, "" for nothing.
    """
    key = group.topology_key
    if key is None:
        return ""
    residents = group_members.find_residents(nodes)
    told = next((pod.domain for pod in residents if pod.domain), "")
    return next((nodes[pod.node].labels.get(key, "") for pod in residents if pod.node in nodes), told)


def find_homes(group_members: GroupMembers, nodes: Mapping[str, Node]) -> Homes:
    """The nodes of the residents of each PodGroup."""
    return {name: [pod.node for pod in each.find_residents(nodes)] for name, each in group_members.leaves.items()}


def homes_of(reservation: Reservation, uids: Iterable[str]) -> dict[str, list[str]]:
    """The nodes of these slots by the PodGroup of each."""
    homes: dict[str, list[str]] = {}
    for uid in uids:
        slot = reservation.slots[uid]
        homes.setdefault(slot.part, []).append(slot.node)
    return homes
