"""``serried queue``: who waits for room, in which order, and what is kept for the first."""

from collections.abc import Iterator
from typing import Any

from rich.console import RenderableType

from serried.cli import options
from serried.cli.access import HOME, Target, ask
from serried.cli.output import OutputFormat, make_table, write

EXAMPLES = """
Show the queue:
  serried queue

Print the names of all waiting gangs, one on each line:
  serried queue -o json --limit 100000 | jq -r '.waiting[] | .namespace + "/" + .name'
"""


def show_queue(
    namespace: options.OneNamespace = "",
    limit: options.Limit = 50,
    output: options.Output = OutputFormat.TABLE,
    server: options.Server = "",
    kubeconfig: options.Kubeconfig = "",
    context: options.Context = "",
    home: options.Home = HOME,
    token_file: options.TokenFile = "",
    authority: options.Authority = "",
) -> None:
    """Show the gangs that wait for room, in their order, and the room that is kept for the first one."""
    target = Target(server, kubeconfig, context, home, token_file=token_file, authority=authority)
    # A limit counts the gangs of all namespaces, so one namespace is chosen from all of them.
    asked = {"limit": str(10**6 if namespace else limit)}
    queue = ask(target, lambda debug: debug.get("queue", asked))
    for position, each in enumerate(queue["waiting"], 1):
        each.setdefault("position", position)  # an older extender does not say it
    if namespace:
        mine = [each for each in queue["waiting"] if each["namespace"] == namespace]
        queue |= {"waiting": mine[:limit], "leftOff": len(mine) - len(mine[:limit])}
    write(queue, output, lambda: draw_queue(queue))


def draw_queue(queue: dict[str, Any]) -> Iterator[RenderableType]:
    """The queue for people."""
    if queue["head"]:
        yield from _draw_head(queue["head"])
    if not queue["waiting"]:
        yield "Nobody waits for room."
        return
    rows = [
        [each[name] for name in ("position", "namespace", "name", "priority", "countsAs", "since", "message")]
        for each in queue["waiting"]
    ]
    yield make_table(("#TURN", "NAMESPACE", "NAME", "#PRIORITY", "#COUNTS AS", "SINCE", "WHY IT WAITS"), rows)
    if queue["leftOff"]:
        yield f"{queue['leftOff']} more are not shown: --limit says how many are."


def _draw_head(head: dict[str, Any]) -> Iterator[RenderableType]:
    where = head["domain"] or "the cluster"
    yield f"Room is kept for {head['namespace']}/{head['name']} in {where}, on {len(head['nodes'])} nodes,"
    yield f"until {head['until']}. It is expected to begin {head['forecast'] or 'at a time that nobody can tell'}."
    if head["passed"]:
        rows = sorted(head["passed"].items())
        yield make_table(("LET PASS BEFORE IT", "ENDS AT"), rows)
