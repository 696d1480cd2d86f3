"""The extender protocol's bytes to values and back (k8s.io/kube-scheduler/extender/v1/types.go), without I/O.

The Go types have no JSON tags, so the keys are the field names in PascalCase; inside ``Pod`` they are the usual ones.

What the verbs are asked and what they answer, as values: neither bytes nor decisions.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from serried.api.names import Key, Malformed
from serried.api.pod import HELD, KEPT, Pod, decode_pod

MAX_COMPLETE_LIST = 100
"""Up to this many nodes kube-scheduler does not sample (minFeasibleNodesToFind in upstream's schedule_one.go)."""


@dataclass(frozen=True, slots=True)
class Pass:
    """Every offered node is fine with us."""


@dataclass(frozen=True, slots=True)
class Steer:
    """This node and no other."""

    node: str


@dataclass(frozen=True, slots=True)
class Hold:
    """No node for now."""

    text: str = field(default=HELD, compare=False)
    """What kube-scheduler is told, for people."""


@dataclass(frozen=True, slots=True)
class Narrow:
    """These nodes of the offered ones: the others are kept for the head of the queue. None of them may be left."""

    nodes: Sequence[str]


Answer = Pass | Steer | Hold | Narrow


@dataclass(frozen=True, slots=True)
class Candidate:
    """MetaVictims, with their node: whom kube-scheduler would evict there for the pod that it cannot place."""

    node: str
    victims: tuple[str, ...]
    """UIDs."""

    violations: int = 0
    """How many PodDisruptionBudgets this violates (NumPDBViolations)."""


@dataclass(frozen=True, slots=True)
class BindRequest:
    """ExtenderBindingArgs."""

    pod: Key

    uid: str
    """The pod's."""

    node: str


MAX_BYTES = 8 * 1024 * 1024
"""The largest body that is read: 100,000 node names and a pod of the largest size take less."""


_NAME = re.compile(r"[a-z0-9](?:[-.a-z0-9]*[a-z0-9])?")
_MAX_NAME_LENGTH = 253


class BadRequest(ValueError):
    """The body is not what kube-scheduler sends; the text says which part."""


@dataclass(frozen=True, slots=True)
class Args:
    """ExtenderArgs with nodeCacheCapable: a pod and the names of the nodes that passed the scheduler's own filters."""

    pod: Pod
    names: Sequence[str]


@dataclass(frozen=True, slots=True)
class PreemptionArgs:
    """ExtenderPreemptionArgs: a pod, and the nodes that it could have if their victims were evicted."""

    pod: Pod
    candidates: Sequence[Candidate]


_NO_PODS: Mapping[str, Pod] = {}


def read_args(body: bytes, known: Mapping[str, Pod] = _NO_PODS) -> Args:
    """ExtenderArgs of filter and prioritize; ``known`` are pods that were read before, by UID. Raises BadRequest."""
    args = _object(body)
    names = args.get("NodeNames")
    if names is None:
        raise BadRequest("NodeNames is missing: set nodeCacheCapable to true in the scheduler's extender entry")
    # In one pass of C: name by name, this alone took longer than all else that filter does.
    if not isinstance(names, list) or not set(map(type, names)) <= {str}:
        raise BadRequest("NodeNames must be a list of strings")
    return Args(_pod(args, known), names)


def read_bind(body: bytes) -> BindRequest:
    """ExtenderBindingArgs. Raises BadRequest."""
    args = _object(body)
    values = {}
    for name in ("PodName", "PodNamespace", "PodUID", "Node"):
        value = args.get(name)
        if not isinstance(value, str) or not value:
            raise BadRequest(f"{name} must be a non-empty string")
        values[name] = value
    for name in ("PodName", "PodNamespace", "Node"):
        # They go into paths of the API server, with our credentials.
        if len(values[name]) > _MAX_NAME_LENGTH or not _NAME.fullmatch(values[name]):
            raise BadRequest(f"{name} must be a name as Kubernetes objects have them")
    return BindRequest(Key(values["PodNamespace"], values["PodName"]), values["PodUID"], values["Node"])


def read_preemption(body: bytes, known: Mapping[str, Pod] = _NO_PODS) -> PreemptionArgs:
    """ExtenderPreemptionArgs in either form; ``known`` as in `read_args`. Raises BadRequest."""
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
    """ExtenderFilterResult.

    Nodes that are not mentioned count as unresolvable, so a hold needs to name one node only: it carries the text,
    and neither the answer nor the scheduler's event grows with the cluster
    (NewDefaultNodeToStatus in upstream's pkg/scheduler/framework).
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
    """ExtenderFilterResult or ExtenderBindingResult with an error, "" for a Binding's success."""
    return orjson.dumps({"Error": text})


def write_scores(names: Sequence[str], scores: Sequence[int]) -> bytes:
    """HostPriorityList: a bare array."""
    return orjson.dumps([{"Host": name, "Score": score} for name, score in zip(names, scores, strict=True)])


def write_preemption(kept: Iterable[Candidate]) -> bytes:
    """ExtenderPreemptionResult: always the meta form."""
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
        # Only this of it may be newer than what the watch has shown, and matter: the scheduler knows it first.
        if seen is not None and seen.nominated == nominated:
            return seen
    except (AttributeError, KeyError, TypeError):
        pass  # whatever is wrong with it, the decoder says
    pod = decode_pod(raw)
    if isinstance(pod, Malformed):
        raise BadRequest(f"Pod cannot be read: {pod.problem}")
    return pod
