"""Classes of devices, and the claims of devices that pods and PodGroups name (resource.k8s.io)."""

from sys import intern

from serried.decode.fields import Raw, read_map, read_name, read_objects, read_text
from serried.decode.identity import read_key, read_version
from serried.decode.malformed import Malformed, attempt
from serried.model.device import DeviceClass


def decode_device_class(obj: object) -> DeviceClass | Malformed:
    """A DeviceClass; the name is required. Only v1 (1.34) and later name an extended resource."""
    return attempt("DeviceClass", _decode, obj)


def _decode(obj: Raw) -> DeviceClass:
    return DeviceClass(read_key(obj).name, read_name(read_map(obj, "spec"), "extendedResourceName"), read_version(obj))


def read_device_claims(spec: Raw) -> tuple[str, ...]:
    """The device claims of a pod or of a PodGroup by their origin, sorted; equal pods have equal ones.

    ``template NAME`` for a claim that is made from a template, ``claim`` for one that a user has made. The names of
    such claims do not count, so that members with a claim each are of one class.
    """
    claims = read_objects(spec, "resourceClaims")
    if not claims:
        return ()
    templates = (read_text(claim, "resourceClaimTemplateName") for claim in claims)
    return tuple(sorted(intern(f"template {name}") if name else "claim" for name in templates))


def read_unclaimed(spec: Raw, status: Raw) -> str:
    """The first template from which a claim of the pod has still to be made, "" if all are made.

    kube-controller-manager makes the claim and notes it in the pod's status; kube-scheduler waits for that.
    """
    claims = read_objects(spec, "resourceClaims")
    if not claims:
        return ""
    made = {read_text(entry, "name") for entry in read_objects(status, "resourceClaimStatuses")}
    templates = (read_name(c, "resourceClaimTemplateName") for c in claims if read_text(c, "name") not in made)
    return next(filter(None, templates), "")
