"""Every rule of the invariant checker: what breaks it is caught, and what looks like it is not."""

from collections.abc import Callable
from typing import Any

import pytest

from bench import reliability
from tests.chaos.excuses import SIGHT, SPLIT_BRAIN, Excuses
from tests.chaos.observed import Observed
from tests.chaos.rules import Violation, judge

RACK = "topology.serried.dev/rack"
Tale = Callable[["Scene"], None]


def controller(name: str) -> dict[str, Any]:
    return {"kind": "Job", "name": name, "uid": f"{name}-uid", "controller": True}


def tell_nominator(manager: str) -> dict[str, Any]:
    fields: dict[str, Any] = {"f:status": {"f:nominatedNodeName": {}}}
    return {"managedFields": [{"manager": manager, "time": "now", "fieldsV1": fields}]}


class Scene:
    """A cluster as a watch would show it: two nodes of 4 CPU in racks of their own, one gang of 2, time 100 s."""

    def __init__(self) -> None:
        self.seen = Observed()
        self.now = 100.0
        self.debug_answers = True
        self.found: list[Violation] = []
        for name in ("n1", "n2"):
            self.node(name)
        self.group("g")
        for name in ("g-0", "g-1"):
            self.pod(name)

    def see(self, kind: str, raw: dict[str, Any], *, gone: bool = False) -> None:
        self.seen.see(kind, raw, self.now, gone=gone)

    def node(self, name: str, *, cordoned: bool = False, gone: bool = False) -> None:
        metadata = {"name": name, "labels": {RACK: f"rack-{name}"}}
        status = {"allocatable": {"cpu": "4", "pods": "10"}}
        self.see("nodes", {"metadata": metadata, "spec": {"unschedulable": cordoned}, "status": status}, gone=gone)

    def group(self, name: str, count: int = 2, *, reason: str = "NoCapacity: no", **more: Any) -> None:
        spec = {"schedulingPolicy": {"gang": {"minCount": count}}, **more.get("spec", {})}
        metadata = {"name": name, "namespace": "ns", "uid": name, **more.get("metadata", {})}
        told = [{"type": "PodGroupInitiallyScheduled", "message": reason}] if reason else []
        conditions = more.get("conditions", told)
        raw = {"metadata": metadata, "spec": spec, "status": {"conditions": conditions}}
        self.see("podgroups", raw, gone=more.get("gone", False))
        self.seen.told[("ns", name)] = reason

    def tree(self, name: str, groups: int, key: str = "", reason: str = "GroupsUnplaced: no") -> None:
        spec: dict[str, Any] = {"schedulingPolicy": {"gang": {"minGroupCount": groups}}}
        if key:
            spec["schedulingConstraints"] = {"topology": [{"key": key}]}
        metadata = {"name": name, "namespace": "ns", "uid": name}
        conditions = [{"type": "CompositePodGroupInitiallyScheduled", "message": reason}] if reason else []
        self.see("compositepodgroups", {"metadata": metadata, "spec": spec, "status": {"conditions": conditions}})

    def pod(self, name: str, node: str = "", cpu: str = "1", scheduler: str = "serried", **more: Any) -> None:
        group = more.get("group", name.rpartition("-")[0])
        containers = [{"resources": {"requests": {"cpu": cpu}}}]
        spec: dict[str, Any] = {"containers": containers, "schedulerName": scheduler}
        metadata: dict[str, Any] = {"name": name, "namespace": "ns", "uid": more.get("uid", name)}
        metadata |= more.get("metadata", {})
        if group:
            spec["schedulingGroup"] = {"podGroupName": group}
        if node:
            spec["nodeName"] = node
        raw = {"metadata": metadata, "spec": spec, "status": more.get("status", {})}
        self.see("pods", raw, gone=more.get("gone", False))

    def job(self, name: str, count: int = 2) -> None:
        """Replace the gang of 2 by the PodGroup of a Job, whose pods refer only to their Job."""
        for member in ("g-0", "g-1"):
            self.pod(member, gone=True)
        self.group("g", gone=True)
        self.group(name, count, metadata={"ownerReferences": [controller(name)]})

    def job_pod(self, name: str, node: str = "", **metadata: Any) -> None:
        owner = controller(name.rpartition("-")[0])
        self.pod(name, node, group="", metadata={"ownerReferences": [owner], **metadata})

    def leave_a_tree(self, key: str = "") -> None:
        """Replace the gang of 2 by a waiting tree of two groups, each with two members of 1 CPU."""
        for name in ("g-0", "g-1"):
            self.pod(name, gone=True)
        self.tree("t", 2, key)
        for leaf in ("a", "b"):
            self.group(leaf, spec={"parentCompositePodGroupName": "t"})
            for place in (0, 1):
                self.pod(f"{leaf}-{place}")

    def nominate(self, name: str, manager: str = "serried") -> None:
        self.pod(name, status={"nominatedNodeName": "n1"}, metadata=tell_nominator(manager))

    def nominate_job_pod(self, name: str) -> None:
        owners = {"ownerReferences": [controller(name.rpartition("-")[0])]}
        self.pod(name, group="", status={"nominatedNodeName": "n1"}, metadata=owners | tell_nominator("serried"))

    def record(self, name: str, uid: str, *, gone: bool = False, **slots: str) -> None:
        listed = [{"node": node, "members": [{"uid": pod.replace("_", "-")}]} for pod, node in slots.items()]
        spec = {"podGroupUID": uid, "phase": "Planned", "slots": listed}
        raw = {"metadata": {"name": name, "namespace": "ns", "uid": f"r-{name}"}, "spec": spec}
        self.see("reservations", raw, gone=gone)

    def judge(self) -> None:
        self.found += judge(self.seen, self.now)

    def wait(self, seconds: float) -> None:
        """Time passes, and the checker looks on."""
        end = self.now + seconds
        self.judge()
        while self.now < end:
            self.now = min(end, self.now + 1.0)
            if self.debug_answers:
                self.seen.told_at = self.now
            self.judge()

    @property
    def rules(self) -> set[str]:
        return {violation.rule for violation in self.found}


# --- what breaks a promise -----------------------------------------------------------------------------------------


def one_of_two_is_bound(scene: Scene) -> None:
    scene.pod("g-0", "n1")
    scene.wait(3)


def one_is_bound_long_after_a_recovery(scene: Scene) -> None:
    scene.seen.excuses.fall("extender", scene.now)
    scene.pod("g-0", "n1")
    scene.wait(5)
    scene.seen.excuses.rise("extender", scene.now)
    scene.wait(11)


def one_is_bound_while_only_the_controller_is_down(scene: Scene) -> None:
    scene.seen.excuses.fall("controller", scene.now)
    one_of_two_is_bound(scene)


def one_is_bound_long_after_a_request_was_tampered_with(scene: Scene) -> None:
    scene.pod("g-0", "n1")
    scene.seen.excuses.tamper("ns/g-1", scene.now)
    scene.wait(18)


def one_is_bound_and_somebody_else_was_tampered_with(scene: Scene) -> None:
    scene.seen.excuses.tamper("ns/other-1", scene.now)
    one_of_two_is_bound(scene)


def one_of_two_of_a_job_is_bound(scene: Scene) -> None:
    scene.job("job")
    scene.job_pod("job-0")
    scene.job_pod("job-1")
    scene.job_pod("job-0", "n1")
    scene.wait(3)


def one_of_two_of_a_job_is_bound_before_its_group_is_seen(scene: Scene) -> None:
    scene.job_pod("job-0", "n1")
    scene.job_pod("job-1")
    scene.job("job")
    scene.wait(3)


def one_is_bound_while_nothing_is_shown(scene: Scene) -> None:
    scene.seen.excuses.fall(SIGHT, scene.now)
    one_of_two_is_bound(scene)


def a_second_start_stops_half_way(scene: Scene) -> None:
    scene.pod("g-0", "n1")
    scene.pod("g-1", "n1")
    scene.wait(5)
    for name in ("g-0", "g-1"):
        scene.pod(name, "n1", gone=True)
        scene.pod(name, uid=f"{name}-again")
    scene.wait(40)
    scene.pod("g-0", "n1", uid="g-0-again")
    scene.wait(3)


def one_of_three_is_bound_and_one_was_deleted(scene: Scene) -> None:
    scene.group("g", 3)
    scene.pod("g-2", metadata={"deletionTimestamp": "now"})
    one_of_two_is_bound(scene)


def one_of_two_groups_of_a_tree_starts(scene: Scene) -> None:
    scene.tree("t", 2)
    for leaf in ("a", "b"):
        scene.group(leaf, 1, spec={"parentCompositePodGroupName": "t"})
        scene.pod(f"{leaf}-0", "n1" if leaf == "a" else "")
    scene.wait(3)


def a_tree_starts_in_part_the_second_time(scene: Scene) -> None:
    a_tree_that_ran_loses_a_group(scene)
    scene.pod("a-0", "n1", gone=True)
    scene.wait(5)
    scene.pod("b-0", "n1", uid="b-0-again")
    scene.wait(3)


def two_racks(scene: Scene) -> None:
    scene.group("g", spec={"schedulingConstraints": {"topology": [{"key": RACK}]}})
    scene.pod("g-0", "n1")
    scene.pod("g-1", "n2")
    scene.judge()


def two_racks_of_an_annotation(scene: Scene) -> None:
    annotations = {"scheduling.serried.dev/required-topology": RACK}
    scene.group("g", metadata={"annotations": annotations})
    scene.pod("g-0", "n1")
    scene.pod("g-1", "n2")
    scene.judge()


def a_late_member_in_another_rack(scene: Scene) -> None:
    scene.group("g", 1, spec={"schedulingConstraints": {"topology": [{"key": RACK}]}})
    scene.pod("g-0", "n1")
    scene.wait(30)
    scene.node("n2", gone=True)
    scene.pod("g-1", "n2")
    scene.judge()


def a_node_without_the_label(scene: Scene) -> None:
    scene.group("g", 1, spec={"schedulingConstraints": {"topology": [{"key": "other"}]}})
    scene.pod("g-0", "n1")
    scene.judge()


def two_racks_in_one_tree(scene: Scene) -> None:
    scene.tree("t", 2, RACK)
    for leaf, node in (("a", "n1"), ("b", "n2")):
        scene.group(leaf, 1, spec={"parentCompositePodGroupName": "t"})
        scene.pod(f"{leaf}-0", node)
    scene.judge()


def five_cpu_of_four(scene: Scene) -> None:
    scene.pod("g-0", "n1", cpu="3")
    scene.judge()
    scene.pod("g-1", "n1", cpu="2")
    scene.judge()


def five_cpu_of_four_long_after_anothers_binding(scene: Scene) -> None:
    scene.pod("other", "n1", cpu="3", scheduler="other", group="")
    scene.wait(3)
    scene.pod("g-0", "n1", cpu="2")
    scene.judge()


def a_kubelet_has_refused_one_in_time(scene: Scene) -> None:
    scene.pod("p-0", "n1", cpu="3", group="")
    scene.pod("p-1", "n1", cpu="2", group="")
    scene.pod("p-1", "n1", cpu="2", group="", status={"phase": "Failed"})
    scene.judge()


def eleven_pods_of_ten(scene: Scene) -> None:
    for number in range(11):
        scene.pod(f"plain-{number}", "n1", cpu="10m", group="")
    scene.judge()


def a_record_without_a_gang(scene: Scene) -> None:
    scene.record("gone", "nobody")
    scene.wait(16)


def a_record_of_the_gang_that_was_before(scene: Scene) -> None:
    scene.record("g", "g-of-old")
    scene.wait(16)


def a_nomination_without_a_slot(scene: Scene) -> None:
    scene.nominate("g-0")
    scene.wait(16)


def a_nomination_of_a_late_member_that_nobody_binds(scene: Scene) -> None:
    all_are_bound_at_once(scene)
    scene.nominate("g-2")
    scene.wait(61)


def a_nomination_of_a_job_without_a_slot(scene: Scene) -> None:
    scene.job("job")
    scene.nominate_job_pod("job-0")
    scene.wait(16)


def no_condition_of_a_job(scene: Scene) -> None:
    scene.job_pod("job-0")
    scene.job("job")
    scene.group("job", reason="", metadata={"ownerReferences": [controller("job")]})
    scene.seen.told[("ns", "job")] = "NoCapacity"
    scene.wait(11)


def no_condition_long_after_all_is_shown_again(scene: Scene) -> None:
    nothing_is_shown_and_no_condition_told(scene)
    scene.wait(19)


def no_condition(scene: Scene) -> None:
    scene.group("g", 5, reason="")
    scene.seen.told[("ns", "g")] = "NoCapacity"
    scene.wait(11)


def no_condition_of_a_tree(scene: Scene) -> None:
    scene.tree("t", 1, reason="")
    scene.group("leaf", 1, reason="", spec={"parentCompositePodGroupName": "t"})
    scene.pod("leaf-0")
    scene.wait(11)


def no_reason_on_debug(scene: Scene) -> None:
    scene.seen.told.clear()
    scene.wait(13)


def debug_answers_no_more(scene: Scene) -> None:
    scene.wait(5)
    scene.debug_answers = False
    scene.wait(17)


def debug_has_never_answered(scene: Scene) -> None:
    scene.debug_answers = False
    scene.wait(11)


def a_finalizer_that_stays(scene: Scene) -> None:
    metadata = {"deletionTimestamp": "now", "finalizers": ["scheduling.k8s.io/protection"]}
    scene.group("g", metadata=metadata)
    for name in ("g-0", "g-1"):
        scene.pod(name, gone=True)
    scene.wait(80)


def a_write_at_rest(scene: Scene) -> None:
    scene.seen.rest_since = scene.now
    scene.now += 5
    scene.group("g", reason="NoCapacity: again")
    scene.judge()


def a_gang_that_fits_is_left_waiting(scene: Scene) -> None:
    scene.wait(92)


def a_gang_that_fits_in_one_rack_is_left_waiting(scene: Scene) -> None:
    scene.group("g", spec={"schedulingConstraints": {"topology": [{"key": RACK}]}})
    scene.wait(92)


def a_tree_that_fits_is_left_waiting(scene: Scene) -> None:
    scene.leave_a_tree()
    scene.wait(92)


def a_tree_that_fits_in_one_rack_is_left_waiting(scene: Scene) -> None:
    scene.leave_a_tree(RACK)
    scene.pod("other", "n1", cpu="3", group="")
    scene.wait(92)


def a_tree_that_fits_without_one_of_its_groups_is_left_waiting(scene: Scene) -> None:
    scene.leave_a_tree()
    scene.tree("t", 1)
    scene.pod("b-1", gone=True)
    scene.wait(92)


def a_gang_that_has_lost_one_is_not_mended(scene: Scene) -> None:
    all_are_bound_at_once(scene)
    scene.pod("g-1", "n1", gone=True)
    scene.pod("g-2")
    scene.wait(92)


def a_gang_that_has_lost_one_is_not_mended_in_its_rack(scene: Scene) -> None:
    scene.group("g", spec={"schedulingConstraints": {"topology": [{"key": RACK}]}})
    a_gang_that_has_lost_one_is_not_mended(scene)


BROKEN: list[tuple[Tale, str]] = [
    (one_of_two_is_bound, "half bound"),
    (one_is_bound_long_after_a_recovery, "half bound"),
    (one_is_bound_while_only_the_controller_is_down, "half bound"),
    (one_is_bound_long_after_a_request_was_tampered_with, "half bound"),
    (one_is_bound_and_somebody_else_was_tampered_with, "half bound"),
    (one_of_two_of_a_job_is_bound, "half bound"),
    (one_of_two_of_a_job_is_bound_before_its_group_is_seen, "half bound"),
    (one_is_bound_while_nothing_is_shown, "half bound"),
    (a_second_start_stops_half_way, "half bound"),
    (one_of_three_is_bound_and_one_was_deleted, "half bound"),
    (one_of_two_groups_of_a_tree_starts, "half bound"),
    (a_tree_starts_in_part_the_second_time, "half bound"),
    (two_racks, "domain"),
    (two_racks_of_an_annotation, "domain"),
    (a_late_member_in_another_rack, "domain"),
    (a_node_without_the_label, "domain"),
    (two_racks_in_one_tree, "domain"),
    (five_cpu_of_four, "over-committed"),
    (five_cpu_of_four_long_after_anothers_binding, "over-committed"),
    (a_kubelet_has_refused_one_in_time, "over-committed"),
    (eleven_pods_of_ten, "over-committed"),
    (a_record_without_a_gang, "orphan"),
    (a_record_of_the_gang_that_was_before, "orphan"),
    (a_nomination_without_a_slot, "orphan"),
    (a_nomination_of_a_late_member_that_nobody_binds, "orphan"),
    (a_nomination_of_a_job_without_a_slot, "orphan"),
    (no_condition, "silent"),
    (no_condition_of_a_job, "silent"),
    (no_condition_long_after_all_is_shown_again, "silent"),
    (no_condition_of_a_tree, "silent"),
    (no_reason_on_debug, "silent"),
    (debug_answers_no_more, "silent"),
    (debug_has_never_answered, "silent"),
    (a_finalizer_that_stays, "leaked finalizer"),
    (a_write_at_rest, "write at rest"),
    (a_gang_that_fits_is_left_waiting, "overlooked"),
    (a_gang_that_fits_in_one_rack_is_left_waiting, "overlooked"),
    (a_tree_that_fits_is_left_waiting, "overlooked"),
    (a_tree_that_fits_in_one_rack_is_left_waiting, "overlooked"),
    (a_tree_that_fits_without_one_of_its_groups_is_left_waiting, "overlooked"),
    (a_gang_that_has_lost_one_is_not_mended, "overlooked"),
    (a_gang_that_has_lost_one_is_not_mended_in_its_rack, "overlooked"),
]


@pytest.mark.parametrize(("tale", "rule"), [pytest.param(*case, id=case[0].__name__) for case in BROKEN])
def test_a_broken_promise_is_caught_by_its_rule_alone(tale: Tale, rule: str) -> None:
    scene = Scene()
    tale(scene)
    assert scene.rules == {rule}


def test_every_rule_of_the_page_has_a_history_that_breaks_it() -> None:
    rows = [line.split(" | ")[0] for line in reliability.PAGE.read_text().splitlines() if line.startswith("| ")]
    listed = rows[rows.index("| rule") + 1 : rows.index("| what")]
    assert {f"| {rule}" for _, rule in BROKEN} == set(listed)


# --- what is no broken promise -------------------------------------------------------------------------------------


def all_are_bound_at_once(scene: Scene) -> None:
    scene.pod("g-0", "n1")
    scene.wait(1)
    scene.pod("g-1", "n1")
    scene.wait(60)


def all_are_bound_after_a_recovery(scene: Scene) -> None:
    scene.pod("g-0", "n1")
    scene.seen.excuses.fall("extender", scene.now)
    scene.wait(20)
    scene.seen.excuses.rise("extender", scene.now)
    scene.wait(8)
    scene.pod("g-1", "n1")
    scene.wait(60)


def a_binding_was_lost_on_the_way(scene: Scene) -> None:
    scene.pod("g-0", "n1")
    scene.seen.excuses.tamper("ns/g-1", scene.now)
    scene.wait(12)
    scene.pod("g-1", "n1")
    scene.wait(60)


def a_whole_gang_loses_one(scene: Scene) -> None:
    all_are_bound_at_once(scene)
    scene.pod("g-1", "n1", gone=True)
    scene.wait(60)


def a_gang_waits_for_room_in_its_rack_to_be_mended(scene: Scene) -> None:
    scene.group("g", spec={"schedulingConstraints": {"topology": [{"key": RACK}]}})
    all_are_bound_at_once(scene)
    scene.pod("g-1", "n1", gone=True)
    scene.pod("g-2")
    scene.pod("other", "n1", cpu="3", group="")
    scene.wait(92)


def a_gang_is_mended_behind_the_head(scene: Scene) -> None:
    all_are_bound_at_once(scene)
    scene.pod("g-1", "n1", gone=True)
    scene.pod("g-2")
    scene.seen.told[("ns", "g")] = "Broken: only 1 of 2 members run; BehindHead: room is kept"
    scene.wait(92)


def a_gang_whose_first_member_has_succeeded_has_a_late_one(scene: Scene) -> None:
    all_are_bound_at_once(scene)
    scene.pod("g-1", "n1", status={"phase": "Succeeded"})
    scene.pod("g-2")
    scene.wait(92)


def a_member_is_deleted_in_the_burst(scene: Scene) -> None:
    scene.pod("g-1", gone=True)
    scene.pod("g-0", "n1")
    scene.wait(60)


def a_node_is_deleted_in_the_burst(scene: Scene) -> None:
    scene.record("g", "g", g_0="n1", g_1="n2")
    scene.pod("g-0", "n1")
    scene.node("n2", gone=True)
    scene.wait(60)


def a_node_is_cordoned_before_the_burst(scene: Scene) -> None:
    scene.record("g", "g", g_0="n1", g_1="n2")
    scene.node("n2", cordoned=True)
    scene.pod("g-0", "n1")
    scene.wait(60)


def another_scheduler_takes_the_node(scene: Scene) -> None:
    scene.record("g", "g", g_0="n1", g_1="n2")
    scene.pod("g-0", "n1")
    scene.pod("other", "n2", cpu="4", scheduler="other", group="")
    scene.wait(60)


def another_scheduler_is_a_moment_earlier(scene: Scene) -> None:
    scene.pod("other", "n1", cpu="3", scheduler="other", group="")
    scene.now += 1
    scene.pod("g-0", "n1")
    scene.pod("g-1", "n1", cpu="2")
    scene.wait(60)


def two_actives_at_once(scene: Scene) -> None:
    scene.seen.excuses.fall(SPLIT_BRAIN, scene.now)
    five_cpu_of_four(scene)


def a_record_that_goes_soon(scene: Scene) -> None:
    scene.record("gone", "nobody")
    scene.wait(10)
    scene.record("gone", "nobody", gone=True)
    scene.wait(30)


def a_nomination_by_kube_scheduler(scene: Scene) -> None:
    scene.nominate("g-0", "kube-scheduler")
    scene.wait(16)


def a_nomination_beyond_the_quorum(scene: Scene) -> None:
    scene.record("g", "g", g_0="n1", g_1="n1")
    scene.nominate("g-2")
    scene.wait(60)


def a_nomination_of_a_gang_that_is_placed(scene: Scene) -> None:
    scene.seen.told["ns", "g"] = "Planned: kube-scheduler still has to schedule 2 planned members"
    scene.nominate("g-0")
    scene.wait(60)


def a_nomination_of_a_tree(scene: Scene) -> None:
    scene.tree("t", 1)
    scene.group("leaf", 1, spec={"parentCompositePodGroupName": "t"})
    scene.record("t", "t", leaf_0="n1")
    scene.nominate("leaf-0")
    scene.wait(60)


def a_restart_has_no_reason_yet(scene: Scene) -> None:
    scene.group("g", 5)
    scene.wait(60)
    told = dict(scene.seen.told)
    scene.seen.excuses.fall("extender", scene.now)
    scene.wait(5)
    scene.seen.told.clear()
    scene.seen.excuses.rise("extender", scene.now)
    scene.wait(12)
    scene.seen.told = told
    scene.wait(5)


def debug_does_not_answer_for_a_moment(scene: Scene) -> None:
    scene.wait(5)
    scene.debug_answers = False
    scene.wait(14)
    scene.debug_answers = True
    scene.wait(5)


def debug_does_not_answer_while_its_extender_is_down(scene: Scene) -> None:
    scene.group("g", 5)
    scene.wait(5)
    scene.debug_answers = False
    scene.seen.excuses.fall("extender", scene.now)
    scene.wait(30)
    scene.seen.excuses.rise("extender", scene.now)
    scene.wait(8)
    scene.debug_answers = True
    scene.wait(5)


def a_tree_that_ran_loses_a_group(scene: Scene) -> None:
    scene.tree("t", 2)
    for leaf in ("a", "b"):
        scene.group(leaf, 1, spec={"parentCompositePodGroupName": "t"})
        scene.pod(f"{leaf}-0", "n1")
    scene.wait(1)
    scene.pod("b-0", "n1", gone=True)
    scene.wait(60)


def a_tree_whose_root_says_it(scene: Scene) -> None:
    scene.tree("t", 1)
    scene.group("leaf", 1, reason="", spec={"parentCompositePodGroupName": "t"})
    scene.pod("leaf-0")
    scene.wait(30)


def a_finalizer_for_a_pod_that_runs(scene: Scene) -> None:
    all_are_bound_at_once(scene)
    metadata = {"deletionTimestamp": "now", "finalizers": ["scheduling.k8s.io/protection"]}
    scene.group("g", metadata=metadata)
    scene.wait(80)


def a_gang_that_does_not_fit(scene: Scene) -> None:
    scene.pod("other", "n1", cpu="3", group="")
    scene.pod("other2", "n2", cpu="4", group="")
    scene.wait(200)


def a_gang_that_fits_in_no_one_rack(scene: Scene) -> None:
    scene.group("g", spec={"schedulingConstraints": {"topology": [{"key": RACK}]}})
    scene.pod("other", "n1", cpu="3", group="")
    scene.pod("other2", "n2", cpu="3", group="")
    scene.wait(200)


def a_gang_behind_the_first(scene: Scene) -> None:
    scene.group("g", reason="BehindHead: the room is kept for ns/h")
    scene.wait(200)


def a_nomination_of_a_job(scene: Scene) -> None:
    scene.job("job")
    scene.record("job", "job", job_0="n1")
    scene.nominate_job_pod("job-0")
    scene.wait(30)


def a_write_about_the_root_of_a_tree_was_refused(scene: Scene) -> None:
    scene.tree("t", 1, reason="")
    scene.group("leaf", 1, reason="", spec={"parentCompositePodGroupName": "t"})
    scene.pod("leaf-0")
    scene.seen.excuses.tamper("ns/t", scene.now)
    scene.wait(20)


def a_gang_that_was_scheduled_before_waits_again(scene: Scene) -> None:
    scene.group("g", 5, conditions=[{"type": "PodGroupInitiallyScheduled", "status": "True", "message": ""}])
    scene.wait(60)


def a_nomination_of_a_late_member(scene: Scene) -> None:
    all_are_bound_at_once(scene)
    scene.nominate("g-2")
    scene.wait(50)


def nothing_is_shown_and_no_condition_told(scene: Scene) -> None:
    scene.seen.excuses.fall(SIGHT, scene.now)
    scene.group("g", 5, reason="")
    scene.seen.told[("ns", "g")] = "NoCapacity"
    scene.wait(20)
    scene.seen.excuses.rise(SIGHT, scene.now)


def a_gang_that_fits_but_for_faults(scene: Scene) -> None:
    for _ in range(4):
        scene.wait(50)
        scene.seen.excuses.tamper("anything", scene.now)


def a_tree_that_does_not_fit(scene: Scene) -> None:
    scene.leave_a_tree()
    scene.pod("other", "n1", cpu="4", group="")
    scene.pod("other2", "n2", group="")
    scene.wait(200)


def a_tree_that_fits_in_no_one_rack(scene: Scene) -> None:
    scene.leave_a_tree(RACK)
    for node in ("n1", "n2"):
        scene.pod(f"on-{node}", node, group="")
    scene.wait(200)


def a_namespace_is_deleted_in_the_burst(scene: Scene) -> None:
    scene.pod("g-0", "n1")
    scene.seen.ending.add("ns")
    scene.wait(60)


def a_tree_behind_the_first(scene: Scene) -> None:
    scene.leave_a_tree()
    scene.tree("t", 2, reason="BehindHead: the room is kept for ns/h")
    scene.wait(200)


def a_tree_without_enough_members(scene: Scene) -> None:
    scene.leave_a_tree()
    scene.pod("b-1", gone=True)
    scene.wait(200)


def a_tree_that_is_bound_in_time(scene: Scene) -> None:
    scene.leave_a_tree()
    scene.wait(60)
    for name in ("a-0", "a-1", "b-0", "b-1"):
        scene.pod(name, "n1")
    scene.wait(200)


SOUND: list[Tale] = [
    all_are_bound_at_once,
    all_are_bound_after_a_recovery,
    a_binding_was_lost_on_the_way,
    a_whole_gang_loses_one,
    a_gang_waits_for_room_in_its_rack_to_be_mended,
    a_gang_is_mended_behind_the_head,
    a_gang_whose_first_member_has_succeeded_has_a_late_one,
    a_member_is_deleted_in_the_burst,
    a_node_is_deleted_in_the_burst,
    a_node_is_cordoned_before_the_burst,
    a_namespace_is_deleted_in_the_burst,
    another_scheduler_takes_the_node,
    another_scheduler_is_a_moment_earlier,
    two_actives_at_once,
    a_record_that_goes_soon,
    a_nomination_by_kube_scheduler,
    a_nomination_beyond_the_quorum,
    a_nomination_of_a_gang_that_is_placed,
    a_nomination_of_a_tree,
    a_nomination_of_a_job,
    a_nomination_of_a_late_member,
    a_gang_that_was_scheduled_before_waits_again,
    a_write_about_the_root_of_a_tree_was_refused,
    nothing_is_shown_and_no_condition_told,
    a_restart_has_no_reason_yet,
    debug_does_not_answer_for_a_moment,
    debug_does_not_answer_while_its_extender_is_down,
    a_tree_that_ran_loses_a_group,
    a_tree_whose_root_says_it,
    a_finalizer_for_a_pod_that_runs,
    a_gang_that_does_not_fit,
    a_gang_that_fits_in_no_one_rack,
    a_gang_behind_the_first,
    a_gang_that_fits_but_for_faults,
    a_tree_that_does_not_fit,
    a_tree_that_fits_in_no_one_rack,
    a_tree_behind_the_first,
    a_tree_without_enough_members,
    a_tree_that_is_bound_in_time,
]


@pytest.mark.parametrize("tale", SOUND, ids=lambda tale: tale.__name__)
def test_what_only_looks_broken_is_none(tale: Tale) -> None:
    scene = Scene()
    tale(scene)
    assert scene.found == []


def test_the_time_of_several_recoveries_counts_once() -> None:
    excuses = Excuses()
    excuses.fall("extender", 10.0)
    excuses.fall("scheduler", 12.0)
    excuses.rise("extender", 20.0)
    excuses.rise("scheduler", 24.0)
    excuses.fall("controller", 50.0)
    assert excuses.count_clear(5.0, 60.0) == pytest.approx((10 - 5) + (60 - 32))
    assert excuses.count_clear(11.0, 13.0) == 0.0
