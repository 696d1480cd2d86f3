"""Sends Bindings: one at a time for plain pods, those of a whole gang at once after its commit.

`ExtenderService` (plain pods) and `CycleRunner` (members) call `Binder.bind`.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from extender.core.scheduling.permit import Refusal
from serried.api.group import PodGroup
from serried.api.level import ApiLevel
from serried.api.names import DOMAIN, GANG, POD_GROUP_LABEL, GroupKey, GroupKind, Key, Malformed, is_label_value
from serried.api.pod import Link, Pod, decode_pod
from serried.kube.client import ApiClient
from serried.kube.errors import AlreadyExists, ApiError, Conflict, NotFound, TooMany
from serried.kube.wire import PODS

RANK = "scheduling.serried.dev/rank"
"""The annotation with the rank of a gang's bound pod: its number in the gang, from 0, such as its completion index.

Serried writes it with the Binding.
"""


class BindOutcome(StrEnum):
    """The ways in which an attempt to bind a pod ends.

    The pod is bound to the node (BOUND), or was bound to another one before (ELSEWHERE). It does not exist any more
    (LOST). The API server rejected the Binding or did not answer (FAILED). Serried's permit forbade it (REFUSED).
    """

    BOUND = "Bound"

    ELSEWHERE = "BoundElsewhere"
    """The pod was already bound to another node."""

    LOST = "PodGone"
    """The pod is deleted, maybe replaced by a new pod of the same name."""

    FAILED = "Failed"
    """The API server has rejected the Binding, or has not answered."""

    REFUSED = "Refused"
    """Serried's own check right before the Binding (`Permit`) has forbidden it, so it was not sent, or not again."""


@dataclass(frozen=True, slots=True)
class BindResult:
    """The outcome of one attempt to bind a pod (`BindOutcome`), with the reason if it failed."""

    outcome: BindOutcome

    error: str = ""
    """The reason of the failure, for people; "" for success."""

    node: str = ""
    """The node of a pod that was already bound to another node; else ""."""

    refusal: Refusal | None = None
    """The reason why the check right before the Binding has forbidden it; None if it has not."""


class _Refused(Exception):
    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.text)
        self.refusal = refusal


def _allow() -> None:
    return None


def _raise_refusal(check_permit: Callable[[], Refusal | None]) -> None:
    refusal = check_permit()
    if refusal is not None:
        raise _Refused(refusal)


def make_annotations(rank: int | None, domain: str, gang: str = "") -> dict[str, str]:
    """Return the annotations that a member's Binding writes to its pod.

    One each for the rank, the domain, and the gang (from `format_gang`). A None or "" leaves its annotation out.
    """
    ranked = {} if rank is None else {RANK: str(rank)}
    return ranked | ({DOMAIN: domain} if domain else {}) | ({GANG: gang} if gang else {})


def make_labels(pod: Pod | None, group: GroupKey) -> dict[str, str]:
    """Return the label with the name of its PodGroup that a member's Binding adds to the pod; empty if there is none.

    With the label, the pods of a gang can be found by a selector. There is none if the pod has it, if the name is no
    valid label value, or if ``group`` is not of kind PodGroup: pods of other kinds of groups have a label already, or
    can have none.
    """
    fits = group.kind is GroupKind.POD_GROUP and bool(group.name) and is_label_value(group.name)
    return {POD_GROUP_LABEL: group.name} if fits and pod is not None and pod.link is not Link.LABEL else {}


def format_gang(group: PodGroup, level: ApiLevel) -> str:
    """Return the value of the annotation by which Serried later recognizes the pods of a gang.

    It has the apiVersion and the name of the gang's PodGroup, and so stays valid when the API server serves another
    version. "" for groups without minCount, and for those of scheduler-plugins and Kueue, whose version does not
    change. ``level`` gives the apiVersion if the group does not have its own.
    """
    if not group.policy.is_gang or group.key.kind in {GroupKind.COMPATIBLE, GroupKind.COUNTED}:
        return ""
    return f"{group.api or level.api_version} {group.key.encoded}"


class BindWindow:
    """Limits the number of Bindings in flight, like TCP's congestion window.

    ``size`` is the limit at the start, ``least`` the lowest limit; the highest is four times ``size``. The limit grows
    by one after as many successes as it allows at once, and is halved after a response 429.
    """

    def __init__(self, size: int, least: int = 4) -> None:
        self._limit = float(size)
        self._most = size * 4
        self._least = least

        self._flying = 0
        """The number of Bindings in flight."""

        self._waiting: deque[asyncio.Future[None]] = deque()
        """The futures of waiting senders, in order. A future is done when its sender may go on or was cancelled."""

    @property
    def limit(self) -> int:
        """The present maximum number of Bindings in flight."""
        return int(self._limit)

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Wait until one more Binding may be sent. It counts as in flight until the ``async with`` block ends."""
        if self._waiting or self._flying >= self.limit:
            await self._wait()
        else:
            self._flying += 1
        try:
            yield
        finally:
            self._free_place()

    async def _wait(self) -> None:
        place = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if not place.cancelled():
                self._free_place()  # the place was assigned before the cancellation arrived
            raise

    def _free_place(self) -> None:
        self._flying -= 1
        # More than one waiter may get a place: the limit may have grown.
        while self._waiting and self._flying < self.limit:
            place = self._waiting.popleft()
            if not place.done():
                self._flying += 1
                place.set_result(None)

    def widen(self) -> None:
        """Raise the limit a little, after a successful Binding."""
        self._limit = min(self._most, self._limit + 1 / self._limit)

    def narrow(self) -> None:
        """Halve the limit, after the API server has answered 429."""
        self._limit = max(self._least, self._limit / 2)


class Binder:
    """Sends Bindings, with the pod's UID as a precondition: a new pod of the same name is never bound.

    ``window`` limits how many are in flight.
    """

    def __init__(self, client: ApiClient, window: BindWindow) -> None:
        self._client = client
        self._window = window

    async def fetch(self, key: Key, uid: str) -> Pod | None:
        """Read a pod from the API server, because the watch has not shown it yet.

        Return None if no pod has this name and UID, or if it cannot be decoded. Raise ApiError.
        """
        try:
            found = await self._client.get(PODS, key.namespace, key.name)
        except NotFound:
            return None
        pod = decode_pod(found)
        return None if isinstance(pod, Malformed) or pod.uid != uid else pod

    async def bind(
        self,
        pod: Key,
        uid: str,
        node: str,
        annotations: Mapping[str, str] | None = None,
        check_permit: Callable[[], Refusal | None] = _allow,
        labels: Mapping[str, str] | None = None,
    ) -> BindResult:
        """Bind one pod to ``node``. Return the outcome; never raise ApiError.

        The API server merges ``annotations`` into the pod's own in the same write, and ``labels``, too, if
        PodTopologyLabelsAdmission is on. ``check_permit`` is called right before each attempt, after all waiting. If it
        returns a refusal, the Binding is not sent.
        """
        async with self._window.place():
            try:
                await self._client.bind(
                    pod.namespace, pod.name, uid, node, annotations, partial(_raise_refusal, check_permit), labels
                )
            except _Refused as refused:
                return BindResult(BindOutcome.REFUSED, refused.refusal.text, refusal=refused.refusal)
            except ApiError as error:
                return await self._interpret_error(pod, uid, node, error)
            self._window.widen()
            return BindResult(BindOutcome.BOUND)

    async def _interpret_error(self, pod: Key, uid: str, node: str, error: ApiError) -> BindResult:
        if isinstance(error, NotFound):
            return BindResult(BindOutcome.LOST, f"pod {pod} does not exist any more")
        if isinstance(error, Conflict | AlreadyExists):
            return await self._read_after_conflict(pod, uid, node, error)
        if isinstance(error, TooMany):
            self._window.narrow()
        return BindResult(BindOutcome.FAILED, str(error))

    async def _read_after_conflict(self, pod: Key, uid: str, node: str, conflict: ApiError) -> BindResult:
        # 409 has three meanings: the pod is bound already (maybe by an earlier attempt whose answer was lost), another
        # pod has the name, or another write came in between. Only the pod itself tells them apart.
        try:
            found = await self._client.get(PODS, pod.namespace, pod.name)
        except NotFound:
            return BindResult(BindOutcome.LOST, f"pod {pod} does not exist any more")
        except ApiError as error:
            return BindResult(BindOutcome.FAILED, str(error))
        at = str(found.get("spec", {}).get("nodeName") or "")
        if found["metadata"].get("uid") != uid:
            return BindResult(BindOutcome.LOST, f"pod {pod} was deleted and created again")
        if not at:
            return BindResult(BindOutcome.FAILED, str(conflict))
        return (
            BindResult(BindOutcome.BOUND)
            if at == node
            else BindResult(BindOutcome.ELSEWHERE, f"pod {pod} is bound to {at}", at)
        )
