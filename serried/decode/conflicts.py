"""Host ports and anti-affinity by host name: they keep two pods off one node that has room for both.

Both become requests for amounts of which every node has the same (``serried.model.resources.SHARES``), so whatever
counts resources keeps such pods apart. The rules are those of kube-scheduler's NodePorts
(HostPortInfo.CheckConflict) and InterPodAffinity.
"""

from collections.abc import Iterable, Iterator

from serried.decode.fields import Raw, read_int, read_labels, read_map, read_objects, read_text, read_texts
from serried.decode.selectors import read_label_selector, selects
from serried.model.resources import SHARES
from serried.model.selectors import Requirement

HOSTNAME = "kubernetes.io/hostname"

APART = "apart:"
"""How the name of the amount begins that stands for a term of anti-affinity."""

_ANY_ADDRESS = frozenset({"", "0.0.0.0"})  # noqa: S104  # read, not bound
_TERMS = "requiredDuringSchedulingIgnoredDuringExecution"


def read_conflicts(pod: Raw) -> dict[str, int]:
    """The amounts that stand for the pod's host ports and anti-affinity terms; empty for most pods."""
    spec = read_map(pod, "spec")
    asked = _read_ports(spec)
    affinity = read_map(spec, "affinity")
    if affinity:
        terms = read_objects(read_map(affinity, "podAntiAffinity"), _TERMS)
        asked.update((name, SHARES) for name in _read_terms(terms, read_map(pod, "metadata")))
    return asked


def read_affinity(spec: Raw) -> tuple[tuple[Requirement, ...], ...]:
    """The selectors of the pod's required affinity to pods; empty for most pods."""
    affinity = read_map(spec, "affinity")
    terms = read_objects(read_map(affinity, "podAffinity"), _TERMS) if affinity else ()
    found = (read_label_selector(term, "labelSelector") for term in terms)
    return tuple([each for each in found if each is not None])


def _read_ports(spec: Raw) -> dict[str, int]:
    """All shares of a port that is taken on every address; else one of its shares, and all shares on that address."""
    asked: dict[str, int] = {}
    sidecars = [init for init in read_objects(spec, "initContainers") if init.get("restartPolicy") == "Always"]
    for container in (*read_objects(spec, "containers"), *sidecars):
        for port in read_objects(container, "ports") if container.get("ports") else ():
            number = read_int(port, "hostPort")
            address = read_text(port, "hostIP")
            if number <= 0:
                continue
            name = f"hostPort:{read_text(port, 'protocol', 'TCP')}/{number}"
            name_at_address = f"{name}/{address}"
            if address in _ANY_ADDRESS:
                asked[name] = SHARES
            elif name_at_address not in asked:
                asked[name_at_address] = SHARES
                asked[name] = min(SHARES, asked.get(name, 0) + 1)
    return asked


def _read_terms(terms: list[Raw], metadata: Raw) -> Iterator[str]:
    """A name for each term by host name that selects the pod itself; two pods with the same name must not meet.

    Three sorts of terms are left to the scheduler: terms with another topology key, terms that do not select their own
    pod, and terms that choose namespaces by label.
    """
    labels = read_labels(metadata, "labels") if terms else {}
    for term in terms:
        if read_text(term, "topologyKey") == HOSTNAME and (scope := _read_scope(term, metadata)):
            requirements = read_label_selector(term, "labelSelector")
            if requirements is not None and selects(requirements, labels):
                yield f"{APART}{scope}/{_name_requirements(requirements)}"


def _read_scope(term: Raw, metadata: Raw) -> str:
    """A name for the namespaces of a term; "" if the pod's own is not among them, or is not known to be."""
    own = read_text(metadata, "namespace")
    namespaces = read_texts(term, "namespaces")
    if term.get("namespaceSelector") is None:
        selected = sorted(set(namespaces)) or [own]
        return ",".join(selected) if own in selected else ""
    return "*" if not any(map(bool, read_map(term, "namespaceSelector").values())) else ""


def _name_requirements(requirements: Iterable[Requirement]) -> str:
    return "&".join(f"{each.key} {each.operator} ({','.join(each.values)})" for each in requirements)
