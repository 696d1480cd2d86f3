"""``serried explain``: why a gang waits, what would make it fit, and the state of its members."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import compress, repeat, takewhile
from typing import Annotated, Any

import typer

from cli.access import DebugApi, ask
from cli.complete import complete_gangs
from cli.gangs import find_state
from cli.lists import NOT_LISTABLE, Document, Listing, identify, namespace_of, watch_rows
from cli.names import KINDS, Name, find_groups, name_groups, name_with_owner, read_names
from cli.options import Namespace, Output, Watch
from cli.output import OutputFormat, Part, Table, format_time, format_times, make_table, write
from cli.target import Target, find_namespace, with_target_options
from serried.api.names import count_things, natural_sort_key
from serried.api.verdict import NO_LABEL, NO_USE_TO_WAIT, find_reason


def advise(reason: str, message: str = "", key: str = "") -> str:
    """Return advice for the author of a gang that waits, "" if there is none for this reason.

    ``reason`` is that of the gang's verdict, ``message`` the verdict's whole text, ``key`` the topology key that the
    gang requires, "" for none.
    """
    if NO_LABEL in message:
        return "label the nodes: nodes with the same value of the label form one domain"
    if NO_USE_TO_WAIT in message:
        return "ask for less, " + ("or for one domain of a wider level, " if key else "") + "or add nodes"
    known = find_reason(reason)
    return known.advice if known is not None else ""


EXPLAIN_EXAMPLES = """
Show why a gang waits. Name its Job, its PodGroup or one of its pods:
  serried explain job/train
  serried explain podgroup train -n team
  serried explain team/train

Print a line for each change:
  serried explain job/train -w

Print only the reason:
  serried explain job/train -o json | jq -r '.[].reason'
"""

_MOST_MEMBERS = 40
"""The largest number of members in the table; ``-o wide`` shows all."""

_MOST_DOMAINS = 10
_MOST_BEFORE = 3
_DECISIONS = 5

_WORDS_BEFORE, _WORDS_AFTER = 4, 3
"""Numbers of unchanged words printed before and after the changed part of a repeated message.

A changed number alone would mean nothing to the user.
"""

What = Annotated[
    list[str],
    typer.Argument(
        metavar="NAME",
        help=f"A gang: job/train, job train or train. The kinds are {', '.join(KINDS)}. "
        "NAMESPACE/train names one of another namespace.",
        autocompletion=complete_gangs,
    ),
]


@with_target_options
def explain(
    what: What,
    namespace: Namespace = "",
    output: Output = OutputFormat.TABLE,
    *,
    watch: Watch = False,
    target: Target,
) -> None:
    """Show why a gang waits, what would make it fit, and the state of its members.

    If an owner has several groups, they are shown one after the other. JSON and YAML are always a list of groups.
    """
    wanted = read_names(what, find_namespace(target, namespace))

    async def fetch(debug: DebugApi) -> Document:
        return {"groups": await _collect_lines(debug, wanted)}

    if watch:
        watch_rows(target, Listing(fetch, "groups", identify, _tabulate_lines, "is gone"), output)
    groups = ask(target, lambda debug: collect(debug, wanted))
    write(
        groups,
        output,
        lambda: (part for group in groups for part in draw_group(group, output)),
        lambda: [f"{each['namespace']}/{name}" for each, name in zip(groups, name_groups(groups), strict=True)],
    )


async def collect(debug: DebugApi, wanted: Sequence[Name]) -> list[Document]:
    """Return all details of the groups that the names stand for, as the document of ``-o json``.

    Raises CommandError if a name stands for no group or for several objects.
    """
    found = await _find_all(debug, wanted)
    # Finding what would make a gang fit is expensive, so it is done for a single group only.
    diagnosis = "advice" if len(found) == 1 else "domains"
    return [await _collect_group(debug, namespace, name, diagnosis) for namespace, name in found]


async def _find_all(debug: DebugApi, wanted: Sequence[Name]) -> list[tuple[str, str]]:
    found = [group for name in wanted for group in await find_groups(debug, name)]
    return list(dict.fromkeys((each["namespace"], each["name"]) for each in found))


async def _collect_group(debug: DebugApi, namespace: str, name: str, diagnosis: str) -> Document:
    group: Document = await debug.get(f"groups/{namespace}/{name}", {"diagnosis": diagnosis})
    if turn := group.get("queue"):
        hidden = await debug.list_hidden(set(map(namespace_of, turn["before"])))
        kept = [namespace_of(each) not in hidden for each in turn["before"]]
        turn |= {name: list(compress(turn[name], kept)) for name in ("before", "owners") if name in turn}
    if group.get("preemption"):
        group["preemption"] = await _drop_unreadable_victims(debug, group["preemption"])
    group["decisions"] = await debug.get("decisions", {"group": f"{namespace}/{name}", "limit": str(_DECISIONS)})
    return group


async def _drop_unreadable_victims(debug: DebugApi, preemption: Document) -> Document:
    """Return the gang's planned preemption; victims in namespaces whose pods the user may not list are left out.

    The field ``hidden`` of the result is the number of victims left out.
    """
    victims = preemption["victims"]
    hidden = await debug.list_hidden(set(map(namespace_of, victims)))
    shown = [each for each in victims if namespace_of(each) not in hidden]
    return preemption | {"victims": shown, "hidden": len(victims) - len(shown)}


async def _collect_lines(debug: DebugApi, wanted: Sequence[Name]) -> list[Document]:
    """Return the groups that the names stand for, each with only the fields that a line of ``--watch`` shows."""
    groups = [
        await debug.get(f"groups/{namespace}/{name}", {"diagnosis": "none"})
        for namespace, name in await _find_all(debug, wanted)
    ]
    return [{name: group.get(name, "") for name in _WATCHED_FIELDS} for group in groups]


_WATCHED_FIELDS = ("namespace", "name", "owner", "state", "reason", "members", "placed", "message")


def _tabulate_lines(groups: Sequence[Document]) -> Table:
    named = list(zip(groups, name_groups(groups), [find_state(each).capitalize() for each in groups], strict=True))
    rows = [
        (each["namespace"], name, state, f"{each['placed']}/{each['members']}", format_times(each["message"]))
        for each, name, state in named
    ]
    return make_table(("NAMESPACE", "GANG", "STATE", "#PLACED", "REASON"), rows)


def draw_group(group: Mapping[str, Any], output: OutputFormat) -> Iterator[Part]:
    """Yield the parts of the output about one group, ``group`` as returned by `collect`. ``-o wide`` adds columns."""
    (name,) = name_groups([group])
    yield make_table(("", ""), list(_list_facts(group)), title=f"{group['namespace']}/{name}")
    if group.get("diagnosis"):
        yield from _draw_diagnosis(group["diagnosis"])
    if group.get("preemption"):
        yield from _draw_preemption(group["preemption"])
    yield from _draw_members(group["detail"], output)
    if group.get("timeline"):
        rows = [(format_time(each["at"]), each["milestone"]) for each in group["timeline"]]
        yield make_table(("AT", "EVENT"), rows)
    if group["decisions"]:
        yield make_table(("AT", "DECISION"), list(_list_decisions(group)))


def _list_facts(group: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    there = group.get("object")
    kind = f"{there['kind']} {there['name']}" if there else f"no {group['kind']} exists"
    size = f"gang of {group['minCount']}" if group["policy"] == "Gang" else "no gang" if group["policy"] else ""
    yield "kind", ", ".join(filter(None, (kind, size)))
    yield "state", find_state(group).capitalize()
    _, colon, sentence = group["message"].partition(": ")
    yield "reason", group["reason"] or "none yet: Serried has not tried to plan the gang"
    yield "why", format_times(sentence if colon else group["message"])
    if advice := advise(group["reason"], group["message"], group["topologyKey"]):
        yield "what helps", advice
    yield "members", f"{group['members']}: {group['placed']} placed, {group['waiting']} wait for a node"
    yield "priority", f"{group['priority']}{'' if group['preempts'] else ', evicts no pods'}"
    if group.get("queue"):
        yield "turn", _describe_turn(group["queue"])
    if group.get("forecast"):
        at = group["forecast"]["at"]
        yield "forecast", f"{format_time(at) if at else 'not known'}, by {group['forecast']['basis']}"
    if group["topologyKey"]:
        level = group.get("topologyLevel")  # extenders of older releases lack it
        key = f"{level} ({group['topologyKey']})" if level else group["topologyKey"]
        yield "where", f"one domain of {key}{': ' + group['domain'] if group['domain'] else ''}"
    if unread := group.get("unread"):  # extenders of older releases lack it
        yield "no effect", "; ".join(unread)


def _list_decisions(group: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield time and message of each decision about a group, newest first.

    A message that repeats most words of the one above it is shortened to the words that differ.
    """
    above = group["message"]
    for each in group["decisions"]:
        yield format_time(each["at"]), format_times(_shorten(each["text"], above))
        above = each["text"]


def _shorten(text: str, above: str) -> str:
    """Return a message without the words at its beginning and end that the message ``above`` has, too.

    Keep the first word, and a few words around those that differ. Return the message unchanged if few words are the
    same, and "as above" instead of it if all are.
    """
    if text == above:
        return f"{text.partition(': ')[0]}: as above"
    words, others = text.split(), above.split()
    begin = _count_same(words, others) - _WORDS_BEFORE
    end = _count_same(words[:begin:-1], others[:begin:-1]) - _WORDS_AFTER
    if begin < 1 or end < 1:
        return text
    return " ".join([words[0], "...", *words[begin : len(words) - end], "..."])


def _count_same(words: Sequence[str], others: Sequence[str]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(words, others, strict=False)))


def _describe_turn(turn: Mapping[str, Any]) -> str:
    names = [name_with_owner(*each) for each in zip(turn["before"], turn.get("owners") or repeat(""), strict=False)]
    before = f", after {', '.join(names[-_MOST_BEFORE:])}" if names else ""
    return f"{turn['position']} of {turn['length']} that wait for resources{before}"


def _draw_diagnosis(diagnosis: Mapping[str, Any]) -> Iterator[Part]:
    if diagnosis["advice"]:
        yield make_table(("WHAT WOULD MAKE IT FIT",), [(each["text"],) for each in diagnosis["advice"]])
    elif diagnosis["advice"] is not None:
        yield "No single change that Serried tried would make the gang fit."
    rows = [
        (each["domain"] or "the cluster", f"{each['slots']} of {each['need']}", each["nodes"], _describe_hurdles(each))
        for each in diagnosis["domains"][:_MOST_DOMAINS]
    ]
    yield make_table(("DOMAIN", "#MEMBERS FIT", "#NODES", "OBSTACLES"), rows)
    more = len(diagnosis["domains"]) - len(rows) + diagnosis["domainsLeftOff"]
    if more:
        yield f"{count_things(more, 'more domain', 'are')} not shown."


def _describe_hurdles(domain: Mapping[str, Any]) -> str:
    _, _, hurdles = domain["text"].partition("; ")
    return str(hurdles)


def _draw_preemption(preemption: Mapping[str, Any]) -> Iterator[Part]:
    where = preemption["domain"] or "the cluster"
    if preemption["victims"] or preemption["hidden"]:
        rows = [(victim,) for victim in preemption["victims"]]
        rows += [(f"and {preemption['hidden']} {NOT_LISTABLE}",)] if preemption["hidden"] else []
        yield make_table((f"WOULD BE EVICTED IN {where}",), rows)
        return
    said = "; ".join(preemption["protections"])
    if preemption.get("protected"):
        said = f"{count_things(preemption['protected'], 'pod')}: {said}"
    yield f"No eviction would help in {where}. Obstacle: {preemption['blocker']}{f' ({said})' if said else ''}."


def _draw_members(members: list[Document], output: OutputFormat) -> Iterator[Part]:
    wide = output is OutputFormat.WIDE
    # Waiting members first: users look for these.
    ordered = sorted(members, key=lambda member: (member["state"] == "Bound", natural_sort_key(member["name"])))
    shown = ordered if wide else ordered[:_MOST_MEMBERS]
    if wide:
        rows = [(each["name"], each["state"], each["nominated"], each["node"] or each["planned"]) for each in shown]
        yield make_table(("MEMBER", "STATE", "NOMINATED", "NODE"), rows)
    else:
        short = [(each["name"], each["state"], each["node"] or each["planned"]) for each in shown]
        yield make_table(("MEMBER", "STATE", "NODE"), short)
    if len(members) > len(shown):
        yield f"{count_things(len(members) - len(shown), 'more member', 'are')} not shown: -o wide shows all."
