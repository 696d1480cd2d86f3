"""The label of a level is one of its candidates that nodes carry, whatever came in which order."""

from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from serried.api.preference import LEVELS
from serried.api.topology import TopologyLevels, decode_topology_levels, list_defaults, write_table
from serried.cluster.cache import Store
from serried.rules.all import RULES
from tests.support.builders import node

LABELS = sorted({label for level in LEVELS for label in list_defaults(level)} | {"example.com/own"})
RESOURCES = ["nvidia.com/gpu", "example.com/fpga"]

NODES = st.tuples(
    st.integers(0, 7), st.frozensets(st.sampled_from(LABELS), max_size=6), st.frozensets(st.sampled_from(RESOURCES))
)


def make(store: Store, number: int, labels: frozenset[str], resources: frozenset[str]) -> None:
    builder = node(f"n{number}")
    for label in labels:
        builder = builder.label(label, "a")
    for resource in resources:
        builder = builder.allocatable(resource, 1)
    store.put_node(builder.value())


@given(
    st.lists(NODES, max_size=20),
    st.sampled_from([{}, {"rack": ("example.com/own",)}]),
    st.frozensets(st.integers(0, 7)),
)
def test_the_table(
    nodes: Sequence[tuple[int, frozenset[str], frozenset[str]]],
    own: Mapping[str, tuple[str, ...]],
    gone: frozenset[int],
) -> None:
    store, anew = Store(["serried"], rules=RULES), Store(["serried"], rules=RULES)
    said = TopologyLevels("default", own)
    store.put_levels(said)
    for each in nodes:
        make(store, *each)
    for number in gone:
        store.drop_node(f"n{number}")
    last = {number: (labels, resources) for number, labels, resources in nodes if number not in gone}
    for number, (labels, resources) in sorted(last.items()):
        make(anew, number, labels, resources)
    anew.put_levels(said)
    table = store.levels.table
    assert table == anew.levels.table
    for pool in table.pools:
        having = [labels for labels, resources in last.values() if not pool.resource or pool.resource in resources]
        assert pool.nodes == len(having)
        for level, found in pool.labels.items():
            assert found.label in table.candidates[level]
            assert found.nodes == sum(found.label in labels for labels in having) > 0
        for level in LEVELS:
            usual = (
                label for label in table.candidates[level] if 2 * sum(label in each for each in having) >= len(having)
            )
            first = next(usual, "") if having else ""
            assert not first or pool.labels[level].label == first
    read = decode_topology_levels({"metadata": {"name": "default"}, "status": write_table(table)})
    assert isinstance(read, TopologyLevels)
    assert read.status == table
