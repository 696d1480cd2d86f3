"""``serried gangs``: lists all gangs, broken ones first.

The commands in `cli.lists` list the queue and the decisions.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from functools import partial
from typing import Annotated, Any

import typer

from cli.access import DebugApi, ask
from cli.lists import NO_LIMIT, NOT_LISTABLE, Document, Listing, identify, list_names, watch_rows
from cli.names import name_groups
from cli.options import AllNamespaces, Limit, Namespace, Output, Watch
from cli.output import OutputFormat, Part, Table, format_age, format_times, make_table, write
from cli.target import Target, find_namespace, with_target_options
from serried.api.names import count_things, natural_sort_key
from serried.api.verdict import Reason

GANGS_EXAMPLES = """
Show all gangs of your namespace, then what waits in all namespaces:
  serried gangs
  serried gangs -A --state waiting

Count the gangs of each namespace that do not run:
  serried gangs -A --limit 100000 -o json | jq -r '.[] | select(.state != "Scheduled").namespace' | sort | uniq -c
"""


class GangState(StrEnum):
    """The states of a gang in the output, in the order in which gangs are listed.

    Broken is a gang that has lost members after it started and has fewer than its quorum.
    """

    BROKEN = "broken"
    WAITING = "waiting"

    PLANNED = "planned"
    """The gang has a plan, and not all members are bound: victims are ending, or the members are being bound."""

    RUNNING = "running"


def find_state(group: Mapping[str, Any]) -> GangState:
    """Return the state to show for a group, which is a document of ``/debug/groups``.

    The extender has several states between the plan and the last Binding. All of these are shown as planned.
    """
    if group["state"] == Reason.SCHEDULED:
        return GangState.RUNNING
    if group["state"] not in {"Waiting", "Unknown"}:
        return GangState.PLANNED
    return GangState.BROKEN if group["reason"] == Reason.BROKEN else GangState.WAITING


State = Annotated[GangState | None, typer.Option("--state", show_default=False, help="Show gangs in this state only.")]


@with_target_options
def show_gangs(
    namespace: Namespace = "",
    state: State = None,
    limit: Limit = 50,
    output: Output = OutputFormat.TABLE,
    *,
    every: AllNamespaces = False,
    watch: Watch = False,
    target: Target,
) -> None:
    """Show all gangs: broken ones first, then those that wait, are planned, and run.

    READY is the number of members that have a node, and the number that the gang needs. AGE is for how long the gang
    has been in its state.
    """
    where = "" if every else find_namespace(target, namespace)

    async def fetch(debug: DebugApi) -> Document:
        groups = await debug.get("groups", {"limit": str(NO_LIMIT), "namespace": where})
        hidden = await debug.list_hidden({each["namespace"] for each in groups})
        gangs = [each for each in groups if each["policy"] != "Basic" and state in {None, find_state(each)}]
        shown = sorted((each for each in gangs if each["namespace"] not in hidden), key=_sort_key)
        sums = Counter(map(find_state, shown))
        left_off, lacking = len(shown[limit:]), len(gangs) - len(shown)
        return {"gangs": shown[:limit], "sums": sums, "leftOff": left_off, "hidden": lacking}

    if watch:
        watch_rows(target, Listing(fetch, "gangs", identify, partial(_tabulate, output=output), "is gone"), output)
    found = ask(target, fetch)
    write(found["gangs"], output, lambda: _draw(found, output, where), lambda: list_names(found["gangs"], where))


def _sort_key(group: Document) -> tuple[Any, ...]:
    (name,) = name_groups([group])
    return (
        list(GangState).index(find_state(group)),
        natural_sort_key(group["namespace"]),
        natural_sort_key(name),
        group["name"],
    )


def _draw(found: Mapping[str, Any], output: OutputFormat, namespace: str) -> Iterator[Part]:
    sums = [f"{count} {state}" for state in GangState if (count := found["sums"][state])]
    where = f" in namespace {namespace}" if namespace else ""
    total = found["sums"].total()
    yield f"{count_things(total, 'gang') if total else 'No gangs'}{where}{': ' if sums else ''}{', '.join(sums)}."
    yield _tabulate(found["gangs"], output)
    if found["leftOff"]:
        yield f"{found['leftOff']} more are not shown: see --limit."
    if found["hidden"]:
        yield f"{found['hidden']} more {'are' if found['hidden'] > 1 else 'is'} {NOT_LISTABLE}."


def _tabulate(gangs: Sequence[Document], output: OutputFormat) -> Table:
    wide = output is OutputFormat.WIDE
    more = ("#PRIORITY", "DOMAIN", "GROUP") if wide else ()
    rows = [_make_row(each, name, wide=wide) for each, name in zip(gangs, name_groups(gangs), strict=True)]
    return make_table(("NAMESPACE", "GANG", "STATE", "#READY", "#MEMBERS", *more, "AGE", "REASON"), rows)


def _make_row(group: Document, name: str, *, wide: bool) -> tuple[object, ...]:
    state, ready = find_state(group).capitalize(), f"{group['placed']}/{group['minCount'] or group['members']}"
    more = (group["priority"], group["domain"], group["name"]) if wide else ()
    age = format_age(group.get("since", ""))  # extenders of older releases lack it
    return group["namespace"], name, state, ready, group["members"], *more, age, format_times(group["message"])
