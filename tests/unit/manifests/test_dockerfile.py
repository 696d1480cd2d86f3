"""The image's recipe: linted, and true to what the manifests expect of it."""

import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from dockerfile_parse import DockerfileParser  # type: ignore[import-untyped]

from bench.publish import SOURCE
from bench.push import VARIANTS, list_builds

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


def test_the_base_image_is_pinned_unless_another_one_is_given(steps: list[Step]) -> None:
    assert steps[0] == Step("ARG", "PYTHON_IMAGE=pinned")
    pinned, *others = [step.value for step in steps if step.instruction == "FROM"]
    assert re.fullmatch(r"python:3\.11-slim@sha256:[0-9a-f]{64} AS pinned", pinned)
    assert {other.split()[0] for other in others} == {"${PYTHON_IMAGE}"}


def test_the_image_says_what_it_was_made_of(steps: list[Step]) -> None:
    (labels,) = [step.value for step in steps if step.instruction == "LABEL"]
    assert f'org.opencontainers.image.source="{SOURCE}"' in labels
    assert 'org.opencontainers.image.version="${VERSION}"' in labels
    assert 'org.opencontainers.image.revision="${REVISION}"' in labels


@pytest.mark.parametrize("command", list_builds("abc123"), ids=list(VARIANTS.values()))
def test_a_release_builds_it_for_both_architectures_by_arguments_that_it_knows(
    steps: list[Step], command: list[str]
) -> None:
    known = {step.value.partition("=")[0] for step in steps if step.instruction == "ARG"}
    given = dict(word.partition("=")[2].split("=") for word in command if word.startswith("--build-arg="))
    assert given.keys() == {"LOCK", "VERSION", "REVISION"}
    assert given.keys() <= known
    assert (REPOSITORY / "locks" / f"{given['LOCK']}.txt").is_file()
    assert {"--platform=linux/amd64,linux/arm64", "--sbom=true", "--provenance=mode=max"} <= set(command)


def test_the_variant_with_traces_has_what_the_image_has_and_opentelemetry() -> None:
    locks = [
        set(re.findall(r"^([\w.-]+==\S+)", (REPOSITORY / "locks" / f"{lock}.txt").read_text(), re.MULTILINE))
        for lock in VARIANTS.values()
    ]
    assert locks[0] <= locks[1]
    assert any(each.startswith("opentelemetry-exporter-otlp-proto-http==") for each in locks[1] - locks[0])


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
