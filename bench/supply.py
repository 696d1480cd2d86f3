"""Write the bill of materials of the image, and check its dependencies for known vulnerabilities.

python -m bench.supply sbom        writes CycloneDX JSON of the locked dependencies to build/sbom.cdx.json
python -m bench.supply audit       asks the index's advisory service; skipped if the service cannot be reached

Both need the tools of locks/supply.txt: `make sbom audit` installs them.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

REPOSITORY = Path(__file__).resolve().parents[1]
LOCK = REPOSITORY / "locks" / "runtime.txt"
SBOM = REPOSITORY / "build" / "sbom.cdx.json"
_UNREACHED = ("ConnectionError", "ServiceError", "Max retries exceeded", "Failed to resolve", "ProxyError", "timed out")
"""Signs in pip-audit's error output that the service gave no answer. Its exit code is the same as for a finding."""


class Ended(NamedTuple):
    """The exit code and the output of a tool."""

    code: int
    out: str
    err: str


Run = Callable[[Sequence[str]], Ended]


def run_tool(command: Sequence[str]) -> Ended:
    """Run a tool from this interpreter's environment. A failure is no error: the exit code is returned."""
    program = Path(sys.executable).parent / command[0]
    done = subprocess.run([str(program), *command[1:]], capture_output=True, text=True, check=False)
    return Ended(done.returncode, done.stdout, done.stderr)


def write_sbom(path: Path = SBOM, run: Run = run_tool) -> int:
    """Write the bill of materials of the locked dependencies. Return the tool's exit code.

    The same lock file gives the same bytes.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    pyproject = str(REPOSITORY / "pyproject.toml")
    ended = run(
        ["cyclonedx-py", "requirements", str(LOCK), "--pyproject", pyproject, "--output-reproducible", "-o", str(path)]
    )
    print(ended.err.strip() if ended.code else f"{path}: {len(json.loads(path.read_text())['components'])} components")
    return ended.code


def audit(run: Run = run_tool) -> int:
    """Print the known vulnerabilities of the locked dependencies.

    Return 1 if there are any, 0 if there are none or the service cannot be reached, 2 if the tool failed.
    """
    ended = run(["pip-audit", "--requirement", str(LOCK), "--require-hashes", "--disable-pip", "--format", "json"])
    try:
        dependencies: list[dict[str, Any]] = json.loads(ended.out)["dependencies"]
    except (ValueError, KeyError):
        if any(sign in ended.err for sign in _UNREACHED):
            why = ended.err.strip().splitlines()[-1].partition(":")[0]
            print(f"audit skipped: the advisory service cannot be reached ({why})")
            return 0
        print(f"audit failed: {ended.err.strip()}")
        return 2
    found = list(_list_findings(dependencies))
    print("\n".join(found) or f"no known vulnerability in {len(dependencies)} locked dependencies")
    return 1 if found else 0


def _list_findings(dependencies: list[dict[str, Any]]) -> Iterator[str]:
    for each in dependencies:
        for known in each.get("vulns", ()):
            fixed = ", ".join(known.get("fix_versions", ())) or "no version"
            yield f"{each['name']} {each['version']}: {known['id']}, fixed in {fixed}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the task that the command line names, and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.supply", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", choices=("sbom", "audit"))
    return write_sbom() if parser.parse_args(arguments).task == "sbom" else audit()


if __name__ == "__main__":
    sys.exit(main())
