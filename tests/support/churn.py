"""A full cluster whose pods are made anew whenever they are ended, and a kube-scheduler that preempts for plain pods.

Turn by turn: owners make what they lack, the extender works, the scheduler tries every pending pod, victims end. Who
was ended for whom is read off what was written to the API server, not off what anybody has decided.
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
    """Somebody who wants so many pods of one size to run, and makes them anew whenever one is gone."""

    name: str
    priority: int
    """That of its pods if they are no gang, else that of the PodGroup."""

    size: int
    cpu: int

    min_count: int = 0
    """The quorum of its gang; 0 for pods of no gang."""

    mode: Disruption = Disruption.SINGLE
    confined: bool = False
    """Whether its gang has to be in one rack."""

    anew: bool = False
    """Whether it gives up the whole gang when a member is lost, and makes a new one under a new name."""

    pod_priority: int | None = None
    """What its members say of their priority, if not what their PodGroup says."""

    pods: list[str] = field(default_factory=list)
    gangs: int = 0
    """How many gangs it has made so far."""

    @property
    def group(self) -> str:
        """The name of the PodGroup that it has now."""
        return f"{self.name}-{self.gangs}"


@dataclass(frozen=True)
class Eviction:
    """A pod was ended for another owner's, in a turn."""

    turn: int
    preemptor: str
    victim: str
    pod: str
    """The name of the victim's pod."""

    priorities: tuple[int, int]
    """Of the preemptor, and of the victim."""


class LongHarness(Harness):
    """For many turns: the watch shows only what has changed since it showed it last."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._shown: dict[Key, Raw] = {}

    def watch(self) -> None:
        """The watch of pods catches up with the API server."""
        for key, raw in self.api.pods.items():
            if self._shown.get(key) != raw:
                self._shown[key] = deepcopy(raw)
                self.store.put_pod(PodBuilder(deepcopy(raw)).value())


class Churn:
    """The cluster. From ``source`` is drawn how long victims take to end, and which of equal nodes is taken."""

    def __init__(self, world: Harness, nodes: int, seed: int) -> None:
        self.world = world
        self.owners: dict[str, Owner] = {}
        self.evictions: list[Eviction] = []
        self.preemptions: Counter[str] = Counter()
        """How often victims were named for an owner, by its name."""

        self.refused: set[str] = set()
        """The owners whose pods the scheduler takes to no node, whatever is planned."""

        self.turn = 0
        self._nodes = [f"n{index}" for index in range(nodes)]
        self.source = Random(seed)
        self._serial = 0
        self._calls = 0
        self._open: dict[str, BindCall] = {}
        self._home: dict[str, str] = {}
        """Where the scheduler has sent pods, by name."""

        self._priority_of: dict[str, int] = {}
        self._owner_of: dict[str, str] = {}
        self._preemptor_of: dict[str, str] = {}
        world.nominate()
        world.add(*(node(name).cpu(NODE_CPU).rack(f"r{index % 2}") for index, name in enumerate(self._nodes)))

    # --- what people do ----------------------------------------------------------------------------------------

    def come(self, owner: Owner) -> None:
        """Somebody new wants room."""
        self.owners[owner.name] = owner
        self._priority_of[owner.name] = owner.priority

    def leave(self, name: str) -> None:
        """Somebody needs nothing any more."""
        self._give_up(self.owners.pop(name))

    async def run(self, turns: int, seconds: float = 10.0) -> None:
        """So many turns, with so much time between them."""
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
            self._note()

    # --- what is seen ------------------------------------------------------------------------------------------

    def count_running(self, name: str) -> int:
        """How many pods of an owner are bound, and do not end."""
        return sum(self._find(each).bound and not self._find(each).deleting for each in self.owners[name].pods)

    def is_served(self, name: str) -> bool:
        """Whether an owner has what it cannot do without."""
        owner = self.owners[name]
        return self.count_running(name) >= (owner.min_count or owner.size)

    def count_losses(self, name: str) -> int:
        """How many evictions an owner has had."""
        return sum(each.victim == name for each in self.evictions)

    def list_pods(self) -> list[Pod]:
        """As the watch has shown them; it is up to date but for the pods that are gone."""
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
        await self.world.go()
        for gone in [
            each for each in self.world.store.pods.values() if self.world.pod_key(each.name) not in self.world.api.pods
        ]:
            self.world.delete(gone.name)
        await self.world.go()

    def _note(self) -> None:
        """Who was ended for whom since the last time."""
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
        offered = [each for each in self._nodes if self._fits(pending, each, self._list_beside(pending))]
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

    def _list_beside(self, pending: Pod) -> list[tuple[str, Pod]]:
        """Who counts on which node: those that are there, those on their way, and those nominated to it."""
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
        """What kube-scheduler does for a pod that it cannot place: victims of lower priority of one node."""
        beside = self._list_beside(pending)
        asked = [each for node_name in self._nodes for each in self._find_candidate(pending, node_name, beside)]
        allowed = self.world.service.preempt(pending, asked) if asked else ()
        if not allowed:
            return
        chosen = self.source.choice(list(allowed))
        for victim in [each for each in self.list_pods() if each.uid in chosen.victims]:
            self._end(pending, victim)
        raw = PodBuilder(self.world.api.pods[self.world.pod_key(pending.name)]).nominated(chosen.node).raw()
        self.world.api.pods[self.world.pod_key(pending.name)] = raw
        self.world.watch()

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
        self._preemptor_of |= dict.fromkeys(mates, owner)  # if others go with it, they go for the same pod
        raw = PodBuilder(self.world.api.pods[self.world.pod_key(victim.name)]).disrupted().deleting().raw()
        self.world.api.pods[self.world.pod_key(victim.name)] = raw
        self.world.watch()


def _cpu(each: Pod) -> int:
    return dict(each.shape.requests)["cpu"] // 1000


def _without(beside: Iterable[tuple[str, Pod]], gone: Collection[str]) -> list[tuple[str, Pod]]:
    return [(home, each) for home, each in beside if each.uid not in gone]
