"""The page for operators has every reason, names flags that exist, and says what to do about each failure."""

import re
from pathlib import Path

import pytest

from serried.model.verdict import Reason
from serried.settings import controller_settings, describe_settings, extender_settings

REPOSITORY = Path(__file__).resolve().parents[3]
PAGE = (REPOSITORY / "docs" / "operations.md").read_text()
PAGES = [
    *(REPOSITORY / "docs").glob("*.md"),
    *(REPOSITORY / "examples").iterdir(),
    REPOSITORY / "README.md",
    REPOSITORY / "CONTRIBUTING.md",
]

FLAGS = {each.flag for read in (extender_settings, controller_settings) for each in describe_settings(read([], {}))}


def read_table(heading: str) -> list[list[str]]:
    """The rows of the first table below a heading."""
    below = PAGE.split(f"\n{heading}\n", 1)[1]
    table = re.search(r"(?:^\|.*\n)+", below, re.MULTILINE)
    assert table is not None
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in table.group().splitlines()[2:]]


def test_every_reason_has_a_meaning_and_what_to_do() -> None:
    rows = read_table("## Reasons")
    assert sorted(row[0] for row in rows) == sorted(Reason)
    assert all(len(row) == 3 and row[1] and row[2] for row in rows)


def test_a_flag_that_the_page_names_exists() -> None:
    flags = "".join(PAGE.split("## Flags", 1)[1].split("## Is the installation", 1)[0])
    named = set(re.findall(r"^\| `(--[a-z-]+)`", flags, re.MULTILINE))
    assert len(named) > 30
    assert named <= FLAGS


# What KEP-5547 and KEP-5764 name as failure modes, and as reasons why Jobs start late.
FAILURE_MODES = {
    "the CRD of Workloads is not installed": "WorkloadAPIMissing",
    "a Workload fails validation": "FailedWorkloadCreate",
    "the gate is not on everywhere": "`podsKeepTheirGroup: false`",
    "the cluster lacks the resources": "NoCapacity",
    "only 7 of 8 workers fit": "7 of 8 members",
    "another controller makes Workloads, too": "AmbiguousWorkload",
    "parallelism of a gang is changed": "`parallelism`",
    "etcd is slow or full": "etcd",
}


@pytest.mark.parametrize("sign", FAILURE_MODES.values(), ids=FAILURE_MODES)
def test_a_failure_has_its_row(sign: str) -> None:
    rows = [row for row in read_table("## When something fails") if any(sign in cell for cell in row)]
    assert rows
    assert all(len(row) == 4 and all(row) for row in rows)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_podgroups_have_their_full_name_in_every_command(path: Path) -> None:
    """Several API groups have the plural ``podgroups``: kubectl takes whichever comes first."""
    commands = [line for line in path.read_text().splitlines() if re.search(r"\bkubectl (-n \S+ )?[a-z]+ ", line)]
    for command in commands:
        without = re.sub(r"kubectl serried \S+ \S+", "", command)
        assert not re.search(r"\b(podgroups?|workloads?|compositepodgroups?)(?![.\w])[\s,/]", without), command
