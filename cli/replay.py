"""``serried replay``: repeats recorded decisions from snapshots, with this version's code and without a cluster."""

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from cli.names import Name, read_name
from cli.options import Output
from cli.output import CommandError, ExitCode, OutputFormat, Part, make_table, option, write
from extender.look.snapshot import Capture, read_snapshot
from serried.api.names import GroupKey, Malformed

if TYPE_CHECKING:
    from extender.look.decide import Decision

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
    """Repeat the decisions of snapshots, and compare them with the recorded ones."""
    found = list(_replay_all(files, group, every=every))
    write(found, output, lambda: draw_replays(found), lambda: [each["group"] for each in found])
    if any(each["match"] == "different" for each in found):
        raise typer.Exit(ExitCode.NO.number)


def read_capture(path: Path) -> Capture:
    """Read the snapshot in a file that was downloaded from ``/debug/snapshot``.

    Raises CommandError if the file cannot be read or holds no snapshot.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CommandError(ExitCode.USAGE, f"{path}: {error.strerror or error}") from error
    found = read_snapshot(content)
    if not isinstance(found, Malformed):
        return found
    if refusal := _read_server_error(content):
        said = f"{path} holds a server's refusal instead of a snapshot: {refusal}"
        fix = "download the snapshot with curl -f, which does not save error messages"
        raise CommandError(ExitCode.USAGE, f"{said}; {fix}")
    raise CommandError(ExitCode.USAGE, f"{path} cannot be replayed: {found.problem}")


def _read_server_error(content: bytes) -> str:
    """Return the error message if the file holds a server's error instead of a snapshot; else "".

    For instance ``curl`` without ``-f`` saves such an error.
    """
    if content.lstrip()[:1] == b"<":
        return "a page in HTML"
    try:
        document = orjson.loads(content)
    except ValueError:
        return ""
    if not isinstance(document, dict) or "version" in document:
        return ""
    said = document.get("detail") or (document.get("message") if document.get("kind") == "Status" else "")
    return str(said or "")


def _choose_groups(path: Path, capture: Capture, named: str, *, every: bool) -> Sequence[GroupKey]:
    from extender.look.decide import list_waiting  # noqa: PLC0415 - other commands need none of the extender

    if named:
        return _find_groups(path, capture, named)
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


def _find_groups(path: Path, capture: Capture, named: str) -> Sequence[GroupKey]:
    """Return the groups in the snapshot that ``named`` stands for, as the user typed it.

    ``path`` is for error messages. Raises CommandError if there are none, or if the name may stand for several objects.
    """
    wanted = read_name(named, "")
    owners = {group.key: {(each.kind.lower(), each.name) for each in group.owners} for group in capture.groups}
    known = owners.keys() | {each.group for each in capture.memories}
    found = [key for key in sorted(known) if _has_name(key, wanted, owners.get(key, set()))]
    if not found:
        raise CommandError(ExitCode.NOT_FOUND, f"{path}: group {named} is not in the snapshot; --all shows its groups")
    if len({(key.namespace, bool(owners.get(key))) for key in found}) > 1:
        raise CommandError(ExitCode.USAGE, f"{named} is ambiguous: use {' or '.join(map(str, found))}")
    return found


def _has_name(key: GroupKey, wanted: Name, owners: Collection[tuple[str, str]]) -> bool:
    if wanted.namespace not in {"", key.namespace}:
        return False
    if not wanted.kind:
        return wanted.name in {key.name, key.encoded, *(name for _, name in owners)}
    is_own = wanted.name == key.name and wanted.kind == key.kind.lower().partition(".")[0].removeprefix("composite")
    return is_own or (wanted.kind, wanted.name) in owners


def _replay_all(files: Sequence[Path], named: str, *, every: bool) -> Iterator[dict[str, Any]]:
    """Yield the repeated decisions of all files, while a terminal shows a progress bar.

    ``named`` selects one group of each file, ``every`` all groups that waited. Raises CommandError for an invalid file.
    """
    from rich.console import Console  # noqa: PLC0415 - where nothing takes long nobody needs it
    from rich.progress import Progress  # noqa: PLC0415 - as above

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
    """Yield the repeated decisions of one file, each with the recorded one and how they compare.

    ``named`` selects one group, ``every`` all groups that waited. If neither is given, the group is that for which the
    snapshot was made, or the only one that waited. Raises CommandError if the file holds no snapshot or not that group,
    or if it is unclear which group is meant.
    """
    from extender.look.decide import compare, decide, find_recorded  # noqa: PLC0415 - as above

    capture = read_capture(path)
    for group in _choose_groups(path, capture, named, every=every):
        recorded = find_recorded(capture, group)
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


def _describe(decision: "Decision") -> dict[str, Any]:
    return {
        "text": decision.describe(),
        "domain": decision.domain,
        "nodes": dict(decision.nodes),
        "victims": list(decision.victims),
    }


_AGAINST_RECORD = {
    "equal": "The decision is the recorded one.",
    "other numbers": "The recorded decision had the same reason, but other numbers: free resources have changed since.",
    "different": "The recorded decision was another one.",
    "unrecorded": "No decision was recorded.",
}


def draw_replays(found: Sequence[dict[str, Any]]) -> Iterator[Part]:
    """Yield a table with one row for each decision.

    For a single decision, yield its nodes and the recorded one instead.
    """
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
