"""How far a record reaches: it speaks for the pods of its own namespace, and for others as far as these say it, too.

A record is an object of its namespace, so whoever may do everything there may have written it, unless the policy
`serried-reservations` is there. Members are always of the namespace of their group. Victims may be of any; Serried
has said on each of them that it ends for this gang before the first one was evicted, and who can write only into
another namespace cannot say that. Without it nobody was evicted for the gang: it is planned anew.
"""

from collections.abc import Callable

from extender.binding.disrupting import describe_end
from serried.model.pod import Pod
from serried.model.reservation import Reservation, Slot, Victim

FindPod = Callable[[str], Pod | None]
"""The pod with a UID; None if it is gone, or was never there."""


def confine(record: Reservation, find: FindPod) -> Reservation:
    """The record without what it cannot speak for: itself, if it says nothing else. It may be left without slots."""
    slots = {uid: slot for uid, slot in record.slots.items() if _is_own(record, slot, find)}
    victims = [victim for victim in record.victims.values() if _is_confirmed(record, victim, find)]
    if len(slots) == len(record.slots) and len(victims) == len(record.victims):
        return record
    committed = record.committed & slots.keys()
    return Reservation(
        record.group, record.group_uid, record.domain, record.need, slots, committed, record.parts, victims
    )


def _is_own(record: Reservation, slot: Slot, find: FindPod) -> bool:
    pod = find(slot.uid)
    return pod is None or pod.namespace == record.group.namespace


def _is_confirmed(record: Reservation, victim: Victim, find: FindPod) -> bool:
    if record.committed:
        return False  # its victims were gone before: what is named here would only look as if it ended
    pod = find(victim.uid)
    if pod is None:
        return True
    if (pod.namespace, pod.name) != (victim.namespace, victim.name):
        return False
    own = pod.namespace == record.group.namespace
    return own or pod.deleting or pod.disruption_message == describe_end(record.group)
