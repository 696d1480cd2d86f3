"""The Dockerfile's steps, run into an empty place, give an environment in which an unprivileged user can start both."""

import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import yaml

from tests.e2e.dockerfile_build import DockerfileBuild, Stage

pytestmark = pytest.mark.tools

REPOSITORY = Path(__file__).resolve().parents[2]
COMMANDS = ("extender", "controller")
LISTENERS = {"extender": ("--filter-listen", "--bind-listen", "--ops-listen"), "controller": ("--ops-listen",)}

READ_ONLY = (
    *("unshare", "--mount", "sh", "-ec"),
    # What the kernel shows of itself stays as it is, as in a container.
    """
    for place in / $(awk '$4 ~ /^rw/ && $2 !~ "^/($|proc|sys|dev)" { print $2 }' /proc/self/mounts); do
        mount -o remount,bind,ro "$place"
    done
    exec "$@"
    """,
    "sh",
)
"""Before a command: it runs in mounts of its own, and all of them are read-only."""


@dataclass(frozen=True)
class Image:
    """The final stage, started as a container would."""

    stage: Stage
    prefix: Path

    def start(self, *command: str) -> subprocess.Popen[str]:
        user = self.user if os.geteuid() == 0 else None
        return subprocess.Popen(
            [str(self.prefix / "bin" / command[0]), *command[1:]], cwd="/", env=self.stage.env,
            user=user, group=user, extra_groups=None if user is None else [],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def start_read_only(self, *command: str) -> subprocess.Popen[str]:
        """The same where no file can be written. Only for root: it has mounts of its own."""
        as_user = ["setpriv", f"--reuid={self.user}", f"--regid={self.user}", "--clear-groups"]
        return subprocess.Popen(
            [*READ_ONLY, *as_user, str(self.prefix / "bin" / command[0]), *command[1:]], cwd="/", env=self.stage.env,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    @property
    def user(self) -> int:
        return int(self.stage.user.split(":")[0])

    def output(self, *command: str) -> str:
        process = self.start(*command)
        text, _ = process.communicate(timeout=30)
        assert process.returncode == 0, text
        return text


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    # Not pytest's own directory: that one is closed to other users.
    root = Path(tempfile.mkdtemp(prefix="serried-image-"))
    root.chmod(0o755)
    try:
        build = DockerfileBuild(REPOSITORY, root, f"{base_python(root)}:/usr/bin:/bin")
        image = Image(build.run(), build.prefix)
        # A copied interpreter finds its own shared library only so; a container's is where it was linked.
        image.stage.env["LD_LIBRARY_PATH"] = str(root / "python" / "lib")
        yield image
    finally:
        shutil.rmtree(root)


def base_python(root: Path) -> str:
    """The directory of an interpreter that every user can reach; copied if this one lies in a private home."""
    home = Path(sys.base_prefix).resolve()
    if all(place.stat().st_mode & stat.S_IXOTH for place in (home, *home.parents)):
        return str(home / "bin")
    private = shutil.ignore_patterns("__pycache__", "test", "site-packages", "share", "include")
    shutil.copytree(home, root / "python", symlinks=True, ignore=private)
    return str(root / "python" / "bin")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=1, verify=False).status_code == 200  # noqa: S501 - it is signed by itself
    except httpx.TransportError:
        return False


def test_only_our_packages_and_their_locked_dependencies_are_in_it(image: Image) -> None:
    listing = "import importlib.metadata as m; print(*sorted(d.name.lower() for d in m.distributions()))"
    installed = set(image.output("python", "-c", listing).replace("_", "-").split())
    locked = {
        line.split("==")[0] for line in (REPOSITORY / "locks" / "runtime.txt").read_text().splitlines() if "==" in line
    }
    assert "serried" in installed
    assert installed - {"serried"} <= locked


def test_byte_code_is_made_in_the_build(image: Image) -> None:
    assert image.stage.env["PYTHONDONTWRITEBYTECODE"] == "1"
    assert list(image.prefix.glob("lib/python3*/site-packages/serried/__pycache__/*.pyc"))


def test_the_image_starts_the_extender_unless_told_otherwise(image: Image) -> None:
    assert image.stage.command == ["python", "-m", "extender"]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_explains_itself(image: Image, command: str) -> None:
    text = image.output("python", "-m", command, "--help")
    assert all(flag in text for flag in LISTENERS[command])


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_lives_while_the_api_server_is_away(image: Image, command: str) -> None:
    ports = {flag: free_port() for flag in LISTENERS[command]}
    flags = [f"{flag}=127.0.0.1:{port}" for flag, port in ports.items()]
    with image.start("python", "-m", command, "--kubeconfig", str(nowhere(image.prefix.parent)), *flags) as process:
        try:
            ops = f"http://127.0.0.1:{ports['--ops-listen']}"
            assert comes_alive(process, f"{ops}/livez"), "no answer on /livez"
            assert not answers(f"{ops}/readyz")
            process.terminate()
            assert process.wait(timeout=15) == 0
        finally:
            process.kill()


def test_the_extender_starts_where_no_file_can_be_written_and_signs_its_certificate_all_the_same(image: Image) -> None:
    probe = "import tempfile; tempfile.gettempdir()"
    with image.start_read_only("python", "-c", probe) as writer:
        told, _ = writer.communicate(timeout=30)
    if "No usable temporary directory" not in told:
        pytest.skip(f"this machine does not let us remount what is there read-only: {told[-300:]!r}")
    ports = {flag: free_port() for flag in LISTENERS["extender"]}
    # On every address it speaks TLS as well.
    flags = [f"{flag}={'' if flag == '--ops-listen' else '127.0.0.1'}:{port}" for flag, port in ports.items()]
    kubeconfig = str(nowhere(image.prefix.parent))
    with image.start_read_only("python", "-m", "extender", "--kubeconfig", kubeconfig, *flags) as process:
        try:
            assert comes_alive(process, f"https://127.0.0.1:{ports['--ops-listen']}/livez"), "no answer on /livez"
        finally:
            process.kill()


def comes_alive(process: subprocess.Popen[str], url: str) -> bool:
    deadline = time.monotonic() + 20
    while process.poll() is None and time.monotonic() < deadline:
        if answers(url):
            return True
        time.sleep(0.2)
    return False


def nowhere(folder: Path) -> Path:
    """Credentials for an API server that does not answer, in a folder that the unprivileged user can read."""
    path = folder / "kubeconfig"
    entry = {"server": f"http://127.0.0.1:{free_port()}"}
    path.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "c", "cluster": entry}],
                "users": [{"name": "u", "user": {"token": "none"}}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "x",
            }
        )
    )
    return path
