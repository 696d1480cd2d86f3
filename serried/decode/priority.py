"""PriorityClasses of ``scheduling.k8s.io/v1``, and the ``preemptionPolicy`` that they share with pods and groups."""

from serried.decode.fields import Raw, read_flag, read_int, read_text
from serried.decode.identity import read_key, read_version
from serried.decode.malformed import Malformed, attempt
from serried.model.priority import PreemptionPolicy, PriorityClass

_POLICIES = {policy.value: policy for policy in PreemptionPolicy}


def decode_priority_class(obj: object) -> PriorityClass | Malformed:
    """A PriorityClass from its JSON object; the name is required."""
    return attempt("PriorityClass", _decode, obj)


def read_preemption(raw: Raw) -> PreemptionPolicy | None:
    """``preemptionPolicy`` of a PriorityClass, or of the spec of a pod or group; None where it is not said."""
    return _POLICIES.get(read_text(raw, "preemptionPolicy"))


def _decode(obj: Raw) -> PriorityClass:
    return PriorityClass(
        name=read_key(obj).name,
        value=read_int(obj, "value"),
        is_default=read_flag(obj, "globalDefault"),
        preemption=read_preemption(obj),
        version=read_version(obj),
    )
