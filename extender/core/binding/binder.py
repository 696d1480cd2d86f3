"""Sending Bindings: one at a time for plain pods, a whole gang at once after its commit."""

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
"""Annotation of a gang's bound pod: its number, from 0, in its Job, or its parent or the replica of that."""


class BindOutcome(StrEnum):
    """What became of one Binding."""

    BOUND = "Bound"

    ELSEWHERE = "BoundElsewhere"
    """The pod is bound to another node."""

    LOST = "PodGone"
    """The pod is gone, or was made anew under its name."""

    FAILED = "Failed"
    """The API server has refused the Binding, or has not answered."""

    REFUSED = "Refused"
    """It was not sent, or not again: the permit was refused."""


@dataclass(frozen=True, slots=True)
class Sent:
    """What is known of a Binding when it was sent."""

    outcome: BindOutcome

    error: str = ""
    """Why it failed."""

    node: str = ""
    """Where the pod is if it is bound elsewhere."""

    refusal: Refusal | None = None
    """Why it was not sent, or not again."""


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
    """What a member's Binding tells its pod; a rank of None, a domain of "" and a gang of "" are not told."""
    ranked = {} if rank is None else {RANK: str(rank)}
    return ranked | ({DOMAIN: domain} if domain else {}) | ({GANG: gang} if gang else {})


def describe_label(pod: Pod | None, group: GroupKey) -> dict[str, str]:
    """The label by which a member is found once it is bound; none if it has it already, or no label can hold the name.

    Only for PodGroups of our API level: the pods of others carry the label of these, or have none to carry.
    """
    fits = group.kind is GroupKind.POD_GROUP and bool(group.name) and is_label_value(group.name)
    return {POD_GROUP_LABEL: group.name} if fits and pod is not None and pod.link is not Link.LABEL else {}


def describe_gang(group: PodGroup, level: ApiLevel) -> str:
    """The apiVersion and the name of a gang's group, by which its pods are known as a gang's at every level.

    "" for other groups, and for those of scheduler-plugins and of Kueue, which no level takes away.
    """
    if not group.policy.is_gang or group.key.kind in {GroupKind.COMPATIBLE, GroupKind.COUNTED}:
        return ""
    return f"{group.api or level.api_version} {group.key.encoded}"


class Window:
    """How many Bindings may be in flight: one more after each windowful, half as many after a 429."""

    def __init__(self, size: int, least: int = 4) -> None:
        self._limit = float(size)
        self._most = size * 4
        self._least = least

        self._flying = 0
        """How many are in flight."""

        self._waiting: deque[asyncio.Future[None]] = deque()
        """Those who wait for a place, in their order; one that is done is handed its place, or has gone."""

    @property
    def limit(self) -> int:
        """The present bound."""
        return int(self._limit)

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Wait for a free place and keep it for the length of the block."""
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
                self._leave()  # it was handed over in the same turn
            raise

    def _leave(self) -> None:
        self._flying -= 1
        # To as many as there are places: the limit may have grown since the last of them began to wait.
        while self._waiting and self._flying < self.limit:
            place = self._waiting.popleft()
            if not place.done():
                self._flying += 1
                place.set_result(None)

    def widen(self) -> None:
        """A Binding went through."""
        self._limit = min(self._most, self._limit + 1 / self._limit)

    def narrow(self) -> None:
        """The API server asked for less."""
        self._limit = max(self._least, self._limit / 2)


class Binder:
    """Sends Bindings with the pod's UID as precondition, so that a pod made anew under the name is never hit."""

    def __init__(self, client: ApiClient, window: Window) -> None:
        self._client = client
        self._window = window

    async def fetch(self, key: Key, uid: str) -> Pod | None:
        """A pod that the watch has not shown yet; None if none has this name and UID. Raises ApiError."""
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
        """Bind one pod. Never raises ApiError: each answer of the API server is an outcome.

        The API server merges ``annotations`` and ``labels`` into the pod's own in the same write. ``ask`` is called
        right before each attempt, after every wait; a Refusal ends it.
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
        # 409 has three meanings: bound already (also by our own Binding whose answer was lost), another pod of that
        # name, or a write that raced ours. Only the pod itself can tell them apart.
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
