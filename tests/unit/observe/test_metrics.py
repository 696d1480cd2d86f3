from platform import python_version

import pytest

from serried import __version__
from serried.ops.metrics import MAX_NAMESPACES, OTHERS, ControllerMetrics, ExtenderMetrics, Metrics


def test_each_method_feeds_its_metric() -> None:
    metrics = ExtenderMetrics()
    metrics.watch_restarted("pods", "gone")
    metrics.watch_received("pods", 3)
    metrics.malformed("pods")
    metrics.wrote("create", "pods/binding")
    metrics.event_dropped()
    metrics.verb("filter", 0.0004)
    metrics.planned("Planned", 0.01)
    metrics.burst(0.2, 64)
    metrics.bound("Bound", "team")
    metrics.started(40.0, "team")
    metrics.searched("Found", 0.3)
    metrics.preemption_ended("Cleared")
    metrics.evicted("Group", "web")
    metrics.waiting({"team": [3.0, 50.0]})
    metrics.held("filter", 7)
    metrics.groups("waiting", 2)
    metrics.certificates({"serving": 1800000000.0})
    text = metrics.render().decode().splitlines()
    for line in (
        'serried_watch_restarts_total{cause="gone",resource="pods"} 1.0',
        'serried_watch_events_total{resource="pods"} 3.0',
        'serried_malformed_objects_total{resource="pods"} 1.0',
        'serried_api_writes_total{verb_resource="create pods/binding"} 1.0',
        "serried_event_drops_total 1.0",
        'serried_verb_seconds_bucket{le="0.00025",verb="filter"} 0.0',
        'serried_verb_seconds_bucket{le="0.0005",verb="filter"} 1.0',
        'serried_plans_total{outcome="Planned"} 1.0',
        "serried_plan_seconds_sum 0.01",
        'serried_bind_burst_seconds_bucket{le="0.25"} 1.0',
        'serried_bindings_total{result="Bound"} 1.0',
        'serried_namespace_bound_members_total{pod_namespace="team"} 1.0',
        'serried_namespace_start_seconds_sum{pod_namespace="team"} 40.0',
        'serried_namespace_start_seconds_count{pod_namespace="team"} 1.0',
        'serried_namespace_victims_total{pod_namespace="web"} 1.0',
        'serried_namespace_waiting_gangs{pod_namespace="team"} 2.0',
        'serried_namespace_longest_wait_seconds{pod_namespace="team"} 50.0',
        'serried_victim_searches_total{outcome="Found"} 1.0',
        'serried_victim_search_seconds_bucket{le="0.5"} 1.0',
        'serried_preemptions_total{outcome="Cleared"} 1.0',
        'serried_victims_total{kind="Group"} 1.0',
        'serried_held_pods{by="filter"} 7.0',
        'serried_groups{state="waiting"} 2.0',
        'serried_certificate_expiry_timestamp_seconds{certificate="serving"} 1.8e+09',
    ):
        assert line in text


def test_the_controller_has_its_own() -> None:
    metrics = ControllerMetrics()
    metrics.synced("success", 0.02)
    metrics.created("error", 0.3)
    metrics.created_group("success")
    metrics.queued(4)
    text = metrics.render().decode()
    assert 'serried_job_syncs_total{result="success"} 1.0' in text
    assert 'serried_job_gang_workload_creation_total{result="error"} 1.0' in text
    assert 'serried_podgroup_creations_total{result="success"} 1.0' in text
    assert "serried_controller_queue_length 4.0" in text


@pytest.mark.parametrize("kind", [ExtenderMetrics, ControllerMetrics])
def test_two_can_live_in_one_process(kind: type[Metrics]) -> None:
    one, other = kind(), kind()
    one.event_dropped()
    assert "serried_event_drops_total 1.0" in one.render().decode()
    assert "serried_event_drops_total 0.0" in other.render().decode()


def test_samplers_run_at_each_scrape() -> None:
    metrics, held = ExtenderMetrics(), iter((1, 2))
    metrics.before_render(lambda: metrics.held("gate", next(held)))
    metrics.render()
    assert 'serried_held_pods{by="gate"} 2.0' in metrics.render().decode()


@pytest.mark.parametrize("kind", [ExtenderMetrics, ControllerMetrics])
def test_each_process_says_what_it_is(kind: type[Metrics]) -> None:
    assert f'serried_build_info{{python="{python_version()}",version="{__version__}"}} 1.0' in kind().render().decode()


class TestNamespaces:
    """Namespaces: there may be any number, but only some of them have series of their own."""

    @pytest.fixture
    def now(self) -> list[float]:
        return [0.0]

    @pytest.fixture
    def metrics(self, now: list[float]) -> ExtenderMetrics:
        """Every namespace that may have series has them."""
        metrics = ExtenderMetrics(clock=lambda: now[0])
        for number in range(MAX_NAMESPACES):
            metrics.bound("Bound", f"team-{number}")
        return metrics

    def test_the_others_share_theirs(self, metrics: ExtenderMetrics) -> None:
        for number in range(1000):
            metrics.bound("Bound", f"late-{number}")
        metrics.bound("Bound", "team-7")
        found = read(metrics, "serried_namespace_bound_members_total")
        assert len(found) == MAX_NAMESPACES + 1
        assert (found[OTHERS], found["team-7"], found["team-8"]) == (1000, 2, 1)

    def test_of_those_that_wait_the_others_are_counted_together(self, metrics: ExtenderMetrics) -> None:
        metrics.waiting({"team-1": [5.0], "late-1": [7.0, 9.0], "late-2": [8.0]})
        assert read(metrics, "serried_namespace_waiting_gangs") == {"team-1": 1, OTHERS: 3}
        assert read(metrics, "serried_namespace_longest_wait_seconds") == {"team-1": 5, OTHERS: 9}
        metrics.waiting({})
        assert read(metrics, "serried_namespace_waiting_gangs") == {}

    def test_one_that_was_quiet_for_a_day_gives_its_series_away(
        self, metrics: ExtenderMetrics, now: list[float]
    ) -> None:
        now[0] = 86_399.0
        metrics.evicted("Plain", "team-0")
        metrics.started(3.0, "late")
        assert read(metrics, "serried_namespace_start_seconds_count") == {OTHERS: 1}
        now[0] = 86_400.0
        metrics.started(3.0, "late")
        assert read(metrics, "serried_namespace_start_seconds_count") == {OTHERS: 1, "late": 1}
        assert read(metrics, "serried_namespace_bound_members_total").keys() == {
            f"team-{number}" for number in range(MAX_NAMESPACES) if number != 1
        }


def read(metrics: ExtenderMetrics, name: str) -> dict[str, float]:
    """The samples of this name by namespace."""
    samples = (sample for family in metrics.registry.collect() for sample in family.samples)
    return {sample.labels["pod_namespace"]: sample.value for sample in samples if sample.name == name}
