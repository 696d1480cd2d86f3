"""The names by which users name a gang: a Job, another owner, a PodGroup, one of its pods or a name without a kind.

`read_name` and `read_names` parse the text, `find_groups` asks the extender for the groups that the name stands for.
`name_groups` does the reverse for output.
"""

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from cli.output import CommandError, ExitCode, find_similar
from serried.api.kinds import OWNER_KINDS

if TYPE_CHECKING:
    from cli.access import DebugApi

Document = dict[str, Any]

_ALIASES = {
    "pg": "podgroup",
    "podgroups": "podgroup",
    "compositepodgroup": "podgroup",
    "compositepodgroups": "podgroup",
    "po": "pod",
    "pods": "pod",
    **{other: row.word for row in OWNER_KINDS.values() for other in (row.plural, *row.short_names)},
    "workloads": "workload",
}

_FIRST_KINDS = ("podgroup", *(row.word for row in OWNER_KINDS.values()))
"""The kinds that are tried first for a name without a kind."""

_LAST_KINDS = ("workload", "pod")
"""The kinds that are tried for a name without a kind if none of `_FIRST_KINDS` has an object of that name."""

KINDS = (*_FIRST_KINDS, *_LAST_KINDS)
"""The kinds of objects by which a user may name a gang."""

_OTHER_KINDS = frozenset(
    {
        *("cronjob", "daemonset", "deployment", "mpijob", "node", "pytorchjob", "raycluster", "rayjob", "replicaset"),
        *("service", "statefulset", "trainjob", "deploy", "svc"),
    }
)
"""Kinds by which no gang can be named. ``deployment/web`` then gives an error that says so.

Without this set, ``deployment`` would be taken for a namespace.
"""

_UNKNOWN_PREFIX = "no "
"""The beginning of the extender's message that it does not know an object, such as "no job default/train is known".

All other messages say why a known object is no gang.
"""

_NAME_PART = re.compile(r"[a-z0-9][a-z0-9.:-]*")
"""The name of a Kubernetes object.

With colons, the extender's name for a gang without PodGroup (`GroupKey.encoded`).
"""

_FORMS = "use job/train, podgroup/train or train, or NAMESPACE/train for a group of another namespace"


@dataclass(frozen=True, slots=True)
class Name:
    """A gang's name as the user typed it, parsed."""

    namespace: str
    """The namespace; "" for any."""

    kind: str
    """One of `KINDS`; "" if the user typed none."""

    name: str

    @property
    def encoded(self) -> str:
        """The extender's name for the gang if it has no PodGroup yet, such as ``job:train``."""
        return f"{self.kind}:{self.name}" if self.kind in _FIRST_KINDS[1:] else self.name

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}" if self.kind else self.name


def read_kind(word: str) -> str:
    """Return the kind that the word stands for, "" for none of `KINDS`.

    As in kubectl, the word may be ``job``, ``jobs``, ``job.batch`` or a short name such as ``pg``.
    """
    kind = word.lower().partition(".")[0]
    kind = _ALIASES.get(kind, kind)
    return kind if kind in KINDS else ""


def read_name(text: str, namespace: str) -> Name:
    """Parse the name of a gang. ``namespace`` is used if the text names none.

    The forms are ``train``, ``job/train`` and ``job:train``, each with or without ``NAMESPACE/`` before it. Text with
    more parts is split at its first slash into namespace and name. Raises CommandError if a part cannot be a name, or
    if it is a kind by which no gang can be named.
    """
    parts = text.split("/")
    if not all(map(_NAME_PART.fullmatch, (part.lower() for part in parts))):
        raise CommandError(ExitCode.USAGE, f"{text!r} is not the name of a group: {_FORMS}")
    match parts:
        case [word]:
            return _read_word(namespace, word)
        case [first, name] if read_kind(first):
            return Name(namespace, read_kind(first), name)
        case [other, _] if other.lower().partition(".")[0].removesuffix("s") in _OTHER_KINDS:
            said = f"{text!r}: serried knows {', '.join(KINDS)}: name the Job or one of its pods"
            raise CommandError(ExitCode.USAGE, said)
        case [home, word]:
            return _read_word(home, word)
        case [home, middle, name] if read_kind(middle):
            return Name(home, read_kind(middle), name)
    return Name(parts[0], "", "/".join(parts[1:]))


def read_names(words: Sequence[str], namespace: str) -> list[Name]:
    """Parse the names on a command line: ``job/train job/other``, or one kind and then names (``job train other``).

    ``namespace`` is used for names without one. Raises CommandError for other text.
    """
    first, *rest = words
    if "/" in first or not read_kind(first):
        return [read_name(word, namespace) for word in words]
    if not rest:
        said = f"the name is missing: use {first} NAME, or {first}/{first} for the name {first}"
        raise CommandError(ExitCode.USAGE, said)
    return [read_name(f"{read_kind(first)}/{word}", namespace) for word in rest]


def _read_word(namespace: str, word: str) -> Name:
    kind, colon, name = word.partition(":")
    if colon and ":" not in name and read_kind(kind):
        return Name(namespace, read_kind(kind), name)
    return Name(namespace, "", word)


async def find_groups(debug: "DebugApi", wanted: Name) -> list[Document]:
    """Return the groups that the name stands for: documents with namespace, name in ``/debug``, kind and owner.

    Raises CommandError if there are none, or if a name without a kind may stand for several objects.
    """
    if wanted.kind:
        return await _find_of_kind(debug, wanted)
    if ":" in wanted.name or "/" in wanted.name:
        return await _find_encoded(debug, wanted)
    refusals: list[str] = []
    for kinds in (_FIRST_KINDS, _LAST_KINDS):
        found = await _find_of_kinds(debug, wanted, kinds, refusals)
        if len({tuple(_keys(groups)) for groups in found.values()}) > 1:
            choices = " or ".join(f"{kind}/{wanted.name}" for kind in found)
            said = f"{wanted.name} is ambiguous in namespace {wanted.namespace}: use {choices}"
            raise CommandError(ExitCode.USAGE, said)
        if found:
            return next(iter(found.values()))
    raise CommandError(ExitCode.NOT_FOUND, _describe_not_found(wanted, refusals))


async def _find_of_kind(debug: "DebugApi", wanted: Name) -> list[Document]:
    """Return the groups that a name with a kind stands for.

    Raises CommandError if there are none. Its message names other kinds that have an object of that name.
    """
    try:
        return await _lookup(debug, wanted, wanted.kind)
    except CommandError as error:
        if error.code is not ExitCode.NOT_FOUND or not str(error).startswith(_UNKNOWN_PREFIX):
            raise
        others = [kind for kind in (*_FIRST_KINDS, *_LAST_KINDS) if kind != wanted.kind]
        found = await _find_of_kinds(debug, wanted, others, [])
        if not found:
            raise
        choices = " or ".join(f"{kind}/{wanted.name}" for kind in found)
        raise CommandError(error.code, f"{error}; did you mean {choices}?") from error


def _keys(groups: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    return [(each["namespace"], each["name"]) for each in groups]


async def _find_of_kinds(
    debug: "DebugApi", wanted: Name, kinds: Sequence[str], refusals: list[str]
) -> dict[str, list[Document]]:
    """Look for the object with this name in each of ``kinds``, and return the groups by kind.

    The result has only kinds with such an object. For each other kind, append the extender's message to ``refusals``.
    """

    async def look(kind: str) -> list[Document]:
        try:
            return await _lookup(debug, wanted, kind)
        except CommandError as error:
            if error.code is not ExitCode.NOT_FOUND:
                raise
            refusals.append(str(error))
            return []

    found = await asyncio.gather(*map(look, kinds))
    return {kind: groups for kind, groups in zip(kinds, found, strict=True) if groups}


async def _lookup(debug: "DebugApi", wanted: Name, kind: str) -> list[Document]:
    found: list[Document] = await debug.get("lookup/" + "/".join(map(_quote, (wanted.namespace, kind, wanted.name))))
    return found


async def _find_encoded(debug: "DebugApi", wanted: Name) -> list[Document]:
    """Return the group for an extender's own name such as ``job:train``, which it has while it has no PodGroup.

    If the PodGroup was created since, return the groups of the owner in the name.
    """
    try:
        path = f"groups/{_quote(wanted.namespace)}/{quote(wanted.name)}"
        return [await debug.get(path, {"diagnosis": "none"})]
    except CommandError as error:
        kind, _, rest = wanted.name.partition(":")
        if error.code is not ExitCode.NOT_FOUND or not read_kind(kind):
            raise
    return await _lookup(debug, Name(wanted.namespace, kind, rest.partition(":")[0]), kind)


def _quote(part: str) -> str:
    return quote(part, safe="")


def _describe_not_found(wanted: Name, refusals: Iterable[str]) -> str:
    # If the object exists and is no gang, the extender says why.
    if telling := [said for said in refusals if not said.startswith(_UNKNOWN_PREFIX)]:
        return telling[0]
    said = f"Serried knows no group {wanted.name}, and no object that belongs to one, in namespace"
    near = find_similar(wanted.namespace, [*KINDS, *_ALIASES])
    hint = f"; did you mean {near}/{wanted.name}?" if near else ": use -n for another namespace"
    return f"{said} {wanted.namespace}{hint}"


def name_groups(groups: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a name for each group that users understand: its owner, such as job/train, otherwise the group's own name.

    If several groups of the list have the same owner, the group's name follows in brackets: ``job/train (train-x7)``.
    Extenders of older releases report no owner.
    """
    listed = list(groups)
    known: dict[tuple[str, str], set[str]] = {}
    for each in listed:
        known.setdefault((each["namespace"], each.get("owner", "")), set()).add(each["name"])
    return [_name_group(each, len(known[each["namespace"], each.get("owner", "")])) for each in listed]


def name_with_owner(group: str, owner: str) -> str:
    """Return ``namespace/owner`` for a group written ``namespace/name``; the group unchanged if ``owner`` is ""."""
    return f"{group.partition('/')[0]}/{owner}" if owner else group


def _name_group(group: Mapping[str, Any], siblings: int) -> str:
    owner, name = group.get("owner", ""), str(group["name"])
    if not owner:
        return name
    return f"{owner} ({name})" if siblings > 1 else str(owner)
