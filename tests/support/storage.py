"""The storage of the fake API server: objects, resourceVersions and the changes since the last compaction. No I/O.

Objects in here are never changed in place, so that one state can be handed to many watches.
"""

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from serried.api.names import write_time
from serried.kube.wire import JSON, PODS, Failure, Resource
from tests.support.patches import merge
from tests.support.selectors import Match

ObjectKey = tuple[str, str]
Mutate = Callable[[JSON], JSON]

_SERVER_OWNED = frozenset(
    {"name", "namespace", "uid", "creationTimestamp", "resourceVersion", "generation", "deletionTimestamp"}
)


BUDGET = frozenset({"DisruptionBudget"})
"""The cause of a refusal by a disruption budget."""


class RefusedError(Exception):
    """A refusal of the API server."""

    def __init__(self, code: int, reason: str, message: str, causes: frozenset[str] = frozenset()) -> None:
        super().__init__(message)
        self.failure = Failure(code, reason, message, causes=causes)


@dataclass(frozen=True, slots=True)
class Record:
    """One change: from ``before`` (None: created) to ``after`` (None: removed; then ``last`` is the final state)."""

    revision: int
    resource: Resource
    before: JSON | None
    after: JSON | None
    last: JSON

    def as_seen_by(self, match: Match) -> tuple[str, JSON] | None:
        """Return event type and object for a watch with a selector; None if the watch does not get the change."""
        was = self.before is not None and match(self.before)
        now = self.after is not None and match(self.after)
        if now:
            return ("MODIFIED" if was else "ADDED"), self.last
        return ("DELETED", self.last) if was else None


class Storage:
    """Objects by resource. Each change gets a revision, is kept in the history and passed to ``listeners``."""

    def __init__(self) -> None:
        self.revision = 100
        self.compacted = 0
        self.history: list[Record] = []
        self.listeners: set[Callable[[Record], None]] = set()
        self._objects: dict[tuple[str, str], dict[ObjectKey, JSON]] = {}

    def objects(self, resource: Resource) -> dict[ObjectKey, JSON]:
        """Return all objects of a resource by namespace and name. All versions of an API group share them."""
        return self._objects.setdefault((resource.group, resource.plural), {})

    def get(self, resource: Resource, key: ObjectKey) -> JSON:
        """Return the object. Raise RefusedError 404 if it does not exist."""
        try:
            return self.objects(resource)[key]
        except KeyError:
            raise RefusedError(404, "NotFound", f'{resource} "{key[1]}" not found') from None

    def create(self, resource: Resource, obj: Mapping[str, Any], namespace: str) -> JSON:
        """Create an object with its status, and return it with uid, creationTimestamp and resourceVersion."""
        metadata = dict(obj.get("metadata") or {})
        if not metadata.get("name") and metadata.get("generateName"):
            metadata["name"] = metadata["generateName"] + uuid.uuid4().hex[:5]
        if not metadata.get("name"):
            raise RefusedError(422, "Invalid", f"{resource} is invalid: metadata.name: Required value")
        if resource.namespaced:
            metadata["namespace"] = namespace
        key = (metadata.get("namespace", ""), metadata["name"])
        if key in self.objects(resource):
            raise RefusedError(409, "AlreadyExists", f'{resource} "{key[1]}" already exists')
        metadata = {"uid": str(uuid.uuid4()), "creationTimestamp": timestamp(), "generation": 1} | metadata
        made = dict(obj) | {"apiVersion": obj.get("apiVersion", resource.api_version), "metadata": metadata}
        if resource == PODS:
            made["status"] = {"phase": "Pending"} | made.get("status", {})
        return self._commit(resource, None, made)

    def update(self, resource: Resource, key: ObjectKey, mutate: Mutate) -> JSON:
        """Replace an object by the result of ``mutate``, and return it.

        An unchanged object gets no new resourceVersion. A deleting one without finalizers is removed.
        """
        before = self.get(resource, key)
        after = mutate(before)
        kept = {name: value for name, value in before["metadata"].items() if name in _SERVER_OWNED}
        after = after | {"metadata": after["metadata"] | kept}
        if after == before:
            return before
        if after.get("spec") != before.get("spec"):
            after["metadata"]["generation"] = before["metadata"].get("generation", 1) + 1
        if after["metadata"].get("deletionTimestamp") and not after["metadata"].get("finalizers"):
            return self._remove(resource, after)
        return self._commit(resource, before, after)

    def delete(self, resource: Resource, key: ObjectKey, preconditions: Mapping[str, str]) -> JSON:
        """Delete an object and return its last state. One with finalizers remains, with a deletionTimestamp."""
        obj = self.get(resource, key)
        check_preconditions(obj, preconditions)
        if not obj["metadata"].get("finalizers"):
            return self._remove(resource, obj)
        mark = {"metadata": {"deletionTimestamp": timestamp()}}
        marked = obj["metadata"].get("deletionTimestamp")
        return obj if marked else self.update(resource, key, lambda before: merge(before, mark))

    def bind(self, key: ObjectKey, binding: Mapping[str, Any]) -> None:
        """Bind a pod as POST pods/binding does, with the errors of the real API server."""
        self.update(PODS, key, lambda pod: describe_binding(pod, binding))

    def compact(self) -> None:
        """Forget all changes so far: a watch from an earlier resourceVersion gets 410."""
        self.compacted = self.revision
        self.history.clear()

    def _commit(self, resource: Resource, before: JSON | None, after: JSON) -> JSON:
        after = self._stamp(after)
        metadata = after["metadata"]
        self.objects(resource)[metadata.get("namespace", ""), metadata["name"]] = after
        self._remember(Record(self.revision, resource, before, after, after))
        return after

    def _remove(self, resource: Resource, obj: JSON) -> JSON:
        metadata = obj["metadata"]
        before = self.objects(resource).pop((metadata.get("namespace", ""), metadata["name"]))
        last = self._stamp(obj)
        self._remember(Record(self.revision, resource, before, None, last))
        return last

    def _stamp(self, obj: JSON) -> JSON:
        self.revision += 1
        return obj | {"metadata": obj["metadata"] | {"resourceVersion": str(self.revision)}}

    def _remember(self, record: Record) -> None:
        self.history.append(record)
        for listener in tuple(self.listeners):
            listener(record)


def check_preconditions(obj: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Raise 409 if ``wanted`` names another uid or resourceVersion than the object has."""
    metadata = obj["metadata"]
    for name, field in (("UID", "uid"), ("ResourceVersion", "resourceVersion")):
        if (value := wanted.get(field)) and value != metadata[field]:
            message = f"Precondition failed: {name} in precondition: {value}, {name} in object meta: {metadata[field]}"
            raise RefusedError(409, "Conflict", f"Operation cannot be fulfilled: {message}")


def describe_binding(pod: JSON, binding: Mapping[str, Any]) -> JSON:
    """Return the pod after a Binding. Raise 409 for a pod that cannot be bound."""
    metadata = binding.get("metadata") or {}
    check_preconditions(pod, {"uid": metadata.get("uid", "")})
    name = pod["metadata"]["name"]
    if problem := _unbindable(pod):
        message = f'Operation cannot be fulfilled on pods/binding "{name}": pod {name} {problem}'
        raise RefusedError(409, "Conflict", message)
    scheduled = {"type": "PodScheduled", "status": "True"}
    others = [c for c in pod.get("status", {}).get("conditions", ()) if c.get("type") != "PodScheduled"]
    changed = merge(pod, {"status": {"conditions": [*others, scheduled], "nominatedNodeName": None}})
    told = {field: metadata.get(field) or {} for field in ("annotations", "labels")}
    annotated = merge(changed, {"metadata": told})
    bound: JSON = merge(annotated, {"spec": {"nodeName": binding["target"]["name"]}})
    return bound


def _unbindable(pod: Mapping[str, Any]) -> str:
    if pod["metadata"].get("deletionTimestamp"):
        return "is being deleted, cannot be assigned to a host"
    if node := pod.get("spec", {}).get("nodeName"):
        return f'is already assigned to node "{node}"'
    return "has non-empty .spec.schedulingGates" if pod.get("spec", {}).get("schedulingGates") else ""


def timestamp() -> str:
    """Return the current time in the API's format."""
    return write_time(time.time())
