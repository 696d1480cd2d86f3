"""Actions of people, and their outcome where every right is granted.

Each story begins something, and returns how to see that it has come to its end.
"""

from collections.abc import Callable
from typing import Any

from tests.e2e.roles.stage import HIGH, WHOLE_NODE, RoleStage
from tests.support.cluster_stage import RACK, eventually, names
from tests.support.foreign_levels import BINDINGS, TOPOLOGIES

Check = Callable[[], object]
"""The test of a story's end: a true result means that it has come."""

Story = Callable[[RoleStage], Check]

ADDRESS = "10.0.0.1"
"""The address at which a scheduler elsewhere would find the extender. No process calls it."""

_CLAIM = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]


def prepare_nothing(stage: RoleStage) -> None:
    """Most stories begin on an empty stage."""


# --- gangs -----------------------------------------------------------------------------------------------------------


def gang_is_bound(stage: RoleStage) -> Check:
    stage.create_group("ring", 2)
    stage.create_pods(names("ring", 2), "ring")
    return lambda: len(stage.bound("ring")) == 2


def prepare_refusal_of_records(stage: RoleStage) -> None:
    stage.refuse_records()


def gang_is_bound_after_a_write_that_failed(stage: RoleStage) -> Check:
    """Without it nobody knows whether the commit stands, whatever its write was told."""
    bound = gang_is_bound(stage)
    stage.await_reason("ring", "Binding", seconds=60)
    stage.allow_records()
    return bound


def record_goes_when_a_gang_is_bound(stage: RoleStage) -> Check:
    bound = gang_is_bound(stage)
    return lambda: bound() and not stage.reservations()


def tree_is_bound_as_one(stage: RoleStage) -> Check:
    stage.create_composite("root", 1)
    stage.create_branch("leaf", 2)
    stage.create_pods(names("leaf", 2), "leaf")
    return lambda: len(stage.bound("leaf")) == 2 and stage.debug_page("leaf").get("name") == "composite:root"


def their_gang_waits_for_its_quorum(stage: RoleStage) -> Check:
    stage.create_their_group("pair", 2)
    stage.create_their_pod("pair-0", "pair")
    return lambda: stage.debug_page("compatible:pair").get("reason") == "QuorumMissing"


def binding_of_an_unknown_pod_is_an_error(stage: RoleStage) -> Check:
    return lambda: "does not exist" in stage.bind_nobody()


def prepare_full_nodes_and_an_autoscaler(stage: RoleStage) -> None:
    stage.run_low()
    stage.create_cluster_autoscaler_objects()


def nodes_of_the_first_gang_are_kept_from_autoscalers(stage: RoleStage) -> Check:
    """No pod goes for it, as it has their priority: room is kept for it."""
    stage.create_group("ring", 2)
    stage.create_pods(names("ring", 2), "ring", cpu=WHOLE_NODE)
    return lambda: len(stage.list_protected()) == 2


def prepare_volume(stage: RoleStage) -> None:
    stage.create_volume("data", stage.nodes_of_a_rack()[:2])


def gang_knows_the_nodes_of_its_volume(stage: RoleStage) -> Check:
    """Without it kube-scheduler's refusals tell that there is no room, but not why.

    Members that a gate holds are planned before kube-scheduler has seen them.
    """
    stage.create_group("three", 3)
    stage.create_pods(names("three", 3), "three", cpu="20", volumes=_CLAIM)
    return lambda: "selector" in stage.hurdles("three")


def _wait_early(stage: RoleStage, **fields: Any) -> None:
    """A member without a mate: what it asks for is followed from now on, also by a process that starts later."""
    stage.create_group("early", 2)
    stage.create_pods(["early-0"], "early", **fields)


def prepare_no_storage(stage: RoleStage) -> None:
    stage.create_claim_without_storage("data")
    _wait_early(stage, volumes=_CLAIM)


def gang_knows_that_there_is_no_storage(stage: RoleStage) -> Check:
    stage.create_group("ring", 2)
    stage.create_pods(names("ring", 2), "ring", volumes=_CLAIM)
    return lambda: "no driver has storage for the claim" in stage.message("ring")


def prepare_limits(stage: RoleStage) -> None:
    stage.create_claims_that_no_node_takes("data", "own")
    _wait_early(stage, volumes=_CLAIM)


def gang_knows_that_nodes_take_no_volume(stage: RoleStage) -> Check:
    stage.create_group("ring", 2)
    stage.create_pods(["ring-0"], "ring", volumes=[{"name": "own", "persistentVolumeClaim": {"claimName": "own"}}])
    stage.create_pods(["ring-1"], "ring")
    return lambda: stage.lacks("ring", "attach:")


def prepare_no_devices(stage: RoleStage) -> None:
    stage.create_device_class()
    _wait_early(stage, containers=[_asking(stage)])


def _asking(stage: RoleStage) -> dict[str, Any]:
    amounts = {"cpu": "1", stage.device_resource: "1"}
    return {"name": "main", "image": "none", "resources": {"requests": amounts, "limits": amounts}}


def gang_knows_that_a_class_has_no_devices(stage: RoleStage) -> Check:
    stage.create_group("ring", 2)
    stage.create_pods(names("ring", 2), "ring", containers=[_asking(stage)])
    return lambda: stage.lacks("ring", "devices of gpu-")


def prepare_member_that_means_a_namespace(stage: RoleStage) -> None:
    """Namespaces are looked at from the first one on."""
    stage.create_group("early", 2)
    stage.create_pods(["early-0"], "early", affinity=_means_a_namespace(stage))


def gang_knows_whom_its_members_mean_by_the_labels_of_namespaces(stage: RoleStage) -> Check:
    """Without it kube-scheduler alone knows beside whom they have to be: they are tried, and refused."""
    stage.create_group("ring", 2)
    stage.create_pods(names("ring", 2), "ring", affinity=_means_a_namespace(stage))
    return lambda: "podAffinity app=cache excludes" in stage.message("ring")


def _means_a_namespace(stage: RoleStage) -> dict[str, object]:
    here = {"matchLabels": {"kubernetes.io/metadata.name": stage.namespace}}
    term = {"topologyKey": RACK, "labelSelector": {"matchLabels": {"app": "cache"}}, "namespaceSelector": here}
    return {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


# --- Jobs and other owners -------------------------------------------------------------------------------------------


def job_is_bound(stage: RoleStage) -> Check:
    stage.submit_job("train")
    return lambda: len(stage.bound("train")) == 2


def workload_is_known(stage: RoleStage) -> Check:
    """A Job whose PodGroup is seen starts without it: the Workload only says that there will be a PodGroup."""
    eventually("an API", lambda: stage.checked("objects", "workloads") is not None)
    before = stage.count_workloads()
    stage.submit_job("train")
    return lambda: stage.count_workloads() > before


def job_gets_its_group(stage: RoleStage) -> Check:
    stage.submit_job("train")
    return lambda: stage.group_of("train")


def prepare_job(stage: RoleStage) -> None:
    stage.submit_job("train")
    stage.await_bound("train", 2, 60)


def min_count_follows_its_job(stage: RoleStage) -> Check:
    stage.resize_job("train", 3)
    return lambda: stage.counts("train") == [3, 3]


def objects_go_with_the_pods_of_a_suspended_job(stage: RoleStage) -> Check:
    stage.change_job("train", suspend=True)
    return lambda: not stage.groups_of("train") and not stage.workloads_of("train")


def job_set_is_one_gang(stage: RoleStage) -> Check:
    stage.create_job_set("pair")
    return lambda: _is_gang_of_two(stage, "pair")


def replica_is_one_gang(stage: RoleStage) -> Check:
    stage.create_set("pair")
    return lambda: _is_gang_of_two(stage, "pair")


def _is_gang_of_two(stage: RoleStage, owner: str) -> bool:
    group = stage.group_of(owner)
    return bool(group) and stage.debug_page(group).get("members") == 2 and len(stage.bound(owner)) == 2


def job_set_gets_its_group(stage: RoleStage) -> Check:
    stage.create_job_set("pair")
    return lambda: stage.group_of("pair")


def replica_gets_its_group(stage: RoleStage) -> Check:
    stage.create_set("pair")
    return lambda: stage.group_of("pair")


def prepare_group_of_one(stage: RoleStage) -> None:
    stage.create_group("kept", 1)
    stage.create_pods(["kept-0"], "kept")
    stage.await_bound("kept", 1)


def deleted_group_goes_with_its_last_pod(stage: RoleStage) -> Check:
    stage.delete_group("kept")
    stage.delete_pods("kept-0")
    return lambda: not stage.groups()


# --- priorities ------------------------------------------------------------------------------------------------------


def prepare_class(stage: RoleStage) -> None:
    stage.create_high_class()


def gang_is_bound_with_the_priority_of_its_class(stage: RoleStage) -> Check:
    stage.submit_high("ring", 2)
    return lambda: len(stage.bound("ring")) == 2 and stage.debug_page("ring").get("priority") == 1000


def group_is_given_the_priority_of_its_class(stage: RoleStage) -> Check:
    stage.create_gang("ring", 2, priorityClassName=HIGH)
    return lambda: stage.spec_of("ring").get("priority") == 1000


def root_is_given_the_priority_of_its_class(stage: RoleStage) -> Check:
    stage.create_root("root", priorityClassName=HIGH)
    return lambda: stage.spec_of_root("root").get("priority") == 1000


# --- levels of the topology ------------------------------------------------------------------------------------------


def label_of_a_level_is_written(stage: RoleStage) -> Check:
    stage.name_level("spine")
    return lambda: stage.labels_for("spine") == [stage.level_label]


def table_of_levels_is_made_anew(stage: RoleStage) -> Check:
    stage.remove_levels()
    return lambda: stage.labels_for("spine")


def topology_of_kueue_is_read(stage: RoleStage) -> Check:
    stage.name_level_elsewhere(TOPOLOGIES, "Topology", {"nodeLabel": stage.level_label, "alias": "block"})
    return lambda: stage.level_label in stage.labels_for("block")


def binding_of_grove_is_read(stage: RoleStage) -> Check:
    stage.name_level_elsewhere(BINDINGS, "ClusterTopologyBinding", {"domain": "block", "key": stage.level_label})
    return lambda: stage.level_label in stage.labels_for("block")


def job_that_names_a_level_gets_its_group(stage: RoleStage) -> Check:
    stage.create_job("ring", 2, key="host")
    return lambda: stage.group_of("ring")


# --- autoscalers -----------------------------------------------------------------------------------------------------


def prepare_karpenter(stage: RoleStage) -> None:
    stage.create_karpenter_objects()


def node_pools_are_read(stage: RoleStage) -> Check:
    return lambda: stage.selfcheck()["autoscalers"]["nodePools"] == ["general"]


def what_an_autoscaler_says_is_told(stage: RoleStage) -> Check:
    _create_large_gang(stage)
    for name in names("large", 2):
        stage.say_of_pod(name, "karpenter", "no instance type is large enough")
    return lambda: "no instance type is large enough" in stage.debug_page("large").get("message", "")


def prepare_cluster_autoscaler(stage: RoleStage) -> None:
    stage.create_cluster_autoscaler_objects()


def cluster_autoscaler_is_found(stage: RoleStage) -> Check:
    return lambda: stage.selfcheck()["autoscalers"]["found"] == "Cluster Autoscaler"


def provisioning_request_is_made_for_a_gang(stage: RoleStage) -> Check:
    _create_large_gang(stage)
    return stage.provisioning_requests


def prepare_provisioning_request(stage: RoleStage) -> None:
    stage.create_cluster_autoscaler_objects()
    _create_large_gang(stage)
    eventually("the ProvisioningRequest", stage.provisioning_requests, 30)


def refused_provisioning_request_is_told(stage: RoleStage) -> Check:
    stage.refuse_provisioning("no zone has room")
    return lambda: "no zone has room" in stage.debug_page("large").get("message", "")


def provisioning_request_goes_with_its_gang(stage: RoleStage) -> Check:
    stage.delete_group("large")
    return lambda: not stage.provisioning_requests()


def _create_large_gang(stage: RoleStage) -> None:
    """Create a gang that fits nowhere."""
    stage.create_group("large", 2)
    stage.create_pods(names("large", 2), "large", cpu="1000")


# --- what is said ----------------------------------------------------------------------------------------------------


def condition_says_why_a_gang_waits(stage: RoleStage) -> Check:
    stage.create_group("ring", 2)
    stage.create_pods(names("ring", 1), "ring")
    return lambda: "QuorumMissing" in stage.condition("ring")[2]


def condition_says_why_a_tree_waits(stage: RoleStage) -> Check:
    stage.create_composite("root", 1)
    stage.create_branch("leaf", 2)
    stage.create_pods(names("leaf", 1), "leaf")
    return lambda: "QuorumMissing" in stage.composite_condition("root")[2]


def event_says_why_a_gang_waits(stage: RoleStage) -> Check:
    stage.create_group("ring", 2)
    stage.create_pods(names("ring", 1), "ring")
    return lambda: stage.count_event("ring", "QuorumMissing")


def prepare_told_gang(stage: RoleStage) -> None:
    stage.create_group("ring", 3)
    stage.create_pods(names("ring", 1), "ring")
    eventually("the event", lambda: stage.count_event("ring", "QuorumMissing"))


def event_counts_why_a_gang_waits(stage: RoleStage) -> Check:
    """A minute after the first time: its repeats wait so long."""
    before = stage.count_event("ring", "QuorumMissing")
    stage.create_pods(names("ring", 1, start=1), "ring")
    return lambda: stage.count_event("ring", "QuorumMissing") > before


def event_says_what_was_made_for_a_job(stage: RoleStage) -> Check:
    stage.submit_job("train")
    return lambda: stage.count_event("train", "WorkloadCreated")


def prepare_resized_job(stage: RoleStage) -> None:
    prepare_job(stage)
    stage.resize_job("train", 3)
    eventually("the event", lambda: stage.count_event("train", "MinCountChanged"))


def event_counts_the_changes_of_a_job(stage: RoleStage) -> Check:
    """A minute after the first time: its repeats wait so long."""
    before = stage.count_event("train", "MinCountChanged")
    stage.resize_job("train", 4)
    return lambda: stage.count_event("train", "MinCountChanged") > before


# --- preemption ------------------------------------------------------------------------------------------------------


def prepare_low_pods(stage: RoleStage) -> None:
    stage.create_high_class()
    stage.run_low()


def prepare_low_pods_that_take_long_to_end(stage: RoleStage) -> None:
    stage.create_high_class()
    stage.run_low(end_after="600s")


def prepare_low_pods_that_may_not_go(stage: RoleStage) -> None:
    prepare_low_pods(stage)
    stage.keep_low()


def gang_gets_the_room_of_lower_pods(stage: RoleStage) -> Check:
    stage.submit_high("ring", 2)
    return lambda: len(stage.bound("ring")) == 2


def gang_gets_the_room_of_lower_pods_as_it_was_recorded(stage: RoleStage) -> Check:
    """Without it the commit cannot follow the plan in the record: that is given up when the victims have gone."""
    got = gang_gets_the_room_of_lower_pods(stage)
    return lambda: got() and not any("RecordFailed" in each for each in stage.decisions("ring"))


def victims_say_that_they_go(stage: RoleStage) -> Check:
    stage.submit_high("ring", 2)
    return lambda: len(stage.preempted()) == 2


def budgets_are_known_before_anybody_is_asked(stage: RoleStage) -> Check:
    """Without it the dry run of each eviction tells it of its own pod (``its PodDisruptionBudget does not``)."""
    stage.submit_high("ring", 2)
    return lambda: "their PodDisruptionBudgets do not allow it" in str(stage.debug_page("ring?dryRun").get("dryRun"))


def prepare_whole_gang(stage: RoleStage) -> None:
    stage.create_high_class()
    size = stage.cluster.spec.nodes
    stage.create_gang("ring", size, disruptionMode={"all": {}})
    stage.create_pods(names("ring", size), "ring", cpu=WHOLE_NODE)
    stage.await_bound("ring", size, 60)


def whole_gang_goes_with_one_member(stage: RoleStage) -> Check:
    stage.create_pods(["high"], cpu=WHOLE_NODE, priorityClassName=HIGH)
    return lambda: not stage.pods("ring")


# --- Serried's own ---------------------------------------------------------------------------------------------------


def pods_are_known_to_keep_their_group(stage: RoleStage) -> Check:
    return lambda: stage.checked("api", "podsKeepTheirGroup")


def members_are_held_by_gates(stage: RoleStage) -> Check:
    return lambda: stage.checked("hold", "way") == "gate"


def open_the_extender(stage: RoleStage) -> None:
    stage.open_up("extender")


def open_the_controller(stage: RoleStage) -> None:
    stage.open_up("controller")


def reader_sees_the_extender_s_metrics(stage: RoleStage) -> Check:
    token = stage.make_reader_token()
    return lambda: stage.metrics_status("extender", token) == 200


def reader_sees_the_controller_s_metrics(stage: RoleStage) -> Check:
    token = stage.make_reader_token()
    return lambda: stage.metrics_status("controller", token) == 200


def prepare_no_lease_of_the_controller(stage: RoleStage) -> None:
    stage.end("controller", stage.lease("serried-controller"))


def prepare_no_lease_of_the_extenders(stage: RoleStage) -> None:
    stage.end("extender", stage.lease("serried-extender"))


def prepare_no_endpoints(stage: RoleStage) -> None:
    stage.end("extender", stage.endpoint_slice())


def service_leads_to_the_extender(stage: RoleStage) -> Check:
    return lambda: stage.endpoints() == [ADDRESS]
