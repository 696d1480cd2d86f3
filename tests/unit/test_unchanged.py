"""The folders of tests that `make test` leaves out."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import unchanged
from tests.unchanged import ABOUT, ROOT, digest_all, find_unchanged, main


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of two folders of tests, about one package each, noted as they are."""
    for name in ("cli/run.py", "web/page.py", "tests/cli/test_run.py", "tests/web/test_page.py", "pyproject.toml"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    monkeypatch.setattr(unchanged, "ROOT", tmp_path)
    monkeypatch.setattr(unchanged, "NOTED", tmp_path / "tests" / "green.json")
    monkeypatch.setattr(unchanged, "ABOUT", {"tests/cli": ("cli",), "tests/web": ("web", "cli/run.py")})
    find_unchanged.cache_clear()
    assert find_unchanged() == ()
    assert main(["--note"]) == 0
    return tmp_path


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Forget the digests after each test."""
    yield
    find_unchanged.cache_clear()


def look() -> tuple[str, ...]:
    find_unchanged.cache_clear()
    return find_unchanged()


def test_what_is_as_it_was_is_left_out(project: Path) -> None:
    (project / "README.md").write_text("about something else")
    assert look() == ("tests/cli", "tests/web")


@pytest.mark.parametrize(
    ("name", "left"),
    [
        pytest.param("web/page.py", ("tests/cli",), id="a file of a package"),
        pytest.param("web/new.py", ("tests/cli",), id="a file that is not committed yet"),
        pytest.param("tests/web/test_page.py", ("tests/cli",), id="the tests themselves"),
        pytest.param("cli/run.py", (), id="a file that two folders are about"),
        pytest.param("pyproject.toml", (), id="what all tests need"),
    ],
)
def test_a_folder_is_tested_when_there_is_a_change_of(project: Path, name: str, left: tuple[str, ...]) -> None:
    (project / name).write_text("changed")
    assert look() == left
    main(["--note"])
    assert look() == ("tests/cli", "tests/web")


def test_a_file_that_is_gone_is_a_change(project: Path) -> None:
    (project / "web" / "page.py").unlink()
    assert look() == ("tests/cli",)


def test_without_git_everything_is_tested(project: Path) -> None:
    (project / ".git").rename(project / "elsewhere")
    (project / "elsewhere" / "HEAD").unlink()
    assert look() == ()


def test_a_note_of_another_folder_is_no_note(project: Path) -> None:
    unchanged.NOTED.write_text(json.dumps({"tests/cli": digest_all()["tests/web"]}))
    assert look() == ()


@pytest.mark.parametrize("name", [*ABOUT, *sorted({each for about in ABOUT.values() for each in about})])
def test_what_a_row_names_is_there(name: str) -> None:
    assert (ROOT / name).exists()


def test_it_says_why_a_folder_is_tested(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "web" / "page.py").write_text("changed")
    main([])
    first, second = capsys.readouterr().out.splitlines()
    assert first == "tests/cli              left out, unchanged since `make test-full` was green last: cli"
    assert second == "tests/web              tested, changed since `make test-full` was green last: web, cli/run.py"
