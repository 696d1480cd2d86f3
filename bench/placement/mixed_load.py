"""Run the turns of `bench.placement.turns` on a real control plane, with or without the extender's scores."""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from bench.cluster.nodes import RACK
from bench.cluster.progress import Report
from bench.contenders import SERRIED
from bench.load.objects import NAMESPACE, POD_GROUPS, RUN, Gang, Load, member_object, pod_group_object
from bench.load.run import StuckError
from bench.placement.live import for_each
from bench.placement.turns import GANG_TURNS, Course, GangWait, Turn
from serried.kube.client import ApiClient
from serried.kube.errors import NotFound
from serried.kube.reflector import Deleted, Event, Reflector, Upserted
from serried.kube.wire import JSON, PODS, Selection

_PAUSE = 0.05
_TIMEOUT_SECONDS = 120.0


class Sightings:
    """The sink of a Reflector of pods: records where and when each pod was bound."""

    def __init__(self) -> None:
        self.nodes: dict[str, str] = {}
        """By name of the pod: its node. Deleted pods remain."""

        self.bound: dict[str, float] = {}
        """By name of the pod: the time at which it was first seen bound (monotonic clock). Deleted pods remain."""

        self.alive: set[str] = set()
        """The names of all pods that exist."""

    def __call__(self, event: Event) -> None:
        """Record a pod that was created, bound or deleted."""
        if isinstance(event, Deleted):
            self.alive.discard(event.obj["metadata"]["name"])
        elif isinstance(event, Upserted):
            name, node = event.obj["metadata"]["name"], event.obj["spec"].get("nodeName", "")
            self.alive.add(name)
            if node and name not in self.bound:
                self.nodes[name], self.bound[name] = node, time.monotonic()


class MixedLoad:
    """Plays the turns on one cluster. A turn ends when its gang is bound, or after ``patience`` seconds.

    From the start there is a PodGroup without members that needs a rack. So the extender scores racks from the first
    turn on, as on a cluster that has had gangs.
    """

    def __init__(self, client: ApiClient, domains: Mapping[str, str], patience: float, report: Report) -> None:
        self._client, self._domains, self._patience, self._report = client, domains, patience, report
        self._seen = Sightings()
        self._created: dict[str, float] = {}
        self._plain: set[str] = set()
        self._gangs: dict[str, list[str]] = {}
        self._arrival: dict[str, int] = {}
        self._start: dict[str, int] = {}
        self._whole: list[int] = []

    async def play(self, turns: Sequence[Turn], weight: int, seed: int) -> Course:
        """Play all turns and return the figures.

        Raise StuckError if plain pods are not bound, for which there is always room, or if pods are not deleted.
        """
        reflector = Reflector(self._client, PODS, self._seen, selection=Selection(NAMESPACE, labels=RUN))
        following = asyncio.create_task(reflector.run())
        try:
            await reflector.listed.wait()
            empty = pod_group_object(Load("asking", SERRIED.scheduler), Gang("first", 1, RACK))
            await self._client.create(POD_GROUPS["native"], NAMESPACE, empty)
            for number, turn in enumerate(turns):
                await self._play_turn(number, turn)
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        waits = [self._seen.bound[name] - self._created[name] for turn in turns for name in turn.coming]
        gangs = tuple(map(self._describe, turns))
        return Course(weight, seed, len(self._domains), tuple(self._whole), gangs, tuple(waits))

    async def _play_turn(self, number: int, turn: Turn) -> None:
        await self._delete_all([*turn.ending, *self._list_done(number)])
        self._plain -= set(turn.ending)
        await for_each(turn.coming.items(), self._create_plain)
        self._plain |= turn.coming.keys()
        if not await self._await_bound(turn.coming, _TIMEOUT_SECONDS):
            raise StuckError(f"turn {number}: plain pods have found no node for {_TIMEOUT_SECONDS:.0f} s")
        self._record_started(number)
        broken = {self._domains[self._seen.nodes[name]] for name in self._plain}
        self._whole.append(len({*self._domains.values()} - broken))
        await self._create_gang(number, turn)
        await self._await_bound(self._gangs[turn.gang], self._patience)
        self._record_started(number)
        waiting = len(self._gangs) - len(self._start)
        self._report(f"  turn {number}: {self._whole[-1]} whole racks, {waiting} gangs wait")

    def _list_done(self, number: int) -> list[str]:
        done = [gang for gang, start in self._start.items() if start + GANG_TURNS == number]
        return [name for gang in done for name in self._gangs[gang]]

    def _record_started(self, number: int) -> None:
        for gang, members in self._gangs.items():
            if gang not in self._start and all(name in self._seen.bound for name in members):
                self._start[gang] = number

    async def _create_plain(self, plain: tuple[str, int]) -> None:
        name, cpu = plain
        pod = member_object(Load("plain", SERRIED.scheduler, cpu=str(cpu)), Gang("", 0), 0)
        del pod["spec"]["schedulingGroup"]
        pod["metadata"]["name"] = name
        await self._create(pod)

    async def _create_gang(self, number: int, turn: Turn) -> None:
        gang = Gang(turn.gang, turn.members, RACK)
        load = Load("mixed", SERRIED.scheduler, gangs=(gang,), cpu=str(turn.cpu))
        await self._client.create(POD_GROUPS[load.link], NAMESPACE, pod_group_object(load, gang))
        pods = [member_object(load, gang, index) for index in range(gang.size)]
        self._gangs[turn.gang] = [pod["metadata"]["name"] for pod in pods]
        self._arrival[turn.gang] = number
        await for_each(pods, self._create)

    async def _create(self, pod: JSON) -> None:
        self._created[pod["metadata"]["name"]] = time.monotonic()
        await self._client.create(PODS, NAMESPACE, pod)

    async def _delete_all(self, names: Sequence[str]) -> None:
        await for_each(names, self._delete)
        if not await _wait(lambda: self._seen.alive.isdisjoint(names), _TIMEOUT_SECONDS):
            raise StuckError(f"pods are still there {_TIMEOUT_SECONDS:.0f} s after their deletion")

    async def _delete(self, name: str) -> None:
        try:
            await self._client.delete(PODS, NAMESPACE, name)
        except NotFound:
            return

    async def _await_bound(self, names: Collection[str], seconds: float) -> bool:
        return await _wait(lambda: all(name in self._seen.bound for name in names), seconds)

    def _describe(self, turn: Turn) -> GangWait:
        gang = turn.gang
        if gang not in self._start:
            return GangWait(gang, turn.share, None, None)
        created = min(self._created[name] for name in self._gangs[gang])
        bound = max(self._seen.bound[name] for name in self._gangs[gang])
        return GangWait(gang, turn.share, self._start[gang] - self._arrival[gang], round(bound - created, 3))


async def _wait(done: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(_PAUSE)
    return True
