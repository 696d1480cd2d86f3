"""``serried whatif``: whether gangs would fit, where, and which pods would be evicted.

Nothing is created or changed.
"""

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from urllib.parse import urlencode

import typer

from cli.access import DebugApi, ask
from cli.admission import Admitted, admit
from cli.complete import complete_gangs
from cli.names import find_groups, read_name
from cli.options import Namespace, Output
from cli.output import CommandError, ExitCode, OutputFormat, Part, format_times, make_table, option, write
from cli.target import Target, find_namespace, with_target_options
from extender.look.manifests import flatten, read_documents
from serried.api.kinds import OWNER_KINDS
from serried.api.names import count_things

WHATIF_EXAMPLES = """
Would this Job fit now? If not, the exit code is 1:
  serried whatif job.yaml

Would it fit with four more nodes like node-7, and without the Job other?
  serried whatif job.yaml --add 4*node-7 --remove job/other

Would a waiting gang fit if node-3 were drained?
  serried whatif --group job/train --drain node-3

Would the output of Helm fit?
  helm template ./chart | serried whatif - -n team
"""

Files = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="[FILE...]",
        show_default=False,
        help=f"Manifests of {', '.join(f'{kind}s' for kind in OWNER_KINDS)}, PodGroups, CompositePodGroups, "
        "Workloads and Pods. "
        "YAML or JSON; - for standard input.",
    ),
]
Groups = Annotated[
    list[str] | None,
    option(
        "NAME",
        "A gang that exists: job/train, podgroup/train or train. May be repeated.",
        "--group",
        autocompletion=complete_gangs,
    ),
]
Drained = Annotated[list[str] | None, option("NODE", "Leave out this node. May be repeated.", "--drain")]
Added = Annotated[
    list[str] | None, option("NUMBER*NODE", "Add this many nodes like this one. May be repeated.", "--add")
]
Removed = Annotated[
    list[str] | None,
    option("NAME", "Leave out this gang and its pods. May be repeated.", "--remove", autocompletion=complete_gangs),
]


class FileObject(NamedTuple):
    """An object that was read from a manifest file; ``raw`` is the parsed document."""

    place: str
    """The path of the file, followed by the number of the document if the file has several, for messages."""

    raw: Any


@with_target_options
def ask_whatif(
    files: Files = None,
    group: Groups = None,
    drain: Drained = None,
    add: Added = None,
    remove: Removed = None,
    namespace: Namespace = "",
    output: Output = OutputFormat.TABLE,
    *,
    target: Target,
) -> None:
    """Show whether gangs would fit, where, and which pods would be evicted. Nothing is created or changed."""
    unread: list[str] = []
    sent = [each for path in files or () for each in _read(path, unread)]
    if not sent and not group:
        said = "; ".join(unread) or "name a file with manifests, or a gang that exists with --group"
        raise CommandError(ExitCode.USAGE, said)
    where = find_namespace(target, namespace)
    asked = {"namespace": [where], "group": group, "drain": drain, "add": add, "remove": remove}
    answer = ask(target, lambda debug: _ask(debug, target, sent, asked))
    answer |= {"fits": answer["fits"] and not unread, "refused": [*unread, *answer["refused"]]}
    write(answer, output, lambda: draw_whatif(answer), lambda: [each["source"] for each in answer["groups"]])
    if not answer["fits"]:
        raise typer.Exit(ExitCode.NO.number)


async def _ask(
    debug: DebugApi, target: Target, sent: Sequence[FileObject], asked: Mapping[str, list[str] | None]
) -> dict[str, Any]:
    """Ask the extender about the objects that the API server accepts by dry run, and return its answer.

    If the API server rejects all of them, and ``asked`` names no group, the extender is not asked.

    ``sent`` are the objects of the manifests. ``asked`` has the other options (namespace, group, drain, add, remove) by
    name. Added to the answer are the objects that the API server rejects, what the dry run could not check
    (``unchecked``), and the file of each gang.
    """
    (where,) = asked["namespace"] or ("",)
    admitted = Admitted()
    if sent:
        admitted = await admit(target, [each.raw for each in sent], where)
    named = {option: await _resolve(debug, asked[option] or (), where) for option in ("group", "remove")}
    query = urlencode(
        [(name, value) for name, values in {**asked, **named}.items() for value in values or ()], safe="/*"
    )
    answer: dict[str, Any] = _EMPTY_ANSWER
    if asked["group"] or not admitted.refused or any(each is not None for each in admitted.objects):
        answer = await debug.post(f"whatif?{query}", admitted.objects)
    places = _list_places(sent, where)
    refused = [f"{_find_prefix(said.partition(': ')[0], places)}{said}" for said in admitted.refused]
    return {
        **answer,
        "fits": answer["fits"] and not admitted.refused,
        "groups": [{**each, "file": places.get(_name_object(each["source"]), "")} for each in answer["groups"]],
        "refused": [*refused, *(_insert_place(said, sent) for said in answer.get("refused", ()))],
        "unchecked": admitted.unchecked,
    }


async def _resolve(debug: DebugApi, names: Sequence[str], namespace: str) -> list[str]:
    """Return the groups that the user's names stand for, each as ``namespace/name`` in ``/debug``.

    ``namespace`` is for names without one. Raises CommandError for a name that stands for no group.
    """
    found = [each for name in names for each in await find_groups(debug, read_name(name, namespace))]
    return [f"{each['namespace']}/{each['name']}" for each in found]


_EMPTY_ANSWER: dict[str, Any] = {
    "fits": True,
    "groups": [],
    "skipped": [],
    "changes": {"drained": [], "displaced": 0, "added": [], "removed": []},
}
"""The answer if admission rejects all objects, so that the extender is not asked."""


# --- files -----------------------------------------------------------------------------------------------------------

_BETWEEN = re.compile(r"^---(?=\s|$)", re.MULTILINE)

_OBJECT_NUMBER = re.compile(r"document 1, item (\d+)(?=\W)")
"""The pattern by which the extender's messages name an object of the request, counted from 1.

`_insert_place` replaces it by the file.
"""


def _read(path: Path, unread: list[str]) -> list[FileObject]:
    """Return the objects of a file, or of standard input if the path is ``-``.

    Append a message to ``unread`` for each document that cannot be parsed. Raises CommandError if the file cannot be
    read.
    """
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text()
    except OSError as error:
        raise CommandError(ExitCode.USAGE, f"{path}: {error.strerror or error}") from error
    except UnicodeError as error:
        raise CommandError(ExitCode.USAGE, f"{path}: {error}") from error
    try:
        return _list_objects(path, read_documents(text))
    except ValueError as error:
        parts = _split(text)
        if len(parts) == 1:
            unread.append(f"{path}: {error}")
            return []
    documents: list[Any] = []
    for number, part in enumerate(parts, 1):
        try:
            documents += read_documents(part) or [None]
        except ValueError as error:
            unread.append(f"{path}, document {number}: {error}")
            documents.append(None)
    return _list_objects(path, documents)


def _split(text: str) -> list[str]:
    """Split a YAML text into its documents.

    Each part begins with as many empty lines as lines come before it in the text, so that the parser's errors name the
    right line.
    """
    starts = [0, *(found.start() for found in _BETWEEN.finditer(text)), len(text)]
    parts = [(text[:start].count("\n"), text[start:end]) for start, end in pairwise(starts)]
    return ["\n" * line + part for line, part in parts if part.strip()]


def _list_objects(path: Path, documents: list[Any]) -> list[FileObject]:
    found = [FileObject(f"{path}, {place}", raw) for place, raw in flatten(documents)]
    return [FileObject(str(path), found[0].raw)] if len(documents) == len(found) == 1 else found


def _list_places(sent: Iterable[FileObject], namespace: str) -> dict[str, str]:
    """Return the file of each object, with the document's number, by ``Kind namespace/name`` of the object.

    ``namespace`` is for objects that name none.
    """
    places: dict[str, str] = {}
    for each in sent:
        metadata = each.raw.get("metadata") if isinstance(each.raw, dict) else None
        if isinstance(metadata, dict):
            name = metadata.get("name") or metadata.get("generateName")
            home = metadata.get("namespace") or namespace
            places.setdefault(f"{each.raw.get('kind')} {home}/{name}", each.place)
    return places


def _name_object(source: str) -> str:
    """Return the object ``Kind namespace/name`` from ``source``, the manifest of a gang in the extender's answer.

    If only one part of the object forms the gang, such as a replicated Job, ``source`` names that part after a comma:
    then ``JobSet default/train, workers`` becomes ``JobSet default/train``.
    """
    return source.partition(", ")[0]


def _find_prefix(source: str, places: Mapping[str, str]) -> str:
    """Return the file of an object as a prefix of a message about it; "" if the files have only one object.

    ``source`` is the object as ``Kind namespace/name``, ``places`` the result of `_list_places`.
    """
    return f"{places[source]}, " if len(places) > 1 and source in places else ""


def _insert_place(said: str, sent: Sequence[FileObject]) -> str:
    """Return an extender's message with the file of an object in place of its number in the request."""

    def name(found: re.Match[str]) -> str:
        number = int(found[1])
        return sent[number - 1].place if 0 < number <= len(sent) else found[0]

    return _OBJECT_NUMBER.sub(name, said, count=1)


# --- the answer ------------------------------------------------------------------------------------------------------

_OUTCOMES = {"Fits": "yes", "FitsAfterEvictions": "after evictions", "DoesNotFit": "no"}


def draw_whatif(answer: dict[str, Any]) -> Iterator[Part]:
    """Yield the parts of the output: the gangs, their nodes and victims, then what could not be answered.

    These are the objects that the API server or the extender rejects, and what the dry run at the API server could not
    check, for instance quotas. ``answer`` is the result of `_ask`.
    """
    named = len({each["file"] for each in answer["groups"]}) > 1
    rows = [
        (
            *((each["file"],) if named else ()),
            _name_gang(each),
            each["priority"],
            _describe_outcome(each),
            each["domain"],
            format_times(each["message"]),
        )
        for each in answer["groups"]
    ]
    yield make_table((*(("FILE",) if named else ()), "GANG", "#PRIORITY", "FITS", "DOMAIN", "REASON"), rows)
    for each in answer["groups"]:
        if each["nodes"]:
            yield make_table(("NODE", "#MEMBERS"), each["nodes"].items(), title=_name_gang(each))
        victims = each["preemption"]["victims"] if each["preemption"] else []
        if victims:
            yield make_table(("WOULD BE EVICTED",), [(victim,) for victim in victims], title=_name_gang(each))
    for refused in answer["refused"]:
        yield f"Serried could not plan: {refused}."
    for unchecked in answer["unchecked"]:
        yield f"Not checked: {unchecked}."
    if skipped := answer.get("skipped"):  # extenders of older releases reject them
        yield f"Left out, because these objects make no pods of gangs: {', '.join(skipped)}."
    if answer["changes"]["displaced"]:
        displaced = answer["changes"]["displaced"]
        pods = count_things(displaced, "pod")
        yield f"{pods} of the drained nodes would need another node. Serried did not check whether one fits."


def _describe_outcome(group: Mapping[str, Any]) -> str:
    no_gang = group.get("noGang")  # extenders of older releases lack it
    return "no gang" if no_gang and group["outcome"] == "Fits" else _OUTCOMES[group["outcome"]]


def _name_gang(group: Mapping[str, Any]) -> str:
    """Return the name of a gang in the output: its object in the manifest, or the owner if the gang exists already."""
    is_there = group["source"].startswith("PodGroup ") and group.get("owner")
    return f"{group['namespace']}/{group['owner']}" if is_there else str(group["source"])
