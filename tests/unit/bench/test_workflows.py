"""The workflows do by themselves what the Makefile and the scripts of the repository do, and nothing that moves."""

import re
import shlex
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench import push, tools
from bench.publish import REPOSITORY, SOURCE
from serried import REGISTRY

WORKFLOWS = REPOSITORY / ".github" / "workflows"
STORIES = REPOSITORY / "tests" / "e2e"
OF_GITHUB = {"Log in"}
"""The steps that only GitHub can do."""


def read(name: str) -> dict[str, Any]:
    # PyYAML reads the key `on` as true.
    return {
        ("on" if key is True else key): value for key, value in yaml.safe_load((WORKFLOWS / name).read_text()).items()
    }


def list_steps(*names: str) -> Iterator[dict[str, Any]]:
    for name in names:
        for job in read(name)["jobs"].values():
            yield from job.get("steps", ())


def test_actionlint_has_nothing_to_say() -> None:
    try:
        linter = tools.locate("actionlint")
    except tools.ToolError as error:
        pytest.skip(str(error))
    command = [str(linter), "-shellcheck=", "-pyflakes=", *sorted(map(str, WORKFLOWS.glob("*.yaml")))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", sorted(WORKFLOWS.glob("*.yaml")), ids=lambda path: path.name)
def test_actions_are_named_by_their_commit_and_no_secret_is_needed(path: Path) -> None:
    used = re.findall(r"uses: (.*)", path.read_text())
    assert used
    ours = re.compile(r"\./\.github/workflows/\w+\.yaml|[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
    assert [each for each in used if not ours.fullmatch(each)] == []
    assert "secrets." not in path.read_text()


def test_an_action_has_one_commit_in_all_workflows() -> None:
    used = {line for path in WORKFLOWS.glob("*.yaml") for line in re.findall(r"uses: (\S+@\S+)", path.read_text())}
    assert len({each.partition("@")[0] for each in used}) == len(used)


def test_the_jobs_of_the_stories_tell_all_of_them_once() -> None:
    parts = [each["stories"].split() for each in read("ci.yaml")["jobs"]["e2e"]["strategy"]["matrix"]["include"]]
    told = [path for part in parts for word in part for path in REPOSITORY.glob(word)]
    there = {path.parent if path.parent != STORIES else path for path in STORIES.rglob("test_*.py")}
    assert sorted(told) == sorted(there)


def test_each_step_is_a_target_of_the_makefile_or_a_command_of_the_scripts() -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    lines = [
        step["run"]
        for step in list_steps("ci.yaml", "release.yaml")
        if "run" in step and step.get("name") not in OF_GITHUB
    ]
    for line in lines:
        words = shlex.split(line.partition(">>")[0])
        if words[0] == "make":
            targets = [word for word in words[1:] if "=" not in word]
            assert [target for target in targets if not re.search(rf"(?m)^[\w -]*\b{target}\b[\w -]*:", makefile)] == []
        elif words[:3] == [".venv/bin/python", "-m", "bench.push"]:
            push.parse(words[3:])
        else:
            assert words[:4] == [".venv/bin/python", "-m", "bench.publish", "check"] or words[:2] == ["sudo", "apt-get"]


def test_a_release_has_passed_all_checks_and_does_what_the_dry_run_does() -> None:
    jobs = read("release.yaml")["jobs"]
    assert (jobs["ci"]["needs"], jobs["release"]["needs"]) == ("check", "ci")
    assert jobs["ci"]["uses"] == "./.github/workflows/ci.yaml"
    assert "workflow_call" in read("ci.yaml")["on"]
    steps = [step["run"] for step in jobs["release"]["steps"] if "run" in step and step.get("name") not in OF_GITHUB]
    kinds = ["make release-files", "bench.push build", "bench.push image", "bench.push rest"]
    assert [kind in step for kind, step in zip(kinds, steps, strict=True)] == [True] * 4
    makefile = (REPOSITORY / "Makefile").read_text()
    assert re.search(r"(?m)^release-dry: release-files .*\n\t\$\(BIN\)/python -m bench.push dry$", makefile)


def test_what_is_attested_is_what_was_pushed() -> None:
    steps = list(read("release.yaml")["jobs"]["release"]["steps"])
    (pushed,) = [place for place, step in enumerate(steps) if step.get("id") == "image"]
    attested = [step["with"] for step in steps[pushed:] if "attest-build-provenance" in step.get("uses", "")]
    digests = {each["subject-digest"] for each in attested if "subject-digest" in each}
    assert digests == {f"${{{{ steps.image.outputs.{lock} }}}}" for lock in push.VARIANTS.values()}


def test_the_registry_is_that_of_the_owner_of_the_repository() -> None:
    owner = SOURCE.removeprefix("https://github.com/").partition("/")[0]
    assert f"ghcr.io/{owner.lower()}" == REGISTRY


@pytest.mark.parametrize(
    ("published", "moving"),
    [
        pytest.param([], ["0.2", "latest"], id="the first release"),
        pytest.param(["0.1.9", "0.2.0", "0.2", "latest", "0.1.9-traces"], ["0.2", "latest"], id="the newest"),
        pytest.param(["0.3.0"], ["0.2"], id="a newer minor is there"),
        pytest.param(["0.2.10"], [], id="a newer patch is there"),
        pytest.param(["0.2.10", "0.3.0"], [], id="both are there"),
    ],
)
def test_tags_move_only_to_what_is_newer(published: list[str], moving: list[str]) -> None:
    assert push.list_tags("0.2.9", published) == moving


def test_versions_are_compared_by_number() -> None:
    tags = ["0.2.9", "0.2.10", "0.10.0", "1.0.0"]
    for older, newer in pairwise(tags):
        assert "latest" not in push.list_tags(older, [newer])
        assert "latest" in push.list_tags(newer, [older])


def test_dependabot_raises_what_is_pinned() -> None:
    updates = yaml.safe_load((WORKFLOWS.parent / "dependabot.yml").read_text())["updates"]
    where = {each["package-ecosystem"]: REPOSITORY / each["directory"].strip("/") for each in updates}
    assert where.keys() == {"github-actions", "docker", "pip"}
    assert (where["docker"] / "Dockerfile").is_file()
    assert list(where["pip"].glob("*.txt"))


@pytest.mark.parametrize(
    "path", sorted((WORKFLOWS.parent / "ISSUE_TEMPLATE").glob("[!c]*.yml")), ids=lambda path: path.stem
)
def test_a_form_has_what_github_needs_of_it(path: Path) -> None:
    form = yaml.safe_load(path.read_text())
    assert {"name", "description", "body"} <= form.keys()
    assert len({each["id"] for each in form["body"]}) == len(form["body"])
    assert all(each["type"] in {"textarea", "input"} and each["attributes"]["label"] for each in form["body"])
