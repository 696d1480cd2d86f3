"""When pods and Jobs began, how long they may run, and which Jobs do the same work."""

import hashlib

from serried.decode.fields import Raw, read_int, read_map, read_objects
from serried.decode.times import read_time

_NAMES = frozenset({"hostname", "subdomain", "schedulingGroup", "workloadRef"})
"""Fields of a pod template that name its owner or its group, so they differ between Jobs of the same work."""

Lifetime = tuple[int | None, int | None]
"""When a pod or Job began, in seconds since 1970, and after how many seconds it is ended; None where unknown."""


def read_lifetime(spec: Raw, status: Raw) -> Lifetime:
    """``status.startTime`` and ``spec.activeDeadlineSeconds`` of a pod or a Job."""
    return read_time(status, "startTime"), read_int(spec, "activeDeadlineSeconds") or None


def read_grace(spec: Raw) -> int:
    """``terminationGracePeriodSeconds`` of a pod; the API server writes it, and 30 where nobody has said anything."""
    return max(0, read_int(spec, "terminationGracePeriodSeconds", 30))


def read_end(metadata: Raw, status: Raw) -> int | None:
    """When a pod ended or will end: its deletion timestamp, else the end of its last container; None if unknown."""
    deleted = read_time(metadata, "deletionTimestamp")
    if deleted is not None:
        return deleted
    states = (read_map(read_map(one, "state"), "terminated") for one in read_objects(status, "containerStatuses"))
    return max((end for state in states if (end := read_time(state, "finishedAt")) is not None), default=None)


def fingerprint(template: Raw) -> int:
    """A hash of the pod template's spec: equal for Jobs whose pods do the same.

    Labels and annotations, which name the Job, do not count. The API server writes the fields of equal objects in the
    same order.
    """
    spec = {name: value for name, value in read_map(template, "spec").items() if name not in _NAMES}
    return int.from_bytes(hashlib.blake2b(repr(spec).encode(), digest_size=8).digest())
