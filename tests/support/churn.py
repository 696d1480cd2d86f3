"""A full cluster whose owners replace evicted pods, with a simulated kube-scheduler that preempts for plain pods.

In each turn victims end, owners create missing pods, the extender works, and the scheduler tries every pending pod.
Victims and preemptors are read from the writes to the API server, and not from the extender's decisions.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from random import Random
from typing import Any

from extender.core.protocol import Candidate, Hold, Steer
from serried.api.names import Disruption, GroupKey, Key
from serried.api.pod import Pod
from serried.api.reservation import Reservation, decode_reservation
from tests.support.builders import PodBuilder, Raw, node, pod, pod_group
from tests.support.extender_harness import SCHEDULER, BindCall, Harness

NODE_CPU = 4


@dataclass
class Owner:
    """An owner of equal pods, which creates a new pod for each one that is gone."""

    name: str
    priority: int
    """Priority of the pods, or of the PodGroup of a gang."""

    size: int
    """Number of pods."""

    cpu: int
    """CPUs of a pod."""

    min_count: int = 0
    """minCount of the gang; 0 for plain pods."""

    mode: Disruption = Disruption.SINGLE
    confined: bool = False
    """True if the gang needs one rack."""

    anew: bool = False
    """True if the owner deletes the whole gang when a member is lost, and creates one with a new name."""

    pod_priority: int | None = None
    """Priority of the members if it differs from the PodGroup's."""

    pods: list[str] = field(default_factory=list)
    """Names of the present pods."""

    gangs: int = 0
    """Number of gangs created so far."""

    @property
    def group(self) -> str:
        """Name of the present PodGroup."""
        return f"{self.name}-{self.gangs}"


@dataclass(frozen=True)
class Eviction:
    """One pod that was evicted for another owner."""

    turn: int
    preemptor: str
    """Name of the preemptor's owner."""

    victim: str
    """Name of the victim's owner."""

    pod: str
    """Name of the evicted pod."""

    priorities: tuple[int, int]
    """Priorities of the preemptor's and of the victim's owner."""


class LongHarness(Harness):
    """A Harness for many turns: `sync_pods` shows the cache only the pods that changed."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._shown: dict[Key, Raw] = {}

    def sync_pods(self) -> None:
        """Show the pods that have changed since the last call to the cache."""
        for key, raw in self.api.pods.items():
            if self._shown.get(key) != raw:
                self._shown[key] = deepcopy(raw)
                self.store.put_pod(PodBuilder(deepcopy(raw)).value())


class Churn:
    """The cluster. The seed determines how long victims take to end, and which of equal nodes is chosen."""

    def __init__(self, world: Harness, nodes: int, seed: int) -> None:
        self.world = world
        self.owners: dict[str, Owner] = {}
        self.evictions: list[Eviction] = []
        self.preemptions: Counter[str] = Counter()
        """By owner: the number of plans with victims."""

        self.refused: set[str] = set()
        """Owners whose pods the scheduler never binds."""

        self.turn = 0
        self._nodes = [f"n{index}" for index in range(nodes)]
        self.source = Random(seed)
        self._serial = 0
        self._calls = 0
        self._open: dict[str, BindCall] = {}
        self._home: dict[str, str] = {}
        """By name of a pod: the node to which the scheduler binds it."""

        self._priority_of: dict[str, int] = {}
        self._owner_of: dict[str, str] = {}
        self._preemptor_of: dict[str, str] = {}
        world.start_nominating()
        world.add(*(node(name).cpu(NODE_CPU).rack(f"r{index % 2}") for index, name in enumerate(self._nodes)))

    # --- changes -----------------------------------------------------------------------------------------------

    def add_owner(self, owner: Owner) -> None:
        """Add an owner."""
        self.owners[owner.name] = owner
        self._priority_of[owner.name] = owner.priority

    def remove_owner(self, name: str) -> None:
        """Remove an owner and delete its pods."""
        self._give_up(self.owners.pop(name))

    async def run(self, turns: int, seconds: float = 10.0) -> None:
        """Run some turns, with ``seconds`` between them."""
        for _ in range(turns):
            self.turn += 1
            self._end_victims()
            for owner in self.owners.values():
                self._restore(owner)
            await self._settle()
            for name in self._list_pending():
                self._try(name)
            await self._settle()
            await self.world.pass_time(seconds)
            self._record_writes()

    # --- observations ------------------------------------------------------------------------------------------

    def count_running(self, name: str) -> int:
        """Count the pods of an owner that are bound and not being deleted."""
        return sum(self._find(each).bound and not self._find(each).deleting for each in self.owners[name].pods)

    def is_served(self, name: str) -> bool:
        """Return whether an owner's quorum runs, or all of its plain pods."""
        owner = self.owners[name]
        return self.count_running(name) >= (owner.min_count or owner.size)

    def count_losses(self, name: str) -> int:
        """Count the evictions of an owner's pods."""
        return sum(each.victim == name for each in self.evictions)

    def list_pods(self) -> list[Pod]:
        """Return the pods in the cache, without those that are deleted in the API server."""
        return [each for each in self.world.store.pods.values() if self.world.pod_key(each.name) in self.world.api.pods]

    # --- owners ------------------------------------------------------------------------------------------------

    def _restore(self, owner: Owner) -> None:
        there = [name for name in owner.pods if self.world.pod_key(name) in self.world.api.pods]
        lost = len(there) < len(owner.pods)
        owner.pods = there
        if owner.anew and lost:
            self._give_up(owner)
        if owner.min_count and not owner.pods:
            self._make_gang(owner)
        while len(owner.pods) < owner.size:
            self._make_pod(owner)

    def _make_gang(self, owner: Owner) -> None:
        self._drop_group(owner)
        owner.gangs += 1
        group = pod_group(owner.group).uid(f"group-{owner.group}").gang(owner.min_count).priority(owner.priority)
        self.world.add((group.topology() if owner.confined else group).disruption(owner.mode))

    def _make_pod(self, owner: Owner) -> None:
        self._serial += 1
        name = f"{owner.name}.{self._serial}"
        owner.pods.append(name)
        self._owner_of[name] = owner.name
        priority = owner.priority if owner.pod_priority is None else owner.pod_priority
        made = pod(name).cpu(owner.cpu).scheduler(SCHEDULER).priority(priority)
        self.world.add(made.in_group(owner.group) if owner.min_count else made)
        if self.source.random() < 0.5:
            self.world.api.graceful.add(self.world.pod_key(name))

    def _give_up(self, owner: Owner) -> None:
        for name in owner.pods:
            if self.world.pod_key(name) in self.world.api.pods:
                self.world.delete(name)
        self._drop_group(owner)
        owner.pods = []

    def _drop_group(self, owner: Owner) -> None:
        if owner.gangs:
            self.world.store.drop_group(GroupKey("default", owner.group))

    # --- the cluster -------------------------------------------------------------------------------------------

    def _find(self, name: str) -> Pod:
        return self.world.pod(name)

    def _end_victims(self) -> None:
        for each in self.list_pods():
            if each.deleting and self.source.random() < 0.5:
                self.world.delete(each.name)

    async def _settle(self) -> None:
        await self.world.run_until_idle()
        for gone in [
            each for each in self.world.store.pods.values() if self.world.pod_key(each.name) not in self.world.api.pods
        ]:
            self.world.delete(gone.name)
        await self.world.run_until_idle()

    def _record_writes(self) -> None:
        """Record the plans and evictions since the last call, from the writes to the API server."""
        calls = self.world.api.calls
        for call in calls[self._calls :]:
            if call.resource == "reservations" and call.verb == "create":
                record = decode_reservation(dict(call.body))
                assert isinstance(record, Reservation)
                preemptor = record.group.name.rpartition("-")[0]
                self.preemptions[preemptor] += bool(record.victims)
                self._preemptor_of |= dict.fromkeys((each.name for each in record.victims.values()), preemptor)
            elif call.verb == "evict" or (call.resource, call.verb) == ("pods", "delete"):
                self._note_eviction(self._preemptor_of[call.name], call.name)
        self._calls = len(calls)

    def _note_eviction(self, preemptor: str, victim: str) -> None:
        name = self._owner_of[victim]
        priorities = self._priority_of[preemptor], self._priority_of[name]
        self.evictions.append(Eviction(self.turn, preemptor, name, victim, priorities))

    # --- kube-scheduler ----------------------------------------------------------------------------------------

    def _list_pending(self) -> list[str]:
        pending = [each for each in self.list_pods() if each.pending and not each.deleting]
        trying = [each.name for each in sorted(pending, key=lambda each: (-each.priority, each.name))]
        self._open = {name: call for name, call in self._open.items() if call.waiting}
        return [name for name in trying if name not in self._open]

    def _try(self, name: str) -> None:
        if self._owner_of[name] in self.refused:
            return
        pending = self._find(name)
        offered = [each for each in self._nodes if self._fits(pending, each, self._list_counted_pods(pending))]
        answer = self.world.filter(name, *offered) if offered else Hold()
        if isinstance(answer, Steer):
            self._bind(name, answer.node)
        elif not isinstance(answer, Hold):
            self._bind(name, pending.nominated if pending.nominated in offered else self.source.choice(offered))
        elif not pending.nominated or not self._is_ending_on(pending.nominated, pending.priority):
            self._preempt(pending)

    def _bind(self, name: str, node_name: str) -> None:
        self._home[name] = node_name
        self._open[name] = self.world.bind(name, node_name)

    def _list_counted_pods(self, pending: Pod) -> list[tuple[str, Pod]]:
        """Return each pod that counts on a node, with the node: bound pods, pods being bound, and nominated ones.

        Nominated pods count if their priority is at least that of ``pending``.
        """
        found = []
        for each in self.list_pods():
            home = each.node or (self._home[each.name] if each.name in self._open else "")
            if not home and each.nominated and each.priority >= pending.priority and each.name != pending.name:
                home = each.nominated
            if home:
                found.append((home, each))
        return found

    def _fits(self, pending: Pod, node_name: str, beside: Iterable[tuple[str, Pod]]) -> bool:
        used = sum(_cpu(each) for home, each in beside if home == node_name)
        return used + _cpu(pending) <= NODE_CPU

    def _is_ending_on(self, node_name: str, priority: int) -> bool:
        return any(each.deleting and each.node == node_name and each.priority < priority for each in self.list_pods())

    def _preempt(self, pending: Pod) -> None:
        """Preempt for a pod that fits nowhere, as kube-scheduler does: evict pods of lower priority from one node."""
        beside = self._list_counted_pods(pending)
        asked = [each for node_name in self._nodes for each in self._find_candidate(pending, node_name, beside)]
        allowed = self.world.service.preempt(pending, asked) if asked else ()
        if not allowed:
            return
        chosen = self.source.choice(list(allowed))
        for victim in [each for each in self.list_pods() if each.uid in chosen.victims]:
            self._end(pending, victim)
        raw = PodBuilder(self.world.api.pods[self.world.pod_key(pending.name)]).nominated(chosen.node).raw()
        self.world.api.pods[self.world.pod_key(pending.name)] = raw
        self.world.sync_pods()

    def _find_candidate(self, pending: Pod, node_name: str, beside: Sequence[tuple[str, Pod]]) -> Iterator[Candidate]:
        lower = [each for home, each in beside if home == node_name and each.bound and each.priority < pending.priority]
        gone = {each.uid for each in lower}
        if not lower or not self._fits(pending, node_name, _without(beside, gone)):
            return
        for each in sorted(lower, key=lambda each: (-each.priority, each.name)):
            if self._fits(pending, node_name, _without(beside, gone - {each.uid})):
                gone.remove(each.uid)
        if gone:
            yield Candidate(node_name, tuple(sorted(gone)))

    def _end(self, preemptor: Pod, victim: Pod) -> None:
        owner = self._owner_of[preemptor.name]
        self._note_eviction(owner, victim.name)
        mates = self.owners[self._owner_of[victim.name]].pods
        self._preemptor_of |= dict.fromkeys(mates, owner)  # other members that are evicted with it have this preemptor
        raw = PodBuilder(self.world.api.pods[self.world.pod_key(victim.name)]).disrupted().deleting().raw()
        self.world.api.pods[self.world.pod_key(victim.name)] = raw
        self.world.sync_pods()


def _cpu(each: Pod) -> int:
    return dict(each.shape.requests)["cpu"] // 1000


def _without(beside: Iterable[tuple[str, Pod]], gone: Collection[str]) -> list[tuple[str, Pod]]:
    return [(home, each) for home, each in beside if each.uid not in gone]
