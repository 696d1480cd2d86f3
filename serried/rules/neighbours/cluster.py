"""Which pods count for the rules of others: each gets an amount for each rule that it counts for.

Rules matter while they can decide about a gang, so what they cost follows the members that wait:

- The rules of a member that waits count all pods that they mean. With a rule that is new, the pods that are there are
  looked through once, by one of its labels; then each pod that comes or changes is asked about the rules of its
  namespace and labels alone.
- The anti-affinity of a pod that runs keeps members off. It counts only members that wait, whoever has written it.
- Rules of pods that wait and are in no gang decide about no gang.

Sources: interpodaffinity/filtering.go and podtopologyspread/filtering.go of kube-scheduler 1.37.
"""

from collections import ChainMap, Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import islice, takewhile
from operator import attrgetter
from typing import NamedTuple

from serried.api.device import NOTHING, Coming
from serried.api.neighbours import (
    APART,
    COUNTS,
    SHARING,
    UNSEEN,
    Matching,
    Namespace,
    decode_namespace,
    find_reached,
)
from serried.api.node import Node
from serried.api.pod import Phase, Pod, Shape, may_be_repelled
from serried.cluster.due import Due
from serried.cluster.index import discard
from serried.cluster.rule import AT_ONCE, Ground, KindState, News, Rule, RuleKind

_MAX_IDLE = 256
"""How many matchings are kept that nobody needs any more: the next gang of the same kind may come soon."""

_HAS_RULES: Callable[[Pod], object] = attrgetter("shape.neighbours")

_ANYWHERE = ""
"""In the place of a namespace, for what is not confined to some."""

Place = tuple[str, str, str]
"""A namespace, a label key and its value."""


class MatchingPods(Rule):
    """Adds to the shapes of pods for what they count.

    A pod or a namespace may make other pods count, or count no more: these are recounted in the next news.
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
        """Whether pods come with the amounts of what they count for: those of a capture, which have no labels."""

        self.wanted = self.watches_all = False
        self._reached: dict[str, int] = {}
        """The amounts for which nodes have turned, and up to where pods have to be recounted before."""

        self._sees_namespaces = False
        self._pods = ground.pods
        self._users: Counter[Matching] = Counter()
        """How many pods have rules with each matching."""

        self._needs: dict[str, _Need] = {}
        self._idle: OrderedDict[Matching, None] = OrderedDict()
        self._shown: dict[Matching, None] = {}
        """The matchings that began with a pod of a what-if question, which does not exist."""

        self._counting = _Register()
        """The matchings of members that wait: all pods count."""

        self._repelling = _Register()
        """Those of pods that run alone: only members that wait count."""

        self._waiting: dict[str, None] = {}
        """The members (UIDs) that wait, while there are any that repel them."""

        self.concerns = _HAS_RULES
        self.remembered = ChainMap[str, object](self._needs, self._waiting)  # type: ignore[arg-type]
        self._labelled: dict[str, dict[tuple[str, str], dict[str, None]]] = {}
        """By a label key of ``_counting``, the UIDs of the pods of each namespace and value."""

        self._turned = Due[str]()
        """The pods (UIDs) that are to be recounted."""

        self._counted_at: dict[Matching, int] = {}
        """Up to where pods have to be recounted before a matching is counted."""

        self._uncounted: dict[str, int] = {}
        """The pods (UIDs) that wait for that, the first one first."""

    def ask(self, raw: Pod, pod: Pod) -> Pod:  # noqa: ARG002 - labels are those that the rules before have left
        """Return a pod with the amounts of what it counts for, and remember what its own rules need."""
        self._follow(pod)
        if self._repelling and pod.pending and pod.linked:
            self._waiting[pod.uid] = None
        else:
            self._waiting.pop(pod.uid, None)
        if self._labelled:
            before = self._pods.get(pod.uid)
            if before is not None and before.labels != pod.labels:
                self._take_out(before)
            for key, places in self._labelled.items():
                if key in pod.labels:
                    places.setdefault((pod.namespace, pod.labels[key]), {})[pod.uid] = None
        return self._hold(self.recount(pod))

    def _hold(self, pod: Pod) -> Pod:
        """Return the pod, which waits as long as a rule of it is not counted."""
        need = self._needs.get(pod.uid, _NO_NEED)
        mark = max((self._counted_at.get(each, 0) for each in need.matchings), default=0) if need.waits else 0
        self._uncounted.pop(pod.uid, None)
        if self._turned.has_passed(mark):
            return pod
        self._uncounted[pod.uid] = mark
        return replace(pod, awaits=pod.awaits or f"the pods that the rules of {pod.name} mean are being counted")

    def show(self, pod: Pod, coming: Coming = NOTHING) -> Pod:  # noqa: ARG002 - claims are none of its business
        """Return a pod that does not exist with the amounts of what it counts for.

        Pods count for its rules until the next call of ``forget_shown``.
        """
        for matching in _list_counted(pod):
            if matching not in self._counting:
                if matching not in self._users:
                    self._idle[matching] = None
                self._shown[matching] = None
                self._begin(matching, waits=True)
        return self._recount(pod, [*self._find(self._counting, pod), *self._find(self._repelling, pod)])

    def forget_shown(self) -> None:
        """End the matchings that only pods that do not exist have needed."""
        for matching in list(self._shown):
            if matching in self._idle:
                del self._idle[matching]
                self._end(matching)
        self._shown.clear()

    def recount(self, pod: Pod) -> Pod:
        """Return a pod with the amounts of what it counts for by now; nothing is remembered."""
        found = list(self._find(self._counting, pod))
        if pod.uid in self._waiting:
            found += self._find(self._repelling, pod)
        return self._recount(pod, found)

    def _recount(self, pod: Pod, found: Iterable[Matching]) -> Pod:
        if self.are_counted:
            return pod
        names = {each.amount for each in found}
        if not self._sees_namespaces and any(each.by_namespace_labels for each in _list_rules(pod)):
            names.add(UNSEEN)
        shape = _count(pod.shape, tuple(sorted(names)))
        return pod if shape is pod.shape else replace(pod, shape=shape)

    def forget(self, pod: Pod) -> None:
        """Forget a pod that went."""
        self._waiting.pop(pod.uid, None)
        self._uncounted.pop(pod.uid, None)
        self._turned.discard(pod.uid)
        self._release(self._needs.pop(pod.uid, _NO_NEED))
        self._take_out(pod)

    def _take_out(self, pod: Pod) -> None:
        for key, places in self._labelled.items():
            if key in pod.labels:
                discard(places, (pod.namespace, pod.labels[key]), pod.uid)

    def list_reached(self, shape: Shape) -> Collection[str]:
        """Return whom it concerns that a pod of this shape comes to a node or leaves it.

        They are the pods that wait (`serried.api.neighbours.list_concerns`).

        A pod that has the same rule itself matters as any other: it may be of another gang of the same kind.
        """
        return find_reached(shape.requests)

    def note_node(self, old: Node | None, new: Node | None) -> None:
        """Note that domains are others: a member that waits by any rule may fit anywhere by now.

        kube-scheduler tries pods again by the same (EventsToRegister of both plugins).
        """
        waits = self._waiting or self._counting
        if waits and (old is None or new is None or _find_domains(old) != _find_domains(new)):
            self._reach(self._users)

    def _reach(self, matchings: Iterable[Matching]) -> None:
        """Note that these decide otherwise by now, for whom they mean and whom they keep off."""
        for matching in matchings:
            for amount in (matching.amount, APART + matching.amount.removeprefix(COUNTS)):
                self._reached.pop(amount, None)
                self._reached[amount] = self._turned.mark()

    def take_news(self) -> News | None:
        """Return pods that count for other rules now, whom nodes concern, and who may be planned by what is counted."""
        if not self._turned and not self._reached and not self._uncounted:
            return None
        turned = self._turned.take(AT_ONCE)
        pods = [self._pods[uid] for uid in turned if uid in self._pods]
        recounted = [new for old in pods if (new := self.recount(old)) is not old]
        reached, counted = self._take_passed(self._reached), self._take_passed(self._uncounted, AT_ONCE)
        return News(counted, recounted=recounted, reached=reached)

    def _take_passed(self, waiting: dict[str, int], limit: int | None = None) -> list[str]:
        """Take what waits for a mark that has passed: ``limit`` at most, if there is one."""
        passed = list(islice(takewhile(lambda each: self._turned.has_passed(waiting[each]), waiting), limit))
        for each in passed:
            del waiting[each]
        return passed

    def _put_namespace(self, found: Namespace) -> None:
        """A namespace came or changed."""
        old = self.namespaces.get(found.name)
        self.namespaces[found.name] = found
        if old is None or old.labels != found.labels:
            self._turn_namespace(found.name)

    def _drop_namespace(self, name: str) -> None:
        """A namespace went."""
        if self.namespaces.pop(name, None) is not None:
            self._turn_namespace(name)

    def _turn_namespace(self, name: str) -> None:
        """The labels of a namespace are others: its pods may count for other rules."""
        found = self._list_by_namespace()
        if found:
            self._turned.update(uid for uid, pod in self._pods.items() if pod.namespace == name)
            self._reach(found)

    def note_state(self, kind: type, state: KindState, why: str) -> None:  # noqa: ARG002 - there is one kind
        """Note whether namespaces are all known, or cannot be seen."""
        seen = state is KindState.KNOWN
        if state not in {KindState.IDLE, KindState.LISTING} and seen is not self._sees_namespaces:
            self._sees_namespaces = seen
            found = self._list_by_namespace()
            for matching in found:
                self._turn(matching)
            about = (
                uid for uid, need in self._needs.items() if any(each.by_namespace_labels for each in need.matchings)
            )
            self._turned.update(about)
            self._reach(found)

    def _list_by_namespace(self) -> list[Matching]:
        return [matching for matching in (*self._users, *self._idle) if matching.by_namespace_labels]

    def _turn(self, matching: Matching) -> None:
        """Note the pods that may count for a matching, or may have counted."""
        found = self._list_candidates(matching) if matching in self._counting else self._waiting
        self._turned.update(found)

    def _follow(self, pod: Pod) -> None:
        rules = pod.shape.neighbours
        found: Iterable[Matching] = ()
        if rules is not None and pod.phase is Phase.ACTIVE and pod.pending:
            found = rules.matchings if pod.linked else ()
        elif rules is not None and pod.phase is Phase.ACTIVE:
            # Of a pod that has its node only those count by which it keeps others away.
            found = (each.matching for each in rules.apart)
        need = _Need(tuple(filter(_means_somebody, found)), waits=pod.pending)
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
            self._begin(matching, waits=need.waits)
        self._release(before)

    def _release(self, need: "_Need") -> None:
        for matching in need.matchings:
            self._users[matching] -= 1
            if not self._users[matching]:
                del self._users[matching]
                self._idle[matching] = None
        while len(self._idle) > _MAX_IDLE:
            self._end(self._idle.popitem(last=False)[0])

    def _begin(self, matching: Matching, *, waits: bool) -> None:
        """Count for a matching: all pods if one that ``waits`` has it, else the members that wait."""
        if matching in self._counting or (not waits and matching in self._repelling):
            return
        self.wanted = self.wanted or matching.by_namespace_labels
        if waits:
            self._repelling.drop(matching)
            if self._counting.add(matching):
                self._index(matching)
        else:
            self._repelling.add(matching)
        self._follow_waiting()
        self._turn(matching)
        if waits:
            self._counted_at[matching] = self._turned.mark()
        self.watches_all = bool(self._counting)

    def _end(self, matching: Matching) -> None:
        self._turn(matching)
        self._counted_at.pop(matching, None)
        if self._counting.drop(matching) and (label := _find_label(matching)) is not None:
            del self._labelled[label[0]]
        self._repelling.drop(matching)
        self._follow_waiting()
        self.watches_all = bool(self._counting)

    def _follow_waiting(self) -> None:
        """Follow the members that wait while anybody repels them."""
        if self._repelling and self.concerns is _HAS_RULES:
            self.concerns = may_be_repelled
            self._waiting.update((uid, None) for uid, pod in self._pods.items() if pod.pending and pod.linked)
        elif not self._repelling:
            self.concerns = _HAS_RULES
            self._waiting.clear()

    def _index(self, matching: Matching) -> None:
        """Sort the pods by a label that is the first of its key."""
        label = _find_label(matching)
        places: dict[tuple[str, str], dict[str, None]] = {}
        if label is not None:
            key = label[0]
            for uid, pod in self._pods.items():
                if key in pod.labels:
                    places.setdefault((pod.namespace, pod.labels[key]), {})[uid] = None
            self._labelled[key] = places

    def _find(self, register: "_Register", pod: Pod) -> Iterator[Matching]:
        return (matching for matching in register.find(pod) if self._means(matching, pod))

    def _means(self, matching: Matching, pod: Pod) -> bool:
        if matching.living and pod.deleting:
            return False
        found = self.namespaces.get(pod.namespace)
        labels = found.labels if found is not None else {}
        return all(each.selects(pod.namespace, pod.labels, labels) for each in matching.selections)

    def _list_candidates(self, matching: Matching) -> Iterator[str]:
        """The UIDs of the pods that may count for a matching, as far as one of its labels says."""
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


def _means_somebody(matching: Matching) -> bool:
    return all(each.labels is not None for each in matching.selections)


def _list_counted(pod: Pod) -> Iterable[Matching]:
    return filter(_means_somebody, _list_rules(pod))


def _list_rules(pod: Pod) -> Iterable[Matching]:
    return pod.shape.neighbours.matchings if pod.shape.neighbours is not None else ()


class _Need(NamedTuple):
    """What the rules of a pod need to be counted."""

    matchings: tuple[Matching, ...]

    waits: bool
    """Whether it has no node yet: then all its rules decide, else only who it keeps off."""


_NO_NEED = _Need((), waits=False)


class _Register:
    """Matchings, found by where the pods are that they may mean."""

    def __init__(self) -> None:
        self._by_place: dict[Place, dict[Matching, None]] = {}
        self._keys: Counter[str] = Counter()
        """The label keys by which matchings are found."""

    def __bool__(self) -> bool:
        return bool(self._by_place)

    def __contains__(self, matching: Matching) -> bool:
        return all(matching in self._by_place.get(place, ()) for place in _list_places(matching))

    def add(self, matching: Matching) -> bool:
        """Add one that is not there; return whether the label by which it is found has a new key."""
        for place in _list_places(matching):
            self._by_place.setdefault(place, {})[matching] = None
        label = _find_label(matching)
        if label is None:
            return False
        self._keys[label[0]] += 1
        return self._keys[label[0]] == 1

    def drop(self, matching: Matching) -> bool:
        """Drop one, if it is there; return whether that was the last one with the key of its label."""
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
        """Return the matchings that may mean a pod, by its namespace and one label."""
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
    """Where a matching is found: in each of its namespaces, by one label that its pods must have, if there is one."""
    return [(namespace, *(_find_label(matching) or ("", ""))) for namespace in _find_scopes(matching)]


def _find_scopes(matching: Matching) -> Collection[str]:
    first = matching.selections[0]
    return (_ANYWHERE,) if first.namespace_labels is not None else first.namespaces


def _find_label(matching: Matching) -> tuple[str, str] | None:
    """A label that every pod has which counts; None if none is named."""
    for each in matching.selections[0].labels or ():
        if each.operator == "In" and len(each.values) == 1:
            return each.key, each.values[0]
    return None


@lru_cache(maxsize=8192)
def _count(shape: Shape, names: tuple[str, ...]) -> Shape:
    """The shape with an amount of one for each of these names, and for no other matching."""
    kept = [each for each in shape.requests if not each[0].startswith(COUNTS) or each[0].startswith(SHARING)]
    requests = tuple(sorted([*kept, *((name, 1) for name in names)]))
    return shape if requests == shape.requests else replace(shape, requests=requests)
