"""The API client: credentials, timeouts, retries and errors in one place (docs/decisions/0002-http-client.md).

`ApiClient.request` sends and returns bytes; the typed verbs (`get`, `create`, `bind`, ...) add JSON. The client limits
connections; callers limit how many requests they start.
"""

import copy
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from serried import __version__
from serried.kube.auth import Credentials
from serried.kube.calls import JSON_TYPE, Call, Response, Transport
from serried.kube.errors import ApiError, Conflict, Fenced, TooMany, Unavailable, misread
from serried.kube.retry import Attempts, Backoff, full_jitter
from serried.kube.wire import (
    EVERYTHING,
    JSON,
    PODS,
    Failure,
    Page,
    Resource,
    Selection,
    list_params,
    read_json,
    read_page,
    write_json,
)

if TYPE_CHECKING:
    from serried.ops.metrics import Metrics

MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"

_REPEATABLE = frozenset({"GET", "PUT", "DELETE"})
"""The methods that may be sent again after a lost answer.

A PUT may, because its object has a resourceVersion or a UID: the second one changes nothing or fails.
"""

_OBJECTS_PER_PAGE = 500

_BACKOFF = Backoff(first=0.1, cap=10.0)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The number of attempts at a call, and the waits between them."""

    attempts: int = 4
    """The maximum number of attempts, including the first one."""

    backoff: Backoff = _BACKOFF
    """The upper bounds of the random waits. The server's Retry-After is added, and the cap limits the sum."""


ONCE = RetryPolicy(attempts=1)


class ApiClient:
    """The client of one API server. It is an async context manager; otherwise call `close` at the end."""

    def __init__(
        self,
        credentials: Credentials,
        *,
        component: str,
        retry: RetryPolicy = RetryPolicy(),
        connections: int = 128,
        timeout: float = 30.0,
        metrics: "Metrics | None" = None,
        transport: Transport | None = None,
    ) -> None:
        self.metrics = metrics or _make_metrics()
        self._retry = retry
        self._timeout_seconds = timeout
        """The default timeout of one attempt."""
        self._transport = transport or _connect(credentials, f"serried/{__version__} ({component})", connections)

        self._may_write: Callable[[], bool] = lambda: True
        """Function that returns whether this process may write at this moment (see `fenced`).

        It is called before each write twice: before the wait for a connection, and after it.
        """

    def fenced(self, may_write: Callable[[], bool]) -> "ApiClient":
        """Return a client over the same connections that writes only while this process leads.

        ``may_write`` is called before each attempt at a write, and again when the attempt has its connection. If it
        returns False the call raises Fenced.
        """
        other = copy.copy(self)
        other._may_write = may_write  # noqa: SLF001 - it is one of these
        return other

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections; idempotent."""
        await self._transport.close()

    # ---------------------------------------------------------------- bytes

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        params: Mapping[str, str] | None = None,
        content_type: str = JSON_TYPE,
        timeout: float | None = None,  # noqa: ASYNC109 - of one attempt, enforced by the transport
        retry: RetryPolicy | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        """Send a request, with retries. Return the answer if its status is 2xx, else raise a subclass of ApiError.

        ``timeout`` is that of one attempt in seconds. For ``timeout`` and ``retry``, None is the client's default.
        Retried are: 429, except from a PodDisruptionBudget; 503 with Retry-After; a connection that was never made.
        Idempotent requests (get, replace, delete, every patch but JSON patch) are also retried after any 503 and after
        a lost connection.
        """
        seconds = timeout or self._timeout_seconds
        repeatable = method in _REPEATABLE or content_type in {MERGE_PATCH, STRATEGIC_PATCH, APPLY_PATCH}
        call = Call(method, path, params, body, content_type, seconds, repeatable, headers)
        return await self._send_with_retries(call, retry or self._retry)

    async def ask(self, method: str, path: str, **how: Any) -> JSON:
        """Send a request as `request` does (``how`` are its further arguments). Return the JSON object in the answer.

        Raises Unavailable if the answer is no JSON object.
        """
        return _decode(f"{method} {path}", await self.request(method, path, **how))

    async def ask_object(self, method: str, path: str, **how: Any) -> JSON:
        """Send a request as `ask` does. Return the API object or Status in the answer; raise Unavailable otherwise."""
        return _check_object(f"{method} {path}", await self.ask(method, path, **how))

    async def _send_with_retries(
        self, call: Call, policy: RetryPolicy, before: Callable[[], None] = lambda: None
    ) -> Response:
        def check() -> None:
            before()
            self._check_fence(call)

        attempts = Attempts(policy.backoff, spread=full_jitter)
        while True:
            self._check_fence(call)  # fail early: a process that may not write need not wait for a connection
            try:
                return await self._transport.send(call, check)
            except Fenced:
                raise
            except ApiError as err:
                self.metrics.failed(call.method, err.status)
                if not isinstance(err, TooMany | Unavailable):
                    raise
                if attempts.failures + 1 >= policy.attempts or not _may_retry(call, err):
                    raise
                await attempts.rest(asked_seconds=err.retry_after or 0.0)

    def _check_fence(self, call: Call) -> None:
        if call.method != "GET" and not self._may_write():
            raise Fenced(str(call), Failure(0, "NotLeading", "not sent, for this instance no longer leads"))

    @asynccontextmanager
    async def stream(self, path: str, params: Mapping[str, str]) -> AsyncIterator[AsyncIterator[bytes]]:
        """Send a GET whose answer is a stream, and yield an iterator over its chunks; see `Transport.stream`."""
        call = Call("GET", path, params=params, timeout_seconds=self._timeout_seconds, repeatable=True)
        async with self._transport.stream(call) as chunks:
            yield chunks

    # ---------------------------------------------------------------- typed

    async def get(self, resource: Resource, namespace: str, name: str, subresource: str = "") -> JSON:
        """Return an object, or its subresource such as "scale". ``namespace`` is "" for cluster-scoped resources."""
        return await self.ask_object("GET", resource.path(namespace, name, subresource))

    async def list_all(self, resource: Resource) -> list[JSON]:
        """Return every object of a resource in all namespaces."""
        return [item async for item in self.items(resource, EVERYTHING)]

    async def items(self, resource: Resource, selection: Selection) -> AsyncGenerator[JSON, None]:
        """Yield the objects of a resource that match ``selection``. Only one page of the list is in memory at a time.

        Raises Gone if the server has compacted the list's resourceVersion before the last page was read.
        """
        async with aclosing(self.pages(resource.path(selection.namespace), selection, _OBJECTS_PER_PAGE)) as pages:
            async for page in pages:
                for item in page.items:
                    yield item

    async def pages(self, path: str, selection: Selection, limit: int) -> AsyncGenerator[Page, None]:
        """Yield the objects at the URL path ``path`` in pages of ``limit`` objects, all of the same resourceVersion.

        Raises Gone if the server has compacted that version before the last page was read.
        """
        token = ""
        while True:
            page = await self.page(path, list_params(selection, limit, token))
            yield page
            token = page.token
            if not token:
                return

    async def page(self, path: str, params: Mapping[str, str]) -> Page:
        """Send a list request for one page (see `serried.kube.wire.list_params`) and return the page.

        Raises Unavailable if the answer is no list.
        """
        document = await self.read(path, params)
        try:
            return read_page(document)
        except ValueError as err:
            raise misread(f"GET {path}", 200, str(err)) from err

    async def read(self, path: str, params: Mapping[str, str] | None = None) -> JSON:
        """Return any JSON document, such as a list, a discovery document or /version."""
        return await self.ask("GET", path, params=params)

    async def create(self, resource: Resource, namespace: str, obj: Mapping[str, Any]) -> JSON:
        """Create an object. Return it as stored; raise AlreadyExists if the name is in use."""
        self.metrics.wrote("create", resource.plural)
        return await self.ask_object("POST", resource.path(namespace), body=write_json(obj))

    async def replace(self, resource: Resource, obj: Mapping[str, Any], subresource: str = "") -> JSON:
        """Replace an object, and return it as stored. Raises Conflict if ``obj`` has an outdated resourceVersion.

        Trap: if the first answer is lost, the retry may raise Conflict although the write succeeded. Read again then.
        """
        metadata = obj["metadata"]
        path = resource.path(metadata.get("namespace", ""), metadata["name"], subresource)
        self.metrics.wrote("update", _metric_label(resource, subresource))
        return await self.ask_object("PUT", path, body=write_json(obj))

    async def patch_merge(
        self, resource: Resource, namespace: str, name: str, patch: Mapping[str, Any], subresource: str = ""
    ) -> JSON:
        """Apply a JSON merge patch, and return the patched object.

        ``metadata.uid`` and ``metadata.resourceVersion`` in the patch are preconditions (Conflict).
        """
        path = resource.path(namespace, name, subresource)
        self.metrics.wrote("patch", _metric_label(resource, subresource))
        return await self.ask_object("PATCH", path, body=write_json(patch), content_type=MERGE_PATCH)

    async def patch_strategic(
        self, resource: Resource, namespace: str, name: str, patch: Mapping[str, Any], subresource: str = ""
    ) -> JSON:
        """Apply a strategic merge patch, and return the patched object.

        Lists are merged by the key of their entries, conditions by ``type``. It costs the API server less than a
        server-side apply. Custom resources do not support it.
        """
        path = resource.path(namespace, name, subresource)
        self.metrics.wrote("patch", _metric_label(resource, subresource))
        return await self.ask_object("PATCH", path, body=write_json(patch), content_type=STRATEGIC_PATCH)

    async def patch_json(
        self, resource: Resource, namespace: str, name: str, steps: Sequence[Mapping[str, Any]], subresource: str = ""
    ) -> JSON:
        """Apply a JSON patch, and return the patched object. Raises Invalid if a ``test`` step fails.

        Not retried after a lost answer: the patch may have been applied.
        """
        path = resource.path(namespace, name, subresource)
        self.metrics.wrote("patch", _metric_label(resource, subresource))
        return await self.ask_object("PATCH", path, body=write_json(steps), content_type=JSON_PATCH)

    async def apply(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        obj: Mapping[str, Any],
        subresource: str = "",
        manager: str = "serried",
    ) -> JSON:
        """Apply the fields in ``obj`` (forced server-side apply as field manager ``manager``); return the object.

        Fields that the same manager applied before, and that are not in ``obj``, are removed.
        """
        self.metrics.wrote("apply", _metric_label(resource, subresource))
        return await self.ask_object(
            "PATCH",
            resource.path(namespace, name, subresource),
            body=write_json(obj),
            params={"fieldManager": manager, "force": "true"},
            content_type=APPLY_PATCH,
        )

    async def delete(self, resource: Resource, namespace: str, name: str, uid: str = "", version: str = "") -> JSON:
        """Delete an object. ``uid`` and ``version`` (a resourceVersion) are preconditions (Conflict), "" for none.

        Raises NotFound if the object does not exist, also if the first answer was lost and its retry finds it deleted.
        """
        options: JSON = {"kind": "DeleteOptions", "apiVersion": "v1"}
        named = {"uid": uid, "resourceVersion": version}
        if preconditions := {name: value for name, value in named.items() if value}:
            options["preconditions"] = preconditions
        self.metrics.wrote("delete", resource.plural)
        return await self.ask_object("DELETE", resource.path(namespace, name), body=write_json(options))

    async def bind(
        self,
        namespace: str,
        name: str,
        uid: str,
        node: str,
        annotations: Mapping[str, str] | None = None,
        before: Callable[[], None] = lambda: None,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """Bind a pod to ``node``. Succeeds also if the pod with this ``uid`` is bound to that node already.

        The API server adds ``annotations`` to those of the pod, and ``labels`` if PodTopologyLabelsAdmission is on (the
        default since 1.35). ``before`` runs immediately before each attempt is sent; an exception from it ends the
        call. Raises Conflict if the pod has another UID, is bound elsewhere, is being deleted or is gated.
        """
        metadata: JSON = {"name": name, "namespace": namespace, "uid": uid, "annotations": dict(annotations or {})}
        if labels:
            metadata["labels"] = dict(labels)
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        body = write_json({"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target})
        # A second Binding of the same pod only yields 409, so the call is retried after a lost answer.
        path = PODS.path(namespace, name, "binding")
        call = Call("POST", path, None, body, JSON_TYPE, self._timeout_seconds, repeatable=True)
        self.metrics.wrote("create", "pods/binding")
        try:
            _check_object(call, _decode(call, await self._send_with_retries(call, self._retry, before)))
        except Conflict:
            if not await self._is_bound(namespace, name, uid, node):
                raise

    async def _is_bound(self, namespace: str, name: str, uid: str, node: str) -> bool:
        try:
            pod = await self.get(PODS, namespace, name)
        except ApiError:
            return False
        return (pod["metadata"].get("uid"), pod.get("spec", {}).get("nodeName")) == (uid, node)

    async def evict(self, namespace: str, name: str, uid: str) -> None:
        """Evict the pod with this name and UID.

        Raises BudgetRefusal if a PodDisruptionBudget forbids it now, NotFound if there is no pod with this name, and
        Conflict if it has another UID.
        """
        self.metrics.wrote("create", "pods/eviction")
        await self._evict(namespace, name, uid, {})

    async def rehearse_eviction(self, namespace: str, name: str, uid: str) -> None:
        """Send the eviction of a pod as a dry run: nothing changes, and it raises what `evict` would raise."""
        await self._evict(namespace, name, uid, {"dryRun": "All"})

    async def _evict(self, namespace: str, name: str, uid: str, params: Mapping[str, str]) -> None:
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": {"preconditions": {"uid": uid}},
        }
        path = PODS.path(namespace, name, "eviction")
        await self.ask_object("POST", path, params=params, body=write_json(body))


def _make_metrics() -> "Metrics":
    from serried.ops.metrics import Metrics  # noqa: PLC0415 - commands count nothing

    return Metrics()


def _connect(credentials: Credentials, agent: str, connections: int) -> Transport:
    from serried.kube.transport import AiohttpTransport  # noqa: PLC0415 - commands have another

    return AiohttpTransport(credentials, agent=agent, connections=connections)


def _may_retry(call: Call, err: TooMany | Unavailable) -> bool:
    if isinstance(err, TooMany):
        return True
    if err.unsent:
        return True
    waitable = err.status == 503 and err.retry_after is not None
    return waitable or (call.repeatable and err.status in {0, 503})


def _decode(call: object, response: Response) -> JSON:
    try:
        value = read_json(response.body)
    except ValueError as err:
        raise misread(str(call), response.status, f"no JSON ({err}): {response.body[:80]!r}") from err
    if not isinstance(value, dict):
        raise misread(str(call), response.status, f"no object: {response.body[:80]!r}")
    return value


def _check_object(call: object, value: JSON) -> JSON:
    """Return ``value``, a decoded answer, if it is an API object with metadata or a Status; else raise Unavailable.

    ``call`` is the request that was answered, such as ``GET /api/v1/pods``, for the text of the error.
    """
    if not isinstance(value.get("metadata"), dict) and value.get("kind") != "Status":
        raise misread(str(call), 200, f"no object of the API: {str(value)[:80]}")
    return value


def _metric_label(resource: Resource, subresource: str) -> str:
    return f"{resource.plural}/{subresource}" if subresource else resource.plural
