"""Carries out a Dockerfile's own steps without a container engine: the test cannot drift from the recipe.

Only what our Dockerfile uses: ARG, ENV, WORKDIR, COPY, RUN, USER, CMD. A stage is a directory, except that the
argument PREFIX, where the stages keep what they hand on, is one place for all of them, because a virtual environment
does not survive a move.
"""

import json
import os
import shlex
import shutil
import string
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dockerfile_parse import DockerfileParser  # type: ignore[import-untyped]


@dataclass
class Stage:
    """The state of a build stage after the instructions so far."""

    root: Path
    env: dict[str, str]
    workdir: Path
    user: str = "0"
    command: list[str] = field(default_factory=list)


class DockerfileBuild:
    """Runs the Dockerfile of ``context`` below ``root``; ``base_path`` is the PATH of the base image."""

    def __init__(self, context: Path, root: Path, base_path: str) -> None:
        self._context, self._root, self._base_path = context, root, base_path
        self.prefix = root / "prefix"
        self._globals: dict[str, str] = {}
        self._stages: list[Stage] = []

    def run(self) -> Stage:
        """Every step; returns the final stage."""
        for step in DockerfileParser(path=str(self._context / "Dockerfile")).structure:
            if step["instruction"] != "COMMENT":
                getattr(self, f"_{step['instruction'].lower()}")(step["value"])
        return self._stages[-1]

    @property
    def _stage(self) -> Stage:
        return self._stages[-1]

    def _from(self, _: str) -> None:
        root = self._root / f"stage{len(self._stages)}"
        root.mkdir()
        self._stages.append(Stage(root, {"PATH": self._base_path}, root))

    def _arg(self, value: str) -> None:
        name, _, default = value.partition("=")
        self._variables()[name] = str(self.prefix) if name == "PREFIX" else default

    def _env(self, value: str) -> None:
        for assignment in shlex.split(value):
            name, _, text = assignment.partition("=")
            self._stage.env[name] = self._expand(text)

    def _workdir(self, value: str) -> None:
        self._stage.workdir = self._inside(value)
        self._stage.workdir.mkdir(parents=True, exist_ok=True)

    def _copy(self, value: str) -> None:
        words = self._expand(value).split()
        if words[0].startswith("--from="):
            assert words[1:] == [str(self.prefix)] * 2
            assert self.prefix.is_dir()
            return
        *sources, target = words
        into = self._stage.workdir / target
        for source in (self._context / name for name in sources):
            if source.is_dir():
                shutil.copytree(source, into, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                into.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, into)

    def _run(self, value: str) -> None:
        # How to reach the package index is the machine's matter, as it is an engine's.
        outside = {name: text for name, text in os.environ.items() if name.startswith(("PIP_", "SSL_", "http"))}
        subprocess.run(
            ["/bin/sh", "-c", value], cwd=self._stage.workdir, env={**outside, **self._stage.env}, check=True
        )

    def _user(self, value: str) -> None:
        self._stage.user = value

    def _cmd(self, value: str) -> None:
        self._stage.command = json.loads(value)

    def _label(self, _: str) -> None:
        pass

    _expose = _label

    def _variables(self) -> dict[str, str]:
        return self._stage.env if self._stages else self._globals

    def _expand(self, text: str) -> str:
        known: Mapping[str, str] = self._variables()
        return string.Template(text).substitute(known)

    def _inside(self, path: str) -> Path:
        return self._stage.root / self._expand(path).lstrip("/")
