"""Generate the tables of the page on metrics, `docs/metrics.md`, from the registered metrics (`serried.ops.metrics`).

    python -m bench.metrics            prints the page
    python -m bench.metrics --write    writes the page

Units and alerts are written in this module, the text around the tables in the page. A test compares the page with the
metrics.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from bench.generated import ROOT, offer_page
from serried.ops.metrics import MAX_NAMESPACES, OTHERS, ControllerMetrics, ExtenderMetrics, Metrics

PAGE = ROOT / "docs" / "metrics.md"

RUNBOOK = "https://github.com/serried/serried/blob/main/docs/troubleshooting.md"
"""The page that alerts link to; an alert appends the anchor of a heading."""

BEGIN, END = "<!-- metrics:begin -->", "<!-- metrics:end -->"

OUR_PREFIX = "serried_"
"""Prefix of Serried's own metrics. The Prometheus client adds others."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric in the registry of a process."""

    name: str
    """The name as it is scraped: that of a counter ends with `_total`."""

    type: str
    labels: tuple[str, ...]
    text: str
    """The help text."""


@dataclass(frozen=True, slots=True)
class Remark:
    """The cells of a metric's row that the registry does not have."""

    unit: str
    alert: str = ""
    """The condition to alert on. Only metrics of the Prometheus client may have none."""

    more: str = ""
    """Sentences after the help text: links, and numbers that change with the code."""


_OF_NAMESPACES = (
    f"At most {MAX_NAMESPACES} namespaces have their own series, the others share `{OTHERS}`."
    " One that was quiet for a day gives its series away. The Prometheus operator sets a label `namespace` of its own."
)
"""Text about all metrics by namespace, shown only in the row of the first one."""

REMARKS: Mapping[str, Remark] = {
    "serried_watch_restarts_total": Remark(
        "watches",
        "any `forbidden`, `unserved`, `bad_line` or `defect`; more than one `gone` or `silent` a minute for 10 minutes",
    ),
    "serried_watch_events_total": Remark("changes", "no increase for `pods` in 10 minutes while pods are created"),
    "serried_malformed_objects_total": Remark(
        "sightings", "any increase: a gang may wait for an object that Serried cannot read"
    ),
    "serried_api_writes_total": Remark(
        "requests",
        "a rate of `patch pods` above that of `create pods/binding` for 10 minutes: members are activated in vain",
    ),
    "serried_api_errors_total": Remark("requests", "a rate of `0`, `403`, `429` or `5..` above 1 for 10 minutes"),
    "serried_cache_objects": Remark("objects", "0 for `nodes` in a cluster that has nodes"),
    "serried_watch_silent_seconds": Remark("seconds", "above 180 for `pods` or `nodes` for 2 minutes"),
    "serried_event_drops_total": Remark("events", "any increase in 10 minutes: only `/debug` shows these reasons"),
    "serried_build_info": Remark("none", "more than one `version` for an hour: an upgrade has stopped half-way"),
    "serried_verb_seconds": Remark("seconds", "p99 of `filter` above 0.05 s for 10 minutes"),
    "serried_plans_total": Remark(
        "plans", "any `DomainConflict`", more="[Reasons](troubleshooting.md#what-does-the-reason-mean) lists them."
    ),
    "serried_plan_seconds": Remark(
        "seconds",
        "p99 above 0.25 s for 10 minutes",
        more="A plan that takes more than 5 ms is made in a forked process, and filter is served meanwhile.",
    ),
    "serried_bind_burst_seconds": Remark("seconds", "p99 above 2 s plus the largest minCount / 200 s"),
    "serried_bindings_total": Remark(
        "Bindings", "any `BoundElsewhere`: another scheduler binds these pods; `Failed` above 1 % for 10 minutes"
    ),
    "serried_repairs_total": Remark("slots", "a rate of `Lost` above 10 % of all for an hour"),
    "serried_repair_seconds": Remark("seconds", "p90 above 60 s for 30 minutes"),
    "serried_vacancies": Remark("slots", "more than 5 % of all running members for 10 minutes"),
    "serried_held_pods": Remark("pods", "above `--hold-limit` by `filter` for 10 minutes"),
    "serried_unmarked_members": Remark(
        "pods",
        "above 0 in an isolated installation: the scheduler binds these members one by one",
        more="[Isolation](install.md#what-does-isolation-change) has more about them.",
    ),
    "serried_groups": Remark(
        "PodGroups",
        "`RecordFailed` or `DeadlineExceeded` above 0 for 5 minutes;"
        " `Binding` above 0 without any `Bound` of `serried_bindings_total` for 5 minutes",
    ),
    "serried_victim_searches_total": Remark(
        "searches",
        "`Unfinished` above 10 % of all for an hour",
        more="[Preemption](preemption.md) has more about them.",
    ),
    "serried_victim_search_seconds": Remark(
        "seconds", "p99 above 2.5 s for an hour: searches stop with what they have found by then"
    ),
    "serried_preemptions_total": Remark("preemptions", "any `VictimsRemain`: pods were ended in vain"),
    "serried_victims_total": Remark("pods", "a rate that your users do not accept"),
    "serried_forecasts_total": Remark(
        "gangs", "`missed` above half of all for a day: set `activeDeadlineSeconds` on Jobs"
    ),
    "serried_forecast_wait_seconds": Remark("seconds", "p50 above what your users accept"),
    "serried_forecast_error_seconds": Remark("seconds", "p90 above 900 s for a day"),
    "serried_head_forecast_seconds": Remark("seconds", "below -300"),
    "serried_gang_wait_seconds": Remark(
        "seconds", "p90 of `QuorumMissing` above the time that your Jobs take to create pods"
    ),
    "serried_gang_start_seconds": Remark("seconds", "p90 above what your users accept"),
    "serried_partial_gangs": Remark("gangs", "above 0 for 15 minutes"),
    "serried_gangs": Remark(
        "gangs", "any `compatible`, if PodGroups of scheduler-plugins should not exist in your cluster"
    ),
    "serried_reservations": Remark(
        "reservations",
        "`Committed` above 0 without any `Bound` of `serried_bindings_total` for 5 minutes",
    ),
    "serried_reserved_slots": Remark("slots", "`waiting` above 10 % of all pods for 10 minutes"),
    "serried_reserved_idle": Remark("cores, bytes or pieces", "above what the cluster can spare for 15 minutes"),
    "serried_oldest_reservation_seconds": Remark("seconds", "above 900 for 5 minutes"),
    "serried_free_slots": Remark("members", "0 for a day: the cluster needs more nodes"),
    "serried_largest_gang": Remark("members", "below the size of your usual gangs for an hour"),
    "serried_namespace_waiting_gangs": Remark("gangs", "above what the team expects for an hour", more=_OF_NAMESPACES),
    "serried_namespace_longest_wait_seconds": Remark("seconds", "above what the team accepts"),
    "serried_namespace_start_seconds": Remark("seconds", "a mean above what the team accepts"),
    "serried_namespace_bound_members_total": Remark("pods", "no increase in an hour while gangs of the team wait"),
    "serried_namespace_victims_total": Remark("pods", "a rate that the team does not accept"),
    "serried_active": Remark("1 or 0", "0 on all extenders, or none there, for 2 minutes"),
    "serried_certificate_expiry_timestamp_seconds": Remark(
        "seconds since 1970", "less than 7 days ahead for an hour; a time that has passed: calls by TLS fail"
    ),
    "serried_job_syncs_total": Remark("looks", "any `error`; `retry` above half of all for 10 minutes"),
    "serried_job_sync_duration_seconds": Remark("seconds", "p99 above 5 s for 10 minutes"),
    "serried_job_gang_workload_creation_total": Remark(
        "creates", "any `error` for 10 minutes: gangs are held because their objects are missing"
    ),
    "serried_workload_creation_duration_seconds": Remark("seconds", "p99 above 1 s for 10 minutes"),
    "serried_podgroup_creations_total": Remark(
        "creates", "any `error` for 10 minutes: gangs are held because their objects are missing"
    ),
    "serried_controller_active": Remark("1 or 0", "0 on all controllers, or none there, for 2 minutes"),
    "serried_controller_queue_length": Remark("tasks", "above 1,000 for 10 minutes"),
    "process_cpu_seconds_total": Remark(
        "seconds",
        "a rate above 0.9 for 10 minutes: filter waits behind other work",
        more="Each process has one thread that works.",
    ),
    "process_resident_memory_bytes": Remark("bytes", "above 90 % of the container's limit"),
    "process_virtual_memory_bytes": Remark("bytes"),
    "process_start_time_seconds": Remark("seconds since 1970", "more than 3 changes in an hour"),
    "process_open_fds": Remark(
        "files", "above 90 % of `process_max_fds`", more="Each bind call that waits for the quorum holds one."
    ),
    "process_max_fds": Remark("files"),
    "python_gc_objects_collected_total": Remark("objects"),
    "python_gc_objects_uncollectable_total": Remark("objects", "any increase"),
    "python_gc_collections_total": Remark("collections"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the page, or write it with ``--write``."""
    return offer_page(PAGE, render, arguments, program="python -m bench.metrics", about=__doc__ or "")


def render() -> str:
    """Return the page with new tables between its markers. Raise ValueError if a marker is missing."""
    before, begin, rest = PAGE.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE} has no {BEGIN} followed by {END}")
    return f"{before}{BEGIN}\n{''.join(_render_tables())}\n{END}{after}"


def _render_tables() -> Iterator[str]:
    common = list_metrics(Metrics().registry)
    ours = [metric for metric in common if metric.name.startswith(OUR_PREFIX)]
    yield from _render_table("Both processes", ours)
    yield from _render_table("Extender", _leave_out(common, ExtenderMetrics()))
    yield from _render_table("Controller", _leave_out(common, ControllerMetrics()))
    of_the_client = "\nThe Prometheus client adds these metrics in both processes.\n"
    yield from _render_table("The processes themselves", _leave_out(ours, Metrics()), of_the_client)


def list_metrics(registry: CollectorRegistry) -> list[Metric]:
    """Return the metrics of a registry in the order of registration."""
    found = []
    for collector in registry._collector_to_names:  # noqa: SLF001 - the registry has no public list of labels
        for family in collector.collect():
            name = f"{family.name}_total" if family.type == "counter" else family.name
            seen = {label: None for sample in family.samples for label in sample.labels if label != "le"}
            labels = getattr(collector, "_labelnames", seen)
            found.append(Metric(name, family.type, tuple(labels), family.documentation))
    return found


def _leave_out(common: Sequence[Metric], metrics: Metrics) -> list[Metric]:
    return [metric for metric in list_metrics(metrics.registry) if metric not in common]


def _render_table(title: str, metrics: Sequence[Metric], about: str = "") -> Iterator[str]:
    yield f"\n## {title}\n{about}\n"
    yield "| metric | type | labels | unit | tells | alert on |\n"
    yield "|---|---|---|---|---|---|\n"
    for metric in metrics:
        remark = REMARKS[metric.name]
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        tells = f"{metric.text.rstrip('.')}. {remark.more}".rstrip().replace("|", "\\|")
        cells = (f"`{metric.name}`", metric.type, labels, remark.unit, tells, remark.alert)
        yield "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|\n"


if __name__ == "__main__":
    sys.exit(main())
