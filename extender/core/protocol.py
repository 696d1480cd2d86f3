"""Decodes and encodes the bodies of the extender protocol (k8s.io/kube-scheduler/extender/v1/types.go), without I/O.

`extender.core.http.verbs` calls the ``read_*`` functions before a verb and the ``write_*`` functions after it. The
values between them, such as `Steer`, are what `extender.core.service` works with.

The Go types have no JSON tags, so the keys are the field names in PascalCase. Inside ``Pod`` they are the usual ones.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from serried.api.names import Key, Malformed
from serried.api.pod import HELD, KEPT, Pod, decode_pod

MAX_COMPLETE_LIST = 100
"""The number of nodes up to which a filter call contains all feasible nodes of a cluster.

In a larger cluster kube-scheduler may offer a sample (minFeasibleNodesToFind in schedule_one.go).
"""


@dataclass(frozen=True, slots=True)
class Pass:
    """The answer of filter that allows all offered nodes."""


@dataclass(frozen=True, slots=True)
class Steer:
    """The answer of filter that allows one node only: that of the member's slot."""

    node: str


@dataclass(frozen=True, slots=True)
class Hold:
    """The answer of filter that allows no node, so that kube-scheduler tries the pod again later."""

    text: str = field(default=HELD, compare=False)
    """The reason, which kube-scheduler writes into the pod's event and condition."""


@dataclass(frozen=True, slots=True)
class Narrow:
    """The answer of filter that allows some of the offered nodes, maybe none: the others are kept for gangs."""

    nodes: Sequence[str]


Answer = Pass | Steer | Hold | Narrow


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node on which kube-scheduler could place a pod if it evicted victims there (MetaVictims)."""

    node: str
    victims: tuple[str, ...]
    """The UIDs of the pods to evict."""

    violations: int = 0
    """The number of these evictions that PodDisruptionBudgets do not allow (NumPDBViolations)."""


@dataclass(frozen=True, slots=True)
class BindRequest:
    """ExtenderBindingArgs: the pod to bind, and the node that kube-scheduler has chosen."""

    pod: Key

    uid: str
    """The UID of the pod."""

    node: str


MAX_BYTES = 8 * 1024 * 1024
"""The most bytes that a request's body may have: enough for 100,000 node names and the largest pod."""


_NAME = re.compile(r"[a-z0-9](?:[-.a-z0-9]*[a-z0-9])?")
_MAX_NAME_LENGTH = 253


class BadRequest(ValueError):
    """Raised if a request's body cannot be decoded. The text names the wrong part."""


@dataclass(frozen=True, slots=True)
class Args:
    """ExtenderArgs with nodeCacheCapable: a pod, and the names of the nodes that kube-scheduler finds feasible."""

    pod: Pod
    names: Sequence[str]


@dataclass(frozen=True, slots=True)
class PreemptionArgs:
    """ExtenderPreemptionArgs: a pod, and the nodes on which it would fit once victims are evicted."""

    pod: Pod
    candidates: Sequence[Candidate]


_NO_PODS: Mapping[str, Pod] = {}


def read_args(body: bytes, known: Mapping[str, Pod] = _NO_PODS) -> Args:
    """Decode the ExtenderArgs of filter and prioritize. Raise BadRequest if that is not possible.

    ``known`` are the pods from the watch by UID. If the request has such a pod with the same nominated node, that
    object is returned, because decoding a pod takes long.
    """
    args = _object(body)
    names = args.get("NodeNames")
    if names is None:
        raise BadRequest("NodeNames is missing: set nodeCacheCapable to true in the scheduler's extender entry")
    # One pass in C: a loop over the names took longer than the rest of the filter call.
    if not isinstance(names, list) or not set(map(type, names)) <= {str}:
        raise BadRequest("NodeNames must be a list of strings")
    return Args(_pod(args, known), names)


def read_bind(body: bytes) -> BindRequest:
    """Decode ExtenderBindingArgs. Raise BadRequest if that is not possible."""
    args = _object(body)
    values = {}
    for name in ("PodName", "PodNamespace", "PodUID", "Node"):
        value = args.get(name)
        if not isinstance(value, str) or not value:
            raise BadRequest(f"{name} must be a non-empty string")
        values[name] = value
    for name in ("PodName", "PodNamespace", "Node"):
        # The names become parts of paths of the API server, sent with the extender's credentials.
        if len(values[name]) > _MAX_NAME_LENGTH or not _NAME.fullmatch(values[name]):
            raise BadRequest(f"{name} must be a name as Kubernetes objects have them")
    return BindRequest(Key(values["PodNamespace"], values["PodName"]), values["PodUID"], values["Node"])


def read_preemption(body: bytes, known: Mapping[str, Pod] = _NO_PODS) -> PreemptionArgs:
    """Decode ExtenderPreemptionArgs, with Victims or MetaVictims. Raise BadRequest if that is not possible.

    ``known`` are the pods from the watch by UID. If the request has such a pod with the same nominated node, that
    object is returned.
    """
    args = _object(body)
    candidates = args.get("NodeNameToMetaVictims") or args.get("NodeNameToVictims") or {}
    if not isinstance(candidates, dict):
        raise BadRequest("NodeNameToMetaVictims must be an object")
    return PreemptionArgs(_pod(args, known), [_candidate(node, candidate) for node, candidate in candidates.items()])


def _candidate(node: str, candidate: Any) -> Candidate:
    try:
        uids = tuple([str(pod.get("UID") or pod["metadata"]["uid"]) for pod in candidate.get("Pods") or []])
        violations = candidate.get("NumPDBViolations")
    except (AttributeError, KeyError, TypeError) as error:
        raise BadRequest(f"the victims on node {node} cannot be read") from error
    if violations is not None and type(violations) is not int:
        raise BadRequest(f"NumPDBViolations of node {node} must be an integer")
    return Candidate(node, uids, violations or 0)


def write_filter(answer: Answer, args: Args) -> bytes:
    """Encode an ExtenderFilterResult. ``args`` is the request that is answered.

    kube-scheduler treats nodes that are not mentioned as unresolvable (NewDefaultNodeToStatus in upstream's
    pkg/scheduler/framework). So the answer for a `Hold` mentions only one node, with the Hold's text as the
    reason: then neither the answer nor kube-scheduler's event grows with the cluster.
    """
    if isinstance(answer, Steer):
        return orjson.dumps({"NodeNames": [answer.node]})
    if isinstance(answer, Narrow) and answer.nodes:
        return orjson.dumps({"NodeNames": answer.nodes})
    if isinstance(answer, Narrow):
        return orjson.dumps({"NodeNames": [], "FailedAndUnresolvableNodes": dict.fromkeys(args.names[:1], KEPT)})
    if isinstance(answer, Hold):
        return orjson.dumps({"NodeNames": [], "FailedAndUnresolvableNodes": dict.fromkeys(args.names[:1], answer.text)})
    return orjson.dumps({"NodeNames": args.names})


def write_error(text: str) -> bytes:
    """Encode an ExtenderFilterResult or ExtenderBindingResult with an error; "" for a successful Binding."""
    return orjson.dumps({"Error": text})


def write_scores(names: Sequence[str], scores: Sequence[int]) -> bytes:
    """Encode a HostPriorityList, a list of nodes with their scores. ``scores`` are in the order of ``names``."""
    return orjson.dumps([{"Host": name, "Score": score} for name, score in zip(names, scores, strict=True)])


def write_preemption(kept: Iterable[Candidate]) -> bytes:
    """Encode an ExtenderPreemptionResult with the candidates that kube-scheduler may use, always as MetaVictims."""
    return orjson.dumps(
        {
            "NodeNameToMetaVictims": {
                candidate.node: {
                    "Pods": [{"UID": uid} for uid in candidate.victims],
                    "NumPDBViolations": candidate.violations,
                }
                for candidate in kept
            }
        }
    )


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"the body is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise BadRequest("the body must be a JSON object")
    return value


def _pod(args: Mapping[str, Any], known: Mapping[str, Pod]) -> Pod:
    raw = args.get("Pod")
    if not isinstance(raw, dict):
        raise BadRequest("Pod must be an object")
    try:
        seen = known.get(raw["metadata"]["uid"])
        nominated = (raw.get("status") or {}).get("nominatedNodeName") or ""
        # The nomination is the only field that matters and that kube-scheduler may know before the watch shows it.
        if seen is not None and seen.nominated == nominated:
            return seen
    except (AttributeError, KeyError, TypeError):
        pass  # decode_pod reports what is wrong
    pod = decode_pod(raw)
    if isinstance(pod, Malformed):
        raise BadRequest(f"Pod cannot be read: {pod.problem}")
    return pod
