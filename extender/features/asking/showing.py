"""Showing members to autoscalers: the one write that lifts a member's gate and says where its node is to be."""

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
    """The content of a member's annotation ASKED."""

    at: float
    """Seconds since 1970."""

    key: str
    domain: str


def write_asked(at: float, target: Target) -> str:
    """Return the value of the annotation ASKED."""
    return write_time(at) + (f" {target.key}={target.domain}" if target.key else "")


def read_asked(text: str) -> Asked | None:
    """Return what the annotation ASKED says; None if it is not one that `write_asked` has written."""
    time, _, place = text.partition(" ")
    at = read_time({"at": time}, "at")
    key, _, domain = place.partition("=")
    return None if at is None else Asked(at, key, domain)


class RequestRef(NamedTuple):
    """The ProvisioningRequest that members consume."""

    name: str
    class_name: str


CLASS = "autoscaling.x-k8s.io/provisioning-class-name"
"""Annotation of a pod: the class of the ProvisioningRequest that it consumes."""


def make_consuming_patch(pod: Pod, at: float, target: Target, request: RequestRef) -> dict[str, Any]:
    """Return the merge patch that says which ProvisioningRequest a member consumes; its gate stays."""
    annotations = {ASKED: write_asked(at, target), CONSUMES: request.name, CLASS: request.class_name}
    return {"metadata": {"uid": pod.uid, "annotations": annotations}}


def make_patch(pod: Pod, at: float, target: Target) -> dict[str, Any]:
    """Return the merge patch that shows a member. The API server lets a gated pod get more node selectors (KEP-3838).

    It refuses the write as a whole if the gate is gone by then: a pod never gets the domain of an ask that is over.
    Nodes are added for a pod only if it consumes no ProvisioningRequest, also none that has gone.
    """
    gates = [{"name": gate} for gate in pod.foreign_gates]
    spec: dict[str, Any] = {"schedulingGates": gates or None}
    if target.key and dict(pod.shape.node_selector).get(target.key) != target.domain:
        spec["nodeSelector"] = {target.key: target.domain}
    annotations: dict[str, str | None] = {ASKED: write_asked(at, target)}
    if pod.consumes:
        annotations |= {CONSUMES: None, CLASS: None}
    return {"metadata": {"uid": pod.uid, "annotations": annotations}, "spec": spec}


def selects_otherwise(pod: Pod, target: Target) -> bool:
    """Return whether a pod selects another domain than the one that is asked for: it must not be written over."""
    return bool(target.key) and dict(pod.shape.node_selector).get(target.key, target.domain) != target.domain


async def show(
    client: ApiClient,
    members: Iterable[Pod],
    at: float,
    target: Target,
    request: RequestRef | None,
    may_go_on: Callable[[], bool],
) -> str:
    """Show each member, as long as ``may_go_on`` returns True. Return why one could not be shown, "" if all were.

    With a ProvisioningRequest the gates stay, and the members only say which ProvisioningRequest they consume.
    """

    async def show_one(pod: Pod) -> str:
        if not may_go_on() or selects_otherwise(pod, target):
            return ""
        patch = make_patch(pod, at, target) if request is None else make_consuming_patch(pod, at, target, request)
        try:
            await client.patch_merge(PODS, pod.namespace, pod.name, patch)
        except (NotFound, Conflict):
            return ""  # it is gone, or was changed: the watch will say
        except ApiError as error:
            return f"it could not be written into {pod.name}: {error}"
        return ""

    return next(filter(None, await do_each(members, show_one)), "")
