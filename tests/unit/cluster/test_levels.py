"""The label of a level: the first that half of the nodes carry, or the one that the operator has named."""

from dataclasses import replace
from typing import Any

import pytest

from serried.api.device import DeviceClass
from serried.api.job import Job
from serried.api.names import Malformed
from serried.api.node import Node
from serried.api.preference import LEVELS, PREFERRED_TOPOLOGY, Level
from serried.api.resolved import resolve_owner
from serried.api.topology import (
    MAX_POOLS,
    ForeignLevels,
    LevelTable,
    Pool,
    TopologyLevels,
    decode_grove_binding,
    decode_kueue_topology,
    decode_topology_levels,
    explain_missing,
    may_change_labels,
    write_table,
)
from serried.cluster.cache import Store
from serried.cluster.levels import Levels
from serried.rules.all import RULES
from tests.support.builders import job, node, pod, pod_group
from tests.support.devices import DRIVER, devices, mark_devices_listed

AWS_RACK, AWS_BLOCK = "topology.k8s.aws/network-node-layer-3", "topology.k8s.aws/network-node-layer-2"
GKE_RACK = "cloud.google.com/gce-topology-subblock"
CLIQUE = "nvidia.com/gpu.clique"
GPU = "nvidia.com/gpu"
OWN = "example.com/aisle"


def make(count: int, *labels: str, gpus: int = 0, prefix: str = "n") -> list[Node]:
    """Nodes with these labels."""
    made = []
    for number in range(count):
        builder = node(f"{prefix}{number}").cpu(8)
        for label in labels:
            builder = builder.label(label, "a")
        made.append((builder.allocatable(GPU, gpus) if gpus else builder).value())
    return made


def world(*nodes: Node) -> Store:
    store = Store(["serried"], rules=RULES)
    for each in nodes:
        store.put_node(each)
    return store


def declare(**labels: list[str]) -> TopologyLevels:
    entries = [{"name": name, "labels": found} for name, found in labels.items()]
    return read({"metadata": {"name": "default"}, "spec": {"levels": entries}})


def read(raw: dict[str, Any]) -> TopologyLevels:
    found = decode_topology_levels(raw)
    assert isinstance(found, TopologyLevels)
    return found


def kueue(*levels: dict[str, str]) -> ForeignLevels:
    found = decode_kueue_topology({"metadata": {"name": "default"}, "spec": {"levels": list(levels)}})
    assert isinstance(found, ForeignLevels)
    return found


def grove(*levels: tuple[str, str]) -> ForeignLevels:
    named = [{"domain": domain, "key": key} for domain, key in levels]
    found = decode_grove_binding({"metadata": {"name": "gpus"}, "spec": {"levels": named}})
    assert isinstance(found, ForeignLevels)
    return found


@pytest.mark.parametrize(
    ("nodes", "level", "label"),
    [
        pytest.param(make(4, AWS_RACK), "rack", AWS_RACK, id="on EKS a rack is the lowest layer of the network"),
        pytest.param(make(4, GKE_RACK), "rack", GKE_RACK, id="on GKE it is a subblock"),
        pytest.param([*make(2, AWS_RACK), *make(2, prefix="m")], "rack", AWS_RACK, id="half of the nodes are enough"),
        pytest.param([*make(1, AWS_RACK), *make(2, prefix="m")], "rack", "", id="fewer than half are not"),
        pytest.param(
            make(4, AWS_RACK, "topology.serried.dev/rack"),
            "rack",
            "topology.serried.dev/rack",
            id="of several labels the first of the table counts",
        ),
        pytest.param(
            [*make(1, "rack"), *make(3, prefix="m")], "rack", "rack", id="a label of the level's own name does"
        ),
        pytest.param(make(4, AWS_RACK, "rack"), "rack", "rack", id="and comes first: it meant that before"),
        pytest.param(
            [*make(1, AWS_RACK, "rack"), *make(3, AWS_RACK, prefix="m")],
            "rack",
            AWS_RACK,
            id="but not where others are the usual ones",
        ),
        pytest.param(make(4), "spine", "", id="without a label there is none"),
        pytest.param([], "zone", "", id="without nodes neither"),
    ],
)
def test_by_what_nodes_carry(nodes: list[Node], level: str, label: str) -> None:
    assert world(*nodes).levels.table.find_label(level, ()) == label


MIXED = [*make(6, prefix="cpu"), *make(2, CLIQUE, AWS_RACK, gpus=8, prefix="gpu")]


@pytest.mark.parametrize(
    ("wanted", "label"),
    [
        pytest.param({GPU}, CLIQUE, id="for pods with GPUs the nodes with GPUs count"),
        pytest.param(set[str](), "", id="for others all nodes do"),
        pytest.param({GPU, "example.com/fpga"}, CLIQUE, id="of several resources the rarest one that there is"),
    ],
)
def test_by_the_devices_that_pods_want(wanted: set[str], label: str) -> None:
    assert world(*MIXED).levels.table.find_label("nvlink", wanted) == label


FPGA = "example.com/fpga"


def test_which_labels_nodes_will_have_that_are_not_there_yet_nobody_knows() -> None:
    store = world(*make(3, AWS_RACK))
    assert store.levels.table.find_label("rack", {FPGA}) == ""
    assert store.levels.table.find_label("rack", {FPGA}, {AWS_RACK}) == AWS_RACK
    assert explain_missing("rack", {FPGA}, store.levels.table).startswith(f"no node has {FPGA}; ")
    store.put_node(node("new").allocatable(FPGA, 1).label(GKE_RACK, "a").value())
    assert store.levels.table.find_label("rack", {FPGA}) == GKE_RACK


def test_any_node_may_have_what_a_device_class_provides() -> None:
    store = world(*make(3, AWS_RACK))
    store.put_object(DeviceClass("fpga", FPGA))
    assert store.levels.table.find_label("rack", {FPGA}) == AWS_RACK
    store.drop_object(DeviceClass, "fpga")
    assert store.levels.table.find_label("rack", {FPGA}) == ""


def test_of_too_many_resources_those_count_whose_nodes_are_unlike_all_nodes() -> None:
    many = [f"example.com/r{number}" for number in range(MAX_POOLS + 1)]
    usual = node("n").label(AWS_RACK, "a")
    for resource in many:
        usual = usual.allocatable(resource, 1)
    same = (replace(usual.value(), name=f"n{number}") for number in range(4))
    store = world(*same, node("gpu").label(GKE_RACK, "a").allocatable(GPU, 8).value())
    table = store.levels.table
    assert table.find_label("rack", {GPU}) == GKE_RACK
    assert {table.find_label("rack", {resource}) for resource in many} == {AWS_RACK}


KEY = f"{DRIVER}/aisle"
"""The label that stands for an attribute of devices."""


@pytest.mark.parametrize("said", [pytest.param(["example.com/none"], id="later"), pytest.param([KEY], id="first")])
def test_an_attribute_of_devices_counts_as_the_label_that_it_stands_for(said: list[str]) -> None:
    store = world(*make(1))
    mark_devices_listed(store)
    store.put_levels(declare(rack=said))
    store.put_group(pod_group("g").gang(2).topology(KEY).value())
    store.put_object(devices("n0", 2).attribute("aisle", {"string": "a"}).value())
    store.put_levels(declare(rack=[KEY]))
    assert store.levels.table.find_label("rack", ()) == KEY
    store.put_node(node("n0").cpu(16).value())
    assert store.levels.table.find_label("rack", ()) == KEY


def test_a_label_without_a_value_is_not_carried() -> None:
    assert world(node("n").label(AWS_RACK, "").value()).levels.table.find_label("rack", ()) == ""


def test_what_an_administrator_says_counts_alone_and_one_node_is_enough() -> None:
    store = world(*make(3, AWS_RACK), *make(1, OWN, prefix="m"))
    store.put_levels(declare(rack=[OWN]))
    assert store.levels.table.find_label("rack", ()) == OWN
    assert store.levels.table.candidates["rack"] == (OWN,)
    store.put_levels(declare(rack=["example.com/none"]))
    assert store.levels.table.find_label("rack", ()) == ""
    store.drop_levels("default")
    assert store.levels.table.find_label("rack", ()) == AWS_RACK


def test_only_the_object_of_the_right_name_counts() -> None:
    store = world(*make(2, AWS_RACK, OWN))
    store.put_levels(replace(declare(rack=[OWN]), name="other"))
    assert store.levels.table.find_label("rack", ()) == AWS_RACK


@pytest.mark.parametrize(
    ("said", "level", "label"),
    [
        pytest.param(kueue({"nodeLabel": AWS_BLOCK}, {"nodeLabel": AWS_RACK}), "rack", AWS_RACK, id="a known label"),
        pytest.param(kueue({"nodeLabel": OWN}), "rack", "", id="not one that nobody has named"),
        pytest.param(kueue({"nodeLabel": OWN, "alias": "rack"}), "rack", OWN, id="but one with an alias"),
    ],
)
def test_a_topology_of_kueue_is_read(said: ForeignLevels, level: str, label: str) -> None:
    store = world(*make(3), *make(1, AWS_RACK, OWN, prefix="m"))
    store.levels.put(store.levels.kueue, said)
    assert store.levels.table.find_label(level, ()) == label
    store.levels.drop(store.levels.kueue, said.name)
    assert store.levels.table.find_label(level, ()) == ""


def test_a_binding_of_grove_comes_before_a_topology_of_kueue() -> None:
    store = world(*make(2, AWS_RACK, OWN))
    store.levels.put(store.levels.kueue, kueue({"nodeLabel": AWS_RACK}))
    store.levels.put(store.levels.grove, grove(("rack", OWN), ("numa", "example.com/numa")))
    assert store.levels.table.find_label("rack", ()) == OWN
    assert "example.com/numa" not in str(store.levels.table)


def test_nodes_that_come_change_and_go() -> None:
    store = world(*make(2, AWS_RACK))
    store.put_node(node("n0").label(GKE_RACK, "b").value())
    store.put_node(node("n1").label(GKE_RACK, "b").value())
    assert store.levels.table.find_label("rack", ()) == GKE_RACK
    store.drop_node("n0")
    store.drop_node("n1")
    store.drop_node("never seen")
    assert store.levels.table == Levels({}, {}).table


def test_the_nodes_of_so_many_resources_are_counted() -> None:
    store = world(*(node(f"n{number}").allocatable(f"example.com/r{number}", 1).value() for number in range(50)))
    assert len(store.levels.table.pools) == 1 + MAX_POOLS


def test_what_is_written_is_read_again() -> None:
    store = world(*MIXED)
    store.levels.put(store.levels.grove, grove(("rack", OWN)))
    table = store.levels.table
    assert read({"metadata": {"name": "default"}, "status": write_table(table)}).status == table


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param({"spec": {"levels": []}}, id="no name"),
        pytest.param({"metadata": {"name": "default"}, "status": {"pools": [{"nodes": "two"}]}}, id="no number"),
    ],
)
def test_an_object_that_makes_no_sense_is_malformed(raw: dict[str, Any]) -> None:
    assert isinstance(decode_topology_levels(raw), Malformed)


# --- what is published ---------------------------------------------------------------------------------------------


PUBLISHED = world(*MIXED).levels.table
"""A table in which the label of nvlink depends on whether a pod wants GPUs, which two of eight nodes have."""


@pytest.mark.parametrize(
    ("table", "otherwise"),
    [
        pytest.param(world(*MIXED, *make(1, prefix="m")).levels.table, False, id="one more node like others"),
        pytest.param(world(*MIXED[:-1], *make(9, prefix="m")).levels.table, False, id="other counts all over"),
        pytest.param(world(*MIXED[:6]).levels.table, True, id="a resource went"),
        pytest.param(world(*MIXED[6:]).levels.table, True, id="another label"),
        pytest.param(replace(PUBLISHED, candidates={"rack": (OWN,)}), True, id="other candidates"),
        pytest.param(None, True, id="no table any more"),
    ],
)
def test_only_what_levels_mean_asks_for_looks_at_all_that_wait(table: LevelTable | None, *, otherwise: bool) -> None:
    assert may_change_labels(PUBLISHED, PUBLISHED) is False
    assert may_change_labels(PUBLISHED, table) is otherwise
    assert may_change_labels(table, PUBLISHED) is otherwise
    store = world()
    store.put_pod(pod("p").in_group("waiting").value())
    store.put_levels(TopologyLevels("default", {}, PUBLISHED))
    assert store.dirty.take_groups()
    if table is None:
        store.drop_levels("default")
    else:
        store.put_levels(TopologyLevels("default", {}, table))
    assert bool(store.dirty.take_groups()) is otherwise


def test_which_of_two_resources_is_rarer_counts() -> None:
    pools = (Pool("", 9, {}), Pool(GPU, 4, {}), Pool(FPGA, 5, {}))
    assert may_change_labels(LevelTable({}, pools), LevelTable({}, (*pools[:2], Pool(FPGA, 3, {}))))


# --- owners --------------------------------------------------------------------------------------------------------


def table_of(*nodes: Node) -> LevelTable:
    return world(*nodes).levels.table


def wanting(key: str, preferred: str = "rack") -> Job:
    return job("j").size(2).topology(key).annotation(PREFERRED_TOPOLOGY, preferred).value()


EKS = table_of(*make(4, AWS_RACK, AWS_BLOCK))


@pytest.mark.parametrize(
    ("key", "preferred", "required", "levels", "missing", "left_out"),
    [
        pytest.param("rack", "rack", AWS_RACK, (Level(AWS_RACK),), "", (), id="a name becomes a label"),
        pytest.param("example.com/x", "e.com/y", "example.com/x", (Level("e.com/y"),), "", (), id="a label stays"),
        pytest.param("spine", "nvlink", "spine", (), "spine", ("nvlink",), id="a name without a label is missing"),
        pytest.param(
            "block",
            "nvlink=30s,rack=60s",
            AWS_BLOCK,
            (Level(AWS_RACK, 60.0),),
            "",
            ("nvlink",),
            id="a preferred one of that kind is left out",
        ),
        pytest.param(
            "block",
            f"rack=5s,{AWS_RACK}",
            AWS_BLOCK,
            (Level(AWS_RACK, 5.0),),
            "",
            (),
            id="of two preferred levels with one label the narrower stays",
        ),
    ],
)
def test_the_levels_of_an_owner(
    key: str,
    preferred: str,
    required: str | None,
    levels: tuple[Level, ...],
    missing: str,
    left_out: tuple[str, ...],
) -> None:
    resolved = resolve_owner(wanting(key, preferred), EKS)
    assert (resolved.owner.topology_key, resolved.owner.preference.levels) == (required, levels)
    assert (resolved.missing, resolved.left_out) == (missing, left_out)


def test_what_was_made_by_a_label_keeps_it() -> None:
    both = table_of(*make(4, AWS_RACK, AWS_BLOCK, "topology.serried.dev/rack"))
    resolved = resolve_owner(wanting("rack", "nvlink,block"), both, frozenset({AWS_RACK}), has_groups=True)
    assert (resolved.owner.topology_key, resolved.owner.preference.levels) == (AWS_RACK, ())
    assert resolved.left_out == ("nvlink", "block")


def test_without_a_table_no_name_means_anything_and_labels_do() -> None:
    assert resolve_owner(wanting("rack"), None).missing == "rack"
    preferring = wanting("e.com/x", "e.com/y,block")
    assert resolve_owner(preferring, None) == (preferring, "block", ())
    assert resolve_owner(wanting("e.com/x", "e.com/y"), None).owner == wanting("e.com/x", "e.com/y")


def test_the_sentence_says_what_was_looked_for_and_what_to_do() -> None:
    said = explain_missing("spine", {GPU}, table_of(*MIXED))
    assert said.startswith(
        f"fewer than half of the nodes with {GPU} have any one of spine, fabric.topograph.run/tier-2, "
    )
    assert said.endswith("set a label for the level in TopologyLevels default, or name a label instead of the level")
    assert "has no status yet" in explain_missing("spine", (), None)


@pytest.mark.parametrize("level", LEVELS)
def test_a_label_is_called_by_its_level(level: str) -> None:
    label = EKS.find_label(level, ())
    assert EKS.name_labels().get(label, "") == (level if label else "")
