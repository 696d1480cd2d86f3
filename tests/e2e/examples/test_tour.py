"""The README's tour does what its comments say, on nodes without racks."""

import shlex
from collections.abc import Iterator

import pytest

from tests.e2e.examples.stage import EXAMPLES, ExampleStage
from tests.support.cluster_stage import RACK, eventually
from tests.support.written import read_block

pytestmark = pytest.mark.e2e


@pytest.fixture
def bare_nodes(stage: ExampleStage) -> Iterator[None]:
    """No node is in a rack, for as long as the story lasts."""
    nodes = stage.cluster.api.get("/api/v1/nodes")["items"]
    stage.cluster.kubectl("label", "nodes", "--all", f"{RACK}-")
    yield
    for node in nodes:
        rack = node["metadata"]["labels"][RACK]
        stage.cluster.kubectl("label", "node", node["metadata"]["name"], f"{RACK}={rack}", "--overwrite")


@pytest.mark.usefixtures("bare_nodes")
def test_five_minutes(stage: ExampleStage) -> None:
    apply_gang, show, create_plain, apply_rack, describe, label, delete, tidy = commands()

    run(stage, apply_gang)
    stage.await_bound("training-job", 8)
    assert "training-job" in run(stage, show)

    run(stage, create_plain)
    run(stage, apply_rack)
    stage.await_reason(stage.group_of_job("one-rack"), "NoDomainFits")
    eventually("the reason where people look", lambda: "NoDomainFits" in run(stage, describe))

    run(stage, label)
    stage.await_bound("one-rack", 6)
    run(stage, delete)
    eventually("no pods", lambda: not stage.pods("one-rack") and not stage.pods("training-job"))
    run(stage, tidy)
    nodes = stage.cluster.api.get("/api/v1/nodes")["items"]
    assert not any(RACK in node["metadata"]["labels"] for node in nodes)


def commands() -> list[list[str]]:
    """The commands of the tour."""
    block = read_block("README.md", "### What can I try in five minutes?", "sh")
    return [shlex.split(line, comments=True) for line in block.splitlines()]


def run(stage: ExampleStage, command: list[str]) -> str:
    """Run one of them in the namespace of the story."""
    program, *arguments = command
    assert program == "kubectl"
    paths = [str(EXAMPLES.parent / each) if each.startswith("examples/") else each for each in arguments]
    return stage.cluster.kubectl("-n", stage.namespace, *paths)
