"""``serried top``: how full the racks are, or the domains of any other topology key."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer
from rich.console import RenderableType

from serried.cli import options
from serried.cli.access import HOME, Target, ask
from serried.cli.output import OutputFormat, make_table, write

EXAMPLES = """
Show the domains of the key that most gangs use:
  serried top

Show the zones, and print the one with the most free CPU:
  serried top --key topology.kubernetes.io/zone
  serried top -o json | jq -r '.domains | max_by(.resources.cpu | .allocatable - .used).domain'
"""

_ALWAYS_SHOWN = ("cpu", "memory")
_NEVER_SHOWN = ("pods", "ephemeral-storage", "hugepages-")
_MOST_GROUPS = 5
"""How many gangs of a domain are named to a person."""

_BYTES_PER_GIB = 2**30

Key = Annotated[
    str,
    typer.Option(metavar="LABEL", show_default=False, help="The topology key. Default: the one that most gangs use."),
]


def show_top(
    key: Key = "",
    output: options.Output = OutputFormat.TABLE,
    server: options.Server = "",
    kubeconfig: options.Kubeconfig = "",
    context: options.Context = "",
    home: options.Home = HOME,
    token_file: options.TokenFile = "",
    authority: options.Authority = "",
) -> None:
    """Show the domains of a topology key: their nodes, used and free resources, and gangs.

    What is used counts what bound pods ask for, and what is reserved for gangs that are about to start.
    """
    target = Target(server, kubeconfig, context, home, token_file=token_file, authority=authority)
    asked = {"key": key} if key else None
    found = ask(target, lambda debug: debug.get("domains", asked))
    write(found, output, lambda: draw_domains(found))


def draw_domains(found: Mapping[str, Any]) -> Iterator[RenderableType]:
    """The domains for people."""
    domains = found["domains"]
    if not domains:
        yield f"No node has the label {found['key']}: --key names another."
        return
    names = _list_resources(domains)
    columns = ("DOMAIN", "#NODES", "#CORDONED", *(f"#{name.upper()} FREE" for name in names), "GANGS")
    rows = [
        (
            each["domain"],
            each["nodes"],
            each["unschedulable"],
            *(_show_share(name, each["resources"].get(name)) for name in names),
            _name_groups(each["groups"]),
        )
        for each in domains
    ]
    yield make_table(columns, rows, title=found["key"])
    if found["unlabelled"]:
        yield f"{found['unlabelled']} nodes have no such label: no gang that asks for this key gets them."


def _list_resources(domains: list[dict[str, Any]]) -> list[str]:
    names = {name for each in domains for name, share in each["resources"].items() if share["allocatable"]}
    others = sorted(name for name in names - {*_ALWAYS_SHOWN} if not name.startswith(_NEVER_SHOWN))
    return [*_ALWAYS_SHOWN, *others]


def _show_share(name: str, share: Mapping[str, int] | None) -> str:
    if share is None:
        return ""
    unit = {"cpu": 1000, "memory": _BYTES_PER_GIB}.get(name, 1)
    free = (share["allocatable"] - share["used"]) / unit
    suffix = "Gi" if name == "memory" else ""
    return f"{free:.4g}{suffix} of {share['allocatable'] / unit:.4g}{suffix}"


def _name_groups(groups: list[dict[str, Any]]) -> str:
    named = [f"{each['namespace']}/{each['name']} ({each['members']})" for each in groups[:_MOST_GROUPS]]
    more = len(groups) - len(named)
    return ", ".join(named) + (f" and {more} more" if more else "")
