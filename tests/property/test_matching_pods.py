"""Pods that match the rules of other pods, compared with matching each pod against each rule after every change."""

from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from serried.api.interpod import COUNTS, Matching, Namespace
from serried.api.pod import Pod
from serried.cluster.cache import Store
from serried.rules.all import RULES
from serried.rules.interpod.cluster import MatchingPods
from tests.support.builders import PodBuilder, pod
from tests.support.rules import one_item_per_step, run_deferred_work

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
LABELS: tuple[dict[str, str], ...] = ({}, {"team": "red"}, {"team": "blue"})

selectors = st.one_of(
    st.fixed_dictionaries({"matchLabels": st.dictionaries(st.sampled_from("ab"), st.sampled_from("xy"), max_size=2)}),
    st.just({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["x"]}]}),
)
terms = st.fixed_dictionaries(
    {"topologyKey": st.sampled_from(["kubernetes.io/hostname", "zone"]), "labelSelector": selectors},
    optional={
        "namespaces": st.lists(st.sampled_from(["default", "other"]), min_size=1, unique=True),
        "namespaceSelector": st.sampled_from([{}, {"matchLabels": {"team": "red"}}]),
    },
)
spreads = st.fixed_dictionaries(
    {
        "topologyKey": st.just("zone"),
        "labelSelector": selectors,
        "maxSkew": st.just(1),
        "whenUnsatisfiable": st.just("DoNotSchedule"),
    }
)
changes = st.lists(
    st.one_of(
        st.tuples(
            st.just("put"),
            st.sampled_from(["p", "q", "r", "s"]),
            st.sampled_from(["default", "other"]),
            st.dictionaries(st.sampled_from("ab"), st.sampled_from("xy")),
            st.dictionaries(st.sampled_from(["podAffinity", "podAntiAffinity"]), st.lists(terms, min_size=1)),
            st.lists(spreads, max_size=1),
            st.sampled_from(["", "n1", "ending"]),
        ),
        st.tuples(st.just("drop"), st.sampled_from(["p", "q", "r", "s"])),
        st.tuples(st.just("label"), st.sampled_from(["default", "other"]), st.sampled_from(LABELS)),
    ),
    max_size=12,
)  # fmt: skip


def build(name: str, namespace: str, labels: dict[str, str], rules: Any, spread: Any, where: str) -> PodBuilder:
    made = pod(name).namespace(namespace).with_field(labels, "metadata", "labels").uid(name)
    made = made.in_group("g") if name in MEMBERS else made
    made = made.with_field({kind: {REQUIRED: each} for kind, each in rules.items()}, "spec", "affinity")
    made = made.with_field(spread, "spec", "topologySpreadConstraints")
    made = made.deleting() if where == "ending" else made
    return made.with_field("n1" if where else "", "spec", "nodeName")


MEMBERS = ("p", "q")
"""The pods that are members of a gang; the others run, or wait and are never planned."""


def waits(found: Pod) -> bool:
    return found.pending and found.may_be_member


def list_asked(found: Pod) -> set[Matching]:
    """The matchings for which all pods count."""
    rules = found.shape.neighbours
    return set(rules.matchings) if rules is not None and waits(found) else set()


def list_repelling(found: Pod) -> set[Matching]:
    """Return the anti-affinity of a bound pod, for which waiting members count; none if the pod waits."""
    rules = found.shape.neighbours
    return {each.matching for each in rules.apart} if rules is not None and found.bound else set()


def counts_for(store: Store, matching: Matching, found: Pod) -> bool:
    if matching.living and found.deleting:
        return False
    namespace = store.rule(MatchingPods).namespaces.get(found.namespace, Namespace(""))
    return all(each.selects(found.namespace, found.labels, namespace.labels) for each in matching.selections)


@given(changes=changes)
def test_each_pod_counts_for_the_rules_that_mean_it(changes: list[Any]) -> None:
    store = Store(["default-scheduler"], rules=RULES)
    for change in changes:
        tell(store, change)
        check(store)


@given(changes=changes, random=st.randoms(use_true_random=False))
def test_where_all_is_put_off_it_comes_to_the_same_and_members_wait_for_it(changes: list[Any], random: Random) -> None:
    store, has_turned = Store(["default-scheduler"], rules=RULES), False
    with one_item_per_step():
        for change in changes:
            tell(store, change)
            has_turned = has_turned or change[0] == "label"
            if random.random() < 0.3 and not store.apply_rule_changes():
                has_turned = False
            if not has_turned:  # by that all answers are late, like those of a watch
                assert not [each.name for each in store.pods.values() if is_planned_uncounted(store, each)]
        run_deferred_work(store)
    check(store)
    assert not any(each.awaits for each in store.pods.values())


def tell(store: Store, change: Any) -> None:
    kind, *what = change
    if kind == "put":
        store.put_pod(build(*what).value())
    elif kind == "drop":
        store.drop_pod(what[0])
    else:
        store.put_object(Namespace(*what))


def is_planned_uncounted(store: Store, member: Pod) -> bool:
    """Return whether a matching pod lacks its amount for a rule of a member that may be planned."""
    return not member.awaits and any(
        matching.amount not in dict(each.shape.requests)
        for matching in list_asked(member)
        for each in store.pods.values()
        if counts_for(store, matching, each)
    )


def check(store: Store) -> None:
    """Each pod has the amounts of what it counts for, by asking it about each rule."""
    asked = {matching for each in store.pods.values() for matching in list_asked(each)}
    repelling = {matching for each in store.pods.values() for matching in list_repelling(each)}
    for each in store.pods.values():
        has = {name for name, _ in each.shape.requests if name.startswith(COUNTS)}
        needed = asked | repelling if waits(each) else asked
        assert {m.amount for m in needed if counts_for(store, m, each)} == has & {m.amount for m in needed}
        assert store.occupancy.node_of(each.uid) in {None, "n1"}
    amounts = [name for each in store.pods.values() if each.bound for name, _ in each.shape.requests]
    used = store.occupancy.used.get("n1", {})
    assert {name: amounts.count(name) for name in amounts if name.startswith(COUNTS)} == {
        name: amount for name, amount in used.items() if name.startswith(COUNTS)
    }
