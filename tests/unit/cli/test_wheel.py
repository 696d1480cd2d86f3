"""The commands are a wheel of their own: whatever they import has to be in it."""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
WHEEL = ROOT / "manifests" / "cli" / "pyproject.toml"
APART = "cli/replay.py"
"""The module that needs the extender, and says so."""


def list_files() -> set[str]:
    """The files of the wheel, from the root."""
    targets = tomllib.loads(WHEEL.read_text())["tool"]["hatch"]["build"]["targets"]
    places = [ROOT / place for place in targets["wheel"]["force-include"].values()]
    files = (file for place in places for file in (place.rglob("*.py") if place.is_dir() else [place]))
    return {str(file.relative_to(ROOT)) for file in files}


def list_imported(file: str) -> Iterator[str]:
    """The modules of ours that a file imports when it is loaded."""
    for node in ast.parse((ROOT / file).read_text()).body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_every_module_that_is_imported_is_there() -> None:
    files = list_files()
    wanted = {
        (file, path)
        for file in files
        if file.endswith(".py") and file != APART
        for module in list_imported(file)
        for path in (f"{module.replace('.', '/')}.py", f"{module.replace('.', '/')}/__init__.py")
        if (ROOT / path).is_file()
    }
    assert len(wanted) > 100
    assert {(file, path) for file, path in wanted if path not in files} == set()
