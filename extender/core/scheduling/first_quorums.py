"""Keeps the places in the queue of gangs whose pods are deleted: the dates of their first quorums.

Kueue, or a person, may delete the pods of a waiting gang, and the same Job makes new ones later. `GroupScheduler` then
gives the gang its former place (`FirstQuorums.find`), for a day after its quorum was lost. The place is in the memory
of this process, by the owner of the PodGroup, and in the condition FirstQuorum, which outlasts the process
(docs/decisions/0058-a-gang-keeps-its-place.md).
"""

from dataclasses import dataclass

from serried.api.group import FirstQuorum, PodGroup
from serried.api.names import REPLICA

_KEPT_SECONDS = 86_400.0
"""The seconds for which a place is kept after the quorum was lost."""

_MAX_PLACES = 10_000
"""The largest number of places; of more, the oldest are dropped."""

_Gang = tuple[str, str, str]
"""The identity of a gang that outlasts its PodGroup: the owner's UID, the template, the replica."""


@dataclass(frozen=True, slots=True)
class _Place:
    """The place of a gang without a quorum. Times are loop seconds."""

    since: float
    lost: float


class FirstQuorums(dict[_Gang, _Place]):
    """The places of gangs without a quorum. One per process; cleared at the end of the term.

    The dictionary is empty while no gang has lost its quorum before it ran. All times are loop seconds. ``begun`` is
    the start of the loop clock in seconds since 1970.
    """

    def note_lost(self, group: PodGroup, since: float | None, now: float, begun: float) -> None:
        """Note that a gang has no quorum ``now``.

        ``since`` is when it got its last one; None if it had none just before.
        """
        gang, written = _identify(group), group.first_quorum
        if since is not None:
            self[gang] = _Place(since, now)
        elif gang not in self and written is not None:
            self[gang] = _Place(written.since - begun, now if written.lost is None else written.lost - begun)
        if len(self) > _MAX_PLACES:
            del self[next(iter(self))]

    def drop(self, group: PodGroup) -> None:
        """Drop the place of a gang that has run."""
        self.pop(_identify(group), None)

    def find(self, group: PodGroup, now: float, begun: float) -> float | None:
        """Return the loop time since when a gang with a quorum waits; None if no earlier quorum is known."""
        place, written = self.get(_identify(group)), group.first_quorum
        if place is not None:
            return place.since if now < place.lost + _KEPT_SECONDS else None
        if written is None or (written.lost is not None and now + begun >= written.lost + _KEPT_SECONDS):
            return None
        return written.since - begun

    def describe(self, group: PodGroup, begun: float) -> FirstQuorum | None:
        """Return the place of a gang without a quorum, for its condition; None if it has none."""
        place = self.get(_identify(group))
        return None if place is None else FirstQuorum(int(place.since + begun), int(place.lost + begun))


def _identify(group: PodGroup) -> _Gang:
    owner = next((each.uid for each in group.owners if each.controller), "")
    if not owner or group.template is None:
        return group.uid, group.key.encoded, ""
    return owner, group.template, group.labels.get(REPLICA, "")
