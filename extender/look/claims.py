"""The volume claims and device claims of a what-if question. Those in its manifests count as if they existed.

`separate_claims` reads PersistentVolumeClaims, ResourceClaims, ResourceClaimTemplates and ComputeDomains from the
manifests. `add_ephemeral_claims` adds the claims that a controller would create for a pod's ephemeral volumes.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from serried.api.device import (
    ClaimSpec,
    HypotheticalClaims,
    ResourceClaim,
    decode_claim_template,
    decode_resource_claim,
)
from serried.api.names import Key, Malformed, read_map, read_objects
from serried.api.pod import Pod
from serried.api.volume import BETA_CLASS, VolumeClaim, decode_volume_claim

_COMPUTE_DOMAIN = "ComputeDomain"


def separate_claims(
    objects: Iterable[tuple[str, Any]], namespace: str, default_class: str
) -> tuple[list[tuple[str, Any]], HypotheticalClaims]:
    """Separate the claims of a what-if question from its other objects. Return the others, and the claims.

    Claims are PersistentVolumeClaims, ResourceClaims and ResourceClaimTemplates. Each object comes with its place in
    the request body. ``namespace`` is for objects without one. ``default_class`` is the cluster's default StorageClass.

    A claim that cannot be decoded is returned with the other objects, because `extender.look.manifests.Manifests.read`
    reports its error to the user. A ComputeDomain is returned with the other objects, too; the ResourceClaimTemplate
    that its controller would create is added to the returned claims.
    """
    rest: list[tuple[str, Any]] = []
    volumes: dict[Key, VolumeClaim] = {}
    devices: dict[Key, ResourceClaim] = {}
    templates: dict[Key, ClaimSpec] = {}
    named: Counter[Key] = Counter()
    for place, raw in objects:
        found = _decode(raw, namespace, default_class)
        if isinstance(found, VolumeClaim):
            volumes[found.key] = found
        elif isinstance(found, ResourceClaim):
            devices[found.key] = found
        elif isinstance(found, tuple):
            templates[found[0]] = found[1]
        if not isinstance(found, VolumeClaim | ResourceClaim | tuple) or raw["kind"] == _COMPUTE_DOMAIN:
            rest.append((place, raw))
            named.update(_list_named(raw, namespace))
    shared = frozenset(key for key, count in named.items() if count > 1)
    return rest, HypotheticalClaims(volumes, devices, templates, shared, default_class)


def add_ephemeral_claims(
    coming: HypotheticalClaims, pod: Pod, spec: Mapping[str, Any], *, alike: bool
) -> HypotheticalClaims:
    """Return ``coming``, the claims of a what-if question, with those for the ephemeral volumes of a pod added.

    ``spec`` is the pod's spec. If ``alike`` is True, more pods like this one are created from the same template. Then
    the claims that ``spec`` names are marked as used by several pods. A claim for an ephemeral volume is not marked,
    because each pod has its own. Raises ValueError if a claim cannot be decoded.
    """
    own = dict(coming.volumes)
    for volume in read_objects(spec, "volumes"):
        template = read_map(read_map(volume, "ephemeral"), "volumeClaimTemplate")
        name = f"{pod.name}-{volume.get('name')}"
        if name in pod.own_claims:
            metadata = {**read_map(template, "metadata"), "namespace": pod.namespace, "name": name}
            found = decode_volume_claim(_default({**template, "metadata": metadata}, coming.default_class))
            if isinstance(found, Malformed):
                raise ValueError(f"volume {volume.get('name')}: {found.problem}")
            own[found.key] = replace(found, owner=pod.uid)
    names = [name for name in pod.claims if name not in pod.own_claims]
    names += [ref.claim for ref in pod.claim_refs if not ref.template]
    common = {Key(pod.namespace, name) for name in names} if alike else set()
    return replace(coming, volumes=own, shared=coming.shared | common)


def _decode(
    raw: Any, namespace: str, default_class: str
) -> VolumeClaim | ResourceClaim | tuple[Key, ClaimSpec] | Malformed | None:
    if not isinstance(raw, dict) or not isinstance(raw.get("metadata"), dict):
        return None
    home = raw["metadata"].get("namespace") or namespace
    obj = {**raw, "metadata": {"uid": "whatif", **raw["metadata"], "namespace": home}}
    match raw.get("apiVersion"), raw.get("kind"):
        case "v1", "PersistentVolumeClaim":
            found = decode_volume_claim(_default(obj, default_class))
            # A claim that names its volume is bound to it at once.
            return replace(found, completed=bool(found.volume)) if isinstance(found, VolumeClaim) else found
        case str(version), "ResourceClaim" if version.startswith("resource.k8s.io/"):
            return decode_resource_claim({**obj, "status": {}})
        case str(version), "ResourceClaimTemplate" if version.startswith("resource.k8s.io/"):
            return decode_claim_template(obj)
        case str(version), kind if kind == _COMPUTE_DOMAIN and version.startswith("resource.nvidia.com/"):
            return _decode_compute_domain(obj)
    return None


def _decode_compute_domain(obj: Mapping[str, Any]) -> tuple[Key, ClaimSpec] | Malformed:
    """Return the key and spec of the ResourceClaimTemplate that NVIDIA's DRA driver creates for a ComputeDomain.

    With it each member claims the one channel of its node. The driver's DaemonSet pods do not matter here, because they
    start after the members are bound.
    """
    template = read_map(read_map(read_map(obj, "spec"), "channel"), "resourceClaimTemplate")
    request = {"name": "channel", "exactly": {"deviceClassName": "compute-domain-default-channel.nvidia.com"}}
    metadata = {**obj["metadata"], "name": template.get("name")}
    return decode_claim_template({"metadata": metadata, "spec": {"spec": {"devices": {"requests": [request]}}}})


def _default(obj: Mapping[str, Any], default_class: str) -> dict[str, Any]:
    """Return the PersistentVolumeClaim with the default class if it names none, as admission does."""
    spec = read_map(obj, "spec")
    says = spec.get("storageClassName") is not None
    says = says or BETA_CLASS in read_map(read_map(obj, "metadata"), "annotations")
    return dict(obj) if says else {**obj, "spec": {**spec, "storageClassName": default_class}}


def _list_named(raw: Any, namespace: str) -> Iterable[Key]:
    """Yield the keys of the volume claims and device claims that a Pod names; none for other kinds.

    For other volumes, and for claims made from a template, the name in the key is "None", which no object has.
    """
    if not isinstance(raw, dict) or raw.get("kind") != "Pod":
        return
    try:
        spec, home = read_map(raw, "spec"), str(read_map(raw, "metadata").get("namespace") or namespace)
        for volume in read_objects(spec, "volumes"):
            yield Key(home, str(read_map(volume, "persistentVolumeClaim").get("claimName")))
        for claim in read_objects(spec, "resourceClaims"):
            yield Key(home, str(claim.get("resourceClaimName")))
    except ValueError:
        return  # `Manifests.read` reports the error of this pod
