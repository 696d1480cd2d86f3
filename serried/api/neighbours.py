"""Beside which pods a pod must be, or must not be, and over which domains it is spread: what members are to each other.

Required inter-pod affinity and anti-affinity, and topology spread that forbids (DoNotSchedule), as kube-scheduler 1.37
reads them (pkg/scheduler/framework/types.go: getAffinityTerms; plugins interpodaffinity and podtopologyspread).
Preferred terms are left to the scheduler.

Which pods count for a rule is a `Matching`. That a pod counts for one is an amount in its shape (``counts:``), and that
it keeps those pods away is another (``apart:``): so whatever knows what is used on a node knows who is there.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from serried.api.names import (
    Malformed,
    Raw,
    attempt,
    read_int,
    read_key,
    read_labels,
    read_map,
    read_objects,
    read_text,
    read_texts,
    read_version,
)
from serried.api.resources import SHARES
from serried.api.selectors import Labels, Requirement, read_label_selector, selects

HOSTNAME = "kubernetes.io/hostname"

APART = "apart:"
"""How the name of the amount begins that a pod has which keeps others away."""

ALIKE = "alike:"
"""As ``APART``, for a pod without that rule: pods that have it, and keep their own kind off, keep it off, too."""

COUNTS = "counts:"
"""How the name of the amount begins that a pod has which counts for a rule of others, or of its own."""

UNSEEN = f"{COUNTS}?"
"""What a pod has whose rules choose namespaces by label, while namespaces cannot be seen: those are the scheduler's."""

SHARING = f"{COUNTS}claim "
"""How the name of the amount begins that pods have which share a claim of devices, and so a node (`share_claim`)."""

ABSENT = "absent:"
"""The prefix of ``COUNTS`` on a slot that is kept for a replacement: anti-affinity counts it, affinity does not."""

_AT = "|"
"""Between the topology key of a term and who it is about; no label has it."""

_TERMS = "requiredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True, slots=True)
class Namespace:
    """A namespace: rules choose some by their labels."""

    name: str
    labels: Labels = field(default_factory=dict)
    version: str = ""


def decode_namespace(obj: object) -> Namespace | Malformed:
    """A Namespace from its JSON object; the name is required."""
    return attempt("Namespace", _decode_namespace, obj)


def _decode_namespace(obj: Raw) -> Namespace:
    return Namespace(read_key(obj).name, read_labels(read_map(obj, "metadata"), "labels"), read_version(obj))


@dataclass(frozen=True, slots=True)
class Selection:
    """The pods of some namespaces that carry some labels."""

    namespaces: tuple[str, ...]
    """Sorted, without repeats."""

    labels: tuple[Requirement, ...] | None
    """None selects no pod."""

    namespace_labels: tuple[Requirement, ...] | None = None
    """Namespaces with these labels count, too; () is all, None no more than those that are named."""

    def selects(self, namespace: str, labels: Labels, namespace_labels: Labels) -> bool:
        """Whether a pod is meant, by its namespace and the labels of both."""
        if self.labels is None or not selects(self.labels, labels):
            return False
        if namespace in self.namespaces:
            return True
        wanted = self.namespace_labels
        return wanted is not None and selects(wanted, namespace_labels)

    @property
    def name(self) -> str:
        """One text for what means the same."""
        if self.namespace_labels is None:
            scope = ",".join(self.namespaces)
        elif self.namespace_labels:
            scope = f"{','.join(self.namespaces)}+({name_requirements(self.namespace_labels)})"
        else:
            scope = "*"
        return f"{scope}/{'none' if self.labels is None else name_requirements(self.labels)}"


@dataclass(frozen=True, slots=True)
class Matching:
    """The pods that count for a rule: those that each of these selections means."""

    selections: tuple[Selection, ...]

    living: bool = False
    """Whether pods that are being deleted do not count."""

    @property
    def name(self) -> str:
        """One text for what means the same."""
        return _name(self)

    @property
    def by_namespace_labels(self) -> bool:
        """Whether the labels of namespaces decide who counts."""
        return any(each.namespace_labels for each in self.selections)

    @property
    def amount(self) -> str:
        """The name of the amount that a pod has which counts."""
        return COUNTS + self.name

    def __str__(self) -> str:
        """The labels of who counts, for people."""
        return " and ".join(describe_requirements(each.labels or ()) for each in self.selections)


@dataclass(frozen=True, slots=True)
class Beside:
    """Required affinity: in each of these domains must be a pod that counts, one that all terms mean."""

    matching: Matching
    keys: tuple[str, ...]

    follows: bool = False
    """Whether a plan places another pod first: the one that asks for the devices of a claim that they share."""


@dataclass(frozen=True, slots=True)
class Apart:
    """A term of required anti-affinity: no pod that counts may be in the domain."""

    matching: Matching
    key: str

    alike: bool = False
    """Whether it is by host name and means the pod itself: then two that have it share no node, as an amount says."""

    @property
    def amount(self) -> tuple[str, int]:
        """The amount that a pod with this term has."""
        if self.alike:
            return APART + self.matching.name, SHARES
        return f"{APART}{self.key}{_AT}{self.matching.name}", 1


@dataclass(frozen=True, slots=True)
class Spread:
    """A constraint of topology spread that forbids: no domain may have ``max_skew`` more than the least one."""

    matching: Matching
    key: str
    max_skew: int

    min_domains: int = 1
    """With fewer domains than this, the least one counts as empty."""

    by_affinity: bool = True
    """Whether nodes that the pod's own selector or affinity leaves out do not count (nodeAffinityPolicy)."""

    by_taints: bool = False
    """The same of nodes with taints that it does not tolerate (nodeTaintsPolicy)."""

    itself: bool = False
    """Whether the selector means the pod."""


@dataclass(frozen=True, slots=True)
class Neighbours:
    """A pod's rules about other pods."""

    beside: Beside | None = None
    apart: tuple[Apart, ...] = ()
    spread: tuple[Spread, ...] = ()

    @property
    def matchings(self) -> Iterator[Matching]:
        """Who counts for any of these rules."""
        if self.beside is not None:
            yield self.beside.matching
        yield from (rule.matching for rule in self.apart)
        yield from (rule.matching for rule in self.spread)


@lru_cache(maxsize=1024)
def share_claim(namespace: str, claim: str) -> Beside:
    """The rule of pods that share a claim for devices of one node: it is as if each had affinity to all of them."""
    who = Selection((f"{SHARING.removeprefix(COUNTS)}{namespace}",), (Requirement("ResourceClaim", "In", (claim,)),))
    return Beside(Matching((who,)), (HOSTNAME,))


@lru_cache(maxsize=4096)
def _name(matching: Matching) -> str:
    return ("live " if matching.living else "") + " and ".join(each.name for each in matching.selections)


def count_absent(requests: Iterable[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    """Return the requests of a member that has ended as those of its kept slot."""
    return tuple(
        (f"{ABSENT}{name}" if name.startswith(COUNTS) and not name.startswith(SHARING) else name, amount)
        for name, amount in requests
    )


@lru_cache(maxsize=4096)
def find_reached(requests: tuple[tuple[str, int], ...]) -> frozenset[str]:
    """Return the amounts of these requests by which it matters on other nodes, too, that they come to one or leave it.

    Those with which a pod counts for a matching, and those with which it keeps off the pods of one. To pods that are
    alike a node says by its own amounts whether one of them is there (`Apart.alike`).
    """
    reached: set[str] = set()
    for name, amount in requests:
        if name.startswith((COUNTS, ABSENT)):
            reached.add(name.removeprefix(ABSENT))
        elif name.startswith(APART):
            reached.add((APART if amount == 1 else ALIKE) + read_apart(name)[1])
    return frozenset(reached)


def list_concerns(requests: Iterable[tuple[str, int]], neighbours: Neighbours | None) -> Iterator[str]:
    """What concerns a pod that waits: who counts for its own rules, and whose rules it counts for."""
    if neighbours is not None:
        yield from (each.amount for each in neighbours.matchings)
    asked = {name for name, _ in requests}
    for name in asked:
        if name.startswith(SHARING):
            yield name
        elif name.startswith(COUNTS):
            apart = APART + name.removeprefix(COUNTS)
            yield apart
            if apart not in asked:
                yield ALIKE + name.removeprefix(COUNTS)


def read_apart(name: str) -> tuple[str, str]:
    """The topology key and the name of the matching in the name of an amount of `Apart`."""
    key, at, matching = name.removeprefix(APART).partition(_AT)
    return (key, matching) if at else (HOSTNAME, key)


def read_neighbours(pod: Raw) -> Neighbours | None:
    """A pod's rules about other pods; None for most pods."""
    spec = read_map(pod, "spec")
    affinity = read_map(spec, "affinity")
    constraints = [each for each in _read_list(spec, "topologySpreadConstraints") if _forbids(each)]
    if not (affinity.get("podAffinity") or affinity.get("podAntiAffinity") or constraints):
        return None
    metadata = read_map(pod, "metadata")
    namespace, labels = read_text(metadata, "namespace"), read_labels(metadata, "labels")
    beside = read_objects(read_map(affinity, "podAffinity"), _TERMS)
    apart = read_objects(read_map(affinity, "podAntiAffinity"), _TERMS)
    found = Neighbours(
        _read_beside(beside, namespace, labels) if beside else None,
        tuple(dict.fromkeys(_read_apart(term, namespace, labels) for term in apart if _means_somebody(term))),
        tuple([_read_spread(each, namespace, labels) for each in constraints]),
    )
    return found if found != _NOBODY else None


_NOBODY = Neighbours()


def _read_list(spec: Raw, name: str) -> Iterable[Raw]:
    return read_objects(spec, name) if spec.get(name) else ()


def _forbids(constraint: Raw) -> bool:
    return read_text(constraint, "whenUnsatisfiable", "DoNotSchedule") == "DoNotSchedule"


def _means_somebody(term: Raw) -> bool:
    return term.get("labelSelector") is not None


def _read_beside(terms: Iterable[Raw], namespace: str, labels: Labels) -> Beside:
    terms = list(terms)
    found = sorted({_read_selection(term, namespace, labels) for term in terms}, key=lambda each: each.name)
    return Beside(Matching(tuple(found)), tuple(dict.fromkeys(read_text(term, "topologyKey") for term in terms)))


def _read_apart(term: Raw, namespace: str, labels: Labels) -> Apart:
    selection, key = _read_selection(term, namespace, labels), read_text(term, "topologyKey")
    # Of a namespace's labels nothing is known here.
    alike = key == HOSTNAME and not selection.namespace_labels and selection.selects(namespace, labels, {})
    return Apart(Matching((selection,)), key, alike)


def _read_selection(term: Raw, namespace: str, labels: Labels) -> Selection:
    namespaces = tuple(sorted(set(read_texts(term, "namespaces"))))
    by_label = read_label_selector(term, "namespaceSelector")
    if not namespaces and by_label is None:
        namespaces = (namespace,)
    if by_label == ():
        namespaces = ()
    wanted = read_label_selector(term, "labelSelector")
    if wanted is not None:
        wanted = _merge(wanted, "In", read_texts(term, "matchLabelKeys"), labels)
        wanted = _merge(wanted, "NotIn", read_texts(term, "mismatchLabelKeys"), labels)
    return Selection(namespaces, wanted, by_label)


def _read_spread(constraint: Raw, namespace: str, labels: Labels) -> Spread:
    wanted = read_label_selector(constraint, "labelSelector")
    if wanted is not None:
        wanted = _merge(wanted, "In", read_texts(constraint, "matchLabelKeys"), labels)
    # An empty selector means the pod itself, and none of those that are there (common.go: countPodsMatchSelector).
    counted = Selection((namespace,), wanted or None)
    return Spread(
        Matching((counted,), living=True),
        read_text(constraint, "topologyKey"),
        read_int(constraint, "maxSkew"),
        read_int(constraint, "minDomains", 1) or 1,
        by_affinity=read_text(constraint, "nodeAffinityPolicy", "Honor") == "Honor",
        by_taints=read_text(constraint, "nodeTaintsPolicy", "Ignore") == "Honor",
        itself=wanted is not None and selects(wanted, labels),
    )


def _merge(
    wanted: tuple[Requirement, ...], operator: str, keys: Iterable[str], labels: Labels
) -> tuple[Requirement, ...]:
    """The requirements with those of a pod's own labels; the API server has merged them, but for what is not sent."""
    more = {Requirement(key, operator, (labels[key],)) for key in keys if key in labels}
    if not more:
        return wanted
    return tuple(sorted({*wanted, *more}, key=lambda each: (each.key, each.operator, each.values)))


def describe_requirements(requirements: Iterable[Requirement]) -> str:
    """Requirements as people write them."""
    said = (
        f"{each.key}={each.values[0]}" if each.operator == "In" and len(each.values) == 1 else name_requirements([each])
        for each in requirements
    )
    return ",".join(said) or "any pod"


def name_requirements(requirements: Iterable[Requirement]) -> str:
    """Requirements as one text."""
    return "&".join(f"{each.key} {each.operator} ({','.join(each.values)})" for each in requirements)
