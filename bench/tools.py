"""Build the Go tools that pack and check releases. Each is built once from its module, and cached."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.cluster.binaries import cache

MODULES = {
    "crane": "github.com/google/go-containerregistry/cmd/crane@v0.22.1",
    "actionlint": "github.com/rhysd/actionlint/cmd/actionlint@v1.7.12",
}
"""By name of the tool: its Go package and version."""

_START_SECONDS = 30.0
"""The longest time in seconds until a registry must listen."""


class ToolError(Exception):
    """A tool cannot be built or does not run. The message says why, and what to do."""


def locate(name: str) -> Path:
    """Return the path of a tool's program, which is built if it is not cached. Raise ToolError if that fails."""
    package = MODULES[name]
    folder = cache() / "tools" / f"{name}-{package.partition('@')[2]}"
    program = folder / name
    if not program.is_file():
        go = shutil.which("go")
        if go is None:
            raise ToolError(f"{name} is built with Go, and there is no 'go' in PATH: https://go.dev/doc/install")
        # Two processes may build the tool at the same time: each renames its finished program into place.
        scratch = folder / f".{os.getpid()}"
        environment = os.environ | {"GOBIN": str(scratch)}
        done = subprocess.run(
            [go, "install", package], env=environment, cwd="/", capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise ToolError(f"go install {package} failed:\n{done.stderr.strip()}")
        (scratch / name).replace(program)
        scratch.rmdir()
    return program


@contextmanager
def registry() -> Iterator[str]:
    """Run a registry for images and charts in memory while the body runs; yield its address.

    Raise ToolError if it does not start.
    """
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    command = [str(locate("crane")), "registry", "serve", "--address", f"localhost:{port}"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            deadline = time.monotonic() + _START_SECONDS
            while not _listens(port):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise ToolError(f"{' '.join(command)} does not listen: run it to see why")
                time.sleep(0.05)
            yield f"localhost:{port}"
        finally:
            process.terminate()


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("localhost", port)).close()
    except ConnectionRefusedError:
        return False
    return True
