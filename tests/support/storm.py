"""A storm: random actions of kube-scheduler, users, watches and a faulty API server, in an order given by a seed."""

import asyncio
import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from extender.core.binding import nominator
from extender.core.binding import records as reservations
from extender.core.binding import run as cycle_runner
from extender.core.protocol import Steer
from extender.features import disruption, repair
from extender.options import NominationPolicy
from serried.api.names import GroupKey, Key
from serried.api.reservation import decode_reservation
from serried.kube.retry import Backoff
from tests.support.builders import PodBuilder, PodGroupBuilder, node, pod, pod_group
from tests.support.extender_harness import SCHEDULER, BindCall, Harness
from tests.support.fake_api import error

GANGS = ("a", "b", "c")
MIN_COUNT, SIZE = 3, 4
STEPS = 250


def retry_without_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set all retry delays to zero, so that failed calls are retried at once."""
    monkeypatch.setattr(cycle_runner, "_ROLL_FORWARD", Backoff(0.0, 0.0))
    monkeypatch.setattr(reservations, "_REMOVAL", Backoff(0.0, 0.0))
    monkeypatch.setattr(nominator, "_RETRY", Backoff(0.0, 0.0))
    monkeypatch.setattr(disruption, "_RETRY_SECONDS", 0.0)
    monkeypatch.setattr(repair, "_RETRY_SECONDS", 0.0)


def list_recorded_members(record: Mapping[str, Any]) -> set[str]:
    """Return the names of the members that a record has slots for."""
    found = decode_reservation(record)
    return {slot.name for slot in found.slots.values()} if found else set()


class Storm:
    """Three gangs of 3 to 4 members of one CPU, on nodes that hold all of them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.world = Harness(window=self.random.choice([2, 100]), nomination=self.random.choice(list(NominationPolicy)))
        self.calls: dict[str, BindCall] = {}
        self.unschedulable: dict[str, int] = {}
        self.created = 0
        self.world.start_nominating()
        self.world.add(*[node(f"n{index}").cpu(4) for index in range(4)])
        self.violations: list[str] = []
        self.create_gangs(GANGS)
        self.world.api.before_bind = self._check_binding
        self.world.api.before_write = self._check_commit

    def create_gangs(self, gangs: Sequence[str]) -> None:
        """Create these gangs, each named by a letter."""
        self.gangs = gangs
        self.fallen = dict.fromkeys(gangs, 0)
        self.committed = dict.fromkeys(gangs, frozenset[str]())
        for name in gangs:
            self.world.add(self._group(name), *[self._member(name, index) for index in range(SIZE)])

    def delete_gangs(self) -> None:
        """Delete all gangs and all their objects."""
        for key in list(self.world.api.pods):
            self.world.delete(key.name)
        for name in self.gangs:
            self.world.store.drop_group(GroupKey("default", name))
        self.calls.clear()
        self.unschedulable.clear()

    def _group(self, name: str) -> PodGroupBuilder:
        self.created += 1
        return pod_group(name).gang(MIN_COUNT).uid(f"{name}-{self.created}")

    def _member(self, gang: str, index: int) -> PodBuilder:
        self.created += 1
        return pod(f"{gang}{index}").uid(f"{gang}{index}-{self.created}").cpu(1).scheduler(SCHEDULER).in_group(gang)

    def _check_binding(self, key: Key) -> None:
        """Record a violation if a pod is bound before a written commit names it."""
        gang = key.name[0]
        if self.bound(gang) + self.fallen[gang] >= MIN_COUNT:
            return  # it was up: what is late, or takes the place of one that fell, needs no new quorum
        record = self.world.api.records.get(Key("default", gang))
        if record is None or record["spec"]["phase"] != "Committed" or key.name not in list_recorded_members(record):
            self.violations.append(f"{key} is bound, and no commit names it")

    def _check_commit(self, record: Mapping[str, Any]) -> None:
        """Record a violation if a commit is written before the quorum is reserved or bound."""
        gang = record["metadata"]["name"]
        self.fallen[gang] = 0
        self.committed[gang] = (
            frozenset(list_recorded_members(record)) if record["spec"]["phase"] == "Committed" else frozenset()
        )
        if (
            record["spec"]["phase"] == "Committed"
            and len(list_recorded_members(record) | self._bound(gang)) < MIN_COUNT
        ):
            self.violations.append(f"{gang} is committed with {list_recorded_members(record)} only")

    def bound(self, gang: str) -> int:
        """Count the members of a gang that the API server has bound."""
        return len(self._bound(gang))

    def _bound(self, gang: str) -> set[str]:
        pods = self.world.api.pods.items()
        return {key.name for key, raw in pods if key.name[0] == gang and raw["spec"].get("nodeName")}

    # --- random actions ------------------------------------------------------------------------------------------

    async def run_random_actions(self) -> None:
        """Run random actions."""
        happenings = [self.schedule] * 12 + [self.schedule_groups] * 6 + [self.sync_pods] * 4 + [self.break_api] * 2
        happenings += [
            self.time_out_bind,
            self.recreate_member,
            self.advance_clock,
            self.recreate_group,
            self.erase_nomination,
        ]
        for _ in range(STEPS):
            self.random.choice(happenings)()
            for _ in range(self.random.randrange(6)):
                await asyncio.sleep(0)

    def schedule(self) -> None:
        """Let kube-scheduler try one pod."""
        waiting = [key.name for key, raw in self.world.api.pods.items() if not raw["spec"].get("nodeName")]
        waiting = [name for name in waiting if name not in self.calls or not self.calls[name].waiting]
        if waiting:
            self._try(self.random.choice(waiting))

    def _try(self, name: str) -> None:
        nodes = sorted(self.world.store.nodes)
        nominated = self.world.pod(name).nominated
        offered = [nominated] if nominated in nodes else self.random.sample(nodes, self.random.randint(3, len(nodes)))
        answer = self.world.filter(name, *offered)
        if isinstance(answer, Steer):
            self.calls[name] = self.world.bind(name, answer.node)
        else:
            self._mark_unschedulable(name)

    def _mark_unschedulable(self, name: str) -> None:
        """Report the pod as unschedulable, as kube-scheduler does. It is retried when the extender changes it."""
        self.world.mark_unschedulable(name)
        self.unschedulable[name] = self._writes(name)

    def _writes(self, name: str) -> int:
        return sum(
            call.name == name and call.verb in {"nominate", "activate", "ungate"} for call in self.world.api.calls
        )

    def _notice_failures(self) -> None:
        for name, call in list(self.calls.items()):
            if not call.waiting and call.error:
                del self.calls[name]
                if Key("default", name) in self.world.api.pods:
                    self._mark_unschedulable(name)

    def _is_retried(self, name: str) -> bool:
        return name not in self.unschedulable or self._writes(name) > self.unschedulable[name]

    def schedule_groups(self) -> None:
        """Run the group scheduler once."""
        self.world.schedule_groups()

    def sync_pods(self) -> None:
        """Deliver all pending watch events."""
        self.world.sync_pods()

    def break_api(self) -> None:
        """Make the next call of some verb fail, or succeed with its answer lost."""
        verb = self.random.choice(["create", "replace", "delete", "get", "bind", "bind", "nominate", "activate"])
        if self.random.random() < 0.5:
            self.world.api.lose_answer(verb)
        else:
            self.world.api.fail(verb, error(self.random.choice([0, 409, 429, 500])))

    def time_out_bind(self) -> None:
        """Let a bind call time out in kube-scheduler."""
        if self.calls:
            self.calls[self.random.choice(sorted(self.calls))].disconnect()

    def recreate_member(self) -> None:
        """Delete a member and create it again under the same name."""
        key = self.random.choice(sorted(self.world.api.pods))
        self.fallen[key.name[0]] += key.name in self.committed[key.name[0]] or bool(self.world.node_of(key.name))
        self.world.delete(key.name)
        self.unschedulable.pop(key.name, None)
        self.world.add(self._member(key.name[0], int(key.name[1:])))

    def advance_clock(self) -> None:
        """Advance the clock."""
        self.world.clock.advance(self.random.choice([1.0, 5.0, 70.0]))

    def recreate_group(self) -> None:
        """Delete a PodGroup, and sometimes create it again at once."""
        name = self.random.choice(self.gangs)
        self.world.store.drop_group(GroupKey("default", name))
        if self.random.random() < 0.5:
            self.schedule_groups()
        self.world.add(self._group(name))

    def erase_nomination(self) -> None:
        """Clear a pod's nomination, as kube-scheduler does."""
        self.world.api.pods[self.random.choice(sorted(self.world.api.pods))]["status"] = {}

    async def recover(self) -> None:
        """Stop all faults and let every part run to its end; kube-scheduler only knows the pods that it has seen."""
        self.world.api.recover()
        for _ in range(60):
            if self.world.nothing_reserved and all(self.bound(gang) == SIZE for gang in self.gangs):
                return
            await self.world.pass_time(2.0)
            self._notice_failures()
            for key in sorted(self.world.api.pods):
                waiting = key.name in self.calls and self.calls[key.name].waiting
                if not self.world.node_of(key.name) and not waiting and self._is_retried(key.name):
                    self._try(key.name)
            await self.world.run_until_idle()
