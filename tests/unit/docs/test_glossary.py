"""Each word of the glossary is carried by a type that exists, once."""

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
PACKAGES = ("serried", "extender", "controller", "cli")
ROW = re.compile(
    r"^\| (?P<word>[^|]+) \| (?P<meaning>[^|]+) \| (?P<upstream>[^|]+) \| (?P<types>`[^|]+`) \|$", re.MULTILINE
)
ROWS = [match.groupdict() for match in ROW.finditer((REPOSITORY / "docs" / "contributing" / "glossary.md").read_text())]
TYPES = [name for row in ROWS for name in re.findall(r"`([^`]+)`", row["types"])]


@cache
def read_classes() -> list[ast.ClassDef]:
    paths = [path for package in PACKAGES for path in (REPOSITORY / package).rglob("*.py")]
    trees = [ast.parse(path.read_text()) for path in paths]
    return [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]


def list_members(name: str) -> set[str]:
    """The fields, properties and methods that a class declares."""
    found: set[str] = set()
    for item in next(each for each in read_classes() if each.name == name).body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            found.add(item.target.id)
        elif isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(item.name)
    return found


@pytest.mark.parametrize("name", TYPES)
def test_the_type_of_a_word_exists_once(name: str) -> None:
    kind, _, member = name.partition(".")
    assert Counter(each.name for each in read_classes())[kind] == 1
    assert not member or member in list_members(kind)


@pytest.mark.parametrize("row", ROWS, ids=[row["word"] for row in ROWS])
def test_a_word_has_one_short_paragraph(row: dict[str, str]) -> None:
    assert row["meaning"].endswith(".")
    assert len(row["meaning"]) < 200


def test_few_words_are_our_own_and_none_is_explained_twice() -> None:
    words = [word for row in ROWS for word in row["word"].split(", ")]
    assert 10 <= len(words) < 20
    assert len(set(words)) == len(words)
