"""The commands that show a page of ``/debug``: ``serried explain``, ``decisions``, ``queue`` and ``top``."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.console import RenderableType

from serried.api.verdict import Reason
from serried.cli.access import DebugApi, Target, ask, reaching
from serried.cli.output import (
    CommandError,
    ExitCode,
    Limit,
    Namespace,
    OneNamespace,
    Output,
    OutputFormat,
    make_table,
    option,
    write,
)
from serried.kube.auth import read_namespace

_FREE_ROOM = "free room, or add nodes"

ADVICE = {
    Reason.JOB_UNKNOWN: "it passes by itself; else look whether the pods' owner exists, and at what the sentence adds",
    Reason.POD_GROUP_MISSING: "create the PodGroup; if a Job should have one, look whether the controller runs",
    Reason.NOT_ITS_POD_GROUP: "take the group off the pod, or name one that no Job controls",
    Reason.API_MISSING: "install the CRDs or turn the gate on, and apply the roles: serried check says which",
    Reason.PRIORITY_UNKNOWN: "create the PriorityClass, or make the PodGroup anew with another",
    Reason.QUORUM_MISSING: "create the missing members: look at their owner, and at what makes their claims",
    Reason.MEMBER_GATED: "the owner of the gate lifts it",
    Reason.NO_DOMAIN_FITS: f"{_FREE_ROOM}, in one domain: serried top shows how full each is",
    Reason.NO_CAPACITY: f"{_FREE_ROOM}: serried top shows how full the cluster is",
    Reason.GROUPS_UNPLACED: f"{_FREE_ROOM}, so that all groups of the tree fit together",
    Reason.PLANNING: "nothing: it passes by itself",
    Reason.PLAN_UNFINISHED: "give the members fewer different shapes: requests, selectors, tolerations, volumes",
    Reason.DOMAIN_FULL: "free room in the domain in which the gang runs",
    Reason.DOMAIN_CONFLICT: "delete the members on one side: nobody is moved",
    Reason.BEHIND_HEAD: "give it an activeDeadlineSeconds that ends before the forecast, or a higher priority: "
    "serried queue shows both",
    Reason.DEADLINE_EXCEEDED: "look at the scheduler's log; it goes again when room is freed",
    Reason.PLAN_OUTDATED: "nothing: it goes again at once",
    Reason.RECORD_FAILED: "look at what the API server answers",
    Reason.RECORDS_UNREADABLE: "install the CRDs and apply the roles: serried check says which",
    Reason.BROKEN: "bring the missing members back: the rest of the sentence says what they wait for",
    Reason.PREEMPTING: "nothing: what takes long is the victims' terminationGracePeriodSeconds",
    Reason.EVICTION_REFUSED: "look at the pod's PodDisruptionBudget, or at the role if the answer is 403",
    Reason.VICTIMS_REMAIN: "look at the finalizers and nodes of the pods that do not end",
    Reason.PLANNED: "nothing; if it lasts, look whether the scheduler works",
    Reason.BINDING: "nothing, or what the sentence says",
    Reason.SCHEDULED: "",
}
"""What helps, for each reason: the table of `docs/troubleshooting.md` in short. "" where nobody waits."""


def advise(reason: str) -> str:
    """What helps; "" for a reason that this version does not know."""
    return ADVICE[Reason(reason)] if reason in set(Reason) else ""


DECISIONS_EXAMPLES = """
Show the last 20 decisions:
  serried decisions --limit 20

Print all decisions about one gang, oldest first:
  serried decisions --group team/train -o json | jq -r 'reverse | .[] | .at + " " + .text'
"""

Group = Annotated[str, option("NAMESPACE/NAME", "Show decisions about this group only.")]


@reaching
def show_decisions(
    group: Group = "", limit: Limit = 50, output: Output = OutputFormat.TABLE, *, target: Target
) -> None:
    """Show the last decisions, newest first."""
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


EXPLAIN_EXAMPLES = """
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


@reaching
def explain(what: What, namespace: Namespace = "", output: Output = OutputFormat.TABLE, *, target: Target) -> None:
    """Show why a gang waits, what would make it fit, and the state of its members.

    What an owner has several groups of is shown one after the other. JSON and YAML are always a list of groups.
    """
    kind, name = _read_object(what)
    where = namespace or ("default" if target.server else read_namespace(target.kubeconfig or None, target.context))
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


QUEUE_EXAMPLES = """
Show the queue:
  serried queue

Print the names of all waiting gangs, one on each line:
  serried queue -o json --limit 100000 | jq -r '.waiting[] | .namespace + "/" + .name'
"""


@reaching
def show_queue(
    namespace: OneNamespace = "", limit: Limit = 50, output: Output = OutputFormat.TABLE, *, target: Target
) -> None:
    """Show the gangs that wait for room, in their order, and the room that is kept for the first one."""
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


TOP_EXAMPLES = """
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

Key = Annotated[str, option("LABEL", "The topology key. Default: the one that most gangs use.")]


@reaching
def show_top(key: Key = "", output: Output = OutputFormat.TABLE, *, target: Target) -> None:
    """Show the domains of a topology key: their nodes, used and free resources, and gangs.

    What is used counts what bound pods ask for, and what is reserved for gangs that are about to start.
    """
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
