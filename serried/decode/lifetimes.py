"""When pods and Jobs began, how long they may run, and which Jobs do the same work."""

import hashlib

from serried.decode.fields import Raw, read_int, read_map, read_objects
from serried.decode.times import read_time

_NAMES = frozenset({"hostname", "subdomain", "schedulingGroup", "workloadRef"})
"""Fields of a pod template that say whose it is, not what it does."""

Lifetime = tuple[int | None, int | None]
"""When it began, in seconds since 1970, and after how many seconds it is ended."""


def read_lifetime(spec: Raw, status: Raw) -> Lifetime:
    """Of a pod or a Job: ``status.startTime`` and ``spec.activeDeadlineSeconds``."""
    return read_time(status, "startTime"), read_int(spec, "activeDeadlineSeconds") or None


def read_end(metadata: Raw, status: Raw) -> int | None:
    """When a pod's last container ended, if it was seen to; of a pod that is being deleted, when it is to be gone."""
    deleted = read_time(metadata, "deletionTimestamp")
    if deleted is not None:
        return deleted
    states = (read_map(read_map(one, "state"), "terminated") for one in read_objects(status, "containerStatuses"))
    return max((end for state in states if (end := read_time(state, "finishedAt")) is not None), default=None)


def fingerprint(template: Raw) -> int:
    """One number for all Jobs whose pods do the same: a hash of the pod template's spec.

    Labels and annotations, which name the Job, do not count. The API server writes the fields of equal objects in one
    order.
    """
    spec = {name: value for name, value in read_map(template, "spec").items() if name not in _NAMES}
    return int.from_bytes(hashlib.blake2b(repr(spec).encode(), digest_size=8).digest())
