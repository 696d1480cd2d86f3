"""Start processes of Serried that import a test module first, and so behave differently from the shipped ones.

Python imports ``sitecustomize`` before anything else, from the first directory in PYTHONPATH that has it. So the
command is the shipped one, and no shipped code knows of this.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from bench.cluster.installation import REPOSITORY


def import_first(module: str, directory: Path) -> Mapping[str, str]:
    """Return the environment variables with which a Python process imports ``module`` first.

    A file that does so is written to ``directory``.
    """
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "sitecustomize.py").write_text(f"import {module}\n")
    path = (str(directory), str(REPOSITORY), os.environ.get("PYTHONPATH", ""))
    return {"PYTHONPATH": os.pathsep.join(part for part in path if part)}
