"""ProvisioningRequests, by which Cluster Autoscaler adds all nodes of a gang at once, or none.

The members keep their gates, so that Cluster Autoscaler does not add nodes for single pods as well. The request lists
all needed members: Cluster Autoscaler itself leaves out those that fit on existing nodes. Members with equal requests
and constraints share one PodTemplate. `Asking` creates, reads and deletes the objects.

Source: kubernetes/autoscaler, cluster-autoscaler/provisioningrequest/besteffortatomic/provisioning_class.go.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from extender.features.asking.autoscaler_events import shorten
from extender.features.asking.targets import Target
from serried.api.names import GroupKey, Raw, read_map, read_name, read_objects, read_text, read_uid
from serried.api.pod import Pod, Shape
from serried.kube.client import ApiClient
from serried.kube.errors import AlreadyExists, ApiError, NotFound
from serried.kube.wire import POD_TEMPLATES, PODS, Resource

REQUESTS = Resource("autoscaling.x-k8s.io", "v1", "provisioningrequests")

NAME_PREFIX = "serried-"
"""The prefix of the names of all ProvisioningRequests that Serried creates."""

_MAX_POD_SETS = 32
"""The most pod sets in one ProvisioningRequest that the API server accepts."""

_NOT_FOUND = "CapacityIsNotFound"


class Answer(NamedTuple):
    """The answer of Cluster Autoscaler to a ProvisioningRequest."""

    condition: str
    """The condition that decides, as ``reason: message``; "" if there is none yet."""

    rejected: bool
    """True if Cluster Autoscaler will add no nodes for the request, or has found none that it could add."""


def name_request(group: GroupKey, at: float) -> str:
    """Return the name of a gang's ProvisioningRequest. ``at`` is the time of the request, in seconds since 1970."""
    suffix = hashlib.sha256(f"{group.encoded} {at:.0f}".encode()).hexdigest()[:8]
    return f"{NAME_PREFIX}{group.name[:200].rstrip('-.')}-{suffix}"


def read_answer(request: Raw) -> Answer:
    """Return the answer in the status of a ProvisioningRequest. ``request`` is the object as JSON.

    If several conditions are set, the first of Failed, CapacityRevoked, Provisioned and Accepted counts.
    """
    conditions = {read_name(each, "type"): each for each in read_objects(read_map(request, "status"), "conditions")}
    for kind in ("Failed", "CapacityRevoked", "Provisioned", "Accepted"):
        found = conditions.get(kind)
        if found is None or (kind != "Provisioned" and read_name(found, "status") != "True"):
            continue
        reason = read_name(found, "reason")
        rejected = kind in {"Failed", "CapacityRevoked"} or reason == _NOT_FOUND
        return Answer(shorten(f"{reason}: {read_text(found, 'message')}"), rejected)
    return Answer("", rejected=False)


def make_template(pod: Raw, target: Target) -> dict[str, Any]:
    """Return the PodTemplate's ``template`` for pods like ``pod``, a Pod as JSON.

    It has the pod's labels, and its spec without scheduling gates, nodeName, hostname and schedulingGroup. If the gang
    needs one topology domain, the nodeSelector gets this domain, which ``target`` names by key and value.
    """
    spec = dict(read_map(pod, "spec"))
    for field in ("nodeName", "schedulingGates", "hostname", "schedulingGroup"):
        spec.pop(field, None)
    if target.key:
        spec["nodeSelector"] = {**read_map(spec, "nodeSelector"), target.key: target.domain}
    return {"metadata": {"labels": dict(read_map(read_map(pod, "metadata"), "labels"))}, "spec": spec}


async def create_request(
    client: ApiClient, group: GroupKey, members: Sequence[Pod], at: float, target: Target, class_name: str
) -> str:
    """Create the ProvisioningRequest for ``members``, then its PodTemplates.

    There is one PodTemplate for each set of members with equal requests and constraints.

    Return why that failed, a phrase; "" if it succeeded. ``class_name`` is its provisioningClassName, ``at`` the time
    of the request in seconds since 1970, ``target`` the domain that the PodTemplates select. Objects that exist already
    stay as they are: an earlier try has created them. The first member owns the ProvisioningRequest, so garbage
    collection deletes it with this pod at the latest.
    """
    kinds: dict[Shape, list[Pod]] = {}
    for pod in members:
        kinds.setdefault(pod.shape, []).append(pod)
    if len(kinds) > _MAX_POD_SETS:
        return (
            f"its members have {len(kinds)} different shapes, but a ProvisioningRequest takes at most {_MAX_POD_SETS}"
        )
    name = name_request(group, at)
    sizes = {f"{name}-{number}": len(pods) for number, pods in enumerate(kinds.values())}
    spec = {
        "provisioningClassName": class_name,
        "podSets": [{"podTemplateRef": {"name": each}, "count": count} for each, count in sizes.items()],
    }
    owner = _refer("v1", "Pod", members[0].name, members[0].uid)
    try:
        request = await _create_object(
            client, REQUESTS, group.namespace, "ProvisioningRequest", name, owner, {"spec": spec}
        )
        if request is None:
            request = await client.get(REQUESTS, group.namespace, name)
        owner = _refer(REQUESTS.api_version, "ProvisioningRequest", name, read_uid(request))
        for each, pods in zip(sizes, kinds.values(), strict=True):
            pod_template = make_template(await client.get(PODS, group.namespace, pods[0].name), target)
            body = {"template": pod_template}
            await _create_object(client, POD_TEMPLATES, group.namespace, "PodTemplate", each, owner, body)
    except ApiError as error:
        return f"Serried could not create the ProvisioningRequest: {error}"
    return ""


def _refer(api_version: str, kind: str, name: str, uid: str) -> dict[str, str]:
    return {"apiVersion": api_version, "kind": kind, "name": name, "uid": uid}


async def _create_object(
    client: ApiClient,
    resource: Resource,
    namespace: str,
    kind: str,
    name: str,
    owner: Mapping[str, str],
    body: Mapping[str, Any],
) -> Raw | None:
    """Create an object that ``owner`` (an ownerReference) owns. ``body`` has its fields besides metadata.

    Return the object that was created; None if one of this name exists. Raises ApiError.
    """
    metadata = {"name": name, "ownerReferences": [owner]}
    try:
        made: Raw = await client.create(
            resource, namespace, {"apiVersion": resource.api_version, "kind": kind, "metadata": metadata, **body}
        )
    except AlreadyExists:
        return None  # not read here: only Serried creates it, and has no right to read PodTemplates
    return made


async def read_request(client: ApiClient, group: GroupKey, at: float) -> Answer:
    """Return the answer to the ProvisioningRequest that the gang made at ``at`` (seconds since 1970).

    Raises ApiError; NotFound if the object was deleted.
    """
    return read_answer(await client.get(REQUESTS, group.namespace, name_request(group, at)))


async def delete_request(client: ApiClient, group: GroupKey, at: float) -> None:
    """Delete the ProvisioningRequest that the gang made at ``at`` (seconds since 1970), if it exists. Raises ApiError.

    The ProvisioningRequest owns its PodTemplates, so they are deleted with it.
    """
    try:
        await client.delete(REQUESTS, group.namespace, name_request(group, at))
    except NotFound:
        return
