"""The README's tour does what its comments say, and leaves the labels of users alone."""

import shlex

import pytest

from tests.e2e.examples.stage import EXAMPLES, ExampleStage
from tests.support.cluster_stage import eventually
from tests.support.written import read_code_block

pytestmark = pytest.mark.e2e


def test_five_minutes(stage: ExampleStage) -> None:
    apply_gang, show, create_plain, apply_rack, describe, label, delete, tidy = commands()

    run(stage, apply_gang)
    stage.await_bound("training-job", 8)
    assert "training-job" in run(stage, show)

    before = list_labels(stage)
    run(stage, create_plain)
    run(stage, apply_rack)
    stage.await_reason(stage.group_of_job("tour"), "NoDomainFits")
    eventually("the reason where people look", lambda: "NoDomainFits" in run(stage, describe))

    run(stage, label)
    stage.await_bound("tour", 6)
    run(stage, delete)
    eventually("no pods", lambda: not stage.pods("tour") and not stage.pods("training-job"))
    run(stage, tidy)
    assert list_labels(stage) == before


def list_labels(stage: ExampleStage) -> list[dict[str, str]]:
    """The labels of each node."""
    return [node["metadata"]["labels"] for node in stage.cluster.api.get("/api/v1/nodes")["items"]]


def commands() -> list[list[str]]:
    """The commands of the tour."""
    block = read_code_block("README.md", "### What can I try in five minutes?", "sh")
    return [shlex.split(line, comments=True) for line in block.splitlines()]


def run(stage: ExampleStage, command: list[str]) -> str:
    """Run one of them in the namespace of the story."""
    program, *arguments = command
    assert program == "kubectl"
    paths = [str(EXAMPLES.parent / each) if each.startswith("examples/") else each for each in arguments]
    return stage.cluster.kubectl("-n", stage.namespace, *paths)
