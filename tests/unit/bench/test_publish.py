"""A release has notes, and one version everywhere."""

import datetime as dt

import pytest
import yaml

from bench.cluster.release import MODULES
from bench.publish import CHANGELOG as CHANGES
from bench.publish import CHART, UNRELEASED, ReleaseError, check_tag, check_versions, date_changelog, read_notes
from serried import IMAGE, REGISTRY, __version__
from serried.api.level import NEWEST_MINOR, NEWEST_SCHEDULER_MINOR, OLDEST_MINOR

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
    with pytest.raises(ReleaseError, match=rf"has no section '## \[{version}\]"):
        read_notes(CHANGELOG, version)


def test_our_own_changelog_has_notes() -> None:
    assert read_notes(CHANGES.read_text(), UNRELEASED)


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


@pytest.mark.parametrize(
    ("tag", "registry", "dated", "said"),
    [
        pytest.param(f"v{__version__}", REGISTRY, " - 2026-12-01", "", id="all is said"),
        pytest.param("v9.9.9", REGISTRY, " - 2026-12-01", f"make the tag v{__version__}", id="the tag of other code"),
        pytest.param("main", REGISTRY, " - 2026-12-01", f"make the tag v{__version__}", id="no version"),
        pytest.param(f"v{__version__}", REGISTRY, "", "has no date like", id="a section without a date"),
        pytest.param(f"v{__version__}", REGISTRY, None, "run `make changelog`", id="nothing of the version"),
        pytest.param(f"v{__version__}", "ghcr.io/fork", " - 2026-12-01", "set REGISTRY in serried", id="a fork"),
    ],
)
def test_a_release_begins_with_what_it_needs(tag: str, registry: str, dated: str | None, said: str) -> None:
    section = "" if dated is None else f"## [{__version__}]{dated}\n\n- More.\n"
    if not said:
        check_tag(tag, registry, section)
    else:
        with pytest.raises(ReleaseError, match=said):
            check_tag(tag, registry, section)


def test_what_is_unreleased_gets_the_version_and_the_day_and_can_be_released_then() -> None:
    ours = CHANGES.read_text()
    if f"## [{__version__}]" not in ours:
        ours = date_changelog(ours, __version__, dt.date(2026, 12, 1))
        assert f"\n## [{UNRELEASED}]\n\n## [{__version__}] - 2026-12-01\n" in ours
    check_tag(f"v{__version__}", REGISTRY, ours)
    with pytest.raises(ReleaseError, match="raise the version"):
        date_changelog(ours, __version__, dt.date(2026, 12, 2))


def test_an_empty_changelog_is_no_release() -> None:
    with pytest.raises(ReleaseError, match="has no section"):
        date_changelog(f"## [{UNRELEASED}]\n\n## [0.1.0] - 2026-11-01\n", __version__, dt.date(2026, 12, 1))


def test_the_manifests_name_the_registry_and_the_range_of_the_code() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["kubeVersion"] == f">=1.{OLDEST_MINOR}.0-0"
    assert chart["annotations"]["scheduling.serried.dev/newest-tested"] == f"1.{NEWEST_MINOR}"
    modules = {int(path.name.split(".")[1]): path for path in MODULES.glob("kubernetes-1.*")}
    built = {minor for minor, path in modules.items() if "/cmd/kube-apiserver" in (path / "go.mod").read_text()}
    assert (min(built), max(built)) == (OLDEST_MINOR, NEWEST_MINOR)
    assert max(modules) == NEWEST_SCHEDULER_MINOR
    assert yaml.safe_load((CHART / "values.yaml").read_text())["image"]["repository"] == IMAGE
