"""The extender's core in memory for tests: real parts, a fake API server, and a clock that the test advances.

A test makes a `Harness`, adds objects with `add`, and plays kube-scheduler with `filter` and `bind`.
"""

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
    DEFAULT_REPAIR_RULES,
    BackfillMode,
    DisruptionTrigger,
    EvictionMethod,
    NominationPolicy,
    Options,
    PlainPodRule,
    PreemptionMode,
    RepairRules,
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
from tests.support.rules import run_deferred_work
from tests.support.steps import finish

SCHEDULER = "serried"
GANG = GroupKey("default", "g")
EPOCH = 1_700_000_000.0
"""The wall-clock time, in seconds since 1970, at which the harness's clock is 0."""

DAY = 86_400.0

LEFT_OUT: set[Callable[[Parts], Feature]] = set()
"""Features without which every new Harness is built. `tests.unit.extender.conftest` sets them."""


class RecordingMetrics(ExtenderMetrics):
    """Stands in for metrics and status reports: records the arguments of every call in a list."""

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

    def report_verdict(self, group: GroupKey, verdict: Verdict) -> None:
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
    """The extender's core around one Store and a fake API server.

    Nothing runs by itself: `schedule_groups` makes one pass of the group scheduler, `run_tasks` lets asyncio tasks
    run, `run_until_idle` does both until nothing changes any more, and `pass_time` advances the clock. Call `close` at
    the end.
    """

    def __init__(
        self,
        window: int = 100,
        nomination: NominationPolicy = NominationPolicy.AUTO,
        backfill: BackfillMode = BackfillMode.FORECAST,
        rules: RepairRules = DEFAULT_REPAIR_RULES,
        stopwatch: Callable[[], float] | None = None,
        fork: Fork = fork_inline,
        api: FakeApi | None = None,
        disrupted: DisruptionTrigger = DisruptionTrigger.PREEMPTED,
        level: ApiLevel = NATIVE,
        preemption: PreemptionMode = PreemptionMode.ON,
        preempt_by: EvictionMethod = EvictionMethod.EVICTION,
        spare_seconds: float = 0.0,
        plain: PlainPodRule = PlainPodRule.PASS,
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
            Context(self.store, self.term, self.heard, self.heard, options, self.clock, self.wall_time),
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

    def wall_time(self) -> float:
        """Return the time of the wall clock, in seconds since 1970."""
        return EPOCH + self.clock()

    # --- what exists -------------------------------------------------------------------------------------------

    def add(self, *builders: Builder) -> "Harness":
        """Create objects, and show them to the cache at once, as a watch would."""
        for builder in builders:
            match builder:
                case NodeBuilder():
                    self.store.put_node(builder.value())
                    raw = builder.version("0").raw()
                    self.api.nodes[Key("", raw["metadata"]["name"])] = raw
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
        """Create a pod. Without a schedulerName it gets Serried's, as where Serried serves the default scheduler."""
        served = builder if "schedulerName" in builder.raw()["spec"] else builder.scheduler(SCHEDULER)
        value = served.value()
        self.api.pods[Key(value.namespace, value.name)] = served.raw()
        self.store.put_pod(value)

    def delete(self, name: str) -> None:
        """Delete a pod, and show the deletion to the cache."""
        raw = self.api.pods.pop(Key("default", name), None)
        # The fake API server has removed an evicted pod already, but the cache still has it.
        known = (pod.uid for pod in self.store.pods.values() if pod.name == name)
        self.store.drop_pod(raw["metadata"]["uid"] if raw is not None else next(known))

    def erase_nomination(self, name: str) -> None:
        """Clear a pod's nomination, as kube-scheduler does, and show that to the cache."""
        self.api.pods[Key("default", name)]["status"] = {}
        self.sync_pods()

    def mark_unschedulable(self, name: str, message: str = "") -> None:
        """Write PodScheduled False to a pod in the API, as kube-scheduler does after a failed attempt.

        The cache gets to know of it with the next `sync_pods`.
        """
        key = Key("default", name)
        self.api.pods[key] = PodBuilder(self.api.pods[key]).unschedulable(message=message).raw()

    def sync_pods(self) -> None:
        """Copy all pods of the fake API server to the cache, as the watch would."""
        for raw in self.api.pods.values():
            self.store.put_pod(PodBuilder(deepcopy(raw)).value())

    def sync_nodes(self) -> None:
        """Copy all nodes of the fake API server to the cache, as the watch would."""
        for raw in self.api.nodes.values():
            self.store.put_node(NodeBuilder(deepcopy(raw)).value())

    def pod(self, name: str) -> Pod:
        """Return a pod as the API server has it, and as kube-scheduler would send it."""
        return PodBuilder(deepcopy(self.api.pods[Key("default", name)])).value()

    def pod_key(self, name: str) -> Key:
        """Return the key of a pod."""
        return Key("default", name)

    def node_of(self, name: str) -> str:
        """Return the node to which a pod is bound in the API server; "" if it is not bound."""
        return str(self.api.pods[Key("default", name)]["spec"].get("nodeName", ""))

    def annotations(self, name: str) -> dict[str, str]:
        """Return a pod's annotations in the API server."""
        return dict(self.api.pods[Key("default", name)]["metadata"].get("annotations", {}))

    def labels(self, name: str) -> dict[str, str]:
        """Return a pod's labels in the API server."""
        return dict(self.api.pods[Key("default", name)]["metadata"].get("labels", {}))

    # --- what happens ------------------------------------------------------------------------------------------

    def schedule_groups(self) -> None:
        """Make one pass of the group scheduler, including its periodic work."""
        due = self.group_scheduler.take_dirty() | self.group_scheduler.take_woken()
        due |= finish(self.group_scheduler.run_periodic_work())
        for key in finish(self.group_scheduler.sort_in_queue_order(due)):
            self.group_scheduler.consider(key)
            self.core.runner.carry_out()
        self.core.runner.carry_out()

    async def run_tasks(self) -> None:
        """Let every task run as far as it can without time passing."""
        # asyncio's loop has a list of ready callbacks; uvloop has none, so there all rounds are made.
        ready = read_memory(asyncio.get_running_loop()).get("ready", [None])
        for _ in range(60):
            await asyncio.sleep(0)
            if not ready:
                return

    async def run_until_idle(self) -> None:
        """Run the group scheduler, all tasks and the watch of pods in turn until nothing changes any more."""
        for _ in range(4):
            run_deferred_work(self.store)
            self.schedule_groups()
            await self.run_tasks()
            self.sync_pods()

    async def pass_time(self, seconds: float) -> None:
        """Advance the clock, wake all binding cycles, and run until idle."""
        self.clock.advance(seconds)
        for reservation in self.ledger:
            self.binding_cycle(reservation.group).changed.set()
        await self.run_until_idle()

    def start_nominating(self) -> None:
        """Start the task that writes nominations."""
        self._background.append(asyncio.create_task(self.nominator.run()))

    def filter(self, name: str, *nodes: str) -> Answer:
        """Call filter for a pod, as kube-scheduler does, by default with all nodes."""
        return self.service.filter(self.pod(name), nodes or tuple(self.store.nodes))

    def filter_unknown(self, builder: PodBuilder) -> Answer:
        """Call filter for a pod that the cache does not have yet."""
        return self.service.filter(builder.value(), tuple(self.store.nodes) or ("n1",))

    def bind(self, name: str, node_name: str = "") -> "BindCall":
        """Start a bind call for a pod, as kube-scheduler does, by default to its planned node."""
        uid = self.pod(name).uid
        slot = self.ledger.slot_of(uid)
        request = BindRequest(Key("default", name), uid, node_name or (slot.node if slot else "n1"))
        call = BindCall(self.service, request)
        self._background.append(call.task)
        return call

    def is_requeued(self, name: str, node: str) -> bool:
        """Return whether a pod's nomination to this node was written and cleared once, which requeues the pod."""
        times = self.count_requeues(name, node)
        assert times <= 1
        return times == 1

    def count_requeues(self, name: str, node: str) -> int:
        """Count how often a pod's nomination to this node was written and cleared."""
        said = [call for call in self.api.list_calls("nominate") if call.name == name]
        written = [call.body["status"]["nominatedNodeName"] for call in said]
        assert written == [node, None] * (len(written) // 2)
        return len(written) // 2

    def binding_cycle(self, group: GroupKey = GANG) -> BindingCycle:
        """Return the group's binding cycle. Fail if it has none."""
        cycle = self.groups.states[group].cycle
        assert cycle is not None
        return cycle

    def reasons(self, group: GroupKey = GANG) -> list[Reason]:
        """Return the reasons that were reported for a group, in order."""
        return [verdict.reason for key, verdict in self.heard.verdicts if key == group]

    @property
    def nothing_reserved(self) -> bool:
        """True if ledger, occupancy and records have no trace of a binding cycle."""
        bound = {pod.uid for pod in self.store.pods.values() if pod.bound}
        usages = read_memory(self.store.occupancy)["usages"]
        return not len(self.ledger) and not self.api.records and usages.keys() == bound

    async def close(self) -> None:
        """Cancel every task."""
        await self.core.tasks.close()
        tasks = [*self._background, *read_memory(self.nominator)["background"]]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class BindCall:
    """One bind call of kube-scheduler, which runs in a task of its own."""

    def __init__(self, service: ExtenderService, request: BindRequest) -> None:
        self.node = request.node
        self._gone = asyncio.Event()
        self.task = asyncio.create_task(service.bind(request, self._wait_for_hangup))

    async def _wait_for_hangup(self) -> None:
        await self._gone.wait()

    @property
    def waiting(self) -> bool:
        """True while the extender has not answered."""
        return not self.task.done()

    @property
    def error(self) -> str:
        """The error in the answer, "" for success."""
        return self.task.result()

    def disconnect(self) -> None:
        """Close the connection, as kube-scheduler does after its timeout."""
        self._gone.set()


def members(count: int, first: int = 0) -> list[PodBuilder]:
    """Build the pods m0, m1, ... of the PodGroup g, with one CPU each."""
    return [pod(f"m{index}").cpu(1).scheduler(SCHEDULER).in_group("g") for index in range(first, first + count)]


def gang(min_count: int) -> PodGroupBuilder:
    """Build the PodGroup g."""
    return pod_group("g").gang(min_count)


def small_nodes(count: int, cpus: int = 2) -> list[NodeBuilder]:
    """Build the nodes n1, n2, ... with ``cpus`` CPUs."""
    return [node(f"n{index}").cpu(cpus) for index in range(1, count + 1)]
