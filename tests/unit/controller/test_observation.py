"""Observed objects of an owner on which the controller acts."""

from dataclasses import replace

from controller.reconciler import observe
from controller.writes import Expectations
from serried.api.level import FALLBACK
from serried.cluster.cache import Store
from serried.rules.all import RULES
from tests.support.builders import job, pod_group, workload


def test_of_workloads_at_two_levels_that_of_the_level_in_use_counts_as_for_the_extender() -> None:
    store = Store(["serried"], rules=RULES)
    owner = job("j").size(2).scheduler("serried").value()
    store.put_job(owner)
    for name, api in (("beside", FALLBACK.api_version), ("used", "")):
        store.put_workload(replace(workload(name).for_job("j").gang_template("t", 2).value(), api=api))
    observed = observe(store, Expectations(store, lambda: 0.0), owner)
    assert [each.key.name for each in observed.workloads] == ["used"]
    assert store.membership.workloads_of(owner) == observed.workloads


def test_of_pod_groups_that_were_made_a_moment_ago_a_job_of_a_parents_workload_goes_by_its_own() -> None:
    store = Store(["serried"], rules=RULES)
    controller = {"apiGroup": "trainer.kubeflow.org", "kind": "TrainJob", "name": "t"}
    made = workload("w").gang_template("a", 2).gang_template("b", 2).with_field(controller, "spec", "controllerRef")
    store.put_workload(made.value())
    expectations = Expectations(store, lambda: 0.0)
    owners = {name: job(f"j-{name}").size(2).scheduler("serried").delegated(name).value() for name in ("a", "b")}
    for name, owner in owners.items():
        store.put_job(owner)
        expectations.expect(
            pod_group(f"g-{name}").from_template("w", name).controlled_by("Job", owner.key.name).value()
        )
    observed = {name: observe(store, expectations, owner).groups for name, owner in owners.items()}
    assert {name: [group.key.name for group in groups] for name, groups in observed.items()} == {
        "a": ["g-a"],
        "b": ["g-b"],
    }
