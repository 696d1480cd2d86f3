"""The wire format of the Kubernetes API, without I/O: paths, query parameters, lines of a watch, Status objects.

`client` and `reflector` build requests and read answers with it; `transport` sends them.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any
from urllib.parse import quote

from serried.api.kinds import OWNER_KINDS
from serried.api.level import ApiLevel


def _loads_with_stdlib(text: bytes | bytearray | memoryview | str) -> Any:
    return json.loads(bytes(text) if isinstance(text, memoryview) else text)


def _dumps_with_stdlib(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


read_json: Callable[[bytes | bytearray | memoryview | str], Any] = _loads_with_stdlib
"""Parse a JSON document; raise ValueError if it is none."""

write_json: Callable[[object], bytes] = _dumps_with_stdlib
"""Serialize a value as JSON; raise TypeError if it cannot be serialized."""

if find_spec("orjson"):  # not in the distribution of the commands, which is the same for all machines
    import orjson

    read_json, write_json = orjson.loads, orjson.dumps

JSON = dict[str, Any]

INITIAL_EVENTS_END = "k8s.io/initial-events-end"
"""Annotation of the bookmark that ends the initial events of a streaming list."""


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource of the API, such as pods, with the parts of its URLs."""

    group: str
    """The API group; "" for the core group."""

    version: str

    plural: str
    namespaced: bool = True

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def api_version(self) -> str:
        """The ``apiVersion`` of its objects."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def root(self) -> str:
        """The URL path of the group and version, such as ``/apis/batch/v1``; it is the path of discovery."""
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the path of one object, of the list of a namespace, or (without arguments) of the list of all.

        Names are escaped: one such as ``../x`` does not lead to another path.
        """
        scope = f"/namespaces/{_quote(namespace)}" if self.namespaced and namespace else ""
        tail = "".join(f"/{part}" for part in (_quote(name), subresource) if part)
        return f"{self.root}{scope}/{self.plural}{tail}"


def _quote(name: str) -> str:
    # A name of dots only is escaped twice: escaped once, "." and ".." would still be resolved as path segments.
    return quote(name, safe=":") if name.strip(".") else name.replace(".", "%252E")


FALLBACK_GROUP = "scheduling.serried.dev"

NAMESPACES = Resource("", "v1", "namespaces", namespaced=False)
NODES = Resource("", "v1", "nodes", namespaced=False)
PODS = Resource("", "v1", "pods")
VOLUMES = Resource("", "v1", "persistentvolumes", namespaced=False)
VOLUME_CLAIMS = Resource("", "v1", "persistentvolumeclaims")
STORAGE_CLASSES = Resource("storage.k8s.io", "v1", "storageclasses", namespaced=False)
STORAGE_CAPACITIES = Resource("storage.k8s.io", "v1", "csistoragecapacities")
CSI_NODES = Resource("storage.k8s.io", "v1", "csinodes", namespaced=False)
CSI_DRIVERS = Resource("storage.k8s.io", "v1", "csidrivers", namespaced=False)
CONFIG_MAPS = Resource("", "v1", "configmaps")
EVENTS = Resource("", "v1", "events")
JOBS = Resource("batch", "v1", "jobs")
LEASES = Resource("coordination.k8s.io", "v1", "leases")
PRIORITY_CLASSES = Resource("scheduling.k8s.io", "v1", "priorityclasses", namespaced=False)
POD_TEMPLATES = Resource("", "v1", "podtemplates")
RESOURCE_SLICES = Resource("resource.k8s.io", "v1", "resourceslices", namespaced=False)
RESOURCE_CLAIMS = Resource("resource.k8s.io", "v1", "resourceclaims")
DEVICE_TAINT_RULES = Resource("resource.k8s.io", "v1", "devicetaintrules", namespaced=False)
DEVICE_CLASSES = Resource("resource.k8s.io", "v1", "deviceclasses", namespaced=False)
BUDGETS = Resource("policy", "v1", "poddisruptionbudgets")
RESERVATIONS = Resource(FALLBACK_GROUP, "v1beta1", "reservations")
TOPOLOGY_LEVELS = Resource(FALLBACK_GROUP, "v1beta1", "topologylevels", namespaced=False)
KUEUE_TOPOLOGIES = Resource("kueue.x-k8s.io", "v1beta2", "topologies", namespaced=False)
GROVE_BINDINGS = Resource("grove.io", "v1alpha1", "clustertopologybindings", namespaced=False)


def pod_groups(group: str, version: str) -> Resource:
    """Return the resource of PodGroups in this group and version."""
    return Resource(group, version, "podgroups")


def composites(level: ApiLevel) -> Resource:
    """Return the resource of CompositePodGroups in their API group and version.

    ``level`` has these: it says which versions of the scheduling APIs Serried uses in this cluster.
    """
    group, _, version = level.composite_api_version.partition("/")
    return Resource(group, version, "compositepodgroups")


def workloads(group: str, version: str) -> Resource:
    """Return the resource of Workloads in this group and version."""
    return Resource(group, version, "workloads")


def owners(kind: str) -> Resource:
    """Return the resource of an owner kind, such as ``Job``; ``kind`` is one of ``OWNER_KINDS``."""
    row = OWNER_KINDS[kind]
    return Resource(row.group, row.version, row.plural)


@dataclass(frozen=True, slots=True)
class Selection:
    """The objects of a resource that a list or watch covers: a namespace, and selectors."""

    namespace: str = ""
    """The namespace; "" for all."""

    fields: str = ""
    """A field selector, such as ``metadata.name=a``; "" for none."""

    labels: str = ""
    """A label selector; "" for none."""

    @property
    def params(self) -> dict[str, str]:
        """The selectors as query parameters of a list or watch."""
        named = {"fieldSelector": self.fields, "labelSelector": self.labels}
        return {name: value for name, value in named.items() if value}


EVERYTHING = Selection()


def select_name(name: str) -> str:
    """Return the field selector for the object with this name."""
    for special in "\\,=":  # as upstream's fields.EscapeValue
        name = name.replace(special, f"\\{special}")
    return f"metadata.name={name}"


def list_params(selection: Selection, limit: int, token: str) -> dict[str, str]:
    """Return the query for one page of a list; ``token`` is the previous page's continue token, "" for the first."""
    paging = {"limit": str(limit)} | ({"continue": token} if token else {})
    return selection.params | paging


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list."""

    items: Sequence[JSON]
    """The objects."""

    token: str
    """The continue token; "" in the last page."""

    version: str
    """The resourceVersion of the whole list."""


def read_page(document: Mapping[str, Any]) -> Page:
    """Return the page in a decoded answer; raise ValueError for any other document.

    A document that is no list must never count as an empty list: all known objects would be reported as deleted.
    """
    items = document.get("items", ())
    metadata = _metadata(document)
    version = metadata.get("resourceVersion")
    listed = items is None or (isinstance(items, list) and all(isinstance(item, dict) for item in items))
    if not listed or not isinstance(version, str) or not version:
        raise ValueError(f"no list: {str(document)[:80]}")
    return Page(items or [], str(metadata.get("continue") or ""), version)


def watch_params(selection: Selection, version: str, timeout: int) -> dict[str, str]:
    """Return the query of a watch for changes after ``version`` that the server ends after ``timeout`` seconds."""
    return selection.params | _watching(timeout) | {"resourceVersion": version}


def stream_params(selection: Selection, timeout: int) -> dict[str, str]:
    """Return the query of a streaming list: all objects, a bookmark that marks the end of them, then changes."""
    initial = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
    return selection.params | _watching(timeout) | initial


def _watching(timeout: int) -> dict[str, str]:
    return {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(timeout)}


@dataclass(frozen=True, slots=True)
class Change:
    """One line of a watch."""

    kind: str
    """ADDED, MODIFIED, DELETED, BOOKMARK or ERROR."""

    obj: JSON
    """The object; a Status if the kind is ERROR."""

    @property
    def version(self) -> str:
        """The resourceVersion to resume from after this change; "" if it has none."""
        version = _metadata(self.obj).get("resourceVersion")
        return version if isinstance(version, str) else ""

    @property
    def ends_initial_events(self) -> bool:
        """Return whether this is the bookmark at the end of a streaming list."""
        annotations = _metadata(self.obj).get("annotations")
        return self.kind == "BOOKMARK" and isinstance(annotations, dict) and INITIAL_EVENTS_END in annotations


class BadLineError(ValueError):
    """A line of a watch is no valid watch event."""


def decode_change(line: bytes) -> Change:
    """Return the watch event in one line; raise BadLineError if the line is none."""
    try:
        value = read_json(line)
    except ValueError as err:
        raise BadLineError(f"no JSON ({err}): {line[:80]!r}") from err
    kind, obj = (value.get("type"), value.get("object")) if isinstance(value, dict) else (None, None)
    if not isinstance(kind, str) or not isinstance(obj, dict):
        raise BadLineError(f"no watch event: {line[:80]!r}")
    return Change(kind, obj)


def _metadata(obj: Mapping[str, Any]) -> Mapping[str, Any]:
    metadata = obj.get("metadata")
    return metadata if isinstance(metadata, dict) else {}


class LineSplitter:
    """Splits the byte chunks of one watch into lines. A line may span many chunks; the time stays linear."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        """The chunks of the last line, which is still incomplete."""

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Add a chunk. Yield the lines that it completes, without line ends; empty lines are skipped."""
        *whole, rest = chunk.split(b"\n")
        for line in whole:
            self._parts.append(line)
            joined = b"".join(self._parts) if len(self._parts) > 1 else line
            self._parts.clear()
            if joined.strip():
                yield joined
        if rest:
            self._parts.append(rest)

    @property
    def unfinished(self) -> bool:
        """Return whether the chunks so far end in the middle of a line."""
        return bool(self._parts)


MAX_RETRY_AFTER_SECONDS = 60.0
"""The maximum of a server's Retry-After that is respected.

An API server asks for seconds. A proxy in front of it may ask for an hour, in which the cache would not be updated.
"""


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed call, as the Status object in the answer describes it."""

    code: int
    """The HTTP status; 0 if no answer came."""

    reason: str = ""

    message: str = ""

    retry_after: float | None = None
    """Seconds to wait before a retry, as the server asks, MAX_RETRY_AFTER_SECONDS at most; None if it does not ask."""

    causes: frozenset[str] = frozenset()
    """The reasons in ``details.causes`` of the Status, such as ``DisruptionBudget``."""


def decode_failure(code: int, body: bytes) -> Failure:
    """Return the failure in an error response. Never raises: a body that is no Status becomes the message."""
    try:
        value = read_json(body)
    except ValueError:
        return Failure(code, message=body[:500].decode("utf-8", "replace").strip())
    return read_failure(value, code) if isinstance(value, dict) else Failure(code)


def read_failure(status: Mapping[str, Any], code: int = 0) -> Failure:
    """Return the failure in a decoded Status. ``code`` is the HTTP status; 0 means the code in the Status.

    An object that is no Status yields a failure without reason.
    """
    found = status.get("details")
    details = found if isinstance(found, dict) else {}
    seconds = details.get("retryAfterSeconds")
    causes = details.get("causes")
    stated = status.get("code")
    return Failure(
        code=code or (stated if isinstance(stated, int) else 0),
        reason=str(status.get("reason") or "") if status.get("kind") == "Status" else "",
        # The extender's own routes, which are reached through the API server's pod proxy, use the second name.
        message=str(status.get("message") or status.get("detail") or ""),
        retry_after=cap_retry_after(seconds) if isinstance(seconds, int) and seconds > 0 else None,
        causes=frozenset(
            str(cause.get("reason") or "")
            for cause in (causes if isinstance(causes, list) else ())
            if isinstance(cause, dict)
        ),
    )


def cap_retry_after(asked_seconds: float) -> float:
    """Return the seconds to wait if the server asks for ``asked_seconds``: at most MAX_RETRY_AFTER_SECONDS."""
    return float(min(asked_seconds, MAX_RETRY_AFTER_SECONDS))


def identity(obj: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return namespace ("" if cluster-scoped), name and UID of an object; raise BadLineError if it has no name."""
    metadata = _metadata(obj)
    name = metadata.get("name")
    if not isinstance(name, str):
        raise BadLineError(f"object without metadata.name: {str(obj)[:80]}")
    return str(metadata.get("namespace") or ""), name, str(metadata.get("uid") or "")
