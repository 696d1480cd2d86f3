"""Nodes. Their capacity is ``status.allocatable``, as for kube-scheduler."""

from serried.decode.fields import Raw, read_flag, read_labels, read_map, read_name, read_objects
from serried.decode.identity import read_key, read_version
from serried.decode.malformed import Malformed, attempt
from serried.decode.requests import read_amounts
from serried.model.node import Node
from serried.model.selectors import Taint


def decode_node(obj: object) -> Node | Malformed:
    """A Node from its JSON object; the name is required."""
    return attempt("Node", _decode, obj)


def _decode(obj: Raw) -> Node:
    spec = read_map(obj, "spec")
    return Node(
        name=read_key(obj).name,
        allocatable=read_amounts(read_map(obj, "status"), "allocatable"),
        labels=read_labels(read_map(obj, "metadata"), "labels"),
        taints=tuple(_read_taint(raw) for raw in read_objects(spec, "taints")),
        unschedulable=read_flag(spec, "unschedulable"),
        version=read_version(obj),
    )


def _read_taint(raw: Raw) -> Taint:
    return Taint(read_name(raw, "key"), read_name(raw, "value"), read_name(raw, "effect"))
