"""The state that the page at ``/debug/`` shows, as compact rows, and the changes of these rows.

`extender.look.page.Broadcast` calls `Sketch.refresh` once per second, then `Sketch.take_change`. A refresh pauses now
and then, so its parts may be of slightly different times. The next refresh corrects that.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Container, Generator, Hashable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Generic, TypeVar

from extender.core.scheduling.group import GroupState
from extender.features.backfill import Head
from extender.features.status.reports import LoggedDecision
from extender.look.views import count_placed, describe_verdict, find_domain, find_since, name_state
from extender.wiring import Core
from serried.api.group import PodGroup
from serried.api.interpod import HOSTNAME
from serried.api.names import GroupKey
from serried.api.node import Node
from serried.api.resources import Resources, add
from serried.plan.request import QueueKey

_MAX_LEVELS = 4
"""The largest number of topology levels on the page's map of the nodes."""

_SLICE_NODES = 100
"""The number of nodes after which a refresh may pause (`Sketch.refresh`)."""

Place = tuple[str, ...]
"""The place of a node on the page's map: the values of its labels for the levels of the map; "" for a missing label."""


class Places:
    """The topology levels of the page's map, and the place of each node on it.

    The levels are chosen again when labels of nodes or topology keys of groups have changed.
    """

    def __init__(self) -> None:
        self.levels: Place = ()
        """The label keys of the levels, the level with the fewest domains first."""

        self._seen: dict[str, Node] = {}
        self._named: frozenset[str] = frozenset()

    def place_of(self, node: Node) -> Place:
        """Return the values of a node's labels for the present levels; "" for a missing label."""
        return tuple(node.labels.get(level, "") for level in self.levels)

    def choose_levels(self, nodes: Mapping[str, Node], named: Collection[str]) -> Iterator[None]:
        """Choose the levels of the map among the labels of the nodes.

        ``named`` are the topology keys that groups require or prefer; they come first. Yield where the work may pause.
        """
        chosen = frozenset(named)
        if chosen == self._named and not self._have_labels_changed(nodes):
            return
        self._named = chosen
        values: dict[str, set[str]] = defaultdict(set)
        for index, node in enumerate(list(nodes.values())):
            for key, value in node.labels.items():
                if key != HOSTNAME and (key in chosen or "topology" in key.partition("/")[0]):
                    values[key].add(value)
            if index % _SLICE_NODES == 0:
                yield
        self.levels = _choose(values, chosen, len(nodes))

    def _have_labels_changed(self, nodes: Mapping[str, Node]) -> bool:
        """Return whether a node was added or deleted, or its labels have changed, since the last call."""
        seen = self._seen
        changed = len(seen) != len(nodes)
        for name, node in nodes.items():
            before = seen.get(name)
            if before is not node:
                changed = changed or before is None or before.labels != node.labels
                seen[name] = node
        if len(seen) != len(nodes):
            self._seen = dict(nodes)
        return changed


def _choose(values: Mapping[str, Collection[str]], named: Collection[str], nodes: int) -> Place:
    # A label with a different value on nearly every node is a name, and no level.
    levels = [key for key, found in values.items() if key in named or len(found) <= max(1, nodes // 2)]
    levels.sort(key=lambda key: (key not in named, len(values[key]), key))
    return tuple(sorted(levels[:_MAX_LEVELS], key=lambda key: (len(values[key]), key)))


K = TypeVar("K", bound=Hashable)

Row = tuple[Any, ...]


class Table(Generic[K]):
    """Rows by key, and which of them have changed since they were last sent to readers.

    Readers get each row with its number as an additional first column. A number is never reused for another key.
    """

    def __init__(self) -> None:
        self._numbers: dict[K, int] = {}
        self._rows: dict[int, Row] = {}
        self._made_of: dict[K, tuple[object, ...]] = {}
        self._changed: dict[int, None] = {}
        self._deleted: list[int] = []
        self._next = 0

    def __len__(self) -> int:
        return len(self._rows)

    def number_of(self, key: K) -> int | None:
        """Return the number of the row with this key; None if there is none."""
        return self._numbers.get(key)

    def put(self, key: K, row: Row) -> int:
        """Set the row of a key, and return its number.

        If an equal row is there already, it does not count as changed.
        """
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = self._next
            self._next += 1
        if self._rows.get(number) != row:
            self._rows[number] = row
            self._changed[number] = None
        return number

    def put_if_changed(self, key: K, made_of: tuple[object, ...], make: Callable[[], Row]) -> None:
        """Set the row of a key to the result of ``make``, but call ``make`` only if its input has changed.

        ``made_of`` is the input: the values of which the row is made.
        """
        if self._made_of.get(key) != made_of:
            self._made_of[key] = made_of
            self.put(key, make())

    def delete_others(self, keys: Container[K]) -> None:
        """Delete all rows whose keys are not in ``keys``."""
        for key in [key for key in self._numbers if key not in keys]:
            number = self._numbers.pop(key)
            self._made_of.pop(key, None)
            del self._rows[number]
            self._changed.pop(number, None)
            self._deleted.append(number)

    def take_changed(self) -> list[Row]:
        """Return the rows that were added or changed since the last call, each with its number as first column."""
        changed = [(number, *self._rows[number]) for number in self._changed]
        self._changed = {}
        return changed

    def take_deleted(self) -> list[int]:
        """Return the numbers of the rows that were deleted since the last call."""
        deleted = self._deleted
        self._deleted = []
        return deleted

    def in_parts(self, size: int) -> Iterator[list[Row]]:
        """Yield all rows, each with its number as first column, in lists of ``size`` rows."""
        rows = iter(list(self._rows.items()))
        while part := [(number, *row) for number, row in islice(rows, size)]:
            yield part


Message = dict[str, Any]
"""A message to readers, as JSON. A missing field has not changed since the last message."""

_SLICE_ROWS = 16
"""The number of rows after which a refresh may pause."""

_SLICE_GROUPS = 200
"""The number of groups after which a refresh may pause while it reads only their topology keys."""

_PART_ROWS = 250
"""The number of rows in one message when the whole state is sent."""

_MAX_GANGS = 5_000
"""The largest number of groups that are shown; `gangsLeftOff` is the number of further ones."""

_MAX_TEXT = 300
"""The number of characters after which a sentence is cut; ``/debug/groups/NAMESPACE/NAME`` shows all of it."""

_MAX_DECISIONS = 200
"""The number of past decisions that a new reader gets."""

_NOTHING: Resources = {}

CORDONED, KEPT_FOR_HEAD, KEPT_FOR_REPLACEMENT, ENDING = (1, 2, 4, 8)


COLUMNS = {
    "nodes": ("number", "name", "place", "used", "planned", "marks"),
    "gangs": (
        *("number", "namespace", "name", "kind", "state", "reason", "message"),
        *("quorum", "members", "placed", "priority", "key", "domain", "since", "owner"),
    ),
    "decisions": ("number", "at", "group", "reason", "text", "id", "owner"),
}
"""The names of the columns of each table that readers get.

For a node, ``place`` is the row number of its place on the map. ``used`` is the percentage of its most used resource
that bound pods use, ``planned`` the additional percentage that planned members will use. ``marks`` is a sum: 1 if the
node is cordoned, 2 if its free resources are kept for the head of the queue, 4 if a slot on it is kept for a
replacement, 8 if victims on it are ending.

For a gang, ``since`` is the time since which it waits, is broken or runs. ``owner`` is the gang's owner as kubectl
names it (``job/train``); "" without one, and in a decision also for a gang that is gone.
"""


class Sketch:
    """The state of the core as rows of nodes, gangs and decisions, and what has changed since readers got it.

    An instance lives while the page has readers. ``decisions`` is the log of decisions that `Reports` keeps, the oldest
    first.
    """

    def __init__(self, core: Core, decisions: Sequence[LoggedDecision]) -> None:
        self._core = core
        self._decisions = decisions
        self._places = Places()
        self._place_table: Table[Place] = Table()
        self._nodes: Table[str] = Table()
        self._gangs: Table[GroupKey] = Table()
        self._whole: Message = {}
        """The fields of messages other than rows, such as the head of the queue, after the last refresh."""
        self._sent: Message = {}
        """The fields of messages other than rows, as they were last sent to readers."""
        self._log: list[Row] = []
        self._new_log: list[Row] = []
        self._last: LoggedDecision | None = None
        self._logged = 0

    # --- a refresh ---------------------------------------------------------------------------------------------

    def refresh(self) -> Iterator[None]:
        """Read the state of the core into the rows. Yield wherever the caller may pause, so that filter is served."""
        store = self._core.store
        named = yield from self._find_named_keys()
        yield from self._places.choose_levels(store.nodes, named)
        yield
        planned, ending = yield from self._sum_plans()
        yield from self._refresh_nodes(planned, ending)
        yield from self._refresh_gangs()
        yield from self._refresh_queue()
        self._refresh_decisions()
        self._whole |= {"levels": self._places.levels, "extender": self._describe_extender()}

    def _find_named_keys(self) -> Generator[None, None, set[str]]:
        named: set[str] = set()
        for index, group in enumerate(list(self._core.store.groups.values())):
            if group.topology_key is not None:
                named.add(group.topology_key)
            named.update(level.key for level in group.preference.levels)
            if index % _SLICE_GROUPS == 0:
                yield
        return named

    def _sum_plans(self) -> Generator[None, None, tuple[dict[str, Resources], set[str]]]:
        pods = self._core.store.pods
        planned: dict[str, Resources] = {}
        ending: set[str] = set()
        for reservation in self._core.ledger:
            for slot in reservation.slots.values():
                pod = pods.get(slot.uid)
                if pod is not None and not pod.bound:
                    planned[slot.node] = add(planned.get(slot.node, {}), dict(pod.shape.requests))
            ending.update(pods[uid].node for uid in reservation.victims if uid in pods)
            yield
        return planned, ending

    def _refresh_nodes(self, planned: Mapping[str, Resources], ending: set[str]) -> Iterator[None]:
        store, head = self._core.store, self._core.backfill.head
        kept = head.forecast.nodes if head is not None else frozenset[str]()
        vacant = {one.pod.node for one in store.vacancies if not one.refusal}
        for index, node in enumerate(list(store.nodes.values())):
            marks = (
                CORDONED * node.unschedulable
                + KEPT_FOR_HEAD * (node.name in kept)
                + KEPT_FOR_REPLACEMENT * (node.name in vacant)
                + ENDING * (node.name in ending)
            )
            self._refresh_node(node, planned.get(node.name), marks)
            if index % _SLICE_ROWS == 0:
                yield
        self._nodes.delete_others(store.nodes)
        yield

    def _refresh_node(self, node: Node, planned: Resources | None, marks: int) -> None:
        used = self._core.store.occupancy.used.get(node.name, _NOTHING)

        def make() -> Row:
            place = self._places.place_of(node)
            return node.name, self._place_table.put(place, (place,)), *_measure_use(node, used, planned), marks

        self._nodes.put_if_changed(node.name, (node, used, planned, marks, self._places.levels), make)

    def _refresh_gangs(self) -> Iterator[None]:
        store = self._core.store
        keys = list(store.groups.keys() | dict.fromkeys(store.members.groups()).keys())
        self._whole["gangsLeftOff"] = max(0, len(keys) - _MAX_GANGS)
        shown = dict.fromkeys(keys[:_MAX_GANGS])
        for index, key in enumerate(shown):
            self._refresh_gang(key)
            if index % _SLICE_ROWS == 0:
                yield
        self._gangs.delete_others(shown)
        yield

    def _refresh_queue(self) -> Iterator[None]:
        queue, states = self._core.queue, self._core.groups.states
        places: list[tuple[QueueKey, int]] = []
        for index, key in enumerate(list(queue.unschedulable)):
            number = self._gangs.number_of(key)
            if number is not None:
                places.append((queue.sort_key(queue.describe(key, states.get(key))), number))
            if index % _SLICE_ROWS == 0:
                yield
        self._whole["order"] = [number for _, number in sorted(places)]
        self._whole["head"] = _view_head(self._core, self._core.backfill.head)
        yield

    def _refresh_decisions(self) -> None:
        fresh: list[LoggedDecision] = []
        for said in reversed(self._decisions):
            if said is self._last:
                break
            fresh.append(said)
        for said in reversed(fresh):
            self._logged += 1
            owner = self._core.store.membership.name_owner(said.group)
            row = (self._logged, said.at, str(said.group), said.reason, said.text[:_MAX_TEXT], said.id, owner)
            self._new_log.append(row)
            self._last = said
        self._log = [*self._log, *self._new_log][-_MAX_DECISIONS:]

    def _describe_extender(self) -> Message:
        term = self._core.term
        synced = self._core.service.synced and not self._core.store.obstacles.needed
        return {"synced": synced, "plans": term.plans, "obstacle": term.obstacle}

    # --- one group ---------------------------------------------------------------------------------------------

    def _refresh_gang(self, key: GroupKey) -> None:
        group, state = self._core.store.groups.get(key), self._core.groups.states.get(key)
        verdict = state.verdict if state is not None else None
        stage = state.cycle.stage if state is not None and state.cycle is not None else None
        store = self._core.store
        # A changed pod is a new object, so comparing these shows whether the row has to be made again.
        of = (group, verdict, stage, store.members.of_group(key), store.priorities.find_object_priority(key))
        self._gangs.put_if_changed(key, of, lambda: self._make_gang(key, group, state))

    def _make_gang(self, key: GroupKey, group: PodGroup | None, state: GroupState | None) -> Row:
        store = self._core.store
        members = store.members.of_group(key)
        reason, message = describe_verdict(state)
        return (
            key.namespace,
            key.encoded,
            key.kind.value,
            name_state(state),
            reason,
            message[:_MAX_TEXT],
            (group.policy.min_count or 0) if group is not None else 0,
            len(members),
            count_placed(self._core, key),
            store.priorities.of_group(key),
            (group.topology_key or "") if group is not None else "",
            find_domain(self._core, group, state, members),
            find_since(self._core, state),
            store.membership.name_owner(key),
        )

    # --- what readers get --------------------------------------------------------------------------------------

    def take_change(self) -> Message:
        """Return what has changed since the last call, as a message; it is empty if nothing has."""
        places, nodes = self._place_table.take_changed(), self._nodes.take_changed()
        gangs = self._gangs.take_changed()
        change: Message = {
            "places": places,
            "nodes": nodes,
            "nodesGone": self._nodes.take_deleted(),
            "gangs": gangs,
            "gangsGone": self._gangs.take_deleted(),
            "decisions": self._new_log,
        }
        self._new_log = []
        change |= {name: value for name, value in self._whole.items() if self._sent.get(name) != value}
        self._sent = dict(self._whole)
        return {name: value for name, value in change.items() if value or name in self._whole}

    def write_whole(self) -> Iterator[Message]:
        """Yield the whole state in several messages.

        The first has ``reset``: readers drop their state. The last has ``complete``.
        """
        yield {"reset": True, "columns": COLUMNS}
        for part in self._place_table.in_parts(_PART_ROWS):
            yield {"places": part}
        for part in self._nodes.in_parts(_PART_ROWS):
            yield {"nodes": part}
        for part in self._gangs.in_parts(_PART_ROWS):
            yield {"gangs": part}
        yield {**self._whole, "decisions": self._log, "complete": True}


def _measure_use(node: Node, used: Resources, planned: Resources | None) -> tuple[int, int]:
    """Return how full a node is by its most used resource: the percentage of bound pods, and that of planned members.

    ``used`` are the resources of both, ``planned`` those of planned members alone; None without any.
    """
    if not used:
        return 0, 0
    most, most_before = 0.0, 0.0
    for name, there in node.allocatable.items():
        amount = used.get(name, 0)
        if there <= 0 or amount <= 0 or ":" in name:
            continue
        share = amount / there
        if share > most:
            most, most_before = share, share - (planned.get(name, 0) / there if planned else 0.0)
    full = max(1, min(100, round(most * 100)))
    before = max(0, min(full, round(most_before * 100))) if planned else full
    return before, full - before


def _view_head(core: Core, head: Head | None) -> Message | None:
    if head is None:
        return None
    format_time = core.backfill.format_time
    return {
        "group": str(head.group),
        "domain": head.forecast.domain,
        "nodes": len(head.forecast.nodes),
        "forecast": "" if head.forecast.at is None else format_time(head.forecast.at),
        "until": format_time(head.until),
        "missed": head.has_missed,
        "passed": sorted(str(group) for group in head.passed),
    }
