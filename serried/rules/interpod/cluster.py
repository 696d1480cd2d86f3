"""Marks the pods that affinity, anti-affinity and topology spread of other pods select (`MatchingPods`).

The Store calls `MatchingPods` for each pod that such a rule may concern. A `Matching` is the pods that one such rule
selects, by namespaces and labels. Each matching has a pseudo resource, its amount, and each pod in the matching gets 1
of the amount in its requests. So the used resources of a node show how many of its pods are in a matching, also after a
plan has removed victims.

Rules only matter while they may restrict a gang, so the cost follows the waiting members:

- For the rules of a waiting member all selected pods are counted. When a rule is new, the existing pods are searched
  once, by one of its labels. After that, each added or changed pod is checked against the rules with its namespace and
  labels only.
- The anti-affinity of a running pod excludes members. Only waiting members get an amount for it.
- The rules of waiting pods without a gang restrict no gang.

Sources: interpodaffinity/filtering.go and podtopologyspread/filtering.go of kube-scheduler 1.37.
"""

from collections import ChainMap, Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import islice, takewhile
from operator import attrgetter
from typing import NamedTuple

from serried.api.device import NOTHING, HypotheticalClaims
from serried.api.interpod import (
    APART,
    COUNTS,
    NAMESPACES_UNREADABLE,
    SHARED_CLAIM,
    Matching,
    Namespace,
    decode_namespace,
    find_affecting_names,
)
from serried.api.node import Node
from serried.api.pod import Phase, Pod, Shape, may_be_repelled
from serried.cluster.due import Due
from serried.cluster.index import discard
from serried.cluster.rule import AT_ONCE, Ground, KindState, Rule, RuleChanges, RuleKind

_MAX_IDLE = 256
"""The maximum number of rules' selections of pods (`Matching`) that are still counted after no pod has the rule.

They are kept because a gang with the same rule may follow.
"""

_HAS_RULES: Callable[[Pod], object] = attrgetter("shape.neighbours")

_ANYWHERE = ""
"""The namespace in `_MatchingIndex` for a rule that selects namespaces by their labels."""

Place = tuple[str, str, str]
"""A namespace, a label key and its value."""


class MatchingPods(Rule):
    """The rule about other pods: marks in the requests of a pod by which rules of other pods it is selected.

    For each `Matching` (the pods that one rule selects) that the pod is in, it requests 1 of a pseudo resource, the
    amount. If the rules of a pod or the labels of a namespace change, other pods are in other matchings. `take_changes`
    returns these pods. The Store owns it.
    """

    def __init__(self, ground: Ground) -> None:
        self.namespaces: dict[str, Namespace] = {}
        namespaces = RuleKind(
            *(Namespace, "", "v1", "namespaces", decode_namespace),
            *(self.namespaces, self._put_namespace, self._drop_namespace),
            namespaced=False,
            lazy=True,
        )
        self.kinds = (namespaces,)

        self.are_counted = False
        """True if pods already have the pseudo resources that mark them, and keep them.

        Only for a recorded snapshot, in which pods have no labels any more.
        """

        self.wanted = self.watches_all = False
        self._reached: dict[str, int] = {}
        """The pseudo resources of rules about other pods: waiting pods with such a rule may fit on other nodes now.

        The reason is a change of node labels or namespace labels. The value is a mark: it is reported when all pods
        queued for a recount before the mark are recounted.
        """

        self._sees_namespaces = False
        self._pods = ground.pods
        self._users: Counter[Matching] = Counter()
        """The number of pods whose rules have each `Matching`."""

        self._needs: dict[str, _NeededMatchings] = {}
        """By pod UID: the selections of its rules (`Matching`) that have to be counted."""

        self._idle: OrderedDict[Matching, None] = OrderedDict()
        """The selected pods (`Matching`) of rules that no pod has any more, the oldest rule first.

        They are still counted.
        """

        self._shown: dict[Matching, None] = {}
        """The selected pods (`Matching`) of rules that only hypothetical pods have."""

        self._counting = _MatchingIndex()
        """The selected pods (`Matching`) of waiting members' rules: all request the pseudo resource for the rule."""

        self._repelling = _MatchingIndex()
        """The selected pods (`Matching`) of anti-affinity that only running pods have.

        Only waiting members among them request the pseudo resource for it.
        """

        self._waiting: dict[str, None] = {}
        """The UIDs of the waiting members, while anti-affinity of running pods may exclude them; else empty."""

        self.concerns = _HAS_RULES
        self.remembered = ChainMap[str, object](self._needs, self._waiting)  # type: ignore[arg-type]
        self._labelled: dict[str, dict[tuple[str, str], dict[str, None]]] = {}
        """The UIDs of pods by label key, then by namespace and value. It has the keys that counted rules require."""

        self._recounts = Due[str]()
        """The UIDs of the pods for which it has to be determined again which rules select them."""

        self._counted_at: dict[Matching, int] = {}
        """By `Matching`, a position in the queue ``_recounts``.

        When all pods before it are recounted, all pods in the matching request the pseudo resource for it.
        """

        self._uncounted: dict[str, int] = {}
        """The UIDs of pods that have a rule for which not all selected pods are counted yet.

        The value is the position in the queue ``_recounts`` at which they are.
        """

    def shape_pod(self, raw: Pod, pod: Pod) -> Pod:  # noqa: ARG002 - it reads the labels in ``pod``
        """Return the pod with a pseudo resource in its requests for each rule that selects it. Remember its own rules.

        ``pod`` is the pod as other rules have changed it. ``raw``, the pod from the watch, is not used.
        For a waiting pod with a new rule, the pods that the rule selects get their pseudo resource later. Until then
        ``awaits`` of the returned pod is set, so its gang is not planned.
        """
        self._update_need(pod)
        if self._repelling and pod.pending and pod.may_be_member:
            self._waiting[pod.uid] = None
        else:
            self._waiting.pop(pod.uid, None)
        if self._labelled:
            before = self._pods.get(pod.uid)
            if before is not None and before.labels != pod.labels:
                self._remove_labels(before)
            for key, places in self._labelled.items():
                if key in pod.labels:
                    places.setdefault((pod.namespace, pod.labels[key]), {})[pod.uid] = None
        return self._await_counts(self.recount(pod))

    def _await_counts(self, pod: Pod) -> Pod:
        """Return the pod, with ``awaits`` set while not all pods that its rules select have pseudo resources."""
        need = self._needs.get(pod.uid, _NO_NEED)
        mark = max((self._counted_at.get(each, 0) for each in need.matchings), default=0) if need.waits else 0
        self._uncounted.pop(pod.uid, None)
        if self._recounts.has_passed(mark):
            return pod
        self._uncounted[pod.uid] = mark
        return replace(
            pod,
            awaits=pod.awaits or f"Serried is counting the pods that the affinity or spread rules of {pod.name} select",
        )

    def shape_hypothetical(self, pod: Pod, coming: HypotheticalClaims = NOTHING) -> Pod:  # noqa: ARG002 - claims do not matter to it
        """Return a pod of a what-if question with a pseudo resource in its requests for each rule that selects it.

        Existing pods that its own rules select get pseudo resources for them, too, until `forget_hypothetical` is
        called. ``coming`` (claims that would be created with it) does not matter for this rule.
        """
        for matching in _list_counted(pod):
            if matching not in self._counting:
                if matching not in self._users:
                    self._idle[matching] = None
                self._shown[matching] = None
                self._begin_counting(matching, waits=True)
        return self._recount(pod, [*self._find(self._counting, pod), *self._find(self._repelling, pod)])

    def forget_hypothetical(self) -> None:
        """Stop counting the pods that only rules of hypothetical pods select."""
        for matching in list(self._shown):
            if matching in self._idle:
                del self._idle[matching]
                self._end_counting(matching)
        self._shown.clear()

    def recount(self, pod: Pod) -> Pod:
        """Return the pod with a pseudo resource in its requests for each rule that selects it now.

        Nothing is remembered.
        """
        found = list(self._find(self._counting, pod))
        if pod.uid in self._waiting:
            found += self._find(self._repelling, pod)
        return self._recount(pod, found)

    def _recount(self, pod: Pod, found: Iterable[Matching]) -> Pod:
        if self.are_counted:
            return pod
        names = {each.amount for each in found}
        if not self._sees_namespaces and any(each.by_namespace_labels for each in _list_rules(pod)):
            names.add(NAMESPACES_UNREADABLE)
        shape = _set_amounts(pod.shape, tuple(sorted(names)))
        return pod if shape is pod.shape else replace(pod, shape=shape)

    def forget_pod(self, pod: Pod) -> None:
        """Forget a deleted pod."""
        self._waiting.pop(pod.uid, None)
        self._uncounted.pop(pod.uid, None)
        self._recounts.discard(pod.uid)
        self._release(self._needs.pop(pod.uid, _NO_NEED))
        self._remove_labels(pod)

    def _remove_labels(self, pod: Pod) -> None:
        for key, places in self._labelled.items():
            if key in pod.labels:
                discard(places, (pod.namespace, pod.labels[key]), pod.uid)

    def list_reached(self, shape: Shape) -> Collection[str]:
        """Return the names of pseudo resources by which a pod of this shape affects where waiting pods fit.

        Only effects on more nodes than the pod's own are included. The names stand for the rules that select the pod,
        and for its own anti-affinity, which excludes other pods. When such a pod is bound or ends, the gangs that these
        names concern are planned again (`serried.api.interpod.list_affected_names`).
        """
        return find_affecting_names(shape.requests)

    def note_node(self, old: Node | None, new: Node | None) -> None:
        """Handle a changed node: if its labels or taints have changed, waiting members with rules may fit on any node.

        kube-scheduler retries pods on the same changes (EventsToRegister of both plugins). ``old`` is None for a new
        node, ``new`` is None for a deleted one.
        """
        waits = self._waiting or self._counting
        if waits and (old is None or new is None or _find_domains(old) != _find_domains(new)):
            self._note_reached(self._users)

    def _note_reached(self, matchings: Iterable[Matching]) -> None:
        """Record that pods whose rules select these pods (``matchings``) may fit on other nodes than before.

        `take_changes` reports it to the Store.
        """
        for matching in matchings:
            for amount in (matching.amount, APART + matching.amount.removeprefix(COUNTS)):
                self._reached.pop(amount, None)
                self._reached[amount] = self._recounts.mark()

    def take_changes(self) -> RuleChanges | None:
        """Recount a portion of the queued pods, and return the changes that are known then; None if none is left.

        Further calls return the other changes. In the result ``recounted`` are pods that other rules select than
        before. ``reached`` are the pseudo resources of rules by which waiting pods may fit on other nodes now. ``pods``
        are the UIDs of waiting pods that may be planned from now on, because all pods that their rules select are
        counted.
        """
        if not self._recounts and not self._reached and not self._uncounted:
            return None
        uids = self._recounts.take(AT_ONCE)
        pods = [self._pods[uid] for uid in uids if uid in self._pods]
        recounted = [new for old in pods if (new := self.recount(old)) is not old]
        reached, counted = self._take_passed(self._reached), self._take_passed(self._uncounted, AT_ONCE)
        return RuleChanges(counted, recounted=recounted, reached=reached)

    def _take_passed(self, waiting: dict[str, int], limit: int | None = None) -> list[str]:
        """Remove and return the first keys of ``waiting`` whose turn has come; at most ``limit``, None for all.

        The values are positions (marks) in the queue ``_recounts``. The turn of a key has come when all pods queued
        before its position are recounted.
        """
        passed = list(islice(takewhile(lambda each: self._recounts.has_passed(waiting[each]), waiting), limit))
        for each in passed:
            del waiting[each]
        return passed

    def _put_namespace(self, found: Namespace) -> None:
        old = self.namespaces.get(found.name)
        self.namespaces[found.name] = found
        if old is None or old.labels != found.labels:
            self._note_namespace(found.name)

    def _drop_namespace(self, name: str) -> None:
        if self.namespaces.pop(name, None) is not None:
            self._note_namespace(name)

    def _note_namespace(self, name: str) -> None:
        """Queue all pods of a namespace for a recount: its labels have changed, so other rules may select them.

        Without rules that select namespaces by labels, no pod is queued.
        """
        found = self._list_by_namespace()
        if found:
            self._recounts.update(uid for uid, pod in self._pods.items() if pod.namespace == name)
            self._note_reached(found)

    def note_state(self, kind: type, state: KindState, why: str) -> None:  # noqa: ARG002 - there is one kind
        """Handle a new state of the watch for namespaces, which are needed for rules that select namespaces by labels.

        While namespaces are not known, such rules are left to kube-scheduler. ``kind`` is always Namespace. ``why`` is
        not used.
        """
        seen = state is KindState.KNOWN
        if state not in {KindState.IDLE, KindState.LISTING} and seen is not self._sees_namespaces:
            self._sees_namespaces = seen
            found = self._list_by_namespace()
            for matching in found:
                self._request_recount(matching)
            about = (
                uid for uid, need in self._needs.items() if any(each.by_namespace_labels for each in need.matchings)
            )
            self._recounts.update(about)
            self._note_reached(found)

    def _list_by_namespace(self) -> list[Matching]:
        return [matching for matching in (*self._users, *self._idle) if matching.by_namespace_labels]

    def _request_recount(self, matching: Matching) -> None:
        """Queue the pods for a recount that a rule may select now, or has selected before.

        ``matching`` stands for the pods that the rule selects, by namespaces and labels.
        """
        found = self._list_candidates(matching) if matching in self._counting else self._waiting
        self._recounts.update(found)

    def _update_need(self, pod: Pod) -> None:
        rules = pod.shape.neighbours
        found: Iterable[Matching] = ()
        if rules is not None and pod.phase is Phase.ACTIVE and pod.pending:
            found = rules.matchings if pod.may_be_member else ()
        elif rules is not None and pod.phase is Phase.ACTIVE:
            # Of the rules of a bound pod only anti-affinity still matters.
            found = (each.matching for each in rules.apart)
        need = _NeededMatchings(tuple(filter(_selects_any, found)), waits=pod.pending)
        before = self._needs.get(pod.uid, _NO_NEED)
        if need == before or not (need.matchings or before.matchings):
            return
        if need.matchings:
            self._needs[pod.uid] = need
        else:
            del self._needs[pod.uid]
        for matching in need.matchings:
            self._users[matching] += 1
            self._idle.pop(matching, None)
            self._begin_counting(matching, waits=need.waits)
        self._release(before)

    def _release(self, need: "_NeededMatchings") -> None:
        for matching in need.matchings:
            self._users[matching] -= 1
            if not self._users[matching]:
                del self._users[matching]
                self._idle[matching] = None
        while len(self._idle) > _MAX_IDLE:
            self._end_counting(self._idle.popitem(last=False)[0])

    def _begin_counting(self, matching: Matching, *, waits: bool) -> None:
        """Give the pods that a rule selects (``matching``) a pseudo resource from now on, so that plans can count them.

        ``waits`` is True if a waiting pod has the rule: then all selected pods get it. False if only bound pods have
        it, as anti-affinity: then only waiting members get it.
        """
        if matching in self._counting or (not waits and matching in self._repelling):
            return
        self.wanted = self.wanted or matching.by_namespace_labels
        if waits:
            self._repelling.drop(matching)
            if self._counting.add(matching):
                self._index(matching)
        else:
            self._repelling.add(matching)
        self._update_waiting()
        self._request_recount(matching)
        if waits:
            self._counted_at[matching] = self._recounts.mark()
        self.watches_all = bool(self._counting)

    def _end_counting(self, matching: Matching) -> None:
        self._request_recount(matching)
        self._counted_at.pop(matching, None)
        if self._counting.drop(matching) and (label := _find_label(matching)) is not None:
            del self._labelled[label[0]]
        self._repelling.drop(matching)
        self._update_waiting()
        self.watches_all = bool(self._counting)

    def _update_waiting(self) -> None:
        """Begin to remember waiting members if running pods have anti-affinity, which may exclude members.

        If no running pod has anti-affinity, forget the waiting members, and handle only pods with rules of their own.
        """
        if self._repelling and self.concerns is _HAS_RULES:
            self.concerns = may_be_repelled
            self._waiting.update((uid, None) for uid, pod in self._pods.items() if pod.pending and pod.may_be_member)
        elif not self._repelling:
            self.concerns = _HAS_RULES
            self._waiting.clear()

    def _index(self, matching: Matching) -> None:
        """Index all pods by the label key that a rule requires. ``matching`` is what the rule selects.

        Call it for the first rule with this key.
        """
        label = _find_label(matching)
        places: dict[tuple[str, str], dict[str, None]] = {}
        if label is not None:
            key = label[0]
            for uid, pod in self._pods.items():
                if key in pod.labels:
                    places.setdefault((pod.namespace, pod.labels[key]), {})[uid] = None
            self._labelled[key] = places

    def _find(self, index: "_MatchingIndex", pod: Pod) -> Iterator[Matching]:
        return (matching for matching in index.find(pod) if self._selects(matching, pod))

    def _selects(self, matching: Matching, pod: Pod) -> bool:
        if matching.living and pod.deleting:
            return False
        found = self.namespaces.get(pod.namespace)
        labels = found.labels if found is not None else {}
        return all(each.selects(pod.namespace, pod.labels, labels) for each in matching.selections)

    def _list_candidates(self, matching: Matching) -> Iterator[str]:
        """Yield the UIDs of the pods that a rule may select: with its namespace, and one label that it requires."""
        scopes, label = _find_scopes(matching), _find_label(matching)
        if label is None and _ANYWHERE in scopes:
            yield from self._pods
        elif label is None:
            yield from (uid for uid, pod in self._pods.items() if pod.namespace in scopes)
        elif _ANYWHERE in scopes:
            for (_, value), uids in self._labelled[label[0]].items():
                if value == label[1]:
                    yield from uids
        else:
            for namespace in scopes:
                yield from self._labelled[label[0]].get((namespace, label[1]), ())


def _find_domains(node: Node) -> tuple[object, ...]:
    return node.labels, node.taints, node.unschedulable


def _selects_any(matching: Matching) -> bool:
    return all(each.labels is not None for each in matching.selections)


def _list_counted(pod: Pod) -> Iterable[Matching]:
    return filter(_selects_any, _list_rules(pod))


def _list_rules(pod: Pod) -> Iterable[Matching]:
    return pod.shape.neighbours.matchings if pod.shape.neighbours is not None else ()


class _NeededMatchings(NamedTuple):
    """The pods that the rules of one pod select (``matchings``), so that they have to be counted for this pod."""

    matchings: tuple[Matching, ...]

    waits: bool
    """True if the pod is pending. Then all its rules matter; of a bound pod only the anti-affinity does."""


_NO_NEED = _NeededMatchings((), waits=False)


class _MatchingIndex:
    """An index of what rules select (`Matching`), by namespace and one required label.

    It finds the few rules that may select a given pod.
    """

    def __init__(self) -> None:
        self._by_place: dict[Place, dict[Matching, None]] = {}
        self._keys: Counter[str] = Counter()
        """The label keys in the index, each with the number of rules' selections (`Matching`) that require the key."""

    def __bool__(self) -> bool:
        return bool(self._by_place)

    def __contains__(self, matching: Matching) -> bool:
        return all(matching in self._by_place.get(place, ()) for place in _list_places(matching))

    def add(self, matching: Matching) -> bool:
        """Add what a rule selects, so that `find` finds it.

        Return True if ``matching`` requires a label whose key no other entry in the index requires.
        """
        for place in _list_places(matching):
            self._by_place.setdefault(place, {})[matching] = None
        label = _find_label(matching)
        if label is None:
            return False
        self._keys[label[0]] += 1
        return self._keys[label[0]] == 1

    def drop(self, matching: Matching) -> bool:
        """Remove what a rule selects, if it is in the index.

        Return True if ``matching`` was the last entry that required a label with its key.
        """
        if matching not in self:
            return False
        for place in _list_places(matching):
            discard(self._by_place, place, matching)
        label = _find_label(matching)
        if label is None:
            return False
        self._keys[label[0]] -= 1
        if self._keys[label[0]]:
            return False
        del self._keys[label[0]]
        return True

    def find(self, pod: Pod) -> Iterator[Matching]:
        """Yield what may select a pod, by the pod's namespace and one label. Whole selectors are not checked."""
        if not self._by_place:
            return
        places = [(scope, "", "") for scope in (pod.namespace, _ANYWHERE)]
        for key in self._keys:
            value = pod.labels.get(key)
            if value is not None:
                places += [(scope, key, value) for scope in (pod.namespace, _ANYWHERE)]
        for place in places:
            yield from self._by_place.get(place, ())


def _list_places(matching: Matching) -> list[Place]:
    """Return the places of a `Matching` in `_MatchingIndex`: each of its namespaces, with one label that it requires.

    If it requires no label with one certain value, key and value of the label are "" in the place.
    """
    return [(namespace, *(_find_label(matching) or ("", ""))) for namespace in _find_scopes(matching)]


def _find_scopes(matching: Matching) -> Collection[str]:
    first = matching.selections[0]
    return (_ANYWHERE,) if first.namespace_labels is not None else first.namespaces


def _find_label(matching: Matching) -> tuple[str, str] | None:
    """Return one label, as key and value, that every selected pod must have; None if none is found.

    Only the first of the rule's selectors is searched, for a requirement of one value.
    """
    for each in matching.selections[0].labels or ():
        if each.operator == "In" and len(each.values) == 1:
            return each.key, each.values[0]
    return None


@lru_cache(maxsize=8192)
def _set_amounts(shape: Shape, names: tuple[str, ...]) -> Shape:
    """Return a pod's shape that requests 1 of each pseudo resource in ``names``, which stand for rules that select it.

    Those that it had for other rules are removed.
    """
    kept = [each for each in shape.requests if not each[0].startswith(COUNTS) or each[0].startswith(SHARED_CLAIM)]
    requests = tuple(sorted([*kept, *((name, 1) for name in names)]))
    return shape if requests == shape.requests else replace(shape, requests=requests)
