"""Amounts of resources as integers, Kubernetes quantities, and a pod's requests, as kube-scheduler counts them.

Units: ``cpu`` in millicores, every other resource in its base unit (bytes, pieces). ``pods`` is a resource like any
other. Quantities are ``ParseQuantity``, ``Value`` and ``MilliValue`` (apimachinery 0.37, pkg/api/resource), which round
up. Upstream's results are kept also where an amount does not fit into 64 bits: whoever counted better would hold pods
that kube-scheduler binds.

Requests (component-helpers resource/helpers.go: PodRequests) are the sum of containers and sidecars, or the peak of the
init phase where that is more. A pod-level request replaces it for its resource, and the overhead comes on top. During a
resize, what the kubelet has granted and put into effect counts as well (KEP-1287, KEP-5419), by the version's rules
(`ResizeRule`). Device claims and our markers are not counted.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from sys import intern
from types import MappingProxyType
from typing import NamedTuple

from serried.api.level import ResizeRule
from serried.api.names import Raw, read_map, read_objects, read_text

_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}

# Nothing is tried twice, as in upstream's scanner: a text of a million digits may come from anybody.
_QUANTITY = re.compile(r"([+-]?+)(0*+)([0-9]*+)(?:\.([0-9]*+))?+([eEinumkKMGTP]*+[+-]?+[0-9]*+)")
_EXPONENT = re.compile(r"[eE]([+-]?+)(?=[0-9])0*+([0-9]{0,19}+)")

_MOST = (1 << 63) - 1
_MOST_DIGITS = 18
"""A number of so many digits is an int64 for sure (maxInt64Factors)."""

_MOST_BINARY_DIGITS = 14
_NANO = -9
"""The power of ten of what is counted in: what is smaller is rounded up to it."""

_UNCHECKED = frozenset({1, 2, 3, 6, 9})
"""Powers of ten by which upstream multiplies without a look at the overflow."""

_SAFE_POWER = 100
"""This power of ten, and each higher one, leaves nothing in 64 bits, whatever it is multiplied with."""

_SAFE_PLACES = 70
"""So many decimals say how the amount is rounded, if the last one is not 0 where any further one is not."""

_SAFE_DIGITS = 200
"""So many digits, at ``_SAFE_PLACES`` decimals at most, decide what is left in 64 bits."""

_MAX_KEPT = 40
"""In characters. Longer texts are not kept: they are rare, and may be very long."""


def parse_quantity(text: str) -> int:
    """The amount in base units (bytes, pieces), rounded up. ValueError if ``text`` is no quantity."""
    return _parse_kept(text, 0) if len(text) <= _MAX_KEPT else _parse(text, 0)


def parse_cpu(text: str) -> int:
    """The amount in thousandths (millicores), rounded up. ValueError if ``text`` is no quantity."""
    return _parse_kept(text, 3) if len(text) <= _MAX_KEPT else _parse(text, 3)


def parse_exact(text: str) -> int:
    """The amount in billionths, as quantities are compared (Quantity.Cmp). ValueError if ``text`` is no quantity."""
    parse_quantity(text)
    found = _QUANTITY.fullmatch(text)
    sign, _, whole, fraction, suffix = found.groups(default="") if found else ("", "", "", "", "")
    ten, two = _read_suffix(suffix)
    amount = _round_up(whole + fraction, _wrap(ten - len(fraction), 32), two)
    amount = min(amount, _MOST * 10**-_NANO) if two else amount
    return -amount if sign == "-" else amount


def _parse(text: str, places: int) -> int:
    found = _QUANTITY.fullmatch(text)
    if not text or found is None:
        raise ValueError(f"{text[:_MAX_KEPT]!r} is not a quantity")
    sign, zeros, whole, fraction, suffix = found.groups(default="")
    ten, two = _read_suffix(suffix)
    scale = _wrap(ten - len(fraction), 32)
    if _is_small(len(whole or "0"), len(fraction), two) and scale >= _NANO:
        amount = int((whole or "0") + fraction) << two
        return _shift(-amount if sign == "-" else amount, scale + places)
    if not zeros + whole + fraction:
        raise ValueError(f"{text[:_MAX_KEPT]!r} is a quantity without a number")
    amount = _round_up(whole + fraction, scale, two)
    if two and amount > _MOST * 10**-_NANO:
        return _wrap((-_MOST if sign == "-" else _MOST) * 10**places, 64)
    return _shift_down(-amount if sign == "-" else amount, -_NANO - places)


_parse_kept = lru_cache(maxsize=32768)(_parse)


def _read_suffix(suffix: str) -> tuple[int, int]:
    """The powers of ten and of two by which the number is multiplied."""
    if suffix in _DECIMAL:
        return _DECIMAL[suffix], 0
    if suffix in _BINARY:
        return 0, _BINARY[suffix]
    found = _EXPONENT.fullmatch(suffix)
    exponent = int(f"{found[1]}0{found[2]}") if found else _MOST + 1
    if not -_MOST - 1 <= exponent <= _MOST:
        raise ValueError(f"{suffix[:_MAX_KEPT]!r} is an unknown suffix of a quantity")
    return _wrap(exponent, 32), 0


def _is_small(whole: int, fraction: int, two: int) -> bool:
    """Whether upstream counts with an int64, by the numbers of digits; otherwise it has no limit (inf.Dec)."""
    if two:
        return fraction == 0 and whole + two * 3 // 10 <= _MOST_BINARY_DIGITS
    return whole + fraction <= _MOST_DIGITS


def _shift(amount: int, power: int) -> int:
    """``amount * 10**power`` as upstream's int64 has it, rounded away from zero (int64Amount.AsScaledInt64)."""
    if power < 0:
        size: int = -(-abs(amount) // 10**-power)
        return -size if amount < 0 else size
    power = _wrap(power, 32)
    product: int = amount * 10 ** max(0, min(power, _SAFE_POWER))
    if power in _UNCHECKED:
        return _wrap(product, 64)
    return product if abs(product) <= _MOST else 0


def _round_up(digits: str, scale: int, two: int) -> int:
    """``digits * 2**two * 10**scale``, up to the next billionth, in billionths.

    Of an amount far too large for 64 bits, the result is another one of which the same is left in them. This takes time
    in proportion to the length, which Python's own integers do not.
    """
    if scale < -_SAFE_PLACES:
        cut = max(0, len(digits) - (-scale - _SAFE_PLACES + 1))
        digits, scale = digits[:cut] + ("1" if digits[cut:].strip("0") else "0"), -_SAFE_PLACES
    digits = digits.lstrip("0")
    if len(digits) > _SAFE_DIGITS:
        digits = "1" + digits[-_SAFE_DIGITS:]
    amount = int(digits or "0") << two
    power = min(scale, _SAFE_POWER) - _NANO
    factor: int = 10 ** abs(power)
    return amount * factor if power >= 0 else -(-amount // factor)


def _shift_down(amount: int, places: int) -> int:
    """``amount / 10**places`` as upstream rounds it: up where it is positive, and by chance where not (scaledValue)."""
    divisor: int = 10**places
    if amount >= _MOST:
        return _wrap(-(-amount // divisor), 64)
    left = _wrap(amount, 64)
    size, rest = divmod(abs(left), divisor)
    return (-size if left < 0 else size) + bool(rest)


def _wrap(number: int, bits: int) -> int:
    """What is left of a number in a signed integer of so many bits."""
    half = 1 << bits - 1
    return (number + half) % (2 * half) - half


MARKERS = frozenset({"scheduling.serried.dev/member", "scheduling.serried.dev/member-bind"})
"""Extended resources that no node has: in an isolated installation the scheduler asks only about pods that name them.

One for filter and preempt, one for bind: kube-scheduler takes no name in two extender entries.
"""


Resources = Mapping[str, int]
"""Resource name to amount; an absent name is 0. Never mutated once shared."""

PODS = "pods"

SHARES = 1 << 16
"""How much every node has of a thing whose name has a colon, which no resource's name can have.

These are no resources: two pods that together ask for more of one than this are in each other's way.
"""

ONCE = "once:"
"""Before the name of a claim that one pod at a time may use: its user has all there is of it on its node."""

ATTACHED = "attach:"
"""Before the name of a CSI driver: how many of its volumes a node takes (NodeVolumeLimits)."""

CHOSEN = "volume:"
"""Before the name of what a claim asks of the volume that it is to get: a planned pod takes one such volume."""

PROVIDED = "provided:"
"""Before the name of what a node may have without showing it: an extended resource, or the devices of a claim."""

DEVICES = "devices:"
"""Before the name of devices that claims ask for: a node that shows none has none."""

SETS = DEVICES + "sets of "
"""Before the name of devices that only a search finds: how many there would be if others had none is not known."""

DEVICE_CLASS_PREFIX = "deviceclass.resource.kubernetes.io/"
"""With a DeviceClass's name behind it, the resource that this class provides whatever else it says."""

UNLIMITED = 1 << 62
"""How much of that a node counts as having that shows none: what there is, only kube-scheduler knows."""


def capacity(allocatable: Resources, name: str) -> int:
    """How much a node has of a resource, of a thing that keeps pods apart, or of what it need not show."""
    amount = allocatable.get(name)
    if amount is not None:
        return amount
    if ":" not in name or name.startswith(DEVICES):
        return 0
    return allocatable.get(name[len(PROVIDED) :]) or UNLIMITED if name.startswith(PROVIDED) else SHARES


def is_extended(name: str) -> bool:
    """Whether a resource is one that only a device plugin or a DeviceClass can bring to a node.

    As kube-scheduler's IsDRAExtendedResourceName: a domain other than kubernetes.io, or the prefix of device classes.
    """
    if "/" not in name or ":" in name:
        return False
    return "kubernetes.io/" not in name or name.startswith(DEVICE_CLASS_PREFIX)


def add(left: Resources, right: Resources) -> dict[str, int]:
    """The sum, name by name."""
    total = dict(left)
    for name, amount in right.items():
        total[name] = total.get(name, 0) + amount
    return total


def subtract(amounts: Resources, less: Resources) -> dict[str, int]:
    """What is left of ``amounts``, name by name; names that only ``less`` has are left out."""
    return {name: amount - less.get(name, 0) for name, amount in amounts.items()}


def total(parts: Iterable[Resources]) -> dict[str, int]:
    """The sum of any number of amounts; empty for none."""
    result: dict[str, int] = {}
    for part in parts:
        for name, amount in part.items():
            result[name] = result.get(name, 0) + amount
    return result


def count_slots(allocatable: Resources, used: Resources, request: Resources) -> int:
    """How many times ``request`` fits into ``allocatable - used``; 0 if over-committed.

    Resources that are not requested do not matter, as in NodeResourcesFit. A request always names ``pods``,
    so the result is finite.
    """
    # This is the planner's innermost loop: ``capacity`` is called for the few names only that a node does not have.
    slots: int | None = None
    for name, amount in request.items():
        if amount <= 0:
            continue
        there = allocatable.get(name)
        if there is None:
            there = capacity(allocatable, name)
        fit = (there - used.get(name, 0)) // amount
        if fit <= 0:
            return 0
        if slots is None or fit < slots:
            slots = fit
    return slots or 0


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
    return {intern(resource): _parse_amount(resource, quantity) for resource, quantity in read_map(obj, name).items()}


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


def is_resized(pod: Raw) -> bool:
    """Whether the kubelet may report other amounts of a raw pod than its spec has."""
    spec = read_map(pod, "spec")
    containers, inits = read_objects(spec, "containers"), read_objects(spec, "initContainers")
    return _find_resize({}, {}, containers, inits, read_map(pod, "status")) is not None


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


def _parse_amount(resource: str, quantity: object) -> int:
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
