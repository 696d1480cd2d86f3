"""A release has notes, and one version everywhere."""

import pytest
import yaml

from bench.publish import CHART, REPOSITORY, UNRELEASED, ReleaseError, check_versions, read_notes
from serried import __version__

CHANGELOG = """# Changelog

## [Unreleased]

### Added
- More.

## [0.2.0] - 2026-12-01

### Fixed
- A fault.

## [0.1.0] - 2026-11-01
"""


@pytest.mark.parametrize(
    ("version", "notes"),
    [
        pytest.param("0.2.0", "### Fixed\n- A fault.\n", id="those of its own section"),
        pytest.param(UNRELEASED, "### Added\n- More.\n", id="before a release what is not released yet"),
    ],
)
def test_the_notes_of_a_version_are(version: str, notes: str) -> None:
    assert read_notes(CHANGELOG, version) == notes


@pytest.mark.parametrize("version", ["0.1.0", "0.3.0"])
def test_there_is_no_release_without_notes(version: str) -> None:
    with pytest.raises(ReleaseError, match=rf"add a section '## \[{version}\]"):
        read_notes(CHANGELOG, version)


def test_our_own_changelog_has_notes() -> None:
    assert read_notes((REPOSITORY / "CHANGELOG.md").read_text(), UNRELEASED)


def test_the_chart_is_of_the_version_of_the_code() -> None:
    check_versions((CHART / "Chart.yaml").read_text(), __version__)


@pytest.mark.parametrize(
    ("chart", "problem"),
    [
        pytest.param("version: 0.1.0\nappVersion: 0.2.0\n", "version of the chart is 0.1.0, not 0.2.0", id="older"),
        pytest.param("version: 0.2.0\n", "appVersion of the chart is nothing", id="without the image's"),
    ],
)
def test_a_chart_of_another_version_is_refused(chart: str, problem: str) -> None:
    with pytest.raises(ReleaseError, match=problem):
        check_versions(chart, "0.2.0")


def test_the_workflow_publishes_what_the_dry_run_makes_for_both_architectures() -> None:
    workflow = yaml.safe_load((REPOSITORY / ".github" / "workflows" / "release.yaml").read_text())
    steps = workflow["jobs"]["release"]["steps"]
    assert "make release-dry" in [step.get("run") for step in steps]
    (image,) = [step["with"] for step in steps if step.get("id") == "image"]
    assert image["platforms"] == "linux/amd64,linux/arm64"
    assert (image["sbom"], image["provenance"]) == (True, "mode=max")
    assert workflow["permissions"] == {}
