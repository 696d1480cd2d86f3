"""The versions of an API group, in the order in which they are to be preferred."""

import re
from typing import Any

from serried.decode.fields import Raw, read_map, read_objects, read_text

_VERSION = re.compile(r"v([1-9][0-9]*)(?:(alpha|beta)([1-9][0-9]*))?")

_STABILITY = {"alpha": 0, "beta": 1, "": 2}


def read_versions(group: Raw) -> list[str]:
    """The versions in an APIGroup, the server's preferred one first, then as Kubernetes orders them.

    Raises ValueError for any other document.
    """
    if group.get("kind") != "APIGroup":
        raise ValueError(f"no APIGroup: {str(group)[:80]}")
    served = {read_text(each, "version") for each in read_objects(group, "versions")} - {""}
    preferred = read_text(read_map(group, "preferredVersion"), "version")
    return sorted(served, key=lambda version: (version != preferred, *_rank(version)))


def _rank(version: str) -> tuple[Any, ...]:
    """What sorts v2, v1, v1beta2, v1beta1, v1alpha1, and then names that are none of these, by the alphabet."""
    matched = _VERSION.fullmatch(version)
    if matched is None:
        return 1, version
    major, stability, minor = matched.groups("")
    return 0, *(-each for each in (_STABILITY[stability], int(major), int(minor or 0)))


def find_schema(index: Raw, api_version: str) -> str | None:
    """Where the schema of a group and version is; None if none is published. ``index`` is that of OpenAPI v3.

    The place names a hash: another place is another schema. Raises ValueError for any other document.
    """
    paths = read_map(index, "paths")
    if not paths:
        raise ValueError(f"no index of schemas: {str(index)[:80]}")
    return read_text(read_map(paths, f"apis/{api_version}"), "serverRelativeURL") or None
