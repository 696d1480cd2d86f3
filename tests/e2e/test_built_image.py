"""The image itself, built from the Dockerfile by buildah, which needs no daemon: both processes of it start and answer.

The base image is Debian with its own Python, made from packages: registries of images are not needed. The steps are
told of in test_image.py too, where neither buildah nor root is needed.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.test_image import COMMANDS, LISTENERS, REPOSITORY, answers, comes_alive, free_port, nowhere

pytestmark = pytest.mark.tools

PROGRAMS = ("buildah", "mmdebstrap")
PACKAGES = "python3,python3-venv,python-is-python3,ca-certificates"
BASE, IMAGE = "localhost/base", "localhost/serried:built"

# How to reach the package index is the machine's matter, as it is an engine's.
OF_THE_MACHINE = [place for place in ("/etc/ssl/certs", "/etc/pip.conf") if Path(place).exists()]


@dataclass(frozen=True)
class Buildah:
    """buildah with a store of its own."""

    home: Path

    def command(self, *arguments: str) -> list[str]:
        return ["buildah", "--root", str(self.home / "root"), "--runroot", str(self.home / "run"), *arguments]

    def run(self, *arguments: str) -> str:
        done = subprocess.run(self.command(*arguments), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    def make_base(self) -> None:
        """An image that has what python:3.11-slim has of use here."""
        archive = self.home / "base.tar"
        packages = f"--include={PACKAGES}"
        subprocess.run(
            ["mmdebstrap", "--quiet", "--variant=minbase", packages, "bookworm", str(archive)], check=True, timeout=600
        )
        container = self.run("from", "scratch").strip()
        self.run("add", container, str(archive), "/")
        self.run("commit", "--rm", container, BASE)
        archive.unlink()

    def build(self) -> None:
        """The Dockerfile, as it is."""
        mounts = [word for place in OF_THE_MACHINE for word in ("--volume", f"{place}:{place}:ro")]
        chosen = ["--build-arg", f"PYTHON_IMAGE={BASE}", "--tag", IMAGE]
        self.run("bud", "--isolation", "chroot", *mounts, *chosen, str(REPOSITORY))


@pytest.fixture(scope="module")
def buildah() -> Iterator[Buildah]:
    """buildah that has built the image."""
    if os.geteuid() != 0 or not all(shutil.which(program) for program in PROGRAMS):
        pytest.skip(f"only for root, with {' and '.join(PROGRAMS)}")
    home = Path(tempfile.mkdtemp(prefix="serried-built-"))
    home.chmod(0o755)
    tool = Buildah(home)
    try:
        tool.make_base()
        tool.build()
        yield tool
    finally:
        tool.run("rm", "--all")
        tool.run("rmi", "--all", "--force")
        shutil.rmtree(home, ignore_errors=True)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_process_of_the_image_answers(buildah: Buildah, command: str) -> None:
    container = buildah.run("from", IMAGE).strip()
    ports = {flag: free_port() for flag in LISTENERS[command]}
    flags = [f"{flag}=127.0.0.1:{port}" for flag, port in ports.items()]
    folder = buildah.home / command
    folder.mkdir()
    kubeconfig = nowhere(folder)
    mounted = ["--volume", f"{kubeconfig}:/kubeconfig:ro"]
    program = ["--", "python", "-m", command, "--kubeconfig", "/kubeconfig", *flags]
    run = buildah.command("run", "--isolation", "chroot", *mounted, container, *program)
    with subprocess.Popen(run, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            url = f"http://127.0.0.1:{ports['--ops-listen']}/livez"
            assert comes_alive(process, url), "no answer on /livez"
        finally:
            process.terminate()
            process.wait(timeout=30)
    assert not answers(url)


def test_the_image_is_for_an_unprivileged_user_and_starts_the_extender(buildah: Buildah) -> None:
    config = json.loads(buildah.run("inspect", "--type", "image", IMAGE))["OCIv1"]["config"]
    assert (config["User"], config["Cmd"]) == ("65532:65532", ["python", "-m", "extender"])


def test_the_size_is_stated(buildah: Buildah, capsys: pytest.CaptureFixture[str]) -> None:
    archive = buildah.home / "image"
    buildah.run("push", IMAGE, f"oci:{archive}")
    (manifest,) = json.loads((archive / "index.json").read_text())["manifests"]
    algorithm, digest = manifest["digest"].split(":")
    layers = json.loads((archive / "blobs" / algorithm / digest).read_text())["layers"]
    base, own = (sum(layer["size"] for layer in some) / 2**20 for some in (layers[:1], layers[1:]))
    with capsys.disabled():
        sys.stdout.write(f"\nimage: {base + own:.0f} MiB compressed; Serried and what it needs are {own:.0f} MiB\n")
    assert own < 100
