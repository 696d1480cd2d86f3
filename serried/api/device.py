"""Dynamic resource allocation (resource.k8s.io/v1, served since 1.34): device classes, slices, claims, taint rules.

Each kind has a decoder, such as `decode_resource_claim`, which makes a value from JSON. The rule for devices
(`serried.rules.devices`) computes with the values.

The meaning of fields is in k8s.io/api/resource/v1/types.go (0.37). If a claim uses a field that Serried does not
support, ``ClaimSpec.unsupported`` names it; only kube-scheduler can decide about such a claim.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from sys import intern
from typing import NamedTuple

from serried.api.cel import Value, Values, quantity, version
from serried.api.names import (
    Key,
    Malformed,
    Raw,
    decode_or_malformed,
    is_deleting,
    read_flag,
    read_int,
    read_key,
    read_map,
    read_name,
    read_objects,
    read_text,
    read_texts,
    read_uid,
    read_version,
)
from serried.api.resources import DEVICE_CLASS_PREFIX, parse_exact
from serried.api.selectors import Taint, Terms, Toleration, read_taint, read_terms
from serried.api.volume import VolumeClaim

Selectors = tuple[str, ...]
"""CEL expressions. A device must match all of them; every device matches an empty tuple."""


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """A DeviceClass: the CEL selectors that a claim includes by naming the class."""

    name: str

    resource: str = ""
    """The spec.extendedResourceName; "" if it is not set."""

    version: str = ""

    selectors: Selectors = ()

    @property
    def provides(self) -> frozenset[str]:
        """The names of the extended resources by which pods can request devices of the class without a claim.

        One is `resources.DEVICE_CLASS_PREFIX` with the name of the class, the other one is ``resource`` if it is set.
        """
        return frozenset({DEVICE_CLASS_PREFIX + self.name, self.resource}) - {""}


def decode_device_class(obj: object) -> DeviceClass | Malformed:
    """Decode a DeviceClass; the name is required. Only v1 (1.34) and later have an extended resource."""
    return decode_or_malformed("DeviceClass", _decode_class, obj)


def _decode_class(obj: Raw) -> DeviceClass:
    spec = read_map(obj, "spec")
    name = read_name(spec, "extendedResourceName")
    return DeviceClass(read_key(obj).name, name, read_version(obj), _read_selectors(spec))


def _read_selectors(obj: Raw) -> Selectors:
    # An unknown kind of selector yields the expression "", which is invalid: such a selector matches no device.
    return tuple(read_name(read_map(each, "cel"), "expression") for each in read_objects(obj, "selectors"))


class NodeScope(NamedTuple):
    """The nodes from which devices can be used: one node, nodes that match terms, all nodes, or (no field set) none."""

    node: str = ""
    terms: Terms | None = None
    everywhere: bool = False


NOWHERE = NodeScope()


class Amount(NamedTuple):
    """An amount of a device's capacity or of a shared counter. ``amount`` is in billionths.

    ``name`` has one element, the name of the capacity; or two, the names of the counter set and of the counter.
    """

    name: tuple[str, ...]
    amount: int


class Capacity(NamedTuple):
    """A capacity of a device that several claims can share, and the rules for the amount that one claim may request.

    All amounts are in billionths. ``amount`` is what the device has. ``default`` is what a claim gets that requests
    nothing. A request is rounded up to one of ``values``; or, if there are none, to ``least`` plus a multiple of
    ``step``. ``most`` is the largest valid request. A rule that is None or empty is not set.
    """

    name: tuple[str, ...]
    amount: int
    default: int | None = None
    values: tuple[int, ...] = ()
    least: int | None = None
    most: int | None = None
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Device:
    """A device in a ResourceSlice."""

    name: str
    attributes: Values
    capacity: Values
    taints: tuple[Taint, ...] = ()
    shareable: bool = False
    """True if several claims can use the device at once (allowMultipleAllocations)."""

    capacities: tuple[Capacity, ...] = ()
    """The capacities with their request policies. (The field ``capacity`` has them as values for CEL selectors.)"""

    consumes: tuple[Amount, ...] = ()
    """The amounts of shared counters that the device uses up while it is allocated (consumesCounters).

    Several devices of a pool share a counter, such as the partitions of one GPU.
    """

    has_binding_conditions: bool = False
    """True if the device has bindingConditions. kube-scheduler tries pools with such devices last."""

    place: NodeScope = NOWHERE
    """The nodes that can use the device, if its slice has perDeviceNodeSelection.

    Else it is NOWHERE and without meaning: `ResourceSlice.place` holds for all devices of the slice.
    """


@dataclass(frozen=True, slots=True)
class DeviceTaintRule:
    """A DeviceTaintRule: a taint that an administrator puts on devices (v1, served since 1.37)."""

    name: str
    taint: Taint
    selects: bool = True
    """True if the rule has a selector. Without one it applies to no device."""

    driver: str = ""
    """The driver of the devices; "" for any. The same holds for ``pool`` and ``device``."""

    pool: str = ""
    device: str = ""
    version: str = ""

    def applies_to(self, pool: "PoolId", device: str) -> bool:
        """Return whether the rule puts its taint on ``device`` of ``pool`` (resourceslice/tracker: applyPatches)."""
        return self.may_apply_in(pool) and self.device in {"", device}

    def may_apply_in(self, pool: "PoolId") -> bool:
        """Return whether the rule selects this pool, so that it may put its taint on devices there.

        If the rule also names a device, only that device of the pool gets the taint, if it exists.
        """
        return self.selects and self.driver in {"", pool.driver} and self.pool in {"", pool.name}


def decode_device_taint_rule(obj: object) -> DeviceTaintRule | Malformed:
    """Decode a DeviceTaintRule; the name is required."""
    return decode_or_malformed("DeviceTaintRule", _decode_taint_rule, obj)


def _decode_taint_rule(obj: Raw) -> DeviceTaintRule:
    spec = read_map(obj, "spec")
    chosen = read_map(spec, "deviceSelector")
    return DeviceTaintRule(
        name=read_key(obj).name,
        taint=read_taint(read_map(spec, "taint")),
        selects=spec.get("deviceSelector") is not None,
        driver=read_name(chosen, "driver"),
        pool=read_name(chosen, "pool"),
        device=read_name(chosen, "device"),
        version=read_version(obj),
    )


class PoolId(NamedTuple):
    """Identifies a pool of devices: ``name`` is unique for one ``driver``."""

    driver: str
    name: str


class DeviceId(NamedTuple):
    """Identifies a device in the cluster: ``name`` is unique in its ``pool``."""

    pool: PoolId
    name: str


@dataclass(frozen=True, slots=True)
class ResourceSlice:
    """A ResourceSlice: some or all of the devices in a pool.

    A driver that changes its pool writes slices of a new ``generation``; older ones are outdated then.
    """

    name: str
    pool: PoolId
    generation: int = 0
    slices: int = 0
    """The number of slices of this generation that the pool must have to be complete (resourceSliceCount)."""

    place: NodeScope = NOWHERE
    per_device: bool = False
    """True if each device says which nodes can use it (`Device.place`); else ``place`` holds for all devices."""

    devices: tuple[Device, ...] = ()

    counters: tuple[tuple[str, tuple[Amount, ...]], ...] = ()
    """The available amounts of shared counters: pairs of a counter set's name and its amounts (sharedCounters)."""

    has_compatibility_groups: bool = False
    """True if devices of the slice have compatibilityGroups (alpha), which Serried does not support.

    kube-scheduler ignores the slice if the feature is off.
    """

    version: str = ""


def decode_resource_slice(obj: object) -> ResourceSlice | Malformed:
    """Decode a ResourceSlice; the name, its driver and its pool are required."""
    return decode_or_malformed("ResourceSlice", _decode_slice, obj)


def _decode_slice(obj: Raw) -> ResourceSlice:
    spec = read_map(obj, "spec")
    pool = read_map(spec, "pool")
    driver, name = read_name(spec, "driver"), read_name(pool, "name")
    if not driver or not name:
        raise ValueError("driver or pool is missing")
    devices = read_objects(spec, "devices")
    return ResourceSlice(
        name=read_key(obj).name,
        pool=PoolId(driver, name),
        generation=read_int(pool, "generation"),
        slices=read_int(pool, "resourceSliceCount"),
        place=_read_place(spec),
        per_device=read_flag(spec, "perDeviceNodeSelection"),
        devices=tuple(_read_device(each, driver) for each in devices),
        counters=tuple(
            (read_name(each, "name"), _read_amounts(each, "counters", read_name(each, "name")))
            for each in read_objects(spec, "sharedCounters")
        ),
        has_compatibility_groups=any(
            read_texts(taken, "compatibilityGroups")
            for device in devices
            for taken in read_objects(device, "consumesCounters")
        ),
        version=read_version(obj),
    )


def _read_place(obj: Raw) -> NodeScope:
    return NodeScope(read_name(obj, "nodeName"), read_terms(obj, "nodeSelector"), read_flag(obj, "allNodes"))


def _read_device(obj: Raw, driver: str) -> Device:
    capacity = read_map(obj, "capacity")
    return Device(
        name=read_name(obj, "name"),
        attributes=_read_values(obj, "attributes", driver, _read_attribute),
        capacity=_read_values(obj, "capacity", driver, _read_capacity),
        taints=tuple(map(read_taint, read_objects(obj, "taints"))),
        shareable=read_flag(obj, "allowMultipleAllocations"),
        capacities=tuple(_read_capacity_rule(name, read_map(capacity, name)) for name in capacity),
        consumes=tuple(
            amount
            for taken in read_objects(obj, "consumesCounters")
            for amount in _read_amounts(taken, "counters", read_name(taken, "counterSet")) or [_read_unused_set(taken)]
        ),
        has_binding_conditions=bool(read_texts(obj, "bindingConditions")),
        place=_read_place(obj),
    )


def _read_unused_set(obj: Raw) -> Amount:
    """Return an amount of 0 for a counter set that a device names without consuming anything from it.

    The amount records that the device needs the set: kube-scheduler requires that the device's pool has it.
    """
    return Amount((read_name(obj, "counterSet"), ""), 0)


def _read_amounts(obj: Raw, name: str, *prefix: str) -> tuple[Amount, ...]:
    found = read_map(obj, name)
    return tuple(
        Amount((*prefix, key), _parse_billionths(read_map(found, key).get("value")) or 0) for key in sorted(found)
    )


def _parse_billionths(amount: object) -> int | None:
    return parse_exact(str(amount)) if isinstance(amount, str | int | float) else None


def _read_capacity_rule(name: str, obj: Raw) -> Capacity:
    policy = read_map(obj, "requestPolicy")
    spread = read_map(policy, "validRange")
    listed = policy.get("validValues")
    return Capacity(
        (name,),
        _parse_billionths(obj.get("value")) or 0,
        _parse_billionths(policy.get("default")),
        tuple(filter(None, map(_parse_billionths, listed))) if isinstance(listed, list) else (),
        _parse_billionths(spread.get("min")),
        _parse_billionths(spread.get("max")),
        _parse_billionths(spread.get("step")),
    )


def _read_values(obj: Raw, name: str, driver: str, read: Callable[[Raw], Value | None]) -> Values:
    """Return the attributes or capacities at field ``name`` of a device, by domain and identifier.

    ``read`` returns the value of one entry, None to leave it out. A name without a domain is in the driver's domain.
    """
    found: dict[str, dict[str, Value]] = {}
    for full in read_map(obj, name):
        domain, _, identifier = full.rpartition("/")
        value = read(read_map(read_map(obj, name), full))
        if value is not None:
            found.setdefault(intern(domain or driver), {})[intern(identifier)] = value
    return found


def _read_capacity(obj: Raw) -> Value | None:
    amount = obj.get("value")
    return quantity(str(amount)) if isinstance(amount, str | int | float) else None


def _read_attribute(obj: Raw) -> Value | None:
    """Return the value of an attribute; None if its type is not known. Raise ValueError for an invalid version."""
    for kind in ("int", "bool", "string"):
        value = obj.get(kind)
        if isinstance(value, int | str):
            return value
        values = obj.get(f"{kind}s")
        if isinstance(values, list):
            return values
    if text := read_text(obj, "version"):
        return version(text)
    texts = read_texts(obj, "versions")
    return list(map(version, texts)) if texts else None


@dataclass(frozen=True, slots=True)
class SubRequest:
    """One alternative of a request: a number of devices of one class.

    It is an entry of ``firstAvailable``, or the only alternative (``exactly``).
    """

    device_class: str
    selectors: Selectors = ()
    tolerations: tuple[Toleration, ...] = ()
    count: int = 1
    """The number of devices; 0 for all devices of the node (allocationMode All)."""

    admin: bool = False
    """True for adminAccess, which does not take the devices away from other claims."""

    capacity: tuple[Amount, ...] = ()
    """The amounts of capacities that are requested of each device."""

    name: str = ""
    """The name of the alternative; "" for ``exactly``."""


class Request(NamedTuple):
    """A request of a claim. kube-scheduler allocates devices for the first alternative for which there are enough."""

    name: str
    alternatives: tuple[SubRequest, ...]


class Constraint(NamedTuple):
    """A constraint of a claim on an attribute of its devices: all have the same value, or all have different ones."""

    attribute: str
    """The name of the attribute, such as ``example.com/numa``."""

    requests: tuple[str, ...]
    """The names of the requests to whose devices it applies; empty for all requests of the claim."""

    distinct: bool
    """True if all values must differ (distinctAttribute). If False, all must be equal (matchAttribute)."""


@dataclass(frozen=True, slots=True)
class ClaimSpec:
    """The requests and constraints of a claim."""

    requests: tuple[Request, ...] = ()
    constraints: tuple[Constraint, ...] = ()

    unsupported: str = ""
    """A phrase that names a field of the claim which Serried does not support; "" if it supports all of them."""


@dataclass(frozen=True, slots=True)
class ResourceClaim:
    """A ResourceClaim, with the devices that are allocated to it.

    Devices with adminAccess are left out, because other claims can still get them.
    """

    key: Key
    uid: str
    spec: ClaimSpec
    allocated: bool = False

    devices: tuple[DeviceId, ...] = ()
    """The devices that are allocated to this claim alone."""

    shares: tuple[tuple[DeviceId, tuple[Amount, ...]], ...] = ()
    """The devices that the claim may share with other claims, each with the capacity that it consumes."""

    terms: Terms | None = None
    """The node selector of the allocation: the nodes on which the allocated devices can be used; None for all."""

    consumers: tuple[str, ...] = ()
    """The UIDs of the pods for which it is reserved (reservedFor)."""

    deleting: bool = False
    version: str = ""


def decode_resource_claim(obj: object) -> ResourceClaim | Malformed:
    """Decode a ResourceClaim; namespace, name and uid are required."""
    return decode_or_malformed("ResourceClaim", _decode_claim, obj)


def _decode_claim(obj: Raw) -> ResourceClaim:
    status = read_map(obj, "status")
    allocation = read_map(status, "allocation")
    results = read_objects(read_map(allocation, "devices"), "results")
    held = [each for each in results if not read_flag(each, "adminAccess")]
    return ResourceClaim(
        key=read_key(obj),
        uid=read_uid(obj),
        spec=_read_claim_spec(read_map(obj, "spec")),
        allocated=status.get("allocation") is not None,
        devices=tuple(_read_device_id(each) for each in held if not each.get("shareID")),
        shares=tuple((_read_device_id(each), _read_shared(each)) for each in held if each.get("shareID")),
        terms=read_terms(allocation, "nodeSelector"),
        consumers=tuple(read_text(each, "uid") for each in read_objects(status, "reservedFor")),
        deleting=is_deleting(obj),
        version=read_version(obj),
    )


def decode_claim_template(obj: object) -> tuple[Key, ClaimSpec] | Malformed:
    """Decode a ResourceClaimTemplate. Return its key, and the spec of the claims that are created from it.

    Namespace and name are required.
    """
    return decode_or_malformed("ResourceClaimTemplate", _decode_claim_template, obj)


def _decode_claim_template(obj: Raw) -> tuple[Key, ClaimSpec]:
    return read_key(obj), _read_claim_spec(read_map(read_map(obj, "spec"), "spec"))


@dataclass(frozen=True, slots=True)
class HypotheticalClaims:
    """Claims and claim templates that do not exist yet, but would if a user created the objects of a what-if question.

    Such a question is whether and where a gang would fit if certain objects were created. Nothing is created for it.

    ``volumes`` are PersistentVolumeClaims, ``devices`` ResourceClaims. Existing objects with the same key take
    precedence.
    """

    volumes: Mapping[Key, VolumeClaim] = field(default_factory=dict)
    devices: Mapping[Key, ResourceClaim] = field(default_factory=dict)
    templates: Mapping[Key, ClaimSpec] = field(default_factory=dict)
    """The specs of claims by the key of their ResourceClaimTemplate."""

    shared: frozenset[Key] = frozenset()
    """The keys of the claims, of volumes or devices, that more than one of the hypothetical pods names."""

    default_class: str = ""
    """The default StorageClass of the cluster; "" if there is none."""


NOTHING = HypotheticalClaims()


def _read_device_id(obj: Raw) -> DeviceId:
    return DeviceId(PoolId(read_name(obj, "driver"), read_name(obj, "pool")), read_name(obj, "device"))


def _read_shared(obj: Raw) -> tuple[Amount, ...]:
    consumed = read_map(obj, "consumedCapacity")
    return tuple(Amount((name,), _parse_billionths(consumed[name]) or 0) for name in sorted(consumed))


def _read_claim_spec(spec: Raw) -> ClaimSpec:
    devices = read_map(spec, "devices")
    raw = read_objects(devices, "requests")
    asks = [each for request in raw for each in _list_asks(request)]
    beyond = [_find_unsupported(each) for each in asks] + [_find_unknown_constraint(devices)]
    return ClaimSpec(
        tuple(Request(read_name(each, "name"), tuple(map(_read_ask, _list_asks(each)))) for each in raw),
        tuple(
            Constraint(attribute, read_texts(each, "requests"), distinct=kind == "distinctAttribute")
            for each in read_objects(devices, "constraints")
            for kind in ("matchAttribute", "distinctAttribute")
            if (attribute := read_name(each, kind))
        ),
        next(filter(None, beyond), ""),
    )


def _list_asks(request: Raw) -> list[Raw]:
    return read_objects(request, "firstAvailable") or [read_map(request, "exactly")]


def _find_unsupported(ask: Raw) -> str:
    if ask.get("derivedAttributes") is not None:
        return "derived attributes"
    if read_text(ask, "allocationMode", "ExactCount") not in _MODES:
        return f"the allocation mode {read_text(ask, 'allocationMode')}"
    return ""


_MODES = frozenset({"ExactCount", "All"})


def _find_unknown_constraint(devices: Raw) -> str:
    known = ("matchAttribute", "distinctAttribute")
    strange = any(all(each.get(kind) is None for kind in known) for each in read_objects(devices, "constraints"))
    return "a constraint of an unknown kind" if strange else ""


def _read_ask(obj: Raw) -> SubRequest:
    every = read_text(obj, "allocationMode") == "All"
    asked = read_map(read_map(obj, "capacity"), "requests")
    return SubRequest(
        read_name(obj, "deviceClassName"),
        _read_selectors(obj),
        tuple(map(_read_toleration, read_objects(obj, "tolerations"))),
        0 if every else max(1, read_int(obj, "count", 1)),
        read_flag(obj, "adminAccess"),
        tuple(Amount((name,), _parse_billionths(asked[name]) or 0) for name in sorted(asked)),
        read_name(obj, "name"),
    )


def _read_toleration(obj: Raw) -> Toleration:
    operator = read_name(obj, "operator", "Equal")
    return Toleration(read_name(obj, "key"), operator, read_name(obj, "value"), read_name(obj, "effect"))


class ClaimRef(NamedTuple):
    """A pod's reference to a device claim."""

    template: str
    """The name of the template from which the pod's own claim is created; "" if the pod names a claim."""

    claim: str
    """The name of the claim; "" as long as it is not created from the template, or if the pod needs none."""


def read_claim_refs(spec: Raw, status: Raw) -> tuple[ClaimRef, ...]:
    """Return the references to device claims in a pod's ``spec``, in their order (upstream: resourceclaim.Name).

    The names of claims that were created from templates are in the pod's ``status``.
    """
    entries = read_objects(status, "resourceClaimStatuses") if spec.get("resourceClaims") else []
    made = {read_text(entry, "name"): read_text(entry, "resourceClaimName") for entry in entries}
    return tuple(
        ClaimRef("", read_text(each, "resourceClaimName"))
        if not read_text(each, "resourceClaimTemplateName")
        else ClaimRef(read_name(each, "resourceClaimTemplateName"), made.get(read_text(each, "name"), ""))
        for each in read_objects(spec, "resourceClaims")
    )


def find_uncreated_claim(spec: Raw, status: Raw) -> str:
    """Return the name of the first template from which no claim has been created yet for a pod; "" if all exist.

    kube-controller-manager creates the claim and writes its name into the pod's ``status``. kube-scheduler does not
    schedule the pod before.
    """
    claims = read_objects(spec, "resourceClaims")
    if not claims:
        return ""
    made = {read_text(entry, "name") for entry in read_objects(status, "resourceClaimStatuses")}
    templates = (read_name(c, "resourceClaimTemplateName") for c in claims if read_text(c, "name") not in made)
    return next(filter(None, templates), "")
