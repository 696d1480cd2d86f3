"""The pages for operators name flags that exist, and say what to do about each failure."""

import re
from pathlib import Path

import pytest

from serried.settings import controller_settings, describe_settings, extender_settings

REPOSITORY = Path(__file__).resolve().parents[3]
PAGE = (REPOSITORY / "docs" / "operations.md").read_text()
TROUBLES = (REPOSITORY / "docs" / "troubleshooting.md").read_text()
PAGES = [
    *(REPOSITORY / "docs").glob("*.md"),
    *(REPOSITORY / "docs" / "contributing").glob("*.md"),
    *(REPOSITORY / "examples").rglob("*.*"),
    REPOSITORY / "README.md",
    REPOSITORY / "CONTRIBUTING.md",
]

FLAGS = {each.flag for read in (extender_settings, controller_settings) for each in describe_settings(read([], {}))}


def read_table(heading: str) -> list[list[str]]:
    """The rows of the first table below a heading."""
    below = TROUBLES.split(f"\n{heading}\n", 1)[1]
    table = re.search(r"(?:^\|.*\n)+", below, re.MULTILINE)
    assert table is not None
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in table.group().splitlines()[2:]]


def test_a_flag_that_the_page_names_exists() -> None:
    flags = "".join(PAGE.split("## Which flags are there?", 1)[1].split("## Is the installation", 1)[0])
    named = set(re.findall(r"^\| `(--[a-z-]+)`", flags, re.MULTILINE))
    assert len(named) > 30
    assert named <= FLAGS


# What KEP-5547 and KEP-5764 name as failure modes, and as reasons why Jobs start late.
FAILURE_MODES = {
    "the CRD of Workloads is not installed": "reason WorkloadAPIMissing",
    "a Workload fails validation": "FailedWorkloadCreate",
    "the gate is not on everywhere": "`podsKeepTheirGroup: false`",
    "the API of Workloads evolves": "newer version of the Workload API",
    "the API server or etcd is not there": "the API server or etcd",
    "the controller is not there": "the Lease `serried-controller`",
    "the scheduler is not there": "a kube-scheduler, or its node",
    "the scheduler knows no gangs": "set `schedulerName: serried`",
    "the cluster lacks the resources": "NoCapacity or NoDomainFits",
    "only 7 of 8 workers fit": "7 of 8 members",
    "a part of a gang that ran fails": "reason Broken",
    "another controller makes Workloads, too": "AmbiguousWorkload",
    "parallelism of a gang is changed": "`parallelism`",
    "many Workloads fill etcd": "the size of etcd's database",
}


@pytest.mark.parametrize("sign", FAILURE_MODES.values(), ids=FAILURE_MODES)
def test_a_failure_has_its_row(sign: str) -> None:
    (row,) = [row for row in read_table("## What happens when something fails?") if any(sign in cell for cell in row)]
    assert len(row) == 4
    assert all(row)


PROGRAMS = [
    path
    for room in ("serried", "extender", "controller", "cli", "bench", "manifests")
    for path in sorted((REPOSITORY / room).rglob("*"))
    if path.suffix in {".py", ".md", ".js", ".html", ".yaml"}
]
"""The files whose texts users read as well, beside the pages."""


@pytest.mark.parametrize("path", [*PAGES, *(REPOSITORY / "docs" / "decisions").iterdir()], ids=lambda path: path.name)
def test_podgroups_have_their_full_name_in_every_command(path: Path) -> None:
    """Several API groups have the plural ``podgroups``: kubectl takes whichever comes first."""
    assert find_short_names(path.read_text()) == []


def test_podgroups_have_it_in_what_programs_say() -> None:
    found = {str(path): find_short_names(path.read_text()) for path in PROGRAMS}
    assert len(found) > 100
    assert {path: commands for path, commands in found.items() if commands} == {}


@pytest.mark.parametrize(
    ("command", "short"),
    [
        pytest.param("`kubectl get podgroups`", True, id="a list"),
        pytest.param("kubectl -n team describe podgroup/train", True, id="one object"),
        pytest.param("kubectl get jobs,workloads,pods -A", True, id="among others"),
        pytest.param("kubectl get podgroups.scheduling.serried.dev", False, id="the full name"),
        pytest.param("kubectl serried explain podgroup/train", False, id="our own plugin, which knows its kinds"),
    ],
)
def test_a_short_name_is_found(command: str, *, short: bool) -> None:
    assert bool(find_short_names(command)) is short


def find_short_names(text: str) -> list[str]:
    """The commands of a text that name a kind without its group."""
    commands = [line for line in text.splitlines() if re.search(r"\bkubectl (-n \S+ )?[a-z]+ ", line)]
    without = (re.sub(r"kubectl serried \S+ \S+", "", command) for command in commands)
    short = re.compile(r"\b(podgroups?|workloads?|compositepodgroups?)(?![.\w])(?:[\s,/`'\"]|$)")
    return [command for command in without if short.search(command)]
