"""Patches of members for which nodes are requested: remove the gate, and select the domain of the new nodes.

With a ProvisioningRequest the gate stays, and the patch names the ProvisioningRequest instead.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from extender.features.asking.targets import Target
from serried.api.names import ASKED, CONSUMES, read_time, write_time
from serried.api.pod import Pod
from serried.kube.client import ApiClient
from serried.kube.errors import ApiError, Conflict, NotFound
from serried.kube.many import do_each
from serried.kube.wire import PODS


class Asked(NamedTuple):
    """The decoded annotation ASKED of a member: when nodes were requested, and in which domain."""

    at: float
    """The time of the request, in seconds since 1970."""

    key: str
    domain: str


def write_asked(at: float, target: Target) -> str:
    """Return the value of the annotation ASKED: the time ``at`` (seconds since 1970) and the domain of ``target``.

    For instance ``2026-05-04T10:00:00Z topology.kubernetes.io/zone=a``. The part after the space is left out for a gang
    without a topology key.
    """
    return write_time(at) + (f" {target.key}={target.domain}" if target.key else "")


def read_asked(text: str) -> Asked | None:
    """Decode a value of the annotation ASKED, as `write_asked` returns it.

    None if it does not begin with an RFC 3339 time.
    """
    time, _, place = text.partition(" ")
    at = read_time({"at": time}, "at")
    key, _, domain = place.partition("=")
    return None if at is None else Asked(at, key, domain)


class RequestRef(NamedTuple):
    """The name and class of a ProvisioningRequest, as annotations of the members for which it was created give them."""

    name: str
    class_name: str


PROVISIONING_CLASS = "autoscaling.x-k8s.io/provisioning-class-name"
"""Cluster Autoscaler's annotation of a pod: the class of the ProvisioningRequest that got the pod's node."""


def make_consuming_patch(pod: Pod, at: float, target: Target, request: RequestRef) -> dict[str, Any]:
    """Return the merge patch for a member with a ProvisioningRequest: annotations name the request, the gate stays.

    The annotation ASKED has the time of the request (``at``, in seconds since 1970) and the domain of ``target``.
    """
    annotations = {ASKED: write_asked(at, target), CONSUMES: request.name, PROVISIONING_CLASS: request.class_name}
    return {"metadata": {"uid": pod.uid, "annotations": annotations}}


def make_ungating_patch(pod: Pod, at: float, target: Target) -> dict[str, Any]:
    """Return the merge patch that removes Serried's gate from a member and adds the domain to its node selector.

    ``at`` is the time of the request in seconds since 1970, ``target`` has the domain. The API server lets only gated
    pods get more node selectors (KEP-3838). So if the gate is gone already, it rejects the whole patch, and a pod never
    gets the domain of a request that has ended. The patch also removes the annotations of an earlier
    ProvisioningRequest: autoscalers add no node for a pod that has them, even if the request was deleted.
    """
    gates = [{"name": gate} for gate in pod.foreign_gates]
    spec: dict[str, Any] = {"schedulingGates": gates or None}
    if target.key and dict(pod.shape.node_selector).get(target.key) != target.domain:
        spec["nodeSelector"] = {target.key: target.domain}
    annotations: dict[str, str | None] = {ASKED: write_asked(at, target)}
    if pod.consumes:
        annotations |= {CONSUMES: None, PROVISIONING_CLASS: None}
    return {"metadata": {"uid": pod.uid, "annotations": annotations}, "spec": spec}


def selects_other_domain(pod: Pod, target: Target) -> bool:
    """Return whether the pod's node selector has another domain for the target's key: it must not be patched then."""
    return bool(target.key) and dict(pod.shape.node_selector).get(target.key, target.domain) != target.domain


async def write_members(
    client: ApiClient,
    members: Iterable[Pod],
    at: float,
    target: Target,
    request: RequestRef | None,
    may_continue: Callable[[], bool],
) -> str:
    """Patch each member so that an autoscaler adds nodes for it.

    If ``request`` is given, annotations of the member name this ProvisioningRequest. If it is None, Serried's gate is
    removed, and the member's node selector gets the domain of ``target``. ``at`` is the time of the request, in seconds
    since 1970.

    Before each patch, ``may_continue`` is called; the member is skipped if it returns False. Members that were deleted
    or changed meanwhile, or whose node selector has another domain, are skipped, too. Return the first error as a
    phrase, "" if there is none.
    """

    async def write_one(pod: Pod) -> str:
        if not may_continue() or selects_other_domain(pod, target):
            return ""
        patch = (
            make_ungating_patch(pod, at, target) if request is None else make_consuming_patch(pod, at, target, request)
        )
        try:
            await client.patch_merge(PODS, pod.namespace, pod.name, patch)
        except (NotFound, Conflict):
            return ""  # it was deleted or changed: the watch will show it
        except ApiError as error:
            return f"Serried could not write the request for nodes into {pod.name}: {error}"
        return ""

    return next(filter(None, await do_each(members, write_one)), "")
