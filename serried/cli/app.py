"""All commands under one name, and as a plugin of kubectl. A command is a function, and a line in `COMMANDS`."""

import os
import shlex
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from serried import __version__
from serried.cli.check.command import CHECK_EXAMPLES, check
from serried.cli.explain import EXPLAIN_EXAMPLES, explain
from serried.cli.lists import DECISIONS_EXAMPLES, QUEUE_EXAMPLES, TOP_EXAMPLES, show_decisions, show_queue, show_top
from serried.cli.output import CommandError, ExitCode
from serried.cli.whatif import REPLAY_EXAMPLES, WHATIF_EXAMPLES, ask_whatif, replay


@dataclass(frozen=True, slots=True)
class Command:
    """A command of ``serried``."""

    name: str

    run: Callable[..., None]
    """Its signature is the command's arguments and options, its docstring the first paragraph of ``--help``."""

    examples: str
    """What ``--help`` ends with."""


COMMANDS = (
    Command("explain", explain, EXPLAIN_EXAMPLES),
    Command("queue", show_queue, QUEUE_EXAMPLES),
    Command("top", show_top, TOP_EXAMPLES),
    Command("decisions", show_decisions, DECISIONS_EXAMPLES),
    Command("check", check, CHECK_EXAMPLES),
    Command("whatif", ask_whatif, WHATIF_EXAMPLES),
    Command("replay", replay, REPLAY_EXAMPLES),
)
"""In the order of ``serried --help``."""

_PROCESSES = {
    "extender": "Run the extender, which answers kube-scheduler's calls.",
    "controller": "Run the controller, which creates Workloads and PodGroups for gangs.",
}

_REPORT = f"This is a mistake in Serried {__version__}: report it, with the lines above and the command."

_EXIT_CODES = "Exit codes: " + "; ".join(f"{code.number} {code.meaning}" for code in ExitCode) + "."


def make_app(name: str) -> typer.Typer:
    """The application as it is called by ``name``."""
    app = typer.Typer(
        name=name,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    app.callback(epilog=_EXIT_CODES)(_describe)
    for command in COMMANDS:
        app.command(command.name, epilog=_quote(command.examples))(command.run)
    for process, purpose in _PROCESSES.items():
        # For the list of commands only: these are started without typer.
        app.command(process, help=purpose, add_help_option=False)(_never)
    return app


def run(argv: Sequence[str], name: str) -> int:
    """Run one command; returns the exit code."""
    try:
        make_app(name)(args=list(argv), prog_name=name)
    except CommandError as error:
        sys.stderr.write(f"{name}: {error}\n")
        return error.code.number
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except Exception as error:  # noqa: BLE001 - whatever it is, it is no answer that a script may take for a no
        traceback.print_exc()
        sys.stderr.write(f"{name}: {type(error).__name__}. {_REPORT}\n")
        return ExitCode.BROKEN.number
    return 0


def _show_version(value: bool) -> None:  # noqa: FBT001 - typer calls it
    if value:
        typer.echo(f"serried {__version__}")
        raise typer.Exit


def _describe(
    *,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version and exit.")
    ] = False,
) -> None:
    """Show why gangs wait and which gangs are before them, and check the installation."""


def _never() -> None:
    raise AssertionError("serried.cli.main starts processes itself")


def _quote(examples: str) -> str:
    """Each paragraph is kept as it stands."""
    return "\n\n".join("\b\n" + paragraph for paragraph in ("Examples:\n\n" + examples.strip()).split("\n\n"))


_NO_FILES = ":4"
"""What kubectl reads behind the proposals: that file names are none."""


def main(argv: Sequence[str] | None = None) -> int:
    """``kubectl-serried``, which kubectl runs for ``kubectl serried``; returns the exit code."""
    return run(list(sys.argv[1:] if argv is None else argv), "kubectl serried")


def complete(argv: Sequence[str] | None = None) -> int:
    """``kubectl_complete-serried``: proposals for the last of the words, one a line, as kubectl asks for them."""
    words = list(sys.argv[1:] if argv is None else argv) or [""]
    os.environ["_SERRIED_COMPLETE"] = "complete_bash"
    os.environ["COMP_WORDS"] = shlex.join(["serried", *words])
    os.environ["COMP_CWORD"] = str(len(words))
    run([], "serried")
    sys.stdout.write(f"{_NO_FILES}\n")
    return 0
