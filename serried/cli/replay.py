"""``serried replay``: decisions made again from snapshots, with the code of this version, and without a cluster."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, RenderableType
from rich.progress import Progress

from serried.cli import options
from serried.cli.exits import CommandError, ExitCode
from serried.cli.output import OutputFormat, make_table, write
from serried.decode.malformed import Malformed
from serried.decode.snapshots import read_snapshot
from serried.model.capture import Capture
from serried.model.group import GroupKey, decode_group_key

if TYPE_CHECKING:
    from extender.replay.deciding import Ruling

EXAMPLES = """
Download the planner's input for team/train, and decide again:
  curl -o train.json 'http://localhost:8912/debug/snapshot?group=team/train'
  serried replay train.json

Decide again about all groups that waited, from many files:
  serried replay --all reports/*.json.gz

Check whether this version decides differently. Then the exit code is 1:
  serried replay train.json > /dev/null || echo 'another decision'
"""

Files = Annotated[list[Path], typer.Argument(metavar="FILE...", help="Files from /debug/snapshot, compressed or not.")]
Group = Annotated[
    str,
    typer.Option(
        metavar="NAMESPACE/NAME",
        show_default=False,
        help="The group, as /debug/groups names it. Default: the one in the file.",
    ),
]
All = Annotated[bool, typer.Option("--all", help="All groups that waited.")]


def replay(
    files: Files,
    group: Group = "",
    *,
    every: All = False,
    output: options.Output = OutputFormat.TABLE,
) -> None:
    """Make the decisions of snapshots again, and compare them with the recorded ones."""
    found = list(_replay_all(files, group, every=every))
    write(found, output, lambda: draw_replays(found))
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
    from extender.replay.deciding import list_waiting  # noqa: PLC0415 - other commands need none of the extender

    if named:
        namespace, slash, name = named.partition("/")
        if not (namespace and slash and name):
            raise CommandError(ExitCode.USAGE, f"--group {named!r}: NAMESPACE/NAME is needed")
        return [decode_group_key(namespace, name)]
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
    from extender.replay.deciding import compare, decide, recall  # noqa: PLC0415 - as above

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


_SAID = {
    "equal": "It is the recorded decision.",
    "other numbers": "The recorded decision had the same reason, with other numbers: room has changed since.",
    "different": "The recorded decision was another one.",
    "unrecorded": "No decision was recorded.",
}


def draw_replays(found: Sequence[dict[str, Any]]) -> Iterator[RenderableType]:
    """The decisions for people."""
    if len(found) != 1:
        rows = [(each["file"], each["group"], each["match"], each["replayed"]["text"]) for each in found]
        yield make_table(("FILE", "GROUP", "AGAINST THE RECORD", "DECISION"), rows)
        return
    one = found[0]
    yield f"{one['group']}: {one['replayed']['text']}"
    if one["replayed"]["nodes"]:
        yield make_table(("MEMBER", "NODE"), one["replayed"]["nodes"].items())
    yield _SAID[one["match"]]
    if one["match"] in {"different", "other numbers"}:
        yield f"Recorded: {one['recorded']['text']}"
