"""The places in the queue of gangs whose pods are gone: the dates of their first quorums.

Kueue, or a person, deletes the pods of a gang that waits, and the same Job makes new ones later. The gang then has the
place that it had (`FirstQuorums.find`), for a day after its quorum was lost. Two memories say so: the one of this
process, by the owner of the PodGroup, and the condition FirstQuorum, which outlasts the process
(docs/decisions/0058-a-gang-keeps-its-place.md).
"""

from dataclasses import dataclass

from serried.api.group import FirstQuorum, PodGroup
from serried.api.names import REPLICA

_KEPT_SECONDS = 86_400.0
"""How long a place is kept after the quorum was lost."""

_MAX_PLACES = 10_000
"""How many places are remembered; of more, the oldest are forgotten."""

_Gang = tuple[str, str, str]
"""What stays the same when an owner's PodGroup is made anew: the owner's UID, the template, the replica."""


@dataclass(frozen=True, slots=True)
class _Place:
    """A place of a gang without quorum. Times are loop seconds."""

    since: float
    lost: float


class FirstQuorums(dict[_Gang, _Place]):
    """Remembers the places of gangs without quorum. One per process; the memory ends with the term (``clear``).

    It is empty where no gang has lost its quorum while it waited.

    All times are loop seconds. ``begun`` is the time at which the loop's clock showed 0, in seconds since 1970.
    """

    def note_lost(self, group: PodGroup, since: float | None, now: float, begun: float) -> None:
        """Remember that a gang has no quorum ``now``; it had one ``since`` then, None if it had none a moment ago."""
        gang, told = _identify(group), group.first_quorum
        if since is not None:
            self[gang] = _Place(since, now)
        elif gang not in self and told is not None:
            self[gang] = _Place(told.since - begun, now if told.lost is None else told.lost - begun)
        if len(self) > _MAX_PLACES:
            del self[next(iter(self))]

    def drop(self, group: PodGroup) -> None:
        """Forget the place of a gang that has run."""
        self.pop(_identify(group), None)

    def find(self, group: PodGroup, now: float, begun: float) -> float | None:
        """Return since when a gang waits that has its quorum (again); None if nothing earlier is known of it."""
        place, told = self.get(_identify(group)), group.first_quorum
        if place is not None:
            return place.since if now < place.lost + _KEPT_SECONDS else None
        if told is None or (told.lost is not None and now + begun >= told.lost + _KEPT_SECONDS):
            return None
        return told.since - begun

    def describe(self, group: PodGroup, begun: float) -> FirstQuorum | None:
        """Return the place of a gang without quorum, as its condition says it; None if it has none."""
        place = self.get(_identify(group))
        return None if place is None else FirstQuorum(int(place.since + begun), int(place.lost + begun))


def _identify(group: PodGroup) -> _Gang:
    owner = next((each.uid for each in group.owners if each.controller), "")
    if not owner or group.template is None:
        return group.uid, group.key.encoded, ""
    return owner, group.template, group.labels.get(REPLICA, "")
