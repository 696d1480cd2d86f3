import pytest

from serried.ops.metrics import ControllerMetrics, ExtenderMetrics, Metrics


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
    metrics.bound("bound")
    metrics.searched("Found", 0.3)
    metrics.preemption_ended("Cleared")
    metrics.evicted("Group")
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
        'serried_bindings_total{result="bound"} 1.0',
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
    metrics.queued(4)
    text = metrics.render().decode()
    assert 'serried_job_syncs_total{result="success"} 1.0' in text
    assert 'serried_job_gang_workload_creation_total{result="error"} 1.0' in text
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
