"""``serried whatif``: whether gangs would fit, where, and who would have to go; nothing is created or changed."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from extender.simulation.manifests import flatten, read_documents
from serried.cli.access import DebugApi, ask
from serried.cli.admission import Admitted, admit
from serried.cli.names import find_groups, read_name
from serried.cli.output import CommandError, ExitCode, Namespace, Output, OutputFormat, Part, make_table, option, write
from serried.cli.target import Target, find_namespace, reaching

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
