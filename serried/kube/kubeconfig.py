"""Reads kubeconfig files, and merges several as kubectl does: the first entry with a name wins.

`find_kubeconfig` finds the files, `read_kubeconfig` reads them, `Kubeconfig.choose` picks a context. Source:
https://kubernetes.io/docs/concepts/configuration/organize-cluster-access-kubeconfig/ . Relative paths in a file are
resolved against the file's folder.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

USUAL_KUBECONFIG = "~/.kube/config"

_FIELDS = {"contexts": "context", "clusters": "cluster", "users": "user"}
"""The lists of a kubeconfig. Each entry has a ``name`` and one more field, whose key is given here."""

_PATHS = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
"""The fields of clusters and users that name files."""


class CredentialsError(Exception):
    """There are no usable credentials. The message says what was tried, where, and what to do."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The cluster and the user that one context of a kubeconfig names, with the fields that they have in the file."""

    cluster: Mapping[str, Any]
    user: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Kubeconfig:
    """One kubeconfig, merged from one or several files. Contexts, clusters and users are by name, as in the files."""

    place: str
    """The paths of the files, separated by colons."""

    current: str = ""
    """The name of the current context; "" if there is none."""

    contexts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    clusters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    users: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def choose(self, context: str = "") -> Entry:
        """Return the cluster and user of a context; "" means the current one.

        Raises CredentialsError if the context, its cluster or its user does not exist, or if it names no cluster.
        """
        name = context or self.current
        if name not in self.contexts:
            raise CredentialsError(f"kubeconfig {self.place} has {self._explain_missing(name)}")
        chosen = self.contexts[name]
        cluster, user = (str(chosen.get(key) or "") for key in ("cluster", "user"))
        if cluster not in self.clusters:
            said = f"names the cluster {cluster}, which does not exist" if cluster else "names no cluster"
            raise CredentialsError(f"kubeconfig {self.place} cannot be used: context {name} {said}")
        if user and user not in self.users:
            said = f"context {name} names the user {user}, who does not exist"
            raise CredentialsError(f"kubeconfig {self.place} cannot be used: {said}")
        return Entry(self.clusters[cluster], self.users.get(user, {}))

    def namespace(self, context: str = "") -> str:
        """Return the namespace of a context ("" means the current one); "" if the context names none."""
        return str(self.contexts.get(context or self.current, {}).get("namespace") or "")

    def _explain_missing(self, name: str) -> str:
        has = f"it has {', '.join(sorted(self.contexts))}" if self.contexts else "it has none"
        said = f"no context {name}" if name else "no current context, and --context names none"
        near = get_close_matches(name, list(self.contexts), 1, 0.6)
        return f"{said}: {has}" + (f"; did you mean {near[0]}?" if near else "")


def find_kubeconfig(named: str = "") -> str:
    """Return the path of the kubeconfig that kubectl would use: ``named``, else $KUBECONFIG, else ~/.kube/config.

    The result may be several paths, separated by colons; "" if there is none.
    """
    usual = Path(USUAL_KUBECONFIG).expanduser()
    return named or os.environ.get("KUBECONFIG", "") or (str(usual) if usual.exists() else "")


def read_kubeconfig(place: str) -> Kubeconfig:
    """Read and merge the kubeconfig files in ``place``, paths separated by colons.

    Of several files some may be missing. Raises CredentialsError if a file cannot be read or is no kubeconfig.
    """
    paths = [path for path in place.split(os.pathsep) if path]
    documents = [_read(path) for path in paths if len(paths) == 1 or Path(path).expanduser().exists()]
    merged: dict[str, dict[str, Mapping[str, Any]]] = {section: {} for section in _FIELDS}
    current = ""
    for document in documents:
        current = current or str(document.get("current-context") or "")
        for section, name in _FIELDS.items():
            for entry in document.get(section) or ():
                merged[section].setdefault(str(entry["name"]), entry.get(name) or {})
    return Kubeconfig(place, current, **merged)


def _read(path: str) -> dict[str, Any]:
    """Return the content of one kubeconfig file, with its relative paths made absolute.

    Raises CredentialsError, which says what is wrong with the file.
    """
    import yaml  # noqa: PLC0415 - the help of a command needs none

    loader: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # in C, for files with many certificates
    problem = "it is not an object"
    file = Path(path).expanduser()
    try:
        document = yaml.load(file.read_text(), loader)  # noqa: S506 - a safe one
    except OSError as error:
        problem, document = error.strerror or str(error), None
    except (UnicodeError, yaml.YAMLError) as error:
        mark = getattr(error, "problem_mark", None)
        problem, document = f"it is not YAML{f' (line {mark.line + 1})' if mark else ''}", None
    if isinstance(document, dict):
        problem = next(filter(None, (_check_section(document, *each) for each in _FIELDS.items())), "")
    if problem or not isinstance(document, dict):
        raise CredentialsError(f"kubeconfig {path} cannot be read: {problem}")
    for section in ("clusters", "users"):
        for entry in document.get(section) or ():
            _resolve(entry.get(_FIELDS[section]) or {}, file.parent)
    return document


def _check_section(document: Mapping[str, Any], section: str, name: str) -> str:
    """Return what is wrong with the list ``section`` of a kubeconfig, as a phrase; "" if it is valid.

    ``name`` is the field that each entry must have besides its ``name`` (see `_FIELDS`). A user may be empty.
    """
    entries = document.get(section)
    if not isinstance(entries, list | None):
        return f"{section} is not a list"
    for entry in entries or ():
        if not (isinstance(entry, dict) and "name" in entry):
            return f"an entry of {section} has no name, or no {name}"
        if not isinstance(entry.get(name), dict | None if section == "users" else dict):
            return f"an entry of {section} has no name, or no {name}"
    return ""


def _resolve(entry: dict[str, Any], folder: Path) -> None:
    for key in _PATHS:
        if entry.get(key):
            entry[key] = str(folder / Path(str(entry[key])).expanduser())
    command = (entry.get("exec") or {}).get("command") if isinstance(entry.get("exec"), dict | None) else None
    if isinstance(command, str) and os.sep in command:  # a name without a separator is found in PATH
        entry["exec"]["command"] = str(folder / command)
