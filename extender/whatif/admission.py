"""Pods that do not exist, as admission would let them in."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from serried.cluster.store import Store
from serried.decode.fields import read_map, read_objects, read_text
from serried.decode.malformed import Malformed
from serried.decode.pods import decode_pod
from serried.model.pod import Pod
from serried.model.priority import PriorityClass

Decoded = TypeVar("Decoded")


def make_pod(place: str, template: Mapping[str, Any], metadata: Mapping[str, Any], store: Store) -> Pod:
    """A pod of a template. Raises ValueError: what is wrong with it, and what to do; ``place`` says where it stands."""
    spec = template.get("spec")
    if not isinstance(spec, dict):
        raise ValueError(f"{place}: spec is missing")  # noqa: TRY004 - what people have sent
    try:
        admitted = {**default_requests(_admit(spec, store.priority_classes)), "nodeName": ""}
    except ValueError as problem:
        raise ValueError(f"{place}: {problem}") from None
    # Claims that are made from templates exist before the scheduler tries the pod.
    pod = replace(usable(place, decode_pod({"metadata": metadata, "spec": admitted})), unclaimed="")
    if pod.scheduler not in store.schedulers:
        names = " or ".join(sorted(store.schedulers))
        raise ValueError(
            f"{place}: schedulerName is {pod.scheduler}, which Serried does not serve; it has to be {names}"
        )
    return store.show_pod(pod)


def default_requests(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A pod's spec with the requests that an API server gives it: limits stand for requests that are not there.

    As SetDefaults_Pod and defaultPodRequests of 1.37 (pkg/apis/core/v1/defaults.go).
    """
    said = dict(spec)
    for name in ("containers", "initContainers"):
        if spec.get(name) is not None:
            said[name] = [_default_container(each) for each in read_objects(spec, name)]
    containers = [*read_objects(said, "containers"), *read_objects(said, "initContainers")]
    asked = {key for each in containers for key in read_map(read_map(each, "resources"), "requests")}
    resources = read_map(spec, "resources")
    # What containers ask for stands for the pod's own request, but for pages that nobody may have twice.
    open_ = {
        key: amount
        for key, amount in read_map(resources, "limits").items()
        if key.startswith("hugepages-") or key not in asked
    }
    if open_:
        said["resources"] = {**resources, "requests": {**open_, **read_map(resources, "requests")}}
    return said


def _default_container(container: Mapping[str, Any]) -> dict[str, Any]:
    resources = read_map(container, "resources")
    limits = read_map(resources, "limits")
    if not limits:
        return dict(container)
    return {**container, "resources": {**resources, "requests": {**limits, **read_map(resources, "requests")}}}


def usable(place: str, found: Decoded | Malformed) -> Decoded:
    """What was decoded. Raises ValueError for an object with a field that cannot be understood."""
    if isinstance(found, Malformed):
        raise ValueError(f"{place}: {found.problem}")  # noqa: TRY004 - what people have sent
    return found


def _admit(spec: Mapping[str, Any], classes: Mapping[str, PriorityClass]) -> dict[str, Any]:
    name = read_text(spec, "priorityClassName")
    default = min((each for each in classes.values() if each.is_default), key=lambda each: each.value, default=None)
    found = classes.get(name) if name else default
    if name and found is None and spec.get("priority") is None:
        raise ValueError(f"PriorityClass {name} does not exist; create it, or name another one")
    said: dict[str, Any] = {}
    if found is not None:
        said["priority"] = found.value
        if found.preemption is not None:
            said["preemptionPolicy"] = found.preemption.value
    return {**said, **{key: value for key, value in spec.items() if value is not None}}
