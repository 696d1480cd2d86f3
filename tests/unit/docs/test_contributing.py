"""The commands that README and CONTRIBUTING give can be typed as they stand, and what they name is there."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import extender_harness
from tests.support.extender_harness import Harness
from tests.support.written import find_code_blocks

REPOSITORY = Path(__file__).resolve().parents[3]
PAGES = ("README.md", "CONTRIBUTING.md")
CONTRIBUTING = (REPOSITORY / "CONTRIBUTING.md").read_text()
TARGETS = re.findall(r"^([a-z0-9-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)


def commands() -> Iterator[list[str]]:
    """The commands of both pages that are ours: make and whatever comes from the virtual environment."""
    for page in PAGES:
        for block in find_code_blocks((REPOSITORY / page).read_text(), "sh"):
            for line in block.splitlines():
                words = shlex.split(line, comments=True)
                if words and (words[0] == "make" or words[0].startswith(".venv/")):
                    yield words


COMMANDS = list(commands())


def of(program: str) -> list[list[str]]:
    found = [rest for name, *rest in COMMANDS if name == program]
    assert found
    return found


def test_every_command_is_of_a_kind_that_is_checked_here() -> None:
    assert {name for name, *_ in COMMANDS} == {"make", ".venv/bin/pytest", ".venv/bin/python"}


@pytest.mark.parametrize("targets", of("make"), ids=" ".join)
def test_what_is_made_has_a_rule(targets: list[str]) -> None:
    assert set(targets) <= set(TARGETS)


@pytest.mark.parametrize("arguments", of(".venv/bin/pytest"), ids=" ".join)
def test_what_is_tested_is_there(arguments: list[str]) -> None:
    paths = [word for word in arguments if word.startswith("tests")]
    assert paths
    assert all((REPOSITORY / path).exists() for path in paths)


@pytest.mark.parametrize("arguments", of(".venv/bin/python"), ids=" ".join)
def test_what_is_run_takes_these_options(arguments: list[str]) -> None:
    flag, module, *options = arguments
    assert flag == "-m"
    # Help is given once everything before it was understood, and before anything is done.
    subprocess.run([sys.executable, "-m", module, *options, "--help"], cwd=REPOSITORY, check=True, capture_output=True)


async def test_the_example_of_a_test_passes() -> None:
    (example,) = find_code_blocks(CONTRIBUTING, "python")
    scope = vars(extender_harness) | {}
    exec(example, scope)  # noqa: S102 - it is a page of this repository
    (story,) = (made for name, made in scope.items() if name.startswith("test_"))
    world = Harness()
    await story(world)
    await world.close()


@pytest.mark.parametrize("page", PAGES)
def test_every_link_to_a_page_of_ours_leads_there(page: str) -> None:
    links = re.findall(r"\]\(([^)#:]+)[^):]*\)", (REPOSITORY / page).read_text())
    assert [link for link in links if not (REPOSITORY / link).exists()] == []


def test_every_path_that_is_named_is_there() -> None:
    prose = re.sub(r"^```.*?^```", "", CONTRIBUTING, flags=re.MULTILINE | re.DOTALL)
    paths = re.findall(r"`((?:serried|extender|controller|bench|tests|manifests)(?:/[\w./-]+)?)`", prose)
    assert len(paths) > 30
    assert [path for path in paths if not (REPOSITORY / path).exists()] == []


def test_the_readme_leads_to_the_page() -> None:
    assert "(CONTRIBUTING.md)" in (REPOSITORY / "README.md").read_text()
