"""The promises as rules over what was observed: each yields what breaks it at this moment. Pure."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from tests.chaos.excuses import ANYTHING, TELLING
from tests.chaos.objects import Group, Name, Node, Pod
from tests.chaos.observed import RACE_SECONDS, Climb, Observed

ORPHAN_SECONDS = 15.0
LATE_SECONDS = 60.0
"""For a member beyond the quorum, to which kube-scheduler may come late."""

REASON_SECONDS = 10.0
FRESH_SECONDS = 5.0
"""The time for which a message that was read on ``/debug`` counts. It is read every second."""

FINALIZER_SECONDS = 75.0
"""The controller looks again after pauses of up to 30 s."""

FIT_SECONDS = 90.0

Room = tuple[Node, int, int]
"""A node with the CPU and the places for pods that are free on it."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that is broken: by which rule, about what, and how."""

    rule: str
    subject: str
    text: str


def allow_climb_seconds(min_count: int) -> float:
    """Return the seconds that a gang may take from its first Binding to minCount."""
    return 2.0 + min_count / 200


def find_half_bound(seen: Observed, now: float) -> Iterator[Violation]:
    """Promise 1: 0 < bound < minCount is over soon, outside of a recovery."""
    for group in seen.list_gangs():
        climb = seen.climbs.get(group.name)
        if climb is None or climb.whole is not None:
            continue
        took = seen.excuses.count_clear(climb.begun, now, _name_subjects(seen, group))
        if took > allow_climb_seconds(group.min_count):
            text = f"{len(climb.risen)} of {group.min_count} bound for {took:.1f} s outside of a recovery"
            yield Violation("half bound", _show(group.name), text)


def find_half_trees(seen: Observed, now: float) -> Iterator[Violation]:
    """Promise 1 for trees: of the groups of a gang of groups so many start, or none."""
    for tree in list(seen.composites.values()):
        leaves = seen.list_leaves(tree)
        whole = [leaf for leaf in leaves if _is_whole(seen.climbs.get(leaf.name))]
        begun = [seen.climbs[leaf.name].begun for leaf in leaves if leaf.name in seen.climbs]
        short = begun and tree.name not in seen.grown and not tree.deleting
        subjects = [name for leaf in leaves for name in _name_subjects(seen, leaf)]
        took = seen.excuses.count_clear(min(begun), now, subjects) if short else 0.0
        if took > allow_climb_seconds(sum(leaf.min_count for leaf in leaves)):
            text = f"{len(whole)} of {tree.min_groups} groups are whole for {took:.1f} s outside of a recovery"
            yield Violation("half bound", _show(tree.name), text)


def _is_whole(climb: Climb | None) -> bool:
    return climb is not None and climb.whole is not None


def _name_subjects(seen: Observed, group: Group) -> list[str]:
    return [f"{group.name[0]}/{group.name[1]}", *(_show(pod.name) for pod in seen.members(group.name))]


def find_split_domains(seen: Observed, _now: float) -> Iterator[Violation]:
    """Promise 2: the members that run are in one domain of the required key, those of a tree together."""
    for group in [*seen.groups.values(), *seen.composites.values()]:
        if not group.key:
            continue
        leaves = [each.name for each in seen.groups.values() if (group.name[0], each.parent) == group.name]
        members = [pod for name in (group.name, *leaves) for pod in seen.members(name)]
        runs = [pod for pod in members if pod.node and not pod.ended and not pod.deleting]
        domains = {seen.labels.get(pod.node, {}).get(group.key, "") for pod in runs}
        if len(domains) > 1 or "" in domains:
            yield Violation("domain", _show(group.name), f"members run in {sorted(domains)} of {group.key}")


def find_overcommitted(seen: Observed, now: float) -> Iterator[Violation]:
    """No node has more than it holds by a Binding of ours that could have known."""
    used: dict[str, list[Pod]] = defaultdict(list)
    for pod in seen.pods.values():
        if pod.node and not pod.ended:
            used[pod.node].append(pod)
    for name, pods in used.items():
        node = seen.nodes.get(name)
        milli = sum(pod.milli_cpu for pod in pods)
        if node is None or (milli <= node.milli_cpu and len(pods) <= node.pods):
            seen.hold("overcommitted", ("", name), now, holds=False)
        elif seen.hold("overcommitted", ("", name), now, holds=True) == 0.0 and not seen.is_contested(name, now):
            text = f"{milli}m of {node.milli_cpu}m CPU, {len(pods)} of {node.pods} pods"
            yield Violation("over-committed", name, text)


def find_refused(seen: Observed, _now: float) -> Iterator[Violation]:
    """The same, as a kubelet judges it at each single Binding."""
    for refusal in list(seen.refused.values()):
        if not refusal.contested:
            pod = refusal.pod
            yield Violation("over-committed", _show(pod.name), f"{refusal.reason} on {pod.node}: {refusal.text}")


def find_orphans(seen: Observed, now: float) -> Iterator[Violation]:
    """Promise 3: no record and no nomination of ours without a gang that they are for."""
    groups = {group.uid for group in (*seen.groups.values(), *seen.composites.values())} | set(seen.owners.values())
    for record in list(seen.records.values()):
        took = _count_held(seen, "orphan", record.name, now, holds=record.group_uid not in groups)
        if took > ORPHAN_SECONDS:
            yield Violation("orphan", _show(record.name), f"a Reservation of a group that is gone for {took:.0f} s")
    kept = {record.group_uid for record in seen.records.values()}
    for pod in list(seen.pods.values()):
        held = kept & _name_groups(seen, pod) or _is_under_way(seen, pod)
        stray = bool(pod.nominated) and not pod.node and not pod.deleting and not held
        took = _count_held(seen, "stray", pod.name, now, holds=stray)
        if took > (LATE_SECONDS if _is_late(seen, pod) else ORPHAN_SECONDS):
            text = f"nominated to {pod.nominated} for {took:.0f} s, and its gang has neither a record nor a plan"
            yield Violation("orphan", _show(pod.name), text)


def _is_under_way(seen: Observed, pod: Pod) -> bool:
    """Return whether ``/debug`` says that the pod's gang is placed.

    A plan without victims has no record before its commit.
    """
    group = seen.groups.get(pod.group) if pod.group is not None else None
    names = () if group is None else (group.name, (group.name[0], group.parent))
    return any(seen.told.get(name, "").startswith("Planned") for name in names)


def _is_late(seen: Observed, pod: Pod) -> bool:
    """Return whether the quorum of the pod's gang is bound. No record names the slots of members that come later."""
    return pod.group is not None and _is_whole(seen.climbs.get(pod.group))


def _name_groups(seen: Observed, pod: Pod) -> set[str]:
    """The UIDs of its PodGroup and of the CompositePodGroup above it."""
    group = seen.groups.get(pod.group) if pod.group is not None else None
    if group is None:
        return set()
    root = seen.composites.get((group.name[0], group.parent))
    return {group.uid} if root is None else {group.uid, root.uid}


def find_silent(seen: Observed, now: float) -> Iterator[Violation]:
    """Promise 4: a gang that waits has a reason, in its condition and on ``/debug``, and ``/debug`` answers."""
    fresh = now - seen.told_at <= FRESH_SECONDS
    for group in seen.list_gangs():
        waits = any(_is_waiting(pod) for pod in seen.members(group.name)) and group.name not in seen.climbs
        # The root may say it, so what befell a write about the root counts as well.
        root_name = (group.name[0], group.parent)
        root = seen.composites.get(root_name)
        said = group.reason or group.scheduled or (root is not None and (root.reason or root.scheduled))
        took = _count_held(seen, "unsaid", group.name, now, holds=waits and not said, beside=root_name)
        if took > REASON_SECONDS:
            yield Violation("silent", _show(group.name), f"waits for {took:.0f} s, and no condition says why")
        shown = group.parent or (fresh and seen.told.get(group.name))
        took = _count_held(seen, "unshown", group.name, now, holds=waits and not shown)
        if took > REASON_SECONDS:
            why = "does not say why" if fresh else f"was read {now - seen.told_at:.0f} s ago for the last time"
            yield Violation("silent", _show(group.name), f"waits for {took:.0f} s, and /debug {why}")


def find_leaked(seen: Observed, now: float) -> Iterator[Violation]:
    """Yield groups that a finalizer keeps although they are being deleted and no pod names them."""
    for group in [*seen.groups.values(), *seen.composites.values()]:
        alive = [pod for pod in seen.members(group.name) if not pod.ended]
        stays = group.deleting and bool(group.finalizers) and not alive
        took = _count_held(seen, "leaves", group.name, now, holds=stays, components=ANYTHING)
        if took > FINALIZER_SECONDS:
            text = f"is being deleted for {took:.0f} s, held by {', '.join(group.finalizers)}"
            yield Violation("leaked finalizer", _show(group.name), text)


def find_unrest(seen: Observed, now: float) -> Iterator[Violation]:
    """At rest nobody writes."""
    if seen.rest_since is None:
        return
    for change in seen.changes:
        if seen.rest_since < change.at <= now:
            yield Violation("write at rest", f"{change.kind} {_show(change.name)}", change.what)


def find_overlooked(seen: Observed, now: float) -> Iterator[Violation]:
    """A gang that fits is bound within ``FIT_SECONDS`` of the last fault."""
    free = _find_free(seen)
    for group in seen.list_gangs():
        fits = not group.parent and not _is_behind(group) and _would_fit(seen, free, group.key, [group])
        yield from _find_left(seen, "fits", group, now, fits=fits)


def find_overlooked_trees(seen: Observed, now: float) -> Iterator[Violation]:
    """The same for trees, unless groups in them have a domain of their own: whether those fit takes a search."""
    free = _find_free(seen)
    for tree in list(seen.composites.values()):
        leaves = seen.list_leaves(tree)
        waits = not tree.deleting and not any(_is_behind(each) or each.name in seen.climbs for each in (tree, *leaves))
        judged = waits and tree.min_groups and not tree.parent and not any(leaf.key for leaf in leaves)
        ready = sorted((leaf for leaf in leaves if _is_ready(seen, leaf)), key=lambda leaf: leaf.min_count)
        enough = bool(judged) and len(ready) >= tree.min_groups
        fits = enough and _would_fit(seen, free, tree.key, ready[: tree.min_groups])
        yield from _find_left(seen, "tree fits", tree, now, fits=fits)


def find_unrepaired(seen: Observed, now: float) -> Iterator[Violation]:
    """The same for gangs that were whole and have lost members: others come in their place. Trees are not judged."""
    free = _find_free(seen)
    for group in seen.list_gangs():
        climb = seen.climbs.get(group.name)
        waits = _is_whole(climb) and not group.parent and "BehindHead" not in seen.told.get(group.name, "")
        yield from _find_left(seen, "could be mended", group, now, fits=waits and _would_be_whole(seen, free, group))


def _would_be_whole(seen: Observed, free: Sequence[Room], group: Group) -> bool:
    """Return whether as many members wait as are missing, and have room where the others run."""
    members = seen.members(group.name)
    run = [pod for pod in members if pod.node and not pod.ended and not pod.deleting]
    missing = group.min_count - len(run) - sum(pod.succeeded for pod in members)
    waiting = _list_waiting(seen, group)
    homes = {seen.labels.get(pod.node, {}).get(group.key, "") for pod in run} if group.key else set()
    near = [room for room in free if not homes or room[0].labels.get(group.key, "") in homes]
    return 0 < missing <= len(waiting) and _has_room(near, group.key, waiting, missing)


def _find_left(seen: Observed, what: str, group: Group, now: float, *, fits: bool) -> Iterator[Violation]:
    took = seen.hold(what, group.name, now, holds=fits)
    if fits and min(took, now - seen.excuses.last_fault) > FIT_SECONDS:
        yield Violation("overlooked", _show(group.name), f"fits for {took:.0f} s and is not bound: {group.reason}")


def _is_behind(group: Group) -> bool:
    # Room may be kept for the first in the queue; that one then has to get it.
    return "BehindHead" in group.reason


def _would_fit(seen: Observed, free: Sequence[Room], key: str, leaves: Sequence[Group]) -> bool:
    """Return whether the quorum of each group waits, and all of them have room together in one domain of the key."""
    if not all(_is_ready(seen, leaf) for leaf in leaves):
        return False
    waiting = [pod for leaf in leaves for pod in _list_waiting(seen, leaf)]
    return _has_room(free, key, waiting, sum(leaf.min_count for leaf in leaves))


def _is_ready(seen: Observed, group: Group) -> bool:
    return group.name not in seen.climbs and len(_list_waiting(seen, group)) >= group.min_count


def _list_waiting(seen: Observed, group: Group) -> list[Pod]:
    return [pod for pod in seen.members(group.name) if _is_waiting(pod)]


def _find_free(seen: Observed) -> list[Room]:
    """The free CPU and the free places for pods of each node that admits pods."""
    used: dict[str, list[int]] = defaultdict(list)
    for pod in seen.pods.values():
        if pod.node and not pod.ended:
            used[pod.node].append(pod.milli_cpu)
    nodes = [node for node in seen.nodes.values() if node.admits]
    return [(node, node.milli_cpu - sum(used[node.name]), node.pods - len(used[node.name])) for node in nodes]


def _has_room(free: Sequence[Room], key: str, members: Sequence[Pod], count: int) -> bool:
    size = max(1, *(pod.milli_cpu for pod in members))
    slots: dict[str, int] = defaultdict(int)
    for node, milli, places in free:
        if domain := node.labels.get(key, "") if key else "everywhere":
            slots[domain] += max(0, min(places, milli // size))
    return max(slots.values(), default=0) >= count


def _is_waiting(pod: Pod) -> bool:
    return pod.ours and not (pod.node or pod.ended or pod.deleting or pod.gated)


def _count_held(
    seen: Observed,
    what: str,
    name: Name,
    now: float,
    *,
    holds: bool,
    beside: Name = ("", ""),
    components: Collection[str] = TELLING,
) -> float:
    """For how many seconds something holds outside of a recovery, which is one of these components'."""
    took = seen.hold(what, name, now, holds=holds)
    return seen.excuses.count_clear(now - took, now, [_show(name), _show(beside)], components) if took else 0.0


def _show(name: Name) -> str:
    return "/".join(part for part in name if part)


RULES: tuple[Callable[[Observed, float], Iterator[Violation]], ...] = (
    find_half_bound,
    find_half_trees,
    find_split_domains,
    find_overcommitted,
    find_refused,
    find_orphans,
    find_silent,
    find_leaked,
    find_unrest,
    find_overlooked,
    find_overlooked_trees,
    find_unrepaired,
)


def list_in_force(seen: Observed, since: float, now: float) -> Iterator[tuple[str, float]]:
    """For how many of the seconds between two moments each rule was in force: nothing excused everybody from it."""
    clear = seen.excuses.count_clear(since, now)
    seeing = seen.excuses.count_clear(since, now, components=TELLING)
    # At rest nobody is to be bound, so rules about that have nothing to judge.
    rests = seen.rest_since is not None
    works = 0.0 if rests else now - since
    yield "half bound", 0.0 if rests else clear
    yield "orphan", seeing
    yield "silent", seeing
    yield "leaked finalizer", seen.excuses.count_clear(since, now, components=ANYTHING)
    yield "domain", works
    yield "over-committed", 0.0 if seen.excuses.was_split(now - RACE_SECONDS) else works
    yield "write at rest", now - max(since, seen.rest_since) if seen.rest_since is not None else 0.0
    yield "overlooked", max(0.0, min(works, now - seen.excuses.last_fault - FIT_SECONDS))


def judge(seen: Observed, now: float) -> list[Violation]:
    """Everything that is broken at this moment."""
    seen.tick(now)
    return [violation for rule in RULES for violation in rule(seen, now)]
