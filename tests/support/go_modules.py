"""Read files of other projects from Go's module cache, so that none are copied into this repository."""

import json
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest


@cache
def locate(module: str, version: str) -> Path:
    """Return a module's directory in Go's cache; download the module first if needed. Skip the test without Go."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("needs Go to read what other projects ship")
    command = [go, "mod", "download", "-json", f"{module}@{version}"]
    # Go wants to be as new as the module, although it only copies files.
    environment = os.environ | {"GOTOOLCHAIN": "auto"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return Path(json.loads(done.stdout)["Dir"])
