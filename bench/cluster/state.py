"""What is known about clusters between two commands: one directory per cluster, one file in it."""

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from bench.cluster.errors import ClusterError
from bench.cluster.locks import exclusive
from bench.cluster.processes import Process
from bench.cluster.progress import Report
from bench.cluster.spec import NAME, Spec

STATE = "SERRIED_STATE_DIR"
Phase = Literal["starting", "ready"]


@dataclass(frozen=True, slots=True)
class Record:
    """One cluster as written to disk: every process is in it before anything else happens to it."""

    spec: Spec
    phase: Phase
    ports: Mapping[str, int]
    processes: Mapping[str, Process]

    def with_processes(self, processes: Mapping[str, Process]) -> "Record":
        """The record with these processes added or replaced."""
        return replace(self, processes={**self.processes, **processes})


@dataclass(frozen=True, slots=True)
class Place:
    """The directory of one cluster."""

    name: str
    root: Path

    @property
    def directory(self) -> Path:
        """Everything of the cluster lies below it."""
        return self.root / self.name

    @property
    def file(self) -> Path:
        """The record."""
        return self.directory / "state.json"

    @property
    def kwok(self) -> Path:
        """The directory that kwokctl keeps of this cluster."""
        return self.directory / "kwok" / "clusters" / self.name

    @property
    def logs(self) -> Path:
        """Logs of what this package starts; those of the control plane are kwokctl's."""
        return self.directory / "logs"

    def lock(self, report: Report) -> AbstractContextManager[None]:
        """Only one command at a time changes a cluster; the lock outlives its directory."""
        return exclusive(self.root / f".{self.name}.lock", report, f"waiting for another command on {self.name}")

    def read(self) -> Record | None:
        """The record; None if there is none or it cannot be read."""
        try:
            return _decode(json.loads(self.file.read_text()))
        except (OSError, ValueError, KeyError, TypeError, ClusterError):
            return None

    def write(self, record: Record) -> None:
        """Replace the record in one step."""
        self.directory.mkdir(parents=True, exist_ok=True)
        part = self.file.with_suffix(".part")
        part.write_text(json.dumps(asdict(record), indent=2))
        part.replace(self.file)

    def remove(self) -> None:
        """Delete the directory, whatever is left of it."""
        shutil.rmtree(self.directory, ignore_errors=True)


def root() -> Path:
    """Where clusters are kept."""
    if STATE in os.environ:
        return Path(os.environ[STATE]).absolute() / "clusters"
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home).absolute() / "serried" / "clusters"


def place(name: str) -> Place:
    """The directory of the cluster of this name, there or not."""
    if not NAME.fullmatch(name):
        raise ClusterError(f"{name!r} is no name of a cluster")
    return Place(name, root())


def places() -> list[Place]:
    """All clusters that have a directory."""
    try:
        found = sorted(path.name for path in root().iterdir() if path.is_dir() and NAME.fullmatch(path.name))
    except FileNotFoundError:
        return []
    return [place(name) for name in found]


def recorded_ports(clusters: Iterable[Place]) -> set[int]:
    """Ports that belong to clusters, also while their processes are down."""
    records = (cluster.read() for cluster in clusters)
    return {port for record in records if record is not None for port in record.ports.values()}


def _decode(raw: dict[str, Any]) -> Record:
    spec: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in raw["spec"].items()
    }
    processes = {
        name: Process(fields["pid"], fields["started"], tuple(fields["argv"]), fields["log"])
        for name, fields in raw["processes"].items()
    }
    return Record(Spec(**spec), raw["phase"], raw["ports"], processes)
