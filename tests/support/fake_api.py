"""A fake ApiClient over dictionaries: the calls that the extender uses, without a socket, with faults on demand.

For Pods, Nodes and Reservations, each call behaves as with a real client of `FakeApiServer`
(``tests/contract/test_api_calls.py``). There is no watch, and of other objects only the applied conditions are
recorded.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, cast

from serried.api.level import FIRST_QUORUM, READY
from serried.api.names import GroupKey, Key
from serried.kube.client import ApiClient
from serried.kube.errors import ApiError, Fenced, Unavailable, api_error
from serried.kube.wire import BUDGETS, NODES, PODS, RESERVATIONS, Failure, Resource, Selection
from tests.support.patches import merge, merge_strategically
from tests.support.selectors import match_selectors
from tests.support.storage import BUDGET, RefusedError, check_preconditions, describe_binding

Raw = dict[str, Any]

_GANG = GroupKey("default", "g")
"""The gang of most tests."""


def error(status: int, reason: str = "") -> ApiError:
    """Return the error of a rejected call; status 0 means that there was no answer."""
    failure = Failure(status, reason or ("NotFound" if status == 404 else ""), "said the server")
    return api_error("CALL /path", failure) if status else Unavailable("CALL /path", failure)


def budget_refusal() -> ApiError:
    """Return the error of an eviction that a PodDisruptionBudget forbids."""
    return api_error("CALL /path", Failure(429, "TooManyRequests", "said the budget", causes=BUDGET))


@dataclass(frozen=True)
class Call:
    """One recorded call of the API."""

    verb: str
    resource: str
    name: str
    body: Mapping[str, Any]
    """The sent body, {} for reads."""


class FakeApi:
    """A fake API server. Its objects are in ``pods`` and ``records``; tests may change them at any time.

    ``before_bind`` is called before a Binding is carried out, ``before_write`` before a record is written.
    """

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.pods: dict[Key, Raw] = {}
        self.records: dict[Key, Raw] = {}
        self.nodes: dict[Key, Raw] = {}
        self.conditions: list[Raw] = []

        self.ready: list[Raw] = []
        """The applied conditions of type Ready."""

        self.first_quorums: list[Raw] = []
        """The applied conditions of type FirstQuorum; ``conditions`` has all others."""

        self.owners: dict[str, dict[Key, Raw]] = defaultdict(dict)
        """Objects of other kinds, such as Jobs, JobSets and Events, by the plural of their kind."""

        self.api_groups: set[str] = set()
        """The API groups that discovery lists, with version v1."""

        self.graceful: set[Key] = set()
        """Pods that get a deletionTimestamp when they are evicted or deleted; others are removed at once."""

        self.guarded: set[Key] = set()
        """Pods whose eviction a PodDisruptionBudget forbids."""

        self.budgets: dict[Key, Raw] = {}
        """The PodDisruptionBudgets."""

        self.before_bind: Callable[[Key], None] = lambda _: None
        self.before_write: Callable[[Mapping[str, Any]], None] = lambda _: None
        self._faults: dict[str, deque[tuple[Exception, bool]]] = defaultdict(deque)
        self._refusals: dict[tuple[str, str], Exception] = {}
        self._open: dict[str, asyncio.Event] = {}
        self._version = 0

    def client(self, may_write: Callable[[], bool] = lambda: True) -> ApiClient:
        """Return a client for the extender, which writes only while ``may_write`` (as `ApiClient.fenced`)."""
        return cast("ApiClient", _Fenced(self, may_write))

    # --- faults and recorded calls -----------------------------------------------------------------------------

    def fail(self, verb: str, *errors: Exception) -> None:
        """Let the next calls of ``verb`` do nothing and raise these errors, one each."""
        self._faults[verb].extend((each, False) for each in errors)

    def reject(self, verb: str, key: Key, refusal: Exception) -> None:
        """Let all calls of ``verb`` for this object do nothing and raise this error, until `recover`."""
        self._refusals[verb, key.name] = refusal

    def lose_answer(self, verb: str, seen: Exception | None = None) -> None:
        """Carry out the next call of ``verb``, but lose its answer: the caller gets an error."""
        self._faults[verb].append((seen or error(0), True))

    def hold(self, verb: str) -> None:
        """Let calls of ``verb`` wait until `release`."""
        self._open[verb] = asyncio.Event()

    def release(self, verb: str) -> None:
        """Let waiting calls of ``verb`` continue, and further ones pass."""
        self._open.pop(verb).set()

    def stop_holding(self, verb: str) -> None:
        """Let further calls of ``verb`` pass. Those that wait already keep waiting."""
        del self._open[verb]

    def recover(self) -> None:
        """Remove all faults."""
        self._faults.clear()
        self._refusals.clear()

    def list_calls(self, verb: str) -> list[Call]:
        """Return the calls of a verb so far."""
        return [call for call in self.calls if call.verb == verb]

    def list_evicted(self) -> list[str]:
        """Return the pods that were evicted or deleted, in order, once for each call."""
        return [call.name for call in self.calls if call.resource == "pods" and call.verb in ("evict", "delete")]

    def add_budget(self, allowed: int = 1000) -> None:
        """Create a PodDisruptionBudget of all pods, which allows this number of evictions."""
        metadata = {"name": "all", "namespace": "default", "uid": "budget-all"}
        status = {"disruptionsAllowed": allowed}
        self.budgets[Key("default", "all")] = {"metadata": metadata, "spec": {"selector": {}}, "status": status}

    def add_event(self, pod: str, component: str, reason: str, message: str) -> None:
        """Record an Event about a pod, written by a component such as cluster-autoscaler."""
        key = Key("default", f"{pod}.{len(self.owners['events'])}")
        self.owners["events"][key] = {
            "metadata": {"namespace": key.namespace, "name": key.name},
            "involvedObject": {"uid": self.pods[Key("default", pod)]["metadata"]["uid"]},
            "source": {"component": component},
            "reason": reason,
            "message": message,
            "lastTimestamp": f"2026-01-01T00:00:{len(self.owners['events']):02}Z",
        }

    def record_phase(self, group: GroupKey = _GANG) -> str | None:
        """Return the phase of a group's Reservation object; None if there is none."""
        record = self.records.get(group.object_key)
        return None if record is None else str(record["spec"]["phase"])

    async def _do(self, call: Call, change: Callable[[], Any]) -> Any:
        self.calls.append(call)
        if call.verb in self._open:
            await self._open[call.verb].wait()
        await asyncio.sleep(0)
        if (refusal := self._refusals.get((call.verb, call.name))) is not None:
            raise refusal
        if not self._faults[call.verb]:
            return _refuse_as_client(call, change)
        fault, done = self._faults[call.verb].popleft()
        if done:
            _refuse_as_client(call, change)
        raise fault

    # --- the calls of ApiClient --------------------------------------------------------------------------------

    async def get(self, resource: Resource, namespace: str, name: str) -> Raw:
        """Return an object."""
        call = Call("get", resource.plural, name, {})
        found: Raw = await self._do(call, lambda: deepcopy(self._find(resource, Key(namespace, name))))
        return found

    async def read(self, path: str) -> Raw:
        """Return the discovery document of the served API groups."""
        groups = [{"name": name, "versions": [{"version": "v1"}]} for name in sorted(self.api_groups)]
        found: Raw = await self._do(Call("read", path, "", {}), lambda: {"groups": groups})
        return found

    async def list_all(self, resource: Resource) -> list[Raw]:
        """Return every object of a resource."""
        call = Call("list", resource.plural, "", {})
        items: list[Raw] = await self._do(call, lambda: deepcopy(list(self._objects(resource).values())))
        return items

    async def items(self, resource: Resource, selection: Selection) -> AsyncGenerator[Raw, None]:
        """Yield the selected objects of a namespace."""
        match = match_selectors(selection.labels, selection.fields)

        def select() -> list[Raw]:
            found = self._objects(resource).items()
            return [deepcopy(raw) for key, raw in found if key.namespace == selection.namespace and match(raw)]

        items: list[Raw] = await self._do(Call("list", resource.plural, selection.fields, {}), select)
        for item in items:
            yield item

    async def create(self, resource: Resource, namespace: str, obj: Mapping[str, Any]) -> Raw:
        """Create an object and return it."""
        key = Key(namespace, obj["metadata"]["name"])
        self.before_write(obj)

        def change() -> Raw:
            if key in self._objects(resource):
                raise RefusedError(409, "AlreadyExists", f"{resource} {key} already exists")
            metadata = {"namespace": namespace, "uid": f"record-{self._version + 1}", **obj["metadata"]}
            return self._store(resource, key, {**obj, "metadata": metadata})

        created: Raw = await self._do(Call("create", resource.plural, key.name, deepcopy(dict(obj))), change)
        return created

    async def replace(self, resource: Resource, obj: Mapping[str, Any]) -> Raw:
        """Replace an object and return it. Raise a conflict if its uid or resourceVersion differs from ``obj``'s."""
        metadata = obj["metadata"]
        key = Key(metadata["namespace"], metadata["name"])
        self.before_write(obj)

        def change() -> Raw:
            found = self._find(resource, key)
            check_preconditions(found, metadata)
            return self._store(resource, key, {**obj, "metadata": {**metadata, "uid": found["metadata"]["uid"]}})

        written: Raw = await self._do(Call("replace", resource.plural, key.name, deepcopy(dict(obj))), change)
        return written

    async def delete(self, resource: Resource, namespace: str, name: str, uid: str = "", version: str = "") -> Raw:
        """Delete an object. Raise a conflict if its uid or resourceVersion differs from a given one."""
        key = Key(namespace, name)

        def change() -> Raw:
            found = self._find(resource, key)
            check_preconditions(found, {"uid": uid, "resourceVersion": version})
            return self._end(key) if resource == PODS else self._objects(resource).pop(key)

        gone: Raw = await self._do(Call("delete", resource.plural, name, {}), change)
        return gone

    async def patch_merge(
        self, resource: Resource, namespace: str, name: str, patch: Mapping[str, Any], subresource: str = ""
    ) -> Raw:
        """Apply a merge patch to the status, or to everything else. Return the object."""
        key = Key(namespace, name)

        def change() -> Raw:
            found = self._find(resource, key)
            check_preconditions(found, patch.get("metadata", {}))
            wanted = {part: value for part, value in patch.items() if (part == "status") == (subresource == "status")}
            if resource == NODES:  # of which the version counts
                return self._store(resource, key, merge(found, wanted))
            found.update(merge(found, wanted))
            return deepcopy(found)

        verb = "nominate" if subresource == "status" else "ungate" if "spec" in patch else "activate"
        verb = "annotate" if resource == NODES else verb
        patched: Raw = await self._do(Call(verb, resource.plural, name, dict(patch)), change)
        return patched

    async def apply(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        obj: Mapping[str, Any],
        subresource: str = "",
        manager: str = "serried",
    ) -> Raw:
        """Record the conditions that are applied to an object's status."""

        def change() -> Raw:
            apart = {READY: self.ready, FIRST_QUORUM: self.first_quorums}
            for each in obj[subresource]["conditions"]:
                apart.get(each["type"], self.conditions).append(each)
            return {"metadata": {"name": name, "namespace": namespace}, **obj}

        applied: Raw = await self._do(Call("apply", resource.plural, name, dict(obj)), change)
        return applied

    async def patch_strategic(
        self, resource: Resource, namespace: str, name: str, patch: Mapping[str, Any], subresource: str = ""
    ) -> Raw:
        """Apply a strategic merge patch to a subresource, and return the object."""
        key = Key(namespace, name)

        def change() -> Raw:
            found = self._find(resource, key)
            check_preconditions(found, patch.get("metadata", {}))
            found[subresource] = merge_strategically(found.get(subresource), patch[subresource])
            self.conditions.extend(patch[subresource]["conditions"])
            return deepcopy(found)

        patched: Raw = await self._do(Call("mark", resource.plural, name, dict(patch)), change)
        return patched

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
        """Bind the pod of this uid to a node. Succeed also if it is bound there already."""
        before()
        key = Key(namespace, name)
        metadata = {"uid": uid, "annotations": dict(annotations or {}), "labels": dict(labels or {})}
        binding = {"metadata": metadata, "target": {"name": node}}

        def change() -> None:
            found = self._find(PODS, key)
            if (found["metadata"]["uid"], found["spec"].get("nodeName")) == (uid, node):
                return
            bound = describe_binding(found, binding)
            self.before_bind(key)
            found.update(bound)

        await self._do(Call("bind", "pods", name, {"uid": uid, "node": node}), change)

    async def evict(self, namespace: str, name: str, uid: str) -> None:
        """Evict the pod of this uid: remove it, or set its deletionTimestamp if it is in ``graceful``."""
        key = Key(namespace, name)

        def change() -> None:
            found = self._find(PODS, key)
            check_preconditions(found, {"uid": uid})
            self._check_budget(key)
            for status in self._list_statuses():
                status["disruptionsAllowed"] -= 1
            self._end(key)

        await self._do(Call("evict", "pods", name, {"uid": uid}), change)

    async def rehearse_eviction(self, namespace: str, name: str, uid: str) -> None:
        """Raise the error that an eviction of the pod of this uid would have, and change nothing."""

        def check() -> None:
            check_preconditions(self._find(PODS, Key(namespace, name)), {"uid": uid})
            self._check_budget(Key(namespace, name))

        await self._do(Call("rehearse", "pods", name, {"uid": uid}), check)

    def _end(self, key: Key) -> Raw:
        found = self.pods[key]
        if key in self.graceful:
            found["metadata"].setdefault("deletionTimestamp", "2026-01-01T00:00:00Z")
        else:
            del self.pods[key]
        return found

    def _check_budget(self, key: Key) -> None:
        if self.pods[key].get("status", {}).get("phase") == "Pending":
            return
        if key in self.guarded or any(status["disruptionsAllowed"] <= 0 for status in self._list_statuses()):
            raise RefusedError(429, "TooManyRequests", "cannot evict the pod", BUDGET)

    def _list_statuses(self) -> list[Raw]:
        """Return the statuses of all budgets. They are those of `add_budget`, which select every pod."""
        return [each["status"] for each in self.budgets.values() if "status" in each]

    # --- objects -----------------------------------------------------------------------------------------------

    def _objects(self, resource: Resource) -> dict[Key, Raw]:
        objects = {
            PODS.plural: self.pods,
            RESERVATIONS.plural: self.records,
            BUDGETS.plural: self.budgets,
            NODES.plural: self.nodes,
        }
        return objects[resource.plural] if resource.plural in objects else self.owners[resource.plural]

    def _find(self, resource: Resource, key: Key) -> Raw:
        found = self._objects(resource).get(key)
        if found is None:
            raise RefusedError(404, "NotFound", f"{resource} {key} not found")
        return found

    def _store(self, resource: Resource, key: Key, obj: Mapping[str, Any]) -> Raw:
        before, stored = self._objects(resource).get(key), deepcopy(dict(obj))
        if before is not None:
            stored["metadata"]["resourceVersion"] = before["metadata"].get("resourceVersion", "")
        if stored != before:
            self._version += 1
            stored["metadata"]["resourceVersion"] = str(self._version)
            self._objects(resource)[key] = stored
        return deepcopy(stored)


class _Fenced:
    """The calls of a `FakeApi`. Those that change an object raise Fenced unless ``may_write`` returns True."""

    def __init__(self, api: FakeApi, may_write: Callable[[], bool]) -> None:
        self._api = api
        self._may_write = may_write

    def __getattr__(self, name: str) -> Any:
        if name not in {"get", "items", "list_all"} and not self._may_write():
            raise Fenced(name, Failure(0, "NotLeading", "not sent"))
        return getattr(self._api, name)


def _refuse_as_client(call: Call, change: Callable[[], Any]) -> Any:
    try:
        return change()
    except RefusedError as refused:
        raise api_error(f"{call.verb} {call.resource}", refused.failure) from None
