"""PriorityClasses of ``scheduling.k8s.io/v1``."""

from serried.decode.fields import Raw, read_flag, read_int
from serried.decode.identity import read_key, read_version
from serried.decode.malformed import Malformed, attempt
from serried.model.priority import PriorityClass


def decode_priority_class(obj: object) -> PriorityClass | Malformed:
    """A PriorityClass from its JSON object; the name is required."""
    return attempt("PriorityClass", _decode, obj)


def _decode(obj: Raw) -> PriorityClass:
    return PriorityClass(
        name=read_key(obj).name,
        value=read_int(obj, "value"),
        is_default=read_flag(obj, "globalDefault"),
        version=read_version(obj),
    )
