"""Asking Cluster Autoscaler by a ProvisioningRequest: all nodes of a gang at once, or none.

Its members stay behind their gates meanwhile, so nothing is added for them one by one. The request counts all of them:
Cluster Autoscaler leaves those out that have room. It has one PodTemplate for each kind of member.

Source: kubernetes/autoscaler, cluster-autoscaler/provisioningrequest/besteffortatomic/provisioning_class.go.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from extender.features.asking.sayings import cut
from extender.features.asking.targets import Target
from serried.api.names import GroupKey, Raw, read_map, read_name, read_objects, read_text, read_uid
from serried.api.pod import Pod, Shape
from serried.kube.client import ApiClient
from serried.kube.errors import AlreadyExists, ApiError, NotFound
from serried.kube.wire import POD_TEMPLATES, PODS, Resource

REQUESTS = Resource("autoscaling.x-k8s.io", "v1", "provisioningrequests")

OURS = "serried-"
"""The beginning of the names of Serried's ProvisioningRequests."""

_MAX_POD_SETS = 32
"""The API takes no more in one ProvisioningRequest."""

_NOT_FOUND = "CapacityIsNotFound"


class Answer(NamedTuple):
    """The answer of Cluster Autoscaler to a ProvisioningRequest."""

    said: str
    """The decisive condition as ``reason: message``; "" if there is none yet."""

    refused: bool
    """True if no nodes will be added for it now."""


def name_request(group: GroupKey, at: float) -> str:
    """Return the name of the ProvisioningRequest of a gang that asked at a time, in seconds since 1970."""
    mark = hashlib.sha256(f"{group.encoded} {at:.0f}".encode()).hexdigest()[:8]
    return f"{OURS}{group.name[:200].rstrip('-.')}-{mark}"


def read_answer(request: Raw) -> Answer:
    """Return what the conditions of a ProvisioningRequest say."""
    conditions = {read_name(each, "type"): each for each in read_objects(read_map(request, "status"), "conditions")}
    for kind in ("Failed", "CapacityRevoked", "Provisioned", "Accepted"):
        found = conditions.get(kind)
        if found is None or (kind != "Provisioned" and read_name(found, "status") != "True"):
            continue
        reason = read_name(found, "reason")
        refused = kind in {"Failed", "CapacityRevoked"} or reason == _NOT_FOUND
        return Answer(cut(f"{reason}: {read_text(found, 'message')}"), refused)
    return Answer("", refused=False)


def make_template(pod: Raw, target: Target) -> dict[str, Any]:
    """Return the template for members like this one: as they are, without gates and node, in the target's domain."""
    spec = dict(read_map(pod, "spec"))
    for field in ("nodeName", "schedulingGates", "hostname", "schedulingGroup"):
        spec.pop(field, None)
    if target.key:
        spec["nodeSelector"] = {**read_map(spec, "nodeSelector"), target.key: target.domain}
    return {"metadata": {"labels": dict(read_map(read_map(pod, "metadata"), "labels"))}, "spec": spec}


async def ask(
    client: ApiClient, group: GroupKey, members: Sequence[Pod], at: float, target: Target, class_name: str
) -> str:
    """Make the ProvisioningRequest for these members, and its PodTemplates. Return why that failed, "" if it did not.

    An object that exists by its name is taken to be the same. The request goes with the first member, at the latest.
    """
    kinds: dict[Shape, list[Pod]] = {}
    for pod in members:
        kinds.setdefault(pod.shape, []).append(pod)
    if len(kinds) > _MAX_POD_SETS:
        return f"its members are of {len(kinds)} kinds, and a ProvisioningRequest takes {_MAX_POD_SETS}"
    name = name_request(group, at)
    sizes = {f"{name}-{number}": len(pods) for number, pods in enumerate(kinds.values())}
    spec = {
        "provisioningClassName": class_name,
        "podSets": [{"podTemplateRef": {"name": each}, "count": count} for each, count in sizes.items()],
    }
    owner = _refer("v1", "Pod", members[0].name, members[0].uid)
    try:
        request = await _create(client, REQUESTS, group.namespace, "ProvisioningRequest", name, owner, {"spec": spec})
        if request is None:
            request = await client.get(REQUESTS, group.namespace, name)
        owner = _refer(REQUESTS.api_version, "ProvisioningRequest", name, read_uid(request))
        for each, pods in zip(sizes, kinds.values(), strict=True):
            pod_template = make_template(await client.get(PODS, group.namespace, pods[0].name), target)
            body = {"template": pod_template}
            await _create(client, POD_TEMPLATES, group.namespace, "PodTemplate", each, owner, body)
    except ApiError as error:
        return f"the ProvisioningRequest could not be made: {error}"
    return ""


def _refer(api_version: str, kind: str, name: str, uid: str) -> dict[str, str]:
    return {"apiVersion": api_version, "kind": kind, "name": name, "uid": uid}


async def _create(
    client: ApiClient,
    resource: Resource,
    namespace: str,
    kind: str,
    name: str,
    owner: Mapping[str, str],
    body: Mapping[str, Any],
) -> Raw | None:
    """Return the object that was made; None if one with its name exists. Raises ApiError."""
    metadata = {"name": name, "ownerReferences": [owner]}
    try:
        made: Raw = await client.create(
            resource, namespace, {"apiVersion": resource.api_version, "kind": kind, "metadata": metadata, **body}
        )
    except AlreadyExists:
        return None  # it is not read here: nobody but Serried makes it, and PodTemplates may not be read
    return made


async def read(client: ApiClient, group: GroupKey, at: float) -> Answer:
    """Return what is said of the ProvisioningRequest. Raises ApiError; NotFound if somebody has deleted it."""
    return read_answer(await client.get(REQUESTS, group.namespace, name_request(group, at)))


async def end(client: ApiClient, group: GroupKey, at: float) -> None:
    """Delete the ProvisioningRequest if it is there; its PodTemplates go with it. Raises ApiError."""
    try:
        await client.delete(REQUESTS, group.namespace, name_request(group, at))
    except NotFound:
        return
