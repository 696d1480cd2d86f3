"""A pod's requests, as kube-scheduler counts them (component-helpers resource/helpers.go: PodRequests).

They are the sum of the containers and the sidecars, or the peak of the init phase where that is more. A pod-level
request replaces it for its resource, and the overhead comes on top. While a running pod is being resized, the amounts
that the kubelet has granted and put into effect count as well (KEP-1287, KEP-5419), by the rules of the version
(`ResizeRule`). Not counted are requests of device claims, and our markers, which the scheduler ignores.

What the kubelet reports of pod-level resources is in the API only where InPlacePodLevelResourcesVerticalScaling is on
(in 1.35 it is off by default), so wherever it is reported it counts.
"""

from collections.abc import Callable, Iterable, Mapping
from sys import intern
from types import MappingProxyType
from typing import NamedTuple

from serried.decode.fields import Raw, read_map, read_objects, read_text
from serried.decode.quantity import parse_cpu, parse_quantity
from serried.model.level import ResizeRule
from serried.model.pod import MARKERS
from serried.model.resources import PODS

Amounts = dict[str, int]

_Reported = list[tuple[Raw, Raw]]
"""Containers, each with its status; {} for one without."""


class _Resize(NamedTuple):
    """A pod of which the kubelet reports other amounts than are desired."""

    desired: Amounts
    """The sum of its containers, as the spec has it."""

    pod_level: Amounts
    """The same of its pod-level requests."""

    main: _Reported
    init: _Reported
    status: Raw
    refused: bool
    """Whether the kubelet will never grant what is desired."""


def read_amounts(obj: Raw, name: str) -> Amounts:
    """The resource list at ``name``: cpu in millicores, all else in base units. ValueError on a bad quantity."""
    return {intern(resource): _parse(resource, quantity) for resource, quantity in read_map(obj, name).items()}


def pod_requests(pod: Raw, rule: ResizeRule = ResizeRule.LARGEST) -> tuple[tuple[str, int], ...]:
    """The requests of a raw pod, sorted by name, without zeros, always with one ``pods``."""
    spec = read_map(pod, "spec")
    containers = read_objects(spec, "containers")
    inits = read_objects(spec, "initContainers")
    asked = _aggregate([*map(_requests_of, containers)], [*map(_requests_of, inits)], inits)
    pod_level = read_amounts(read_map(spec, "resources"), "requests")
    resize = _find_resize(asked, pod_level, containers, inits, read_map(pod, "status"))
    if resize is None:
        _replace(asked, pod_level)
    else:
        asked = {}
        for count in _COUNTS[rule]:
            _raise_to(asked, count(resize))
    _add(asked, read_amounts(spec, "overhead"))
    asked[PODS] = 1
    return tuple(sorted(item for item in asked.items() if item[1] > 0 and item[0] not in MARKERS))


def is_marked(spec: Raw) -> bool:
    """Whether the containers name all markers, in any quantity, as kube-scheduler looks (extender.go: IsInterested)."""
    named: set[str] = set()
    for container in (*read_objects(spec, "containers"), *read_objects(spec, "initContainers")):
        resources = read_map(container, "resources")
        for amounts in (read_map(resources, "limits"), read_map(resources, "requests")):
            named.update(MARKERS & amounts.keys())
    return named >= MARKERS


def _requests_of(container: Raw) -> Amounts:
    return read_amounts(read_map(container, "resources"), "requests")


def _aggregate(main: list[Amounts], init: list[Amounts], inits: list[Raw]) -> Amounts:
    """The larger of the main phase and the init phase. ``inits`` are the containers of ``init``: some are sidecars."""
    asked: Amounts = {}
    for amounts in main:
        _add(asked, amounts)
    sidecars: Amounts = {}
    peak: Amounts = {}
    for container, amounts in zip(inits, init, strict=True):
        # What a container does not ask for is at its peak already: the sidecars before it have raised that.
        beside = {resource: sidecars.get(resource, 0) + amount for resource, amount in amounts.items()}
        _raise_to(peak, beside)
        if container.get("restartPolicy") == "Always":
            sidecars.update(beside)
    _add(asked, sidecars)
    _raise_to(asked, peak)
    return asked


def _find_resize(
    desired: Amounts, pod_level: Amounts, containers: list[Raw], inits: list[Raw], status: Raw
) -> _Resize | None:
    """What there is to count beside the spec; None if the kubelet reports nothing else."""
    known = {
        read_text(entry, "name"): entry
        for field in ("containerStatuses", "initContainerStatuses")
        for entry in read_objects(status, field)
    }
    whole = status.get("allocatedResources") is not None or status.get("resources") is not None
    if not known and not whole:
        return None
    # Names are unique. Where they are not, nobody has checked the pod, and no status is read a thousand times.
    main, init = ([(each, known.pop(read_text(each, "name"), {})) for each in group] for group in (containers, inits))
    if not whole and all(_is_settled(container, said) for container, said in (*main, *init)):
        return None
    return _Resize(desired, pod_level, main, init, status, _resize_refused(status))


def _count_sums(resize: _Resize) -> Amounts:
    """As since 1.37: the largest of the sums that are desired, granted and in effect."""
    asked: Amounts = {} if resize.refused else dict(resize.desired)
    status = resize.status
    if status.get("allocatedResources") is not None and read_map(status, "resources").get("requests") is not None:
        for amounts in _read_pod_level(status):  # they are sums of all containers
            _raise_to(asked, amounts)
    else:
        for read in (_granted, _effective):
            _raise_to(asked, _aggregate_with(resize, read))
    wanted = resize.pod_level
    if wanted and status.get("resources") is not None:
        wanted = {} if resize.refused else dict(wanted)
        for amounts in _read_pod_level(status):
            _raise_to(wanted, amounts)
    _replace(asked, wanted)
    return asked


def _count_containers(resize: _Resize) -> Amounts:
    """As in 1.35 and 1.36: the sum of what is the largest for each container that goes on running."""
    main = [_largest(container, said, refused=resize.refused) for container, said in resize.main]
    init = [
        _largest(each, said if each.get("restartPolicy") == "Always" else {}, refused=resize.refused)
        for each, said in resize.init
    ]
    asked = _aggregate(main, init, [container for container, _ in resize.init])
    wanted = resize.pod_level
    if resize.status.get("resources") is not None:
        effective: Amounts = {} if resize.refused else dict(wanted)
        for amounts in _read_pod_level(resize.status):
            _raise_to(effective, amounts)
        wanted = {resource: effective.get(resource, 0) for resource in wanted}
    _replace(asked, wanted)
    return asked


_COUNTS: Mapping[ResizeRule, tuple[Callable[[_Resize], Amounts], ...]] = MappingProxyType(
    {
        ResizeRule.SUMS: (_count_sums,),
        ResizeRule.CONTAINERS: (_count_containers,),
        ResizeRule.LARGEST: (_count_sums, _count_containers),
    }
)


def _aggregate_with(resize: _Resize, read: Callable[[Raw, Amounts], Amounts]) -> Amounts:
    main, init = (
        [read(said, {} if resize.refused else _requests_of(each)) for each, said in group]
        for group in (resize.main, resize.init)
    )
    return _aggregate(main, init, [each for each, _ in resize.init])


def _read_pod_level(status: Raw) -> Iterable[Amounts]:
    """What the kubelet has granted to a pod as a whole, and what is in effect."""
    return read_amounts(status, "allocatedResources"), read_amounts(read_map(status, "resources"), "requests")


def _replace(asked: Amounts, pod_level: Amounts) -> None:
    """Pod-level amounts stand in the place of the containers' own."""
    for resource, amount in pod_level.items():
        if resource in {"cpu", "memory"} or resource.startswith("hugepages-"):
            asked[resource] = amount


def _is_settled(container: Raw, status: Raw) -> bool:
    """Whether the kubelet reports the amounts of the spec. Both are written alike, so their texts are compared."""
    asked = read_map(container, "resources").get("requests")
    reports = status.get("allocatedResources"), read_map(status, "resources").get("requests")
    return all(report is None or report == asked for report in reports)


def _granted(status: Raw, otherwise: Amounts) -> Amounts:
    """The amounts that the kubelet has granted to a container; ``otherwise`` if it reports none."""
    return otherwise if status.get("allocatedResources") is None else read_amounts(status, "allocatedResources")


def _effective(status: Raw, otherwise: Amounts) -> Amounts:
    """The amounts that a container runs with; the granted ones if the kubelet reports none."""
    resources = read_map(status, "resources")
    if resources.get("requests") is None:
        return _granted(status, otherwise)
    return read_amounts(resources, "requests")


def _largest(container: Raw, status: Raw, *, refused: bool) -> Amounts:
    """The largest of what a container desires, is granted and runs with; what it desires, if the last is not known."""
    desired = _requests_of(container)
    if status.get("resources") is None:
        return desired
    amounts: Amounts = {} if refused else desired
    _raise_to(amounts, read_amounts(status, "allocatedResources"))
    _raise_to(amounts, read_amounts(read_map(status, "resources"), "requests"))
    return amounts


def _resize_refused(status: Raw) -> bool:
    pending = [c for c in read_objects(status, "conditions") if c.get("type") == "PodResizePending"]
    return bool(pending) and pending[0].get("reason") == "Infeasible"


def _parse(resource: str, quantity: object) -> int:
    if isinstance(quantity, bool) or not isinstance(quantity, str | int | float):
        raise ValueError(f"{resource} is not a quantity")  # noqa: TRY004  # one kind of error reaches attempt
    text = quantity if isinstance(quantity, str) else repr(quantity)
    return parse_cpu(text) if resource == "cpu" else parse_quantity(text)


def _add(total: Amounts, more: Amounts) -> None:
    for resource, amount in more.items():
        total[resource] = total.get(resource, 0) + amount


def _raise_to(total: Amounts, floor: Amounts) -> None:
    for resource, amount in floor.items():
        if amount > total.get(resource, 0):
            total[resource] = amount
