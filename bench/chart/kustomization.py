"""What a kustomization of ours consists of, with the place where each object is written.

`kubectl kustomize` loses that place and the comments, which the chart keeps. Only what our kustomizations use is read:
resources, components, generated ConfigMaps, labels, JSON patches and patches that delete. Names of images stay as they
are written, and generated names have no hash. A test compares the result with that of `kubectl kustomize`.
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
    """The file that it is written in; of a generated ConfigMap, the file that it holds."""

    text: str
    """How it is written there, with its comments, and with added labels; of a generated ConfigMap, nothing."""

    content: Json
    """What it is after all patches."""

    @property
    def identity(self) -> tuple[str, str]:
        """Kind and name: no two objects of ours have both alike."""
        return str(self.content["kind"]), str(self.content["metadata"]["name"])


def build(*folders: Path) -> list[Item]:
    """The objects of a kustomization, or of several as if one listed them all.

    Raises ValueError for a kustomization that uses what is not read here.
    """
    items: list[Item] = []
    for folder in folders:
        items = _add(items, folder.resolve())
    return items


def read_documents(path: Path) -> Iterator[str]:
    """The text of each document of a file, with the comments above it."""
    for text in re.split(r"^---\n", path.read_text(), flags=re.MULTILINE):
        if yaml.safe_load(text) is not None:
            yield text.strip("\n") + "\n"


_READ = {
    *("apiVersion", "kind", "namespace", "resources", "components"),
    *("configMapGenerator", "images", "labels", "patches"),
}


def _add(items: list[Item], folder: Path) -> list[Item]:
    """The items with what the kustomization in the folder adds, and as it patches them."""
    content = yaml.safe_load((folder / _FILE).read_text())
    if unknown := content.keys() - _READ:
        raise ValueError(f"{folder / _FILE}: {', '.join(sorted(unknown))} is not read")
    items = [*items, *_read_resources(folder, content.get("resources", ()))]
    for name in content.get("components", ()):
        items = _add(items, (folder / name).resolve())
    for generator in content.get("configMapGenerator", ()):
        made = _generate(folder, {"namespace": content.get("namespace")} | generator)
        for item in (each for each in items if each.identity == made.identity):  # its data are replaced
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
    if own or new:  # another dictionary: a selector may be an alias of the old one
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
            yield from _add([], path)
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
    """A patch of a kustomization."""

    written: Json
    steps: Any = field(init=False)

    def __post_init__(self) -> None:
        self.steps = yaml.safe_load(self.written["patch"])

    def applied_to(self, item: Item) -> Item | None:
        """The item after the patch; None if it deletes it."""
        kind, name = item.identity
        target = self.written["target"]
        if kind != target["kind"] or not re.fullmatch(target["name"], name):
            return item
        if isinstance(self.steps, dict):
            if self.steps.get("$patch") != "delete":
                raise ValueError(f"only JSON patches and those that delete are read, not {self.steps}")
            return None
        content = copy.deepcopy(item.content)
        for step in self.steps:
            _take(content, step)
        return Item(item.source, item.text, content)


def _take(content: Json, step: Json) -> None:
    """One step of a JSON patch (RFC 6902)."""
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
    place, last = _find(content, path)
    if isinstance(place, list):
        place.insert(len(place) if last == "-" else int(last), copy.deepcopy(value))
    else:
        place[last] = copy.deepcopy(value)


def _pop(content: Any, path: str) -> Any:
    place, last = _find(content, path)
    return place.pop(int(last) if isinstance(place, list) else last)


def _find(content: Any, path: str) -> tuple[Any, str]:
    *way, last = path.strip("/").split("/")
    for step in way:
        content = content[int(step) if isinstance(content, list) else step]
    return content, last
