"""Generate the API reference, `docs/api-reference.md`, from the CRDs (`manifests/kustomize/crds`).

    python -m bench.reference            prints the page
    python -m bench.reference --write    writes the page

A test compares the page with the CRDs.
"""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from bench.generated import ROOT, offer_page

PAGE = ROOT / "docs" / "api-reference.md"
CRDS = ROOT / "manifests" / "kustomize" / "crds"

_HEAD = """# API reference

These are the kinds that Serried installs, in the group `scheduling.serried.dev`. `python -m bench.reference --write`
generates this page from the CRDs, and `kubectl explain` shows the same. In clusters that serve Workloads and PodGroups
themselves, Serried uses the kinds of `scheduling.k8s.io` instead ([API levels](api-levels.md)), and of its own kinds
only Reservation and TopologyLevels.

Other projects also have a kind named PodGroup. So give kubectl the full name,
`kubectl get podgroups.scheduling.serried.dev`, or the short name in brackets. "As above" means that a row above has the
same field name and meaning. If that is true for all fields below a field, their rows are left out.
"""

_ORDER = ("PodGroup", "CompositePodGroup", "Workload", "Reservation", "TopologyLevels")
_NO_FIELDS = {"apiVersion", "kind", "metadata"}

_TEMPLATES = {"podGroupTemplates", "compositePodGroupTemplates"}
"""Lists whose items can have the same list again. Their fields are shown once."""

Schema = Mapping[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the page, or write it with ``--write``."""
    return offer_page(PAGE, render, arguments, program="python -m bench.reference", about=__doc__ or "")


def render() -> str:
    """Return the text of the page."""
    shown: set[tuple[str, str]] = set()
    crds = [yaml.safe_load(path.read_text()) for path in sorted(CRDS.glob("*.yaml"))]
    kinds = {crd["spec"]["names"]["kind"]: crd["spec"] for crd in crds if crd["kind"] == "CustomResourceDefinition"}
    return "\n".join([_HEAD, *(line for kind in _ORDER for line in _render_kind(kinds.pop(kind), shown))])


def _render_kind(spec: Schema, shown: set[tuple[str, str]]) -> Iterator[str]:
    """Yield the lines about a kind. ``shown`` has the names and meanings of the fields so far; new ones are added."""
    names = spec["names"]
    (version,) = spec["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    short = ", ".join(names.get("shortNames", ()))
    yield f"## {names['kind']}"
    yield ""
    yield f"`{spec['group']}/{version['name']}`, `{names['plural']}.{spec['group']}` ({short}). {schema['description']}"
    yield ""
    yield "| field | type | meaning |"
    yield "|---|---|---|"
    fields = list(_walk(schema, ""))
    new_paths = [path for path, field, _ in fields if (path.rpartition(".")[2], _describe(field)) not in shown]
    for path, field, required in fields:
        meaning = _describe(field)
        entry = (path.rpartition(".")[2], meaning)
        if entry in shown and not _has_new_sibling(path, new_paths):
            continue
        kind = _name_type(field) + (", required" if required else "")
        yield f"| `{path}` | {kind} | {'As above.' if entry in shown else meaning} |"
        shown.add(entry)
    yield ""


def _has_new_sibling(path: str, new_paths: Sequence[str]) -> bool:
    """Return whether the parent of a field has any field below it that was not shown before. At the top: True."""
    parent = path.rpartition(".")[0]
    return not parent or any(each.startswith(f"{parent}.") for each in new_paths)


def _walk(schema: Schema, parent: str) -> Iterator[tuple[str, Schema, bool]]:
    """Yield path, schema and required for every field below a schema, in the order of the CRD."""
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        if not parent and name in _NO_FIELDS:
            continue
        path = f"{parent}.{name}" if parent else name
        if name in _TEMPLATES and "[]" in parent:
            again = f"{field.get('description', '')} The same fields as in `spec.{name}`."
            yield path, {**field, "description": again}, name in required
            continue
        yield path, field, name in required
        items = field.get("items", {})
        values = field.get("additionalProperties", {})
        yield from _walk(field, path)
        yield from _walk(items, f"{path}[]")
        yield from _walk(values if isinstance(values, Mapping) else {}, f"{path}.*")


def _name_type(field: Schema) -> str:
    if "enum" in field:
        return " or ".join(f"`{value}`" for value in field["enum"])
    if field.get("type") == "array":
        return f"list of {_name_type(field.get('items', {}))}s"
    if isinstance(field.get("additionalProperties"), Mapping):
        return f"map of {_name_type(field['additionalProperties'])}s"
    return str(field.get("format") or field.get("type", "any value"))


def _describe(field: Schema) -> str:
    """Return description, bounds and validation rules of a field, without the rules of the fields in it."""
    sentences = [" ".join(str(field.get("description", "")).split())]
    bounds = [
        f"{word} {field[key]:,}"
        for key, word in (("minimum", "at least"), ("maximum", "at most"), ("maxItems", "at most"))
        if key in field
    ]
    items = {0: "", 1: " item"}.get(field.get("maxItems", 0), " items")
    sentences.append(_make_sentence(", ".join(bounds) + items))
    below = {message for each in field.get("properties", {}).values() for message in _list_rules(each)}
    sentences += [_make_sentence(message) for message in _list_rules(field) if message not in below]
    return " ".join(text for text in sentences if text).replace("|", "\\|")


def _list_rules(field: Schema) -> list[str]:
    return [rule["message"] for rule in field.get("x-kubernetes-validations", ()) if "message" in rule]


def _make_sentence(text: str) -> str:
    """Return the text with a capital and a full stop; the name of a field at its start gets backquotes instead."""
    first, _, rest = text.partition(" ")
    if not rest:
        return ""
    start = f"`{first}`" if re.search(r"[a-z.][A-Z]", first) else first[0].upper() + first[1:]
    return f"{start} {rest}."


if __name__ == "__main__":
    sys.exit(main())
