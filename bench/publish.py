"""The files of a release, but for the image: `make release-dry` makes them all without a registry.

python -m bench.publish                    wheel, chart, bill of materials, notes and sums in build/release
python -m bench.publish notes 0.2.0        what the notes of a version say

The version is that of `serried/__init__.py`. A release has notes of its own in CHANGELOG.md; before that the dry run
shows those of what is not released yet.
"""

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

from bench.cluster.binaries import locate_helm
from bench.cluster.progress import stderr_report
from bench.cluster.release import HELM_VERSIONS
from bench.supply import SBOM
from serried import __version__

REPOSITORY = Path(__file__).resolve().parents[1]
CHART = REPOSITORY / "manifests" / "helm" / "serried"
RELEASE = REPOSITORY / "build" / "release"
UNRELEASED = "Unreleased"


class ReleaseError(Exception):
    """Why there cannot be a release, and what to do."""


def read_notes(changelog: str, version: str) -> str:
    """What a changelog in the form of Keep a Changelog says of a version. Raises ReleaseError if that is nothing."""
    parts = re.split(r"(?m)^## \[([^\]]+)\].*\n", changelog)
    notes = dict(zip(parts[1::2], parts[2::2], strict=True)).get(version, "").strip()
    if not notes:
        raise ReleaseError(f"CHANGELOG.md says nothing of {version}: add a section '## [{version}] - YYYY-MM-DD'")
    return notes + "\n"


def check_versions(chart: str, version: str) -> None:
    """Raise ReleaseError unless a Chart.yaml is of this version, for the chart and for the image that it installs."""
    for field in ("version", "appVersion"):
        found = re.search(rf'(?m)^{field}: "?([^"\s]+)"?$', chart)
        if found is None or found.group(1) != version:
            said = found.group(1) if found is not None else "nothing"
            raise ReleaseError(f"{field} of the chart is {said}, not {version}: run `make pages`")


def make(directory: Path, version: str) -> None:
    """Make all files of a release. Raises ReleaseError, and CalledProcessError of a tool that fails."""
    check_versions((CHART / "Chart.yaml").read_text(), version)
    changelog = (REPOSITORY / "CHANGELOG.md").read_text()
    released = f"## [{version}]" in changelog
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    (directory / "notes.md").write_text(read_notes(changelog, version if released else UNRELEASED))
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--no-deps", "--no-build-isolation", "-w", str(directory), str(REPOSITORY)], check=True)
    helm = locate_helm(HELM_VERSIONS[0], stderr_report())
    subprocess.run([str(helm), "package", str(CHART), "--destination", str(directory)], check=True, capture_output=True)
    shutil.copy(SBOM, directory / f"serried-{version}.cdx.json")
    files = sorted(path for path in directory.iterdir() if path.name != "notes.md")
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (directory / "SHA256SUMS").write_text("".join(sums))


def main() -> int:
    """Make the files, or print notes; the exit code is 1 if something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", default="files", choices=("files", "notes"))
    parser.add_argument("version", nargs="?", default=__version__)
    options = parser.parse_args()
    try:
        if options.what == "notes":
            print(read_notes((REPOSITORY / "CHANGELOG.md").read_text(), options.version), end="")
            return 0
        make(RELEASE, options.version)
    except (ReleaseError, OSError, subprocess.CalledProcessError) as error:
        print(error, file=sys.stderr)
        return 1
    for path in sorted(RELEASE.iterdir()):
        print(f"{path.stat().st_size:>12,}  {path.relative_to(REPOSITORY)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
