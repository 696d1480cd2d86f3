"""``serried decisions``: what was decided last, of all groups or of one."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer
from rich.console import RenderableType

from serried.cli import options
from serried.cli.access import HOME, Target, ask
from serried.cli.output import OutputFormat, make_table, write

EXAMPLES = """
Show the last 20 decisions:
  serried decisions --limit 20

Print all decisions about one gang, oldest first:
  serried decisions --group team/train -o json | jq -r 'reverse | .[] | .at + " " + .text'
"""

Group = Annotated[
    str, typer.Option(metavar="NAMESPACE/NAME", show_default=False, help="Show decisions about this group only.")
]


def show_decisions(
    group: Group = "",
    limit: options.Limit = 50,
    output: options.Output = OutputFormat.TABLE,
    server: options.Server = "",
    kubeconfig: options.Kubeconfig = "",
    context: options.Context = "",
    home: options.Home = HOME,
    token_file: options.TokenFile = "",
    authority: options.Authority = "",
) -> None:
    """Show the last decisions, newest first."""
    target = Target(server, kubeconfig, context, home, token_file=token_file, authority=authority)
    asked = {"limit": str(limit), "group": group}
    decisions = ask(target, lambda debug: debug.get("decisions", asked))
    write(decisions, output, lambda: draw_decisions(decisions))


def draw_decisions(decisions: Sequence[dict[str, Any]]) -> Iterator[RenderableType]:
    """The decisions for people."""
    if not decisions:
        yield "Nothing has been decided."
        return
    rows = [(each["at"], each["group"], each["text"]) for each in decisions]
    yield make_table(("AT", "GROUP", "WHAT WAS SAID"), rows)
