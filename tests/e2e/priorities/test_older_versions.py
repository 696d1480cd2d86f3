"""Priorities where the native API has none for groups, or has it behind a gate, and our CRDs on these versions."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.cluster import Cluster, Spec
from tests.e2e.manifests.server import GROUP, Server
from tests.e2e.manifests.server import eventually as soon
from tests.e2e.priorities.stage import MOST, PriorityStage
from tests.e2e.promises.test_disruption import evict, evicting, run_whole_gang
from tests.e2e.promises.test_preemption_victims import reasons_of
from tests.support.cluster_stage import eventually, names, staged
from tests.support.clusters import on_kubernetes, run_cluster

pytestmark = [pytest.mark.e2e, pytest.mark.full]

GATES = ("GangScheduling=true", "WorkloadAwarePreemption=true")


@pytest.fixture(scope="module")
def older(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    kubernetes, api, *gates = request.param
    name = f"v{kubernetes.replace('.', '-')}-{api}-{len(gates)}"
    spec = Spec(name=name, nodes=4, racks=2, api=api, hold="filter", kubernetes=kubernetes, server_gates=tuple(gates))
    with run_cluster(spec, tmp_path_factory) as started:
        yield started


@pytest.fixture
def stage(older: Cluster) -> Iterator[PriorityStage]:
    with staged(PriorityStage, older) as made:
        yield made


def on(kubernetes: str, api: str, *gates: str) -> object:
    return on_kubernetes(kubernetes, kubernetes, api, *gates)


WITH_MODES = pytest.mark.parametrize(
    "older",
    [on("1.36.4", "native", *GATES), on("1.36.4", "fallback")],
    indirect=True,
    ids=["1.36.4 with the gate", "1.36.4 fallback"],
)
"""The clusters in which groups have a disruption mode."""


@pytest.mark.parametrize("older", [on("1.36.4", "native"), on("1.35.4", "native")], indirect=True, ids=" ".join)
def test_a_group_that_can_have_none_has_the_least_of_its_members(stage: PriorityStage) -> None:
    with stage.priority_class("high", 1000) as high, stage.priority_class("low", 10) as low:
        stage.create_group("g", 2)
        stage.create_pods(["g-0"], "g", priorityClassName=high)
        stage.create_pods(["g-1"], "g", priorityClassName=low)
        stage.await_bound("g", 2)
        view = stage.debug_page("g/g" if stage.inline else "g")
        assert view["priority"] == 10
        if not stage.inline:
            assert "priority" not in stage.spec_of("g")
        assert not stage.mismatches("g")


@pytest.mark.parametrize("older", [on("1.36.4", "native", *GATES)], indirect=True, ids=["1.36.4 with the gate"])
def test_in_1_36_the_gate_gives_groups_a_priority(stage: PriorityStage) -> None:
    with stage.priority_class("high", 1000) as high:
        stage.create_gang("g", 2, priorityClassName=high)
        stage.create_pods(names("g", 2), "g")
        stage.await_bound("g", 2)
        stage.await_priority("g", 1000)
        (said,) = eventually("the event", lambda: stage.mismatches("g"))
        assert "2 of 2 members have another priority, such as g-0 with 0" in said


@WITH_MODES
def test_in_1_36_a_gang_goes_whole_for_a_plain_pod_and_for_a_gang(stage: PriorityStage) -> None:
    with stage.priority_class("high", 1000) as high:
        run_whole_gang(stage, "first", 4)
        stage.create_pods(["plain"], cpu="30", priorityClassName=high)
        stage.await_bound("plain", 1)
        eventually("nobody of the gang", lambda: not stage.pods("first"))
        eventually("the event", lambda: any(reason == "GangDisrupted" for reason, _ in stage.events("first")))

        run_whole_gang(stage, "second", 3)
        stage.create_gang("ring", 2, priorityClassName=high)
        stage.create_pods(names("ring", 2), "ring", cpu="30", priorityClassName=high)
        stage.await_bound("ring", 2, 60)
        eventually("nobody of the second gang", lambda: not stage.pods("second"))
        assert stage.bound("plain")
        said = {each["metadata"]["name"]: reasons_of(each) for each in stage.list_groups()}
        assert ("DisruptionTarget", "PreemptionByScheduler") in said["second"]
        assert "DisruptionTarget" not in {kind for kind, _ in said["ring"]}


@WITH_MODES
def test_in_1_36_a_gang_goes_with_a_member_that_is_drained_and_is_placed_anew_together(stage: PriorityStage) -> None:
    with evicting(stage):
        run_whole_gang(stage, "ring", 4)
        evict(stage, "ring-2")
        eventually("nobody of the gang", lambda: not stage.pods("ring"))
        (said,) = eventually("the event", lambda: stage.messages("ring", "GangDisrupted"))
        assert said.startswith("ring-2 is disrupted (EvictionByEvictionAPI), and 3 more members with it")

        stage.create_pods(["ring-0"], "ring", cpu="30")
        stage.await_reason("ring", "QuorumMissing", "1 of 4 members exist")
        assert not stage.bound("ring")
        stage.create_pods(names("ring", 3, start=1), "ring", cpu="30")
        stage.await_bound("ring", 4)


@pytest.mark.parametrize("older", [on("1.36.4", "fallback"), on("1.35.4", "fallback")], indirect=True, ids=" ".join)
def test_our_controller_alone_writes_it_on_older_versions(stage: PriorityStage, tmp_path: Path) -> None:
    with stage.priority_class("high", 1000) as high:
        stage.create_gang("g", 2, priorityClassName=high)
        stage.create_root("root", priorityClassName=high)
        stage.await_priority("g", 1000)
        eventually("the root's", lambda: stage.spec_of_root("root").get("priority") == 1000)
    assert "Serried's controller sets it" in _refusal_of_a_tenant(stage.cluster, tmp_path)


def _refusal_of_a_tenant(cluster: Cluster, scratch: Path) -> str:
    server = Server(cluster, scratch)
    tenant = ("--as", "tenant")
    server.run("create", "rolebinding", "tenant", "--clusterrole=cluster-admin", "--user=tenant", "-n", "default")
    soon(lambda: server.run("auth", "can-i", "create", f"podgroups.{GROUP}", "-n", "default", *tenant).strip() == "yes")
    greedy = {
        "apiVersion": f"{GROUP}/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": "greedy", "namespace": "default"},
        "spec": {"schedulingPolicy": {"basic": {}}, "priority": MOST},
    }
    return server.refusal("create", greedy, options=tenant)
