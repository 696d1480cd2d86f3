"""PersistentVolumes, PersistentVolumeClaims, and which of these a pod mounts."""

from serried.decode.fields import Raw, read_map, read_name, read_objects, read_text
from serried.decode.identity import read_key, read_version
from serried.decode.malformed import Malformed, attempt
from serried.decode.shapes import read_terms
from serried.model.volume import Volume, VolumeClaim


def decode_volume(obj: object) -> Volume | Malformed:
    """A PersistentVolume; the name is required."""
    return attempt("PersistentVolume", _decode_volume, obj)


def _decode_volume(obj: Raw) -> Volume:
    return Volume(
        read_key(obj).name, read_terms(read_map(read_map(obj, "spec"), "nodeAffinity"), "required"), read_version(obj)
    )


def decode_volume_claim(obj: object) -> VolumeClaim | Malformed:
    """A PersistentVolumeClaim; the name is required."""
    return attempt("PersistentVolumeClaim", _decode_volume_claim, obj)


def _decode_volume_claim(obj: Raw) -> VolumeClaim:
    return VolumeClaim(read_key(obj), read_text(read_map(obj, "spec"), "volumeName"), read_version(obj))


def read_claims(pod: str, spec: Raw) -> tuple[str, ...]:
    """The names of the claims that a pod mounts; for ephemeral volumes they are made from the name of the ``pod``."""
    claims = []
    for volume in read_objects(spec, "volumes"):
        if volume.get("persistentVolumeClaim") is not None:
            claims.append(read_name(read_map(volume, "persistentVolumeClaim"), "claimName"))
        elif volume.get("ephemeral") is not None:
            claims.append(f"{pod}-{read_text(volume, 'name')}")
    return tuple(claims)
