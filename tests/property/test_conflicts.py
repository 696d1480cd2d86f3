"""Rules that keep pods apart, compared with kube-scheduler's rules restated for two pods at a time."""

from itertools import combinations
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from serried.api.interpod import read_interpod_rules
from serried.api.pod import read_conflicts
from serried.api.resources import capacity, total
from tests.support.builders import PodBuilder, pod

Port = tuple[int, str, str]
ANY = "0.0.0.0"  # noqa: S104 - nothing listens here

ports = st.tuples(st.sampled_from([80, 81]), st.sampled_from(["", ANY, "10.0.0.1", "10.0.0.2"]),
                  st.sampled_from(["TCP", "UDP"]))  # fmt: skip
listeners = st.lists(ports, min_size=1, max_size=3)


def clash(left: Port, right: Port) -> bool:
    """HostPortInfo.CheckConflict."""
    same = (left[0], left[2]) == (right[0], right[2])
    return same and (left[1] == right[1] or not {left[1], right[1]}.isdisjoint({"", ANY}))


def fit_together(*builders: PodBuilder) -> bool:
    raws = [each.raw() for each in builders]
    asked = total(read_conflicts(raw, read_interpod_rules(raw)) for raw in raws)
    return all(amount <= capacity({}, name) for name, amount in asked.items())


def listening(wanted: list[Port]) -> PodBuilder:
    builder = pod("p")
    for number, address, protocol in wanted:
        builder = builder.host_port(number, address, protocol)
    return builder


@given(wanted=st.lists(listeners, min_size=1, max_size=4))
def test_listeners_fit_on_one_node_if_no_two_of_them_clash(wanted: list[list[Port]]) -> None:
    clashing = any(clash(a, b) for left, right in combinations(wanted, 2) for a in left for b in right)
    assert fit_together(*map(listening, wanted)) is not clashing


selectors = st.dictionaries(st.sampled_from("ab"), st.sampled_from("xy"), max_size=2)
terms = st.fixed_dictionaries(
    {"labels": selectors},
    optional={
        "namespaces": st.lists(st.sampled_from(["default", "other"]), unique=True),
        "namespaceSelector": st.just({}),
        "key": st.sampled_from(["kubernetes.io/hostname", "zone"]),
    },
)
Carrier = tuple[str, dict[str, str], list[dict[str, Any]]]
carriers = st.tuples(
    st.sampled_from(["default", "other"]),
    st.dictionaries(st.sampled_from("ab"), st.sampled_from("xy")),
    st.lists(terms, max_size=2),
)


def carrying(carrier: Carrier) -> PodBuilder:
    namespace, labels, wanted = carrier
    builder = pod("p").namespace(namespace).with_field(labels, "metadata", "labels")
    for term in wanted:
        builder = builder.anti_affinity(**term)
    return builder


def means(term: dict[str, Any], own: str, other: Carrier) -> bool:
    """Return whether a term of a pod in namespace ``own`` keeps the other pod off its node."""
    namespace, labels, _ = other
    everywhere = "namespaceSelector" in term
    here = everywhere or namespace in (term.get("namespaces") or [own])
    return here and term.get("key") != "zone" and term["labels"].items() <= labels.items()


@given(left=carriers, right=carriers)
def test_no_two_pods_are_kept_apart_that_the_scheduler_would_put_together(left: Carrier, right: Carrier) -> None:
    if not fit_together(carrying(left), carrying(right)):
        assert any(means(term, left[0], right) for term in left[2]) or any(
            means(term, right[0], left) for term in right[2]
        )


@given(carrier=carriers)
def test_twins_are_kept_apart_if_and_only_if_the_scheduler_keeps_them_apart(carrier: Carrier) -> None:
    apart = any(means(term, carrier[0], carrier) for term in carrier[2])
    assert fit_together(carrying(carrier), carrying(carrier)) is not apart
