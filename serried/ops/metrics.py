"""The metrics of the processes, one class per process. Only this module uses prometheus_client.

Methods are called when the counted event happens, and must not block or raise. Each object has its own registry, so
several can exist in one process: tests, simulations. Label values are enums, resource names, and up to `MAX_NAMESPACES`
namespaces, never other object names. `bench.metrics` generates the tables of docs/metrics.md from the texts here, in
their order.
"""

import platform
import time
from collections import Counter as Count
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Summary, generate_latest
from prometheus_client.gc_collector import GCCollector
from prometheus_client.process_collector import ProcessCollector

from serried import __version__

MAX_NAMESPACES = 50
"""The maximum number of namespaces with their own series.

The label is not called `namespace`, because the Prometheus operator sets that label.
"""

OTHERS = "(other)"
"""The label value for all other namespaces together; no namespace can have this name."""

_QUIET_SECONDS = 86_400.0
"""The time without events after which a namespace loses its series to another one."""


@dataclass(frozen=True, slots=True)
class HeldRoom:
    """The resources held by reservations at one point in time."""

    phases: Mapping[str, int] = field(default_factory=dict)
    """The number of reservations by phase."""

    bound: int = 0
    """The number of slots whose members are bound."""

    waiting: int = 0
    """The number of slots whose members are not bound."""

    idle: Mapping[str, float] = field(default_factory=dict)
    """The requests of the waiting members by resource, in cores, bytes or pieces: reserved, but not used."""

    oldest_seconds: float = 0.0
    """The age of the oldest reservation that still waits."""


_VERB_SECONDS = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_SEARCH_SECONDS = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 80.0)
_SYNC_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0)
_WAIT_SECONDS = (10.0, 30.0, 60.0, 300.0, 900.0, 1800.0, 3600.0, 7200.0, 14400.0, 43200.0, 86400.0)
_ERROR_SECONDS = (-3600.0, -900.0, -300.0, -60.0, -10.0, 0.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14400.0)
_REPAIR_SECONDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_REASON_SECONDS = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0)
_BURST_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


M = TypeVar("M")


class _Declared(Generic[M]):
    """The declaration of a metric. Each object of the class creates it in its own registry, under the same name."""

    def __init__(self, make: Callable[[CollectorRegistry], M]) -> None:
        self.make = make

    def __get__(self, metrics: "Metrics", kind: type["Metrics"]) -> M:
        """Declare the type for type checkers. At run time the attribute of the object is found first."""
        raise AttributeError


def _counter(name: str, text: str, *labels: str) -> _Declared[Counter]:
    return _Declared(lambda registry: Counter(name, text, labels, registry=registry))


def _gauge(name: str, text: str, *labels: str) -> _Declared[Gauge]:
    return _Declared(lambda registry: Gauge(name, text, labels, registry=registry))


def _summary(name: str, text: str, *labels: str) -> _Declared[Summary]:
    return _Declared(lambda registry: Summary(name, text, labels, registry=registry))


def _histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> _Declared[Histogram]:
    return _Declared(lambda registry: Histogram(name, text, labels, registry=registry, buckets=buckets))


class Metrics:
    """The metrics of both processes: watches, writes, Events, the process itself."""

    _build = _gauge("serried_build_info", "Always 1. The labels say what runs.", "version", "python")
    _watch_restarts = _counter(
        "serried_watch_restarts",
        "Watches that ended, by cause. `scheduled` is the regular end after 5 to 10 minutes. `missing`: a 404"
        " that may be that of one API server of several. `unserved`: the API server no longer serves the resource."
        " `defect`: an error in Serried, which the log shows.",
        "resource",
        "cause",
    )
    _watch_events = _counter(
        "serried_watch_events",
        "Changes that the watches delivered: how much the cluster changes, and whether the caches follow.",
        "resource",
    )
    _malformed = _counter(
        "serried_malformed_objects",
        "Watched objects that Serried cannot use. Each sighting counts. The log names each of them once."
        " The last usable state of the object still counts.",
        "resource",
    )
    _writes = _counter(
        "serried_api_writes",
        "Writes to the API server, such as `create pods/binding` or `apply podgroups/status`. Each attempt counts.",
        "verb_resource",
    )
    _failures = _counter(
        "serried_api_errors",
        "Requests that the API server refused, or did not answer (`0`). Each attempt counts.",
        "method",
        "status",
    )
    _cached = _gauge("serried_cache_objects", "Objects of each resource in the cache.", "resource")
    _silent = _gauge(
        "serried_watch_silent_seconds",
        "Time since a watch last received anything. Bookmarks count, and come about once a minute."
        " The cache may be behind by this time.",
        "resource",
    )
    _event_drops = _counter(
        "serried_event_drops",
        "Events that were not written, because the queue was full or the API server refused.",
    )
    _certificates = _gauge(
        "serried_certificate_expiry_timestamp_seconds",
        "When certificates of the TLS listeners expire. `serving`: the first of `--tls-cert-file`. `client_ca`: the"
        " last of `--client-ca-file`. There is none for a certificate that Serried signed itself.",
        "certificate",
    )

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._sample: Callable[[], None] = lambda: None
        ProcessCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        declared = [each for kind in reversed(type(self).__mro__) for each in vars(kind).items()]
        vars(self).update({name: each.make(self.registry) for name, each in declared if isinstance(each, _Declared)})
        self._build.labels(__version__, platform.python_version()).set(1)

    def watch_restarted(self, resource: str, cause: str) -> None:
        """Count the end of a watch, for one of the causes in `kube.reflector.Cause`."""
        self._watch_restarts.labels(resource, cause).inc()

    def watch_received(self, resource: str, count: int) -> None:
        """Count ``count`` applied changes."""
        self._watch_events.labels(resource).inc(count)

    def malformed(self, resource: str) -> None:
        """Count the sighting of an unusable object."""
        self._malformed.labels(resource).inc()

    def wrote(self, verb: str, resource: str) -> None:
        """Count an attempt to write."""
        self._writes.labels(f"{verb} {resource}").inc()

    def failed(self, method: str, status: int) -> None:
        """Count a request that the API server refused; status 0 if there was no answer."""
        self._failures.labels(method, status).inc()

    def event_dropped(self) -> None:
        """Count a core/v1 Event that was dropped because the queue was full or the API server refused it."""
        self._event_drops.inc()

    def cached(self, resource: str, count: int) -> None:
        """Set the number of cached objects of a resource."""
        self._cached.labels(resource).set(count)

    def silent(self, resource: str, seconds: float) -> None:
        """Set the time since a watch last received anything, including bookmarks."""
        self._silent.labels(resource).set(seconds)

    def certificates(self, expiries: Mapping[str, float]) -> None:
        """Set the expiry of the certificates of each use, in seconds since 1970."""
        _set_all(self._certificates, (((use,), expiry) for use, expiry in expiries.items()))

    def before_render(self, sampler: Callable[[], None]) -> None:
        """Call ``sampler`` at each scrape, to set gauges from the present state.

        There is one sampler: a second call replaces it.
        """
        self._sample = sampler

    def render(self) -> bytes:
        """Return the body of ``/metrics``, of type `prometheus_client.CONTENT_TYPE_LATEST`."""
        self._sample()
        return generate_latest(self.registry)


class ExtenderMetrics(Metrics):
    """The metrics of the extender."""

    _verb_seconds = _histogram(
        "serried_verb_seconds",
        "`filter`, `prioritize`: time to answer, which is a part of the scheduler's serial loop."
        " `bind`: time from the call to the answer, including the wait for the quorum.",
        _VERB_SECONDS,
        "verb",
    )
    _plans = _counter(
        "serried_plans",
        "Results of planning, including retries: `Planned`, or the reason for the refusal.",
        "outcome",
    )
    _plan_seconds = _histogram("serried_plan_seconds", "Time to plan one gang, including refusals.", _VERB_SECONDS)
    _bursts = _histogram(
        "serried_bind_burst_seconds",
        "Time from the first Binding of a commit to the last answer."
        " During this time only a part of the gang is bound.",
        _BURST_SECONDS,
    )
    _bindings = _counter(
        "serried_bindings",
        "Bindings of members; Bindings of plain pods do not count. `BoundElsewhere`: another scheduler bound the"
        " pod first. `PodGone`: the pod was deleted meanwhile. `Failed`: Serried retries it if the gang is"
        " committed. `Refused`: it was not sent, or not again, because the plan does not hold any more or"
        " this extender does not lead any more. The other value is `Bound`.",
        "result",
    )
    _repairs = _counter(
        "serried_repairs",
        "What happened to the slots of dead members. The replacement got the `SameNode` or another node of the"
        " `SameDomain`, or the slot was `Lost`, because no replacement came in time.",
        "outcome",
    )
    _repair_seconds = _histogram(
        "serried_repair_seconds",
        "Time from the end of a member to the binding of its replacement. It includes the creation of the replacement.",
        _REPAIR_SECONDS,
    )
    _vacancies = _gauge("serried_vacancies", "Slots that Serried keeps for replacements.")
    _held = _gauge("serried_held_pods", "Pods that `filter` or `gate` holds now.", "by")
    _unmarked = _gauge(
        "serried_unmarked_members",
        "Members that wait for a node and lack the markers of an isolated installation."
        " They are counted in every installation.",
    )
    _groups = _gauge(
        "serried_groups",
        "PodGroups by stage of their cycle (`Recording`, `Preempting`, `Gathering`, `Committing`, `Binding`),"
        " or by the reason why they have no cycle.",
        "state",
    )
    _victim_searches = _counter(
        "serried_victim_searches",
        "Results of searches for victims, without dry runs. `Found`: there are victims. `Fits`: the gang fits by"
        " now without victims. `Unfinished`: the search was given up."
        " `Protection`, `Priority` and `Room` name the obstacle.",
        "outcome",
    )
    _victim_search_seconds = _histogram(
        "serried_victim_search_seconds",
        "Time that one search for victims takes. It runs in a forked process, as a plan does.",
        _SEARCH_SECONDS,
    )
    _preemptions = _counter(
        "serried_preemptions",
        "Results of preemptions for gangs. `Cleared`: all victims have ended. `Withdrawn`: the gang was deleted."
        " Any other value is the reason why the preemption was given up, such as `EvictionRefused` or"
        " `VictimsRemain`.",
        "outcome",
    )
    _victims = _counter(
        "serried_victims",
        "Pods that were evicted for gangs. `Group`: the whole group was evicted. `Member`: one member of a group."
        " `Plain`: a pod of no group.",
        "kind",
    )
    _forecasts = _counter(
        "serried_forecasts",
        "Gangs for which room was kept, by the result of the forecast. `kept`: placed at most 30 s after the first"
        " forecast time. `missed`: placed later. `unforeseen`: placed without a forecast."
        " `withdrawn`: the gang stopped waiting.",
        "outcome",
    )
    _forecast_wait = _histogram(
        "serried_forecast_wait_seconds",
        "Time from a gang's first forecast to the time that the forecast names.",
        _WAIT_SECONDS,
    )
    _forecast_error = _histogram(
        "serried_forecast_error_seconds",
        "Time from the first forecast's time to the gang's plan. It is negative if the gang was placed earlier.",
        _ERROR_SECONDS,
    )
    _head = _gauge(
        "serried_head_forecast_seconds",
        "Time until the forecast of the head of the queue. It is NaN if there is no head or no forecast.",
    )
    _reason_seconds = _histogram(
        "serried_gang_wait_seconds",
        "How long groups had a reason. `QuorumMissing` is the wait for their pods.",
        _REASON_SECONDS,
        "reason",
    )
    _start_seconds = _histogram(
        "serried_gang_start_seconds",
        "Time until a group's quorum is bound, from the moment when Serried first saw the group or the group lost"
        " its quorum.",
        _REASON_SECONDS,
    )
    _partial = _gauge("serried_partial_gangs", "Gangs that have bound members, but fewer than minCount.")
    _gangs = _gauge(
        "serried_gangs",
        'Gangs by API level and by kind of owner. The owner is `""` if there is none, and `other` for a kind that'
        " Serried does not know.",
        "level",
        "owner",
    )
    _reservations = _gauge("serried_reservations", "Plans that hold room.", "phase")
    _reserved_slots = _gauge(
        "serried_reserved_slots", "Slots of reservations whose members are `bound` or `waiting`.", "member"
    )
    _reserved_idle = _gauge(
        "serried_reserved_idle",
        "What the waiting members of reservations request: room that is held and not used.",
        "resource",
    )
    _oldest_reservation = _gauge("serried_oldest_reservation_seconds", "How long the oldest plan has held room.")
    _free_slots = _gauge(
        "serried_free_slots", "Free room in the cluster, as a number of members like those planned last."
    )
    _largest_gang = _gauge(
        "serried_largest_gang",
        "The free room of the domain with the most room, for each topology key, as a number of members like those"
        " planned last. If it is far below `serried_free_slots`, the free room is fragmented.",
        "key",
    )
    _waiting_gangs = _gauge(
        "serried_namespace_waiting_gangs",
        "Gangs that have pods and do not run, by namespace.",
        "pod_namespace",
    )
    _longest_wait = _gauge(
        "serried_namespace_longest_wait_seconds",
        "How long the gang of the namespace that has waited longest waits by now.",
        "pod_namespace",
    )
    _namespace_starts = _summary(
        "serried_namespace_start_seconds",
        "As `serried_gang_start_seconds`, by namespace. `_sum` divided by `_count` is the mean wait.",
        "pod_namespace",
    )
    _namespace_bound = _counter(
        "serried_namespace_bound_members", "Members that Serried has bound, by namespace.", "pod_namespace"
    )
    _namespace_victims = _counter(
        "serried_namespace_victims",
        "Pods that were evicted for gangs, by the namespace of the pod.",
        "pod_namespace",
    )
    _active = _gauge("serried_active", "1 on the extender that plans and binds, 0 on a standby.")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock

        self._namespaces: dict[str, float] = {}
        """The time of the last event of each namespace with its own series, the oldest first."""

    def verb(self, name: str, seconds: float) -> None:
        """Observe the time in which a call of kube-scheduler was answered."""
        self._verb_seconds.labels(name).observe(seconds)

    def planned(self, outcome: str, seconds: float) -> None:
        """Count a plan or refusal, and observe its time."""
        self._plans.labels(outcome).inc()
        self._plan_seconds.observe(seconds)

    def burst(self, seconds: float, members: int) -> None:  # noqa: ARG002 - tests read it
        """Observe the time from the first Binding of a commit to its last answer."""
        self._bursts.observe(seconds)

    def bound(self, outcome: str, namespace: str) -> None:
        """Count the outcome of a Binding."""
        self._bindings.labels(outcome).inc()
        if outcome == "Bound":
            self._namespace_bound.labels(self._label(namespace)).inc()

    def observe_forecast_wait(self, wait: float) -> None:
        """Observe how far ahead the first forecast of the head of the queue is."""
        self._forecast_wait.observe(wait)

    def observe_forecast_error(self, outcome: str, error: float | None) -> None:
        """Count the outcome of a head's forecast.

        ``error`` is the actual minus the forecast time of its plan in seconds; None without a forecast.
        """
        self._forecasts.labels(outcome).inc()
        if error is not None:
            self._forecast_error.observe(error)

    def searched(self, outcome: str, seconds: float) -> None:
        """Count a search for victims by outcome (Found, Fits, Unfinished, or the obstacle), and observe its time."""
        self._victim_searches.labels(outcome).inc()
        self._victim_search_seconds.observe(seconds)

    def preemption_ended(self, outcome: str) -> None:
        """Count the end of a preemption: Cleared, Withdrawn, or the reason why it was given up."""
        self._preemptions.labels(outcome).inc()

    def evicted(self, kind: str, namespace: str) -> None:
        """Count an evicted pod: Group if its whole group is evicted, Member of a group, or Plain."""
        self._victims.labels(kind).inc()
        self._namespace_victims.labels(self._label(namespace)).inc()

    def head(self, seconds: float) -> None:
        """Set the seconds until the forecast of the head of the queue; NaN without one."""
        self._head.set(seconds)

    def repaired(self, outcome: str, seconds: float) -> None:
        """Count a reserved slot that was filled or given up, ``seconds`` after its member had ended."""
        self._repairs.labels(outcome).inc()
        if outcome != "Lost":
            self._repair_seconds.observe(seconds)

    def vacancies(self, count: int) -> None:
        """Set the number of slots kept for replacements."""
        self._vacancies.set(count)

    def held(self, by: str, count: int) -> None:
        """Set the number of pods that are held, ``by`` filter or gate."""
        self._held.labels(by).set(count)

    def unmarked(self, count: int) -> None:
        """Set the number of waiting members without the markers."""
        self._unmarked.set(count)

    def groups(self, state: str, count: int) -> None:
        """Set the number of groups in a state."""
        self._groups.labels(state).set(count)

    def waited(self, reason: str, seconds: float) -> None:
        """Observe for how many seconds a group had a reason, once it has another one."""
        self._reason_seconds.labels(reason).observe(seconds)

    def started(self, seconds: float, namespace: str) -> None:
        """Observe a group's time until its quorum was bound, since it was first seen or had lost its quorum."""
        self._start_seconds.observe(seconds)
        self._namespace_starts.labels(self._label(namespace)).observe(seconds)

    def waiting(self, seconds: Mapping[str, Sequence[float]]) -> None:
        """Set the waits of all waiting gangs, by namespace."""
        gangs: Count[str] = Count()
        longest: dict[str, float] = {}
        for namespace, waits in seconds.items():
            label = self._label(namespace)
            gangs[label] += len(waits)
            longest[label] = max(longest.get(label, 0.0), *waits)
        _set_all(self._waiting_gangs, (((label,), count) for label, count in gangs.items()))
        _set_all(self._longest_wait, (((label,), wait) for label, wait in longest.items()))

    def _label(self, namespace: str) -> str:
        """Return the label value for a namespace: its name if it has, or gets, its own series."""
        now = self._clock()
        if namespace not in self._namespaces and len(self._namespaces) >= MAX_NAMESPACES:
            quiet, since = next(iter(self._namespaces.items()))
            if now - since < _QUIET_SECONDS:
                return OTHERS
            del self._namespaces[quiet]
            for metric in (self._namespace_starts, self._namespace_bound, self._namespace_victims):
                with suppress(KeyError):  # older releases of prometheus_client raise it without a series
                    metric.remove(quiet)
        self._namespaces.pop(namespace, None)  # the latest is last
        self._namespaces[namespace] = now
        return namespace

    def active(self, count: int) -> None:
        """Set whether this process plans and binds: 1 or 0."""
        self._active.set(count)

    def partial(self, count: int) -> None:
        """Set the number of gangs with bound members, but fewer than minCount."""
        self._partial.set(count)

    def gangs(self, counts: Mapping[tuple[str, str], int]) -> None:
        """Set the numbers of gangs by API level and kind of owner."""
        _set_all(self._gangs, counts.items())

    def reservations(self, held: HeldRoom) -> None:
        """Set the resources that reservations hold."""
        _set_all(self._reservations, (((phase,), count) for phase, count in held.phases.items()))
        _set_all(self._reserved_slots, [(("bound",), held.bound), (("waiting",), held.waiting)])
        _set_all(self._reserved_idle, (((resource,), amount) for resource, amount in held.idle.items()))
        self._oldest_reservation.set(held.oldest_seconds)

    def fragmentation(self, free: int, largest: Mapping[str, int]) -> None:
        """Set how many members like those planned last fit in the cluster, and for each key in its best domain."""
        self._free_slots.set(free)
        _set_all(self._largest_gang, (((key,), slots) for key, slots in largest.items()))


class ControllerMetrics(Metrics):
    """The metrics of the controller."""

    _syncs = _counter(
        "serried_job_syncs",
        "Looks at Jobs, by result. `success`; `retry`: the API server refused, and the controller tries again"
        " later; `error`: an error in Serried, which the log shows.",
        "result",
    )
    _sync_seconds = _histogram(
        "serried_job_sync_duration_seconds", "Time of one look at a Job, including its writes.", _SYNC_SECONDS
    )
    _creations = _counter(
        "serried_job_gang_workload_creation",
        "Workloads that the controller tried to create for gang Jobs: `success`, or `error` if the API server refused.",
        "result",
    )
    _creation_seconds = _histogram(
        "serried_workload_creation_duration_seconds",
        "Time from the create of a gang Job's Workload to the API server's answer, including refusals.",
        _SYNC_SECONDS,
    )
    _groups_made = _counter(
        "serried_podgroup_creations",
        "PodGroups that the controller tried to create: `success`, or `error` if the API server refused.",
        "result",
    )
    _active = _gauge("serried_controller_active", "1 on the controller that creates objects, 0 on a standby.")
    _queue = _gauge(
        "serried_controller_queue_length",
        "Jobs that wait for a look, and namespaces with PodGroups that wait for their finalizer to be removed.",
    )

    def synced(self, result: str, seconds: float) -> None:
        """Count a sync of a Job: success, retry (the API server refused) or error (a defect of Serried)."""
        self._syncs.labels(result).inc()
        self._sync_seconds.observe(seconds)

    def created(self, result: str, seconds: float) -> None:
        """Count the answer to the create of a gang Job's Workload, and observe its time."""
        self._creations.labels(result).inc()
        self._creation_seconds.observe(seconds)

    def created_group(self, result: str) -> None:
        """Count the answer to the create of a PodGroup: success or error."""
        self._groups_made.labels(result).inc()

    def active(self, count: int) -> None:
        """Set whether this controller leads: 1 or 0."""
        self._active.set(count)

    def queued(self, length: int) -> None:
        """Set the length of the queue."""
        self._queue.set(length)


def _set_all(gauge: Gauge, values: Iterable[tuple[tuple[str, ...], float]]) -> None:
    """Set the gauge to these values by labels, and remove all others."""
    gauge.clear()
    for labels, value in values:
        gauge.labels(*labels).set(value)
