"""The four verbs as handlers: decode the body, call `ExtenderService`, encode the answer.

`Verbs.routes` is what the listener serves. kube-scheduler reads no body of an answer that is not 200, so errors are
sent in the protocol's own ``Error`` field where it has one. Handlers do not raise: kube-scheduler would only see an
empty 500.
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
    """The way in which kube-scheduler reaches this instance."""

    BESIDE = "beside"
    """kube-scheduler runs in the same Pod and calls this instance only."""

    BY_SERVICE = "by service"
    """kube-scheduler connects through a Service, and its next connection may reach another instance.

    So no connection is kept after a bind call. Otherwise, if this instance hangs or its node loses power, later calls
    would use that connection until it times out, which takes minutes, and a gang would wait for it.
    """


class Verbs:
    """The handlers of one service. ``active`` returns whether this instance may answer, ``clock`` gives seconds."""

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
        """The clock's time when a call was last rejected because this instance is not active."""

    def routes(self) -> Routes:
        """Return the routes of the four verbs; only bind may wait."""
        return Routes(
            prompt={b"/filter": self.filter, b"/prioritize": self.prioritize, b"/preempt": self.preempt},
            patient={b"/bind": self.bind},
            max_bytes=MAX_BYTES,
        )

    def filter(self, body: bytes) -> Reply:
        """Handle POST /filter: ExtenderArgs to ExtenderFilterResult."""
        start = self._clock()
        try:
            args = read_args(self._admit(body), self._service.pods)
            return Reply(write_filter(self._service.filter(args.pod, args.names), args))
        except Exception as error:  # noqa: BLE001 - see the module's contract
            return _refuse("filter", error, 200)
        finally:
            self._metrics.verb("filter", self._clock() - start)

    def prioritize(self, body: bytes) -> Reply:
        """Handle POST /prioritize: ExtenderArgs to HostPriorityList.

        The protocol has no error here, only the status.
        """
        start = self._clock()
        try:
            names = read_args(self._admit(body), self._service.pods).names
            return Reply(write_scores(names, self._service.prioritize(names)))
        except Exception as error:  # noqa: BLE001 - see the module's contract
            return _refuse("prioritize", error, 400)
        finally:
            self._metrics.verb("prioritize", self._clock() - start)

    def preempt(self, body: bytes) -> Reply:
        """Handle POST /preempt: ExtenderPreemptionArgs to ExtenderPreemptionResult. Here, too, errors are a status."""
        try:
            args = read_preemption(self._admit(body), self._service.pods)
            return Reply(write_preemption(self._service.preempt(args.pod, args.candidates)))
        except Exception as error:  # noqa: BLE001 - see the module's contract
            return _refuse("preempt", error, 400)

    async def bind(self, body: bytes, hangup: Hangup) -> Reply:
        """Handle POST /bind: ExtenderBindingArgs to ExtenderBindingResult.

        A member's call is open until its gang is bound.
        """
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
    """Raised while another instance must answer. The connection is closed, so that kube-scheduler opens a new one."""


def _refuse(verb: str, error: Exception, status: int) -> Reply:
    if isinstance(error, _NotActiveError):
        return Reply(write_error(f"serried {verb}: {error}"), 503, close=True)
    if isinstance(error, BadRequest):
        return Reply(write_error(f"serried {verb}: {error}"), status, close=True)
    log.error("an internal error stopped a call of kube-scheduler", extra={"verb": verb}, exc_info=error)
    sentence = f"serried {verb}: internal error ({type(error).__name__}), see the extender's log"
    return Reply(write_error(sentence), status)
