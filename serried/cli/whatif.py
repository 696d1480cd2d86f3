"""``serried whatif``: would these gangs fit, where, and who would have to go; nothing is created, nothing changes."""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

import typer
from rich.console import RenderableType

from extender.whatif.documents import flatten
from serried.cli import options
from serried.cli.access import HOME, DebugApi, Target, ask
from serried.cli.admission import Admitted, admit
from serried.cli.exits import CommandError, ExitCode
from serried.cli.manifests import read_manifests
from serried.cli.output import OutputFormat, make_table, write

EXAMPLES = """
Would this Job fit now? If not, the exit code is 1:
  serried whatif job.yaml

Would it fit with four more nodes like node-7, and without the gang team/other?
  serried whatif job.yaml --add 4*node-7 --remove team/other

Would a waiting gang fit if node-3 were drained?
  serried whatif --group team/train --drain node-3

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
    typer.Option("--group", metavar="NAMESPACE/NAME", show_default=False, help="An existing group. May be repeated."),
]
Drained = Annotated[
    list[str] | None,
    typer.Option("--drain", metavar="NODE", show_default=False, help="Leave out this node. May be repeated."),
]
Added = Annotated[
    list[str] | None,
    typer.Option(
        "--add",
        metavar="NUMBER*NODE",
        show_default=False,
        help="Add this many nodes like this one. May be repeated.",
    ),
]
Removed = Annotated[
    list[str] | None,
    typer.Option(
        "--remove",
        metavar="NAMESPACE/NAME",
        show_default=False,
        help="Leave out this group and its pods. May be repeated.",
    ),
]
Namespace = Annotated[
    str, typer.Option("--namespace", "-n", metavar="NAME", help="The namespace of manifests without one.")
]


def ask_whatif(
    files: Files = None,
    group: Groups = None,
    drain: Drained = None,
    add: Added = None,
    remove: Removed = None,
    namespace: Namespace = "default",
    output: options.Output = OutputFormat.TABLE,
    server: options.Server = "",
    kubeconfig: options.Kubeconfig = "",
    context: options.Context = "",
    home: options.Home = HOME,
    token_file: options.TokenFile = "",
    authority: options.Authority = "",
) -> None:
    """Show whether gangs would fit, where, and which pods would be evicted. Nothing is created or changed."""
    manifests = [document for path in files or () for document in _read(path)]
    if not manifests and not group:
        raise CommandError(ExitCode.USAGE, "name a file with manifests, or a group that exists with --group")
    asked = {"namespace": [namespace], "group": group, "drain": drain, "add": add, "remove": remove}
    target = Target(server, kubeconfig, context, home, token_file=token_file, authority=authority)
    answer = ask(target, lambda debug: _ask(debug, target, manifests, asked))
    write(answer, output, lambda: draw_whatif(answer))
    if not answer["fits"]:
        raise typer.Exit(ExitCode.NO.number)


async def _ask(
    debug: DebugApi, target: Target, manifests: list[Any], asked: Mapping[str, list[str] | None]
) -> dict[str, Any]:
    """The extender's answer about what the API server lets in, and what it does not."""
    admitted = Admitted()
    if manifests:
        objects = [each for _, each in flatten(manifests)]
        admitted = await admit(target, objects, str((asked["namespace"] or [""])[0]))
    query = urlencode([(name, value) for name, values in asked.items() for value in values or ()])
    answer: dict[str, Any] = _NOTHING
    if asked["group"] or not admitted.refused or any(each is not None for each in admitted.objects):
        answer = await debug.post(f"whatif?{query}", admitted.objects)
    return {
        **answer,
        "fits": answer["fits"] and not admitted.refused,
        "refused": [*admitted.refused, *answer.get("refused", ())],
        "unchecked": admitted.unchecked,
    }


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
        return read_manifests(text)
    except OSError as error:
        raise CommandError(ExitCode.USAGE, f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise CommandError(ExitCode.USAGE, f"{path} is no YAML: {error}") from error


_SAID = {"Fits": "yes", "FitsAfterEvictions": "after evictions", "DoesNotFit": "no"}


def draw_whatif(answer: dict[str, Any]) -> Iterator[RenderableType]:
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
