"""Places members with rules about each other: affinity, anti-affinity and topology spread (`place_one_by_one`).

`serried.plan.packing.pack` calls it if the place of one member affects where others may be. Members are placed one at a
time, because each placement changes which nodes are feasible for the next. Nodes that are interchangeable for all rules
form a cell, for instance the nodes of one zone. For each member, the cell with the fewest matching pods is tried first,
then one near placed members. If the quorum does not fit, other orders and other first domains are tried, and then all
ways within the plan's budget of steps. For a large gang, no plan may be found although one exists; a plan is always
valid.

`list_waves` splits the placed members into waves, i.e. sets of members that kube-scheduler may try in any order.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import islice

from serried.api.pod import Pod
from serried.api.preference import Style
from serried.api.resources import Resources, add, capacity, count_slots, subtract
from serried.plan.capacity import MemberClass, group_classes
from serried.plan.placement import Placement, PlanState, StepBudget
from serried.plan.request import Snapshot
from serried.plan.rule import GangRules, read_rules

Move = tuple[MemberClass, str]
"""One placed member: its class (`MemberClass`, members of equal shape), and the name of its node."""

Cost = tuple[int, ...]

_MAX_NODES_WITH_MEMBERS_TRIED = 8

_UNITS_OF_A_MOVE = 10
"""The work of placing one member, in units of `Limit.spent`: as much as for counting some nodes."""

_MAX_EXACT = 16
"""The largest gang, in members, for which all ways are tried to place every member.

For larger gangs all ways are tried to place the quorum only.
"""

_MAX_STARTS = 64
"""The maximum number of domains that are tried for the first member, if by affinity all must join its domain."""


class OneByOneSearch:
    """The search for nodes in one domain (``placement``) for members with rules about each other.

    ``moves`` are the members placed so far. Call `find_cells` first. A cell is a set of nodes that are interchangeable
    for all rules; it is given by its number.
    """

    def __init__(self, state: PlanState, placement: Placement, rules: GangRules) -> None:
        self._state = state
        self._census = state.census
        self._limit = state.limit
        self._rules = rules
        self._slots: dict[MemberClass, dict[str, int]] = {}
        for kind, barred in _list_excluded_nodes(state, placement).items():
            node_counts = state.census.node_counts(kind, placement.names)
            self._slots[kind] = {name: slots for slots, name in node_counts if name not in barred}
        self._names = sorted({name for kind in state.classes for name in kind.request})
        self._taken: dict[str, Resources] = {}
        self._left = {kind: len(kind.members) for kind in state.classes}
        self._cells: list[list[str]] = []
        self._cell_of: dict[str, int] = {}
        self._here: Counter[int] = Counter()
        """The number of placed members by number of the cell. A cell has nodes that are alike for the rules."""

        self._touched: list[dict[str, None]] = []
        """The nodes of each cell that have placed members, in the order of their first member."""

        self._ranked: dict[tuple[MemberClass, int], list[str]] = {}
        """The nodes without placed members by class and cell, those on which the most members fit last."""

        self.moves: list[Move] = []

    def find_cells(self) -> None:
        """Group the nodes into cells: nodes with equal values for all labels that matter to the rules.

        Cells get numbers from 0.
        """
        keys = self._rules.list_keys()
        by_domains: dict[tuple[str, ...], list[str]] = {}
        for name in sorted({name for slots in self._slots.values() for name in slots}):
            self._limit.spend()
            by_domains.setdefault(tuple([self._census.label(key, name) for key in keys]), []).append(name)
        self._cells = list(by_domains.values())
        self._cell_of = {name: place for place, names in enumerate(self._cells) for name in names}
        self._touched = [{} for _ in self._cells]

    # --- one member ------------------------------------------------------------------------------------------------

    def _count_fitting(self, kind: MemberClass, name: str) -> int:
        """Return how many more of the equal members ``kind`` fit on a node besides the members placed so far."""
        slots = self._slots[kind].get(name, 0)
        taken = self._taken.get(name)
        if not slots or not taken:
            return slots
        return count_slots(self._census.allocatable(name), add(self._census.used(name), taken), kind.request)

    def _apply(self, kind: MemberClass, name: str) -> None:
        """Place one of the equal members ``kind`` on a node."""
        self.moves.append((kind, name))
        self._left[kind] -= 1
        self._taken[name] = add(self._taken.get(name, {}), kind.request)
        self._here[self._cell_of[name]] += 1
        self._touched[self._cell_of[name]][name] = None
        self._rules.place(kind, name)

    def _undo(self) -> None:
        """Remove the member that was placed last."""
        kind, name = self.moves.pop()
        self._left[kind] += 1
        self._taken[name] = subtract(self._taken[name], kind.request)
        self._here[self._cell_of[name]] -= 1
        self._rules.place(kind, name, -1)

    def clear(self) -> None:
        """Remove all placed members."""
        while self.moves:
            self._undo()
        self._touched = [{} for _ in self._cells]
        self._ranked = {}

    # --- one way, never undone -------------------------------------------------------------------------------------

    def fill(self, order: Sequence[MemberClass], may_use: Callable[[str], bool] = lambda _: True) -> None:
        """Place members until no more can be placed.

        A class has equal members. Each step finds the first class in ``order`` of which a member still fits, and places
        one of its members. Nodes are only used if ``may_use`` returns True for their name.
        """
        queues = {}
        for kind in order:
            queues[kind] = _CellQueue(self, kind, self._price_usable_cells(kind, may_use))
        while True:
            found = next(((kind, name) for kind in order if (name := self._find(queues[kind], kind))), None)
            if found is None:
                return
            self._apply(*found)
            queues[found[0]].add(self._cell_of[found[1]])
            self._limit.spend(_UNITS_OF_A_MOVE)

    def _price_usable_cells(self, kind: MemberClass, may_use: Callable[[str], bool]) -> list[tuple[Cost, int]]:
        """Return (price, cell) of the cells that the equal members ``kind`` may use, see `price`.

        A cell has nodes that are alike for the rules. ``may_use`` returns whether a node may be used at present.
        """
        slots, priced = self._slots[kind], []
        for place, names in enumerate(self._cells):
            self._limit.spend()
            if may_use(names[0]) and any(name in slots for name in names):
                priced.append((self.price(kind, place), place))
        return priced

    def _find(self, queue: "_CellQueue", kind: MemberClass) -> str:
        if not self._left[kind]:
            return ""
        cell = queue.pop(len(self.moves))
        return "" if cell is None else self.choose_node(kind, cell)

    def admits(self, kind: MemberClass, cell: int) -> bool:
        """Return whether the rules allow one more of the equal members ``kind`` on the nodes of a cell.

        The nodes of a cell are alike for the rules.
        """
        return self._rules.admits(kind, self._cells[cell][0])

    def choose_node(self, kind: MemberClass, cell: int) -> str:
        """Return the node in a cell (nodes that are alike for the rules) for the next of the equal members ``kind``.

        A node with placed members is preferred, then the one on which the most members fit. With Style.SPREAD a node
        without placed members is preferred. Return "" if no node of the cell has enough free resources.
        """
        fresh = self._find_fresh(kind, cell)
        if fresh and self._state.ask.style is Style.SPREAD:
            return fresh
        touched = self._touched[cell]
        near = islice(reversed(touched), _MAX_NODES_WITH_MEMBERS_TRIED) if fresh else iter(touched)
        return next((name for name in near if self._count_fitting(kind, name)), fresh)

    def _find_fresh(self, kind: MemberClass, cell: int) -> str:
        names = self._ranked.get((kind, cell))
        if names is None:
            slots = self._slots[kind]
            names = sorted((name for name in self._cells[cell] if name in slots), key=lambda name: (slots[name], name))
            self._ranked[kind, cell] = names
        while names and names[-1] in self._touched[cell]:
            names.pop()
        return names[-1] if names else ""

    def price(self, kind: MemberClass, cell: int) -> Cost:
        """Return the sort key of a cell for the next of the equal members ``kind``; the lowest is tried first.

        The nodes of a cell are alike for the rules. The best is the one with the fewest pods that spread constraints
        count, then with the most placed members (with Style.SPREAD the fewest).
        """
        name, here = self._cells[cell][0], self._here[cell]
        return self._rules.crowding(kind, name), here if self._state.ask.style is Style.SPREAD else -here, cell

    # --- all ways --------------------------------------------------------------------------------------------------

    def _list_moves(self) -> Iterator[Move]:
        """Yield the possible next moves: a class (members of equal shape), and a node for one of them.

        Of nodes that are interchangeable only one is yielded.
        """
        for kind in [kind for kind, left in self._left.items() if left]:
            seen = set()
            for cell in sorted(range(len(self._cells)), key=lambda cell: self.price(kind, cell)):
                if not self.admits(kind, cell):
                    continue
                for name in self._cells[cell]:
                    alike = cell, self._describe(name)
                    if alike not in seen and self._count_fitting(kind, name):
                        seen.add(alike)
                        yield kind, name

    def _describe(self, name: str) -> tuple[object, ...]:
        """Return what distinguishes a node in its cell: its free resources, and the members that may use it.

        For the members it has one True or False for each class, i.e. members of equal shape.
        """
        used = add(self._census.used(name), self._taken.get(name, {}))
        there = self._census.allocatable(name)
        free = tuple([capacity(there, each) - used.get(each, 0) for each in self._names])
        return free, tuple([name in slots for slots in self._slots.values()])

    def try_all_ways(self, wanted: int, budget: StepBudget) -> Sequence[Move]:
        """Try all ways to place ``wanted`` members, until one is found or the budget of search steps is used up.

        Return the moves (class and node of each member) of the way that places most. Afterwards no member is placed.
        """
        best: Sequence[Move] = ()
        seen: set[frozenset[tuple[Move, int]]] = set()
        ways = [self._list_moves()]
        while ways and len(best) < wanted:
            move = next(ways[-1], None)
            if move is None:
                ways.pop()
                if self.moves:
                    self._undo()
                continue
            if not budget.spend(1 + len(self._cells)):
                break
            self._apply(*move)
            placed = frozenset(Counter(self.moves).items())
            if placed in seen:
                self._undo()
                continue
            seen.add(placed)
            best = max(best, tuple(self.moves), key=len)
            ways.append(self._list_moves())
        self.clear()
        return best

    # --- first domains ---------------------------------------------------------------------------------------------

    def list_first_domains(self, order: Sequence[MemberClass]) -> list[Callable[[str], bool]]:
        """Return filters for node names, one for each domain in which the first member may be placed, the best first.

        There are at most `_MAX_STARTS`. Each filter returns True for the nodes of its domain. They are needed for rules
        that make members share the domain of the first one, e.g. affinity to each other. Without such a rule return [].
        """
        for kind in order:
            key = self._rules.find_first_key(kind)
            if key is not None:
                return [self._only_domain(key, domain) for domain in self._rank_domains(kind, key)]
        return []

    def _rank_domains(self, kind: MemberClass, key: str) -> list[str]:
        rooms: Counter[str] = Counter()
        for name, slots in self._slots[kind].items():
            rooms[self._census.label(key, name)] += slots
        wanted = sum(self._left.values())
        # The smallest domain that may hold all members comes first, then the largest ones.
        ranked = sorted(rooms, key=lambda each: (rooms[each] < wanted, abs(rooms[each] - wanted), each))
        return list(islice(ranked, _MAX_STARTS))

    def _only_domain(self, key: str, domain: str) -> Callable[[str], bool]:
        return lambda name: self._census.label(key, name) == domain


class _CellQueue:
    """The cells that members of one class may use, the one with the lowest price first, see `OneByOneSearch.price`.

    A cell has nodes that are alike for the rules. A cell whose nodes the rules do not allow at the moment is tried
    again after another member was placed.
    """

    def __init__(self, search: OneByOneSearch, kind: MemberClass, priced: list[tuple[Cost, int]]) -> None:
        self._search = search
        self._kind = kind
        self._heap = priced
        heapify(self._heap)
        self._not_admitted: list[int] = []
        self._checked_at = -1
        """The number of placed members when the cells in ``_not_admitted`` were tried last; -1 if never."""

    def pop(self, placed: int) -> int | None:
        """Remove and return the best cell (by number) with a place for one more member; None without one.

        ``placed`` is the number of members placed so far. Cells that the rules did not allow are tried again only if
        ``placed`` differs from the last time. After placing a member, the caller adds the returned cell again (`add`).
        """
        while True:
            while self._heap:
                price, cell = heappop(self._heap)
                now = self._search.price(self._kind, cell)
                if now > price:
                    heappush(self._heap, (now, cell))
                elif not self._search.choose_node(self._kind, cell):
                    continue  # its nodes have no free resources, and will not get any
                elif self._search.admits(self._kind, cell):
                    return cell
                else:
                    self._not_admitted.append(cell)
            if not self._not_admitted or self._checked_at == placed:
                return None
            self._checked_at = placed
            for cell in self._not_admitted:
                self.add(cell)
            self._not_admitted = []

    def add(self, cell: int) -> None:
        """Add a cell, given by its number, with its present price."""
        heappush(self._heap, (self._search.price(self._kind, cell), cell))


def place_one_by_one(state: PlanState, placement: Placement, order: Sequence[MemberClass]) -> Sequence[Move]:
    """Place as many members of the gang as possible on the nodes of ``placement``.

    At least the quorum is placed if a way is found. ``state`` has the gang's request and rules. ``order`` are the
    classes (members of equal shape) in the order in which to try them. Return class and node of each placed member, in
    an order that kube-scheduler can follow: each node is feasible once the members before are assumed.
    """
    assert state.rules is not None  # noqa: S101 - for the type checker: the callers have checked it
    search = OneByOneSearch(state, placement, state.rules)
    search.find_cells()
    need, wanted = max(state.ask.need, 1), len(state.ask.members)
    best: Sequence[Move] = ()
    for may_use in (*search.list_first_domains(order), lambda _: True):
        for each in (order, order[::-1]) if len(order) > 1 else (order,):
            search.fill(each, may_use)
            if len(search.moves) > len(best):
                best = tuple(search.moves)
            search.clear()
            if len(best) == wanted or not state.budget.spend(wanted):
                return best
    budget = state.budget if len(best) < need else state.improving_budget
    if len(best) < need or wanted <= _MAX_EXACT:
        found = search.try_all_ways(wanted if wanted <= _MAX_EXACT else need, budget)
        best = max(best, found, key=len)
    return best


def _list_excluded_nodes(state: PlanState, placement: Placement) -> dict[MemberClass, frozenset[str]]:
    """Return the names of the nodes that kube-scheduler has rejected for all members of equal shape, by their class."""
    pairs = state.find_excluded(placement)
    names: dict[str, set[str]] = {}
    for uid, name in pairs:
        names.setdefault(uid, set()).add(name)
    return {
        kind: frozenset(set.intersection(*(names.get(member.uid, set()) for member in kind.members)))
        for kind in state.classes
    }


def list_waves(
    rules: GangRules, classes: Iterable[MemberClass], nodes: Mapping[str, str]
) -> tuple[tuple[str, ...], ...]:
    """Split members into waves: kube-scheduler may try the members of one wave in any order.

    A wave starts when the members of all waves before it are assumed. ``nodes`` has the node name by member UID, in an
    order that the rules allow. Return the UIDs of each wave. ``rules`` must have no members placed before the call, and
    have none after it.
    """
    kind_of = {member.uid: kind for kind in classes for member in kind.members}
    waves: list[list[str]] = []
    for uid, name in nodes.items():
        rules.limit.spend(_UNITS_OF_A_MOVE)
        if not waves or not rules.join_wave(kind_of[uid], name):
            rules.begin_wave()
            rules.join_wave(kind_of[uid], name)
            waves.append([])
        waves[-1].append(uid)
    for uid, name in nodes.items():
        rules.place(kind_of[uid], name, -1)
    return tuple(map(tuple, waves))


def restore_waves(snapshot: Snapshot, members: Sequence[Pod], nodes: Mapping[str, str]) -> tuple[tuple[str, ...], ...]:
    """Return the waves of a plan that was made earlier, for instance before a restart, as UIDs.

    ``nodes`` has the planned node name by member UID. The snapshot must not count the members. Return () if members may
    be tried in any order, if the rules no longer allow the plan, or if a planned node is gone.
    """
    classes = group_classes(members)
    rules = read_rules(snapshot, classes)
    if rules is None or not rules.couples or not all(name in snapshot.nodes for name in nodes.values()):
        return ()
    kind_of = {member.uid: kind for kind in classes for member in kind.members}
    order = rules.find_order({uid: (kind_of[uid], name) for uid, name in nodes.items()})
    return () if order is None else list_waves(rules, classes, order)
