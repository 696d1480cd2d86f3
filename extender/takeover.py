"""The begin of a term of leadership: first the records of earlier ones, and before they are read nothing is planned."""

import asyncio
import logging
import time
from collections.abc import Callable

from extender.binding.recovery import Recovery
from extender.binding.unseen import UnjudgedError
from extender.leader import Leadership
from extender.scheduling.group_scheduler import GroupScheduler
from extender.scheduling.term import Term
from serried.kube.attempts import Attempts
from serried.kube.errors import ApiError, Forbidden, NotFound
from serried.kube.wire import RESERVATIONS
from serried.model.backoff import Backoff

log = logging.getLogger(__name__)

_BACKOFF = Backoff(first=1.0, cap=10.0)
_CONTEST_SECONDS = 5.0
"""How long another that is active may go on with what it has committed: what it has bound by then is seen."""

_MAX_FAILURES = 3
"""How many failures in a row are passed over; after them it is no matter of moments."""


class Takeover:
    """Begins a term whenever leadership has turned to us."""

    def __init__(
        self,
        term: Term,
        group_scheduler: GroupScheduler,
        leadership: Leadership,
        recovery: Recovery,
        *,
        synced: asyncio.Event,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._term = term
        self._group_scheduler = group_scheduler
        self._leadership = leadership
        self._recovery = recovery
        self._synced = synced
        """Set while all caches are whole: the records are judged by them."""
        self._wall = wall
        self._turned = asyncio.Event()

    def note_turn(self) -> None:
        """Leadership has turned, to us or away."""
        self._turned.set()

    async def renew(self, contested: asyncio.Event, begin_anew: Callable[[], None]) -> None:
        """Have a new term begun whenever this one meets a commit of another that it has not taken over.

        Whoever has written it may be dead, and then nobody would go on with it. Runs until cancelled.
        """
        while True:
            await contested.wait()
            log.warning("another instance is active, too, and has committed a gang: its records are taken over")
            await asyncio.sleep(_CONTEST_SECONDS)
            contested.clear()
            if self._term.plans:
                begin_anew()

    async def run(self) -> None:
        """Begin terms until cancelled."""
        while True:
            await self._turned.wait()
            self._turned.clear()
            await self._begin()

    async def _begin(self) -> None:
        attempts = Attempts(_BACKOFF)
        while self._leadership.active and not self._term.plans:
            await self._synced.wait()
            try:
                if not await self._recovery.recover():
                    continue  # the term ended under it; if the next one is ours, too, it begins at the beginning
            except (ApiError, UnjudgedError) as error:
                self._meet_obstacle(error, attempts.failures + 1)
                await attempts.rest()
                continue
            self._group_scheduler.begin_term(self._wall())
            self._term.active = self._leadership.active  # it may have turned meanwhile
            self._group_scheduler.meet_obstacle("")

    def _meet_obstacle(self, error: ApiError | UnjudgedError, failures: int) -> None:
        """Nothing can be planned in this term yet: say so, and let go of whom it does not concern."""
        log.error("cannot take over the Reservations, so nothing is planned yet", extra={"err": str(error)})
        lasting = isinstance(error, NotFound | Forbidden) or failures >= _MAX_FAILURES
        if self._leadership.active and lasting:
            self._term.active = True
            self._group_scheduler.meet_obstacle(_describe(error))


def _describe(error: ApiError | UnjudgedError) -> str:
    """What keeps us from the records, or from judging them, and what helps."""
    what = f"{RESERVATIONS} ({RESERVATIONS.version})"
    if isinstance(error, NotFound):
        return f"the API server does not serve {what}; install the CRDs"
    if isinstance(error, Forbidden):
        return f"the API server does not let us see {what}; apply the roles"
    return str(error)
