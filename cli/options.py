"""The options that several commands share."""

from typing import Annotated

import typer

from cli.complete import complete_namespaces
from cli.output import OutputFormat, option

Namespace = Annotated[
    str,
    option(
        "NAME",
        "The namespace. Default: that of the context.",
        "--namespace",
        "-n",
        autocompletion=complete_namespaces,
    ),
]
AllNamespaces = Annotated[bool, typer.Option("--all-namespaces", "-A", help="Show all namespaces.")]
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Keep running, and print each changed row.")]
Limit = Annotated[int, typer.Option(min=0, metavar="NUMBER", help="The number of rows.")]
Output = Annotated[
    OutputFormat,
    typer.Option("--output", "-o", help="A table, a wider one, names alone, or all as JSON or YAML."),
]
