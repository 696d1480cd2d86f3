"""Kinds of owners: all facts about one are in its row, and in the reader of its shape."""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from serried.api.job import GangPolicy
from serried.api.kinds import OWNER_KINDS, PARENTS, OwnerKind
from serried.api.layouts import LAYOUTS

ROOT = Path(__file__).parents[3]
TABLE = {ROOT / "serried" / "api" / name for name in ("kinds.py", "layouts.py")}
"""The rows, and the readers."""

SOURCES = [
    path
    for room in ("serried", "extender", "controller", "cli")
    for path in sorted((ROOT / room).rglob("*.py"))
    if path not in TABLE
]


def find_kinds(tree: ast.AST) -> Iterator[int]:
    """The lines in which code names a kind of parents: in a string or in a name, but not in a docstring."""
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and is_text(node.value)}
    for node in ast.walk(tree):
        if id(node) not in prose and any(map(is_kind, list_words(node))):
            yield node.lineno  # type: ignore[attr-defined]


def is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def list_words(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Constant(value=str(text)) | ast.Name(id=text) | ast.Attribute(attr=text) | ast.arg(arg=text):
            yield text
        case ast.alias(name=text, asname=other):
            yield from filter(None, (text, other))
        case ast.FunctionDef(name=text) | ast.AsyncFunctionDef(name=text) | ast.ClassDef(name=text):
            yield text


def is_kind(text: str) -> bool:
    plain = text.lower().replace("_", "")
    return any(row.word in plain or plain in row.short_names for row in PARENTS.values())


def test_no_kind_of_parents_is_named_outside_of_the_table() -> None:
    found = {source.relative_to(ROOT): list(find_kinds(ast.parse(source.read_text()))) for source in SOURCES}
    assert {source: lines for source, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "written",
    [
        'x = kind == "JobSet"',
        'call(f"{x}.leaderworkerset.x-k8s.io")',
        "Kind.JOB_SETS",
        "def decode_job_set(): ...",
        '["lws"]',
    ],
)
def test_such_a_place_would_be_found(written: str) -> None:
    assert list(find_kinds(ast.parse(written)))


def test_prose_may_name_a_kind() -> None:
    assert not list(find_kinds(ast.parse('"""A JobSet, say."""\ndef walk():\n    """As a LeaderWorkerSet does."""')))


@pytest.mark.parametrize("row", OWNER_KINDS.values(), ids=list(OWNER_KINDS))
def test_a_row_is_complete(row: OwnerKind) -> None:
    assert row.kind
    assert row.group
    assert row.version
    assert row.plural == f"{row.word}s"  # as the policies and the commands take it to be
    assert (row.kind in PARENTS) == (row.kind in LAYOUTS)
    if row.kind in PARENTS:
        assert row.labels.stage or row.labels.index, "which stage a pod is of"
        assert row.staged.format(owner="O", field="F") != row.staged
    else:
        assert row.gang_policy == GangPolicy.JOB_AS_GANG


def test_no_two_kinds_have_a_name_in_common() -> None:
    words = [word for row in OWNER_KINDS.values() for word in (row.word, row.plural, *row.short_names)]
    assert len(set(words)) == len(words)
    labels = [row.labels.name for row in PARENTS.values()]
    assert len(set(labels)) == len(labels)


def test_the_help_of_the_page_names_each() -> None:
    page = (ROOT / "extender" / "look" / "page" / "whatif.js").read_text()
    assert f'"Serried reads {", ".join(OWNER_KINDS)}, PodGroup, ' in page


@pytest.fixture(scope="module")
def known() -> Any:
    """The names, rights, what-if answer and objects that Serried has for a made-up kind."""
    command = [sys.executable, "-m", "tests.support.sample_kind"]
    return json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout)


class TestAKindThatDoesNotExist:
    """One row and one reader make it known everywhere."""

    def test_its_pods_are_a_gang_that_has_its_name(self, known: Any) -> None:
        found = known["names"]
        assert (found["group"], found["owner"], found["rank"]) == ("default/troupe:hamlet::", "troupe/hamlet", 2)
        assert found["decoded"]

    def test_debug_pages_and_metrics_name_it(self, known: Any) -> None:
        found = known["names"]
        assert (found["look"], found["document"], found["metric"]) == (True, True, "Troupe")

    def test_the_commands_know_its_names_and_the_rights_that_it_takes(self, known: Any) -> None:
        assert known["names"]["commands"] == ["troupe/hamlet"] * 3
        assert known["rights"] == [
            "serried list troupes",
            "serried watch troupes",
            "serried-controller list troupes",
            "serried-controller update troupes/finalizers",
            "serried-controller watch troupes",
        ]

    def test_what_if_makes_its_pods(self, known: Any) -> None:
        found = known["whatif"]
        assert (found["refused"], found["group"], found["need"]) == ([], "Troupe default/hamlet", 4)
        assert [index for _, index in found["members"]] == [0, 1, 2, 3]
        assert found["templates"] == [[["spec", "parts", index, "template"], pods] for index, pods in ((0, 1), (1, 3))]

    def test_the_controller_follows_it_and_makes_its_pod_group(self, known: Any) -> None:
        found = known["controller"]
        assert (found["followed"], found["optional"], found["pods"]) == (["Troupe"], True, "stage.example.org/no=0")
        assert found["minCount"] == 4
        assert (found["owner"]["apiVersion"], found["owner"]["kind"]) == ("stage.example.org/v2", "Troupe")
