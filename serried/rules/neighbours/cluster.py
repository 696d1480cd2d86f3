"""Which pods count for the rules of others: each gets an amount for each rule that it counts for.

Rules that anybody has matter while they can decide about a gang: anti-affinity of every pod, affinity and spread of
those that wait for a node. With a rule that is new, the pods that are there are looked through once, by one of its
labels; then each pod that comes or changes is asked about the rules of its namespace and labels alone.

Sources: interpodaffinity/filtering.go and podtopologyspread/filtering.go of kube-scheduler 1.37.
"""

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from operator import attrgetter

from serried.api.device import NOTHING, Coming
from serried.api.neighbours import (
    APART,
    COUNTS,
    SHARING,
    UNSEEN,
    Matching,
    Namespace,
    decode_namespace,
    read_apart,
)
from serried.api.node import Node
from serried.api.pod import Phase, Pod, Shape
from serried.cluster.index import discard
from serried.cluster.rule import Ground, KindState, News, Rule, RuleKind

_MAX_IDLE = 256
"""How many matchings are kept that nobody needs any more: the next gang of the same kind may come soon."""

_ANYWHERE = ""
"""In the place of a namespace, for what is not confined to some."""

Place = tuple[str, str, str]
"""A namespace, a label key and its value."""


class MatchingPods(Rule):
    """Adds to the shapes of pods for what they count.

    A pod or a namespace may make other pods count, or count no more: these are recounted in the next news.
    """

    concerns = staticmethod(attrgetter("shape.neighbours"))

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

        self.wanted = self.watches_all = self._are_domains_others = False
        self._sees_namespaces = False
        self._pods = ground.pods
        self._users: Counter[Matching] = Counter()
        self._matchings_of: dict[str, tuple[Matching, ...]] = {}
        self.remembered = self._matchings_of.keys()
        self._idle: OrderedDict[Matching, None] = OrderedDict()
        self._shown: dict[Matching, None] = {}
        """The matchings that began with a pod of a what-if question, which does not exist."""

        self._by_place: dict[Place, dict[Matching, None]] = {}
        self._keys: Counter[str] = Counter()
        """The label keys by which matchings are found."""

        self._labelled: dict[str, dict[tuple[str, str], dict[str, None]]] = {}
        """By such a key, the UIDs of the pods of each namespace and value."""

        self._turned: dict[str, None] = {}

    def ask(self, raw: Pod, pod: Pod) -> Pod:  # noqa: ARG002 - labels are those that the rules before have left
        """Return a pod with the amounts of what it counts for, and remember what its own rules need."""
        self._follow(pod)
        if self._labelled:
            before = self._pods.get(pod.uid)
            if before is not None and before.labels != pod.labels:
                self._take_out(before)
            for key, places in self._labelled.items():
                if key in pod.labels:
                    places.setdefault((pod.namespace, pod.labels[key]), {})[pod.uid] = None
        return self.recount(pod) if self._by_place else pod

    def show(self, pod: Pod, coming: Coming = NOTHING) -> Pod:  # noqa: ARG002 - claims are none of its business
        """Return a pod that does not exist with the amounts of what it counts for.

        Pods count for its rules until the next call of ``forget_shown``.
        """
        for matching in _list_counted(pod):
            if matching not in self._users and matching not in self._idle:
                self._idle[matching] = self._shown[matching] = None
                self._begin(matching)
        return self.recount(pod)

    def forget_shown(self) -> None:
        """End the matchings that only pods that do not exist have needed."""
        for matching in self._shown.keys() & self._idle.keys():
            del self._idle[matching]
            self._end(matching)
        self._shown.clear()

    def recount(self, pod: Pod) -> Pod:
        """A pod with the amounts of what it counts for by now; nothing is remembered."""
        if self.are_counted:
            return pod
        names = {each.amount for each in self._find(pod)}
        if not self._sees_namespaces and any(each.by_namespace_labels for each in _list_rules(pod)):
            names.add(UNSEEN)
        shape = _count(pod.shape, tuple(sorted(names)))
        return pod if shape is pod.shape else replace(pod, shape=shape)

    def forget(self, pod: Pod) -> None:
        """A pod went."""
        self._release(self._matchings_of.pop(pod.uid, ()))
        self._take_out(pod)

    def _take_out(self, pod: Pod) -> None:
        for key, places in self._labelled.items():
            if key in pod.labels:
                discard(places, (pod.namespace, pod.labels[key]), pod.uid)

    def list_reached(self, shape: Shape) -> Iterator[str]:
        """Return whom it concerns that a pod of this shape comes to a node or leaves it (`list_concerns`).

        The rules of its own gang do not count: what they wait for is not each other.
        """
        own = shape.neighbours
        mine = {each.amount for each in own.matchings} if own is not None else ()
        for name, amount in shape.requests:
            if name.startswith(COUNTS) and name not in mine:
                yield name
            elif name.startswith(APART) and amount == 1:
                yield APART + read_apart(name)[1]

    def note_node(self, old: Node | None, new: Node | None) -> None:
        """Note that domains are others: a member that waits by any rule may fit anywhere by now.

        kube-scheduler tries pods again by the same (EventsToRegister of both plugins).
        """
        if self._users and (old is None or new is None or _find_domains(old) != _find_domains(new)):
            self._are_domains_others = True

    def take_news(self) -> News | None:
        """Return the pods that count for other rules now, and whom nodes concern."""
        if not self._turned and not self._are_domains_others:
            return None
        turned, self._turned = self._turned, {}
        reached: list[str] = []
        if self._are_domains_others:
            self._are_domains_others = False
            for matching in self._users:
                reached += (matching.amount, APART + matching.amount.removeprefix(COUNTS))
        pods = [self._pods[uid] for uid in turned if uid in self._pods]
        return News(recounted=[new for old in pods if (new := self.recount(old)) is not old], reached=reached)

    def _put_namespace(self, found: Namespace) -> None:
        """A namespace came or changed."""
        old = self.namespaces.get(found.name)
        self.namespaces[found.name] = found
        if old is None or old.labels != found.labels:
            self._turn_by_namespace()

    def _drop_namespace(self, name: str) -> None:
        """A namespace went."""
        if self.namespaces.pop(name, None) is not None:
            self._turn_by_namespace()

    def note_state(self, kind: type, state: KindState, why: str) -> None:  # noqa: ARG002 - there is one kind
        """Note whether namespaces are all known, or cannot be seen."""
        seen = state is KindState.KNOWN
        if state not in {KindState.IDLE, KindState.LISTING} and seen is not self._sees_namespaces:
            self._sees_namespaces = seen
            self._turn_by_namespace()
            about = (
                uid for uid, found in self._matchings_of.items() if any(each.by_namespace_labels for each in found)
            )
            self._turned.update(dict.fromkeys(about))

    def _turn_by_namespace(self) -> None:
        for matching in self._users:
            if matching.by_namespace_labels:
                self._turned.update(dict.fromkeys(self._list_candidates(matching)))

    def _follow(self, pod: Pod) -> None:
        rules = pod.shape.neighbours
        needed: tuple[Matching, ...] = ()
        if rules is not None and pod.phase is Phase.ACTIVE:
            # Of a pod that has its node only those count by which it keeps others away.
            found = rules.matchings if pod.pending else (each.matching for each in rules.apart)
            needed = tuple(filter(_means_somebody, found))
        before = self._matchings_of.get(pod.uid, ())
        if needed == before:
            return
        if needed:
            self._matchings_of[pod.uid] = needed
        else:
            del self._matchings_of[pod.uid]
        for matching in needed:
            self._users[matching] += 1
            self._idle.pop(matching, None)
            if self._users[matching] == 1:
                self._begin(matching)
        self._release(before)

    def _release(self, matchings: Iterable[Matching]) -> None:
        for matching in matchings:
            self._users[matching] -= 1
            if not self._users[matching]:
                del self._users[matching]
                self._idle[matching] = None
        while len(self._idle) > _MAX_IDLE:
            self._end(self._idle.popitem(last=False)[0])

    def _begin(self, matching: Matching) -> None:
        self.wanted = self.wanted or matching.by_namespace_labels
        places = _list_places(matching)
        if all(matching in self._by_place.get(place, ()) for place in places):
            return  # it was idle
        for place in places:
            self._by_place.setdefault(place, {})[matching] = None
        self.watches_all = True
        label = _find_label(matching)
        if label is not None:
            self._note_key(label[0])
        self._turned.update(dict.fromkeys(self._list_candidates(matching)))

    def _end(self, matching: Matching) -> None:
        self._turned.update(dict.fromkeys(self._list_candidates(matching)))
        for place in _list_places(matching):
            discard(self._by_place, place, matching)
        label = _find_label(matching)
        if label is not None:
            self._keys[label[0]] -= 1
            if not self._keys[label[0]]:
                del self._keys[label[0]], self._labelled[label[0]]
        self.watches_all = bool(self._by_place)

    def _note_key(self, key: str) -> None:
        self._keys[key] += 1
        if self._keys[key] > 1:
            return
        places: dict[tuple[str, str], dict[str, None]] = {}
        for uid, pod in self._pods.items():
            if key in pod.labels:
                places.setdefault((pod.namespace, pod.labels[key]), {})[uid] = None
        self._labelled[key] = places

    def _find(self, pod: Pod) -> Iterator[Matching]:
        places = [(scope, "", "") for scope in (pod.namespace, _ANYWHERE)]
        for key in self._keys:
            value = pod.labels.get(key)
            if value is not None:
                places += [(scope, key, value) for scope in (pod.namespace, _ANYWHERE)]
        for place in places:
            for matching in self._by_place.get(place, ()):
                if self._means(matching, pod):
                    yield matching

    def _means(self, matching: Matching, pod: Pod) -> bool:
        if matching.living and pod.deleting:
            return False
        found = self.namespaces.get(pod.namespace)
        labels = found.labels if found is not None else {}
        return all(each.selects(pod.namespace, pod.labels, labels) for each in matching.selections)

    def _list_candidates(self, matching: Matching) -> Iterator[str]:
        """The UIDs of the pods that may count for a matching, as far as one of its labels says."""
        scopes, label = _find_scopes(matching), _find_label(matching)
        if label is None:
            yield from (uid for uid, pod in self._pods.items() if _ANYWHERE in scopes or pod.namespace in scopes)
        elif _ANYWHERE in scopes:
            for (_, value), uids in self._labelled[label[0]].items():
                if value == label[1]:
                    yield from uids
        else:
            for namespace in scopes:
                yield from self._labelled[label[0]].get((namespace, label[1]), ())


def list_concerns(shape: Shape) -> Iterator[str]:
    """What concerns a pod of this shape that waits: who counts for its own rules, and whose rules it counts for."""
    if shape.neighbours is not None:
        yield from (each.amount for each in shape.neighbours.matchings)
    for name, _ in shape.requests:
        if name.startswith(SHARING):
            yield name
        elif name.startswith(COUNTS):
            yield APART + name.removeprefix(COUNTS)


def _find_domains(node: Node) -> tuple[object, ...]:
    return node.labels, node.taints, node.unschedulable


def _means_somebody(matching: Matching) -> bool:
    return all(each.labels is not None for each in matching.selections)


def _list_counted(pod: Pod) -> Iterable[Matching]:
    return filter(_means_somebody, _list_rules(pod))


def _list_rules(pod: Pod) -> Iterable[Matching]:
    return pod.shape.neighbours.matchings if pod.shape.neighbours is not None else ()


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
