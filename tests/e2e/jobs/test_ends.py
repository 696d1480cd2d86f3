"""The garbage collector deletes the Workload and the PodGroup of a Job that is deleted, and nothing keeps them."""

import pytest

from tests.e2e.jobs.stage import JobStage
from tests.support.cluster_stage import RACK, Raw, eventually, pod_spec
from tests.support.clusters import at_one_level

pytestmark = pytest.mark.e2e

HELD = "example.com/held"

SOON = 90.0
"""Seconds: the collector learns of new kinds, as our CRDs are, every half minute."""


def refer_to(api_version: str, kind: str, item: Raw) -> Raw:
    """Return the owner reference to an object. An item of a list does not contain its kind, so it is given."""
    identity = {"name": item["metadata"]["name"], "uid": item["metadata"]["uid"]}
    return {"apiVersion": api_version, "kind": kind} | identity


def template(cpu: str) -> Raw:
    return {"spec": pod_spec(cpu) | {"restartPolicy": "Never"}}


@pytest.mark.parametrize(
    ("cluster", "order"),
    [
        ("native", "Background"),
        ("fallback", "Background"),
        ("native", "Foreground"),
        pytest.param("fallback", "Foreground", marks=pytest.mark.full),
    ],
    indirect=["cluster"],
)
def test_the_objects_of_a_running_gang_go_with_its_job(stage: JobStage, order: str) -> None:
    stage.submit_job("done", parallelism=4, completions=4)
    stage.await_bound("done", 4)
    workload, group = stage.objects_of("done")
    of_job = refer_to("batch/v1", "Job", stage.job("done")) | {"controller": True, "blockOwnerDeletion": True}
    of_workload = refer_to(stage.cluster.spec.api_version, "Workload", workload)
    assert workload["metadata"]["ownerReferences"] == [of_job]
    assert group["metadata"]["ownerReferences"] == [of_job, of_workload]

    stage.delete_job_in("done", order)

    eventually("no object", lambda: not stage.groups() and not stage.workloads_of("done"), SOON)
    eventually("no pod", lambda: not stage.pods())


@at_one_level("native")
def test_the_objects_of_a_gang_that_waits_go_with_its_job(stage: JobStage) -> None:
    stage.submit_job("huge", cpu="30", parallelism=13, completions=13)
    stage.await_reason(stage.group_of_job("huge"), "NoCapacity")

    stage.delete_job("huge")

    eventually("no object", lambda: not stage.groups() and not stage.workloads_of("huge"), SOON)
    eventually("no pod", lambda: not stage.pods())
    eventually("nothing of it on /debug", lambda: not stage.debug_page("huge"))


@pytest.mark.both_levels
def test_a_job_applied_again_before_its_group_is_gone_runs_under_it_and_later_under_the_next_of_the_name(
    stage: JobStage,
) -> None:
    """Natively a finalizer keeps a PodGroup while pods name it; here somebody's own does, at both levels."""
    stage.apply_group("ring", 2, HELD)
    first = stage.submit_job_in("ring", "train", cpu="30")
    eventually("two pods", lambda: len(stage.pods_of(first)) == 2)

    stage.delete_job("train")
    stage.delete_group("ring")
    second = stage.submit_job_in("ring", "train", cpu="30")
    stage.apply_group("ring", 2)  # it is there still, so nothing is made

    nodes = eventually("both pods of the second Job", lambda: found if len(found := stage.pods_of(second)) == 2 else [])
    lost = stage.fail_index("train", 0)
    stage.await_replacement("train", 0, lost)
    assert stage.pods_of(second) == nodes  # the slot was kept, as in any running gang
    assert stage.list_groups()[0]["metadata"]["deletionTimestamp"]

    stage.delete_job("train")
    eventually("no pod", lambda: not stage.pods())
    stage.lift_finalizer("ring", HELD)
    eventually("no group", lambda: not stage.groups(), SOON)
    third = stage.submit_job_in("ring", "train", cpu="30")
    stage.await_reason("ring", "PodGroupMissing")
    stage.apply_group("ring", 2)
    eventually("both pods of the third Job", lambda: len(stage.pods_of(third)) == 2)


@pytest.mark.full  # a CronJob's shortest period is a minute
def test_a_cron_job_makes_gangs_in_one_rack_and_takes_them_along_when_it_goes(stage: JobStage) -> None:
    stage.fill_a_node()
    in_a_rack = {"annotations": {"scheduling.serried.dev/required-topology": RACK}}
    stage.create_cron_job("nightly", "* * * * *", in_a_rack, parallelism=9, completions=9, template=template("10"))

    (job,) = eventually("a Job of it", lambda: stage.jobs_of("nightly"), SOON)
    stage.await_bound(job, 9)
    assert len(stage.racks(job)) == 1
    assert stage.counts(job) == [9, 9]

    stage.delete_cron_job("nightly")
    eventually("no Job", lambda: not stage.jobs_of("nightly"))
    eventually("no object", lambda: not stage.objects_of(job), SOON)
    eventually("no pod", lambda: not stage.pods(job))
