"""The four verbs as handlers of the listener: bytes in, a decision of the service, bytes out.

kube-scheduler reads no body of an answer that is not 200, so errors travel in the protocol's own ``Error`` field where
it has one. Nothing here raises: an exception would be a traceback to us and a blank 500 to the scheduler.
"""

import logging
import math
from collections.abc import Callable
from enum import StrEnum

from extender.core.http.server import Hangup, Reply, Routes
from extender.core.protocol import (
    MAX_BYTES,
    BadRequest,
    read_args,
    read_bind,
    read_preemption,
    write_error,
    write_filter,
    write_preemption,
    write_scores,
)
from extender.core.service import ExtenderService
from serried.ops.metrics import ExtenderMetrics

log = logging.getLogger(__name__)


class Reach(StrEnum):
    """How the scheduler reaches this instance."""

    BESIDE = "beside"
    """It is beside this instance, and has no other."""

    BY_SERVICE = "by service"
    """Its next connection may lead to another instance.

    So none is left open behind a bind call: an instance that stands still, or whose node has lost its power, would
    get later calls on it, which wait until the connection is given up. That takes minutes, and a gang waits with them.
    """


class Verbs:
    """Handlers over one service. ``active`` says whether this instance may answer at all, ``clock`` gives seconds."""

    def __init__(
        self,
        service: ExtenderService,
        active: Callable[[], bool],
        metrics: ExtenderMetrics,
        clock: Callable[[], float],
        reach: Reach = Reach.BESIDE,
    ) -> None:
        self._service = service
        self._active = active
        self._metrics = metrics
        self._clock = clock
        self._reach = reach

        self.refused = -math.inf
        """When a call was last refused because this instance is not active, in seconds of the clock."""

    def routes(self) -> Routes:
        """The four verbs; only bind may take its time."""
        return Routes(
            prompt={b"/filter": self.filter, b"/prioritize": self.prioritize, b"/preempt": self.preempt},
            patient={b"/bind": self.bind},
            max_bytes=MAX_BYTES,
        )

    def filter(self, body: bytes) -> Reply:
        """POST /filter: ExtenderArgs to ExtenderFilterResult."""
        start = self._clock()
        try:
            args = read_args(self._admit(body), self._service.pods)
            return Reply(write_filter(self._service.filter(args.pod, args.names), args))
        except Exception as error:  # noqa: BLE001 - see the module's contract
            return _refuse("filter", error, 200)
        finally:
            self._metrics.verb("filter", self._clock() - start)

    def prioritize(self, body: bytes) -> Reply:
        """POST /prioritize: ExtenderArgs to HostPriorityList. The protocol has no error here: the status says it."""
        start = self._clock()
        try:
            names = read_args(self._admit(body), self._service.pods).names
            return Reply(write_scores(names, self._service.prioritize(names)))
        except Exception as error:  # noqa: BLE001 - see the module's contract
            return _refuse("prioritize", error, 400)
        finally:
            self._metrics.verb("prioritize", self._clock() - start)

    def preempt(self, body: bytes) -> Reply:
        """POST /preempt: ExtenderPreemptionArgs to ExtenderPreemptionResult; no error in the protocol here either."""
        try:
            args = read_preemption(self._admit(body), self._service.pods)
            return Reply(write_preemption(self._service.preempt(args.pod, args.candidates)))
        except Exception as error:  # noqa: BLE001 - see the module's contract
            return _refuse("preempt", error, 400)

    async def bind(self, body: bytes, hangup: Hangup) -> Reply:
        """POST /bind: ExtenderBindingArgs to ExtenderBindingResult; a member's call stays open until its gang binds."""
        start = self._clock()
        try:
            args = read_bind(self._admit(body))
            said = await self._service.bind(args, hangup)
            return Reply(write_error(said), close=self._reach is Reach.BY_SERVICE)
        except Exception as error:  # noqa: BLE001 - see the module's contract
            return _refuse("bind", error, 200)
        finally:
            self._metrics.verb("bind", self._clock() - start)

    def _admit(self, body: bytes) -> bytes:
        if not self._active():
            self.refused = self._clock()
            raise _NotActiveError("this instance is not active: its scheduler does not hold the Lease")
        if len(body) > MAX_BYTES:
            raise BadRequest(f"the body is larger than {MAX_BYTES} bytes")
        return body


class _NotActiveError(Exception):
    """Another instance must answer; the connection is closed so that the scheduler's next one finds it."""


def _refuse(verb: str, error: Exception, status: int) -> Reply:
    if isinstance(error, _NotActiveError):
        return Reply(write_error(f"serried {verb}: {error}"), 503, close=True)
    if isinstance(error, BadRequest):
        return Reply(write_error(f"serried {verb}: {error}"), status, close=True)
    log.error("a verb failed", extra={"verb": verb}, exc_info=error)
    sentence = f"serried {verb}: internal error ({type(error).__name__}), see the extender's log"
    return Reply(write_error(sentence), status)
