"""The API client: one choke point for credentials, timeouts, retries and errors (docs/decisions/0002-http-client.md).

Bytes go in and come out of `request`; the typed verbs add orjson. How many requests are in flight is the caller's
business, how many connections is set here.
"""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import aiohttp
import orjson
from yarl import URL

from serried import __version__
from serried.kube.auth import TOKEN_LIFETIME, Credentials
from serried.kube.errors import ApiError, Conflict, TooMany, Unauthorized, Unavailable, api_error, misread
from serried.kube.wire import (
    EVERYTHING,
    JSON,
    PODS,
    Failure,
    Page,
    Resource,
    Selection,
    decode_failure,
    list_params,
    read_page,
)
from serried.metrics import UNCOUNTED, Metrics
from serried.model.backoff import Backoff

JSON_TYPE = "application/json"
MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"

# What has the same effect when sent twice. A replace is safe because it carries a resourceVersion or a UID.
_REPEATABLE = frozenset({"GET", "PUT", "DELETE"})

# Below the 90 s after which a kube-apiserver closes idle connections. Longer than aiohttp's default, so that a burst
# after a quiet minute does not begin with a TLS handshake for each connection.
_KEEP_ALIVE = 75.0

# The part of a call's time in which it must have got a connection: what fails before has certainly not been sent.
_CONNECT_SHARE = 0.8


_PAGE = 500

_BACKOFF = Backoff(first=0.1, cap=10.0)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how long: ``attempts`` in all, waits of full jitter up to ``backoff``.

    A Retry-After of the server is waited out, up to the backoff's cap.
    """

    attempts: int = 4
    backoff: Backoff = _BACKOFF

    def delay(self, attempt: int, retry_after: float | None) -> float:
        """Seconds to wait after the failed ``attempt`` (0 for the first)."""
        jitter: float = random.uniform(0, self.backoff.delay(attempt + 1))  # noqa: S311
        return min(self.backoff.cap, (retry_after or 0.0) + jitter)


ONCE = RetryPolicy(attempts=1)


@dataclass(frozen=True, slots=True)
class Response:
    """A successful answer."""

    status: int
    body: bytes


@dataclass(frozen=True, slots=True)
class _Call:
    method: str
    path: str
    params: Mapping[str, str] | None
    body: bytes | None
    content_type: str
    timeout: float
    repeatable: bool

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


class ApiClient:
    """Requests to one API server; an async context manager, or `close` it.

    ``component`` goes into the user agent. ``timeout`` bounds one attempt of one call.
    """

    def __init__(
        self,
        credentials: Credentials,
        *,
        component: str,
        retry: RetryPolicy = RetryPolicy(),
        connections: int = 128,
        timeout: float = 30.0,
        metrics: Metrics = UNCOUNTED,
    ) -> None:
        self.metrics = metrics
        self._credentials = credentials
        self._retry = retry
        self._connections = connections
        self._timeout = timeout
        self._agent = f"serried/{__version__} ({component})"
        self._opened: aiohttp.ClientSession | None = None
        self._token = ""
        self._token_until = 0.0
        self._token_lock = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections; idempotent."""
        session, self._opened = self._opened, None
        if session is not None:
            await session.close()

    # ------------------------------------------------------------------ raw

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
    ) -> Response:
        """One call with the policy's retries; raises a subclass of ApiError for anything but 2xx.

        Repeated are: 429; 503 with Retry-After; a connection that was never made; and, for requests that have the
        same effect when sent twice (get, replace, delete, merge and apply patch), also 503 and lost connections.
        """
        repeatable = method in _REPEATABLE or content_type in {MERGE_PATCH, APPLY_PATCH}
        call = _Call(method, path, params, body, content_type, timeout or self._timeout, repeatable)
        return await self._repeat(call, retry or self._retry)

    async def ask(self, method: str, path: str, **how: Any) -> JSON:
        """As `request`, for the JSON object in the answer; raises Unavailable for any other answer, 2xx or not."""
        return _decode(f"{method} {path}", await self.request(method, path, **how))

    async def _repeat(self, call: _Call, policy: RetryPolicy, before: Callable[[], None] = lambda: None) -> Response:
        attempt = 0
        while True:
            before()
            try:
                return await self._attempt(call)
            except (TooMany, Unavailable) as err:
                attempt += 1
                if attempt >= policy.attempts or not _may_repeat(call, err):
                    raise
                await asyncio.sleep(policy.delay(attempt - 1, err.retry_after))

    async def _attempt(self, call: _Call) -> Response:
        try:
            return await self._send_fresh(call)
        except Unauthorized:
            # A rotated token that we hold too long looks like this. Once: a wrong one stays wrong.
            await self._renew_token()
        return await self._send_fresh(call)

    async def _send_fresh(self, call: _Call) -> Response:
        try:
            return await self._send(call)
        except aiohttp.ServerDisconnectedError as err:
            # The server closed an idle connection while we picked it. aiohttp repeats GET, PUT and DELETE by itself.
            if not call.repeatable or call.method in _REPEATABLE:
                raise _lost(call, err) from err
        except (aiohttp.ClientError, TimeoutError, OSError) as err:
            raise _lost(call, err) from err
        try:
            return await self._send(call)
        except (aiohttp.ClientError, TimeoutError, OSError) as err:
            raise _lost(call, err) from err

    async def _send(self, call: _Call) -> Response:
        async with self._session().request(
            call.method,
            self._url(call.path, call.params),
            data=call.body,
            headers=await self._headers(call.content_type if call.body is not None else ""),
            timeout=aiohttp.ClientTimeout(total=call.timeout, connect=call.timeout * _CONNECT_SHARE),
            server_hostname=self._credentials.server_name or None,
            proxy=self._credentials.proxy or None,
            allow_redirects=False,
        ) as answer:
            body = await answer.read()
            if answer.status >= 300:
                raise api_error(str(call), _failure(answer, body))
            return Response(answer.status, body)

    @asynccontextmanager
    async def stream(self, path: str, params: Mapping[str, str]) -> AsyncIterator[AsyncIterator[bytes]]:
        """A GET whose body arrives in chunks for as long as the server sends; one attempt, no retries.

        Raises ApiError on entry for a refusal and for no answer within the timeout, and while reading for a
        connection that breaks. An orderly end just ends the iteration.
        """
        call = _Call("GET", path, params, None, "", self._timeout, repeatable=True)
        try:
            async with asyncio.timeout(self._timeout):
                answer = await self._open_stream(call)
        except (aiohttp.ClientError, TimeoutError, OSError) as err:
            raise _lost(call, err) from err
        try:
            async with aclosing(_chunks(call, answer)) as chunks:
                yield chunks
        finally:
            answer.close()

    async def _open_stream(self, call: _Call) -> aiohttp.ClientResponse:
        answer = await self._session().get(
            self._url(call.path, call.params),
            headers=await self._headers(""),
            timeout=aiohttp.ClientTimeout(total=None, sock_read=None),
            server_hostname=self._credentials.server_name or None,
            proxy=self._credentials.proxy or None,
            allow_redirects=False,
            read_bufsize=2**20,
        )
        if answer.status < 300:
            return answer
        async with answer:
            if answer.status == 401:
                await self._renew_token()
            raise api_error(str(call), _failure(answer, await answer.read()))

    # ---------------------------------------------------------------- typed

    async def get(self, resource: Resource, namespace: str, name: str, subresource: str = "") -> JSON:
        """The object; ``namespace`` is "" for cluster-scoped resources, here and below."""
        return await self._ask_object("GET", resource.path(namespace, name, subresource))

    async def list_all(self, resource: Resource) -> list[JSON]:
        """Every object of a resource in all namespaces."""
        return [item async for item in self.items(resource, EVERYTHING)]

    async def items(self, resource: Resource, selection: Selection) -> AsyncGenerator[JSON, None]:
        """The selected objects, of which a page at a time is held; raises as `pages`."""
        async with aclosing(self.pages(resource.path(selection.namespace), selection, _PAGE)) as pages:
            async for page in pages:
                for item in page.items:
                    yield item

    async def pages(self, path: str, selection: Selection, limit: int) -> AsyncGenerator[Page, None]:
        """A list in pages of ``limit`` objects, all of one state; raises Gone when that is forgotten between two."""
        token = ""
        while True:
            page = await self.page(path, list_params(selection, limit, token))
            yield page
            token = page.token
            if not token:
                return

    async def page(self, path: str, params: Mapping[str, str]) -> Page:
        """One page of a list; raises Unavailable for a document that is none."""
        document = await self.read(path, params)
        try:
            return read_page(document)
        except ValueError as err:
            raise misread(f"GET {path}", 200, str(err)) from err

    async def read(self, path: str, params: Mapping[str, str] | None = None) -> JSON:
        """Any JSON document: lists, discovery, /version."""
        return await self.ask("GET", path, params=params)

    async def create(self, resource: Resource, namespace: str, obj: Mapping[str, Any]) -> JSON:
        """The created object; raises AlreadyExists."""
        self.metrics.wrote("create", resource.plural)
        return await self._ask_object("POST", resource.path(namespace), body=orjson.dumps(obj))

    async def replace(self, resource: Resource, obj: Mapping[str, Any], subresource: str = "") -> JSON:
        """The object as updated. With a resourceVersion in ``obj`` it is a compare-and-swap: raises Conflict.

        If the first answer was lost and the request repeated, Conflict may mean that it had succeeded: read again.
        """
        metadata = obj["metadata"]
        path = resource.path(metadata.get("namespace", ""), metadata["name"], subresource)
        self.metrics.wrote("update", _written(resource, subresource))
        return await self._ask_object("PUT", path, body=orjson.dumps(obj))

    async def patch_merge(
        self, resource: Resource, namespace: str, name: str, patch: Mapping[str, Any], subresource: str = ""
    ) -> JSON:
        """The object after a JSON merge patch. ``metadata.uid`` or ``resourceVersion`` in it are preconditions."""
        path = resource.path(namespace, name, subresource)
        self.metrics.wrote("patch", _written(resource, subresource))
        return await self._ask_object("PATCH", path, body=orjson.dumps(patch), content_type=MERGE_PATCH)

    async def patch_json(
        self, resource: Resource, namespace: str, name: str, steps: Sequence[Mapping[str, Any]], subresource: str = ""
    ) -> JSON:
        """The object after a JSON patch; a failed ``test`` step raises Invalid. Not repeated if the answer is lost."""
        path = resource.path(namespace, name, subresource)
        self.metrics.wrote("patch", _written(resource, subresource))
        return await self._ask_object("PATCH", path, body=orjson.dumps(steps), content_type=JSON_PATCH)

    async def apply(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        obj: Mapping[str, Any],
        subresource: str = "",
        manager: str = "serried",
    ) -> JSON:
        """The object after a server-side apply as field manager ``manager``, forced: only the fields in ``obj``.

        What the same manager has applied before, and does not any more, is removed.
        """
        self.metrics.wrote("apply", _written(resource, subresource))
        return await self._ask_object(
            "PATCH",
            resource.path(namespace, name, subresource),
            body=orjson.dumps(obj),
            params={"fieldManager": manager, "force": "true"},
            content_type=APPLY_PATCH,
        )

    async def delete(self, resource: Resource, namespace: str, name: str, uid: str = "", version: str = "") -> JSON:
        """Delete the object, only if it has this ``uid`` and resourceVersion where they are given (else Conflict).

        Raises NotFound, also if the first answer was lost and the repeated request finds it gone.
        """
        options: JSON = {"kind": "DeleteOptions", "apiVersion": "v1"}
        named = {"uid": uid, "resourceVersion": version}
        if preconditions := {name: value for name, value in named.items() if value}:
            options["preconditions"] = preconditions
        self.metrics.wrote("delete", resource.plural)
        return await self._ask_object("DELETE", resource.path(namespace, name), body=orjson.dumps(options))

    async def bind(
        self,
        namespace: str,
        name: str,
        uid: str,
        node: str,
        annotations: Mapping[str, str] | None = None,
        before: Callable[[], None] = lambda: None,
    ) -> None:
        """Bind the pod of this ``uid`` to ``node``; done also if it is bound there already.

        ``before`` is called ahead of each attempt; what it raises ends the call. Raises Conflict if the pod is another
        one, is bound elsewhere, is being deleted or is gated.
        """
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "namespace": namespace, "uid": uid, "annotations": dict(annotations or {})},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        # A second Binding of the same pod has no effect but 409, so a lost answer is no reason to give up.
        path = PODS.path(namespace, name, "binding")
        call = _Call("POST", path, None, orjson.dumps(body), JSON_TYPE, self._timeout, repeatable=True)
        self.metrics.wrote("create", "pods/binding")
        try:
            _check_object(call, _decode(call, await self._repeat(call, self._retry, before)))
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
        """One attempt, as budgets allow. Raises TooMany if one says no, NotFound or Conflict if that pod is gone."""
        self.metrics.wrote("create", "pods/eviction")
        await self._evict(namespace, name, uid, {})

    async def rehearse_eviction(self, namespace: str, name: str, uid: str) -> None:
        """As `evict`, with the same refusals, but nothing is done."""
        await self._evict(namespace, name, uid, {"dryRun": "All"})

    async def _evict(self, namespace: str, name: str, uid: str, params: Mapping[str, str]) -> None:
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": {"preconditions": {"uid": uid}},
        }
        path = PODS.path(namespace, name, "eviction")
        await self._ask_object("POST", path, params=params, body=orjson.dumps(body), retry=ONCE)

    # ------------------------------------------------------------ machinery

    async def _ask_object(self, method: str, path: str, **how: Any) -> JSON:
        return _check_object(f"{method} {path}", await self.ask(method, path, **how))

    def _session(self) -> aiohttp.ClientSession:
        if self._opened is None:
            connector = aiohttp.TCPConnector(
                limit=self._connections, ssl=self._credentials.tls or True, keepalive_timeout=_KEEP_ALIVE
            )
            self._opened = aiohttp.ClientSession(
                connector=connector,
                headers={"User-Agent": self._agent, "Accept": JSON_TYPE},
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=("Accept-Encoding",),
            )
        return self._opened

    def _url(self, path: str, params: Mapping[str, str] | None) -> URL:
        url = URL(self._credentials.host + path)
        return url.with_query(params) if params else url

    async def _headers(self, content_type: str) -> dict[str, str]:
        headers = {"Content-Type": content_type} if content_type else {}
        if token := await self._current_token():
            headers["Authorization"] = f"Bearer {token}"
        return headers

    async def _current_token(self) -> str:
        if time.monotonic() >= self._token_until:
            async with self._token_lock:
                if time.monotonic() >= self._token_until:
                    self._keep(await asyncio.to_thread(self._credentials.read_token))
        return self._token

    async def _renew_token(self) -> None:
        async with self._token_lock:
            self._keep(await asyncio.to_thread(self._credentials.renew_token))

    def _keep(self, token: str) -> None:
        self._token, self._token_until = token, time.monotonic() + TOKEN_LIFETIME


async def _chunks(call: _Call, answer: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
    try:
        async for chunk in answer.content.iter_any():
            yield chunk
    except (aiohttp.ClientError, TimeoutError, OSError) as err:
        raise _lost(call, err) from err


def _may_repeat(call: _Call, err: TooMany | Unavailable) -> bool:
    if isinstance(err, TooMany):
        return True
    if err.unsent:
        return True
    waitable = err.status == 503 and err.retry_after is not None
    return waitable or (call.repeatable and err.status in {0, 503})


def _lost(call: _Call, err: Exception) -> Unavailable:
    unsent = isinstance(err, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
    if isinstance(err, aiohttp.ConnectionTimeoutError):
        said = f"no connection in {call.timeout * _CONNECT_SHARE:g} s: too many requests in flight, or no way there"
    elif isinstance(err, TimeoutError):
        said = f"no answer in {call.timeout:g} s"
    else:
        said = f"{type(err).__name__}: {err}"
    return Unavailable(str(call), Failure(0, "Unavailable", said), unsent=unsent)


def _failure(answer: aiohttp.ClientResponse, body: bytes) -> Failure:
    failure = decode_failure(answer.status, body)
    header = answer.headers.get("Retry-After", "")
    seconds = float(header) if header.isdigit() else failure.retry_after
    return Failure(failure.code, failure.reason, failure.message, seconds)


def _decode(call: object, response: Response) -> JSON:
    try:
        value = orjson.loads(response.body)
    except ValueError as err:
        raise misread(str(call), response.status, f"no JSON ({err}): {response.body[:80]!r}") from err
    if not isinstance(value, dict):
        raise misread(str(call), response.status, f"no object: {response.body[:80]!r}")
    return value


def _check_object(call: object, value: JSON) -> JSON:
    """Whatever the API server answers about an object is one with metadata, or a Status."""
    if not isinstance(value.get("metadata"), dict) and value.get("kind") != "Status":
        raise misread(str(call), 200, f"no object of the API: {str(value)[:80]}")
    return value


def _written(resource: Resource, subresource: str) -> str:
    return f"{resource.plural}/{subresource}" if subresource else resource.plural
