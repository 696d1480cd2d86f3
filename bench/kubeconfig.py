"""Compare loaders of kubeconfigs for the commands: Serried's own, and those of the packages kubernetes and lightkube.

For each loader a fresh virtual environment is made from `locks/cli.txt` and the loader's package. Measured are its
size, its number of distributions, and the CPU seconds of the import. Then each loader reads kubeconfigs that kubectl's
documentation describes. lightkube (1.0.1) reads none, because it supports no exec plugin of
`client.authentication.k8s.io/v1`.

    python -m bench.kubeconfig            one JSON object on stdout and in `bench/results/`
"""

import argparse
import base64
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from bench.machine import describe_machine, measure_noise

REPOSITORY = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).with_name("results")

IMPORTS = {
    "ours": "import yaml, serried.kube.auth",
    "kubernetes": "import kubernetes.config",
    "lightkube": "import lightkube.config.client_adapter",
}
"""The imports that each loader needs before it can read a kubeconfig."""

_OURS = """
from serried.kube.auth import load_credentials
found = load_credentials(sys.argv[1])
answer = {"host": found.host, "token": found.read_token(), "proxy": found.proxy, "name": found.server_name}
"""

_KUBERNETES = """
from kubernetes import client, config
found = client.Configuration()
config.load_kube_config(sys.argv[1], client_configuration=found, persist_config=False)
token = (found.get_api_key_with_prefix("BearerToken", "authorization") or "").removeprefix("Bearer ")
answer = {"host": found.host, "token": token, "proxy": found.proxy or "", "name": found.tls_server_name or ""}
"""

_READ = """
import json, os, sys, tempfile
tempfile.tempdir = sys.argv[2]
try:
{read}
except Exception as error:
    answer = {{"error": str(error)}}
print(json.dumps(answer | {{"left": len(os.listdir(sys.argv[2]))}}))
"""

READERS = {"ours": _OURS, "kubernetes": _KUBERNETES}


@dataclass(frozen=True, slots=True)
class Case:
    """A kubeconfig that is read by each loader."""

    name: str
    user: Mapping[str, Any]
    accepts: Callable[[Mapping[str, Any]], bool]
    """Return whether a loader's answer is right: what kubectl does, or an error."""

    cluster: Mapping[str, Any] | None = None
    second: bool = False
    """True if KUBECONFIG names a second file, with another current context."""


def _refuses(answer: Mapping[str, Any]) -> bool:
    return "error" in answer


def _plugin(command: Sequence[str], **more: Any) -> dict[str, Any]:
    version = "client.authentication.k8s.io/v1"
    return {"exec": {"apiVersion": version, "command": command[0], "args": list(command[1:]), **more}}


_CREDENTIAL = '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "made"}}'
_PAIR = {f"client-{part}-data": "@" + part for part in ("certificate", "key")}
"""A user with a client certificate. `make_pair` makes the values that replace the placeholders."""

CASES = (
    Case("a token", {"token": "t"}, lambda answer: answer.get("token") == "t"),
    Case(
        "proxy-url and tls-server-name",
        {"token": "t"},
        lambda answer: (answer.get("proxy"), answer.get("name")) == ("http://proxy:1", "other"),
        cluster={"proxy-url": "http://proxy:1", "tls-server-name": "other"},
    ),
    Case("an exec plugin", _plugin(["echo", _CREDENTIAL]), lambda answer: answer.get("token") == "made"),
    Case("an exec plugin that fails", _plugin(["false"]), _refuses),
    Case("an exec plugin that is not installed", _plugin(["no-such-plugin"]), _refuses),
    Case(
        "an exec plugin that must ask, without a terminal",
        _plugin(["echo", _CREDENTIAL], interactiveMode="Always"),
        _refuses,
    ),
    Case("a user who acts as another one", {"token": "t", "as": "viewer"}, _refuses),
    Case(
        "two files: the first current context counts",
        {"token": "t"},
        lambda answer: answer.get("host") == "https://first",
        second=True,
    ),
    Case("no key is on disk while it runs", _PAIR, lambda answer: "error" not in answer and answer["left"] == 0),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure size and import of each loader, let it read each case, print the result and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="imports of each loader, in turns")
    parser.add_argument("--date", default=datetime.now(UTC).strftime("%Y-%m-%d"), help="part of the result's file name")
    parser.add_argument("--results", type=Path, default=RESULTS, help="directory of the result")
    args = parser.parse_args(arguments)
    noise = measure_noise()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pythons = {loader: _install(folder / loader, loader) for loader in IMPORTS}
        imports = _time_imports(pythons, args.rounds)
        sizes = [
            {"loader": loader, **_measure_size(folder / loader), "import_cpu_seconds": imports[loader]}
            for loader in IMPORTS
        ]
        pair = make_pair(folder)
        tried = [try_case(pythons[loader], loader, case, folder, pair) for case in CASES for loader in READERS]
    about = {"date": args.date, "machine": describe_machine(), "noise_before": round(noise, 2), "rounds": args.rounds}
    result = json.dumps(about | {"loaders": sizes, "cases": tried}, indent=2)
    (args.results / f"kubeconfig-{args.date}.json").write_text(result + "\n")
    print(result)
    return 0


def _install(folder: Path, loader: str) -> Path:
    """Make a virtual environment with the requirements of the commands and the loader's package.

    Return the path of its interpreter.
    """
    uv = str(Path(sys.executable).with_name("uv"))
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, str(folder)], check=True)
    python = folder / "bin" / "python"
    asked = ["--requirement", str(REPOSITORY / "locks" / "cli.txt")]
    for what in (asked, [] if loader == "ours" else [loader]):
        if what:
            install = [uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", str(python), *what]
            subprocess.run(install, check=True)
    return python


def _measure_size(folder: Path) -> dict[str, Any]:
    """Return the environment's megabytes without .pyc files, its number of distributions, and the loader's version."""
    files = [path for path in folder.glob("lib/python*/site-packages/**/*") if path.is_file()]
    size = sum(path.stat().st_size for path in files if path.suffix != ".pyc")
    found = {path.parent.name.removesuffix(".dist-info") for path in files if path.name == "METADATA"}
    version = next((each.partition("-")[2] for each in found if each.partition("-")[0] == folder.name), "")
    return {"version": version, "mb": round(size / 1e6, 1), "distributions": len(found)}


def _time_imports(pythons: Mapping[str, Path], rounds: int) -> dict[str, float]:
    """Return the median CPU seconds of each loader's import, less those of an interpreter that imports nothing."""
    spent: dict[str, list[float]] = {loader: [] for loader in pythons}
    for _ in range(rounds):
        for loader, python in pythons.items():
            spent[loader].append(_measure_cpu(python, IMPORTS[loader]) - _measure_cpu(python, "pass"))
    return {loader: round(statistics.median(each), 3) for loader, each in spent.items()}


def _measure_cpu(python: Path, code: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run_python(python, code)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def run_python(python: Path, code: str, *arguments: str) -> str:
    """Run the code in an interpreter that can import this checkout, and return its standard output.

    Raise CalledProcessError if it fails.
    """
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "KUBECONFIG": ""}
    done = subprocess.run(
        [str(python), "-c", code, *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout


def make_pair(folder: Path) -> dict[str, str]:
    """Make a certificate and its key. Return both as base64, by their placeholder in a case's user."""
    files = {"certificate": folder / "cert.pem", "key": folder / "key.pem"}
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=x"
    where = ["-keyout", str(files["key"]), "-out", str(files["certificate"])]
    subprocess.run([*command.split(), *where], check=True, capture_output=True)
    return {f"@{part}": base64.b64encode(file.read_bytes()).decode() for part, file in files.items()}


def try_case(python: Path, loader: str, case: Case, folder: Path, pair: Mapping[str, str]) -> dict[str, Any]:
    """Let a loader read a case's kubeconfig. Return a row with ``right``: it did what kubectl does, or failed."""
    user = {name: pair.get(value, value) if isinstance(value, str) else value for name, value in case.user.items()}
    places = [_write(folder / "first", "first", case.cluster or {}, user)]
    if case.second:
        places.append(_write(folder / "second", "second", {}, user))
    read = "\n".join(f"    {line}" for line in READERS[loader].strip().splitlines())
    with tempfile.TemporaryDirectory(dir=folder) as empty:
        answer = json.loads(run_python(python, _READ.format(read=read), os.pathsep.join(places), empty))
    return {"case": case.name, "loader": loader, "right": case.accepts(answer)}


def _write(path: Path, name: str, cluster: Mapping[str, Any], user: Mapping[str, Any]) -> str:
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "clusters": [{"name": name, "cluster": {"server": f"https://{name}", **cluster}}],
        "users": [{"name": name, "user": dict(user)}],
    }
    path.write_text(yaml.safe_dump(document))
    return str(path)


if __name__ == "__main__":
    sys.exit(main())
