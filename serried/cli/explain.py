"""``serried explain``: why a gang waits, in full."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.console import RenderableType

from serried.cli import options
from serried.cli.access import HOME, DebugApi, Target, ask
from serried.cli.advice import advise
from serried.cli.exits import CommandError, ExitCode
from serried.cli.output import OutputFormat, make_table, write
from serried.kube.auth import read_namespace

EXAMPLES = """
Show why a gang waits. Name its PodGroup, its Job or one of its pods:
  serried explain podgroup/train
  serried explain job/train -n team
  serried explain pod/train-0-x7k2p

Print only the reason:
  serried explain job/train -o json | jq -r '.[].reason'
"""

_ALIASES = {
    "pg": "podgroup",
    "podgroups": "podgroup",
    "compositepodgroup": "podgroup",
    "compositepodgroups": "podgroup",
    "po": "pod",
    "pods": "pod",
    "jobs": "job",
    "jobsets": "jobset",
    "leaderworkersets": "leaderworkerset",
    "lws": "leaderworkerset",
    "workloads": "workload",
}

_MOST_MEMBERS = 40
"""How many members a person is shown."""

_MOST_DOMAINS = 10
_MOST_BEFORE = 3
_DECISIONS = 5

Document = dict[str, Any]

What = Annotated[
    str,
    typer.Argument(
        metavar="KIND/NAME", help="A podgroup, job, pod, jobset, leaderworkerset or workload, for example job/train."
    ),
]


def explain(
    what: What,
    namespace: options.Namespace = "",
    output: options.Output = OutputFormat.TABLE,
    server: options.Server = "",
    kubeconfig: options.Kubeconfig = "",
    context: options.Context = "",
    home: options.Home = HOME,
    token_file: options.TokenFile = "",
    authority: options.Authority = "",
) -> None:
    """Show why a gang waits, what would make it fit, and the state of its members.

    What an owner has several groups of is shown one after the other. JSON and YAML are always a list of groups.
    """
    kind, name = _read_object(what)
    target = Target(server, kubeconfig, context, home, token_file=token_file, authority=authority)
    where = namespace or ("default" if server else read_namespace(kubeconfig or None, context))
    groups = ask(target, lambda debug: collect(debug, where, kind, name))
    write(groups, output, lambda: (part for group in groups for part in draw_group(group)))


def _read_object(what: str) -> tuple[str, str]:
    kind, slash, name = what.partition("/")
    if not slash or not kind or not name:
        raise CommandError(ExitCode.USAGE, f"{what!r} is no KIND/NAME: say for example podgroup/{what or 'NAME'}")
    # kubectl writes podgroup.scheduling.k8s.io/NAME.
    word = kind.lower().partition(".")[0]
    return _ALIASES.get(word, word), name


async def collect(debug: DebugApi, namespace: str, kind: str, name: str) -> list[Document]:
    """Everything that is known of each group to which the object leads."""
    found = await debug.get(f"lookup/{quote(namespace)}/{quote(kind)}/{quote(name)}")
    # To find what would make a gang fit is work, so for many groups it is not done.
    diagnosis = "advice" if len(found) == 1 else "domains"
    return [await _collect_group(debug, each["namespace"], each["name"], diagnosis) for each in found]


async def _collect_group(debug: DebugApi, namespace: str, name: str, diagnosis: str) -> Document:
    group: Document = await debug.get(f"groups/{namespace}/{name}", {"diagnosis": diagnosis})
    group["decisions"] = await debug.get("decisions", {"group": f"{namespace}/{name}", "limit": str(_DECISIONS)})
    return group


def draw_group(group: Mapping[str, Any]) -> Iterator[RenderableType]:
    """One group for people."""
    yield make_table(("WHAT", "HOW IT STANDS"), list(_list_facts(group)), title=f"{group['namespace']}/{group['name']}")
    if group.get("diagnosis"):
        yield from _draw_diagnosis(group["diagnosis"])
    if group.get("preemption"):
        yield from _draw_preemption(group["preemption"])
    yield from _draw_members(group["detail"])
    if group.get("timeline"):
        rows = [(each["at"], each["milestone"]) for each in group["timeline"]]
        yield make_table(("AT", "WHAT HAS HAPPENED"), rows)
    if group["decisions"]:
        rows = [(each["at"], each["text"]) for each in group["decisions"]]
        yield make_table(("AT", "WHAT WAS SAID LAST"), rows)


def _list_facts(group: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    kind = group["object"]["kind"] if group.get("object") else f"no {group['kind']} exists"
    size = f"gang of {group['minCount']}" if group["policy"] == "Gang" else "no gang" if group["policy"] else ""
    yield "kind", ", ".join(filter(None, (kind, size)))
    yield "state", group["state"]
    _, colon, sentence = group["message"].partition(": ")
    yield "reason", group["reason"] or "none yet: it has not been looked at"
    yield "why", sentence if colon else group["message"]
    if advise(group["reason"]):
        yield "what helps", advise(group["reason"])
    yield "members", f"{group['members']}: {group['placed']} placed, {group['waiting']} wait for a node"
    yield "priority", f"{group['priority']}{'' if group['preempts'] else ', evicts nobody'}"
    if group.get("queue"):
        yield "turn", _describe_turn(group["queue"])
    if group.get("forecast"):
        yield "forecast", f"{group['forecast']['at'] or 'nobody can tell'}, by {group['forecast']['basis']}"
    if group["topologyKey"]:
        yield "where", f"one domain of {group['topologyKey']}{': ' + group['domain'] if group['domain'] else ''}"


def _describe_turn(turn: Mapping[str, Any]) -> str:
    before = f", after {', '.join(turn['before'][-_MOST_BEFORE:])}" if turn["before"] else ""
    return f"{turn['position']} of {turn['length']} that wait for room{before}"


def _draw_diagnosis(diagnosis: Mapping[str, Any]) -> Iterator[RenderableType]:
    if diagnosis["advice"]:
        yield make_table(("WHAT WOULD MAKE IT FIT",), [(each["text"],) for each in diagnosis["advice"]])
    elif diagnosis["advice"] is not None:
        yield "No single change of those that were tried would make it fit."
    rows = [
        (each["domain"] or "the cluster", f"{each['slots']} of {each['need']}", each["nodes"], _describe_hurdles(each))
        for each in diagnosis["domains"][:_MOST_DOMAINS]
    ]
    yield make_table(("DOMAIN", "#ROOM FOR", "#NODES", "WHAT KEEPS MEMBERS OFF"), rows)
    more = len(diagnosis["domains"]) - len(rows) + diagnosis["domainsLeftOff"]
    if more:
        yield f"{more} more domains are not shown."


def _describe_hurdles(domain: Mapping[str, Any]) -> str:
    _, _, hurdles = domain["text"].partition("; ")
    return str(hurdles)


def _draw_preemption(preemption: Mapping[str, Any]) -> Iterator[RenderableType]:
    where = preemption["domain"] or "the cluster"
    if preemption["victims"]:
        rows = [(victim,) for victim in preemption["victims"]]
        yield make_table((f"WOULD HAVE TO GO IN {where}",), rows)
        return
    said = "; ".join(preemption["protections"])
    if preemption.get("protected"):
        said = f"{preemption['protected']} pods: {said}"
    yield f"No eviction would help: in {where}, {preemption['blocker']} is in the way{f' ({said})' if said else ''}."


def _draw_members(members: list[Document]) -> Iterator[RenderableType]:
    # Those that wait are what a person looks for.
    ordered = sorted(members, key=lambda member: (member["state"] == "Bound", member["name"]))
    rows = [
        (each["name"], each["state"], each["node"] or each["planned"], each["nominated"])
        for each in ordered[:_MOST_MEMBERS]
    ]
    if rows:
        yield make_table(("MEMBER", "STATE", "NODE", "NOMINATED"), rows)
    if len(members) > len(rows):
        yield f"{len(members) - len(rows)} more members are not shown: -o json shows all."
