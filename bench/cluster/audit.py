"""The API server's audit log: how a cluster gets one, and what is read from it."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import yaml

from bench.cluster.errors import ClusterError
from bench.cluster.spec import Spec

_PATH = "audit-log-path"


class AuditLog:
    """The log of one API server."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @classmethod
    def of(cls, spec: Spec) -> Self:
        """The log of a cluster that was started with such flags. Raises ClusterError for one without."""
        flags = dict(flag.split("=", 1) for flag in spec.server_flags)
        if _PATH not in flags:
            raise ClusterError(f"cluster {spec.name} has no audit log: start it with the flags of `make_flags`")
        return cls(Path(flags[_PATH]))

    def mark(self) -> int:
        """Where the log ends now."""
        return self._path.stat().st_size if self._path.exists() else 0

    def read(self, mark: int) -> Iterator[dict[str, Any]]:
        """The events since then."""
        if not self._path.exists():  # before the first one
            return
        with self._path.open("rb") as log:
            log.seek(max(mark - 1, 0))
            lines = log.read().splitlines(keepends=True)
        for line in lines[1:] if mark else lines:  # the first is the end of one before the mark, or was being written
            if line.endswith(b"\n"):  # else it is being written
                yield json.loads(line)


def make_flags(directory: Path, rules: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """Flags of an API server that notes in this directory what these rules of an audit policy name, once answered."""
    policy = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": [*rules]}
    file = directory / "audit-policy.yaml"
    file.write_text(yaml.safe_dump(policy))
    return f"audit-policy-file={file}", f"{_PATH}={directory / 'audit.log'}"
