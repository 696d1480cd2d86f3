"""The manifests as they lie in the repository."""

from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

MANIFESTS = Path(__file__).resolve().parents[3] / "manifests"


class Document(NamedTuple):
    """One object of the manifests."""

    content: dict[str, Any]

    @property
    def kind(self) -> str:
        return str(self.content["kind"])

    @property
    def name(self) -> str:
        return str(self.content["metadata"]["name"])


@cache
def read_all() -> tuple[Document, ...]:
    """Every object in every file: kustomizations and the scheduler's config are none. Nobody changes them."""
    files = [path for path in sorted((MANIFESTS / "kustomize").rglob("*.yaml")) if path.name not in _NO_OBJECTS]
    return tuple(Document(content) for path in files for content in yaml.safe_load_all(path.read_text()))


_NO_OBJECTS = {"kustomization.yaml", "scheduler-config.yaml"}
