"""The page on the command line is what the commands say of themselves."""

import re
import shlex
from pathlib import Path

import pytest

from bench import commands
from cli.app import COMMANDS
from cli.output import ExitCode
from tests.support.written import find_code_blocks, read_code_block

REPOSITORY = Path(__file__).resolve().parents[3]
PAGES = sorted(
    str(path.relative_to(REPOSITORY)) for path in (REPOSITORY / "README.md", *(REPOSITORY / "docs").rglob("*.md"))
)


def test_the_page_is_made_from_the_commands() -> None:
    assert commands.PAGE.read_text() == commands.render(), "python -m bench.commands --write"


def test_every_command_and_every_exit_code_is_there() -> None:
    page = commands.render()
    assert all(f"### serried {command.name}\n" in page for command in COMMANDS)
    assert all(f"| {code.number} | {code.meaning} |" in page for code in ExitCode)


def test_exit_codes_are_told_apart() -> None:
    assert len({code.number for code in ExitCode}) == len(ExitCode) == 6


@pytest.mark.parametrize("page", PAGES)
def test_a_command_that_a_page_shows_is_there(page: str) -> None:
    names = {command.name for command in COMMANDS} | {"extender", "controller"}
    for line in "".join(find_code_blocks((REPOSITORY / page).read_text(), "sh")).splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] == ["serried"]:
            assert words[1] in names, line
        assert not re.match(r"kubectl -.* serried ", line), "kubectl takes no flags before the name of a plugin"


def test_the_tour_shows_one_object_in_full() -> None:
    """For a whole kind ``describe`` writes pages, in which a reason is hard to find."""
    block = read_code_block("README.md", "### What can I try in five minutes?", "sh")
    words = [shlex.split(line, comments=True) for line in block.splitlines()]
    assert [each[2:] for each in words if each[1] == "describe"] == [["job", "tour"]]
    assert not any("podgroup" in word for each in words for word in each), "not every cluster serves the same ones"


def test_the_readme_leads_to_the_page() -> None:
    assert "docs/cli.md" in (REPOSITORY / "README.md").read_text()
