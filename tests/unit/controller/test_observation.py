"""Which objects of an owner the controller goes by."""

from dataclasses import replace

from controller.reconciler import observe
from controller.writes import Expectations
from serried.api.level import FALLBACK
from serried.cluster.cache import Store
from tests.support.builders import job, workload


def test_of_workloads_at_two_levels_that_of_the_level_in_use_counts_as_for_the_extender() -> None:
    store = Store(["serried"])
    owner = job("j").size(2).scheduler("serried").value()
    store.put_job(owner)
    for name, api in (("beside", FALLBACK.api_version), ("used", "")):
        store.put_workload(replace(workload(name).for_job("j").gang_template("t", 2).value(), api=api))
    observed = observe(store, Expectations(store, lambda: 0.0), owner)
    assert [each.key.name for each in observed.workloads] == ["used"]
    assert store.membership.workloads_of(owner) == observed.workloads
