"""PodGroups of scheduler-plugins (scheduling.x-k8s.io/v1alpha1), which are served beside those of the level in use.

``minResources`` is not read, because a plan counts every member's requests, nor are the counts in ``status``, because
the pods themselves are watched.
"""

import math

from serried.decode.fields import Raw, read_int, read_map, read_text
from serried.decode.identity import is_deleting, read_key, read_owners, read_required_topology, read_uid, read_version
from serried.decode.malformed import Malformed, attempt
from serried.decode.preferences import read_preference
from serried.model.group import BASIC, GroupKey, GroupKind, PodGroup, Policy

_RAN = frozenset({"Running", "Finished", "Failed"})
"""The phases that the controller of scheduler-plugins writes, where it runs, once minMember pods have run."""


def decode_compatible_group(obj: object) -> PodGroup | Malformed:
    """A PodGroup of scheduler-plugins; name and uid are required."""
    return attempt("PodGroup", _decode, obj)


def _decode(obj: Raw) -> PodGroup:
    spec = read_map(obj, "spec")
    count = read_int(spec, "minMember")
    seconds = read_int(spec, "scheduleTimeoutSeconds")
    return PodGroup(
        key=GroupKey(*read_key(obj), GroupKind.COMPATIBLE),
        uid=read_uid(obj),
        # Without minMember the coscheduling plugin lets every member pass by itself.
        policy=Policy(count) if count > 0 else BASIC,
        topology_key=read_required_topology(read_map(obj, "metadata")),
        owners=read_owners(obj),
        deleting=is_deleting(obj),
        version=read_version(obj),
        preference=read_preference(obj),
        scheduled=read_text(read_map(obj, "status"), "phase") in _RAN,
        timeout=seconds if seconds > 0 else math.inf,
    )
