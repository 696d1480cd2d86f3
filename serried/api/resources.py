"""Kubernetes quantities (`parse_quantity`), amounts of resources as integers, and a pod's requests (`pod_requests`).

Units: ``cpu`` in millicores, every other resource in its base unit (bytes, pieces). ``pods`` is a resource like any
other.

Quantities are parsed as ``ParseQuantity``, ``Value`` and ``MilliValue`` do it (apimachinery 0.37, pkg/api/resource):
they round up. An amount that overflows 64 bits has the same wrong result as upstream: with the right one Serried would
hold pods that kube-scheduler binds.

Requests are counted as kube-scheduler does it (component-helpers resource/helpers.go: PodRequests): the sum of
containers and sidecars, or the peak of the init phase if that is larger. A pod-level request replaces the result for
its resource, and the overhead is added. During a resize, the amounts that the kubelet has granted and put into effect
count as well (KEP-1287, KEP-5419), by the rule of the version (`ResizeRule`). Device claims do not count. MARKERS do
not count either: these extended resources only tell kube-scheduler for which pods to call the extender.
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

# Possessive quantifiers prevent backtracking: a user may write a quantity with a million digits.
_QUANTITY = re.compile(r"([+-]?+)(0*+)([0-9]*+)(?:\.([0-9]*+))?+([eEinumkKMGTP]*+[+-]?+[0-9]*+)")
_EXPONENT = re.compile(r"[eE]([+-]?+)(?=[0-9])0*+([0-9]{0,19}+)")

_MAX_INT64 = (1 << 63) - 1
_INT64_DIGITS = 18
"""Numbers with up to this many digits fit into an int64 (upstream: maxInt64Factors)."""

_INT64_BINARY_DIGITS = 14
_NANO = -9
"""The power of ten of the smallest unit of a quantity, a billionth. Smaller amounts are rounded up to 1 billionth."""

_UNCHECKED_POWERS = frozenset({1, 2, 3, 6, 9})
"""The powers of ten by which upstream multiplies without checking for overflow."""

_SAFE_POWER = 100
"""Multiplying an integer by 10 to this power, or to a higher one, always gives 0 modulo 2 ** 64.

So higher exponents in a quantity need not be computed.
"""

_SAFE_PLACES = 70
"""The number of decimals that are enough to round an amount. Further ones are cut off.

If a digit that is cut off is not 0, a 1 is appended, so that the amount is rounded up nevertheless.
"""

_SAFE_DIGITS = 200
"""The number of last digits that decide the value modulo 2 ** 64, if at most ``_SAFE_PLACES`` of them are decimals."""

_MAX_CACHED_LENGTH = 40
"""The maximum length of a quantity, in characters, whose parsed value is cached. Longer ones are rare."""


def parse_quantity(text: str) -> int:
    """Return the amount in base units (bytes, pieces), rounded up. Raises ValueError if ``text`` is no quantity."""
    return _parse_cached(text, 0) if len(text) <= _MAX_CACHED_LENGTH else _parse(text, 0)


def parse_cpu(text: str) -> int:
    """Return the amount in thousandths (millicores), rounded up. Raises ValueError if ``text`` is no quantity."""
    return _parse_cached(text, 3) if len(text) <= _MAX_CACHED_LENGTH else _parse(text, 3)


def parse_exact(text: str) -> int:
    """Return the amount in billionths, as exact as upstream compares it (Quantity.Cmp).

    Raises ValueError if ``text`` is no quantity.
    """
    parse_quantity(text)
    found = _QUANTITY.fullmatch(text)
    sign, _, whole, fraction, suffix = found.groups(default="") if found else ("", "", "", "", "")
    ten, two = _read_suffix(suffix)
    amount = _round_up(whole + fraction, _wrap(ten - len(fraction), 32), two)
    amount = min(amount, _MAX_INT64 * 10**-_NANO) if two else amount
    return -amount if sign == "-" else amount


def _parse(text: str, places: int) -> int:
    found = _QUANTITY.fullmatch(text)
    if not text or found is None:
        raise ValueError(f"{text[:_MAX_CACHED_LENGTH]!r} is not a quantity")
    sign, zeros, whole, fraction, suffix = found.groups(default="")
    ten, two = _read_suffix(suffix)
    scale = _wrap(ten - len(fraction), 32)
    if _is_small(len(whole or "0"), len(fraction), two) and scale >= _NANO:
        amount = int((whole or "0") + fraction) << two
        return _shift(-amount if sign == "-" else amount, scale + places)
    if not zeros + whole + fraction:
        raise ValueError(f"{text[:_MAX_CACHED_LENGTH]!r} is a quantity without a number")
    amount = _round_up(whole + fraction, scale, two)
    if two and amount > _MAX_INT64 * 10**-_NANO:
        return _wrap((-_MAX_INT64 if sign == "-" else _MAX_INT64) * 10**places, 64)
    return _shift_down(-amount if sign == "-" else amount, -_NANO - places)


_parse_cached = lru_cache(maxsize=32768)(_parse)


def _read_suffix(suffix: str) -> tuple[int, int]:
    """Return the exponents of ten and of two for a quantity's suffix: (3, 0) for ``k``, (0, 10) for ``Ki``.

    Raises ValueError if the suffix is unknown.
    """
    if suffix in _DECIMAL:
        return _DECIMAL[suffix], 0
    if suffix in _BINARY:
        return 0, _BINARY[suffix]
    found = _EXPONENT.fullmatch(suffix)
    exponent = int(f"{found[1]}0{found[2]}") if found else _MAX_INT64 + 1
    if not -_MAX_INT64 - 1 <= exponent <= _MAX_INT64:
        raise ValueError(f"{suffix[:_MAX_CACHED_LENGTH]!r} is an unknown suffix of a quantity")
    return _wrap(exponent, 32), 0


def _is_small(whole: int, fraction: int, two: int) -> bool:
    """Return whether upstream computes with an int64; for larger numbers it uses one of unlimited size (inf.Dec).

    ``whole`` and ``fraction`` are the numbers of digits before and after the point, ``two`` is the exponent of two in
    the suffix. The two kinds of numbers round and overflow differently.
    """
    if two:
        return fraction == 0 and whole + two * 3 // 10 <= _INT64_BINARY_DIGITS
    return whole + fraction <= _INT64_DIGITS


def _shift(amount: int, power: int) -> int:
    """Return ``amount * 10**power`` as upstream computes it with an int64 (int64Amount.AsScaledInt64).

    It is rounded away from zero. If it overflows, the result is wrong in the same way as upstream's.
    """
    if power < 0:
        size: int = -(-abs(amount) // 10**-power)
        return -size if amount < 0 else size
    power = _wrap(power, 32)
    product: int = amount * 10 ** max(0, min(power, _SAFE_POWER))
    if power in _UNCHECKED_POWERS:
        return _wrap(product, 64)
    return product if abs(product) <= _MAX_INT64 else 0


def _round_up(digits: str, scale: int, two: int) -> int:
    """Return ``digits * 2**two * 10**scale`` in billionths, rounded up. ``digits`` is a decimal number as text.

    Far beyond 64 bits, the result is a smaller number that is equal modulo 2 ** 64, which is all that upstream's result
    depends on. So a user's quantity with a million digits takes linear time; converting it would take quadratic time.
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
    """Return ``amount / 10**places`` as upstream's scaledValue rounds it.

    A positive amount is rounded up. A negative amount is rounded toward zero, and 1 is added if there was a remainder.
    """
    divisor: int = 10**places
    if amount >= _MAX_INT64:
        return _wrap(-(-amount // divisor), 64)
    left = _wrap(amount, 64)
    size, rest = divmod(abs(left), divisor)
    return (-size if left < 0 else size) + bool(rest)


def _wrap(number: int, bits: int) -> int:
    """Return what a signed integer of ``bits`` bits holds if ``number`` is stored in it: the value after overflow."""
    half = 1 << bits - 1
    return (number + half) % (2 * half) - half


MARKERS = frozenset({"scheduling.serried.dev/member", "scheduling.serried.dev/member-bind"})
"""Extended resources that mark the pods of gangs in an isolated installation.

An admission policy adds them to the pods' requests, and kube-scheduler is configured to call the extender only for pods
that request them (``managedResources``). No node has them; kube-scheduler ignores them for its own decisions. One is
for filter and preempt calls, the other for bind calls, because kube-scheduler does not accept one name in two extender
entries.
"""


Resources = Mapping[str, int]
"""Amounts by resource name; an absent name means 0. Several objects share one mapping, so it must not be changed."""

PODS = "pods"

SHARES = 1 << 16
"""The capacity that Serried assumes for every node of a pseudo resource by which pods exclude each other.

A pseudo resource is a name that Serried adds to its own copies of pods' requests, and that Kubernetes does not know.
For instance two pods with the same host port each request SHARES of it, so the planner never puts both on one node.
The name of a pseudo resource contains a colon, unlike that of any other resource.
"""

ONCE = "once:"
"""The prefix of the request that Serried adds to a pod for a ReadWriteOncePod claim.

The amount is SHARES, the whole capacity of a node, so that a second pod with the claim does not fit there.
"""

ATTACHED = "attach:"
"""The prefix of the request that Serried adds to a pod for a CSI driver: 1 for each volume of the driver.

The capacity of a node is the number of volumes of the driver that can be attached to it (NodeVolumeLimits).
"""

CHOSEN = "volume:"
"""The prefix of the request that Serried adds to a pod for unbound volume claims (`volume.VolumePool.amount`).

The pod requests 1 for each claim; claims with equal requirements (`volume.ClaimRequirements`) have the same name. The
planner then takes one of the matching free volumes for each claim.
"""

PROVIDED = "provided:"
"""The prefix of the name under which pods request an extended resource or device claim that nodes need not list.

For instance a DeviceClass provides the resource. On nodes that do not list it, its capacity is UNLIMITED.
"""

DEVICES = "devices:"
"""The prefix of the request that Serried adds to a pod for the devices of its DRA claims, if it can count them.

A node without a capacity of that name has none of the devices.
"""

SETS = DEVICES + "sets of "
"""The prefix of the request that Serried adds to a pod whose devices depend on each other: say, two of one NUMA node.

The pod requests 1. Only a search can tell how many such pods fit on a node, so the capacity of an empty node is
unknown.
"""

DEVICE_CLASS_PREFIX = "deviceclass.resource.kubernetes.io/"
"""The prefix of an extended resource by which pods request devices of a DeviceClass; its name follows the prefix."""

UNLIMITED = 1 << 62
"""The capacity that Serried assumes for a ``PROVIDED`` resource, which nodes need not list, on a node that lacks it.

Only kube-scheduler knows the real one.
"""


def capacity(allocatable: Resources, name: str) -> int:
    """Return a node's capacity of a resource, or of a name that Serried adds to pods' requests (see SHARES).

    ``allocatable`` are the amounts of the node. If it lacks ``name``, the capacity depends on the name:

    - without a colon, i.e. a resource of Kubernetes such as ``memory``: 0.
    - with the prefix DEVICES (devices of DRA claims): 0.
    - with the prefix PROVIDED (an extended resource that nodes need not list, because, say, a DeviceClass provides it):
      what the node lists without the prefix. If that is nothing or 0: UNLIMITED, because only kube-scheduler knows the
      real amount.
    - any other name with a colon, by which pods exclude each other: SHARES, a fixed number. For instance each pod with
      a certain host port requests all SHARES of its name, so a node has room for one such pod.
    """
    amount = allocatable.get(name)
    if amount is not None:
        return amount
    if ":" not in name or name.startswith(DEVICES):
        return 0
    return allocatable.get(name[len(PROVIDED) :]) or UNLIMITED if name.startswith(PROVIDED) else SHARES


def is_extended(name: str) -> bool:
    """Return whether ``name`` is an extended resource, which a device plugin or a DeviceClass provides.

    Such a name has a domain other than kubernetes.io, or begins with DEVICE_CLASS_PREFIX (kube-scheduler's
    IsDRAExtendedResourceName).
    """
    if "/" not in name or ":" in name:
        return False
    return "kubernetes.io/" not in name or name.startswith(DEVICE_CLASS_PREFIX)


def add(left: Resources, right: Resources) -> dict[str, int]:
    """Return the sum of two amounts, name by name."""
    total = dict(left)
    for name, amount in right.items():
        total[name] = total.get(name, 0) + amount
    return total


def subtract(amounts: Resources, less: Resources) -> dict[str, int]:
    """Return ``amounts`` minus ``less``, name by name; results may be negative. Names only in ``less`` are left out."""
    return {name: amount - less.get(name, 0) for name, amount in amounts.items()}


def total(parts: Iterable[Resources]) -> dict[str, int]:
    """Return the sum of any number of amounts; empty for none."""
    result: dict[str, int] = {}
    for part in parts:
        for name, amount in part.items():
            result[name] = result.get(name, 0) + amount
    return result


def count_slots(allocatable: Resources, used: Resources, request: Resources) -> int:
    """Return how many pods with this ``request`` fit on a node in addition to what is ``used`` there.

    Return 0 if a requested resource is over-committed already. Resources that are not requested do not matter, as in
    kube-scheduler's NodeResourcesFit. ``request`` must contain ``pods``, so that the result is finite.
    """
    # This is the planner's innermost loop: ``capacity`` is only called for the few names that the node does not list.
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

_WithStatus = list[tuple[Raw, Raw]]
"""Pairs of a container and its status; {} for a container without status."""


class _Resize(NamedTuple):
    """A pod for which the kubelet reports other amounts than its spec has, because it is being resized in place.

    ``main`` and ``init`` are its containers and init containers.
    """

    desired: Amounts
    """The requests in the spec: the total of its containers, as `_aggregate` computes it."""

    pod_level: Amounts
    """The pod-level requests in the spec (``spec.resources``)."""

    main: _WithStatus
    init: _WithStatus
    status: Raw
    refused: bool
    """True if the kubelet has rejected the resize as infeasible."""


def read_amounts(obj: Raw, name: str) -> Amounts:
    """Return the resource list at ``name``: cpu in millicores, all others in base units.

    Raises ValueError for an invalid quantity.
    """
    return {intern(resource): _parse_amount(resource, quantity) for resource, quantity in read_map(obj, name).items()}


def pod_requests(pod: Raw, rule: ResizeRule = ResizeRule.LARGEST) -> tuple[tuple[str, int], ...]:
    """Return the requests of a raw pod as kube-scheduler counts them: (name, amount), sorted by name, without zeros.

    ``pods`` is always among them, with amount 1. ``rule`` says how a pod is counted that is being resized in place.
    """
    spec = read_map(pod, "spec")
    containers = read_objects(spec, "containers")
    inits = read_objects(spec, "initContainers")
    asked = _aggregate([*map(_read_requests, containers)], [*map(_read_requests, inits)], inits)
    pod_level = read_amounts(read_map(spec, "resources"), "requests")
    resize = _read_resize(asked, pod_level, containers, inits, read_map(pod, "status"))
    if resize is None:
        _override(asked, pod_level)
    else:
        asked = {}
        for count in _COUNTS[rule]:
            _raise_to(asked, count(resize))
    _add(asked, read_amounts(spec, "overhead"))
    asked[PODS] = 1
    return tuple(sorted(item for item in asked.items() if item[1] > 0 and item[0] not in MARKERS))


def is_resized(pod: Raw) -> bool:
    """Return whether the kubelet reports requests for a raw pod that may differ from its spec, as during a resize."""
    spec = read_map(pod, "spec")
    containers, inits = read_objects(spec, "containers"), read_objects(spec, "initContainers")
    return _read_resize({}, {}, containers, inits, read_map(pod, "status")) is not None


def has_markers(spec: Raw) -> bool:
    """Return whether the containers of a pod request all MARKERS, so that kube-scheduler calls the extender for it.

    kube-scheduler checks it in the same way (extender.go: IsInterested).
    """
    named: set[str] = set()
    for container in (*read_objects(spec, "containers"), *read_objects(spec, "initContainers")):
        resources = read_map(container, "resources")
        for amounts in (read_map(resources, "limits"), read_map(resources, "requests")):
            named.update(MARKERS & amounts.keys())
    return named >= MARKERS


def _read_requests(container: Raw) -> Amounts:
    return read_amounts(read_map(container, "resources"), "requests")


def _aggregate(main: list[Amounts], init: list[Amounts], inits: list[Raw]) -> Amounts:
    """Return the requests of a pod, resource by resource: what its containers need together, or the init phase if more.

    ``main`` and ``init`` are the requests of its containers and init containers. ``inits`` are the init containers in
    the spec, in the same order. Those with restartPolicy Always are sidecars, which run along with the containers.
    """
    asked: Amounts = {}
    for amounts in main:
        _add(asked, amounts)
    sidecars: Amounts = {}
    peak: Amounts = {}
    for container, amounts in zip(inits, init, strict=True):
        # Resources that this container does not request need no update: earlier sidecars have raised their peak.
        beside = {resource: sidecars.get(resource, 0) + amount for resource, amount in amounts.items()}
        _raise_to(peak, beside)
        if container.get("restartPolicy") == "Always":
            sidecars.update(beside)
    _add(asked, sidecars)
    _raise_to(asked, peak)
    return asked


def _read_resize(
    desired: Amounts, pod_level: Amounts, containers: list[Raw], inits: list[Raw], status: Raw
) -> _Resize | None:
    """Return a `_Resize` if the kubelet reports other requests than the spec has; else None.

    Return one also if it reports any resources for the pod as a whole, even the same.
    ``desired`` and ``pod_level`` are the requests in the spec, ``status`` is the pod's status.
    """
    known = {
        read_text(entry, "name"): entry
        for field in ("containerStatuses", "initContainerStatuses")
        for entry in read_objects(status, field)
    }
    whole = status.get("allocatedResources") is not None or status.get("resources") is not None
    if not known and not whole:
        return None
    # Names of containers are unique in a valid pod. In an invalid one, `pop` avoids reading a status repeatedly.
    main, init = ([(each, known.pop(read_text(each, "name"), {})) for each in group] for group in (containers, inits))
    if not whole and all(_matches_spec(container, said) for container, said in (*main, *init)):
        return None
    return _Resize(desired, pod_level, main, init, status, _resize_refused(status))


def _count_sums(resize: _Resize) -> Amounts:
    """Return the requests of a pod that is being resized, by the rule `ResizeRule.SUMS` (since Kubernetes 1.37).

    For each resource, add up over all containers what is desired, what is granted and what is in effect. The largest of
    these three sums counts. If the kubelet has rejected the resize, what is desired does not count.
    """
    asked: Amounts = {} if resize.refused else dict(resize.desired)
    status = resize.status
    if status.get("allocatedResources") is not None and read_map(status, "resources").get("requests") is not None:
        for amounts in _read_pod_level(status):  # sums over all containers
            _raise_to(asked, amounts)
    else:
        for read in (_read_granted, _read_effective):
            _raise_to(asked, _aggregate_with(resize, read))
    wanted = resize.pod_level
    if wanted and status.get("resources") is not None:
        wanted = {} if resize.refused else dict(wanted)
        for amounts in _read_pod_level(status):
            _raise_to(wanted, amounts)
    _override(asked, wanted)
    return asked


def _count_containers(resize: _Resize) -> Amounts:
    """Return the requests of a pod that is being resized, by the rule `ResizeRule.CONTAINERS` (1.35 and 1.36).

    For each container and resource, the largest of desired, granted and in effect counts; then they are added up. For
    an init container that is no sidecar, only what is desired counts.
    """
    main = [_read_largest(container, said, refused=resize.refused) for container, said in resize.main]
    init = [
        _read_largest(each, said if each.get("restartPolicy") == "Always" else {}, refused=resize.refused)
        for each, said in resize.init
    ]
    asked = _aggregate(main, init, [container for container, _ in resize.init])
    wanted = resize.pod_level
    if resize.status.get("resources") is not None:
        effective: Amounts = {} if resize.refused else dict(wanted)
        for amounts in _read_pod_level(resize.status):
            _raise_to(effective, amounts)
        wanted = {resource: effective.get(resource, 0) for resource in wanted}
    _override(asked, wanted)
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
        [read(said, {} if resize.refused else _read_requests(each)) for each, said in group]
        for group in (resize.main, resize.init)
    )
    return _aggregate(main, init, [each for each, _ in resize.init])


def _read_pod_level(status: Raw) -> Iterable[Amounts]:
    """Return two pod-level resource lists from a pod's status: what the kubelet has granted, and what is in effect."""
    return read_amounts(status, "allocatedResources"), read_amounts(read_map(status, "resources"), "requests")


def _override(asked: Amounts, pod_level: Amounts) -> None:
    """Replace the containers' sums in ``asked`` by pod-level requests, where there are any: cpu, memory, hugepages."""
    for resource, amount in pod_level.items():
        if resource in {"cpu", "memory"} or resource.startswith("hugepages-"):
            asked[resource] = amount


def _matches_spec(container: Raw, status: Raw) -> bool:
    """Return whether the kubelet reports the same requests for a container as its spec has, or none.

    The texts are compared, which is enough because both are in canonical form.
    """
    asked = read_map(container, "resources").get("requests")
    reports = status.get("allocatedResources"), read_map(status, "resources").get("requests")
    return all(report is None or report == asked for report in reports)


def _read_granted(status: Raw, otherwise: Amounts) -> Amounts:
    """Return the amounts that the kubelet has granted to a container; ``otherwise`` if it reports none."""
    return otherwise if status.get("allocatedResources") is None else read_amounts(status, "allocatedResources")


def _read_effective(status: Raw, otherwise: Amounts) -> Amounts:
    """Return the amounts in effect for a container; the granted ones if the kubelet reports none."""
    resources = read_map(status, "resources")
    if resources.get("requests") is None:
        return _read_granted(status, otherwise)
    return read_amounts(resources, "requests")


def _read_largest(container: Raw, status: Raw, *, refused: bool) -> Amounts:
    """Return for each resource the largest of a container's requests: desired, granted and in effect.

    If the kubelet has rejected the resize (``refused``), the desired requests do not count. If it has reported no
    status yet, only they do.
    """
    desired = _read_requests(container)
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
