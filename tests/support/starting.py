"""Processes of ours that are other than they ship: each imports a module of the tests at its start.

Python imports ``sitecustomize`` before anything else, from wherever PYTHONPATH leads first. So the command is the one
that ships, and nothing that ships knows of it.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from bench.cluster.installation import REPOSITORY


def import_first(module: str, directory: Path) -> Mapping[str, str]:
    """What the environment of such a process says; ``directory`` is for the file that it finds."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "sitecustomize.py").write_text(f"import {module}\n")
    path = (str(directory), str(REPOSITORY), os.environ.get("PYTHONPATH", ""))
    return {"PYTHONPATH": os.pathsep.join(part for part in path if part)}
