"""Pods that do not exist, as admission would let them in."""

from collections.abc import Mapping
from typing import Any, TypeVar

from serried.cluster.store import Store
from serried.decode.fields import read_text
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
    admitted = {**_admit(place, spec, store.priority_classes), "nodeName": ""}
    pod = usable(place, decode_pod({"metadata": metadata, "spec": admitted}))
    if pod.scheduler not in store.schedulers:
        names = " or ".join(sorted(store.schedulers))
        raise ValueError(
            f"{place}: schedulerName is {pod.scheduler}, which Serried does not serve; it has to be {names}"
        )
    return store.show_pod(pod)


def usable(place: str, found: Decoded | Malformed) -> Decoded:
    """What was decoded. Raises ValueError for an object with a field that cannot be understood."""
    if isinstance(found, Malformed):
        raise ValueError(f"{place}: {found.problem}")  # noqa: TRY004 - what people have sent
    return found


def _admit(place: str, spec: Mapping[str, Any], classes: Mapping[str, PriorityClass]) -> dict[str, Any]:
    name = read_text(spec, "priorityClassName")
    default = min((each for each in classes.values() if each.is_default), key=lambda each: each.value, default=None)
    found = classes.get(name) if name else default
    if name and found is None and spec.get("priority") is None:
        raise ValueError(f"{place}: PriorityClass {name} does not exist; create it, or name another one")
    said: dict[str, Any] = {}
    if found is not None:
        said["priority"] = found.value
        if found.preemption is not None:
            said["preemptionPolicy"] = found.preemption.value
    return {**said, **{key: value for key, value in spec.items() if value is not None}}
