"""What keeps two pods off one node although there is room for both: host ports, and anti-affinity by host name.

Both become amounts of things that every node has alike (``serried.model.resources.SHARES``), so that everything that
counts resources keeps them apart, too. The rules are those of kube-scheduler's NodePorts (HostPortInfo.CheckConflict)
and InterPodAffinity.
"""

from collections.abc import Iterator

from serried.decode.fields import Raw, read_int, read_labels, read_map, read_objects, read_text, read_texts
from serried.model.resources import SHARES

HOSTNAME = "kubernetes.io/hostname"

_ANY_ADDRESS = frozenset({"", "0.0.0.0"})  # noqa: S104  # read, not bound
_TERMS = "requiredDuringSchedulingIgnoredDuringExecution"


def read_conflicts(pod: Raw) -> dict[str, int]:
    """The amounts that a raw pod asks for so that it does not meet another one that is in its way; mostly none."""
    spec = read_map(pod, "spec")
    asked = _read_ports(spec)
    affinity = read_map(spec, "affinity")
    if affinity:
        terms = read_objects(read_map(affinity, "podAntiAffinity"), _TERMS)
        asked.update((name, SHARES) for name in _read_terms(terms, read_map(pod, "metadata")))
    return asked


def _read_ports(spec: Raw) -> dict[str, int]:
    """All of a port if it is taken on every address, else one share of it, and all of it on that address."""
    asked: dict[str, int] = {}
    sidecars = [init for init in read_objects(spec, "initContainers") if init.get("restartPolicy") == "Always"]
    for container in (*read_objects(spec, "containers"), *sidecars):
        for port in read_objects(container, "ports") if container.get("ports") else ():
            number = read_int(port, "hostPort")
            address = read_text(port, "hostIP")
            if number <= 0:
                continue
            name = f"hostPort:{read_text(port, 'protocol', 'TCP')}/{number}"
            there = f"{name}/{address}"
            if address in _ANY_ADDRESS:
                asked[name] = SHARES
            elif there not in asked:
                asked[there] = SHARES
                asked[name] = min(SHARES, asked.get(name, 0) + 1)
    return asked


def _read_terms(terms: list[Raw], metadata: Raw) -> Iterator[str]:
    """A name for each term that keeps pods of its kind off each other's nodes: those that carry it and are meant by it.

    Two pods that share such a name are in each other's way. Not so named, and left to the scheduler: terms of other
    topology keys, those that mean other pods than the one that carries them, and those that choose namespaces by label.
    """
    for term in terms:
        if read_text(term, "topologyKey") == HOSTNAME and (scope := _read_scope(term, metadata)):
            requirements = _read_requirements(term)
            if requirements is not None and _is_met(requirements, read_labels(metadata, "labels")):
                yield f"apart:{scope}/{_name_requirements(requirements)}"


def _read_scope(term: Raw, metadata: Raw) -> str:
    """A name for the namespaces that a term means, "" if it is not known that the pod's own is among them."""
    own = read_text(metadata, "namespace")
    namespaces = read_texts(term, "namespaces")
    if term.get("namespaceSelector") is None:
        among = sorted(set(namespaces)) or [own]
        return ",".join(among) if own in among else ""
    return "*" if not any(map(bool, read_map(term, "namespaceSelector").values())) else ""


Requirements = tuple[tuple[str, str, tuple[str, ...]], ...]
"""Key, operator and values of each, sorted."""


def _read_requirements(term: Raw) -> Requirements | None:
    """A label selector; None without one, which matches nothing."""
    if term.get("labelSelector") is None:
        return None
    selector = read_map(term, "labelSelector")
    found: set[tuple[str, str, tuple[str, ...]]] = set()
    found.update((key, "In", (value,)) for key, value in read_labels(selector, "matchLabels").items())
    for raw in read_objects(selector, "matchExpressions"):
        values = tuple(sorted(set(read_texts(raw, "values"))))
        found.add((read_text(raw, "key"), read_text(raw, "operator"), values))
    return tuple(sorted(found))


def _is_met(requirements: Requirements, labels: dict[str, str]) -> bool:
    return all(_meets(labels.get(key), operator, values) for key, operator, values in requirements)


def _meets(value: str | None, operator: str, values: tuple[str, ...]) -> bool:
    match operator:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    return False


def _name_requirements(requirements: Requirements) -> str:
    return "&".join(f"{key} {operator} ({','.join(values)})" for key, operator, values in requirements)
