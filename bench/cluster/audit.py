"""The API server's audit log: flags that make a cluster write one (`make_flags`), and a reader of it (`AuditLog`)."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import yaml

from bench.cluster.errors import ClusterError
from bench.cluster.spec import Spec

_PATH = "audit-log-path"


class AuditLog:
    """Reads the audit log of one API server."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @classmethod
    def of(cls, spec: Spec) -> Self:
        """Return the log of a cluster with the flags of `make_flags`. Raise ClusterError for a cluster without them."""
        flags = dict(flag.split("=", 1) for flag in spec.server_flags)
        if _PATH not in flags:
            raise ClusterError(f"cluster {spec.name} has no audit log: start it with the flags of `make_flags`")
        return cls(Path(flags[_PATH]))

    def mark(self) -> int:
        """Return the log's present size in bytes, to pass to `read` later."""
        return self._path.stat().st_size if self._path.exists() else 0

    def read(self, mark: int) -> Iterator[dict[str, Any]]:
        """Yield the events that were written after the mark; 0 for all events."""
        if not self._path.exists():  # no event was written yet
            return
        with self._path.open("rb") as log:
            log.seek(max(mark - 1, 0))
            lines = log.read().splitlines(keepends=True)
        # The first line began before the mark: it is skipped.
        for line in lines[1:] if mark else lines:
            if line.endswith(b"\n"):  # else the API server has not written all of it yet
                yield json.loads(line)


def make_flags(directory: Path, rules: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """Write an audit policy with these rules to the directory, and return the API server's flags for it.

    The log is written to the directory, too. A request is logged when it is answered.
    """
    policy = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": [*rules]}
    file = directory / "audit-policy.yaml"
    file.write_text(yaml.safe_dump(policy))
    return f"audit-policy-file={file}", f"{_PATH}={directory / 'audit.log'}"
