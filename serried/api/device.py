"""Devices of nodes and claims of them (resource.k8s.io/v1, which 1.34 and later serve), as far as they can be counted.

What one field says is upstream's (k8s.io/api/resource/v1/types.go, 0.37). What is not read, and what a claim asks
beyond counts, is named by ``ClaimSpec.beyond``: then kube-scheduler alone knows who fits.
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
    attempt,
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
"""CEL expressions; all must take a device."""


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """A DeviceClass."""

    name: str

    resource: str = ""
    """spec.extendedResourceName, "" if it names none."""

    version: str = ""

    selectors: Selectors = ()

    @property
    def provides(self) -> frozenset[str]:
        """The extended resources that pods can ask for to get its devices."""
        return frozenset({DEVICE_CLASS_PREFIX + self.name, self.resource}) - {""}


def decode_device_class(obj: object) -> DeviceClass | Malformed:
    """A DeviceClass; the name is required. Only v1 (1.34) and later name an extended resource."""
    return attempt("DeviceClass", _decode_class, obj)


def _decode_class(obj: Raw) -> DeviceClass:
    spec = read_map(obj, "spec")
    name = read_name(spec, "extendedResourceName")
    return DeviceClass(read_key(obj).name, name, read_version(obj), _read_selectors(spec))


def _read_selectors(obj: Raw) -> Selectors:
    # An unknown kind of selector has no expression: the empty one is none either, and nothing is taken.
    return tuple(read_name(read_map(each, "cel"), "expression") for each in read_objects(obj, "selectors"))


class Place(NamedTuple):
    """From where devices can be reached: one of the three, or nowhere."""

    node: str = ""
    terms: Terms | None = None
    everywhere: bool = False


NOWHERE = Place()


class Amount(NamedTuple):
    """So much of something, in billionths: of a capacity, or of a counter, whose name has its set before it."""

    name: tuple[str, ...]
    amount: int


class Capacity(NamedTuple):
    """A capacity of a device, and what a request for some of it comes to. All in billionths, None where it is not said.

    ``values``, or ``least`` with ``step``, are what a request is rounded up to; ``most`` is the largest one.
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
    """A device in a slice."""

    name: str
    attributes: Values
    capacity: Values
    taints: tuple[Taint, ...] = ()
    shareable: bool = False
    """allowMultipleAllocations: by several claims at once."""

    capacities: tuple[Capacity, ...] = ()
    """``capacity`` once more, as requests take from it."""

    consumes: tuple[Amount, ...] = ()
    """What it takes from counters that it shares with others of its pool."""

    binds: bool = False
    """Whether it has binding conditions: pools with such devices come last."""

    place: Place = NOWHERE
    """Only of slices that leave it to their devices."""


@dataclass(frozen=True, slots=True)
class DeviceTaintRule:
    """A DeviceTaintRule: a taint of devices that their driver knows nothing of (v1, which 1.37 and later serve)."""

    name: str
    taint: Taint
    selects: bool = True
    """Whether it has a selector: without one it is about no device."""

    driver: str = ""
    """Of which driver the devices are; "" for any, as for the next two."""

    pool: str = ""
    device: str = ""
    version: str = ""

    def means(self, pool: "PoolId", device: str) -> bool:
        """Whether it is about a device (resourceslice/tracker: applyPatches)."""
        return self.reaches(pool) and self.device in {"", device}

    def reaches(self, pool: "PoolId") -> bool:
        """Return whether the rule can mean devices of this pool."""
        return self.selects and self.driver in {"", pool.driver} and self.pool in {"", pool.name}


def decode_device_taint_rule(obj: object) -> DeviceTaintRule | Malformed:
    """A DeviceTaintRule; the name is required."""
    return attempt("DeviceTaintRule", _decode_taint_rule, obj)


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
    """A pool of devices."""

    driver: str
    name: str


class DeviceId(NamedTuple):
    """A device in the cluster."""

    pool: PoolId
    name: str


@dataclass(frozen=True, slots=True)
class ResourceSlice:
    """A ResourceSlice: some devices of a pool."""

    name: str
    pool: PoolId
    generation: int = 0
    slices: int = 0
    """Of how many slices the pool is made, in this generation."""

    place: Place = NOWHERE
    per_device: bool = False
    """Whether each device has a place of its own."""

    devices: tuple[Device, ...] = ()

    counters: tuple[tuple[str, tuple[Amount, ...]], ...] = ()
    """What there is of counters, by set (sharedCounters)."""

    opaque: bool = False
    """Whether it has compatibility groups: without that feature kube-scheduler ignores it (alpha, off)."""

    version: str = ""


def decode_resource_slice(obj: object) -> ResourceSlice | Malformed:
    """A ResourceSlice; the name, its driver and its pool are required."""
    return attempt("ResourceSlice", _decode_slice, obj)


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
        opaque=any(
            read_texts(taken, "compatibilityGroups")
            for device in devices
            for taken in read_objects(device, "consumesCounters")
        ),
        version=read_version(obj),
    )


def _read_place(obj: Raw) -> Place:
    return Place(read_name(obj, "nodeName"), read_terms(obj, "nodeSelector"), read_flag(obj, "allNodes"))


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
            for amount in _read_amounts(taken, "counters", read_name(taken, "counterSet")) or [_no_counter(taken)]
        ),
        binds=bool(read_texts(obj, "bindingConditions")),
        place=_read_place(obj),
    )


def _no_counter(obj: Raw) -> Amount:
    """A set of which nothing is taken: the pool has to have it all the same."""
    return Amount((read_name(obj, "counterSet"), ""), 0)


def _read_amounts(obj: Raw, name: str, *prefix: str) -> tuple[Amount, ...]:
    found = read_map(obj, name)
    return tuple(Amount((*prefix, key), _read_exact(read_map(found, key).get("value")) or 0) for key in sorted(found))


def _read_exact(amount: object) -> int | None:
    return parse_exact(str(amount)) if isinstance(amount, str | int | float) else None


def _read_capacity_rule(name: str, obj: Raw) -> Capacity:
    policy = read_map(obj, "requestPolicy")
    spread = read_map(policy, "validRange")
    listed = policy.get("validValues")
    return Capacity(
        (name,),
        _read_exact(obj.get("value")) or 0,
        _read_exact(policy.get("default")),
        tuple(filter(None, map(_read_exact, listed))) if isinstance(listed, list) else (),
        _read_exact(spread.get("min")),
        _read_exact(spread.get("max")),
        _read_exact(spread.get("step")),
    )


def _read_values(obj: Raw, name: str, driver: str, read: Callable[[Raw], Value | None]) -> Values:
    """By domain and identifier; a name without a domain is in the driver's."""
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
    """None for a kind of value that is not known. ValueError for a version that is none."""
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
class Ask:
    """Devices that a claim asks for, all of one sort."""

    device_class: str
    selectors: Selectors = ()
    tolerations: tuple[Toleration, ...] = ()
    count: int = 1
    """How many; 0 for all that there are on the node."""

    admin: bool = False
    """Whether it takes nothing from others (adminAccess)."""

    capacity: tuple[Amount, ...] = ()
    """How much of the capacities of each device."""

    name: str = ""
    """Of an alternative."""


class Request(NamedTuple):
    """A request of a claim: the first of its alternatives that there are devices for."""

    name: str
    alternatives: tuple[Ask, ...]


class Constraint(NamedTuple):
    """What the devices of a claim have in common, or not."""

    attribute: str
    """With its domain."""

    requests: tuple[str, ...]
    """The names of those that it is for; empty for all."""

    distinct: bool
    """Whether no two may have the same value; else all must."""


@dataclass(frozen=True, slots=True)
class ClaimSpec:
    """What a claim asks for. Claims with equal ones ask for the same."""

    requests: tuple[Request, ...] = ()
    constraints: tuple[Constraint, ...] = ()

    beyond: str = ""
    """What it says that is not read here, a phrase; "" for nothing."""


@dataclass(frozen=True, slots=True)
class ResourceClaim:
    """A ResourceClaim."""

    key: Key
    uid: str
    spec: ClaimSpec
    allocated: bool = False

    devices: tuple[DeviceId, ...] = ()
    """The devices that it holds, and nobody else can have."""

    shares: tuple[tuple[DeviceId, tuple[Amount, ...]], ...] = ()
    """What it holds of devices that others may have a share of, too."""

    terms: Terms | None = None
    """From which nodes they can be reached; None for all."""

    consumers: tuple[str, ...] = ()
    """The UIDs of those for whom it is reserved."""

    deleting: bool = False
    version: str = ""


def decode_resource_claim(obj: object) -> ResourceClaim | Malformed:
    """A ResourceClaim; namespace, name and uid are required."""
    return attempt("ResourceClaim", _decode_claim, obj)


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
    """What a ResourceClaimTemplate says of the claims that are made from it; namespace and name are required."""
    return attempt("ResourceClaimTemplate", _decode_claim_template, obj)


def _decode_claim_template(obj: Raw) -> tuple[Key, ClaimSpec]:
    return read_key(obj), _read_claim_spec(read_map(read_map(obj, "spec"), "spec"))


@dataclass(frozen=True, slots=True)
class Coming:
    """Claims, and templates of claims, that there are in a question only. Those that exist go before."""

    volumes: Mapping[Key, VolumeClaim] = field(default_factory=dict)
    devices: Mapping[Key, ResourceClaim] = field(default_factory=dict)
    templates: Mapping[Key, ClaimSpec] = field(default_factory=dict)
    """What a ResourceClaimTemplate says of the claims that are made from it."""

    shared: frozenset[Key] = frozenset()
    """The claims that several of its pods name."""

    default_class: str = ""
    """The StorageClass of volume claims that name none; "" without one."""


NOTHING = Coming()


def _read_device_id(obj: Raw) -> DeviceId:
    return DeviceId(PoolId(read_name(obj, "driver"), read_name(obj, "pool")), read_name(obj, "device"))


def _read_shared(obj: Raw) -> tuple[Amount, ...]:
    consumed = read_map(obj, "consumedCapacity")
    return tuple(Amount((name,), _read_exact(consumed[name]) or 0) for name in sorted(consumed))


def _read_claim_spec(spec: Raw) -> ClaimSpec:
    devices = read_map(spec, "devices")
    raw = read_objects(devices, "requests")
    asks = [each for request in raw for each in _list_asks(request)]
    beyond = [_find_beyond(each) for each in asks] + [_find_other_constraint(devices)]
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


def _find_beyond(ask: Raw) -> str:
    if ask.get("derivedAttributes") is not None:
        return "derived attributes"
    if read_text(ask, "allocationMode", "ExactCount") not in _MODES:
        return f"the allocation mode {read_text(ask, 'allocationMode')}"
    return ""


_MODES = frozenset({"ExactCount", "All"})


def _find_other_constraint(devices: Raw) -> str:
    known = ("matchAttribute", "distinctAttribute")
    strange = any(all(each.get(kind) is None for kind in known) for each in read_objects(devices, "constraints"))
    return "a constraint of an unknown kind" if strange else ""


def _read_ask(obj: Raw) -> Ask:
    every = read_text(obj, "allocationMode") == "All"
    asked = read_map(read_map(obj, "capacity"), "requests")
    return Ask(
        read_name(obj, "deviceClassName"),
        _read_selectors(obj),
        tuple(map(_read_toleration, read_objects(obj, "tolerations"))),
        0 if every else max(1, read_int(obj, "count", 1)),
        read_flag(obj, "adminAccess"),
        tuple(Amount((name,), _read_exact(asked[name]) or 0) for name in sorted(asked)),
        read_name(obj, "name"),
    )


def _read_toleration(obj: Raw) -> Toleration:
    operator = read_name(obj, "operator", "Equal")
    return Toleration(read_name(obj, "key"), operator, read_name(obj, "value"), read_name(obj, "effect"))


class ClaimRef(NamedTuple):
    """How a pod names a claim."""

    template: str
    """The template that it is made from; "" for one that a user has made."""

    claim: str
    """Its name, "" before it is made, or where none is needed."""


def read_claim_refs(spec: Raw, status: Raw) -> tuple[ClaimRef, ...]:
    """The claims of a pod, in its order (resourceclaim.Name)."""
    entries = read_objects(status, "resourceClaimStatuses") if spec.get("resourceClaims") else []
    made = {read_text(entry, "name"): read_text(entry, "resourceClaimName") for entry in entries}
    return tuple(
        ClaimRef("", read_text(each, "resourceClaimName"))
        if not read_text(each, "resourceClaimTemplateName")
        else ClaimRef(read_name(each, "resourceClaimTemplateName"), made.get(read_text(each, "name"), ""))
        for each in read_objects(spec, "resourceClaims")
    )


def read_unclaimed(spec: Raw, status: Raw) -> str:
    """The first template from which a claim of the pod has still to be made, "" if all are made.

    kube-controller-manager makes the claim and notes it in the pod's status; kube-scheduler waits for that.
    """
    claims = read_objects(spec, "resourceClaims")
    if not claims:
        return ""
    made = {read_text(entry, "name") for entry in read_objects(status, "resourceClaimStatuses")}
    templates = (read_name(c, "resourceClaimTemplateName") for c in claims if read_text(c, "name") not in made)
    return next(filter(None, templates), "")
