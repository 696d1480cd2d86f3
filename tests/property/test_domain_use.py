"""Scores of nodes do not depend on history: they are as if the cluster had always been as it is now."""

import hypothesis.strategies as st
from hypothesis import given

from serried.api.group import PodGroup, Policy
from serried.api.names import GroupKey
from serried.api.node import Node
from serried.api.pod import Pod, Shape
from serried.cluster.cache import Store
from serried.cluster.domain_use import MAX_SCORE
from serried.rules.all import RULES

Change = Node | Pod | PodGroup | tuple[str, str]

KEYS = ("rack", "block")
NAMES = [f"n{number}" for number in range(6)]
GROUPS = [PodGroup(GroupKey("default", key), f"{key}-uid", Policy(2), topology_key=key) for key in KEYS]

nodes = st.builds(
    lambda name, cpu, labels: Node(name, {"cpu": cpu, "pods": 9}, labels),
    st.sampled_from(NAMES),
    st.integers(1, 9),
    st.dictionaries(st.sampled_from(KEYS), st.sampled_from("xyz")),
)
pods = st.builds(
    lambda number, cpu, node: Pod("default", f"p{number}", f"p{number}", Shape((("cpu", cpu), ("pods", 1))), node=node),
    st.integers(0, 9),
    st.integers(0, 9),
    st.sampled_from(["", *NAMES]),
)
changes = st.lists(
    nodes
    | pods
    | st.sampled_from(GROUPS)
    | st.tuples(st.sampled_from(["node", "pod"]), st.sampled_from([*NAMES, *(f"p{number}" for number in range(10))])),
    max_size=40,
)


def tell(store: Store, change: Change) -> None:
    if isinstance(change, Node):
        store.put_node(change)
    elif isinstance(change, Pod):
        store.put_pod(change)
    elif isinstance(change, PodGroup):
        store.put_group(change)
    elif change[0] == "node":
        store.drop_node(change[1])
    else:
        store.drop_pod(change[1])


@given(changes=changes, names=st.lists(st.sampled_from(NAMES), unique=True))
def test_scores_follow_from_what_is_there_now(changes: list[Change], names: list[str]) -> None:
    lived, fresh = Store(["serried"], rules=RULES), Store(["serried"], rules=RULES)
    for change in changes:
        tell(lived, change)
    left: list[Change] = [*lived.nodes.values(), *lived.pods.values(), *lived.groups.values()]
    for change in left:
        tell(fresh, change)
    scores = lived.domain_use.score(names)
    assert scores == fresh.domain_use.score(names)
    assert all(0 <= each <= MAX_SCORE for each in scores)
