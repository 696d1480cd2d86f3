"""The API server's audit log: what the accounts of Serried ask for, and what of it RBAC refuses."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bench.cluster.audit import AuditLog, make_flags
from tests.e2e.roles.rights import NAMESPACE, PROCESSES, Grant
from tests.support.cluster_stage import Raw

_FORBIDDEN = 403
"""The answer of RBAC; also that of a policy, or of an admission plugin, which asks for a right of its own."""


class Use(NamedTuple):
    """One request."""

    id: str
    """The log has two lines of one that is answered piece by piece."""

    asked: Grant
    """With the name of its object, "" if it is about several."""

    refused: bool

    def is_of(self, grant: Grant) -> bool:
        """Return whether this right is the one that the request needs."""
        return self.asked == (grant if grant.name else grant._replace(name=self.asked.name))


class Audit(AuditLog):
    """The requests that the log of one API server shows, and the rights that they need."""

    def count_refused(self, mark: int, grant: Grant) -> int:
        """Count the requests for this right that were refused since then."""
        return len({use.id for use in self._find_uses(mark) if use.refused and use.is_of(grant)})

    def find_unused(self, mark: int, grants: Iterable[Grant]) -> list[Grant]:
        """Return the rights of which no request has made use since then."""
        allowed = [use for use in self._find_uses(mark) if not use.refused]
        return [grant for grant in grants if not any(use.is_of(grant) for use in allowed)]

    def _find_uses(self, mark: int) -> Iterator[Use]:
        for event in self.read(mark):
            yield from _read_use(event)


def _read_use(event: Raw) -> Iterator[Use]:
    target = event.get("objectRef")
    if target is None or "responseStatus" not in event:
        return
    resource = "/".join(filter(None, (target["resource"], target.get("subresource", ""))))
    account = event["user"]["username"].rpartition(":")[2]
    asked = Grant(account, event["verb"], target.get("apiGroup", ""), resource, target.get("name", ""))
    yield Use(event["auditID"], asked, event["responseStatus"].get("code") == _FORBIDDEN)


def note_our_accounts(directory: Path) -> tuple[str, ...]:
    """Flags of an API server that notes in this directory what our accounts do, and nothing else."""
    users = [f"system:serviceaccount:{NAMESPACE}:{account}" for account in PROCESSES]
    rules: list[dict[str, Any]] = [{"level": "Metadata", "users": users}, {"level": "None"}]
    return make_flags(directory, rules)
