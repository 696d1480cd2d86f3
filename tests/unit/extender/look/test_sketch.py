"""The events of the page at /debug/: the whole state once, then the changes."""

from typing import Any

import pytest

from extender.look.sketch import COLUMNS, Sketch
from tests.support.builders import PodGroupBuilder, node, pod, pod_group
from tests.support.extender_harness import SCHEDULER, Harness, gang, members, small_nodes
from tests.support.page_stage import RACK, ZONE, DecisionRecorder, ExampleCluster, make_world


class Reader:
    """Follows a sketch as the page does: rows by their numbers."""

    def __init__(self, world: Harness) -> None:
        assert isinstance(world.heard, DecisionRecorder)
        self.sketch = Sketch(world.core, world.heard.decisions)
        self.rows: dict[str, dict[int, dict[str, Any]]] = {"nodes": {}, "gangs": {}}
        self.whole: dict[str, Any] = {}

    def look(self) -> dict[str, Any]:
        """Take a whole look. Return the change that it found."""
        for _ in self.sketch.refresh():
            pass
        change = self.sketch.take_change()
        self.take(change)
        return change

    def take(self, message: dict[str, Any]) -> None:
        """Apply one message."""
        self.whole |= {name: value for name, value in message.items() if name not in {"nodes", "gangs"}}
        for table, known in self.rows.items():
            known |= {row[0]: dict(zip(COLUMNS[table], row, strict=True)) for row in message.get(table, ())}
            for number in message.get(f"{table}Gone", ()):
                del known[number]

    def named(self, table: str) -> dict[str, dict[str, Any]]:
        """The rows by name."""
        return {row["name"]: row for row in self.rows[table].values()}


@pytest.fixture
async def town_reader() -> Reader:
    world = make_world()
    await ExampleCluster(world).create_workloads()
    return Reader(world)


def topology(name: str, zone: str, rack: str) -> Any:
    """A node in a rack of a zone."""
    return node(name).cpu(4).label(ZONE, zone).label(RACK, rack)


async def test_a_look_at_nothing_new_tells_nothing(town_reader: Reader) -> None:
    assert len(town_reader.look()["nodes"]) == 240
    assert town_reader.look() == {}


async def test_a_plan_and_a_bound_pod_are_told_apart() -> None:
    world = make_world()
    world.add(*small_nodes(3, cpus=4), gang(2), *members(2), pod("other").cpu(1).on("n3"))
    await world.run_until_idle()
    reader = Reader(world)
    reader.look()
    shown = {name: (row["used"], row["planned"]) for name, row in reader.named("nodes").items()}
    assert shown == {"n1": (0, 0), "n2": (0, 0), "n3": (25, 50)}
    calls = [world.bind("m0"), world.bind("m1")]
    await world.run_until_idle()
    assert [call.error for call in calls] == ["", ""]
    assert [row[1] for row in reader.look()["nodes"]] == ["n3"]
    assert (reader.named("nodes")["n3"]["used"], reader.named("nodes")["n3"]["planned"]) == (75, 0)
    assert reader.named("gangs")["g"]["state"] == "Scheduled"


async def test_what_is_kept_and_what_is_cordoned_is_marked(town_reader: Reader) -> None:
    town_reader.look()
    marks = {row["name"]: row["marks"] for row in town_reader.rows["nodes"].values() if row["marks"]}
    cordoned = {name for name, mark in marks.items() if mark & 1}
    kept = {name for name, mark in marks.items() if mark & 2}
    vacant = {name for name, mark in marks.items() if mark & 4}
    assert cordoned == {"node-047", "node-151"}
    assert len(kept) == town_reader.whole["head"]["nodes"] > 0
    assert vacant == {"node-083", "node-088"}


async def test_the_queue_is_told_by_the_numbers_of_its_gangs_in_their_turn(town_reader: Reader) -> None:
    town_reader.look()
    names = [town_reader.rows["gangs"][number]["name"] for number in town_reader.whole["order"]]
    assert names == ["train-llm-6cfb954c4f", "hyper-sweep-7549667c5d"]
    assert town_reader.whole["head"]["group"] == "language/train-llm-6cfb954c4f"


async def test_each_gang_has_its_reason_and_its_quorum(town_reader: Reader) -> None:
    town_reader.look()
    found = town_reader.named("gangs")["dock-ligands"]
    assert (found["state"], found["reason"], found["quorum"], found["members"]) == ("Waiting", "QuorumMissing", 8, 5)
    assert found["message"] == "QuorumMissing: 5 of 8 members exist"


async def test_levels_are_the_topology_keys_the_widest_first_and_those_that_groups_name() -> None:
    world = make_world()
    world.add(*(topology(f"n{index}", f"z{index // 4}", f"r{index // 2}").label("disk", "ssd") for index in range(8)))
    reader = Reader(world)
    reader.look()
    assert reader.whole["levels"] == (ZONE, RACK)
    world.add(pod_group("g").gang(2).topology("disk"))
    assert reader.look()["levels"] == ("disk", ZONE, RACK)


async def test_a_label_of_a_node_that_changes_moves_it() -> None:
    world = make_world()
    world.add(*(topology(f"n{index}", "z", f"r{index // 2}") for index in range(4)))
    reader = Reader(world)
    reader.look()
    before = reader.named("nodes")["n0"]
    world.add(topology("n0", "z", "r1").version("2"))
    reader.look()
    after = reader.named("nodes")
    assert after["n0"]["place"] == after["n2"]["place"] != before["place"]
    assert after["n0"]["number"] == before["number"]


async def test_nodes_and_gangs_that_go_are_told_to_be_gone() -> None:
    world = make_world()
    world.add(*small_nodes(2), gang(2))
    reader = Reader(world)
    reader.look()
    world.store.drop_node("n1")
    world.store.drop_group(next(iter(world.store.groups)))
    reader.look()
    assert list(reader.named("nodes")) == ["n2"]
    assert reader.rows["gangs"] == {}


async def test_each_decision_is_told_once_with_the_newest_last() -> None:
    world = make_world()
    await world.add(*small_nodes(2), gang(2), *members(1)).run_until_idle()
    reader = Reader(world)
    assert [row[3] for row in reader.look()["decisions"]] == ["QuorumMissing"]
    await world.add(*members(1, first=1)).run_until_idle()
    assert [row[3] for row in reader.look()["decisions"]] == ["Planned"]
    assert "decisions" not in reader.look()


async def test_the_whole_in_parts_is_what_the_changes_have_told(town_reader: Reader) -> None:
    town_reader.look()
    other = Reader.__new__(Reader)
    other.rows, other.whole = {"nodes": {}, "gangs": {}}, {}
    first, *parts = town_reader.sketch.write_whole()
    for message in parts:
        other.take(message)
    assert first["reset"]
    assert parts[-1]["complete"]
    assert other.rows == town_reader.rows


def many(count: int) -> list[PodGroupBuilder]:
    """Groups without pods."""
    return [pod_group(f"many-{number}").gang(2) for number in range(count)]


async def test_more_gangs_than_are_shown_are_counted() -> None:
    world = make_world()
    world.add(*many(5_002), pod("p").scheduler(SCHEDULER).in_group("many-0"))
    reader = Reader(world)
    reader.look()
    assert (len(reader.rows["gangs"]), reader.whole["gangsLeftOff"]) == (5_000, 2)


async def test_a_slice_is_short_also_where_there_is_much(town_reader: Reader) -> None:
    assert sum(1 for _ in town_reader.sketch.refresh()) > 240 / 16


async def test_a_gang_and_its_decisions_are_called_as_the_job_that_it_was_made_for(town_reader: Reader) -> None:
    change = town_reader.look()
    gangs = town_reader.named("gangs")
    assert gangs["train-llm-6cfb954c4f"]["owner"] == "job/train-llm"
    assert gangs["dock-ligands"]["owner"] == ""
    owners = {row[2]: row[6] for row in change["decisions"]}
    assert owners["vision/hyper-sweep-7549667c5d"] == "job/hyper-sweep"


async def test_a_gang_tells_since_when_it_stands_as_it_does(town_reader: Reader) -> None:
    town_reader.look()
    gangs = town_reader.named("gangs")
    assert gangs["ranker"]["since"] > gangs["train-llm-6cfb954c4f"]["since"]
    assert gangs["train-llm-6cfb954c4f"]["since"] > gangs["whisper"]["since"]
