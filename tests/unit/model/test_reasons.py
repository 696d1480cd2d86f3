"""Reasons: all facts about one are in its row, and no other module sorts reasons."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from serried.api.verdict import Reason, Stage, Trait

ROOT = Path(__file__).parents[3]
SOURCES = [
    path for room in ("serried", "extender", "controller", "cli") for path in sorted((ROOT / room).rglob("*.py"))
]


def find_sets(tree: ast.AST) -> Iterator[int]:
    """The lines in which several reasons are written out as one collection."""
    for node in ast.walk(tree):
        items = node.keys if isinstance(node, ast.Dict) else getattr(node, "elts", [])
        if sum(map(is_reason, items)) > 1:
            yield node.lineno  # type: ignore[attr-defined]


def is_reason(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Reason"


def test_no_collection_of_reasons_stands_outside_of_the_table() -> None:
    found = {source.relative_to(ROOT): list(find_sets(ast.parse(source.read_text()))) for source in SOURCES}
    assert {source: lines for source, lines in found.items() if lines} == {}


def test_such_a_collection_would_be_found() -> None:
    written = ast.parse("WAITS = {Reason.PLANNED, Reason.BINDING}; HELP = {Reason.PLANNED: 1, Reason.BINDING: 2}")
    assert len(list(find_sets(written))) == 2


@pytest.mark.parametrize("reason", list(Reason))
def test_a_row_does_not_contradict_itself(reason: Reason) -> None:
    assert reason.sentence
    assert reason.advice or reason.stage is Stage.BOUND
    if Trait.TRANSIENT in reason.traits:
        assert Trait.PROGRESS in reason.traits
    if Trait.SAME_FOR_SHAPE in reason.traits:
        assert Trait.NEEDS_RESOURCES in reason.traits
    assert not {Trait.NEEDS_RESOURCES, Trait.PREEMPTION_USELESS} <= reason.traits
    assert not {Trait.PROGRESS, Trait.SERRIED_FAILED} <= reason.traits
