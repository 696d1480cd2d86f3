"""The objects of JobSets and LeaderWorkerSets, as they come, grow, shrink and go."""

from functools import partial

import pytest

from controller.process import Controller
from serried.api.level import NATIVE_LEVELS, V1ALPHA1
from serried.api.names import GANG_POLICY, REPLICA, Key
from serried.api.parent import OwnerKey
from serried.kube.wire import JOBS, JSON, PODS, owners, workloads
from tests.support.apiserver import SERVED, FakeApiServer
from tests.support.builders import pod, workload
from tests.support.controller_harness import (
    CREATES_GROUP,
    GROUPS,
    READS_PODS,
    WORKLOADS,
    controller_on,
    events,
    gang,
    names,
    wait_until,
    wait_until_idle,
)
from tests.support.faults import Request, calls
from tests.support.parents import job_set, leader_worker_set

JOB_SETS, SETS = owners("JobSet"), owners("LeaderWorkerSet")
CREATES = calls("POST", "/workloads")
TURNED = OwnerKey("JobSet", Key("default", "turned"))


@pytest.fixture(autouse=True)
def served(server: FakeApiServer) -> None:
    server.served |= {JOB_SETS, SETS}


def replicas(groups: list[JSON]) -> list[str]:
    return sorted(group["metadata"]["labels"][REPLICA] for group in groups)


def lead(server: FakeApiServer, name: str, *indexes: int) -> None:
    """The real controller has made the leaders of these replicas."""
    for index in indexes:
        server.add(PODS, pod(f"{name}-{index}").of_replica(name, index).raw())


def has_seen(controller: Controller, name: str) -> bool:
    return any(owner_key.key.name == name for owner_key in controller.store.parents)


async def test_a_job_set_gets_one_gang_over_all_its_jobs(server: FakeApiServer) -> None:
    async with controller_on(server):
        server.add(JOB_SETS, job_set("train").gang_policy().replicated("driver").replicated("workers", 2, 3).raw())
        await wait_until(lambda: len(events(server, "PodGroupCreated")) == 1)
    (made,), (group,) = server.list_objects(WORKLOADS), server.list_objects(GROUPS)
    assert made["spec"]["controllerRef"] == {"apiGroup": "jobset.x-k8s.io", "kind": "JobSet", "name": "train"}
    assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 7}}
    assert group["spec"]["workloadRef"] == {"workloadName": made["metadata"]["name"], "templateName": "train-pgt-0"}
    (created,) = events(server, "WorkloadCreated")
    assert created["involvedObject"]["kind"] == "JobSet"
    assert created["message"] == f"Created Workload {made['metadata']['name']} for JobSet train"


async def test_a_job_of_a_set_gets_the_pod_group_of_the_template_that_it_names(server: FakeApiServer) -> None:
    made = workload("mine").for_parent("JobSet", "train").gang_template("a", 2).gang_template("b", 3)
    async with controller_on(server):
        server.add(JOB_SETS, job_set("train").replicated("driver").replicated("workers", 1, 3).raw())
        server.add(JOBS, gang("train-workers-0").delegated("b", "JobSet", "train").uid("j-1").raw())
        server.add(WORKLOADS, made.raw())
        await wait_until(lambda: len(server.list_objects(GROUPS)) == 1)
    (group,) = server.list_objects(GROUPS)
    assert group["spec"]["workloadRef"] == {"workloadName": "mine", "templateName": "b"}
    assert [owner["uid"] for owner in group["metadata"]["ownerReferences"]] == ["j-1"]


async def test_stages_that_wait_for_others_get_gangs_of_their_own_and_an_event(server: FakeApiServer) -> None:
    async with controller_on(server):
        staged = (
            job_set("train").gang_policy().replicated("driver").replicated("workers", 2, 3).replicated("late", 1, 2)
        )
        server.add(JOB_SETS, staged.in_order().raw())
        await wait_until(lambda: len(server.list_objects(GROUPS)) == 2)
        await wait_until(lambda: len(events(server, "GangPerStage")) == 1)
    assert {group["spec"]["workloadRef"]["templateName"] for group in server.list_objects(GROUPS)} == {
        "workers",
        "late",
    }


async def test_what_asks_for_nothing_gets_nothing(server: FakeApiServer) -> None:
    async with controller_on(server) as controller:
        server.add(JOB_SETS, job_set("train").replicated("workers", 2, 3).raw())
        server.add(SETS, leader_worker_set("serve").size(2, 3).raw())
        server.add(JOB_SETS, job_set("not").gang_policy("NoGang").replicated("workers", 2, 3).raw())
        await wait_until_idle(controller, server)
    assert not server.list_requests(CREATES)


async def test_a_job_set_that_runs_already_is_left_alone(server: FakeApiServer) -> None:
    server.add(PODS, pod("w").of_job_set("train", "workers").on("n1").raw())
    async with controller_on(server) as controller:
        server.add(JOB_SETS, job_set("train").gang_policy().replicated("workers", 2, 3).uid("jobset-train").raw())
        await wait_until_idle(controller, server)
    assert not server.list_requests(CREATES)


async def test_pods_that_an_earlier_one_of_the_name_leaves_behind_cost_nobody_a_gang(
    server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.reconciler._SECONDS_BETWEEN_READS", 0.02)
    leaving = [pod(f"{name}-0").of_replica(name, 0).on("n1").deleting() for name in ("all", "some")]
    server.add(PODS, leaving[0].raw())
    server.add(PODS, leaving[1].raw())
    server.add(PODS, pod("some-0-1").of_replica("some", 0, 1).on("n1").raw())
    async with controller_on(server) as controller:
        for name in ("all", "some"):
            server.add(SETS, leader_worker_set(name).gang_policy().size(1, 3).raw())
        await wait_until(lambda: len(server.list_objects(WORKLOADS)) == 1)
        await wait_until_idle(controller, server)
        assert [made["spec"]["controllerRef"]["name"] for made in server.list_objects(WORKLOADS)] == ["all"]
        assert not server.list_objects(GROUPS)
        server.remove(PODS, "default", "some-0-1")
        await wait_until(lambda: len(server.list_objects(WORKLOADS)) == 2)
        for name in ("all", "some"):
            server.remove(PODS, "default", f"{name}-0")
            lead(server, name, 0)
        await wait_until(lambda: len(server.list_objects(GROUPS)) == 2)


async def test_what_happens_while_the_pods_are_read_is_looked_at_before_the_create(server: FakeApiServer) -> None:
    gate = server.hold(READS_PODS)
    async with controller_on(server) as controller:
        for name in ("given", "turned"):
            server.add(JOB_SETS, job_set(name).gang_policy().replicated("workers", 2, 3).raw())
        await wait_until(lambda: len(server.list_requests(READS_PODS)) == 2)
        server.add(WORKLOADS, workload("mine").for_parent("JobSet", "given").gang_template("t", 2).raw())
        server.patch(JOB_SETS, "default", "turned", {"metadata": {"annotations": {GANG_POLICY: "NoGang"}}})
        await wait_until(lambda: controller.store.workloads and not controller.store.parents[TURNED].asks)
        gate.open()
        await wait_until(lambda: len(server.list_objects(GROUPS)) == 1)
        await wait_until_idle(controller, server)
    assert names(server.list_objects(WORKLOADS)) == ["mine"]


async def test_the_jobs_of_a_gang_are_none_of_their_own_and_those_of_another_are(server: FakeApiServer) -> None:
    async with controller_on(server) as controller:
        for name, policy in (("whole", "JobSetAsGang"), ("apart", "NoGang")):
            server.add(JOB_SETS, job_set(name).gang_policy(policy).replicated("a", 2, 3).raw())
            await wait_until(partial(has_seen, controller, name))
            child = gang(f"{name}-a-0").gang_policy("JobAsGang").controlled_by("JobSet", name)
            server.add(JOBS, child.raw())
        await wait_until(lambda: len(server.list_objects(GROUPS)) == 2)
        await wait_until_idle(controller, server)
    owners = [made["metadata"]["ownerReferences"][0] for made in server.list_objects(WORKLOADS)]
    assert sorted((owner["kind"], owner["name"]) for owner in owners) == [("Job", "apart-a-0"), ("JobSet", "whole")]


async def test_each_replica_gets_its_gang_and_loses_it_when_its_pods_are_gone(
    server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.reconciler._SECONDS_BETWEEN_READS", 0.02)
    async with controller_on(server):
        server.add(SETS, leader_worker_set("serve").gang_policy().size(2, 3).raw())
        lead(server, "serve", 0, 1)
        await wait_until(lambda: replicas(server.list_objects(GROUPS)) == ["0", "1"])
        server.patch(SETS, "default", "serve", {"spec": {"replicas": 4}})
        lead(server, "serve", 2, 3)
        await wait_until(lambda: replicas(server.list_objects(GROUPS)) == ["0", "1", "2", "3"])

        server.add(PODS, pod("serve-3-1").of_replica("serve", 3, 1).raw())
        for index in (1, 2, 3):
            server.remove(PODS, "default", f"serve-{index}")
        server.patch(SETS, "default", "serve", {"spec": {"replicas": 1}})
        await wait_until(lambda: replicas(server.list_objects(GROUPS)) == ["0", "3"])
        server.remove(PODS, "default", "serve-3-1")
        await wait_until(lambda: replicas(server.list_objects(GROUPS)) == ["0"])
    assert len(server.list_objects(WORKLOADS)) == 1


async def test_of_a_million_replicas_those_that_are_there_get_their_gangs(server: FakeApiServer) -> None:
    async with controller_on(server) as controller:
        server.add(SETS, leader_worker_set("serve").gang_policy().size(1_000_000, 3).raw())
        await wait_until(lambda: len(server.list_objects(WORKLOADS)) == 1)
        await wait_until_idle(controller, server)
        assert not server.list_requests(CREATES_GROUP)
        lead(server, "serve", 7, 999_999, 1_000_000)
        await wait_until(lambda: replicas(server.list_objects(GROUPS)) == ["7", "999999"])
        lead(server, "serve", *range(100, 200))
        await wait_until(lambda: len(server.list_objects(GROUPS)) == 102)
        await wait_until_idle(controller, server)
    assert len(server.list_requests(CREATES_GROUP)) == 102
    assert len(server.list_requests(READS_PODS)) == 1


async def test_replicas_whose_pod_groups_are_refused_keep_no_other_waiting(server: FakeApiServer) -> None:
    def of_the_first(request: Request) -> bool:
        return CREATES_GROUP(request) and int(request.body["metadata"]["labels"][REPLICA]) < 4

    server.reject(of_the_first, times=1_000_000, status=403, reason="Forbidden")
    lead(server, "serve", *range(20))
    async with controller_on(server):
        server.add(SETS, leader_worker_set("serve").gang_policy().size(20, 3).raw())
        await wait_until(lambda: len(server.list_objects(GROUPS)) == 16)
    assert len(events(server, "FailedPodGroupCreate")) == 1


async def test_a_worker_is_no_reason_to_look(server: FakeApiServer) -> None:
    async with controller_on(server) as controller:
        server.add(SETS, leader_worker_set("serve").gang_policy().size(2, 3).raw())
        lead(server, "serve", 0)
        await wait_until(lambda: len(server.list_objects(GROUPS)) == 1)
        server.add(PODS, pod("serve-0-1").of_replica("serve", 0, 1).raw())
        await wait_until_idle(controller, server)
        assert [each.name for each in controller.store.pods.values()] == ["serve-0"]


async def test_a_replica_that_comes_back_waits_until_the_name_of_its_pod_group_is_free(server: FakeApiServer) -> None:
    async with controller_on(server) as controller:
        server.add(SETS, leader_worker_set("serve").gang_policy().size(2, 3).raw())
        lead(server, "serve", 0, 1)
        await wait_until(lambda: replicas(server.list_objects(GROUPS)) == ["0", "1"])
        server.remove(PODS, "default", "serve-1")
        leaving = next(g for g in server.list_objects(GROUPS) if g["metadata"]["labels"][REPLICA] == "1")["metadata"][
            "name"
        ]
        server.patch(GROUPS, "default", leaving, {"metadata": {"finalizers": ["example.com/wait"]}})
        server.patch(SETS, "default", "serve", {"spec": {"replicas": 1}})
        await wait_until(lambda: any(group.deleting for group in controller.store.groups.values()))
        server.patch(SETS, "default", "serve", {"spec": {"replicas": 2}})
        lead(server, "serve", 1)
        await wait_until_idle(controller, server)
        server.patch(GROUPS, "default", leaving, {"metadata": {"finalizers": None}})
        await wait_until(lambda: not any(g["metadata"].get("deletionTimestamp") for g in server.list_objects(GROUPS)))
        await wait_until(lambda: replicas(server.list_objects(GROUPS)) == ["0", "1"])
    assert not events(server, "FailedPodGroupCreate")


async def test_a_changed_size_reaches_workload_and_pod_groups(server: FakeApiServer) -> None:
    def counts() -> set[int]:
        parts = [part for made in server.list_objects(WORKLOADS) for part in made["spec"]["podGroupTemplates"]]
        parts += [group["spec"] for group in server.list_objects(GROUPS)]
        return {part["schedulingPolicy"]["gang"]["minCount"] for part in parts}

    async with controller_on(server):
        server.add(SETS, leader_worker_set("serve").gang_policy().size(2, 3).raw())
        lead(server, "serve", 0, 1)
        await wait_until(lambda: len(server.list_objects(GROUPS)) == 2)
        server.patch(SETS, "default", "serve", {"spec": {"leaderWorkerTemplate": {"size": 5}}})
        await wait_until(lambda: counts() == {5})
        server.patch(SETS, "default", "serve", {"spec": {"leaderWorkerTemplate": {"size": 2}, "replicas": 3}})
        lead(server, "serve", 2)
        await wait_until(lambda: counts() == {2} and len(server.list_objects(GROUPS)) == 3)


async def test_a_users_workload_is_used_as_it_is(server: FakeApiServer) -> None:
    own = workload("mine").for_parent("LeaderWorkerSet", "serve").gang_template("t", 2)
    server.add(WORKLOADS, own.raw())
    async with controller_on(server):
        server.add(SETS, leader_worker_set("serve").size(2, 3).raw())
        lead(server, "serve", 0, 1)
        await wait_until(lambda: replicas(server.list_objects(GROUPS)) == ["0", "1"])
    assert names(server.list_objects(WORKLOADS)) == ["mine"]
    assert {group["spec"]["schedulingPolicy"]["gang"]["minCount"] for group in server.list_objects(GROUPS)} == {2}


async def test_two_workloads_are_told_of_once_and_change_nothing(server: FakeApiServer) -> None:
    for name in ("a", "b"):
        server.add(WORKLOADS, workload(name).for_parent("JobSet", "train").gang_template("t", 2).raw())
    async with controller_on(server) as controller:
        server.add(JOB_SETS, job_set("train").gang_policy().replicated("workers", 2, 3).raw())
        await wait_until(lambda: len(events(server, "AmbiguousWorkload")) == 1)
        server.patch(JOB_SETS, "default", "train", {"status": {"restarts": 1}})
        await wait_until_idle(controller, server)
    assert len(events(server, "AmbiguousWorkload")) == 1
    assert not server.list_objects(GROUPS)


async def test_a_refused_create_is_told_of_once_and_tried_again(server: FakeApiServer) -> None:
    server.reject(calls("POST", "/podgroups"), times=2, status=403, reason="Forbidden")
    async with controller_on(server):
        server.add(JOB_SETS, job_set("train").gang_policy().replicated("workers", 2, 3).raw())
        await wait_until(lambda: len(server.list_objects(GROUPS)) == 1)
    (told,) = events(server, "FailedPodGroupCreate")
    assert told["message"].startswith("Failed to create PodGroup for JobSet train: ")


async def test_a_malformed_job_set_stops_nobody(server: FakeApiServer) -> None:
    async with controller_on(server):
        server.add(JOB_SETS, job_set("bad").gang_policy().with_field("many", "spec", "replicatedJobs").raw())
        server.add(JOB_SETS, job_set("good").gang_policy().replicated("workers", 2, 3).raw())
        await wait_until(lambda: len(server.list_objects(GROUPS)) == 1)
        await wait_until(lambda: len(events(server, "Malformed")) == 1)
    assert events(server, "Malformed")[0]["involvedObject"]["name"] == "bad"


async def test_in_1_35_a_workload_contains_the_gang_of_each_replica() -> None:
    level = next(level for level in NATIVE_LEVELS if level.version == V1ALPHA1)
    inline = workloads(level.group, level.version)
    async with FakeApiServer((*SERVED, inline, SETS)) as server, controller_on(server, level=level) as controller:
        server.add(SETS, leader_worker_set("serve").gang_policy().size(2, 3).raw())
        await wait_until(lambda: len(server.list_objects(inline)) == 1)
        await wait_until_idle(controller, server)
        (made,) = server.list_objects(inline)
        assert made["spec"]["podGroups"] == [{"name": "serve-pgt-0", "policy": {"gang": {"minCount": 3}}}]
        assert not server.list_requests(calls("DELETE"))
