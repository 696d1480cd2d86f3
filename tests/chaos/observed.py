"""State and history of a cluster as a watch has shown it, with the times by which the rules judge. No I/O.

Each method gets the current time.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from tests.chaos.excuses import Excuses
from tests.chaos.kubelet import Refusal, find_lacking
from tests.chaos.objects import (
    Group,
    Name,
    Node,
    Pod,
    Raw,
    Record,
    read_group,
    read_name,
    read_node,
    read_pod,
    read_record,
)

EXCUSED_SECONDS = 30.0
"""The time before the first Binding of a gang in which its commit may not know of a lost member."""

RACE_SECONDS = 2.0
"""The time for which our scheduler may not know of a Binding of another one."""

_REMEMBERED = 2000


@dataclass(slots=True)
class Climb:
    """A gang on its way from nobody bound to minCount, and from there until nobody is bound again."""

    begun: float
    uid: str
    """Of its PodGroup."""

    risen: set[str] = field(default_factory=set)
    """The members that were seen bound."""

    whole: float | None = None
    """The time at which minCount was reached; None before."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change of one object."""

    at: float
    kind: str
    name: Name
    what: str


@dataclass(slots=True)
class Observed:
    """The state and its history. ``see`` takes what a watch shows, ``note`` what the harness does."""

    pods: dict[Name, Pod] = field(default_factory=dict)
    by_group: dict[Name, dict[Name, Pod]] = field(default_factory=dict)
    groups: dict[Name, Group] = field(default_factory=dict)
    composites: dict[Name, Group] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    records: dict[Name, Record] = field(default_factory=dict)
    owners: dict[Name, str] = field(default_factory=dict)
    """The UIDs of Jobs."""

    group_of_owner: dict[str, Name] = field(default_factory=dict)
    """The PodGroup of each Job that had one, by the Job's UID: its pods name no PodGroup."""

    labels: dict[str, Mapping[str, str]] = field(default_factory=dict)
    """The labels of each node that was ever there."""

    climbs: dict[Name, Climb] = field(default_factory=dict)
    ending: set[str] = field(default_factory=set)
    """The namespaces that somebody has deleted: nobody can be bound in them any more."""

    grown: set[Name] = field(default_factory=set)
    """The trees of which enough groups were whole at once, and of which somebody is still bound."""

    excused: dict[Name, dict[str, float]] = field(default_factory=dict)
    """The members that no scheduler can bind: they were deleted, or their node was taken away."""

    bound_at: dict[str, list[tuple[float, Pod]]] = field(default_factory=dict)
    """The pods that were bound to each node, with the time of each Binding."""

    since: dict[tuple[str, Name], float] = field(default_factory=dict)
    """The times since which conditions that the rules ask about hold."""

    told: dict[Name, str] = field(default_factory=dict)
    """The messages on ``/debug``, which begin with the reasons."""

    told_at: float = 0.0
    """The time at which the messages were last read."""

    changes: deque[Change] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    rest_since: float | None = None
    excuses: Excuses = field(default_factory=Excuses)
    bindings: int = 0
    """The number of Bindings of members that were seen."""

    refused: dict[str, Refusal] = field(default_factory=dict)
    """By UID the pods for which their nodes had no room when they were bound."""

    came: dict[str, float] = field(default_factory=dict)
    """The times at which the waiting plain pods were first seen, by UID."""

    plain_waits: list[float] = field(default_factory=list)
    """The seconds that each plain pod of our scheduler has waited for its Binding."""

    preempted: set[str] = field(default_factory=set)
    """The UIDs of the pods that had to go for a gang of higher priority."""

    climbed: list[float] = field(default_factory=list)
    """The seconds from each gang's first Binding to minCount."""

    def see(self, kind: str, raw: Raw, now: float, *, gone: bool = False) -> None:
        """An object is so now, or is gone."""
        name = read_name(raw)
        self.changes.append(Change(now, kind, name, "deleted" if gone else _tell_change(raw)))
        _SEERS[kind](self, raw, now, gone)

    def members(self, group: Name) -> list[Pod]:
        """The pods that name a group."""
        return list(self.by_group.get(group, {}).values())

    def hold(self, what: str, name: Name, now: float, *, holds: bool) -> float:
        """Return the seconds for which something holds already: 0.0 when it begins, or if it does not hold."""
        if not holds:
            self.since.pop((what, name), None)
            return 0.0
        return now - self.since.setdefault((what, name), now)

    def lose(self, group: Name, uid: str, now: float) -> None:
        """A member that was not bound cannot come any more."""
        self.excused.setdefault(group, {})[uid] = now

    def strike_node(self, name: str, now: float) -> None:
        """Record that a node was taken away, or its room: members with a slot there must look for another one."""
        self.excuses.last_fault = now
        by_uid = {pod.uid: pod for pod in self.pods.values()}
        for record in self.records.values():
            for uid, node in record.slots.items():
                pod = by_uid.get(uid)
                if node == name and pod is not None and pod.group is not None and not pod.node:
                    self.lose(pod.group, uid, now)

    def see_pod(self, raw: Raw, now: float, gone: bool) -> None:  # noqa: FBT001 - one of a table
        """A pod."""
        pod = self._assign(read_pod(raw))
        before = self.pods.pop(pod.name, None)
        if before is not None and before.group is not None:
            del self.by_group[before.group][before.name]
        if before is not None and before.uid != pod.uid:
            self._leave(before, now)
            before = None
        if gone:
            self._leave(before or pod, now)
            return
        self.pods[pod.name] = pod
        if pod.is_plain and not pod.node:
            self.came.setdefault(pod.uid, now)
        if pod.preempted:
            self.preempted.add(pod.uid)
        if pod.group is not None:
            self.by_group.setdefault(pod.group, {})[pod.name] = pod
        if pod.deleting and not pod.node and pod.group is not None:
            self.lose(pod.group, pod.uid, now)
        if pod.node and (before is None or not before.node):
            self._note_binding(pod, now)

    def _assign(self, pod: Pod) -> Pod:
        return pod if pod.group is not None else replace(pod, group=self.group_of_owner.get(pod.owner))

    def _adopt(self, group: Group, now: float) -> None:
        """The pods of a Job whose PodGroup is seen only now."""
        self.group_of_owner[group.owner] = group.name
        for pod in [each for each in self.pods.values() if each.owner == group.owner and each.group is None]:
            member = self.pods[pod.name] = self._assign(pod)
            self.by_group.setdefault(group.name, {})[member.name] = member
            if member.node:
                self._note_rise(member, now)

    def _leave(self, pod: Pod, now: float) -> None:
        self.came.pop(pod.uid, None)
        if pod.group is None:
            return
        if not pod.node:
            self.lose(pod.group, pod.uid, now)
        if not any(member.node for member in self.members(pod.group)):
            self.climbs.pop(pod.group, None)
        if not self.by_group.get(pod.group):
            self.by_group.pop(pod.group, None)

    def _note_binding(self, pod: Pod, now: float) -> None:
        times = self.bound_at.setdefault(pod.node, [])
        times.append((now, pod))
        del times[:-50]
        self._admit(pod, now)
        if pod.uid in self.came:
            self.plain_waits.append(now - self.came.pop(pod.uid))
        if not pod.ours:
            self.strike_node(pod.node, now)
        self._note_rise(pod, now)

    def _admit(self, pod: Pod, now: float) -> None:
        """The kubelet of its node looks at a pod that was bound."""
        node = self.nodes.get(pod.node)
        there = [each for each in self.pods.values() if each.node == pod.node and not each.ended]
        others = [each for each in there if each.uid != pod.uid and each.uid not in self.refused]
        lacking = None if node is None or pod.ended else find_lacking(pod, node, others)
        if lacking is not None:
            self.refused[pod.uid] = Refusal(pod, now, *lacking, self.is_contested(pod.node, now))

    def is_contested(self, node: str, now: float) -> bool:
        """Return whether another scheduler has just taken room on a node, so that ours could not know."""
        times = self.bound_at.get(node, [])
        recent = [pod for at, pod in times if now - at <= RACE_SECONDS]
        last_is_ours = bool(times) and times[-1][1].ours
        return not last_is_ours or any(not pod.ours for pod in recent) or self.excuses.was_split(now - RACE_SECONDS)

    def _note_rise(self, pod: Pod, now: float) -> None:
        if pod.group is None:
            return
        self.bindings += 1
        group = self.groups.get(pod.group)
        climb = self.climbs.setdefault(pod.group, Climb(now, group.uid if group else ""))
        climb.risen.add(pod.uid)
        self._judge_climb(pod.group, now)

    def _judge_climb(self, name: Name, now: float) -> None:
        climb, group = self.climbs.get(name), self.groups.get(name)
        if climb is None or group is None or climb.whole is not None:
            return
        lost = {uid for uid, at in self.excused.get(name, {}).items() if at >= climb.begun - EXCUSED_SECONDS}
        if len(climb.risen | lost) >= group.min_count:
            climb.whole = now
            self.climbed += [now - climb.begun] if group.min_count else []

    def see_group(self, raw: Raw, now: float, gone: bool) -> None:  # noqa: FBT001 - one of a table
        """A PodGroup."""
        group = read_group(raw)
        _put(self.groups, group.name, group, gone)
        if group.owner and not gone:
            self._adopt(group, now)
        climb = self.climbs.get(group.name)
        if not gone and climb is not None and climb.uid not in ("", group.uid) and climb.whole is None:
            # Somebody has made the group anew under its bound members: what it was is no longer to be had.
            climb.whole = now
        self._judge_climb(group.name, now)

    def see_composite(self, raw: Raw, now: float, gone: bool) -> None:  # noqa: FBT001 - one of a table
        """A CompositePodGroup."""
        group = read_group(raw)
        _put(self.composites, group.name, group, gone)

    def see_node(self, raw: Raw, now: float, gone: bool) -> None:  # noqa: FBT001 - one of a table
        """A node."""
        node = read_node(raw)
        before = self.nodes.get(node.name)
        _put(self.nodes, node.name, node, gone)
        self.labels[node.name] = node.labels
        if gone or (not node.admits and (before is None or before.admits)):
            self.strike_node(node.name, now)

    def see_record(self, raw: Raw, now: float, gone: bool) -> None:  # noqa: FBT001 - one of a table
        """A Reservation."""
        record = read_record(raw)
        _put(self.records, record.name, record, gone)
        if gone:
            return
        by_uid = {pod.uid: pod for pod in self.pods.values()}
        for uid, node in record.slots.items():
            # The plan may be older than what was done to its node.
            struck = node not in self.nodes or not self.nodes[node].admits
            pod = by_uid.get(uid)
            if struck and pod is not None and pod.group is not None and not pod.node:
                self.lose(pod.group, uid, now)

    def see_owner(self, raw: Raw, now: float, gone: bool) -> None:  # noqa: FBT001 - one of a table
        """A Job."""
        _put(self.owners, read_name(raw), raw["metadata"]["uid"], gone)

    def tick(self, now: float) -> None:
        """Time has passed: what was lost meanwhile may complete a gang."""
        for name in list(self.climbs):
            self._judge_climb(name, now)
        for tree in self.composites.values():
            self._judge_tree(tree)

    def _judge_tree(self, tree: Group) -> None:
        leaves = self.list_leaves(tree)
        climbs = [self.climbs[leaf.name] for leaf in leaves if leaf.name in self.climbs]
        if not climbs:
            self.grown.discard(tree.name)
        elif sum(climb.whole is not None for climb in climbs) >= min(tree.min_groups, len(leaves)):
            self.grown.add(tree.name)

    def list_leaves(self, tree: Group) -> list[Group]:
        """The gangs below a root that stay."""
        return [leaf for leaf in self.list_gangs() if (leaf.name[0], leaf.parent) == tree.name]

    def list_gangs(self) -> Iterator[Group]:
        """The PodGroups that are gangs and stay."""
        staying = (group for group in list(self.groups.values()) if group.name[0] not in self.ending)
        return (group for group in staying if group.min_count and not group.deleting)


K = TypeVar("K")
V = TypeVar("V")


def _put(into: dict[K, V], name: K, value: V, gone: bool) -> None:  # noqa: FBT001 - one of a table
    if gone:
        into.pop(name, None)
    else:
        into[name] = value


def _tell_change(raw: Raw) -> str:
    """Return the writer of the last change, and what the conditions of the object say now."""
    conditions = raw.get("status", {}).get("conditions") or ()
    said = [f"{each.get('reason', '')} {each.get('message', '')}".strip() for each in conditions]
    return ", ".join([_name_writer(raw), *said])


def _name_writer(raw: Raw) -> str:
    """Return the last writer by ``managedFields``."""
    entries: list[dict[str, Any]] = [each for each in raw["metadata"].get("managedFields") or () if each.get("time")]
    if not entries:
        return "changed"
    return f"changed by {max(entries, key=lambda each: str(each['time'])).get('manager', '?')}"


_SEERS: Mapping[str, Callable[[Observed, Raw, float, bool], None]] = {
    "pods": Observed.see_pod,
    "podgroups": Observed.see_group,
    "compositepodgroups": Observed.see_composite,
    "nodes": Observed.see_node,
    "reservations": Observed.see_record,
    "jobs": Observed.see_owner,
}
