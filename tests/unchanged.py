"""The tests that `make test` leaves out: files that have not changed since `make test-full` was green last.

What lies outside the scheduler has folders of tests of its own: the controller, manifests, commands, examples, the
page. Each row of ABOUT says what such a folder is about. `make test-full` runs all of them and, if everything is green,
notes a digest of the files of each row in `tests/green.json`, which is committed. `make test` does not read a folder
whose files have that digest, and says so. A folder with another digest, or without one, is tested.

    python -m tests.unchanged           which folders `make test` would leave out, and why it runs the others
    python -m tests.unchanged --note    note the files as they are: `make test-full` does, after its last test
"""

import argparse
import hashlib
import json
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
NOTED = ROOT / "tests" / "green.json"

_ALL = ("locks/dev.txt", "pyproject.toml", "tests/conftest.py")
_CLUSTER = ("bench/cluster", "tests/e2e/conftest.py", "tests/support/clusters.py", "tests/support/cluster_stage.py")

_CONTROLLER = ("controller", "serried/api", "serried/feed.py", "serried/kube", "serried/ops", "serried/settings.py")

ABOUT: Mapping[str, tuple[str, ...]] = {
    "tests/browser": ("extender/look", "tests/support/browser.py"),
    "tests/sim/controller": _CONTROLLER,
    "tests/unit/cli": ("cli", "manifests"),
    "tests/unit/manifests": ("manifests", "bench/chart"),
    "tests/e2e/commands": ("cli", "extender/look", *_CLUSTER),
    "tests/e2e/compatible": ("manifests", *_CONTROLLER, *_CLUSTER),
    "tests/e2e/examples": ("examples", "manifests", "controller", *_CLUSTER),
    "tests/e2e/isolated": ("manifests", "extender/options.py", *_CLUSTER),
    "tests/e2e/jobs": ("manifests", *_CONTROLLER, *_CLUSTER),
    "tests/e2e/manifests": ("manifests", "cli", *_CLUSTER),
    "tests/e2e/monitoring": ("manifests", "serried/ops", *_CLUSTER),
    "tests/e2e/truth": ("serried/api", "serried/cluster", "serried/plan", "serried/rules", *_CLUSTER),
}
"""A folder of tests, and the files and folders that it is about. Itself and what all tests need belong to each."""


@cache
def find_unchanged() -> tuple[str, ...]:
    """The folders whose files are those of the last green run of all tests."""
    noted = json.loads(NOTED.read_text()) if NOTED.is_file() else {}
    return tuple(folder for folder, found in digest_all().items() if noted.get(folder) == found)


def digest_all() -> dict[str, str]:
    """A digest of what each folder is about; without git, which tells what belongs to the project, none."""
    lines = {name: f"{name} {hashlib.sha256((ROOT / name).read_bytes()).hexdigest()}\n" for name in _list_files()}
    return {folder: _digest(lines, (folder, *about, *_ALL)) for folder, about in ABOUT.items()} if lines else {}


def _digest(lines: Mapping[str, str], about: tuple[str, ...]) -> str:
    """A digest of the lines of the files that are these, or in these folders; ``lines`` are by the name of the file."""
    folders = tuple(f"{each}/" for each in about)
    found = "".join(line for name, line in lines.items() if name in about or name.startswith(folders))
    return hashlib.sha256(found.encode()).hexdigest()[:16]


def _list_files() -> list[str]:
    """Every file of the project that is there, also one that is not committed yet; in order."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return []
    return sorted(name for name in set(said.split("\0")) if name and (ROOT / name).is_file())


def main(arguments: list[str] | None = None) -> int:
    """Say which folders would be left out, or note the files as they are."""
    parser = argparse.ArgumentParser(prog="python -m tests.unchanged", description=__doc__.partition("\n")[0])
    parser.add_argument("--note", action="store_true", help=f"write {NOTED.relative_to(ROOT)}")
    if parser.parse_args(arguments).note:
        NOTED.write_text(json.dumps(digest_all(), indent=2) + "\n")
    find_unchanged.cache_clear()
    unchanged = find_unchanged()
    for folder, about in ABOUT.items():
        said = "left out, unchanged" if folder in unchanged else "tested, changed"
        print(f"{folder:22} {said} since `make test-full` was green last: {', '.join(about)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
