"""The image's recipe: linted, and true to what the manifests expect of it."""

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from dockerfile_parse import DockerfileParser  # type: ignore[import-untyped]

REPOSITORY = Path(__file__).resolve().parents[3]


class Step(NamedTuple):
    instruction: str
    value: str


@pytest.fixture
def steps() -> list[Step]:
    parser = DockerfileParser(path=str(REPOSITORY / "Dockerfile"))
    return [Step(step["instruction"], step["value"]) for step in parser.structure if step["instruction"] != "COMMENT"]


def test_hadolint_has_nothing_to_say() -> None:
    linter = Path(sys.executable).parent / "hadolint"
    done = subprocess.run([linter, REPOSITORY / "Dockerfile"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_base_image_is_an_argument_without_digest(steps: list[Step]) -> None:
    assert steps[0] == Step("ARG", "PYTHON_IMAGE=python:3.11-slim")
    assert {step.value.split()[0] for step in steps if step.instruction == "FROM"} == {"${PYTHON_IMAGE}"}
    assert "sha256" not in (REPOSITORY / "Dockerfile").read_text()


def test_the_last_user_is_the_one_of_the_manifests(steps: list[Step]) -> None:
    assert [step.value for step in steps if step.instruction == "USER"] == ["65532:65532"]


def test_every_install_from_an_index_checks_hashes(steps: list[Step]) -> None:
    commands = [part for step in steps if step.instruction == "RUN" for part in step.value.split("&&")]
    installs = [command for command in commands if " install " in command]
    assert len(installs) == 3
    assert all("--require-hashes" in command or "--no-index" in command for command in installs)


def test_what_is_copied_exists_and_nothing_else_is_sent_to_the_builder(steps: list[Step]) -> None:
    copies = [step.value.split()[:-1] for step in steps if step.instruction == "COPY" and "--from" not in step.value]
    sources = {source for copy in copies for source in copy}
    assert all((REPOSITORY / source).exists() for source in sources)
    ignore = (REPOSITORY / ".dockerignore").read_text().splitlines()
    assert {line.removeprefix("!") for line in ignore if line.startswith("!")} == sources
