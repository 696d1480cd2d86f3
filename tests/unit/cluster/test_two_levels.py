"""Groups of pods while objects of two API levels are read, or while those of one are out of sight."""

from dataclasses import replace

from serried.api.group import PodGroup, Workload
from serried.api.level import FALLBACK, NATIVE, NATIVE_LEVELS
from serried.api.names import JOB, GroupKey, Key
from serried.api.parent import OwnerKey
from serried.cluster.cache import Store
from serried.cluster.membership import provisional
from serried.rules.all import RULES
from tests.support.builders import job, pod, pod_group, workload

BESIDE = FALLBACK.api_version
SCHEDULER = "serried"


def at(level_api: str, item: Workload | PodGroup) -> Workload | PodGroup:
    """The same object at another level."""
    return replace(item, api=level_api)


def told(*items: Workload | PodGroup) -> Store:
    """A Store with a Job of two, one of whose pods waits."""
    store = Store([SCHEDULER], rules=RULES)
    store.put_job(job("j").size(2).scheduler(SCHEDULER).value())
    for item in items:
        if isinstance(item, Workload):
            store.put_workload(item)
        else:
            store.put_group(item)
    store.put_pod(pod("j-0").of_job("j", 0).scheduler(SCHEDULER).value())
    return store


def made(name: str, api: str = "") -> list[Workload | PodGroup]:
    """A Workload of the Job and its PodGroup, at one level."""
    load = workload(name).for_job("j").gang_template("t", 2).value()
    group = pod_group(f"{name}-group").gang(2).from_template(name, "t").value()
    return [at(api, load), at(api, group)]


def test_a_job_with_objects_beside_the_level_in_use_has_its_gang_there() -> None:
    store = told(*made("w", BESIDE))
    assert store.members.group_of("pod-j-0") == GroupKey("default", "w-group")


def test_of_objects_at_two_levels_those_of_the_level_in_use_count() -> None:
    store = told(*made("beside", BESIDE), *made("used"))
    assert store.members.group_of("pod-j-0") == GroupKey("default", "used-group")


def test_a_pod_group_belongs_to_the_workload_of_its_own_level() -> None:
    load, group = made("w")
    other = at(BESIDE, pod_group("other").gang(2).from_template("w", "t").value())
    assert told(load, group, other).members.group_of("pod-j-0") == GroupKey("default", "w-group")


def test_members_keep_their_group_when_its_object_is_made_anew_at_the_other_level() -> None:
    store = told(*made("w", BESIDE))
    store.put_pod(pod("j-1").of_job("j", 1).scheduler(SCHEDULER).on("n").value())
    store.drop_pod("pod-j-1")
    for item in made("w"):
        renewed = replace(item, uid="another")
        store.put_workload(renewed) if isinstance(renewed, Workload) else store.put_group(renewed)
    assert store.members.group_of("pod-j-0") == GroupKey("default", "w-group")


def test_a_job_that_started_as_a_gang_out_of_sight_waits_for_new_objects() -> None:
    store = told()
    running = pod("j-1").of_job("j", 1).scheduler(SCHEDULER).on("n").value()
    store.put_pod(running)
    assert store.members.group_of("pod-j-0") is None
    store.put_pod(replace(running, stranded=True))
    assert store.members.group_of("pod-j-0") == provisional(OwnerKey(JOB, Key("default", "j")))


def test_pods_that_have_lost_the_field_of_their_template_belong_to_the_group_that_it_names() -> None:
    store = told()
    named = (
        job("j")
        .size(2)
        .scheduler(SCHEDULER)
        .with_field("g", "spec", "template", "spec", "schedulingGroup", "podGroupName")
    )
    store.put_job(named.value())
    assert store.members.group_of("pod-j-0") == GroupKey("default", "g")


def test_at_a_native_level_the_fallback_is_read_too_and_not_the_other_way_round() -> None:
    assert NATIVE.readable_versions >= {"scheduling.k8s.io/v1beta1", "scheduling.serried.dev/v1beta1"}
    assert all(level.second_level == FALLBACK for level in NATIVE_LEVELS)
    assert FALLBACK.readable_versions == {"scheduling.serried.dev/v1beta1"}
