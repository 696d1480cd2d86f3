"""Build Serried's kustomizations, and keep the file and the text from which each object comes.

The chart needs them to keep files and comments, which `kubectl kustomize` drops. Only those features are supported that
Serried's kustomizations use: resources, components, generated ConfigMaps, labels, JSON patches and patches that delete.
Names of images are not changed, and generated names have no hash. A test compares the result with that of
`kubectl kustomize`. The entry is `build`.
"""

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

Json = dict[str, Any]
_FILE = "kustomization.yaml"


@dataclass(frozen=True, slots=True)
class Item:
    """One object of a built kustomization."""

    source: Path
    """The file that has the object; for a generated ConfigMap, the file that the ConfigMap has as its data."""

    text: str
    """The object's text in that file, with comments and added labels; "" for a generated ConfigMap."""

    content: Json
    """The decoded object after all patches."""

    @property
    def identity(self) -> tuple[str, str]:
        """Kind and name. They are unique among Serried's objects."""
        return str(self.content["kind"]), str(self.content["metadata"]["name"])


def build(*folders: Path) -> list[Item]:
    """Return the objects of a kustomization, or of several as if one listed them all.

    Raise ValueError if a kustomization uses a feature that is not supported here.
    """
    items: list[Item] = []
    for folder in folders:
        items = _apply(items, folder.resolve())
    return items


def read_documents(path: Path) -> Iterator[str]:
    """Yield the text of each YAML document of a file, with the comments above it."""
    for text in re.split(r"^---\n", path.read_text(), flags=re.MULTILINE):
        if yaml.safe_load(text) is not None:
            yield text.strip("\n") + "\n"


_SUPPORTED = {
    *("apiVersion", "kind", "namespace", "resources", "components"),
    *("configMapGenerator", "images", "labels", "patches"),
}


def _apply(items: list[Item], folder: Path) -> list[Item]:
    """Apply the kustomization in the folder to the items: add its objects, then patch and label all of them."""
    content = yaml.safe_load((folder / _FILE).read_text())
    if unknown := content.keys() - _SUPPORTED:
        raise ValueError(f"{folder / _FILE}: {', '.join(sorted(unknown))} is not read")
    items = [*items, *_read_resources(folder, content.get("resources", ()))]
    for name in content.get("components", ()):
        items = _apply(items, (folder / name).resolve())
    for generator in content.get("configMapGenerator", ()):
        made = _generate(folder, {"namespace": content.get("namespace")} | generator)
        for item in (each for each in items if each.identity == made.identity):  # an overlay replaces its data
            made = _label(made, item.content["metadata"].get("labels", {}))
        items = [item for item in items if item.identity != made.identity] + [made]
    for patch in content.get("patches", ()):
        items = [changed for item in items if (changed := _Patch(patch).applied_to(item)) is not None]
    for labels in content.get("labels", ()):
        if content["kind"] == "Component" or labels.keys() != {"pairs"}:
            raise ValueError(f"{folder / _FILE}: these labels would also be on selectors, or on objects of others")
        items = [_label(item, labels["pairs"]) for item in items]
    return items


_METADATA = re.compile(r"^metadata:\n(?:  .*\n)+", re.MULTILINE)


def _label(item: Item, labels: Mapping[str, str]) -> Item:
    """Return the item with these labels besides its own, in its content and in its text."""
    content = copy.deepcopy(item.content)
    own = content["metadata"].get("labels", {})
    new = {key: value for key, value in labels.items() if key not in own}
    if own or new:  # a new dictionary, because a selector may be an alias of the old one
        content["metadata"]["labels"] = {**own, **new}
    lines = "".join(f"    {key}: {value}\n" for key, value in new.items())

    def put(found: re.Match[str]) -> str:
        before, header, after = found[0].partition("  labels:\n")
        return before + (header or "  labels:\n") + lines + after

    return Item(item.source, _METADATA.sub(put, item.text, count=1) if new else item.text, content)


def _read_resources(folder: Path, names: Sequence[str]) -> Iterator[Item]:
    for name in names:
        path = (folder / name).resolve()
        if path.is_dir():
            yield from _apply([], path)
        else:
            yield from (Item(path, text, yaml.safe_load(text)) for text in read_documents(path))


def _generate(folder: Path, generator: Json) -> Item:
    (name,) = generator["files"]
    metadata: Json = {"name": generator["name"], "namespace": generator["namespace"]}
    if labels := generator.get("options", {}).get("labels"):
        metadata["labels"] = labels
    path = (folder / name).resolve()
    data = {name: path.read_text()}
    return Item(path, "", {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})


@dataclass(slots=True)
class _Patch:
    """One entry of ``patches`` in a kustomization."""

    entry: Json
    steps: Any = field(init=False)
    """The decoded patch: a list for a JSON patch, an object for one that deletes."""

    def __post_init__(self) -> None:
        self.steps = yaml.safe_load(self.entry["patch"])

    def applied_to(self, item: Item) -> Item | None:
        """Return the item after the patch, None if the patch deletes it."""
        kind, name = item.identity
        target = self.entry["target"]
        if kind != target["kind"] or not re.fullmatch(target["name"], name):
            return item
        if isinstance(self.steps, dict):
            if self.steps.get("$patch") != "delete":
                raise ValueError(f"only JSON patches and those that delete are read, not {self.steps}")
            return None
        content = copy.deepcopy(item.content)
        for step in self.steps:
            _apply_step(content, step)
        return Item(item.source, item.text, content)


def _apply_step(content: Json, step: Json) -> None:
    """Apply one operation of a JSON patch (RFC 6902) to the object, in place."""
    match step["op"]:
        case "add":
            _put(content, step["path"], step["value"])
        case "replace":
            _pop(content, step["path"])
            _put(content, step["path"], step["value"])
        case "remove":
            _pop(content, step["path"])
        case "move":
            _put(content, step["path"], _pop(content, step["from"]))
        case other:
            raise ValueError(f"the operation {other} of a JSON patch is not read")


def _put(content: Any, path: str, value: Any) -> None:
    parent, last = _find_parent(content, path)
    if isinstance(parent, list):
        parent.insert(len(parent) if last == "-" else int(last), copy.deepcopy(value))
    else:
        parent[last] = copy.deepcopy(value)


def _pop(content: Any, path: str) -> Any:
    parent, last = _find_parent(content, path)
    return parent.pop(int(last) if isinstance(parent, list) else last)


def _find_parent(content: Any, path: str) -> tuple[Any, str]:
    """Return the object or list that has the value at a JSON pointer, and the value's key or index in it."""
    *steps, last = path.strip("/").split("/")
    for step in steps:
        content = content[int(step) if isinstance(content, list) else step]
    return content, last
