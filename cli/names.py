"""The names that people give: a Job, a PodGroup, a pod or a mere word leads to the groups that it stands for."""

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from cli.output import CommandError, ExitCode, find_near
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

_TRIED = ("podgroup", *(row.word for row in OWNER_KINDS.values()))
"""Of which kind a name without one may be."""

_TRIED_LAST = ("workload", "pod")
"""The same, where nothing else has the name."""

KINDS = (*_TRIED, *_TRIED_LAST)
"""What leads to a group."""

_OTHER_KINDS = frozenset(
    {
        *("cronjob", "daemonset", "deployment", "mpijob", "node", "pytorchjob", "raycluster", "rayjob", "replicaset"),
        *("service", "statefulset", "trainjob", "deploy", "svc"),
    }
)
"""Kinds that people may try, and that are no namespace."""

_UNKNOWN = "no "
"""With what the extender begins to say of an object that it does not know."""

_PART = re.compile(r"[a-z0-9][a-z0-9.:-]*")
"""A name of Kubernetes; with colons one that the extender has made (`GroupKey.encoded`)."""

_FORMS = "say job/train, podgroup/train or train, and NAMESPACE/train for one of another namespace"


@dataclass(frozen=True, slots=True)
class Name:
    """What somebody has called a group."""

    namespace: str
    """"" for any."""

    kind: str
    """One of those that lead to a group; "" if none was said."""

    name: str

    @property
    def encoded(self) -> str:
        """The group as ``/debug`` names it while no PodGroup stands for it."""
        return f"{self.kind}:{self.name}" if self.kind in _TRIED[1:] else self.name

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}" if self.kind else self.name


def read_kind(word: str) -> str:
    """The kind that somebody means, who may write it as kubectl does: ``jobs``, ``pg``, ``job.batch``; "" for none."""
    kind = word.lower().partition(".")[0]
    kind = _ALIASES.get(kind, kind)
    return kind if kind in KINDS else ""


def read_name(text: str, namespace: str) -> Name:
    """A name as a person writes it, in ``namespace`` if it says no other; raises CommandError.

    ``train``, ``job/train``, ``job:train``, each with ``NAMESPACE/`` before it or not.
    """
    parts = text.split("/")
    if not all(map(_PART.fullmatch, (part.lower() for part in parts))):
        raise CommandError(ExitCode.USAGE, f"{text!r} is not the name of a group: {_FORMS}")
    match parts:
        case [word]:
            return _read_word(namespace, word)
        case [first, name] if read_kind(first):
            return Name(namespace, read_kind(first), name)
        case [other, _] if other.lower().partition(".")[0].removesuffix("s") in _OTHER_KINDS:
            said = f"{text!r}: serried knows {', '.join(KINDS)}; name the Job or a pod that it makes"
            raise CommandError(ExitCode.USAGE, said)
        case [home, word]:
            return _read_word(home, word)
        case [home, middle, name] if read_kind(middle):
            return Name(home, read_kind(middle), name)
    return Name(parts[0], "", "/".join(parts[1:]))


def read_names(words: Sequence[str], namespace: str) -> list[Name]:
    """The names after a command, each by itself or all behind one kind: ``job train other``. Raises CommandError."""
    first, *rest = words
    if "/" in first or not read_kind(first):
        return [read_name(word, namespace) for word in words]
    if not rest:
        raise CommandError(ExitCode.USAGE, f"which {first}? Say {first} NAME, or {first}/{first} for one of that name")
    return [read_name(f"{read_kind(first)}/{word}", namespace) for word in rest]


def _read_word(namespace: str, word: str) -> Name:
    kind, colon, name = word.partition(":")
    if colon and ":" not in name and read_kind(kind):
        return Name(namespace, read_kind(kind), name)
    return Name(namespace, "", word)


async def find_groups(debug: "DebugApi", wanted: Name) -> list[Document]:
    """The groups of a name: namespace, name on ``/debug``, kind and owner of each.

    Raises CommandError if there is none, and if the name alone may mean several.
    """
    if wanted.kind:
        return await _look_for_kind(debug, wanted)
    if ":" in wanted.name or "/" in wanted.name:
        return await _find_encoded(debug, wanted)
    refusals: list[str] = []
    for kinds in (_TRIED, _TRIED_LAST):
        found = await _look_for_all(debug, wanted, kinds, refusals)
        if len({tuple(_keys(groups)) for groups in found.values()}) > 1:
            choices = " or ".join(f"{kind}/{wanted.name}" for kind in found)
            said = f"{wanted.name} may be several things in namespace {wanted.namespace}: say {choices}"
            raise CommandError(ExitCode.USAGE, said)
        if found:
            return next(iter(found.values()))
    raise CommandError(ExitCode.NOT_FOUND, _explain_none(wanted, refusals))


async def _look_for_kind(debug: "DebugApi", wanted: Name) -> list[Document]:
    """The groups of an object of this kind; raises CommandError, which names the kinds that the name has instead."""
    try:
        return await _look_up(debug, wanted, wanted.kind)
    except CommandError as error:
        if error.code is not ExitCode.NOT_FOUND or not str(error).startswith(_UNKNOWN):
            raise
        others = [kind for kind in (*_TRIED, *_TRIED_LAST) if kind != wanted.kind]
        found = await _look_for_all(debug, wanted, others, [])
        if not found:
            raise
        choices = " or ".join(f"{kind}/{wanted.name}" for kind in found)
        raise CommandError(error.code, f"{error}; did you mean {choices}?") from error


def _keys(groups: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    return [(each["namespace"], each["name"]) for each in groups]


async def _look_for_all(
    debug: "DebugApi", wanted: Name, kinds: Sequence[str], refusals: list[str]
) -> dict[str, list[Document]]:
    """What each kind of object of this name leads to; why the others lead nowhere goes to ``refusals``."""

    async def look(kind: str) -> list[Document]:
        try:
            return await _look_up(debug, wanted, kind)
        except CommandError as error:
            if error.code is not ExitCode.NOT_FOUND:
                raise
            refusals.append(str(error))
            return []

    found = await asyncio.gather(*map(look, kinds))
    return {kind: groups for kind, groups in zip(kinds, found, strict=True) if groups}


async def _look_up(debug: "DebugApi", wanted: Name, kind: str) -> list[Document]:
    found: list[Document] = await debug.get("lookup/" + "/".join(map(_quote, (wanted.namespace, kind, wanted.name))))
    return found


async def _find_encoded(debug: "DebugApi", wanted: Name) -> list[Document]:
    """The group of a name that the extender has made; its owner's, once a PodGroup stands for that."""
    try:
        path = f"groups/{_quote(wanted.namespace)}/{quote(wanted.name)}"
        return [await debug.get(path, {"diagnosis": "none"})]
    except CommandError as error:
        kind, _, rest = wanted.name.partition(":")
        if error.code is not ExitCode.NOT_FOUND or not read_kind(kind):
            raise
    return await _look_up(debug, Name(wanted.namespace, kind, rest.partition(":")[0]), kind)


def _quote(part: str) -> str:
    return quote(part, safe="")


def _explain_none(wanted: Name, refusals: Iterable[str]) -> str:
    # Of one that exists and is no gang the extender says why.
    if telling := [said for said in refusals if not said.startswith(_UNKNOWN)]:
        return telling[0]
    said = f"no group, and nothing that leads to one, of the name {wanted.name} is known in namespace"
    near = find_near(wanted.namespace, [*KINDS, *_ALIASES])
    hint = f"; did you mean {near}/{wanted.name}?" if near else ": -n names another namespace"
    return f"{said} {wanted.namespace}{hint}"


def name_groups(groups: Iterable[Mapping[str, Any]]) -> list[str]:
    """What people call each of these groups: its owner, such as job/train, else its own name.

    An owner of several groups is followed by the name of the group. An older extender names no owner.
    """
    listed = list(groups)
    known: dict[tuple[str, str], set[str]] = {}
    for each in listed:
        known.setdefault((each["namespace"], each.get("owner", "")), set()).add(each["name"])
    return [_call(each, len(known[each["namespace"], each.get("owner", "")])) for each in listed]


def call(group: str, owner: str) -> str:
    """What people call a group that is written with its namespace."""
    return f"{group.partition('/')[0]}/{owner}" if owner else group


def _call(group: Mapping[str, Any], siblings: int) -> str:
    owner, name = group.get("owner", ""), str(group["name"])
    if not owner:
        return name
    return f"{owner} ({name})" if siblings > 1 else str(owner)
