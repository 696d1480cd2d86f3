"""Manifests as people write them, read as Kubernetes does: keys of maps and times are texts."""

from typing import Any

import yaml

_TEXTS = ("timestamp", "binary", "value")
"""What YAML knows and JSON does not."""


class _Loader(yaml.SafeLoader):
    """Knows only what JSON can say, so that each document can be sent."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 - so it is called
        self.flatten_mapping(node)
        return {_read_key(key): self.construct_object(value, deep=deep) for key, value in node.value}


for _tag in _TEXTS:
    yaml.add_constructor(f"tag:yaml.org,2002:{_tag}", _Loader.construct_yaml_str, _Loader)


def _read_key(node: yaml.Node) -> str:
    if not isinstance(node, yaml.ScalarNode):
        raise yaml.constructor.ConstructorError(None, None, "a key of a map is no text", node.start_mark)
    return str(node.value)


def read_manifests(text: str) -> list[Any]:
    """The documents that are not empty. Raises ValueError for what cannot be read."""
    try:
        return [document for document in yaml.load_all(text, _Loader) if document is not None]
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
