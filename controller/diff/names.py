"""Names of the objects that the controller makes: byte for byte those of upstream's Job controller (1.36 on).

Equal names are what keeps two reconcilers from making two Workloads for one Job: the second create fails with
AlreadyExists (pkg/controller/job/job_scheduling_manager.go, pkg/util/hash, k8s.io/apimachinery/pkg/util/rand).
"""

from serried.model.group import Job
from serried.model.parent import Owner

_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"  # rand.SafeEncodeString: no vowels, no digits that look like them
_FNV_OFFSET = 0x811C9DC5
_FNV_PRIME = 0x01000193

_MAX_NAME_LENGTH = 253
"""In characters, of a DNS subdomain."""

_MAX_LABEL_LENGTH = 63
"""In characters, of a DNS label."""

_TEMPLATE_SUFFIX = "-pgt-0"


def hash_fnv32a(text: str) -> int:
    """FNV-1a with 32 bits over the UTF-8 bytes."""
    value = _FNV_OFFSET
    for byte in text.encode():
        value = ((value ^ byte) * _FNV_PRIME) & 0xFFFFFFFF
    return value


def encode_safe(number: int) -> str:
    """``rand.SafeEncodeString`` of the decimal digits: letters that spell no words."""
    return "".join(_ALPHABET[ord(digit) % len(_ALPHABET)] for digit in str(number))


def workload_name(owner: Owner) -> str:
    """The Workload's name: the owner's name and a hash of its UID, as spew prints the Go type."""
    tail = "-" + encode_safe(hash_fnv32a(f"(types.UID){owner.uid}"))
    return owner.key.name[: _MAX_NAME_LENGTH - len(tail)] + tail


def successor_name(job: Job, count: int) -> str:
    """The name of the Workload that replaces another when the Job comes to run ``count`` pods at a time."""
    tail = f"-{count}"
    return workload_name(job)[: _MAX_NAME_LENGTH - len(tail)] + tail


def template_name(owner: Owner) -> str:
    """The name of the Workload's one PodGroupTemplate, always a DNS label.

    Upstream's ``<job>-pgt-0`` where that is a DNS label. A Job name with dots, or one too long, would make it an
    invalid one there; here it is shortened with a hash of the whole name.
    """
    name = owner.key.name
    if is_upstream_template(owner):
        return f"{name}{_TEMPLATE_SUFFIX}"
    tail = f"-{encode_safe(hash_fnv32a(name))}{_TEMPLATE_SUFFIX}"
    return name.replace(".", "-")[: _MAX_LABEL_LENGTH - len(tail)].rstrip("-") + tail


def is_upstream_template(owner: Owner) -> bool:
    """Whether upstream can name the template of such a Job. Where it cannot, it makes neither Workload nor pods."""
    return len(owner.key.name) + len(_TEMPLATE_SUFFIX) <= _MAX_LABEL_LENGTH and "." not in owner.key.name


def pod_group_name(workload: str, template: str) -> str:
    """The PodGroup's name: Workload, template and a hash of both uncut, cut in fair halves if too long."""
    tail = encode_safe(hash_fnv32a(workload + template))
    room = _MAX_NAME_LENGTH - len(tail) - 2
    if len(workload) + len(template) > room:
        workload, template = _halve(workload, template, room)
    return f"{workload}-{template}-{tail}"


def _halve(workload: str, template: str, room: int) -> tuple[str, str]:
    half = room // 2
    if len(workload) <= half:
        return workload, template[: room - len(workload)]
    if len(template) <= half:
        return workload[: room - len(template)], template
    return workload[: room - half], template[:half]
