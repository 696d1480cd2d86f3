"""Leases of ``coordination.k8s.io/v1``."""

from serried.decode.fields import Raw, read_int, read_map, read_text
from serried.decode.malformed import Malformed, attempt
from serried.decode.times import read_time
from serried.model.lease import Lease


def decode_lease(obj: object) -> Lease | Malformed:
    """A Lease; every field may be absent."""
    return attempt("Lease", _decode, obj)


def _decode(obj: Raw) -> Lease:
    spec = read_map(obj, "spec")
    renewed = read_time(spec, "renewTime")
    duration = read_int(spec, "leaseDurationSeconds")
    return Lease(read_text(spec, "holderIdentity"), renewed, duration)
