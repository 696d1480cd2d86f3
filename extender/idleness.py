"""Whether the extender plans while its scheduler leads. If it does not for long, the other pair is to lead.

A scheduler renews its Lease beside an extender that cannot plan, too: then no gang starts, and the other pair waits.
An extender that looks at groups is not idle, even if it can only tell them what keeps them waiting.

Where the extenders hold the Lease themselves, what is said here of the scheduler beside it is true of the extender.
"""

import math
from collections.abc import Callable

from serried.model.backoff import Backoff

PATIENCE = Backoff(first=60.0, cap=3600.0)
"""How long an extender may be idle, in seconds: the caches of a large cluster take some tens of seconds to fill.

It doubles whenever that was too short. Caches fill on without the Lease, but many records are taken over by a leader
only, so two slow pairs that were as patient each time would hand the Lease to and fro for ever.
"""

_ASKED_SECONDS = 15.0
"""For how long a refused call shows that the scheduler leads: it tries a pod again after 10 s at the latest."""


class Idleness:
    """Looked at by each probe of the scheduler. All times are seconds of ``clock``.

    ``leads`` says whether we see that the scheduler beside us holds the Lease. ``refused`` is when it was last told
    that it does not: it calls nobody without the Lease, so then it is we who cannot see. ``planned`` is when groups
    were last looked at, which counts while the caches are ``synced``: full, and shown all changes.
    """

    def __init__(
        self,
        leads: Callable[[], bool],
        refused: Callable[[], float],
        planned: Callable[[], float],
        synced: Callable[[], bool],
        clock: Callable[[], float],
    ) -> None:
        self._leads = leads
        self._refused = refused
        self._planned = planned
        self._synced = synced
        self._clock = clock

        self._worked = -math.inf
        """When groups were last looked at by caches that follow the cluster."""

        self._since = math.inf
        """Since when the scheduler leads, infinity while it does not."""

        self._too_long = False
        """Whether the extender has been idle for too long in that time."""

        self._turns = 0
        """How many times of the scheduler in a row have ended so."""

    def may_go_on(self) -> bool:
        """Whether the scheduler may keep the Lease, if it has it."""
        now = self._clock()
        if not self._leads() and now - self._refused() > _ASKED_SECONDS:
            self._turns += 1 if self._too_long else 0
            self._too_long = False
            self._since = math.inf
            return True
        self._since = min(self._since, now)
        if self._synced():
            self._worked = self._planned()
        if self._worked >= self._since:
            self._turns = 0
        self._too_long = now - max(self._since, self._worked) >= PATIENCE.delay(self._turns + 1)
        return not self._too_long
