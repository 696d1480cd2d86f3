"""Keeps the place in the queue of a gang whose pods were deleted before it ran.

A gang's place depends on the time at which its quorum existed first. Kueue or a person may delete the pods of a waiting
gang, and the same Job makes new ones later. `GroupScheduler` then gives the gang its former place
(`FirstQuorums.find`), for a day after its quorum was lost. The place is kept in memory under the owner of the PodGroup
and its template, as a PodGroup created again has another UID (`_Gang`). It is also kept in the PodGroup's condition
FirstQuorum, which outlasts this process (docs/decisions/0058-a-gang-keeps-its-place.md).
"""

from dataclasses import dataclass

from serried.api.group import FirstQuorum, PodGroup
from serried.api.names import REPLICA

_KEPT_SECONDS = 86_400.0
"""The seconds for which a gang's place in the queue is kept after it has lost its quorum: a day."""

_MAX_PLACES = 10_000
"""The largest number of gangs without a quorum whose place in the queue is kept. Beyond it, the oldest is dropped."""

_Gang = tuple[str, str, str]
"""The identity of a gang that stays the same if its PodGroup is created again.

That is the UID of the owner, the name of the owner's PodGroup template, and which replica of that template the PodGroup
is ("" if the template has only one). For a PodGroup without owner or template it is the PodGroup's own UID, its name,
and "".
"""


@dataclass(frozen=True, slots=True)
class _Place:
    """The place of one gang in the queue, as two times in loop seconds.

    ``since`` is when the gang had a quorum for the first time, ``lost`` is when it has lost its last one.
    """

    since: float
    lost: float


class FirstQuorums(dict[_Gang, _Place]):
    """The places in the queue of gangs that have lost their quorum before they ran. One instance per process.

    It is cleared at the end of the term. All times are loop seconds; ``begun`` is the start of the loop clock in
    seconds since 1970.
    """

    def note_lost(self, group: PodGroup, since: float | None, now: float, begun: float) -> None:
        """Note that a gang has no quorum at the time ``now``, and keep its place in the queue.

        ``since`` is the time of its first quorum, if the gang had a quorum until now. If it had none (None), its place
        is the one that is kept already, else the one in the PodGroup's condition.
        """
        gang, written = _identify(group), group.first_quorum
        if since is not None:
            self[gang] = _Place(since, now)
        elif gang not in self and written is not None:
            self[gang] = _Place(written.since - begun, now if written.lost is None else written.lost - begun)
        if len(self) > _MAX_PLACES:
            del self[next(iter(self))]

    def drop(self, group: PodGroup) -> None:
        """Forget the place of a gang in the queue, because one of its members has run."""
        self.pop(_identify(group), None)

    def find(self, group: PodGroup, now: float, begun: float) -> float | None:
        """Return the loop time of the first quorum of a gang that has a quorum again, which is its place in the queue.

        None if no place is kept for it, as it has run, never had a quorum, or lost it more than a day ago.
        """
        place, written = self.get(_identify(group)), group.first_quorum
        if place is not None:
            return place.since if now < place.lost + _KEPT_SECONDS else None
        if written is None or (written.lost is not None and now + begun >= written.lost + _KEPT_SECONDS):
            return None
        return written.since - begun

    def describe(self, group: PodGroup, begun: float) -> FirstQuorum | None:
        """Return the place in the queue of a gang without a quorum, for its condition; None if it has no place.

        The result has two times: when it had a quorum for the first time, and when it has lost the last one.
        """
        place = self.get(_identify(group))
        return None if place is None else FirstQuorum(int(place.since + begun), int(place.lost + begun))


def _identify(group: PodGroup) -> _Gang:
    owner = next((each.uid for each in group.owners if each.controller), "")
    if not owner or group.template is None:
        return group.uid, group.key.encoded, ""
    return owner, group.template, group.labels.get(REPLICA, "")
