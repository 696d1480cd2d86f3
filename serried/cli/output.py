"""How commands answer: a table for people, JSON or YAML for programs, and an exit code; and the options for that."""

import sys
from collections.abc import Callable, Iterable, Sequence
from enum import Enum, StrEnum
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text


class ExitCode(Enum):
    """The exit codes of all commands, each with what it means."""

    DONE = (0, "success")
    NO = (1, "the answer is no: there is a mistake, or a gang does not fit")
    USAGE = (2, "the command line, or a file in it, is invalid")
    UNREACHABLE = (3, "the extender or the API server does not answer")
    NOT_FOUND = (4, "the object does not exist")
    BROKEN = (5, "the command failed by a mistake in Serried")

    def __init__(self, number: int, meaning: str) -> None:
        self.number = number
        self.meaning = meaning


class CommandError(Exception):
    """Ends the command; the message is one sentence for a person, and says what to do."""

    def __init__(self, code: ExitCode, message: str) -> None:
        super().__init__(message)
        self.code = code


_WIDTH_OF_FILES = 1000
"""Wide enough that nothing is cut or wrapped where no terminal says how wide it is."""


class OutputFormat(StrEnum):
    """The value of ``--output``."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


def write(document: Any, output: OutputFormat, draw: Callable[[], Iterable[RenderableType]]) -> None:
    """Write ``document`` to standard output; for people what ``draw`` yields, one below the other."""
    match output:
        case OutputFormat.JSON:
            sys.stdout.write(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode() + "\n")
        case OutputFormat.YAML:
            import yaml  # noqa: PLC0415 - most calls need none

            # By way of JSON, for YAML knows no enumerations.
            plain = orjson.loads(orjson.dumps(document))
            sys.stdout.write(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=120))
        case OutputFormat.TABLE:
            width = None if sys.stdout.isatty() else _WIDTH_OF_FILES
            # Sentences, names and titles are text, whatever brackets and colons they hold.
            console = Console(highlight=False, markup=False, emoji=False, soft_wrap=False, width=width)
            for place, part in enumerate(draw()):
                if place and isinstance(part, Table):
                    console.print()
                console.print(part)


def note(sentence: str) -> None:
    """Tell a person something that is not part of the answer."""
    sys.stderr.write(f"serried: {sentence}\n")


def make_table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> Table:
    """A table without frames; columns whose name begins with ``#`` hold numbers, and lose the sign."""
    table = Table(box=None, padding=(0, 3, 0, 0), title=title or None, title_justify="left", title_style="bold")
    for column in columns:
        table.add_column(column.removeprefix("#"), justify="right" if column.startswith("#") else "left")
    for row in rows:
        # Names and reasons are text, whatever brackets they hold.
        table.add_row(*(Text(str(cell)) for cell in row))
    return table


def option(metavar: str, about: str, *names: str, **more: Any) -> Any:
    """An option, for Annotated, whose default is not shown. Without ``names`` it is called as its parameter is."""
    return typer.Option(*names, metavar=metavar, show_default=False, help=about, **more)


Namespace = Annotated[str, option("NAME", "The namespace. Default: that of the context.", "--namespace", "-n")]
OneNamespace = Annotated[str, option("NAME", "Show this namespace only.", "--namespace", "-n")]
Limit = Annotated[int, typer.Option(min=0, metavar="NUMBER", help="The number of rows.")]
Output = Annotated[
    OutputFormat, typer.Option("--output", "-o", help="A table for people, or JSON or YAML for programs.")
]
