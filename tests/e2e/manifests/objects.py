"""Workloads, PodGroups and CompositePodGroups as JSON; the API group is the endpoint's."""

from typing import Any

from tests.e2e.manifests.server import Json


def gang(name: str = "g", count: Any = 4, **spec: Any) -> Json:
    return _item("PodGroup", name, {"schedulingPolicy": {"gang": {"minCount": count}}, **spec})


def composite(name: str = "c", count: Any = 2, **spec: Any) -> Json:
    policy = {"gang": {"minGroupCount": count}}
    return _item("CompositePodGroup", name, {"workloadRef": REF, "schedulingPolicy": policy, **spec})


def workload(*templates: Json, name: str = "w", **spec: Any) -> Json:
    return _item("Workload", name, {"podGroupTemplates": list(templates), **spec})


def tree(*templates: Json, name: str = "w", **spec: Any) -> Json:
    """A Workload of composite templates."""
    return _item("Workload", name, {"compositePodGroupTemplates": list(templates), **spec})


def template(name: str = "t", **fields: Any) -> Json:
    return {"name": name, "schedulingPolicy": {"gang": {"minCount": 2}}, **fields}


def branch(name: str, *children: Json, **fields: Any) -> Json:
    """A composite template; its children are composite if they have children themselves."""
    below = {
        "podGroupTemplates": [child for child in children if not _is_branch(child)],
        "compositePodGroupTemplates": [child for child in children if _is_branch(child)],
    }
    policy = {"gang": {"minGroupCount": 1}}
    return {"name": name, "schedulingPolicy": policy, **{key: each for key, each in below.items() if each}, **fields}


def deep(levels: int, leaf: Json) -> Json:
    """A composite template over ``levels`` levels of them, named level-1, level-2, ..., with one leaf at the bottom."""
    child = leaf
    for level in range(levels, 0, -1):
        child = branch(f"level-{level}", child)
    return child


def largest() -> Json:
    """A Workload with eight templates in each of the lists that a tree can have, 5,256 in all."""
    return tree(*_branches("", levels=3), name="largest")


def _branches(above: str, levels: int) -> list[Json]:
    names = [f"{above}{number}" for number in range(8)]
    return [branch(f"c{name}", *_leaves(name), *(_branches(name, levels - 1) if levels > 1 else [])) for name in names]


def _leaves(above: str) -> list[Json]:
    return [template(f"t{above}{number}") for number in range(8)]


def topology(*keys: str) -> Json:
    return {"topology": [{"key": key} for key in keys]}


def claims(*names: str) -> list[Json]:
    return [{"name": name, "resourceClaimTemplateName": "gpus"} for name in names]


def _item(kind: str, name: str, spec: Json) -> Json:
    return {"kind": kind, "metadata": {"name": name, "namespace": "default"}, "spec": spec}


def _is_branch(child: Json) -> bool:
    return not child.keys().isdisjoint({"podGroupTemplates", "compositePodGroupTemplates"})


REF: Json = {"workloadName": "w", "templateName": "t"}
JOB: Json = {"apiGroup": "batch", "kind": "Job", "name": "train"}
HIGH: Json = {"priorityClassName": "high", "priority": 1000000000}
FULL: Json = {"schedulingConstraints": topology("example.com/block"), "disruptionMode": {"all": {}}, **HIGH}
