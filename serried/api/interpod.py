"""A pod's rules about other pods (`InterPodRules`): required affinity and anti-affinity, and topology spread.

Only hard rules are read; preferred terms and ScheduleAnyway are left to kube-scheduler. Source: kube-scheduler 1.37,
pkg/scheduler/framework/types.go (getAffinityTerms), plugins interpodaffinity and podtopologyspread.

The pods that count for a rule are a `Matching`. Rules are encoded as amounts of pseudo resources in the shapes of pods:
a pod that counts for a matching has the amount ``counts:...``, and a pod that keeps such pods away has ``apart:...``.
So the usage of a node, which sums up amounts, also says which pods are there.
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
"""The prefix of the amount of a pod with an anti-affinity term."""

ALIKE = "alike:"
"""The prefix of the name under which a pod without a term waits for pods that have it and that it would meet.

It is used in `find_reached` and `list_concerns` for terms with `Apart.alike`.
"""

COUNTS = "counts:"
"""The prefix of the amount of a pod that counts for a rule, its own or another pod's."""

UNSEEN = f"{COUNTS}?"
"""The amount of a pod whose rules select namespaces by label, while Serried cannot read namespaces.

Such rules are left to kube-scheduler.
"""

SHARING = f"{COUNTS}claim "
"""The prefix of the amount of pods that share a device claim, and so have to be on one node (`share_claim`)."""

ABSENT = "absent:"
"""A prefix before ``COUNTS``, for a slot that is kept for a replacement. Anti-affinity counts it, affinity does not."""

_SEPARATOR = "|"
"""The separator of topology key and matching in the name of an amount; it cannot occur in a label key."""

_TERMS = "requiredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True, slots=True)
class Namespace:
    """A namespace; rules may select it by its labels."""

    name: str
    labels: Labels = field(default_factory=dict)
    version: str = ""


def decode_namespace(obj: object) -> Namespace | Malformed:
    """Decode a Namespace; the name is required."""
    return attempt("Namespace", _decode_namespace, obj)


def _decode_namespace(obj: Raw) -> Namespace:
    return Namespace(read_key(obj).name, read_labels(read_map(obj, "metadata"), "labels"), read_version(obj))


@dataclass(frozen=True, slots=True)
class Selection:
    """The pods in certain namespaces with certain labels."""

    namespaces: tuple[str, ...]
    """The names of the namespaces, sorted, without repeats."""

    labels: tuple[Requirement, ...] | None
    """The requirements on the pod's labels; None selects no pod."""

    namespace_labels: tuple[Requirement, ...] | None = None
    """The requirements on labels of further namespaces; () means all namespaces, None no further ones."""

    def selects(self, namespace: str, labels: Labels, namespace_labels: Labels) -> bool:
        """Return whether a pod with this namespace and labels, in a namespace with these labels, is selected."""
        if self.labels is None or not selects(self.labels, labels):
            return False
        if namespace in self.namespaces:
            return True
        wanted = self.namespace_labels
        return wanted is not None and selects(wanted, namespace_labels)

    @property
    def name(self) -> str:
        """A canonical string: selections with the same meaning have the same name."""
        if self.namespace_labels is None:
            scope = ",".join(self.namespaces)
        elif self.namespace_labels:
            scope = f"{','.join(self.namespaces)}+({name_requirements(self.namespace_labels)})"
        else:
            scope = "*"
        return f"{scope}/{'none' if self.labels is None else name_requirements(self.labels)}"


@dataclass(frozen=True, slots=True)
class Matching:
    """The pods that count for a rule: those that all ``selections`` select."""

    selections: tuple[Selection, ...]

    living: bool = False
    """True if pods that are being deleted are excluded."""

    @property
    def name(self) -> str:
        """A canonical string: matchings with the same meaning have the same name."""
        return _name(self)

    @property
    def by_namespace_labels(self) -> bool:
        """Return whether labels of namespaces decide which pods count."""
        return any(each.namespace_labels for each in self.selections)

    @property
    def amount(self) -> str:
        """The name of the amount that a matching pod has in its shape."""
        return COUNTS + self.name

    def __str__(self) -> str:
        """Return the label selectors as users write them, for messages."""
        return " and ".join(describe_requirements(each.labels or ()) for each in self.selections)


@dataclass(frozen=True, slots=True)
class Beside:
    """A pod's required affinity: its domain of each key must contain a pod that matches all terms."""

    matching: Matching
    keys: tuple[str, ...]

    follows: bool = False
    """True if another member is placed first: the one whose shape has the devices of the shared claim."""


@dataclass(frozen=True, slots=True)
class Apart:
    """A term of required anti-affinity: no pod that counts may be in the domain."""

    matching: Matching
    key: str

    alike: bool = False
    """True if the key is the host name and the term matches the pod itself.

    Two pods with the term exclude each other on a node then, and one amount expresses that.
    """

    @property
    def amount(self) -> tuple[str, int]:
        """Name and amount that a pod with this term has in its shape."""
        if self.alike:
            return APART + self.matching.name, SHARES
        return f"{APART}{self.key}{_SEPARATOR}{self.matching.name}", 1


@dataclass(frozen=True, slots=True)
class Spread:
    """A hard topology spread constraint: no domain may have over ``max_skew`` pods more than the emptiest domain."""

    matching: Matching
    key: str
    max_skew: int

    min_domains: int = 1
    """With fewer domains than this, the emptiest domain counts as having 0 pods."""

    by_affinity: bool = True
    """True if nodes that the pod's node selector or affinity excludes are ignored (nodeAffinityPolicy Honor)."""

    by_taints: bool = False
    """True if nodes with taints that the pod does not tolerate are ignored (nodeTaintsPolicy Honor)."""

    itself: bool = False
    """True if the selector matches the pod itself."""


@dataclass(frozen=True, slots=True)
class InterPodRules:
    """The hard rules of a pod about other pods."""

    beside: Beside | None = None
    apart: tuple[Apart, ...] = ()
    spread: tuple[Spread, ...] = ()

    @property
    def matchings(self) -> Iterator[Matching]:
        """Yield the matchings of all rules."""
        if self.beside is not None:
            yield self.beside.matching
        yield from (rule.matching for rule in self.apart)
        yield from (rule.matching for rule in self.spread)


@lru_cache(maxsize=1024)
def share_claim(namespace: str, claim: str) -> Beside:
    """Return the rule for pods that share a device claim: affinity by host name to the other pods with the claim."""
    who = Selection((f"{SHARING.removeprefix(COUNTS)}{namespace}",), (Requirement("ResourceClaim", "In", (claim,)),))
    return Beside(Matching((who,)), (HOSTNAME,))


@lru_cache(maxsize=4096)
def _name(matching: Matching) -> str:
    return ("live " if matching.living else "") + " and ".join(each.name for each in matching.selections)


def count_absent(requests: Iterable[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    """Return the requests of a member that has ended as requests of the slot that is kept for its replacement."""
    return tuple(
        (f"{ABSENT}{name}" if name.startswith(COUNTS) and not name.startswith(SHARING) else name, amount)
        for name, amount in requests
    )


@lru_cache(maxsize=4096)
def find_reached(requests: tuple[tuple[str, int], ...]) -> frozenset[str]:
    """Return the names by which pods on other nodes are affected when a pod with these requests comes or goes.

    They are the amounts by which the pod counts for a matching or keeps matching pods away. `list_concerns` yields the
    names for the affected pods. (`Apart.alike` needs none among pods with the term: it concerns only the pod's node.)
    """
    reached: set[str] = set()
    for name, amount in requests:
        if name.startswith((COUNTS, ABSENT)):
            reached.add(name.removeprefix(ABSENT))
        elif name.startswith(APART):
            reached.add((APART if amount == 1 else ALIKE) + read_apart(name)[1])
    return frozenset(reached)


def list_concerns(requests: Iterable[tuple[str, int]], rules: InterPodRules | None) -> Iterator[str]:
    """Yield the names (as in `find_reached`) of what concerns a waiting pod.

    These are the pods that count for its rules, and the pods for whose rules it counts.
    """
    if rules is not None:
        yield from (each.amount for each in rules.matchings)
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
    """Return the topology key and the matching's name that the name of an `Apart` amount consists of."""
    key, at, matching = name.removeprefix(APART).partition(_SEPARATOR)
    return (key, matching) if at else (HOSTNAME, key)


def read_interpod_rules(pod: Raw) -> InterPodRules | None:
    """Return the hard rules of a raw pod about other pods; None for most pods."""
    spec = read_map(pod, "spec")
    affinity = read_map(spec, "affinity")
    constraints = [each for each in _read_list(spec, "topologySpreadConstraints") if _is_hard(each)]
    if not (affinity.get("podAffinity") or affinity.get("podAntiAffinity") or constraints):
        return None
    metadata = read_map(pod, "metadata")
    namespace, labels = read_text(metadata, "namespace"), read_labels(metadata, "labels")
    beside = read_objects(read_map(affinity, "podAffinity"), _TERMS)
    apart = read_objects(read_map(affinity, "podAntiAffinity"), _TERMS)
    found = InterPodRules(
        _read_beside(beside, namespace, labels) if beside else None,
        tuple(dict.fromkeys(_read_apart(term, namespace, labels) for term in apart if _has_selector(term))),
        tuple([_read_spread(each, namespace, labels) for each in constraints]),
    )
    return found if found != _NO_RULES else None


_NO_RULES = InterPodRules()


def _read_list(spec: Raw, name: str) -> Iterable[Raw]:
    return read_objects(spec, name) if spec.get(name) else ()


def _is_hard(constraint: Raw) -> bool:
    return read_text(constraint, "whenUnsatisfiable", "DoNotSchedule") == "DoNotSchedule"


def _has_selector(term: Raw) -> bool:
    return term.get("labelSelector") is not None


def _read_beside(terms: Iterable[Raw], namespace: str, labels: Labels) -> Beside:
    terms = list(terms)
    found = sorted({_read_selection(term, namespace, labels) for term in terms}, key=lambda each: each.name)
    return Beside(Matching(tuple(found)), tuple(dict.fromkeys(read_text(term, "topologyKey") for term in terms)))


def _read_apart(term: Raw, namespace: str, labels: Labels) -> Apart:
    selection, key = _read_selection(term, namespace, labels), read_text(term, "topologyKey")
    # The labels of the pod's namespace are not known here.
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
    # An empty selector matches the pod itself, but none of the existing pods (common.go: countPodsMatchSelector).
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
    """Return the requirements, extended by ``key operator value`` for those ``keys`` that the pod's labels have.

    The API server merges matchLabelKeys itself, but only into objects that were created through it.
    """
    more = {Requirement(key, operator, (labels[key],)) for key in keys if key in labels}
    if not more:
        return wanted
    return tuple(sorted({*wanted, *more}, key=lambda each: (each.key, each.operator, each.values)))


def describe_requirements(requirements: Iterable[Requirement]) -> str:
    """Return requirements as users write them, for messages."""
    said = (
        f"{each.key}={each.values[0]}" if each.operator == "In" and len(each.values) == 1 else name_requirements([each])
        for each in requirements
    )
    return ",".join(said) or "any pod"


def name_requirements(requirements: Iterable[Requirement]) -> str:
    """Return requirements as one canonical string."""
    return "&".join(f"{each.key} {each.operator} ({','.join(each.values)})" for each in requirements)
