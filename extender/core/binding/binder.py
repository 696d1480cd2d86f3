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
"""The annotation with the rank of a gang's bound pod: its number, from 0, in its Job, parent or replica."""


class BindOutcome(StrEnum):
    """The result of one Binding."""

    BOUND = "Bound"

    ELSEWHERE = "BoundElsewhere"
    """The pod is bound to another node."""

    LOST = "PodGone"
    """The pod is deleted, or was made again under its name."""

    FAILED = "Failed"
    """The API server has rejected the Binding, or has not answered."""

    REFUSED = "Refused"
    """The permit was refused, so the Binding was not sent, or not again."""


@dataclass(frozen=True, slots=True)
class Sent:
    """The result of one Binding, with its reason."""

    outcome: BindOutcome

    error: str = ""
    """The text of the failure; "" for success."""

    node: str = ""
    """The node of a pod that is bound to another node; else ""."""

    refusal: Refusal | None = None
    """The refusal by the permit, if there was one."""


class _Refused(Exception):
    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.text)
        self.refusal = refusal


def _let_pass() -> None:
    return None


def _check(ask: Callable[[], Refusal | None]) -> None:
    refusal = ask()
    if refusal is not None:
        raise _Refused(refusal)


def describe_slot(rank: int | None, domain: str, gang: str = "") -> dict[str, str]:
    """Return the annotations that a member's Binding writes to its pod; None and "" are left out."""
    ranked = {} if rank is None else {RANK: str(rank)}
    return ranked | ({DOMAIN: domain} if domain else {}) | ({GANG: gang} if gang else {})


def describe_label(pod: Pod | None, group: GroupKey) -> dict[str, str]:
    """Return the label by which a bound member is found; none if the pod has it, or the name is no label value.

    Only members of `PodGroup` get it: pods of other groups have a label already, or can have none.
    """
    fits = group.kind is GroupKind.POD_GROUP and bool(group.name) and is_label_value(group.name)
    return {POD_GROUP_LABEL: group.name} if fits and pod is not None and pod.link is not Link.LABEL else {}


def describe_gang(group: PodGroup, level: ApiLevel) -> str:
    """Return the apiVersion and the name of a gang's group, by which its pods are recognized at every API level.

    Return "" for groups without minCount, and for those of scheduler-plugins and Kueue, which have no level.
    """
    if not group.policy.is_gang or group.key.kind in {GroupKind.COMPATIBLE, GroupKind.COUNTED}:
        return ""
    return f"{group.api or level.api_version} {group.key.encoded}"


class Window:
    """Limits the Bindings in flight, like a congestion window.

    The limit grows by one after as many successes as it allows at once, and is halved after a 429.
    """

    def __init__(self, size: int, least: int = 4) -> None:
        self._limit = float(size)
        self._most = size * 4
        self._least = least

        self._flying = 0
        """The number of Bindings in flight."""

        self._waiting: deque[asyncio.Future[None]] = deque()
        """The futures of waiting senders, in order; a done one has its place, or was cancelled."""

    @property
    def limit(self) -> int:
        """The present limit."""
        return int(self._limit)

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Wait for a free place, and keep it during the block."""
        if self._waiting or self._flying >= self.limit:
            await self._wait()
        else:
            self._flying += 1
        try:
            yield
        finally:
            self._leave()

    async def _wait(self) -> None:
        place = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if not place.cancelled():
                self._leave()  # the place was assigned before the cancellation arrived
            raise

    def _leave(self) -> None:
        self._flying -= 1
        # More than one waiter may get a place: the limit may have grown.
        while self._waiting and self._flying < self.limit:
            place = self._waiting.popleft()
            if not place.done():
                self._flying += 1
                place.set_result(None)

    def widen(self) -> None:
        """Grow the limit after a success."""
        self._limit = min(self._most, self._limit + 1 / self._limit)

    def narrow(self) -> None:
        """Halve the limit after a 429."""
        self._limit = max(self._least, self._limit / 2)


class Binder:
    """Sends Bindings, with the pod's UID as a precondition so that a pod made again under the name is never bound."""

    def __init__(self, client: ApiClient, window: Window) -> None:
        self._client = client
        self._window = window

    async def fetch(self, key: Key, uid: str) -> Pod | None:
        """Read a pod that the watch has not shown yet. Return None if no pod has this name and UID. Raise ApiError."""
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
        ask: Callable[[], Refusal | None] = _let_pass,
        labels: Mapping[str, str] | None = None,
    ) -> Sent:
        """Bind one pod. Return the outcome; never raises ApiError.

        The API server merges ``annotations`` and ``labels`` into the pod's own in the same write. ``ask`` is called
        right before each attempt, after every wait; if it returns a refusal, the Binding is not sent.
        """
        async with self._window.slot():
            try:
                await self._client.bind(pod.namespace, pod.name, uid, node, annotations, partial(_check, ask), labels)
            except _Refused as refused:
                return Sent(BindOutcome.REFUSED, refused.refusal.text, refusal=refused.refusal)
            except ApiError as error:
                return await self._settle(pod, uid, node, error)
            self._window.widen()
            return Sent(BindOutcome.BOUND)

    async def _settle(self, pod: Key, uid: str, node: str, error: ApiError) -> Sent:
        if isinstance(error, NotFound):
            return Sent(BindOutcome.LOST, f"pod {pod} does not exist any more")
        if isinstance(error, Conflict | AlreadyExists):
            return await self._settle_conflict(pod, uid, node, error)
        if isinstance(error, TooMany):
            self._window.narrow()
        return Sent(BindOutcome.FAILED, str(error))

    async def _settle_conflict(self, pod: Key, uid: str, node: str, conflict: ApiError) -> Sent:
        # 409 has three meanings: the pod is bound already (maybe by an earlier attempt whose answer was lost), another
        # pod has the name, or another write came in between. Only the pod itself tells them apart.
        try:
            found = await self._client.get(PODS, pod.namespace, pod.name)
        except NotFound:
            return Sent(BindOutcome.LOST, f"pod {pod} does not exist any more")
        except ApiError as error:
            return Sent(BindOutcome.FAILED, str(error))
        at = str(found.get("spec", {}).get("nodeName") or "")
        if found["metadata"].get("uid") != uid:
            return Sent(BindOutcome.LOST, f"pod {pod} was made anew")
        if not at:
            return Sent(BindOutcome.FAILED, str(conflict))
        return Sent(BindOutcome.BOUND) if at == node else Sent(BindOutcome.ELSEWHERE, f"pod {pod} is bound to {at}", at)
