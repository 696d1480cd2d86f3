"""The commands as a distribution of their own: small, soon there, and with nothing of the server."""

import hashlib
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from bench.publish import COMMANDS, COMMANDS_LOCK, build_wheel, pack_plugin, render_krew
from cli.check.checks import DEFINITIONS
from serried import IMAGE, __version__
from tests.support.pod_proxy import KUBECONFIG, PodProxy, extender_pod

pytestmark = pytest.mark.tools

MOST_BYTES = 30_000_000
MOST_MODULES = {"--help": 250, "queue": 600}
"""The largest number of modules that a command may load: loading takes nearly all of its time."""

SERVER = {
    *("kubernetes", "aiohttp", "pydantic", "cryptography", "uvicorn", "fastapi", "starlette", "prometheus_client"),
    *("orjson", "controller", "serried.ops", "serried.plan", "serried.cluster", "serried.settings", "extender.wiring"),
}
_TOOLS = {"pip", "setuptools", "pkg_resources", "_distutils_hack"}
"""The packages that venv brings."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(COMMANDS, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def home(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh virtual environment with the wheel and its lock."""
    home = tmp_path_factory.mktemp("cli")
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    pip = [str(home / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--require-hashes", "-r", str(COMMANDS_LOCK)], check=True)
    subprocess.run([*pip, "--no-deps", str(wheel)], check=True)
    return home


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Iterator[Path]:
    """Of a cluster with an extender in whose queue nobody waits."""
    with PodProxy([extender_pod("serried-0")]) as proxy:
        proxy.answer_debug("serried-0:8912", "selfcheck", {"active": True})
        proxy.answer_debug("serried-0:8912", "queue", {"head": None, "waiting": [], "leftOff": 0})
        proxy.answer("/version", {"gitVersion": "v1.37.1"})
        path = tmp_path / "kubeconfig"
        path.write_text(KUBECONFIG.format(url=proxy.url))
        yield path


def run(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A command of that environment, which knows nothing of this repository."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [str(home / "bin" / words[0]), *words[1:]], capture_output=True, text=True, check=False, env=environ, cwd=home
    )


def test_it_is_small(home: Path) -> None:
    (packages,) = home.glob("lib/python*/site-packages")
    sizes: dict[str, int] = {}
    for path in packages.rglob("*"):
        name = path.relative_to(packages).parts[0].partition("-")[0]
        if path.is_file() and name not in _TOOLS:
            sizes[name] = sizes.get(name, 0) + path.stat().st_size
    print(f"{sum(sizes.values()):,} bytes: {sizes}")  # noqa: T201 - the size is to be seen
    assert sum(sizes.values()) < MOST_BYTES, sizes


def test_every_command_starts_and_loads_nothing_of_the_server(home: Path, kubeconfig: Path) -> None:
    code = (
        "import sys\nfrom cli.app import COMMANDS\nfrom cli import main\n"
        "[command.load() for command in COMMANDS if command.name != 'replay']\n"
        f"code = main(['queue', '--kubeconfig', {str(kubeconfig)!r}])\nprint(code, *sys.modules)"
    )
    done = run(home, "python", "-c", code)
    said, code, *loaded = done.stdout.split("\n")[0], *done.stdout.split("\n")[1].split()
    assert (said, code) == ("No gang waits for resources in namespace team.", "0"), done.stderr
    assert SERVER.isdisjoint(loaded)


def test_it_has_what_it_installs(home: Path, kubeconfig: Path) -> None:
    done = run(home, "serried", "install", "--dry-run", "--kubeconfig", str(kubeconfig))
    assert done.returncode == 0, done.stderr
    objects = list(yaml.safe_load_all(done.stdout))
    kinds = [each["kind"] for each in objects]
    names = {each["metadata"]["name"] for each in objects if each["kind"] == "CustomResourceDefinition"}
    assert names == {f"{plural}.scheduling.serried.dev" for plural in DEFINITIONS}
    assert kinds.count("Deployment") == 2


@pytest.mark.parametrize("command", ["extender", "controller", "replay"])
def test_what_needs_the_server_says_where_it_is(home: Path, command: str) -> None:
    for words in (["serried", command], ["kubectl-serried", command]):
        if command == "replay" or words[0] == "serried":
            done = run(home, *words)
            assert done.returncode == 2
            assert f"run the command in the image {IMAGE}:{__version__}, or install the package serried" in done.stderr
            assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("word", MOST_MODULES)
def test_a_command_loads_little(home: Path, kubeconfig: Path, word: str) -> None:
    words = [word, *(["--kubeconfig", str(kubeconfig)] if word == "queue" else [])]
    code = (
        "import sys\nfrom cli import main\n"
        f"try:\n    main({words!r})\nfinally:\n    print(len(sys.modules), file=sys.stderr)"
    )
    done = run(home, "python", "-c", code)
    assert done.returncode == 0, done.stderr
    assert int(done.stderr.split()[-1]) < MOST_MODULES[word]


def test_the_plugin_is_one_archive_for_all_machines_which_krew_finds(
    wheel: Path, kubeconfig: Path, tmp_path: Path
) -> None:
    archive = pack_plugin(wheel, tmp_path / "plugin.tar.gz")
    again = pack_plugin(wheel, tmp_path / "again.tar.gz")
    assert archive.read_bytes() == again.read_bytes()
    manifest = yaml.safe_load(render_krew("1.2.3", archive, "https://host/team/serried/releases/download/v1.2.3"))
    spec = manifest["spec"]
    assert (manifest["kind"], manifest["metadata"]["name"], spec["version"]) == ("Plugin", "serried", "v1.2.3")
    assert spec["homepage"] == "https://host/team/serried"
    assert len(spec["shortDescription"]) <= 80
    (platform,) = spec["platforms"]
    assert platform["uri"] == "https://host/team/serried/releases/download/v1.2.3/plugin.tar.gz"
    assert platform["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()
    with tarfile.open(archive) as packed:
        assert platform["bin"] in packed.getnames()
        assert not [name for name in packed.getnames() if name.endswith(".so")]
        packed.extractall(tmp_path / "store", filter="data")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "kubectl-serried").symlink_to(tmp_path / "store" / platform["bin"])
    done = run(tmp_path, "kubectl-serried", "queue", "--kubeconfig", str(kubeconfig))
    assert done.stdout == "No gang waits for resources in namespace team.\n", done.stderr
