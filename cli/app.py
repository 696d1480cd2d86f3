"""All commands as one typer application, used as ``serried`` and as the plugin ``kubectl serried``.

`COMMANDS` lists the commands, `run` runs one.
"""

import os
import re
import shlex
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from cli import explain_missing
from cli.output import CommandError, ExitCode, find_similar
from serried import __version__

Loaded = tuple[Callable[..., None], str]
"""An imported command: its function, and the text with examples at the end of ``--help``.

The function's signature gives the arguments and options, its docstring the first paragraph of ``--help``.
"""


@dataclass(frozen=True, slots=True)
class Command:
    """One command of ``serried``, known by name and description before its module is imported."""

    name: str

    load: Callable[[], Loaded]
    """Imports the command's module and returns its function and examples.

    Called for the command that is to run only.
    """

    about: str
    """The command's description in the list of ``serried --help``. It must fit into a line of 80 characters."""


def _load_explain() -> Loaded:
    from cli.explain import EXPLAIN_EXAMPLES, explain  # noqa: PLC0415 - see Command.load

    return explain, EXPLAIN_EXAMPLES


def _load_gangs() -> Loaded:
    from cli.gangs import GANGS_EXAMPLES, show_gangs  # noqa: PLC0415 - see Command.load

    return show_gangs, GANGS_EXAMPLES


def _load_queue() -> Loaded:
    from cli.lists import QUEUE_EXAMPLES, show_queue  # noqa: PLC0415 - see Command.load

    return show_queue, QUEUE_EXAMPLES


def _load_top() -> Loaded:
    from cli.lists import TOP_EXAMPLES, show_top  # noqa: PLC0415 - see Command.load

    return show_top, TOP_EXAMPLES


def _load_decisions() -> Loaded:
    from cli.lists import DECISIONS_EXAMPLES, show_decisions  # noqa: PLC0415 - see Command.load

    return show_decisions, DECISIONS_EXAMPLES


def _load_page() -> Loaded:
    from cli.page import PAGE_EXAMPLES, show_page  # noqa: PLC0415 - see Command.load

    return show_page, PAGE_EXAMPLES


def _load_check() -> Loaded:
    from cli.check.command import CHECK_EXAMPLES, check  # noqa: PLC0415 - see Command.load

    return check, CHECK_EXAMPLES


def _load_install() -> Loaded:
    from cli.install import INSTALL_EXAMPLES, install  # noqa: PLC0415 - see Command.load

    return install, INSTALL_EXAMPLES


def _load_uninstall() -> Loaded:
    from cli.uninstall import UNINSTALL_EXAMPLES, uninstall  # noqa: PLC0415 - see Command.load

    return uninstall, UNINSTALL_EXAMPLES


def _load_whatif() -> Loaded:
    from cli.whatif import WHATIF_EXAMPLES, ask_whatif  # noqa: PLC0415 - see Command.load

    return ask_whatif, WHATIF_EXAMPLES


def _load_version() -> Loaded:
    from cli.version import VERSION_EXAMPLES, show_version  # noqa: PLC0415 - see Command.load

    return show_version, VERSION_EXAMPLES


def _load_replay() -> Loaded:
    if missing := explain_missing("replay"):
        raise CommandError(ExitCode.USAGE, missing)
    from cli.replay import REPLAY_EXAMPLES, replay  # noqa: PLC0415 - see Command.load

    return replay, REPLAY_EXAMPLES


COMMANDS = (
    Command("explain", _load_explain, "Show why a gang waits, and what would make it fit."),
    Command("gangs", _load_gangs, "Show all gangs, and what each waits for."),
    Command("queue", _load_queue, "Show the gangs that wait for resources, in their order."),
    Command("top", _load_top, "Show how full racks, zones or other domains are."),
    Command("decisions", _load_decisions, "Show the last decisions."),
    Command("page", _load_page, "Open the page with the map of nodes in the browser."),
    Command("install", _load_install, "Install Serried, or upgrade it, and check the cluster."),
    Command("check", _load_check, "Find mistakes in an installation, and show how to fix them."),
    Command("uninstall", _load_uninstall, "Remove Serried, and its changes to pods and groups."),
    Command("whatif", _load_whatif, "Show whether gangs would fit, where, and which pods end."),
    Command("replay", _load_replay, "Repeat the decisions of snapshots, without a cluster."),
    Command("version", _load_version, "Show the versions of the command and of what runs."),
)
"""All commands except ``extender`` and ``controller``, in the order of ``serried --help``."""

_PROCESSES = {
    "extender": "Run the extender, which answers kube-scheduler's calls.",
    "controller": "Run the controller, which creates the PodGroups of gangs.",
}

_REPORT = f"This is a defect in Serried {__version__}: report it, with the lines above and the command."

_EXIT_CODES = "Exit codes: " + "; ".join(f"{code.number} {code.meaning}" for code in ExitCode) + "."


_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""typer's base class of the exceptions for an invalid command line.

typer exports only subclasses such as BadParameter, so it is found as the base of one.
"""

_CHOICE = re.compile(r"'([^']*)' is not one of (.*[^.])\.?$")

_UNSUPPORTED_FORMATS = ("jsonpath", "custom-columns", "go-template")
"""Prefixes of ``-o`` formats that kubectl has and these commands lack. The error message then proposes JSON and jq."""

_BROKEN_PIPE_EXIT_CODE = 141
"""The exit code after standard output was closed, for instance by ``head``: 128 + SIGPIPE, as of kubectl."""


def make_app(name: str, word: str) -> typer.Typer:
    """Return the typer application. ``name`` stands in its help: ``serried`` or ``kubectl serried``.

    Only the command ``word`` is imported and can run. The others just stand in the list of commands.
    """
    app = typer.Typer(
        name=name,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    app.callback(epilog=_EXIT_CODES)(_describe)
    for command in COMMANDS:
        if command.name == word:
            function, examples = command.load()
            app.command(word, epilog=_keep_line_breaks(examples), short_help=command.about)(function)
        else:
            app.command(command.name, short_help=command.about)(_never)
    for process, purpose in _PROCESSES.items():
        # Only for the list of commands: processes are started without typer.
        app.command(process, short_help=purpose, add_help_option=False)(_never)
    return app


def _find_command(argv: Sequence[str]) -> str:
    """Return the name of the command to run, "" for none: the first word of ``argv`` that does not begin with ``-``.

    While a shell completes a line, ``argv`` is empty. Then take the word from the line in the environment, whose first
    word is the program.
    """
    line = os.environ.get("_TYPER_COMPLETE_ARGS") or os.environ.get("COMP_WORDS", "")
    words = line.split()[1:] if "_SERRIED_COMPLETE" in os.environ else argv
    return next((word for word in words if not word.startswith("-")), "")


def run(argv: Sequence[str], name: str) -> int:
    """Run the command that ``argv`` names and return the exit code.

    ``name`` is what the user typed for the program, ``serried`` or ``kubectl serried``, for help and error messages.
    """
    try:
        code = _run(argv, name)
        sys.stdout.flush()
    except BrokenPipeError:
        # Otherwise the interpreter would write the rest of the buffer when it ends, and fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE_EXIT_CODE
    return code


def _run(argv: Sequence[str], name: str) -> int:
    try:
        app = make_app(name, _find_command(argv))
        ended = app(args=list(argv), prog_name=name, standalone_mode=False)
    except CommandError as error:
        sys.stderr.write(f"{name}: {error}\n")
        return error.code.number
    except _UsageError as error:
        sys.stderr.write(_describe_usage_error(error, name))
        return ExitCode.USAGE.number
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # typer exits with 1 then, which means no here
            raise end.__context__ from end
        return end.code if isinstance(end.code, int) else 1
    except Exception as error:  # noqa: BLE001 - whatever it is, it is no answer that a script may take for a no
        traceback.print_exc()
        sys.stderr.write(f"{name}: {type(error).__name__}. {_REPORT}\n")
        return ExitCode.BROKEN.number
    return ended if isinstance(ended, int) else 0


def _describe_usage_error(error: Any, name: str) -> str:
    """Return the text to print for typer's exception about an invalid command line.

    It says what is wrong, proposes a similar word if there is one, and ends with the command that prints the help. For
    an empty command line, it is the help itself.
    """
    said = error.format_message().replace("Value error, ", "")
    if said.startswith("Usage:"):  # the command line was empty
        return f"{said}\n"
    if found := _CHOICE.search(said):
        near = find_similar(found[1], re.findall(r"'([^']*)'", found[2]))
        if found[1].startswith(_UNSUPPORTED_FORMATS):
            said += " For single fields use -o json and jq."
        else:
            said += f" Did you mean {near}?" if near else ""
    said = re.sub(r" \(Possible options: (.*)\)", r". Did you mean \1?", said)
    path = error.ctx.command_path if error.ctx is not None else name
    return f"{path}: {said}\nRun '{path} --help' for its options.\n"


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
    raise AssertionError("cli.main starts processes itself")


def _keep_line_breaks(examples: str) -> str:
    """Return the examples with the marks that make typer print their lines as they are, instead of joining them."""
    return "\n\n".join("\b\n" + paragraph for paragraph in ("Examples:\n\n" + examples.strip()).split("\n\n"))


_NO_FILE_NAMES = ":4"
"""The last line of the output for kubectl, which tells kubectl's shell completion not to propose file names."""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry of ``kubectl-serried``, which kubectl runs for ``kubectl serried``. Return the exit code."""
    return run(list(sys.argv[1:] if argv is None else argv), "kubectl serried")


def complete(argv: Sequence[str] | None = None) -> int:
    """Entry of ``kubectl_complete-serried``, which kubectl runs when the user presses Tab after ``kubectl serried``.

    ``argv`` has the words typed so far, the incomplete one last; None to take the process's command line. Print the
    proposals for the last word, one a line. Return the exit code.
    """
    words = list(sys.argv[1:] if argv is None else argv) or [""]
    os.environ["_SERRIED_COMPLETE"] = "complete_bash"
    os.environ["COMP_WORDS"] = shlex.join(["serried", *words])
    os.environ["COMP_CWORD"] = str(len(words))
    run([], "serried")
    sys.stdout.write(f"{_NO_FILE_NAMES}\n")
    return 0
