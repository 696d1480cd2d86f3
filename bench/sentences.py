"""Print every sentence that the product shows to users, so that all of them can be read in a row.

    python -m bench.sentences                     all of them, in groups
    python -m bench.sentences reason log          only these groups

A line has the group, the place and the text; `{...}` is what is filled in. A string belongs to a group by its place:
the call that gets it, the statement `raise`, or the file. Strings of less than three words and docstrings are left out.
"""

import argparse
import ast
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).parent.parent
PACKAGES = ("serried", "extender", "controller", "cli")
VALUES = "bench/chart/values.yaml"
FLAGS = "serried/settings.py"
"""The file whose docstrings of fields are the texts of flags."""

GROUPS = ("reason", "event", "command", "flag", "metric", "error", "log", "value", "other")

_BY_FILE = {
    "serried/api/verdict.py": "reason",
    "controller/diff/sentences.py": "event",
    "extender/features/status": "event",
    "cli": "command",
}
"""The group of each string in a file or folder that is not in a more specific place."""

_BY_CALL = {"_counter": "metric", "_gauge": "metric", "_summary": "metric", "_histogram": "metric"}
_FLAG_CALLS = {"Option", "Argument", "add_argument", "ArgumentParser", "Typer"}
_RAISING = {"error"}
_LEAST_WORDS = 3
_HOLE = re.compile(r"\{.*?\}")
_WORD = re.compile(r"(?<!\S)[^\w\s]*[A-Za-z]+(?:['-][A-Za-z]+)*[^\w\s]*(?!\S)")
"""A word of English: letters between two spaces, with marks at their ends."""


@dataclass(frozen=True, slots=True, order=True)
class Sentence:
    """One text that users may read."""

    group: str
    """One of `GROUPS`."""

    path: str
    """The file, relative to the repository."""

    line: int
    """The number of the first line, from 1."""

    text: str
    """The text in one line; what the program fills in is shown as the expression in braces."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the sentences of the groups in ``arguments``, or of all groups. Return 0."""
    parser = argparse.ArgumentParser(prog="python -m bench.sentences", description=__doc__.split("\n", 1)[0])
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"only these groups: {', '.join(GROUPS)}")
    wanted = parser.parse_args(arguments).groups or GROUPS
    for each in sorted(list_sentences(), key=lambda each: (GROUPS.index(each.group), each)):
        if each.group in wanted:
            sys.stdout.write(f"{each.group:8} {each.path}:{each.line}: {each.text}\n")
    return 0


def list_sentences() -> Iterator[Sentence]:
    """Yield the sentences of the product and of the chart's values."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield from find_sentences(path.read_text(), str(path.relative_to(ROOT)))
    yield from find_values((ROOT / VALUES).read_text(), VALUES)


def find_values(text: str, path: str) -> Iterator[Sentence]:
    """Yield the description of each value in a file like `bench/chart/values.yaml`, whose content is ``text``."""
    lines = text.splitlines()
    for name, value in yaml.safe_load(text).items():
        yield Sentence("value", path, lines.index(f"{name}:") + 1, f"{name}: {' '.join(value['about'].split())}")


def find_sentences(code: str, path: str) -> Iterator[Sentence]:
    """Yield the sentences in a Python file. ``path`` decides about the group of those that are in no special place."""
    tree = ast.parse(code)
    default = next((group for start, group in _BY_FILE.items() if f"{path}/".startswith(f"{start}/")), "other")
    yield from _Walk(path, _list_logged(tree)).visit(tree, default)


def _list_logged(tree: ast.Module) -> set[ast.AST]:
    """Return the values that are assigned to a name which the same function passes to a logger."""
    found: set[ast.AST] = set()
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        parts = list(ast.walk(function))
        calls = [each for each in parts if isinstance(each, ast.Call) and _is_log(each)]
        names = {argument.id for call in calls for argument in call.args if isinstance(argument, ast.Name)}
        for each in parts:
            targets = each.targets if isinstance(each, ast.Assign) else []
            if any(isinstance(target, ast.Name) and target.id in names for target in targets):
                found.add(each)
    return found


def _is_command(function: ast.FunctionDef) -> bool:
    """Return True if the docstring of a function in ``cli`` is the text of a command's ``--help``."""
    parameters = function.args
    optional = [parameters.args[-1 - place] for place in range(len(parameters.defaults))]
    types = [ast.unparse(each.annotation) for each in optional if each.annotation]
    return "Output" in types or any(each.arg == "target" for each in parameters.kwonlyargs)


def _is_log(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) in {"log", "logger"}


@dataclass(frozen=True, slots=True)
class _Walk:
    """A walk through one file."""

    path: str

    logged: set[ast.AST]

    def visit(self, node: ast.AST, group: str) -> Iterator[Sentence]:
        """Yield the sentences in and below ``node``; ``group`` is the group of the place where it stands."""
        text = _render(node)
        if text is not None:
            if len(_WORD.findall(_HOLE.sub("", text))) >= _LEAST_WORDS:
                yield Sentence(group, self.path, getattr(node, "lineno", 0), " ".join(text.split()))
            return
        if isinstance(node, ast.Raise):
            group = "error"
        elif isinstance(node, ast.Call):
            group = self._find_group(node, group)
        elif node in self.logged:
            group = "log"
        for place, child in enumerate(ast.iter_child_nodes(node)):
            if not (isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)):
                yield from self.visit(child, group)
            elif self._is_help(node, place):
                yield from self.visit(child.value, "flag")

    def _is_help(self, node: ast.AST, place: int) -> bool:
        """Return True if a docstring is shown by ``--help``. It is the ``place``-th child, from 0, of ``node``."""
        if isinstance(node, ast.ClassDef):
            return self.path == FLAGS and place > len(node.bases)  # the first is that of the class itself
        return isinstance(node, ast.FunctionDef) and self.path.startswith("cli/") and _is_command(node)

    def _find_group(self, call: ast.Call, group: str) -> str:
        if _is_log(call):
            return "log"
        name = ast.unparse(call.func)
        last = name.rpartition(".")[2]
        if last in _FLAG_CALLS:
            return "flag"
        if last in _RAISING or last.endswith("Error"):
            return "error"
        return _BY_CALL.get(last, group)


def _render(node: ast.AST) -> str | None:
    """Return the text of a string, with `{...}` for what is filled in; None if ``node`` is no string."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.FormattedValue):
        return f"{{{ast.unparse(node.value)}}}"
    if isinstance(node, ast.JoinedStr):
        return "".join(_render(part) or "" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _render(node.left), _render(node.right)
        return None if left is None or right is None else left + right
    return None


if __name__ == "__main__":
    sys.exit(main())
