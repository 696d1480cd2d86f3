"""``serried queue``, ``decisions`` and ``top``: commands that print the rows of a ``/debug`` document.

With ``--watch`` (`watch_rows`), the document is fetched again and again, and only changed rows are printed.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, NoReturn

from cli.access import DebugApi, ask, connect_to_extender
from cli.complete import complete_gangs, complete_keys
from cli.names import Name, find_groups, name_groups, name_with_owner, read_name
from cli.options import AllNamespaces, Limit, Namespace, Output, Watch
from cli.output import (
    CommandError,
    ExitCode,
    OutputFormat,
    Part,
    Table,
    find_width,
    format_age,
    format_amount,
    format_time,
    format_times,
    lay_out_rows,
    make_table,
    option,
    print_note,
    write,
)
from cli.target import Target, find_namespace, with_target_options
from serried.api.names import count_things, join_some

Document = dict[str, Any]

_WATCH_SECONDS = 2.0
"""Seconds between two fetches with ``--watch``."""

NO_LIMIT = 10**6
"""A limit for ``/debug`` above the number of rows of any document, to get all of them."""

_ALL = {"limit": str(NO_LIMIT)}

NOT_LISTABLE = "in namespaces whose pods you may not list"
"""The end of a sentence about gangs that are counted and not named to the user."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The functions by which ``--watch`` fetches, identifies and draws the rows of one command, such as its gangs.

    ``field`` is the name of the document's field that has the rows.
    """

    fetch: Callable[[DebugApi], Awaitable[Document]]
    """Function that fetches the document with the rows from the extender."""

    field: str

    identify: Callable[[Document], str]
    """Function that returns a row's name, by which the row is found again in the next document."""

    tabulate: Callable[[Sequence[Document]], Table]
    """Function that returns the table to print for some rows: all at first, later the changed ones."""

    gone: str = ""
    """The phrase that is printed after the name of a row that has disappeared; "" to print nothing."""


async def _watch(target: Target, listing: Listing) -> NoReturn:
    """Fetch and print rows until the process is interrupted.

    A later failure to reach an extender is printed, and the connection made anew. Raises CommandError if the first
    fetch fails, or if the extender rejects a request.
    """
    seen: dict[str, Document] | None = None
    while True:
        try:
            async with connect_to_extender(target) as debug:
                while True:
                    seen = _print_changes(listing, await listing.fetch(debug), seen)
                    await asyncio.sleep(_WATCH_SECONDS)
        except CommandError as error:
            if seen is None or error.code is not ExitCode.UNREACHABLE:
                raise
            print_note(str(error))
            await asyncio.sleep(_WATCH_SECONDS)


def _print_changes(listing: Listing, document: Document, seen: Mapping[str, Document] | None) -> dict[str, Document]:
    rows: list[Document] = document[listing.field]
    found = {listing.identify(each): each for each in rows}
    header, *blocks = lay_out_rows(listing.tabulate(rows), find_width())
    lines = list(header) if seen is None else []
    for (name, row), block in zip(found.items(), blocks, strict=True):
        if seen is None or seen.get(name) != row:
            lines += block
    if listing.gone:
        lines += [f"{name} {listing.gone}." for name in (seen or {}) if name not in found]
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.stdout.flush()
    return found


def watch_rows(target: Target, listing: Listing, output: OutputFormat) -> NoReturn:
    """Print all rows, then each changed row until the process is interrupted.

    Raises CommandError if ``output`` is no table, if the first fetch fails, or if the extender rejects a request.
    """
    if output not in {OutputFormat.TABLE, OutputFormat.WIDE}:
        raise CommandError(ExitCode.USAGE, f"--watch prints rows of a table: leave out -o {output}")
    asyncio.run(_watch(target, listing))


DECISIONS_EXAMPLES = """
Show the last 20 decisions of all namespaces:
  serried decisions -A --limit 20

Print all decisions about one gang, oldest first:
  serried decisions --group job/train -n team -o json | jq -r 'reverse | .[] | .at + " " + .text'
"""

Group = Annotated[
    str,
    option(
        "NAME",
        "Show decisions about this gang only: job/train, podgroup/train or train.",
        autocompletion=complete_gangs,
    ),
]


@with_target_options
def show_decisions(
    group: Group = "",
    namespace: Namespace = "",
    limit: Limit = 50,
    output: Output = OutputFormat.TABLE,
    *,
    every: AllNamespaces = False,
    watch: Watch = False,
    target: Target,
) -> None:
    """Show the last decisions, newest first; with --watch the newest last."""
    where = "" if every else find_namespace(target, namespace)
    wanted = read_name(group, find_namespace(target, namespace)) if group else None

    async def fetch(debug: DebugApi) -> Document:
        found = await _list_decisions(debug, wanted, where)
        return {"decisions": found[:limit][:: -1 if watch else 1], "leftOff": len(found[limit:])}

    if watch:
        tabulate = partial(_tabulate_decisions, output=output)
        watch_rows(target, Listing(fetch, "decisions", lambda each: str(each["id"]), tabulate), output)
    found = ask(target, fetch)
    decisions, left = found["decisions"], found["leftOff"]
    where = "" if wanted else where
    write(decisions, output, lambda: draw_decisions(decisions, output, where, left), lambda: _name_decided(decisions))


async def _list_decisions(debug: DebugApi, wanted: Name | None, namespace: str) -> list[Document]:
    """Return the extender's recorded decisions, newest first: about the gang ``wanted``, or about many if it is None.

    If it is None, decisions about all gangs of ``namespace`` are returned ("" for all namespaces), except in namespaces
    whose pods the user may not list. Raises CommandError if no gang is named ``wanted`` and no decision about it is
    recorded.
    """
    if wanted is None:
        decisions = [(namespace_of(each["group"]), each) for each in await debug.get("decisions", _ALL)]
        hidden = await debug.list_hidden({home for home, _ in decisions if namespace in ("", home)})
        return [each for home, each in decisions if namespace in ("", home) and home not in hidden]
    refusal = None
    names = {f"{wanted.namespace}/{wanted.encoded}": None}
    try:
        for each in await find_groups(debug, wanted):
            names[f"{each['namespace']}/{each['name']}"] = None
    except CommandError as error:
        if error.code is not ExitCode.NOT_FOUND:
            raise
        refusal = error
    asked = [debug.get("decisions", {"group": name, **_ALL}) for name in names]
    found = [each for decisions in await asyncio.gather(*asked) for each in decisions]
    if refusal is not None and not found:
        raise refusal  # decisions about a deleted gang may still be remembered
    return sorted(found, key=lambda each: str(each["at"]), reverse=True)


def _name_decided(decisions: Sequence[Document]) -> list[str]:
    split = (each["group"].partition("/") for each in decisions)
    pairs = zip(decisions, split, strict=True)
    return name_groups({**each, "namespace": home, "name": name} for each, (home, _, name) in pairs)


def draw_decisions(
    decisions: Sequence[Document], output: OutputFormat, namespace: str = "", left_off: int = 0
) -> Iterator[Part]:
    """Yield the decisions as a table, and a sentence if ``left_off`` is above 0: that many are over the limit.

    ``namespace`` is the only one that is shown, "" for all.
    """
    if not decisions and not left_off:
        yield f"Serried has decided nothing{f' in namespace {namespace}: -A shows all' if namespace else ''}."
    yield _tabulate_decisions(decisions, output)
    if left_off:
        yield f"{left_off} {'more ' if decisions else ''}are not shown: see --limit."


def _tabulate_decisions(decisions: Sequence[Document], output: OutputFormat) -> Table:
    names = _name_decided(decisions)
    if output is OutputFormat.WIDE:
        rows = [
            (format_time(each["at"]), *each["group"].split("/", 1), name, format_times(each["text"]))
            for each, name in zip(decisions, names, strict=True)
        ]
        return make_table(("AT", "NAMESPACE", "GROUP", "GANG", "DECISION"), rows)
    short = [
        (format_age(each["at"]), each["group"].partition("/")[0], name, format_times(each["text"]))
        for each, name in zip(decisions, names, strict=True)
    ]
    return make_table(("AGE", "NAMESPACE", "GANG", "DECISION"), short)


QUEUE_EXAMPLES = """
Show the gangs of your namespace that wait, then those of all namespaces:
  serried queue
  serried queue -A

Print each change:
  serried queue -A -w

Explain every gang that waits:
  serried queue -A -o name --limit 100000 | xargs -n 1 serried explain
"""


@with_target_options
def show_queue(
    namespace: Namespace = "",
    limit: Limit = 50,
    output: Output = OutputFormat.TABLE,
    *,
    every: AllNamespaces = False,
    watch: Watch = False,
    target: Target,
) -> None:
    """Show the gangs that wait for free resources, in the order of the queue, and what is kept for the first one."""
    where = "" if every else find_namespace(target, namespace)

    async def fetch(debug: DebugApi) -> Document:
        # The limit applies to the gangs that are shown, so all are fetched.
        queue = await debug.get("queue", {"limit": str(NO_LIMIT)})
        return _apply_limit(await _drop_unreadable(debug, _select_namespace(queue, where)), limit)

    if watch:
        tabulate = partial(_tabulate_queue, output=output)
        listing = Listing(fetch, "waiting", identify, tabulate, "no longer waits for resources")
        watch_rows(target, listing, output)
    queue = ask(target, fetch)
    others, hidden = queue.pop("elsewhere", 0), queue.pop("hidden")

    def draw() -> Iterator[Part]:
        yield from draw_queue(queue, output, where, others)
        if hidden:
            yield f"{hidden} {'wait' if hidden > 1 else 'waits'} {NOT_LISTABLE}."

    write(queue, output, draw, lambda: list_names(queue["waiting"], where))


async def _drop_unreadable(debug: DebugApi, queue: Document) -> Document:
    """Return the document of ``/debug/queue``; gangs in namespaces whose pods the user may not list are left out.

    The field ``hidden`` of the result is the number of gangs left out. The other gangs keep their positions.
    """
    head, waiting = queue["head"], queue["waiting"]
    homes = {each["namespace"] for each in waiting}
    if head:
        homes |= {head["namespace"], *map(namespace_of, head["passed"])}
    hidden = await debug.list_hidden(homes)
    shown = [each for each in waiting if each["namespace"] not in hidden]
    seen = head and _drop_unreadable_of_head(head, hidden)
    return queue | {"head": seen, "waiting": shown, "hidden": len(waiting) - len(shown)}


def _drop_unreadable_of_head(head: Document, hidden: Collection[str]) -> Document:
    passed = {gang: end for gang, end in head["passed"].items() if namespace_of(gang) not in hidden}
    owners = {gang: owner for gang, owner in head.get("owners", {}).items() if gang in passed}
    nameless = {"namespace": "", "name": "", "owner": ""} if head["namespace"] in hidden else {}
    return head | {"passed": passed, "owners": owners, **nameless}


def namespace_of(group: str) -> str:
    """Return the namespace of a group that is written ``namespace/name``."""
    return group.partition("/")[0]


def _select_namespace(queue: Document, namespace: str) -> Document:
    """Return the document of ``/debug/queue`` with only the waiting gangs of one namespace; of all if that is "".

    The head stays, whatever its namespace. Set the position of each gang that lacks it. With a namespace, the field
    ``elsewhere`` of the result is the number of gangs that wait in other namespaces.
    """
    for position, each in enumerate(queue["waiting"], 1):
        each.setdefault("position", position)  # extenders of older releases lack it
    if not namespace:
        return queue
    mine = [each for each in queue["waiting"] if each["namespace"] == namespace]
    others = len(queue["waiting"]) + queue["leftOff"] - len(mine)
    return queue | {"waiting": mine, "leftOff": 0, "elsewhere": others}


def _apply_limit(queue: Document, limit: int) -> Document:
    shown = queue["waiting"][:limit]
    return queue | {"waiting": shown, "leftOff": queue["leftOff"] + len(queue["waiting"]) - len(shown)}


def identify(group: Document) -> str:
    """Return ``namespace/name`` of a group in a ``/debug`` document."""
    return f"{group['namespace']}/{group['name']}"


def list_names(groups: Sequence[Document], namespace: str) -> list[str]:
    """Return the lines of ``-o name``: names that ``serried explain`` accepts.

    ``namespace`` is the only one that is shown; if it is "", each name includes its namespace.
    """
    names = [each.get("owner") or each["name"] for each in groups]
    homes = [f"{each['namespace']}/" if not namespace else "" for each in groups]
    return list(dict.fromkeys(home + name for home, name in zip(homes, names, strict=True)))


def draw_queue(queue: Document, output: OutputFormat, namespace: str = "", elsewhere: int = 0) -> Iterator[Part]:
    """Yield a sentence about the head of the queue and the nodes kept for it, then the waiting gangs as a table.

    ``namespace`` is the only one that is shown, "" for all; ``elsewhere`` is the number of gangs that wait in others.
    """
    if queue["head"]:
        yield from _draw_head(queue["head"])
    where = f" in namespace {namespace}" if namespace else ""
    if not queue["waiting"] and not queue["leftOff"]:
        yield f"No gang waits for resources{where}."
    yield _tabulate_queue(queue["waiting"], output)
    if queue["leftOff"]:
        yield f"{queue['leftOff']} {'more ' if queue['waiting'] else ''}wait{where} and are not shown: see --limit."
    if elsewhere:
        yield f"{elsewhere} wait in other namespaces: -A shows them."


def _tabulate_queue(waiting: Sequence[Document], output: OutputFormat) -> Table:
    names = name_groups(waiting)
    if output is OutputFormat.WIDE:
        rows = [
            (
                *_first_cells(each, name),
                each["name"],
                each["countsAs"],
                format_time(each["since"]),
                format_times(each["message"]),
            )
            for each, name in zip(waiting, names, strict=True)
        ]
        columns = ("#TURN", "NAMESPACE", "GANG", "#PRIORITY", "GROUP", "#COUNTS AS", "SINCE", "REASON")
        return make_table(columns, rows)
    short = [
        (*_first_cells(each, name), format_age(each["since"]), format_times(each["message"]))
        for each, name in zip(waiting, names, strict=True)
    ]
    return make_table(("#TURN", "NAMESPACE", "GANG", "#PRIORITY", "WAITS", "REASON"), short)


def _first_cells(each: Document, name: str) -> tuple[object, ...]:
    return each["position"], each["namespace"], name, each["priority"]


def _draw_head(head: Document) -> Iterator[Part]:
    where = head["domain"] or "the cluster"
    (name,) = name_groups([head])
    whose = f"{head['namespace']}/{name}" if name else "a gang of another namespace"
    start = f"should start {format_time(head['forecast'])}" if head["forecast"] else "has no forecast"
    yield (
        f"Serried keeps {count_things(len(head['nodes']), 'node')} in {where} for {whose}. It releases them "
        f"{format_time(head['until'])} at the latest. The gang {start}."
    )
    owners = head.get("owners", {})
    rows = [
        (name_with_owner(gang, owners.get(gang, "")), format_time(end)) for gang, end in sorted(head["passed"].items())
    ]
    yield make_table(("STARTS EARLIER", "ENDS"), rows)


TOP_EXAMPLES = """
Show the domains of the key that most gangs use:
  serried top

Show the zones, and print the one with the most free CPU:
  serried top --key topology.kubernetes.io/zone
  serried top -o json | jq -r '.domains | max_by(.resources.cpu | .allocatable - .used).domain'
"""

_ALWAYS_SHOWN = ("cpu", "memory")
_SHOWN_WIDE = ("pods", "ephemeral-storage", "hugepages-")
"""Prefixes of the resources that only ``-o wide`` shows."""

_MOST_GROUPS = 5
"""The largest number of a domain's gangs that are named; ``-o wide`` names all."""

Key = Annotated[
    str, option("LABEL", "The topology key. Default: the one that most gangs use.", autocompletion=complete_keys)
]


@with_target_options
def show_top(key: Key = "", output: Output = OutputFormat.TABLE, *, watch: Watch = False, target: Target) -> None:
    """Show the domains of a topology key: their nodes, used and free resources, and gangs.

    Used are the requests of bound pods, and the resources reserved for gangs that are about to start.
    """

    async def fetch(debug: DebugApi) -> Document:
        found: Document = await debug.get("domains", {"key": key} if key else None)
        hidden = await debug.list_hidden({gang["namespace"] for each in found["domains"] for gang in each["groups"]})
        for each in found["domains"]:
            each["groups"] = [gang for gang in each["groups"] if gang["namespace"] not in hidden]
        return found

    if watch:
        tabulate = partial(_tabulate_domains, output=output)
        watch_rows(target, Listing(fetch, "domains", lambda each: str(each["domain"]), tabulate, "is gone"), output)
    found = ask(target, fetch)
    write(found, output, lambda: draw_domains(found, output), lambda: [each["domain"] for each in found["domains"]])


def draw_domains(found: Mapping[str, Any], output: OutputFormat) -> Iterator[Part]:
    """Yield the domains of a topology key as a table, and the number of nodes that lack the label.

    ``found`` is the document of ``/debug/domains``.
    """
    if not found["domains"]:
        keys = ", ".join(key for key in found["keys"] if key != found["key"])
        yield f"No node has the label {found['key']}: set --key to another{f'. Gangs ask for {keys}' if keys else ''}."
        return
    table = _tabulate_domains(found["domains"], output)
    yield Table(table.columns, table.rows, found["key"])
    if found["unlabelled"]:
        there = count_things(found["unlabelled"], "node", "have")
        yield f"{there} no such label: gangs that ask for this key cannot use them."


def _tabulate_domains(domains: Sequence[Document], output: OutputFormat) -> Table:
    names = _list_resources(domains, output)
    columns = ("DOMAIN", "#NODES", "#CORDONED", *(f"#{name.upper()} FREE" for name in names), "GANGS")
    rows = [
        (
            each["domain"],
            each["nodes"],
            each["unschedulable"],
            *(_format_free(name, each["resources"].get(name)) for name in names),
            _list_gangs(each["groups"], output),
        )
        for each in domains
    ]
    return make_table(columns, rows)


def _list_resources(domains: Sequence[Document], output: OutputFormat) -> list[str]:
    names = {name for each in domains for name, share in each["resources"].items() if share["allocatable"]}
    others = sorted(names - {*_ALWAYS_SHOWN})
    return [
        *_ALWAYS_SHOWN,
        *(name for name in others if output is OutputFormat.WIDE or not name.startswith(_SHOWN_WIDE)),
    ]


def _format_free(name: str, share: Mapping[str, int] | None) -> str:
    if share is None:
        return ""
    free = max(0, share["allocatable"] - share["used"])
    return f"{format_amount(name, free)} of {format_amount(name, share['allocatable'])}"


def _list_gangs(groups: Sequence[Document], output: OutputFormat) -> str:
    most = len(groups) if output is OutputFormat.WIDE else _MOST_GROUPS
    named = [
        f"{each['namespace']}/{name} ({each['members']})"
        for each, name in zip(groups, name_groups(groups), strict=True)
    ]
    return join_some(named, most)
