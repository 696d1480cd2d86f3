"""The handlers of the four calls of kube-scheduler: decode the body, call `ExtenderService`, encode the answer.

`Listener` serves `Verbs.routes`. kube-scheduler does not read the body of an answer other than 200, so errors are sent
in the field ``Error`` of the protocol where it has one. Handlers do not raise, because kube-scheduler would only see an
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


class CallPath(StrEnum):
    """The way in which kube-scheduler's calls reach this instance: from the same Pod, or through a Service.

    With a Service, the connection is closed after each bind call: if it were kept and this instance hung, later calls
    would hang, too.
    """

    SAME_POD = "beside"
    """kube-scheduler runs in the same Pod, and calls this instance only."""

    SERVICE = "by service"
    """kube-scheduler connects through a Service, and its next connection may reach another instance.

    So the connection is closed after each bind call. If it were kept and this instance hung, or its node lost
    power, kube-scheduler would send later calls through it until it times out, after minutes, and a gang would wait
    for that.
    """


class Verbs:
    """The handlers of kube-scheduler's calls to one service.

    ``active`` returns whether this instance may answer, i.e. its scheduler leads. ``clock`` returns seconds.
    """

    def __init__(
        self,
        service: ExtenderService,
        active: Callable[[], bool],
        metrics: ExtenderMetrics,
        clock: Callable[[], float],
        call_path: CallPath = CallPath.SAME_POD,
    ) -> None:
        self._service = service
        self._active = active
        self._metrics = metrics
        self._clock = clock
        self._call_path = call_path

        self.last_rejected = -math.inf
        """The clock's time when a call was last rejected because this instance must not answer; -inf for never."""

    def routes(self) -> Routes:
        """Return the routes of the four calls. Only bind may wait before it answers."""
        return Routes(
            immediate={b"/filter": self.filter, b"/prioritize": self.prioritize, b"/preempt": self.preempt},
            waiting={b"/bind": self.bind},
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

        The protocol has no field for an error here, so an error is sent as status 400, or as 503 if this
        instance is not active.
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
        """Handle POST /preempt: ExtenderPreemptionArgs to ExtenderPreemptionResult.

        The protocol has no field for an error here, so an error is sent as status 400, or as 503 if this
        instance is not active.
        """
        try:
            args = read_preemption(self._admit(body), self._service.pods)
            return Reply(write_preemption(self._service.preempt(args.pod, args.candidates)))
        except Exception as error:  # noqa: BLE001 - see the module's contract
            return _refuse("preempt", error, 400)

    async def bind(self, body: bytes, hangup: Hangup) -> Reply:
        """Handle POST /bind: ExtenderBindingArgs to ExtenderBindingResult.

        The call for a member of a gang stays open until the gang is bound, or ``hangup`` returns because
        kube-scheduler has closed the connection.
        """
        start = self._clock()
        try:
            args = read_bind(self._admit(body))
            said = await self._service.bind(args, hangup)
            return Reply(write_error(said), close=self._call_path is CallPath.SERVICE)
        except Exception as error:  # noqa: BLE001 - see the module's contract
            return _refuse("bind", error, 200)
        finally:
            self._metrics.verb("bind", self._clock() - start)

    def _admit(self, body: bytes) -> bytes:
        if not self._active():
            self.last_rejected = self._clock()
            raise _NotActiveError("this instance is not active: its scheduler does not hold the Lease")
        if len(body) > MAX_BYTES:
            raise BadRequest(f"the body is larger than {MAX_BYTES} bytes")
        return body


class _NotActiveError(Exception):
    """Raised if another instance must answer, because it leads.

    The connection is closed then, so that kube-scheduler opens a new one, which may reach that instance.
    """


def _refuse(verb: str, error: Exception, status: int) -> Reply:
    if isinstance(error, _NotActiveError):
        return Reply(write_error(f"serried {verb}: {error}"), 503, close=True)
    if isinstance(error, BadRequest):
        return Reply(write_error(f"serried {verb}: {error}"), status, close=True)
    log.error("an internal error stopped a call of kube-scheduler", extra={"verb": verb}, exc_info=error)
    sentence = f"serried {verb}: internal error ({type(error).__name__}), see the extender's log"
    return Reply(write_error(sentence), status)
