"""A fake Kubernetes API server in memory, on a real loopback socket, with faults on demand.

The server has the features that Serried uses, with the same errors: generic objects with resourceVersions, selectors,
paging, watches with bookmarks and streaming lists, the status, binding and eviction subresources, finalizers. There is
no admission, no validation, no garbage collection and no graceful deletion of pods.

    async with FakeApiServer() as server, server.client() as client:
        server.add(PODS, {"metadata": {"name": "a", "namespace": "default"}})
"""

import asyncio
import base64
import binascii
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self
from zlib import crc32

import orjson
from aiohttp import web

from serried.kube.auth import Credentials
from serried.kube.client import ApiClient, RetryPolicy
from serried.kube.retry import Backoff
from serried.kube.wire import (
    BUDGETS,
    CSI_DRIVERS,
    CSI_NODES,
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    EVENTS,
    FALLBACK_GROUP,
    JOBS,
    JSON,
    LEASES,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    RESERVATIONS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    STORAGE_CAPACITIES,
    STORAGE_CLASSES,
    TOPOLOGY_LEVELS,
    VOLUME_CLAIMS,
    VOLUMES,
    Failure,
    Resource,
    pod_groups,
    workloads,
)
from tests.support.faults import Fault, FaultKind, Gate, Request, When
from tests.support.patches import apply, merge, merge_strategically, step_through
from tests.support.routes import Route, find_route
from tests.support.schemas import GROUP, KINDS, Kinds, openapi
from tests.support.selectors import match_selectors
from tests.support.storage import ObjectKey, RefusedError, Storage, check_preconditions
from tests.support.watching import Cut, Watch, begin_stream, begin_watch, select

NAMESPACES = Resource("", "v1", "namespaces", namespaced=False)
REVIEWS = Resource("authorization.k8s.io", "v1", "selfsubjectaccessreviews", namespaced=False)

SERVED = (
    *(NODES, PODS, NAMESPACES, EVENTS, JOBS, LEASES, PRIORITY_CLASSES, RESERVATIONS, VOLUMES, VOLUME_CLAIMS),
    *(DEVICE_CLASSES, RESOURCE_SLICES, RESOURCE_CLAIMS, DEVICE_TAINT_RULES),
    *(STORAGE_CLASSES, STORAGE_CAPACITIES, CSI_DRIVERS, CSI_NODES),
    *(BUDGETS, TOPOLOGY_LEVELS),
    *(pod_groups(FALLBACK_GROUP, "v1beta1"), workloads(FALLBACK_GROUP, "v1beta1")),
)
"""The resources of a stock cluster with Serried's CRDs."""

NATIVE_SERVED = (pod_groups("scheduling.k8s.io", "v1beta1"), workloads("scheduling.k8s.io", "v1beta1"))
"""The resources that the native API level adds: ``FakeApiServer(served=SERVED + NATIVE_SERVED)``."""

_PATIENT = RetryPolicy(attempts=4, backoff=Backoff(first=0.01, cap=0.05))


class FakeApiServer:
    """The server, as an async context manager. Tests call its methods directly; clients send HTTP to ``url``.

    ``requests`` are all requests so far. ``served`` are the served resources, and may be changed at any time; others
    get 404. Resources in ``listed_only`` are in discovery, but get 404. With ``streaming`` False the server rejects
    streaming lists, as older servers do. If ``token`` is not "", clients must send it.
    """

    def __init__(self, served: tuple[Resource, ...] = SERVED) -> None:
        self.storage = Storage()
        self.served = set(served)
        self.listed_only: set[Resource] = set()
        self.schemas: dict[str, Kinds] = dict(KINDS)
        """By version of the native API group: its OpenAPI schema. Other versions publish no schema."""

        self.streaming = True
        self.token = ""
        self.denied: set[tuple[str, str]] = set()
        """The verbs and plural resources that a SelfSubjectAccessReview denies."""

        self.requests: list[Request] = []
        self.watches: set[Watch] = set()
        self.url = ""
        self._faults: list[Fault] = []
        self._cut: Cut | None = None
        self._runner: web.ServerRunner | None = None
        self._closing = False
        self._watch_begun = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._runner = web.ServerRunner(
            web.Server(self._handle, access_log=None, handler_cancellation=True), shutdown_timeout=1.0
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = "http://{}:{}".format(*self._runner.addresses[0][:2])
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing = True
        for fault in self._faults:
            fault.gate.open()
        self.end_watches()
        if self._runner is not None:
            await self._runner.cleanup()

    # ------------------------------------------------------- set up and inspect

    def client(self, retry: RetryPolicy = _PATIENT, timeout: float = 10.0) -> ApiClient:
        """Return a client of this server, which sends its token."""
        credentials = Credentials(self.url, read_token=lambda: self.token)
        return ApiClient(credentials, component="test", retry=retry, timeout=timeout)

    def add(self, resource: Resource, obj: Mapping[str, Any]) -> JSON:
        """Create an object with all given fields, including status and uid."""
        return self.storage.create(resource, obj, (obj.get("metadata") or {}).get("namespace", "default"))

    def patch(self, resource: Resource, namespace: str, name: str, patch: Mapping[str, Any]) -> JSON:
        """Apply a merge patch to an object, including its status."""
        return self.storage.update(resource, (namespace, name), lambda obj: merge(obj, patch))

    def remove(self, resource: Resource, namespace: str, name: str) -> JSON:
        """Delete an object. One with finalizers remains, as after a client's request."""
        return self.storage.delete(resource, (namespace, name), {})

    def get_object(self, resource: Resource, namespace: str, name: str) -> JSON | None:
        """Return the object as it is now; None if it does not exist."""
        return self.storage.objects(resource).get((namespace, name))

    def list_objects(self, resource: Resource) -> list[JSON]:
        """Return all objects of a resource, sorted by namespace and name."""
        return [obj for _, obj in sorted(self.storage.objects(resource).items())]

    def list_requests(self, when: When) -> list[Request]:
        """Return the matching requests so far."""
        return [request for request in self.requests if when(request)]

    async def await_watch(self, resource: Resource) -> None:
        """Wait until a client watches the resource."""
        while not self._watches_of(resource):
            self._watch_begun.clear()
            await self._watch_begun.wait()

    # ------------------------------------------------------------------ faults

    def reject(
        self,
        when: When,
        times: int = 1,
        *,
        status: int = 503,
        reason: str = "",
        message: str = "injected",
        retry_after: int | None = None,
        causes: frozenset[str] = frozenset(),
    ) -> Fault:
        """Answer the next ``times`` matching requests with an error."""
        return self._order(
            Fault(FaultKind.REJECT, when, times, status, reason, message, retry_after=retry_after, causes=causes)
        )

    def disconnect(self, when: When, times: int = 1) -> Fault:
        """Close the connections of the next matching requests, without carrying them out."""
        return self._order(Fault(FaultKind.HANG_UP, when, times))

    def lose_answer(self, when: When, times: int = 1) -> Fault:
        """Carry out the next matching requests, but close their connections instead of answering."""
        return self._order(Fault(FaultKind.LOSE_ANSWER, when, times))

    def garble(self, when: When, times: int = 1, *, status: int = 200, page: str = "<html>a proxy</html>") -> Fault:
        """Carry out the next matching requests, but answer with a page that no API server sends."""
        return self._order(Fault(FaultKind.GARBLE, when, times, status=status, message=page))

    def intercept(self, when: When, times: int = 1, *, status: int, page: str = "<html>a proxy</html>") -> Fault:
        """Answer the next matching requests with a page that no API server sends, without carrying them out."""
        return self._order(Fault(FaultKind.INTERCEPT, when, times, status=status, message=page))

    def cut_streams(self, after: int, times: int = 1_000_000, *, abruptly: bool = False) -> None:
        """End the next streaming lists after ``after`` objects."""
        self._cut = Cut(after, times, abruptly)

    def hold(self, when: When, times: int = 1_000_000) -> Gate:
        """Let the next matching requests wait until the returned gate is opened."""
        return self._order(Fault(FaultKind.WAIT, when, times)).gate

    def recover(self) -> None:
        """Remove all faults."""
        for fault in self._faults:
            fault.left = 0

    def _order(self, fault: Fault) -> Fault:
        self._faults.append(fault)
        return fault

    def compact(self) -> None:
        """Compact the history: watches from earlier versions, and continue tokens, get 410."""
        self.storage.compact()

    def end_watches(self, resource: Resource | None = None) -> None:
        """End watches normally, without an ERROR event."""
        for watch in self._watches_of(resource):
            watch.end()

    def break_watches(self, resource: Resource | None = None) -> None:
        """Break the connections of watches."""
        for watch in self._watches_of(resource):
            watch.abort()

    def drop_changes(self, resource: Resource, count: int = 1) -> None:
        """Do not send the next changes of a resource to its present watches."""
        for watch in self._watches_of(resource):
            watch.dropping += count

    def inject(self, resource: Resource, line: bytes) -> None:
        """Send an arbitrary line to the present watches of a resource."""
        for watch in self._watches_of(resource):
            watch.inject(line)

    def bookmark(self, resource: Resource | None = None) -> None:
        """Send a bookmark with the newest version to the present watches."""
        for watch in self._watches_of(resource):
            watch.queue_bookmark(self.storage.revision, _kind_of(watch.resource))

    def _watches_of(self, resource: Resource | None) -> list[Watch]:
        return [watch for watch in self.watches if resource in {None, watch.resource}]

    # -------------------------------------------------------------------- HTTP

    async def _handle(self, raw: web.BaseRequest) -> web.StreamResponse:
        text = await raw.read()
        if self._closing:
            return _drop(raw)
        headers = {name.lower(): value for name, value in raw.headers.items()}
        request = Request(raw.method, raw.path, dict(raw.query), _parse(text), headers)
        self.requests.append(request)
        fault = next((fault for fault in self._faults if fault.applies_to(request)), None)
        if fault is not None and fault.kind is FaultKind.INTERCEPT:
            return web.Response(status=fault.status, text=fault.message, content_type="text/html")
        try:
            if fault is not None:
                await _suffer(fault)
            self._authenticate(request)
            answer = await self._answer(raw, request)
        except RefusedError as err:
            answer = _refusal(err.failure)
        except ConnectionAbortedError:
            return _drop(raw)
        if fault is not None and fault.kind is FaultKind.GARBLE:
            return web.Response(status=fault.status, text=fault.message, content_type="text/html")
        return _drop(raw) if fault is not None and fault.kind is FaultKind.LOSE_ANSWER else answer

    def _authenticate(self, request: Request) -> None:
        if self.token and request.headers.get("authorization") != f"Bearer {self.token}":
            raise RefusedError(401, "Unauthorized", "Unauthorized")

    async def _answer(self, raw: web.BaseRequest, request: Request) -> web.StreamResponse:
        if request.path.startswith("/openapi/v3"):
            return _json(200, self._publish(request))
        if request.path == REVIEWS.path():
            return _json(201, request.body | {"metadata": {}, "status": {"allowed": self._may(request)}})
        route = find_route(request.path, self.served | self.listed_only)
        if route.resource is None:
            return _json(200, route.document)
        if route.resource in self.listed_only:
            raise RefusedError(404, "NotFound", "the server could not find the requested resource")
        if request.is_watch:
            return await self._watch(raw, request, route, route.resource)
        if request.method == "GET":
            found = self._list(request, route, route.resource) if not route.name else self._get(route, route.resource)
            return _json(200, found)
        return self._write(request, route, route.resource)

    def _may(self, request: Request) -> bool:
        asked = request.body["spec"]["resourceAttributes"]
        return (asked["verb"], asked["resource"]) not in self.denied

    def _publish(self, request: Request) -> JSON:
        """Return the index of OpenAPI schemas, or one schema."""
        served = {resource.version for resource in self.served if resource.group == GROUP}
        documents = {version: openapi(version, kinds) for version, kinds in self.schemas.items() if version in served}
        places = {f"/openapi/v3/apis/{GROUP}/{version}": version for version in documents}
        if request.path in places:
            return documents[places[request.path]]
        if request.path != "/openapi/v3":
            raise RefusedError(404, "NotFound", "the server could not find the requested resource")
        hashes = {place: crc32(orjson.dumps(documents[version])) for place, version in places.items()}
        hashes["/openapi/v3/api/v1"] = 1
        return {
            "paths": {
                place.removeprefix("/openapi/v3/"): {"serverRelativeURL": f"{place}?hash={number:X}"}
                for place, number in hashes.items()
            }
        }

    def _get(self, route: Route, resource: Resource) -> JSON:
        return self.storage.get(resource, route.key)

    def _list(self, request: Request, route: Route, resource: Resource) -> JSON:
        after, version = self._read_token(request.params.get("continue", ""))
        found = [obj for obj in select(self.storage, _selection(request, route, resource)) if _key(obj) > after]
        limit = int(request.params.get("limit", 0)) or len(found)
        metadata: JSON = {"resourceVersion": str(version)}
        if len(found) > limit:
            token = orjson.dumps([version, *_key(found[limit - 1])])
            metadata |= {
                "continue": base64.b64encode(token).decode(),
                "remainingItemCount": len(found) - limit,
            }
        items = found[:limit]
        return {
            "apiVersion": resource.api_version,
            "kind": f"{_kind_of(resource)}List",
            "metadata": metadata,
            "items": items,
        }

    def _read_token(self, token: str) -> tuple[ObjectKey, int]:
        if not token:
            return ("", ""), self.storage.revision
        try:
            version, namespace, name = orjson.loads(base64.b64decode(token))
        except (ValueError, binascii.Error):
            raise RefusedError(400, "BadRequest", "continue key is not valid") from None
        if version < self.storage.compacted:
            raise RefusedError(410, "Expired", "The provided continue parameter is too old")
        return (namespace, name), version

    def _write(self, request: Request, route: Route, resource: Resource) -> web.Response:
        if request.method == "POST" and route.subresource == "binding":
            self.storage.bind(route.key, request.body)
            return _json(201, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201})
        if request.method == "POST" and route.subresource == "eviction":
            return _json(201, self._evict(request, route, resource))
        if request.method == "POST" and not route.name:
            return _json(201, self.storage.create(resource, _without_status(resource, request.body), route.namespace))
        if request.method == "DELETE" and route.name:
            options = request.body or {}
            return _json(200, self.storage.delete(resource, route.key, options.get("preconditions") or {}))
        if request.method == "PUT" and route.name:
            return _json(200, self._replace(route, resource, request.body))
        if request.method == "PATCH" and route.name:
            return self._patch(request, route, resource)
        raise RefusedError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")

    def _evict(self, request: Request, route: Route, resource: Resource) -> JSON:
        preconditions = request.body.get("deleteOptions", {}).get("preconditions") or {}
        if request.params.get("dryRun") != "All":
            return self.storage.delete(resource, route.key, preconditions)
        found = self.storage.get(resource, route.key)
        check_preconditions(found, preconditions)
        return found

    def _replace(self, route: Route, resource: Resource, obj: JSON) -> JSON:
        def mutate(before: JSON) -> JSON:
            _check_version(route, before, obj)
            return _confine(before, obj, route.subresource)

        return self.storage.update(resource, route.key, mutate)

    def _patch(self, request: Request, route: Route, resource: Resource) -> web.Response:
        change = _read_patch(request)

        def mutate(before: JSON) -> JSON:
            after = change(before)
            _check_version(route, before, after)
            return _confine(before, after, route.subresource)

        applies = request.headers.get("content-type", "").startswith("application/apply-patch")
        if applies and not route.subresource and route.key not in self.storage.objects(resource):
            return _json(201, self.storage.create(resource, _without_status(resource, request.body), route.namespace))
        return _json(200, self.storage.update(resource, route.key, mutate))

    async def _watch(
        self, raw: web.BaseRequest, request: Request, route: Route, resource: Resource
    ) -> web.StreamResponse:
        watch = _selection(request, route, resource)
        if request.params.get("sendInitialEvents") == "true":
            if not self.streaming:
                message = "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch"
                raise RefusedError(422, "Invalid", message)
            begin_stream(self.storage, watch, _kind_of(resource), self._cut)
        else:
            try:
                begin_watch(self.storage, watch, request.params.get("resourceVersion", ""))
            except RefusedError as err:
                # As the real API server does: the error is an event, and then the watch ends.
                watch.queue_event("ERROR", _status(err.failure))
                watch.end()
        return await self._send(raw, watch, float(request.params.get("timeoutSeconds", 1800)))

    async def _send(self, raw: web.BaseRequest, watch: Watch, seconds: float) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        self.watches.add(watch)
        self._watch_begun.set()
        try:
            await response.prepare(raw)
            async for line in watch.lines(seconds):
                await response.write(line)
        except ConnectionResetError:
            return response
        finally:
            self.watches.discard(watch)
            self.storage.listeners.discard(watch.queue_change)
        return _drop(raw) if watch.aborted else response


async def _suffer(fault: Fault) -> None:
    match fault.kind:
        case FaultKind.HANG_UP:
            raise ConnectionAbortedError
        case FaultKind.REJECT:
            refused = RefusedError(fault.status, fault.reason, fault.message)
            refused.failure = Failure(fault.status, fault.reason, fault.message, fault.retry_after, fault.causes)
            raise refused
        case FaultKind.WAIT:
            fault.gate.reached.set()
            await fault.gate.opened.wait()
        case FaultKind.LOSE_ANSWER | FaultKind.GARBLE | FaultKind.INTERCEPT:
            return


def _drop(raw: web.BaseRequest) -> web.StreamResponse:
    if raw.transport is not None:
        raw.transport.abort()
    return web.Response()


def _json(status: int, value: Any, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(status=status, body=orjson.dumps(value), content_type="application/json", headers=headers)


def _refusal(failure: Failure) -> web.Response:
    headers = {} if failure.retry_after is None else {"Retry-After": str(int(failure.retry_after))}
    return _json(failure.code, _status(failure), headers)


def _status(failure: Failure) -> JSON:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": failure.message,
        "reason": failure.reason,
        "code": failure.code,
        "details": {"causes": [{"reason": cause} for cause in failure.causes]},
    }


def _parse(text: bytes) -> Any:
    if not text:
        return None
    try:
        return orjson.loads(text)
    except ValueError:
        return None


def _selection(request: Request, route: Route, resource: Resource) -> Watch:
    try:
        match = match_selectors(request.params.get("labelSelector", ""), request.params.get("fieldSelector", ""))
    except ValueError as err:
        raise RefusedError(400, "BadRequest", str(err)) from None
    return Watch(resource, route.namespace, match)


def _key(obj: Mapping[str, Any]) -> ObjectKey:
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


def _check_version(route: Route, before: JSON, after: Mapping[str, Any]) -> None:
    metadata = after.get("metadata") or {}
    if metadata.get("name", route.name) != route.name:
        raise RefusedError(400, "BadRequest", "the name of the object does not match the name on the URL")
    check_preconditions(before, metadata)


def _confine(before: JSON, after: JSON, subresource: str) -> JSON:
    """Return the object after an update: the status subresource changes only the status, other paths all else."""
    if subresource == "status":
        return before | {"status": after.get("status", {})}
    kept = {"status": before["status"]} if "status" in before else {}
    return {key: value for key, value in after.items() if key != "status"} | kept


def _without_status(resource: Resource, obj: Any) -> JSON:
    if not isinstance(obj, dict):
        raise RefusedError(400, "BadRequest", "the object provided is unrecognized")
    return obj if resource == NODES else {key: value for key, value in obj.items() if key != "status"}


def _read_patch(request: Request) -> Any:
    kind = request.headers.get("content-type", "").partition(";")[0]
    ways = {
        "merge-patch": merge,
        "strategic-merge-patch": merge_strategically,
        "apply-patch": apply,
        "json-patch": step_through,
    }
    way = next((way for name, way in ways.items() if kind.startswith(f"application/{name}+")), None)
    if way is None:
        raise RefusedError(415, "UnsupportedMediaType", f"the body of the request was in an unknown format: {kind}")

    def change(before: JSON) -> Any:
        try:
            return way(before, request.body)
        except (ValueError, KeyError) as err:
            raise RefusedError(422, "Invalid", f"the server rejected our request: {err}") from None

    return change


def _kind_of(resource: Resource) -> str:
    known = {"podgroups": "PodGroup"}
    return known.get(resource.plural, resource.plural.removesuffix("s").capitalize())
