"""The priority of a group is that of its class, whatever its pods and its tenants say."""

import pytest

from tests.e2e.priorities.stage import MOST, PriorityStage
from tests.support.cluster_stage import eventually, names, pod_spec

pytestmark = pytest.mark.e2e


def test_of_two_gangs_that_of_the_higher_group_goes_first_and_each_hears_once_that_its_pods_say_otherwise(
    stage: PriorityStage,
) -> None:
    with stage.priority_class("high", 1000) as high:
        stage.create_gang("filler", 12, priorityClassName=high)
        stage.create_pods(names("filler", 12), "filler", cpu="30", priorityClassName=high)
        stage.await_bound("filler", 12)

        stage.create_gang("usual", 12)
        stage.create_pods(names("usual", 12), "usual", cpu="30", priorityClassName=high)
        stage.await_reason("usual", "NoCapacity")
        stage.create_gang("urgent", 12, priorityClassName=high)
        stage.create_pods(names("urgent", 12), "urgent", cpu="30")
        stage.await_reason("urgent", "NoCapacity")
        stage.await_priority("usual", 0)
        stage.await_priority("urgent", 1000)

        stage.delete_pods(*names("filler", 12))
        stage.await_bound("urgent", 12)
        assert not stage.bound("usual")
        _await_mismatch(stage, "usual", counts=0, pods=1000)
        _await_mismatch(stage, "urgent", counts=1000, pods=0)
        assert not stage.mismatches("filler")


def _await_mismatch(stage: PriorityStage, group: str, counts: int, pods: int) -> None:
    (said,) = eventually("the event", lambda: stage.mismatches(group))
    assert said.startswith(f"Serried uses priority {counts} for all members of the group")
    assert said.endswith(f" with {pods}")


@pytest.mark.both_levels
def test_a_group_of_a_class_that_does_not_exist_waits_for_it(stage: PriorityStage) -> None:
    late = stage.class_name("late")
    if stage.native:
        assert f"no PriorityClass with name {late} was found" in stage.refusal("g", priorityClassName=late)
        return
    stage.create_gang("g", 2, priorityClassName=late)
    stage.await_reason("g", "PriorityUnknown", late)
    stage.create_pods(names("g", 2), "g")
    said = f"PriorityUnknown: Serried does not know the value of PriorityClass {late}"
    # Long before it would be told of a group for whose pods nobody waits.
    eventually("the condition", lambda: stage.condition("g") == ("False", "Unschedulable", said), 15.0)
    assert not stage.bound()
    with stage.priority_class("late", 7):
        stage.await_bound("g", 2)
        stage.await_priority("g", 7)


def test_a_group_that_names_no_class_has_that_of_the_default_or_0(stage: PriorityStage) -> None:
    stage.create_gang("before", 2)
    stage.await_priority("before", 0)
    with stage.priority_class("usual", 50, globalDefault=True):
        eventually("the default", lambda: _has_default(stage))
        stage.create_gang("after", 2)
        stage.await_priority("after", 50)
        stage.await_priority("before", 0)


def _has_default(stage: PriorityStage) -> bool:
    stage.create_pods(["probe"])
    (probe,) = stage.pods("probe")
    stage.delete_pods("probe")
    return bool(probe["spec"]["priority"] == 50)


@pytest.mark.both_levels
def test_nobody_gains_by_a_priority_that_they_write(stage: PriorityStage) -> None:
    with stage.priority_class("low", 3) as low:
        if stage.native:
            said = "must match the priority computed (3)"
            assert said in stage.refusal("greedy", priorityClassName=low, priority=MOST)
            return
        # As an administrator, whom the policy lets through: so it would be without the policy.
        stage.create_gang("greedy", 2, priorityClassName=low, priority=MOST)
        stage.create_pods(names("greedy", 2), "greedy", priorityClassName=low)
        stage.await_bound("greedy", 2)
        assert stage.debug_page("greedy")["priority"] == 3
        (said,) = eventually("the event", lambda: stage.mismatches("greedy"))
        assert said.endswith(f"its spec.priority {MOST} is not that of PriorityClass {low}")


@pytest.mark.both_levels
def test_a_class_of_the_system_is_not_for_groups(stage: PriorityStage) -> None:
    critical = "system-cluster-critical"
    if stage.native:
        assert "less than or equal to 1000000000" in stage.refusal("bold", priorityClassName=critical)
        return
    stage.create_gang("bold", 2, priorityClassName=critical)
    stage.create_pods(names("bold", 2), "bold")
    stage.await_reason("bold", "PriorityUnknown", critical, "the highest priority of a PodGroup is 1000000000")
    assert "priority" not in stage.spec_of("bold")


@pytest.mark.both_levels
def test_a_tree_has_the_priority_of_its_root(stage: PriorityStage) -> None:
    with stage.priority_class("high", 1000) as high:
        stage.create_root("root", priorityClassName=high)
        stage.create_branch("leaf", 2)
        stage.create_pods(names("leaf", 2), "leaf", priorityClassName=high)
        stage.await_bound("leaf", 2)
        eventually("the root's", lambda: stage.spec_of_root("root").get("priority") == 1000)
        assert stage.debug_page("leaf")["name"] == "composite:root"
        assert stage.debug_page("leaf")["priority"] == 1000
        eventually("the leaf's own", lambda: stage.spec_of("leaf").get("priority") == 0)


@pytest.mark.both_levels
@pytest.mark.parametrize("who", ["class", "pods", "nobody"])
def test_a_group_whose_class_or_pods_say_never_is_one_for_which_nobody_is_evicted(
    stage: PriorityStage, who: str
) -> None:
    says = {"preemptionPolicy": "Never"} if who == "class" else {}
    with stage.priority_class("calm", 1000, **says) as calm:
        # 1.37 takes no PodGroup that leaves this to a class that says Never: it has a default by then.
        stage.create_gang("calm", 2, priorityClassName=calm, **(says if stage.native else {}))
        with stage.priority_class("never", 0, preemptionPolicy="Never") as never:
            stage.create_pods(names("calm", 2), "calm", priorityClassName=never if who == "pods" else calm)
        stage.await_bound("calm", 2)
        assert stage.debug_page("calm")["preempts"] is (who == "nobody")
        if stage.native:
            word = "Never" if who == "class" else "PreemptLowerPriority"
            assert stage.spec_of("calm")["preemptionPolicy"] == word


@pytest.mark.parametrize("who", ["class", "member"])
def test_in_a_full_cluster_nobody_goes_for_a_group_whose_class_or_one_member_says_never(
    stage: PriorityStage, who: str
) -> None:
    stage.create_pods(names("low", 12), cpu="30")
    stage.await_bound("low", 12)
    with (
        stage.priority_class("high", 1000) as high,
        stage.priority_class("never", 1000, preemptionPolicy="Never") as never,
    ):
        # On the native API the group says what its class does; see above.
        says = {"preemptionPolicy": "Never"} if who == "class" and stage.native else {}
        stage.create_gang("calm", 2, priorityClassName=never if who == "class" else high, **says)
        stage.create_pods(["calm-0"], "calm", cpu="30", priorityClassName=high)
        stage.create_pods(["calm-1"], "calm", cpu="30", priorityClassName=never if who == "member" else high)
        stage.await_reason("calm", "NoCapacity", seconds=30.0)
        asked = stage.debug_page("calm?dryRun")["dryRun"]
        assert asked["message"] == "the PriorityClass, the group or a member has preemptionPolicy Never"
        assert len(stage.bound("low")) == 12
        assert not [pod for pod in stage.pods("low") if "deletionTimestamp" in pod["metadata"]]

        stage.delete_pods("low-3", "low-8")
        stage.await_bound("calm", 2)
        assert len(stage.bound("low")) == 10


@pytest.mark.parametrize("cluster", ["native alpha"], indirect=True)
def test_a_group_that_says_never_itself_evicts_nobody_also_when_its_class_allows_it_by_now(
    stage: PriorityStage,
) -> None:
    stage.create_pods(names("low", 12), cpu="30")
    stage.await_bound("low", 12)
    with stage.priority_class("high", 1000, preemptionPolicy="Never") as high:
        # 1.37 takes only what the class says. So this word stands alone when the class is made anew with another.
        stage.create_gang("calm", 2, priorityClassName=high, preemptionPolicy="Never")
    gone = f"no PriorityClass with name {high} was found"
    eventually("admission without the class", lambda: gone in stage.refusal("probe", priorityClassName=high))
    with stage.priority_class("high", 1000):
        stage.create_pods(names("calm", 2), "calm", cpu="30", priorityClassName=high)
        stage.await_reason("calm", "NoCapacity", seconds=30.0)

        stage.create_gang("bold", 2, priorityClassName=high)
        stage.create_pods(names("bold", 2), "bold", cpu="30", priorityClassName=high)
        stage.await_bound("bold", 2)
        assert len(stage.bound("low")) == 10
        assert not [pod for pod in stage.pods("low") if "deletionTimestamp" in pod["metadata"]]
        stage.await_reason("calm", "NoCapacity")
        asked = stage.debug_page("calm?dryRun")["dryRun"]
        assert asked["message"] == "the PriorityClass, the group or a member has preemptionPolicy Never"
        assert not stage.bound("calm")


@pytest.mark.both_levels
def test_a_job_whose_class_says_never_is_a_gang_for_which_nobody_is_evicted(stage: PriorityStage) -> None:
    with stage.priority_class("calm", 1000, preemptionPolicy="Never") as calm:
        stage.submit_job(
            "train", template={"spec": pod_spec("1") | {"restartPolicy": "Never", "priorityClassName": calm}}
        )
        stage.await_bound("train", 2)
        group = stage.group_of_job("train")
        stage.await_priority(group, 1000)
        assert stage.debug_page(group)["preempts"] is False
        assert stage.spec_of(group).get("preemptionPolicy") == ("Never" if stage.native else None)
        assert not stage.mismatches(group)
