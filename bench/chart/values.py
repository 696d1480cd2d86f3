"""The values of the chart: render their defaults, the schema that rejects all others, and the table of their meaning.

They are written in `values.yaml` beside this file; some defaults come from the kustomizations.
"""

import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bench.chart.kustomization import Item, Json
from serried.settings import CommonSettings, controller_settings, describe_settings, extender_settings

_WRITTEN: Json = yaml.safe_load((Path(__file__).parent / "values.yaml").read_text())

SHAPES: tuple[str, ...] = tuple(_WRITTEN["shape"]["schema"]["enum"])

_LINK = re.compile(r"\[(.*?)\]\(.*?\)")


@dataclass(frozen=True, slots=True)
class Value:
    """One value of the chart."""

    path: str
    """The path of the value with dots, as in `--set`."""

    default: Any

    schema: Json
    """JSON Schema of the allowed values, without the default."""

    about: str
    """The meaning of the value in one or more sentences: Markdown in one line."""


def list_values(items: Sequence[Item]) -> list[Value]:
    """Return all values. ``items`` are the objects of the kustomization from which some defaults are taken."""
    shipped = _read_defaults(items)
    return [
        Value(
            path,
            shipped[path] if "default" not in each else each["default"],
            _FLAGS.get(path) or each["schema"],
            each["about"],
        )
        for path, each in _WRITTEN.items()
    ]


def _describe_flags(settings: CommonSettings) -> Json:
    """Return the schema of a list of command-line flags that a process accepts."""
    names = "|".join(each.flag.removeprefix("--") for each in describe_settings(settings))
    return {"type": "array", "items": {"type": "string", "pattern": f"^--({names})="}}


_FLAGS = {
    "extender.extraArgs": _describe_flags(extender_settings([], {})),
    "controller.extraArgs": _describe_flags(controller_settings([], {})),
}


def _read_defaults(items: Sequence[Item]) -> Json:
    specs = {item.identity[1]: item.content["spec"] for item in items if item.identity[0] == "Deployment"}
    pair, controlling = specs["serried"], specs["serried-controller"]
    pod = pair["template"]["spec"]
    (extender,), (scheduler,) = pod["initContainers"], pod["containers"]
    (controller,) = controlling["template"]["spec"]["containers"]
    return {
        "image.repository": extender["image"],
        "extender.replicas": pair["replicas"],
        "extender.resources": extender["resources"],
        "scheduler.image.repository": scheduler["image"],
        "scheduler.resources": scheduler["resources"],
        "controller.replicas": controlling["replicas"],
        "controller.resources": controller["resources"],
        "priorityClassName": pod["priorityClassName"],
        "tolerations": pod["tolerations"],
    }


def render_values(values: Sequence[Value]) -> str:
    """Return the text of `values.yaml`, with a comment for each value."""
    return "\n".join(_write_level(_nest(values))).rstrip() + "\n"


def render_schema(values: Sequence[Value]) -> str:
    """Return the text of `values.schema.json`, which rejects unknown values."""
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "Serried", **_describe(_nest(values))}
    # Helm passes this value to a chart that is a dependency of another one.
    schema["properties"]["global"] = {"type": "object"}
    return json.dumps(schema, indent=2) + "\n"


def render_table(values: Sequence[Value]) -> str:
    """Return the table of the values in Markdown."""
    rows = (f"| `{value.path}` | `{_write_default(value.default)}` | {value.about} |\n" for value in values)
    return "| value | default | meaning |\n|---|---|---|\n" + "".join(rows)


def _write_default(default: Any) -> str:
    if not default or not isinstance(default, dict | list):
        return json.dumps(default)
    return yaml.safe_dump(default, sort_keys=False, default_flow_style=True, width=1000).strip()


def _nest(values: Sequence[Value]) -> Json:
    """Return the values as nested mappings, by the parts of their paths."""
    tree: Json = {}
    for value in values:
        *steps, last = value.path.split(".")
        branch = tree
        for step in steps:
            branch = branch.setdefault(step, {})
        branch[last] = value
    return tree


def _describe(tree: Mapping[str, Any]) -> Json:
    """Return the schema of nested values."""
    properties = {
        key: each.schema | {"description": _LINK.sub(r"\1", each.about), "default": each.default}
        if isinstance(each, Value)
        else _describe(each)
        for key, each in tree.items()
    }
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _write_level(tree: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    for key, each in tree.items():
        if isinstance(each, Value):
            lines = textwrap.wrap(_LINK.sub(r"\1", each.about), 110, break_on_hyphens=False)
            yield from (f"{indent}# {line}" for line in lines)
            yield from (f"{indent}{line}" for line in _write_value(key, each.default).splitlines())
        else:
            yield f"{indent}{key}:"
            yield from _write_level(each, f"{indent}  ")
        if not indent:
            yield ""


def _write_value(key: str, value: Any) -> str:
    flat = None if isinstance(value, dict | list) else False
    return yaml.safe_dump({key: value}, sort_keys=False, width=1000, default_flow_style=flat)
