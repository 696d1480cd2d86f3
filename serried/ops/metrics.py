"""The Prometheus metrics of extender and controller, one class for each. Only this module uses prometheus_client.

Other modules call a method when the counted event happens; methods must not block or raise. Each instance has its own
registry, so that tests and simulations can have several in one process. Label values are enums, resource names, and up
to `MAX_NAMESPACES` namespaces, never names of other objects: the number of series stays limited. `bench.metrics`
generates the tables of docs/metrics.md from the texts of the metrics here, in this order.
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
"""The maximum number of namespaces that have their own value of the label ``pod_namespace``.

The label is not called ``namespace``, because the Prometheus operator sets a label of that name.
"""

OTHERS = "(other)"
"""The value of ``pod_namespace`` for all further namespaces together; no namespace can have this name."""

_QUIET_SECONDS = 86_400.0
"""The time without events after which the series of a namespace are deleted if another namespace needs its own."""


@dataclass(frozen=True, slots=True)
class ReservedResources:
    """Sums over all reservations of the extender at one point in time."""

    phases: Mapping[str, int] = field(default_factory=dict)
    """The number of reservations by phase: Planned or Committed."""

    bound: int = 0
    """The number of slots whose members are bound."""

    waiting: int = 0
    """The number of slots whose members are not bound."""

    idle: Mapping[str, float] = field(default_factory=dict)
    """The requests of the members that are not bound yet, by resource: CPU in cores, memory in bytes, others in pieces.

    These resources are reserved, but not used yet.
    """

    oldest_seconds: float = 0.0
    """The age in seconds of the oldest reservation whose gang is not bound yet; 0.0 if there is none."""


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
    """A class attribute that declares a metric. `Metrics.__init__` creates the metric in the instance's registry."""

    def __init__(self, make: Callable[[CollectorRegistry], M]) -> None:
        self.make = make

    def __get__(self, metrics: "Metrics", kind: type["Metrics"]) -> M:
        """Tell type checkers the type of the metric. Never called at run time: the instance has its own attribute."""
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
    """The metrics that extender and controller have in common: watches, writes, Events, the process itself."""

    _build = _gauge(
        "serried_build_info", "Always 1. The labels name the version of Serried and of Python.", "version", "python"
    )
    _watch_restarts = _counter(
        "serried_watch_restarts",
        "Watches that ended, by cause. `scheduled` is the regular end after 5 to 10 minutes. `missing`: a"
        " 404, maybe of only one of several API servers. `unserved`: the API server no longer serves the"
        " resource. `defect`: an error in Serried, which the log shows.",
        "resource",
        "cause",
    )
    _watch_events = _counter(
        "serried_watch_events",
        "Changes of objects that the watches delivered to the cache.",
        "resource",
    )
    _malformed = _counter(
        "serried_malformed_objects",
        "Watched objects that Serried cannot read. Each delivery counts. The log names each object once."
        " Serried keeps the last readable state of the object.",
        "resource",
    )
    _writes = _counter(
        "serried_api_writes",
        "Writes of Serried to the API server, such as `create pods/binding` or `apply podgroups/status`. Each"
        " attempt counts.",
        "verb_resource",
    )
    _failures = _counter(
        "serried_api_errors",
        "Requests of Serried that the API server rejected, or did not answer (`0`). Each attempt counts.",
        "method",
        "status",
    )
    _cached = _gauge("serried_cache_objects", "Number of objects of each resource in Serried's cache.", "resource")
    _silent = _gauge(
        "serried_watch_silent_seconds",
        "Time since a watch last received a change or a bookmark. Bookmarks arrive about once a minute. The"
        " cache may be this much behind.",
        "resource",
    )
    _event_drops = _counter(
        "serried_event_drops",
        "Events that Serried did not write, because its queue was full or the API server rejected them.",
    )
    _certificates = _gauge(
        "serried_certificate_expiry_timestamp_seconds",
        "Time at which certificates of the TLS listeners expire. `serving`: the first one in"
        " `--tls-cert-file`. `client_ca`: the last one in `--client-ca-file`. A certificate that Serried"
        " signed itself has no value.",
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
        """Count the end of a watch of ``resource`` (a plural); ``cause`` is a value of `kube.reflector.Cause`."""
        self._watch_restarts.labels(resource, cause).inc()

    def watch_received(self, resource: str, count: int) -> None:
        """Add ``count`` changes that watches of ``resource`` (a plural) have delivered."""
        self._watch_events.labels(resource).inc(count)

    def malformed(self, resource: str) -> None:
        """Count a watched object of ``resource`` that could not be decoded; each new version of an object counts."""
        self._malformed.labels(resource).inc()

    def wrote(self, verb: str, resource: str) -> None:
        """Count an attempt to write to the API server, for instance ("create", "pods/binding")."""
        self._writes.labels(f"{verb} {resource}").inc()

    def failed(self, method: str, status: int) -> None:
        """Count a request to the API server that failed, by HTTP method and status; 0 if there was no answer."""
        self._failures.labels(method, status).inc()

    def event_dropped(self) -> None:
        """Count a core/v1 Event that was not written, because the queue was full or the API server rejected it."""
        self._event_drops.inc()

    def cached(self, resource: str, count: int) -> None:
        """Set the number of objects of a resource (a plural) in the Store, the cache of watched objects."""
        self._cached.labels(resource).set(count)

    def silent(self, resource: str, seconds: float) -> None:
        """Set the time since the watch of ``resource`` last received anything, including bookmarks."""
        self._silent.labels(resource).set(seconds)

    def certificates(self, expiries: Mapping[str, float]) -> None:
        """Set when the certificates of the TLS listeners expire, in seconds since 1970.

        ``expiries`` has the times by use: ``serving`` (server certificate), ``client_ca`` (CA for client certificates).
        """
        _set_all(self._certificates, (((use,), expiry) for use, expiry in expiries.items()))

    def before_render(self, sampler: Callable[[], None]) -> None:
        """Let each scrape call ``sampler`` first, which sets gauges from the present state.

        There is one sampler: a second call replaces it.
        """
        self._sample = sampler

    def render(self) -> bytes:
        """Call the sampler, and return the body of ``/metrics`` (`prometheus_client.CONTENT_TYPE_LATEST`)."""
        self._sample()
        return generate_latest(self.registry)


class ExtenderMetrics(Metrics):
    """The metrics of the extender."""

    _verb_seconds = _histogram(
        "serried_verb_seconds",
        "Time in which Serried answers calls of kube-scheduler. `filter` and `prioritize` delay each"
        " scheduling cycle. `bind`: time from the call to the answer, including the wait for the quorum.",
        _VERB_SECONDS,
        "verb",
    )
    _plans = _counter(
        "serried_plans",
        "Results of planning, including retries: `Planned`, or the reason why the gang does not fit.",
        "outcome",
    )
    _plan_seconds = _histogram(
        "serried_plan_seconds", "Time to plan one gang, also if the gang does not fit.", _VERB_SECONDS
    )
    _bursts = _histogram(
        "serried_bind_burst_seconds",
        "Time from the first Binding of a gang to the API server's last answer. During this time only a part"
        " of the gang is bound.",
        _BURST_SECONDS,
    )
    _bindings = _counter(
        "serried_bindings",
        "Bindings of members; Bindings of plain pods do not count. `BoundElsewhere`: another scheduler bound"
        " the pod first. `PodGone`: the pod was deleted meanwhile. `Failed`: Serried retries it if the gang"
        " is committed. `Refused`: Serried did not send it, because the plan is no longer valid or this"
        " extender no longer leads. The other value is `Bound`.",
        "result",
    )
    _repairs = _counter(
        "serried_repairs",
        "Outcomes of slots of dead members. The replacement got the `SameNode` or another node of the"
        " `SameDomain`, or the slot was `Lost`, because no replacement came in time.",
        "outcome",
    )
    _repair_seconds = _histogram(
        "serried_repair_seconds",
        "Time from the end of a member to the binding of its replacement. It includes the creation of the replacement.",
        _REPAIR_SECONDS,
    )
    _vacancies = _gauge("serried_vacancies", "Slots that Serried keeps for replacements.")
    _held = _gauge(
        "serried_held_pods",
        "Number of waiting pods that Serried holds, by the answer to `filter` or by a scheduling `gate`.",
        "by",
    )
    _unmarked = _gauge(
        "serried_unmarked_members",
        "Number of members that wait for a node and lack the markers of an isolated installation. Serried"
        " counts them in every installation.",
    )
    _groups = _gauge(
        "serried_groups",
        "Number of PodGroups by stage of their cycle (`Recording`, `Preempting`, `Gathering`, `Committing`,"
        " `Binding`), or by the reason why they have no cycle.",
        "state",
    )
    _victim_searches = _counter(
        "serried_victim_searches",
        "Results of searches for victims, without dry runs. `Found`: there are victims. `Fits`: the gang fits"
        " without victims now. `Unfinished`: Serried stopped the search. `Protection`, `Priority` and `Room`"
        " name the obstacle.",
        "outcome",
    )
    _victim_search_seconds = _histogram(
        "serried_victim_search_seconds",
        "Time that one search for victims takes. Like planning, it runs in a forked process.",
        _SEARCH_SECONDS,
    )
    _preemptions = _counter(
        "serried_preemptions",
        "Results of preemptions for gangs. `Cleared`: all victims have ended. `Withdrawn`: the gang was"
        " deleted. Any other value is the reason why Serried stopped the preemption, such as"
        " `EvictionRefused` or `VictimsRemain`.",
        "outcome",
    )
    _victims = _counter(
        "serried_victims",
        "Pods that Serried evicted for gangs. `Group`: the whole group was evicted. `Member`: one member of a"
        " group. `Plain`: a pod of no group.",
        "kind",
    )
    _forecasts = _counter(
        "serried_forecasts",
        "Gangs for which Serried kept nodes, by the result of the forecast. `kept`: placed at most 30 s after"
        " the first forecast time. `missed`: placed later. `unforeseen`: placed, but no forecast named a time."
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
        "Time for which groups had a reason. `QuorumMissing` is the wait for their pods.",
        _REASON_SECONDS,
        "reason",
    )
    _start_seconds = _histogram(
        "serried_gang_start_seconds",
        "Time until a group's quorum is bound, from the moment when Serried first saw the group or the group lost"
        " its quorum.",
        _REASON_SECONDS,
    )
    _partial = _gauge("serried_partial_gangs", "Number of gangs that have bound members, but fewer than minCount.")
    _gangs = _gauge(
        "serried_gangs",
        'Number of gangs by API level and by kind of owner. The owner is `""` if there is none, and `other` for a kind'
        " that Serried does not know.",
        "level",
        "owner",
    )
    _reservations = _gauge("serried_reservations", "Number of plans that reserve resources.", "phase")
    _reserved_slots = _gauge(
        "serried_reserved_slots", "Number of planned members that are `bound` or `waiting`.", "member"
    )
    _reserved_idle = _gauge(
        "serried_reserved_idle",
        "Requests of planned members that are not bound yet: resources that are reserved and not used.",
        "resource",
    )
    _oldest_reservation = _gauge(
        "serried_oldest_reservation_seconds", "Age of the oldest plan that reserves resources."
    )
    _free_slots = _gauge(
        "serried_free_slots", "Free resources of the cluster, as a number of members like those planned last."
    )
    _largest_gang = _gauge(
        "serried_largest_gang",
        "Free resources of the domain with the most of them, for each topology key, as a number of members"
        " like those planned last. If it is far below `serried_free_slots`, the free resources are"
        " fragmented.",
        "key",
    )
    _waiting_gangs = _gauge(
        "serried_namespace_waiting_gangs",
        "Number of gangs that have pods and do not run, by namespace.",
        "pod_namespace",
    )
    _longest_wait = _gauge(
        "serried_namespace_longest_wait_seconds",
        "Waiting time of the gang that has waited longest, by namespace.",
        "pod_namespace",
    )
    _namespace_starts = _summary(
        "serried_namespace_start_seconds",
        "As `serried_gang_start_seconds`, by namespace. `_sum` divided by `_count` is the mean wait.",
        "pod_namespace",
    )
    _namespace_bound = _counter(
        "serried_namespace_bound_members", "Members that Serried bound, by namespace.", "pod_namespace"
    )
    _namespace_victims = _counter(
        "serried_namespace_victims",
        "Pods that Serried evicted for gangs, by the namespace of the pod.",
        "pod_namespace",
    )
    _active = _gauge("serried_active", "1 on the extender that plans and binds, 0 on a standby.")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock

        self._namespaces: dict[str, float] = {}
        """The namespaces that have their own series, with the time of their last event by ``clock``, oldest first."""

    def verb(self, name: str, seconds: float) -> None:
        """Observe in how many seconds a call of kube-scheduler was answered; ``name`` is filter, prioritize or bind."""
        self._verb_seconds.labels(name).observe(seconds)

    def planned(self, outcome: str, seconds: float) -> None:
        """Count the end of a try to plan a gang, and observe how many seconds it took.

        ``outcome`` is ``Planned``, or the reason why there is no plan (`serried.api.verdict.Reason`).
        """
        self._plans.labels(outcome).inc()
        self._plan_seconds.observe(seconds)

    def burst(self, seconds: float, members: int) -> None:  # noqa: ARG002 - tests read it
        """Observe the seconds from the first Binding of a committed gang to the API server's last answer.

        ``members`` is the number of its committed members, which no metric shows.
        """
        self._bursts.observe(seconds)

    def bound(self, outcome: str, namespace: str) -> None:
        """Count a Binding of a member in ``namespace``.

        ``outcome`` is Bound, BoundElsewhere (another scheduler bound the pod first), PodGone (it was deleted), Failed,
        or Refused (not sent, because the plan is no longer valid or this extender does not lead any more).
        """
        self._bindings.labels(outcome).inc()
        if outcome == "Bound":
            self._namespace_bound.labels(self._label(namespace)).inc()

    def observe_forecast_wait(self, wait: float) -> None:
        """Observe the seconds from a gang's first forecast, as the head of the queue, to the start that it names."""
        self._forecast_wait.observe(wait)

    def observe_forecast_error(self, outcome: str, error: float | None) -> None:
        """Count a gang that is no longer the head of the queue, by how good its first forecast was.

        ``outcome`` is kept (planned at most 30 s after the forecast time, or earlier), missed (planned later),
        unforeseen (planned, but no forecast named a time) or withdrawn (the gang stopped waiting). ``error`` is the
        time of its plan minus the forecast time, in seconds: negative if it was planned earlier, None if there is
        nothing to compare.
        """
        self._forecasts.labels(outcome).inc()
        if error is not None:
            self._forecast_error.observe(error)

    def searched(self, outcome: str, seconds: float) -> None:
        """Count a search for victims by its outcome, and observe how many seconds it took.

        ``outcome`` is Found, Fits (the gang fits without victims by now), Unfinished (Serried stopped the search), or
        the reason why there are no victims: Protection (the pods in the way must not be evicted), Priority (their
        priority is not lower than the gang's), or Room (the gang would not fit even without them).
        """
        self._victim_searches.labels(outcome).inc()
        self._victim_search_seconds.observe(seconds)

    def preemption_ended(self, outcome: str) -> None:
        """Count the end of a preemption by a gang.

        ``outcome`` is Cleared (all victims have ended), Withdrawn (the gang was deleted), or the reason why Serried
        gave the preemption up, such as VictimsRemain.
        """
        self._preemptions.labels(outcome).inc()

    def evicted(self, kind: str, namespace: str) -> None:
        """Count a pod of ``namespace`` that Serried has evicted for a gang.

        ``kind`` is Group if all members of the pod's group are evicted, Member if only this or some of them are, Plain
        for a pod of no group.
        """
        self._victims.labels(kind).inc()
        self._namespace_victims.labels(self._label(namespace)).inc()

    def head(self, seconds: float) -> None:
        """Set the seconds until the head of the queue is expected to start; NaN if there is no head or no forecast."""
        self._head.set(seconds)

    def repaired(self, outcome: str, seconds: float) -> None:
        """Count a vacancy that has ended, ``seconds`` after the member in the slot had ended.

        ``outcome`` is SameNode if a replacement was bound to the node of the slot, SameDomain if to another node (in
        the same domain, if the gang has a topology key), or Lost if the slot was given up, for instance because no
        replacement came in time.
        """
        self._repairs.labels(outcome).inc()
        if outcome != "Lost":
            self._repair_seconds.observe(seconds)

    def vacancies(self, count: int) -> None:
        """Set the number of vacancies: slots kept for the replacements of members that ended."""
        self._vacancies.set(count)

    def held(self, by: str, count: int) -> None:
        """Set the number of pending pods that Serried holds back, so that kube-scheduler does not bind them yet.

        ``by`` is filter (Serried rejects all nodes in filter calls) or gate (a scheduling gate).
        """
        self._held.labels(by).set(count)

    def unmarked(self, count: int) -> None:
        """Set the number of pending members without the marker that an isolated installation needs.

        An isolated installation has no part in pods that do not use it: kube-scheduler calls Serried only for pods that
        request an extended resource, the marker. An admission policy adds the marker to new members. Members without
        the marker would not be scheduled as a gang.
        """
        self._unmarked.set(count)

    def groups(self, state: str, count: int) -> None:
        """Set the number of PodGroups in ``state``.

        ``state`` is the present step of a group with a plan (Recording, Preempting, Gathering, Committing or Binding).
        For other groups it is the reason of their verdict (`serried.api.verdict.Reason`).
        """
        self._groups.labels(state).set(count)

    def waited(self, reason: str, seconds: float) -> None:
        """Observe for how many seconds the verdict of a group had this reason; called when the reason changes."""
        self._reason_seconds.labels(reason).observe(seconds)

    def started(self, seconds: float, namespace: str) -> None:
        """Observe the seconds until the quorum of a group was bound.

        They begin when Serried saw the group first, or when a running group lost its quorum.
        """
        self._start_seconds.observe(seconds)
        self._namespace_starts.labels(self._label(namespace)).observe(seconds)

    def waiting(self, seconds: Mapping[str, Sequence[float]]) -> None:
        """Set number and longest wait of the gangs that have pods and do not run.

        ``seconds`` are the waiting times of these gangs, by namespace.
        """
        gangs: Count[str] = Count()
        longest: dict[str, float] = {}
        for namespace, waits in seconds.items():
            label = self._label(namespace)
            gangs[label] += len(waits)
            longest[label] = max(longest.get(label, 0.0), *waits)
        _set_all(self._waiting_gangs, (((label,), count) for label, count in gangs.items()))
        _set_all(self._longest_wait, (((label,), wait) for label, wait in longest.items()))

    def _label(self, namespace: str) -> str:
        """Return the value of ``pod_namespace`` for an event or waiting gangs in a namespace: its name, or `OTHERS`.

        A new namespace gets its own series if there are fewer than `MAX_NAMESPACES`, or if one of these had neither for
        a day. The series of that one are then deleted.
        """
        now = self._clock()
        if namespace not in self._namespaces and len(self._namespaces) >= MAX_NAMESPACES:
            quiet, since = next(iter(self._namespaces.items()))
            if now - since < _QUIET_SECONDS:
                return OTHERS
            del self._namespaces[quiet]
            for metric in (self._namespace_starts, self._namespace_bound, self._namespace_victims):
                with suppress(KeyError):  # older releases of prometheus_client raise it without a series
                    metric.remove(quiet)
        self._namespaces.pop(namespace, None)  # so that the namespace with the latest event is the last one in the dict
        self._namespaces[namespace] = now
        return namespace

    def active(self, count: int) -> None:
        """Set whether this extender leads, so that it plans and binds: 1 or 0."""
        self._active.set(count)

    def partial(self, count: int) -> None:
        """Set the number of gangs with bound members, but fewer than minCount."""
        self._partial.set(count)

    def gangs(self, counts: Mapping[tuple[str, str], int]) -> None:
        """Set the numbers of gangs by (API level, kind of the owner); the kind is "" if there is no owner.

        The API level names the API that the PodGroup is from, such as ``native`` for scheduling.k8s.io.
        """
        _set_all(self._gangs, counts.items())

    def reservations(self, held: ReservedResources) -> None:
        """Set the gauges about reservations."""
        _set_all(self._reservations, (((phase,), count) for phase, count in held.phases.items()))
        _set_all(self._reserved_slots, [(("bound",), held.bound), (("waiting",), held.waiting)])
        _set_all(self._reserved_idle, (((resource,), amount) for resource, amount in held.idle.items()))
        self._oldest_reservation.set(held.oldest_seconds)

    def fragmentation(self, free: int, largest: Mapping[str, int]) -> None:
        """Set how fragmented the free resources are, measured in members with the requests of those planned last.

        ``free`` is how many of these members fit in the whole cluster. ``largest`` is, by topology key, how many fit in
        the domain where most fit.
        """
        self._free_slots.set(free)
        _set_all(self._largest_gang, (((key,), slots) for key, slots in largest.items()))


class ControllerMetrics(Metrics):
    """The metrics of the controller."""

    _syncs = _counter(
        "serried_job_syncs",
        "Reconciliations of Jobs, by result. `success`; `retry`: the API server rejected a write, and the"
        " controller tries again later; `error`: an error in Serried, which the log shows.",
        "result",
    )
    _sync_seconds = _histogram(
        "serried_job_sync_duration_seconds", "Time of one reconciliation of a Job, including its writes.", _SYNC_SECONDS
    )
    _creations = _counter(
        "serried_job_gang_workload_creation",
        "Workloads that the controller tried to create for gang Jobs: `success`, or `error` if the API server"
        " rejected it.",
        "result",
    )
    _creation_seconds = _histogram(
        "serried_workload_creation_duration_seconds",
        "Time from the request to create a gang Job's Workload to the API server's answer, including rejections.",
        _SYNC_SECONDS,
    )
    _groups_made = _counter(
        "serried_podgroup_creations",
        "PodGroups that the controller tried to create: `success`, or `error` if the API server rejected it.",
        "result",
    )
    _active = _gauge("serried_controller_active", "1 on the controller that creates objects, 0 on a standby.")
    _queue = _gauge(
        "serried_controller_queue_length",
        "Number of Jobs that wait to be reconciled, and of namespaces with PodGroups whose finalizer has to"
        " be removed.",
    )

    def synced(self, result: str, seconds: float) -> None:
        """Count a reconciliation of a Job, and observe how many seconds it took.

        ``result`` is success, retry (the API server rejected a write) or error (a bug in Serried).
        """
        self._syncs.labels(result).inc()
        self._sync_seconds.observe(seconds)

    def created(self, result: str, seconds: float) -> None:
        """Count the create of a gang Job's Workload (``result`` is success or error), and observe its seconds."""
        self._creations.labels(result).inc()
        self._creation_seconds.observe(seconds)

    def created_group(self, result: str) -> None:
        """Count the create of a PodGroup; ``result`` is success or error."""
        self._groups_made.labels(result).inc()

    def active(self, count: int) -> None:
        """Set whether this controller leads: 1 or 0."""
        self._active.set(count)

    def queued(self, length: int) -> None:
        """Set the number of Jobs, and of namespaces with PodGroups, that wait to be reconciled."""
        self._queue.set(length)


def _set_all(gauge: Gauge, values: Iterable[tuple[tuple[str, ...], float]]) -> None:
    """Set the series of a gauge to ``values``, pairs of label values and value, and remove all its other series."""
    gauge.clear()
    for labels, value in values:
        gauge.labels(*labels).set(value)
