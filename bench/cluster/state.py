"""The state of clusters on disk, which later commands read: a directory for each cluster, with one record in it."""

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
    """One cluster as written to disk. A process is recorded as soon as it is started, before anything can fail."""

    spec: Spec
    phase: Phase
    ports: Mapping[str, int]
    processes: Mapping[str, Process]

    def with_processes(self, processes: Mapping[str, Process]) -> "Record":
        """Return the record with these processes added or replaced."""
        return replace(self, processes={**self.processes, **processes})


@dataclass(frozen=True, slots=True)
class Place:
    """The directory of one cluster."""

    name: str
    root: Path

    @property
    def directory(self) -> Path:
        """The directory with all files of the cluster."""
        return self.root / self.name

    @property
    def file(self) -> Path:
        """The file with the record."""
        return self.directory / "state.json"

    @property
    def kwok(self) -> Path:
        """The directory that kwokctl uses for this cluster."""
        return self.directory / "kwok" / "clusters" / self.name

    @property
    def logs(self) -> Path:
        """The directory with the logs of processes that this package starts. Those of kwokctl's are below `kwok`."""
        return self.directory / "logs"

    def lock(self, report: Report) -> AbstractContextManager[None]:
        """Hold the cluster's lock while the body runs, so that one command at a time changes the cluster.

        The lock file is outside of the cluster's directory, so that it remains after a removal.
        """
        return exclusive(self.root / f".{self.name}.lock", report, f"waiting for another command on {self.name}")

    def read(self) -> Record | None:
        """Return the record; None if there is none, or if it cannot be read."""
        try:
            return _decode(json.loads(self.file.read_text()))
        except (OSError, ValueError, KeyError, TypeError, ClusterError):
            return None

    def write(self, record: Record) -> None:
        """Replace the record atomically."""
        self.directory.mkdir(parents=True, exist_ok=True)
        part = self.file.with_suffix(".part")
        part.write_text(json.dumps(asdict(record), indent=2))
        part.replace(self.file)

    def remove(self) -> None:
        """Delete the cluster's directory. Errors are ignored."""
        shutil.rmtree(self.directory, ignore_errors=True)


def root() -> Path:
    """Return the directory of all clusters."""
    if STATE in os.environ:
        return Path(os.environ[STATE]).absolute() / "clusters"
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home).absolute() / "serried" / "clusters"


def place(name: str) -> Place:
    """Return the place of a cluster, which may not exist. Raise ClusterError if the name is invalid."""
    if not NAME.fullmatch(name):
        raise ClusterError(f"{name!r} is no name of a cluster")
    return Place(name, root())


def places() -> list[Place]:
    """Return the places of all clusters that have a directory."""
    try:
        found = sorted(path.name for path in root().iterdir() if path.is_dir() and NAME.fullmatch(path.name))
    except FileNotFoundError:
        return []
    return [place(name) for name in found]


def recorded_ports(clusters: Iterable[Place]) -> set[int]:
    """Return the ports that clusters have recorded, including those of stopped processes."""
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
