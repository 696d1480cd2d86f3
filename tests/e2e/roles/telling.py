"""Telling of a row: without each of its rights its story has no end, and with all of them it has."""

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import httpx

from bench.cluster.waiting import answers
from tests.e2e.roles.audit import Audit
from tests.e2e.roles.rights import PROCESSES, Grant, Rights
from tests.e2e.roles.stage import START_SECONDS, RoleStage
from tests.e2e.roles.stories import Check
from tests.e2e.roles.table import Row
from tests.support.cluster_stage import eventually, staged

CALM_SECONDS = 1.5
"""The time for which a story's end must not come, once its process has been refused and does all it can."""

CALM_AFTER_START_SECONDS = 5.0
"""The same if that process has just been away: kube-scheduler tries members a few seconds later then."""


def tell(stage: RoleStage, audit: Audit, row: Row) -> None:
    """Tell a row."""
    begun = audit.mark()
    telling = _Telling(stage, audit, row)
    with telling.told(), ExitStack() as stack:
        row.prepare(stage)
        done = telling.begin_without()
        ending = stack.enter_context(telling.begin_anew()) if row.anew else done
        eventually("the end of the story", lambda: is_over(ending), START_SECONDS)
    if not row.shown_by:
        # The API server writes a line when its answer is out: a story may be at its end by then.
        eventually(f"somebody uses each right: {row}", lambda: not audit.find_unused(begun, row.grants))


def is_over(done: Check) -> bool:
    """Return whether a story has come to its end; not while its process starts."""
    try:
        return bool(done())
    except httpx.TransportError:
        return False


class _Telling:
    """One row on its stage."""

    def __init__(self, stage: RoleStage, audit: Audit, row: Row) -> None:
        self._stage = stage
        self._cluster = stage.cluster
        self._audit = audit
        self._row = row
        self._process = PROCESSES[row.account]
        self._rights = Rights(stage.cluster, row.account)

    @contextmanager
    def told(self) -> Iterator[None]:
        """The process runs with the flags of the row; in the end it is ready, as ever."""
        flags = self._row.flags
        if flags:
            self._cluster.restart(self._process, *(f"{flag}={value}" for flag, (value, _) in flags.items()))
        try:
            yield
        finally:
            if flags:
                self._cluster.restart(self._process, *(f"{flag}={usual}" for flag, (_, usual) in flags.items()))
            self._cluster.start(self._process)
            self._cluster.await_ready(self._process)

    def begin_without(self) -> Check:
        """Begin the story without the first right, and see that it has no end without any of them.

        In the end all are granted.
        """
        try:
            first, *others = self._row.grants
            mark = self._take(first)
            if first.verb == "watch":
                # Its first list is over then: what begins now it would see by the watch alone.
                eventually(f"a refusal: {first}", lambda: self._audit.count_refused(mark, first), START_SECONDS)
            done = self._row.story(self._stage)
            self._await_refusal(first, mark, done)
            for grant in others:
                self._await_refusal(grant, self._take(grant), done)
        finally:
            with self._started_anew():
                self._rights.give_back(self._row.grants)
        return done

    @contextmanager
    def begin_anew(self) -> Iterator[Check]:
        """The story once more, in a namespace of its own."""
        self._stage.clear()
        with staged(RoleStage, self._cluster) as second:
            try:
                self._row.prepare(second)
                yield self._row.story(second)
            finally:
                second.clear()  # also after a failure: what it has put on the nodes would be in the way of others

    def _take(self, grant: Grant) -> int:
        """Grant everything but this; where the log ended then."""
        with self._started_anew():
            self._rights.take(grant)
            return self._audit.mark()

    @contextmanager
    def _started_anew(self) -> Iterator[None]:
        """The process, if it asks at its start only, is away in the body; it may never become ready after that."""
        if not self._row.asks_at_start:
            yield
            return
        self._cluster.kill(self._process, signal.SIGTERM)
        try:
            yield
        finally:
            self._cluster.start(self._process)
        listens = {"extender": self._cluster.ops_url, "controller": self._cluster.controller_url}
        if self._process in listens:
            probe = f"{listens[self._process]}/livez"
            eventually(f"{self._process} up", lambda: answers(probe), START_SECONDS)

    def _await_refusal(self, grant: Grant, mark: int, done: Check) -> None:
        """The process is refused what it needs the right for, gets no further, and neither does the story."""
        shown = self._row.find_shown(grant)
        # Who may list and not watch lists again after 3 s, and sees then how far the story is.
        once = grant.verb == "watch"

        def rests() -> bool:
            assert not is_over(done), f"the story ends without the right: {grant}"
            refusals = self._audit.count_refused(mark, shown)
            return refusals > 1 or (refusals == 1 and (once or self._cluster.is_ready(self._process)))

        eventually(f"a refusal: {shown}", rests, START_SECONDS)
        # One that does not become ready without the right does nothing at all, however long it is looked at.
        works_on = not once and self._row.asks_at_start and self._cluster.is_ready(self._process)
        until = time.monotonic() + (CALM_AFTER_START_SECONDS if works_on else CALM_SECONDS)
        while time.monotonic() < until:
            assert not is_over(done), f"the story ends without the right: {grant}"
            time.sleep(0.1)
