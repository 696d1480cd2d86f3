"""Tools in Go are built once; where they cannot be, it is said what to do."""

from pathlib import Path

import pytest

from bench import tools


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def put_go(folder: Path, script: str) -> None:
    (folder / "go").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "go").chmod(0o755)


def test_without_go_it_is_said_where_to_get_it() -> None:
    with pytest.raises(tools.ToolError, match="crane is built with Go, and there is no"):
        tools.locate("crane")


def test_a_build_that_fails_is_told_in_its_own_words(empty_cache: Path) -> None:
    put_go(empty_cache, "echo no such module >&2; exit 1")
    with pytest.raises(tools.ToolError, match=r"go install \S+/cmd/crane@v\S+ failed:\nno such module"):
        tools.locate("crane")


def test_a_tool_is_built_once_and_found_then(empty_cache: Path) -> None:
    put_go(empty_cache, '/bin/mkdir -p "$GOBIN"; echo > "$GOBIN/crane"; echo >> "${0%go}built"')
    found = tools.locate("crane")
    assert found.is_file()
    assert tools.locate("crane") == found
    assert (empty_cache / "built").read_text() == "\n"
    assert [path.name for path in found.parent.iterdir()] == ["crane"]
