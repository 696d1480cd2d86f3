"""A pod's rules about other pods (`InterPodRules`): required affinity and anti-affinity, and topology spread.

Only hard rules are read; preferred terms and ScheduleAnyway are left to kube-scheduler. Source: kube-scheduler 1.37,
pkg/scheduler/framework/types.go (getAffinityTerms), plugins interpodaffinity and podtopologyspread.

The decoder of pods (`serried.api.pod.decode_shape`) calls `read_interpod_rules`; the rule `serried.rules.interpod`
evaluates the result.

The pods that a rule is about are a `Matching`. To count them, Serried adds pseudo resources to the requests of pods
(`serried.api.pod.Shape.requests`): entries in its own copy of the pod, which Kubernetes does not know. A pod that
matches a rule requests 1 of ``counts:MATCHING``. A pod whose anti-affinity excludes such pods requests another pseudo
resource, whose name begins with ``apart:`` (`AntiAffinityTerm.amount`). The usage of a node is the sum of its pods'
requests, so it also says how many matching pods run there, and how many pods that exclude them.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from serried.api.names import (
    Malformed,
    Raw,
    decode_or_malformed,
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
"""The prefix of the request that Serried adds to a pod for each anti-affinity term (`AntiAffinityTerm.amount`).

The request is for a pseudo resource, i.e. a name that only Serried's copy of the pod has. Kubernetes does not know it.
"""

REPELLED = "alike:"
"""The prefix of names in the results of `find_affecting_names` and `list_affected_names`; no pod requests them.

`find_affecting_names` returns such a name for a pod with an `AntiAffinityTerm.alike` term. `list_affected_names` yields
the same name for each waiting pod that the term excludes, unless the waiting pod has the same term itself.
"""

COUNTS = "counts:"
"""The prefix of the request that Serried adds to a pod which matches an inter-pod rule of some pod, maybe its own.

The sum of these requests on a node is the number of matching pods there.
"""

NAMESPACES_UNREADABLE = f"{COUNTS}?"
"""The request that Serried adds to a pod whose rules select namespaces by label, while RBAC forbids to list namespaces.

Serried cannot count the matching pods then, and leaves the rule to kube-scheduler.
"""

SHARED_CLAIM = f"{COUNTS}claim "
"""The prefix of the request that Serried adds to pods that share a device claim, and so one node (`share_claim`)."""

ABSENT = "absent:"
"""The prefix before ``COUNTS`` in the requests of a vacancy: the slot that is kept for the replacement of a member.

So ``counts:X``, which counts a pod that matches rule X, becomes ``absent:counts:X``. The missing pod counts for
anti-affinity, so that no pod that excludes the replacement takes a place beside it. It does not count for affinity and
spread, because no pod is there.
"""

_SEPARATOR = "|"
"""Separates topology key and `Matching.name` in an `AntiAffinityTerm.amount`; it cannot occur in a label key."""

_TERMS = "requiredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True, slots=True)
class Namespace:
    """A namespace; rules may select it by its labels."""

    name: str
    labels: Labels = field(default_factory=dict)
    version: str = ""


def decode_namespace(obj: object) -> Namespace | Malformed:
    """Decode a Namespace; the name is required."""
    return decode_or_malformed("Namespace", _decode_namespace, obj)


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
    """The requirements on the labels of namespaces that are selected in addition to ``namespaces``.

    () selects all namespaces, None no additional ones.
    """

    def selects(self, namespace: str, labels: Labels, namespace_labels: Labels) -> bool:
        """Return whether a pod with this namespace and labels is selected.

        ``namespace_labels`` are the labels of its namespace.
        """
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
    """The pods that a rule is about: a pod matches if each of the ``selections`` selects it."""

    selections: tuple[Selection, ...]

    living: bool = False
    """True if pods that are being deleted do not match, as for topology spread."""

    @property
    def name(self) -> str:
        """A canonical string: matchings with the same meaning have the same name."""
        return _name(self)

    @property
    def by_namespace_labels(self) -> bool:
        """Return whether a selection also selects namespaces by label, so that their labels decide which pods match."""
        return any(each.namespace_labels for each in self.selections)

    @property
    def amount(self) -> str:
        """The name under which Serried counts the matching pods: to the requests of each it adds 1 of this name.

        It is a pseudo resource in `serried.api.pod.Shape.requests`, which Kubernetes does not know.
        """
        return COUNTS + self.name

    def __str__(self) -> str:
        """Return the label selectors for messages, for instance ``app=web``."""
        return " and ".join(describe_requirements(each.labels or ()) for each in self.selections)


@dataclass(frozen=True, slots=True)
class AffinityRule:
    """The required pod affinity of a pod. For each topology key, the pod's domain must contain a matching pod.

    A pod matches if all affinity terms select it. ``keys`` are the topology keys of the terms.
    """

    matching: Matching
    keys: tuple[str, ...]

    follows: bool = False
    """True for a member that shares a device claim with other members, if another one of these is placed first.

    The planner counts the devices of the claim only for that first member; the others have to run on the same node.
    """


@dataclass(frozen=True, slots=True)
class AntiAffinityTerm:
    """A term of required anti-affinity: no matching pod may be in the same domain of topology key ``key``."""

    matching: Matching
    key: str

    alike: bool = False
    """True if the key is the host name and the term matches the pod that has it, as for one replica per node.

    Two pods with the term then exclude each other on a node. So Serried adds a request to each (`amount`) that is as
    large as the capacity which it assumes for a node, SHARES.
    """

    @property
    def amount(self) -> tuple[str, int]:
        """The request that Serried adds to a pod with this term, as (name, amount).

        The name is a pseudo resource, which Kubernetes does not know. The amount is 1, and only counts the pods with
        the term. If the term keeps equal pods on different nodes (``alike``), the amount is SHARES, which is all that a
        node has of a pseudo resource: so two such pods never fit on one node.
        """
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
    """The minDomains: if fewer domains have a node for the pod, the emptiest one counts as having 0 matching pods."""

    by_affinity: bool = True
    """True if nodes that the pod's node selector or affinity excludes are ignored (nodeAffinityPolicy Honor)."""

    by_taints: bool = False
    """True if nodes with taints that the pod does not tolerate are ignored (nodeTaintsPolicy Honor)."""

    itself: bool = False
    """True if the selector matches the pod itself."""


@dataclass(frozen=True, slots=True)
class InterPodRules:
    """The hard rules of a pod about other pods."""

    beside: AffinityRule | None = None
    apart: tuple[AntiAffinityTerm, ...] = ()
    spread: tuple[Spread, ...] = ()

    @property
    def matchings(self) -> Iterator[Matching]:
        """Yield the `Matching` of each rule, i.e. the pods that it is about: affinity, anti-affinity, then spread."""
        if self.beside is not None:
            yield self.beside.matching
        yield from (rule.matching for rule in self.apart)
        yield from (rule.matching for rule in self.spread)


@lru_cache(maxsize=1024)
def share_claim(namespace: str, claim: str) -> AffinityRule:
    """Return the rule that keeps pods with a common device claim on one node.

    ``claim`` is the name of the ResourceClaim. The rule is a pod affinity by host name, to the pods with the claim.
    """
    who = Selection(
        (f"{SHARED_CLAIM.removeprefix(COUNTS)}{namespace}",), (Requirement("ResourceClaim", "In", (claim,)),)
    )
    return AffinityRule(Matching((who,)), (HOSTNAME,))


@lru_cache(maxsize=4096)
def _name(matching: Matching) -> str:
    return ("live " if matching.living else "") + " and ".join(each.name for each in matching.selections)


def to_vacancy_requests(requests: Iterable[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    """Return the requests of a vacancy: the slot of a member that has ended, which is kept for its replacement.

    ``requests`` are those of the member. Those by which Serried counts pods that match a rule (COUNTS) get the prefix
    ABSENT, because no pod is there until the replacement is. All others stay as they are.
    """
    return tuple(
        (f"{ABSENT}{name}" if name.startswith(COUNTS) and not name.startswith(SHARED_CLAIM) else name, amount)
        for name, amount in requests
    )


@lru_cache(maxsize=4096)
def find_affecting_names(requests: tuple[tuple[str, int], ...]) -> frozenset[str]:
    """Return names for the rules of other pods that are affected if a pod with these ``requests`` is added or removed.

    The names are opaque: compare them with those of `list_affected_names`. A waiting pod for which that yields one of
    them may now fit on other nodes than before, anywhere in the cluster. For instance a pod with label app=web ends,
    and a waiting pod has an anti-affinity to app=web. For an `AntiAffinityTerm.alike` term the name has the prefix
    REPELLED: it is no name of waiting pods with the same term, because for these the term only changes one node.
    """
    reached: set[str] = set()
    for name, amount in requests:
        if name.startswith((COUNTS, ABSENT)):
            reached.add(name.removeprefix(ABSENT))
        elif name.startswith(APART):
            reached.add((APART if amount == 1 else REPELLED) + read_apart(name)[1])
    return frozenset(reached)


def list_affected_names(requests: Iterable[tuple[str, int]], rules: InterPodRules | None) -> Iterator[str]:
    """Yield names for the rules about other pods that decide where a waiting pod may run.

    These are its own ``rules``, and the anti-affinity terms of other pods that exclude it, by its ``requests``. The
    names are opaque. If one is among the `find_affecting_names` of a pod that is added or removed, the waiting pod
    should be planned again.
    """
    if rules is not None:
        yield from (each.amount for each in rules.matchings)
    asked = {name for name, _ in requests}
    for name in asked:
        if name.startswith(SHARED_CLAIM):
            yield name
        elif name.startswith(COUNTS):
            apart = APART + name.removeprefix(COUNTS)
            yield apart
            if apart not in asked:
                yield REPELLED + name.removeprefix(COUNTS)


def read_apart(name: str) -> tuple[str, str]:
    """Return the topology key and `Matching.name` of an anti-affinity term.

    ``name`` is that of the request which Serried adds to a pod with the term (`AntiAffinityTerm.amount`).
    """
    key, at, matching = name.removeprefix(APART).partition(_SEPARATOR)
    return (key, matching) if at else (HOSTNAME, key)


def read_interpod_rules(pod: Raw) -> InterPodRules | None:
    """Return the hard rules of a raw pod about other pods; None if it has none, as most pods."""
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


def _read_beside(terms: Iterable[Raw], namespace: str, labels: Labels) -> AffinityRule:
    terms = list(terms)
    found = sorted({_read_selection(term, namespace, labels) for term in terms}, key=lambda each: each.name)
    return AffinityRule(Matching(tuple(found)), tuple(dict.fromkeys(read_text(term, "topologyKey") for term in terms)))


def _read_apart(term: Raw, namespace: str, labels: Labels) -> AntiAffinityTerm:
    selection, key = _read_selection(term, namespace, labels), read_text(term, "topologyKey")
    # The labels of the pod's namespace are not known here.
    alike = key == HOSTNAME and not selection.namespace_labels and selection.selects(namespace, labels, {})
    return AntiAffinityTerm(Matching((selection,)), key, alike)


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
    """Return the requirements ``wanted``, and one ``key operator value`` for each of the ``keys`` in the pod's labels.

    The values are those of ``labels``. That is how matchLabelKeys and mismatchLabelKeys extend a selector. The API
    server has done so in the pods that were created through it, but not in pods from a file.
    """
    more = {Requirement(key, operator, (labels[key],)) for key in keys if key in labels}
    if not more:
        return wanted
    return tuple(sorted({*wanted, *more}, key=lambda each: (each.key, each.operator, each.values)))


def describe_requirements(requirements: Iterable[Requirement]) -> str:
    """Return requirements for messages: ``app=web``, or ``app NotIn (a,b)``; "any pod" for none."""
    said = (
        f"{each.key}={each.values[0]}" if each.operator == "In" and len(each.values) == 1 else name_requirements([each])
        for each in requirements
    )
    return ",".join(said) or "any pod"


def name_requirements(requirements: Iterable[Requirement]) -> str:
    """Return requirements as one string that is equal for requirements with the same meaning."""
    return "&".join(f"{each.key} {each.operator} ({','.join(each.values)})" for each in requirements)
