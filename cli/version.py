"""``serried version``: the versions of this command, of the extender and of its kube-scheduler."""

from typing import Annotated

import typer

from cli.access import DebugApi, ask
from cli.options import Output
from cli.output import CommandError, OutputFormat, make_table, write
from cli.target import Target, with_target_options
from serried import __version__

VERSION_EXAMPLES = """
Show the versions of the command, of the extender and of the kube-scheduler beside it:
  serried version

Print the command's own version, without a cluster:
  serried version --client -o name
"""

_TITLES = {"client": "serried", "extender": "extender", "scheduler": "kube-scheduler", "pod": "pod"}

Client = Annotated[bool, typer.Option("--client", help="Show the version of this command only.")]


@with_target_options
def show_version(output: Output = OutputFormat.TABLE, *, client: Client = False, target: Target) -> None:
    """Show the versions of this command, of the extender that leads, and of its kube-scheduler."""
    found, failure = {"client": __version__}, None
    try:
        found |= {} if client else ask(target, _read_server)
    except CommandError as error:
        failure = error  # this command's version is shown all the same
    rows = [(_TITLES[name], value or "not known") for name, value in found.items()]
    write(found, output, lambda: [make_table(("", ""), rows)], lambda: list(found.values()))
    if failure is not None:
        raise failure


async def _read_server(debug: DebugApi) -> dict[str, str]:
    """Return the version of the extender, the image of the kube-scheduler in its pod, and the pod's name.

    An unknown value is "". With ``--server``, the last two are unknown.
    """
    check = await debug.get("selfcheck")
    pod = debug.pod or {"metadata": {}, "spec": {}}
    images = [each.get("image", "") for each in pod["spec"].get("containers", ())]
    scheduler = next((image for image in images if "kube-scheduler" in image), "")
    return {"extender": check.get("version", ""), "scheduler": scheduler, "pod": pod["metadata"].get("name", "")}
