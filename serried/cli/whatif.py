"""``serried whatif``: whether gangs would fit, where, and who would have to go; nothing is created or changed.

``serried replay``: decisions made again from snapshots with the code of this version, without a cluster.
"""

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlencode

import typer
from rich.console import Console
from rich.progress import Progress

from extender.simulation.manifests import flatten, read_documents
from extender.simulation.snapshot import Capture, read_snapshot
from serried.api.names import GroupKey, Malformed
from serried.cli.access import DebugApi, Target, ask, find_namespace, reaching
from serried.cli.admission import Admitted, admit
from serried.cli.names import Name, find_groups, read_name
from serried.cli.output import CommandError, ExitCode, Namespace, Output, OutputFormat, Part, make_table, option, write

if TYPE_CHECKING:
    from extender.simulation.decide import Ruling


REPLAY_EXAMPLES = """
Download the input of team/train, and decide again:
  curl -f -o train.json 'http://localhost:8912/debug/snapshot?group=team/train'
  serried replay train.json

Decide again about all groups that waited, from many files:
  serried replay --all reports/*.json.gz

Check whether this version decides differently. Then the exit code is 1:
  serried replay train.json > /dev/null || echo 'another decision'
"""

Snapshots = Annotated[
    list[Path], typer.Argument(metavar="FILE...", help="Files from /debug/snapshot, compressed or not.")
]
Group = Annotated[str, option("NAME", "The gang: job/train, train or NAMESPACE/train. Default: the one in the file.")]
All = Annotated[bool, typer.Option("--all", help="All groups that waited.")]


def replay(files: Snapshots, group: Group = "", *, every: All = False, output: Output = OutputFormat.TABLE) -> None:
    """Make the decisions of snapshots again, and compare them with the recorded ones."""
    found = list(_replay_all(files, group, every=every))
    write(found, output, lambda: draw_replays(found), lambda: [each["group"] for each in found])
    if any(each["match"] == "different" for each in found):
        raise typer.Exit(ExitCode.NO.number)


def read(path: Path) -> Capture:
    """The snapshot in a file; raises CommandError."""
    try:
        found = read_snapshot(path.read_bytes())
    except OSError as error:
        raise CommandError(ExitCode.USAGE, f"{path}: {error.strerror or error}") from error
    if isinstance(found, Malformed):
        raise CommandError(ExitCode.USAGE, f"{path} cannot be replayed: {found.problem}")
    return found


def _choose(path: Path, capture: Capture, named: str, *, every: bool) -> Sequence[GroupKey]:
    from extender.simulation.decide import list_waiting  # noqa: PLC0415 - other commands need none of the extender

    if named:
        return _find(path, capture, named)
    waiting = list_waiting(capture)
    if every:
        return waiting
    if capture.group is not None:
        return [capture.group]
    if len(waiting) == 1:
        return waiting
    names = ", ".join(map(str, waiting[:10])) or "none"
    said = f"{path} was made for no group: name one with --group, or take --all; those that waited: {names}"
    raise CommandError(ExitCode.USAGE, said)


def _find(path: Path, capture: Capture, named: str) -> Sequence[GroupKey]:
    """The groups of a name; raises CommandError."""
    wanted = read_name(named, "")
    owners = {group.key: {(each.kind.lower(), each.name) for each in group.owners} for group in capture.groups}
    known = owners.keys() | {each.group for each in capture.memories}
    found = [key for key in sorted(known) if _is_called(key, wanted, owners.get(key, set()))]
    if not found:
        raise CommandError(ExitCode.NOT_FOUND, f"{path}: group {named} is not in the snapshot; --all shows which are")
    if len({(key.namespace, bool(owners.get(key))) for key in found}) > 1:
        raise CommandError(ExitCode.USAGE, f"{named} may be several things: say {' or '.join(map(str, found))}")
    return found


def _is_called(key: GroupKey, wanted: Name, owners: Collection[tuple[str, str]]) -> bool:
    if wanted.namespace not in {"", key.namespace}:
        return False
    if not wanted.kind:
        return wanted.name in {key.name, key.encoded, *(name for _, name in owners)}
    is_own = wanted.name == key.name and wanted.kind == key.kind.lower().partition(".")[0].removeprefix("composite")
    return is_own or (wanted.kind, wanted.name) in owners


def _replay_all(files: Sequence[Path], named: str, *, every: bool) -> Iterator[dict[str, Any]]:
    """The decisions of all files; a person sees how far it is. Raises CommandError."""
    console = Console(stderr=True)
    many = len(files) > 1 or every
    with Progress(console=console, transient=True, disable=not (many and console.is_terminal)) as progress:
        task = progress.add_task("Deciding again", total=len(files))
        for path in files:
            for place, each in enumerate(_replay(path, named, every=every), 1):
                progress.update(task, description=f"Deciding again: {path.name}, {place} groups")
                yield each
            progress.advance(task)


def _replay(path: Path, named: str, *, every: bool) -> Iterator[dict[str, Any]]:
    """The decisions of one file; raises CommandError."""
    from extender.simulation.decide import compare, decide, recall  # noqa: PLC0415 - as above

    capture = read(path)
    for group in _choose(path, capture, named, every=every):
        recorded = recall(capture, group)
        try:
            found = decide(capture, group)
        except ValueError as error:
            raise CommandError(ExitCode.NOT_FOUND, f"{path}: {error}") from error
        yield {
            "file": str(path),
            "group": str(group),
            "match": compare(recorded, found).value,
            "recorded": None if recorded is None else _describe(recorded),
            "replayed": _describe(found),
        }


def _describe(decision: "Ruling") -> dict[str, Any]:
    return {
        "text": decision.describe(),
        "domain": decision.domain,
        "nodes": dict(decision.nodes),
        "victims": list(decision.victims),
    }


_AGAINST_RECORD = {
    "equal": "It is the recorded decision.",
    "other numbers": "The recorded decision had the same reason, with other numbers: room has changed since.",
    "different": "The recorded decision was another one.",
    "unrecorded": "No decision was recorded.",
}


def draw_replays(found: Sequence[dict[str, Any]]) -> Iterator[Part]:
    """The decisions for people."""
    if len(found) != 1:
        rows = [(each["file"], each["group"], each["match"], each["replayed"]["text"]) for each in found]
        yield make_table(("FILE", "GROUP", "AGAINST THE RECORD", "DECISION"), rows)
        return
    one = found[0]
    yield f"{one['group']}: {one['replayed']['text']}"
    if one["replayed"]["nodes"]:
        yield make_table(("MEMBER", "NODE"), one["replayed"]["nodes"].items())
    yield _AGAINST_RECORD[one["match"]]
    if one["match"] in {"different", "other numbers"}:
        yield f"Recorded: {one['recorded']['text']}"


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
        help="Manifests of Jobs, JobSets, LeaderWorkerSets, PodGroups, CompositePodGroups, Workloads and Pods. "
        "YAML or JSON; - for standard input.",
    ),
]
Groups = Annotated[
    list[str] | None,
    option("NAME", "A gang that exists: job/train, podgroup/train or train. May be repeated.", "--group"),
]
Drained = Annotated[list[str] | None, option("NODE", "Leave out this node. May be repeated.", "--drain")]
Added = Annotated[
    list[str] | None, option("NUMBER*NODE", "Add this many nodes like this one. May be repeated.", "--add")
]
Removed = Annotated[list[str] | None, option("NAME", "Leave out this gang and its pods. May be repeated.", "--remove")]


@reaching
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
    manifests = [document for path in files or () for document in _read(path)]
    if not manifests and not group:
        raise CommandError(ExitCode.USAGE, "name a file with manifests, or a group that exists with --group")
    where = find_namespace(target, namespace)
    asked = {"namespace": [where], "group": group, "drain": drain, "add": add, "remove": remove}
    answer = ask(target, lambda debug: _ask(debug, target, manifests, asked))
    write(answer, output, lambda: draw_whatif(answer), lambda: [each["source"] for each in answer["groups"]])
    if not answer["fits"]:
        raise typer.Exit(ExitCode.NO.number)


async def _ask(
    debug: DebugApi, target: Target, manifests: list[Any], asked: Mapping[str, list[str] | None]
) -> dict[str, Any]:
    """The extender's answer about what the API server lets in, and what it does not."""
    (where,) = asked["namespace"] or ("",)
    admitted = Admitted()
    if manifests:
        objects = [each for _, each in flatten(manifests)]
        admitted = await admit(target, objects, where)
    named = {option: await _resolve(debug, asked[option] or (), where) for option in ("group", "remove")}
    query = urlencode([(name, value) for name, values in {**asked, **named}.items() for value in values or ()])
    answer: dict[str, Any] = _NOTHING
    if asked["group"] or not admitted.refused or any(each is not None for each in admitted.objects):
        answer = await debug.post(f"whatif?{query}", admitted.objects)
    return {
        **answer,
        "fits": answer["fits"] and not admitted.refused,
        "refused": [*admitted.refused, *answer.get("refused", ())],
        "unchecked": admitted.unchecked,
    }


async def _resolve(debug: DebugApi, names: Sequence[str], namespace: str) -> list[str]:
    """The groups of these names, as ``/debug`` takes them."""
    found = [each for name in names for each in await find_groups(debug, read_name(name, namespace))]
    return [f"{each['namespace']}/{each['name']}" for each in found]


_NOTHING = {
    "fits": True,
    "groups": [],
    "skipped": [],
    "changes": {"drained": [], "displaced": 0, "added": [], "removed": []},
}
"""The answer about nothing."""


def _read(path: Path) -> list[Any]:
    """The documents of a file; raises CommandError."""
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text()
        return [document for document in read_documents(text) if document is not None]
    except OSError as error:
        raise CommandError(ExitCode.USAGE, f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise CommandError(ExitCode.USAGE, f"{path}: {error}") from error


_SAID = {"Fits": "yes", "FitsAfterEvictions": "after evictions", "DoesNotFit": "no"}


def draw_whatif(answer: dict[str, Any]) -> Iterator[Part]:
    """The answer for people."""
    rows = [
        (each["source"], each["priority"], _SAID[each["outcome"]], each["domain"], each["message"])
        for each in answer["groups"]
    ]
    yield make_table(("GANG", "#PRIORITY", "FITS", "DOMAIN", "WHAT IS SAID"), rows)
    for each in answer["groups"]:
        if each["nodes"]:
            yield make_table(("NODE", "#MEMBERS"), each["nodes"].items(), title=each["source"])
        victims = each["preemption"]["victims"] if each["preemption"] else []
        if victims:
            yield make_table(("WOULD BE EVICTED",), [(victim,) for victim in victims], title=each["source"])
    for refused in answer["refused"]:
        yield f"Not answered for: {refused}."
    for unchecked in answer["unchecked"]:
        yield f"Not checked: {unchecked}."
    if skipped := answer.get("skipped"):  # an older extender refuses them
        yield f"Left out, because they make no pods: {', '.join(skipped)}."
    if answer["changes"]["displaced"]:
        displaced = answer["changes"]["displaced"]
        yield f"{displaced} pods of the drained nodes would need another place. None was looked for."
