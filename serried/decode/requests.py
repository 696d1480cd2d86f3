"""A pod's requests, as kube-scheduler counts them (component-helpers resource/helpers.go: PodRequests).

They are the sum of the containers and the sidecars, or the peak of the init phase where that is more. A pod-level
request replaces it for its resource, and the overhead comes on top. While a running pod is being resized, the amounts
that the kubelet has granted and put into effect count as well (KEP-1287). Not counted are requests of device claims, a
resize of pod-level resources in flight, and our markers, which the scheduler ignores.
"""

from sys import intern

from serried.decode.fields import Raw, read_map, read_objects, read_text
from serried.decode.quantity import parse_cpu, parse_quantity
from serried.model.pod import MARKERS
from serried.model.resources import PODS

Amounts = dict[str, int]


def read_amounts(obj: Raw, name: str) -> Amounts:
    """The resource list at ``name``: cpu in millicores, all else in base units. ValueError on a bad quantity."""
    return {intern(resource): _parse(resource, quantity) for resource, quantity in read_map(obj, name).items()}


def pod_requests(pod: Raw) -> tuple[tuple[str, int], ...]:
    """The requests of a raw pod, sorted by name, without zeros, always with one ``pods``."""
    spec = read_map(pod, "spec")
    status = read_map(pod, "status")
    containers = read_objects(spec, "containers")
    inits = read_objects(spec, "initContainers")
    asked = _aggregate([*map(_requests_of, containers)], [*map(_requests_of, inits)], inits)
    asked = _with_resize(asked, containers, inits, status)
    for resource, amount in read_amounts(read_map(spec, "resources"), "requests").items():
        if resource in {"cpu", "memory"} or resource.startswith("hugepages-"):
            asked[resource] = amount
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


def _with_resize(asked: Amounts, containers: list[Raw], inits: list[Raw], status: Raw) -> Amounts:
    """``asked``, or more while the kubelet's granted or effective amounts differ from the spec."""
    known = {
        read_text(entry, "name"): entry
        for field in ("containerStatuses", "initContainerStatuses")
        for entry in read_objects(status, field)
    }
    if not known:
        return asked
    # Names are unique. Where they are not, nobody has checked the pod, and no status is read a thousand times.
    groups = [[(each, known.pop(read_text(each, "name"), {})) for each in group] for group in (containers, inits)]
    if all(_is_settled(container, said) for group in groups for container, said in group):
        return asked
    refused = _resize_refused(status)
    result: Amounts = {} if refused else asked
    for read in (_granted, _effective):
        main, init = ([read(said, {} if refused else _requests_of(each)) for each, said in group] for group in groups)
        _raise_to(result, _aggregate(main, init, inits))
    return result


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
    return _granted(status, otherwise) if resources.get("requests") is None else read_amounts(resources, "requests")


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
