"""A small cluster for tests of the extender: real parts, the API server a dictionary, time that is told to pass."""

import asyncio
from collections.abc import Callable
from copy import deepcopy
from typing import Any

from extender.core.binding.records import Records
from extender.core.feature import Feature
from extender.core.parts import Parts
from extender.core.protocol import Answer, BindRequest
from extender.core.scheduling.binding_cycle import BindingCycle
from extender.core.scheduling.effects import Context, Term
from extender.core.service import ExtenderService
from extender.options import (
    USUAL,
    BackfillMode,
    Disrupted,
    Method,
    NominationPolicy,
    Options,
    PlainRule,
    PreemptionMode,
    Rules,
)
from extender.wiring import FEATURES, Core
from serried.api.level import NATIVE, ApiLevel
from serried.api.names import GroupKey, Key
from serried.api.pod import HELD, Pod
from serried.api.reservation import Victim
from serried.api.verdict import Reason, Verdict
from serried.cluster.cache import EndedMembers, Store
from serried.ops.fork import Fork
from serried.ops.fork import fork as true_fork
from serried.ops.metrics import ExtenderMetrics
from serried.rules.all import RULES
from tests.support.budgets import BudgetBuilder
from tests.support.builders import (
    Builder,
    CompatibleGroupBuilder,
    JobBuilder,
    NodeBuilder,
    PodBuilder,
    PodGroupBuilder,
    node,
    pod,
    pod_group,
)
from tests.support.clock import Clock
from tests.support.composites import CompositeBuilder
from tests.support.devices import DeviceClassBuilder
from tests.support.fake_api import FakeApi
from tests.support.inline_fork import fork_inline
from tests.support.memory import read_memory
from tests.support.priorities import PriorityClassBuilder
from tests.support.rules import settle
from tests.support.steps import finish

SCHEDULER = "serried"
GANG = GroupKey("default", "g")
EPOCH = 1_700_000_000.0
"""What the wall clock shows when the loop's clock shows 0."""

DAY = 86_400.0

LEFT_OUT: set[Callable[[Parts], Feature]] = set()
"""Features that worlds are made without (`tests.unit.extender.conftest`)."""


class RecordingMetrics(ExtenderMetrics):
    """A status sink and metrics that keep what they are told."""

    def __init__(self) -> None:
        super().__init__()
        self.verdicts: list[tuple[GroupKey, Verdict]] = []
        self.bursts: list[int] = []
        self.outcomes: list[str] = []
        self.plans: list[str] = []
        self.repairs: list[tuple[str, float]] = []
        self.broken: list[tuple[GroupKey, Verdict]] = []
        self.disruptions: list[tuple[GroupKey, str]] = []
        self.preemptions: list[tuple[GroupKey, str]] = []
        self.victims: list[tuple[str, str]] = []
        self.preempted: list[tuple[str, str]] = []
        self.spared: list[str] = []
        self.searches: list[tuple[str, float]] = []
        self.ended_preemptions: list[str] = []
        self.evictions: list[str] = []
        self.promises: list[float] = []
        self.settlements: list[tuple[str, float | None]] = []
        self.waits: list[tuple[str, float]] = []
        self.starts: list[float] = []

    def waited(self, reason: str, seconds: float) -> None:
        self.waits.append((reason, seconds))

    def started(self, seconds: float, namespace: str) -> None:
        self.starts.append(seconds)

    def observe_forecast_wait(self, wait: float) -> None:
        self.promises.append(wait)

    def observe_forecast_error(self, outcome: str, error: float | None) -> None:
        self.settlements.append((outcome, error))

    def say(self, group: GroupKey, verdict: Verdict) -> None:
        self.verdicts.append((group, verdict))

    def describe_hold(self, group: GroupKey) -> str:
        return f"{HELD}: {group}"

    def report_broken(self, group: GroupKey, verdict: Verdict) -> None:
        self.broken.append((group, verdict))

    def report_disrupted(self, group: GroupKey, text: str) -> None:
        self.disruptions.append((group, text))

    def report_preemption(self, group: GroupKey, text: str) -> None:
        self.preemptions.append((group, text))

    def report_victim(self, victim: Victim, text: str) -> None:
        self.victims.append((victim.name, text))

    async def mark_preempted(self, group: GroupKey, text: str) -> None:
        self.preempted.append((str(group), text))

    async def unmark_preempted(self, group: GroupKey) -> None:
        self.spared.append(str(group))

    def searched(self, outcome: str, seconds: float) -> None:
        self.searches.append((outcome, seconds))

    def preemption_ended(self, outcome: str) -> None:
        self.ended_preemptions.append(outcome)

    def evicted(self, kind: str, namespace: str) -> None:
        self.evictions.append(kind)

    def repaired(self, outcome: str, seconds: float) -> None:
        self.repairs.append((outcome, seconds))

    def planned(self, outcome: str, seconds: float) -> None:
        self.plans.append(outcome)

    def burst(self, seconds: float, members: int) -> None:
        self.bursts.append(members)

    def bound(self, outcome: str, namespace: str) -> None:
        self.outcomes.append(outcome)


class Harness:
    """The extender's core around one Store. The scheduler looks when told to (``look``), tasks run in ``settle``."""

    def __init__(
        self,
        window: int = 100,
        nomination: NominationPolicy = NominationPolicy.AUTO,
        backfill: BackfillMode = BackfillMode.FORECAST,
        rules: Rules = USUAL,
        stopwatch: Callable[[], float] | None = None,
        fork: Fork = fork_inline,
        api: FakeApi | None = None,
        disrupted: Disrupted = Disrupted.PREEMPTED,
        level: ApiLevel = NATIVE,
        preemption: PreemptionMode = PreemptionMode.ON,
        preempt_by: Method = Method.EVICTION,
        spare_seconds: float = 0.0,
        plain: PlainRule = PlainRule.PASS,
        heard: RecordingMetrics | None = None,
        share_percent: int = 100,
        other_profiles: tuple[str, ...] = (),
    ) -> None:
        self.clock, self.api, self.heard = Clock(), api or FakeApi(), heard or RecordingMetrics()
        client = self.api.client(lambda: self.term.holds_lease())  # noqa: PLW0108 - tests exchange it
        self.store = Store(
            [SCHEDULER], ended=EndedMembers.KEEP_SLOTS, level=level, other_profiles=other_profiles, rules=RULES
        )
        self.term = Term(lambda: True)
        self.records = Records(client, "scheduling.serried.dev/v1beta1", "term", self.term.leads)
        options = Options(
            nomination,
            window,
            backfill,
            ageing_seconds=DAY,
            rules=rules,
            disrupted=disrupted,
            preemption=preemption,
            preempt_by=preempt_by,
            preemption_spare_seconds=spare_seconds,
            plain=plain,
            share_percent=share_percent,
        )
        self.core = Core(
            client,
            Context(self.store, self.term, self.heard, self.heard, options, self.clock, self.wall),
            self.records,
            stopwatch=stopwatch or self.clock,
            fork=fork,
            features=[each for each in FEATURES if each not in LEFT_OUT],
        )
        self.core.fork = true_fork  # for pages
        self.ledger, self.groups, self.queue = self.core.ledger, self.core.groups, self.core.queue
        self.nominator, self.service = self.core.nominator, self.core.service
        self.group_scheduler, self.recovery = self.core.group_scheduler, self.core.recovery
        self.term.active = True
        self.service.synced = True
        self._background: list[asyncio.Task[Any]] = []

    def wall(self) -> float:
        """The time now, in seconds since 1970."""
        return EPOCH + self.clock()

    # --- what exists -------------------------------------------------------------------------------------------

    def add(self, *builders: Builder) -> "Harness":
        """Nodes, pods, PodGroups and Jobs, seen by the watches at once."""
        for builder in builders:
            match builder:
                case NodeBuilder():
                    self.store.put_node(builder.value())
                case PodGroupBuilder() | CompatibleGroupBuilder():
                    self.store.put_group(builder.value())
                case CompositeBuilder():
                    self.store.put_composite(builder.value())
                case JobBuilder():
                    self.store.put_job(builder.value())
                case PriorityClassBuilder():
                    self.store.put_priority_class(builder.value())
                case BudgetBuilder():
                    self.store.put_budget(builder.value())
                case DeviceClassBuilder():
                    self.store.put_object(builder.value())
                case PodBuilder():
                    self._add_pod(builder)
                case _:
                    raise TypeError(type(builder))
        return self

    def _add_pod(self, builder: PodBuilder) -> None:
        """Whoever names no scheduler is served by ours: so it is where Serried serves the cluster's own."""
        served = builder if "schedulerName" in builder.raw()["spec"] else builder.scheduler(SCHEDULER)
        value = served.value()
        self.api.pods[Key(value.namespace, value.name)] = served.raw()
        self.store.put_pod(value)

    def delete(self, name: str) -> None:
        """A pod is gone, and the watch has said so."""
        raw = self.api.pods.pop(Key("default", name), None)
        # One that was evicted is gone already, and only the watch has not said so.
        known = (pod.uid for pod in self.store.pods.values() if pod.name == name)
        self.store.drop_pod(raw["metadata"]["uid"] if raw is not None else next(known))

    def erase_nomination(self, name: str) -> None:
        """kube-scheduler has cleared a nomination, and the watch has said so."""
        self.api.pods[Key("default", name)]["status"] = {}
        self.watch()

    def give_up(self, name: str, message: str = "") -> None:
        """kube-scheduler has tried a pod in vain, and says so in its condition."""
        key = Key("default", name)
        self.api.pods[key] = PodBuilder(self.api.pods[key]).tried(message=message).raw()

    def watch(self) -> None:
        """The watch of pods catches up with the API server."""
        for raw in self.api.pods.values():
            self.store.put_pod(PodBuilder(deepcopy(raw)).value())

    def pod(self, name: str) -> Pod:
        """A pod as the API server has it: as kube-scheduler would send it."""
        return PodBuilder(deepcopy(self.api.pods[Key("default", name)])).value()

    def pod_key(self, name: str) -> Key:
        """The key of a pod."""
        return Key("default", name)

    def node_of(self, name: str) -> str:
        """Where the API server says that a pod is bound, "" for nowhere."""
        return str(self.api.pods[Key("default", name)]["spec"].get("nodeName", ""))

    def annotations(self, name: str) -> dict[str, str]:
        """The annotations of a pod, as the API server has them."""
        return dict(self.api.pods[Key("default", name)]["metadata"].get("annotations", {}))

    def labels(self, name: str) -> dict[str, str]:
        """The labels of a pod, as the API server has them."""
        return dict(self.api.pods[Key("default", name)]["metadata"].get("labels", {}))

    # --- what happens ------------------------------------------------------------------------------------------

    def look(self) -> None:
        """One pass of the group scheduler, and its tick."""
        due = self.group_scheduler.take_dirty() | self.group_scheduler.take_woken()
        due |= finish(self.group_scheduler.tick())
        for key in finish(self.group_scheduler.in_turn(due)):
            self.group_scheduler.consider(key)
            self.core.runner.carry_out()
        self.core.runner.carry_out()

    async def settle(self) -> None:
        """Let every task run as far as it gets without time passing."""
        # uvloop does not show whose turn is next; there nobody is asked.
        ready = read_memory(asyncio.get_running_loop()).get("ready", [None])
        for _ in range(60):
            await asyncio.sleep(0)
            if not ready:
                return

    async def go(self) -> None:
        """Let group scheduler, tasks and watches work until nothing more happens."""
        for _ in range(4):
            settle(self.store)
            self.look()
            await self.settle()
            self.watch()

    async def pass_time(self, seconds: float) -> None:
        """Let time pass, and everybody notice."""
        self.clock.advance(seconds)
        for reservation in self.ledger:
            self.cycle(reservation.group).changed.set()
        await self.go()

    def nominate(self) -> None:
        """Start the writer of nominations."""
        self._background.append(asyncio.create_task(self.nominator.run()))

    def filter(self, name: str, *nodes: str) -> Answer:
        """kube-scheduler asks about a pod; all nodes unless some are named."""
        return self.service.filter(self.pod(name), nodes or tuple(self.store.nodes))

    def filter_unknown(self, builder: PodBuilder) -> Answer:
        """kube-scheduler asks about a pod that our watch has not shown yet."""
        return self.service.filter(builder.value(), tuple(self.store.nodes) or ("n1",))

    def bind(self, name: str, node_name: str = "") -> "BindCall":
        """kube-scheduler binds a pod, to its planned node unless one is named."""
        uid = self.pod(name).uid
        slot = self.ledger.slot_of(uid)
        request = BindRequest(Key("default", name), uid, node_name or (slot.node if slot else "n1"))
        call = BindCall(self.service, request)
        self._background.append(call.task)
        return call

    def is_requeued(self, name: str, node: str) -> bool:
        """Whether a pod was nominated to this node and then no more, which wakes it whatever has rejected it."""
        times = self.times_requeued(name, node)
        assert times <= 1
        return times == 1

    def times_requeued(self, name: str, node: str) -> int:
        """How many times that was done."""
        said = [call for call in self.api.said("nominate") if call.name == name]
        written = [call.body["status"]["nominatedNodeName"] for call in said]
        assert written == [node, None] * (len(written) // 2)
        return len(written) // 2

    def cycle(self, group: GroupKey = GANG) -> BindingCycle:
        """The group's binding cycle, which must exist."""
        cycle = self.groups.states[group].cycle
        assert cycle is not None
        return cycle

    def reasons(self, group: GroupKey = GANG) -> list[Reason]:
        """What was said of a group."""
        return [verdict.reason for key, verdict in self.heard.verdicts if key == group]

    @property
    def nothing_reserved(self) -> bool:
        """Whether ledger, occupancy and records are as if there had never been a cycle."""
        bound = {pod.uid for pod in self.store.pods.values() if pod.bound}
        claims = read_memory(self.store.occupancy)["claims"]
        return not len(self.ledger) and not self.api.records and claims.keys() == bound

    async def close(self) -> None:
        """End every task."""
        await self.core.tasks.close()
        tasks = [*self._background, *read_memory(self.nominator)["background"]]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class BindCall:
    """One bind call of kube-scheduler."""

    def __init__(self, service: ExtenderService, request: BindRequest) -> None:
        self.node = request.node
        self._gone = asyncio.Event()
        self.task = asyncio.create_task(service.bind(request, self._wait_for_hangup))

    async def _wait_for_hangup(self) -> None:
        await self._gone.wait()

    @property
    def waiting(self) -> bool:
        """Whether the call is still held open."""
        return not self.task.done()

    @property
    def error(self) -> str:
        """What it was answered, "" for success."""
        return self.task.result()

    def hang_up(self) -> None:
        """kube-scheduler closes the connection."""
        self._gone.set()


def members(count: int, first: int = 0) -> list[PodBuilder]:
    """Pods m0, m1, ... of group g, one CPU each."""
    return [pod(f"m{index}").cpu(1).scheduler(SCHEDULER).in_group("g") for index in range(first, first + count)]


def gang(min_count: int) -> PodGroupBuilder:
    """PodGroup g."""
    return pod_group("g").gang(min_count)


def small_nodes(count: int, cpus: int = 2) -> list[NodeBuilder]:
    """Nodes n1, n2, ... with so many CPUs."""
    return [node(f"n{index}").cpu(cpus) for index in range(1, count + 1)]
