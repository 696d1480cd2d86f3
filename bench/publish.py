"""Make the files of a release, except the images. `make release-dry` makes them without a registry.

python -m bench.publish                    wheels, chart, plugin, bill of materials, notes and sums in build/release
python -m bench.publish notes              prints the release notes
python -m bench.publish date               moves the section Unreleased of CHANGELOG.md to the version, dated today
python -m bench.publish check v0.2.0 ghcr.io/serried    checks that this tag can be released to this registry

The plugin for kubectl is an archive of the commands with their dependencies, the same for all platforms, and a manifest
for krew. The manifest names the archive's address, below RELEASE_URL if that is set. The same commit gives the same
bytes, so a second try of a release changes no file.

The version is that of `serried/__init__.py`. The notes are the version's section in CHANGELOG.md; while it has none,
the section Unreleased.
"""

import argparse
import datetime as dt
import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path

from bench.cluster.binaries import locate_helm
from bench.cluster.progress import stderr_report
from bench.cluster.release import HELM_VERSIONS
from bench.supply import SBOM
from serried import REGISTRY, __version__

REPOSITORY = Path(__file__).resolve().parents[1]
CHART = REPOSITORY / "manifests" / "helm" / "serried"
RELEASE = REPOSITORY / "build" / "release"
UNRELEASED = "Unreleased"
COMMANDS = REPOSITORY / "manifests" / "cli"
COMMANDS_LOCK = REPOSITORY / "locks" / "cli.txt"
CHANGELOG = REPOSITORY / "CHANGELOG.md"
SOURCE: str = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["urls"]["Source"]
"""URL of the repository on GitHub."""

_PIP = (sys.executable, "-m", "pip")
_QUIET = ("--quiet", "--disable-pip-version-check")

_LAUNCHER = """\
#!/usr/bin/env python3
import os
import sys

if sys.version_info < (3, 11):
    sys.exit("kubectl serried needs Python 3.11 or newer; python3 is " + sys.version.split()[0])
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "lib"))
from cli.app import main

sys.exit(main())
"""

_KREW = """\
apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: serried
spec:
  version: v{version}
  homepage: {home}
  shortDescription: Show why gangs of pods wait, install and check Serried
  description: |
    Serried is gang scheduling and topology-aware placement for a stock kube-scheduler. This plugin shows why a gang
    waits and what would make it fit, who is before it, and how full racks and zones are. It installs, checks and
    removes Serried.
  caveats: |
    Needs Python 3.11 or newer as python3.
  platforms:
    - selector:
        matchExpressions:
          - {{key: os, operator: In, values: [darwin, linux]}}
      uri: {url}/{archive}
      sha256: {digest}
      bin: kubectl-serried
"""


class ReleaseError(Exception):
    """The release is not possible. The message says why, and what to do."""


def read_notes(changelog: str, version: str) -> str:
    """Return the text of a version's section in a changelog (the format of Keep a Changelog).

    Raise ReleaseError if the section is missing or empty.
    """
    parts = re.split(r"(?m)^## \[([^\]]+)\].*\n", changelog)
    notes = dict(zip(parts[1::2], parts[2::2], strict=True)).get(version, "").strip()
    if not notes:
        raise ReleaseError(f"CHANGELOG.md has no section '## [{version}] - YYYY-MM-DD': run `make changelog`")
    return notes + "\n"


def date_changelog(changelog: str, version: str, day: dt.date) -> str:
    """Return the changelog with the text of Unreleased under the version and the day.

    Raise ReleaseError if the version has a section already, or if Unreleased is empty.
    """
    if f"## [{version}]" in changelog:
        raise ReleaseError(f"CHANGELOG.md has a section [{version}]: correct its date by hand, or raise the version")
    read_notes(changelog, UNRELEASED)
    return changelog.replace(f"## [{UNRELEASED}]\n", f"## [{UNRELEASED}]\n\n## [{version}] - {day}\n", 1)


def check_tag(tag: str, registry: str, changelog: str) -> None:
    """Raise ReleaseError unless code, changelog, chart and registry belong to a release of this tag."""
    if not re.fullmatch(r"v\d+\.\d+\.\d+", tag) or tag != f"v{__version__}":
        raise ReleaseError(f"the tag is {tag}, and serried/__init__.py says {__version__}: make the tag v{__version__}")
    read_notes(changelog, __version__)
    if not re.search(rf"(?m)^## \[{__version__}\] - \d{{4}}-\d\d-\d\d$", changelog):
        raise ReleaseError(f"the section [{__version__}] of CHANGELOG.md has no date like '- 2026-12-01'")
    if registry != REGISTRY:
        what = f"this repository publishes to {registry}, and the manifests name {REGISTRY}"
        raise ReleaseError(f"{what}: set REGISTRY in serried/__init__.py, and run `make pages`")
    check_versions((CHART / "Chart.yaml").read_text(), __version__)


def check_versions(chart: str, version: str) -> None:
    """Raise ReleaseError unless version and appVersion of a Chart.yaml are this version."""
    for field in ("version", "appVersion"):
        found = re.search(rf'(?m)^{field}: "?([^"\s]+)"?$', chart)
        if found is None or found.group(1) != version:
            value = found.group(1) if found is not None else "nothing"
            raise ReleaseError(f"{field} of the chart is {value}, not {version}: run `make pages`")


def make(directory: Path, version: str) -> None:
    """Make all files of a release in the directory, which is emptied before.

    Raise ReleaseError, or CalledProcessError if a tool fails.
    """
    check_versions((CHART / "Chart.yaml").read_text(), version)
    changelog = CHANGELOG.read_text()
    released = f"## [{version}]" in changelog
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    (directory / "notes.md").write_text(read_notes(changelog, version if released else UNRELEASED))
    build_wheel(REPOSITORY, directory)
    archive = pack_plugin(build_wheel(COMMANDS, directory), directory / f"kubectl-serried-{version}.tar.gz")
    url = os.environ.get("RELEASE_URL") or f"{SOURCE}/releases/download/v{version}"
    (directory / "serried.yaml").write_text(render_krew(version, archive, url))
    pack_chart(directory, version)
    shutil.copy(SBOM, directory / f"serried-{version}.cdx.json")
    files = sorted(path for path in directory.iterdir() if path.name != "notes.md")
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (directory / "SHA256SUMS").write_text("".join(sums))


def build_wheel(project: Path, directory: Path) -> Path:
    """Build the wheel of a project and return its path in the directory. Raise CalledProcessError if pip fails."""
    with tempfile.TemporaryDirectory() as made:
        how = ("--no-deps", "--no-build-isolation", "--wheel-dir", made)
        subprocess.run([*_PIP, "wheel", *_QUIET, *how, str(project)], check=True)
        (wheel,) = Path(made).iterdir()
        return Path(shutil.move(wheel, directory))


def pack_plugin(wheel: Path, archive: Path) -> Path:
    """Pack the commands and their locked dependencies into an archive, and return its path.

    The archive has the same bytes each time. Raise CalledProcessError if pip fails.
    """
    with tempfile.TemporaryDirectory() as made:
        target = (*_PIP, "install", *_QUIET, "--no-compile", "--no-deps", "--target", made)
        subprocess.run([*target, "--require-hashes", "--requirement", str(COMMANDS_LOCK)], check=True)
        subprocess.run([*target, "--upgrade", str(wheel)], check=True)
        content = {"kubectl-serried": _LAUNCHER.encode(), "LICENSE": (REPOSITORY / "LICENSE").read_bytes()}
        for path in sorted(Path(made).rglob("*")):
            name = path.relative_to(made)
            # Compiled extensions work on one platform only, and PyYAML works without its own.
            if path.is_file() and path.suffix not in {".so", ".pyc"} and name.parts[0] != "bin":
                content[f"lib/{name}"] = path.read_bytes()
    archive.write_bytes(_pack(content))
    return archive


def pack_chart(directory: Path, version: str) -> Path:
    """Pack the chart by Helm, and repack it so that it has the same bytes each time. Return the path of the archive.

    Raise CalledProcessError if Helm fails.
    """
    helm = locate_helm(HELM_VERSIONS[0], stderr_report())
    command = [str(helm), "package", str(CHART), "--destination", str(directory)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    archive = directory / f"serried-{version}.tgz"
    with tarfile.open(archive) as packed:
        files = {entry.name: packed.extractfile(entry) for entry in packed.getmembers()}
        content = {name: file.read() for name, file in sorted(files.items()) if file is not None}
    archive.write_bytes(_pack(content))
    return archive


def _pack(content: Mapping[str, bytes]) -> bytes:
    """Return a .tar.gz of the files (contents by name), without times and owners."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as packed:
        for place, data in content.items():
            entry = tarfile.TarInfo(place)
            entry.size, entry.mode = len(data), 0o755 if place == "kubectl-serried" else 0o644
            packed.addfile(entry, io.BytesIO(data))
    return gzip.compress(raw.getvalue(), mtime=0)


def render_krew(version: str, archive: Path, url: str) -> str:
    """Return the plugin's manifest for krew. ``url`` is the address of the folder that will have the archive."""
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    home = url.partition("/releases")[0]
    return _KREW.format(version=version, home=home, url=url, archive=archive.name, digest=digest)


def main() -> int:
    """Run the step that the command line names. Return 1 if it fails, else 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", default="files", choices=("files", "notes", "date", "check"))
    parser.add_argument("tag", nargs="?", default=f"v{__version__}")
    parser.add_argument("registry", nargs="?", default=REGISTRY)
    options = parser.parse_args()
    try:
        if options.what == "notes":
            print(read_notes(CHANGELOG.read_text(), __version__), end="")
        elif options.what == "date":
            today = dt.datetime.now(tz=dt.UTC).date()
            CHANGELOG.write_text(date_changelog(CHANGELOG.read_text(), __version__, today))
        elif options.what == "check":
            check_tag(options.tag, options.registry, CHANGELOG.read_text())
        else:
            make(RELEASE, __version__)
            _list_files()
    except subprocess.CalledProcessError as error:
        print(error, error.stderr or "", file=sys.stderr)
        return 1
    except (ReleaseError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _list_files() -> None:
    for path in sorted(RELEASE.iterdir()):
        print(f"{path.stat().st_size:>12,}  {path.relative_to(REPOSITORY)}")


if __name__ == "__main__":
    sys.exit(main())
