import math
from collections.abc import Collection, Sized
from types import SimpleNamespace
from typing import Any, cast

import pytest

from serried.api.job import Job
from serried.api.level import FALLBACK
from serried.api.names import Key
from serried.cluster.cache import Store
from serried.feed import OPTIONAL_KINDS, Feed, Item, Kind
from serried.kube.client import ApiClient
from serried.kube.wire import Resource
from serried.ops.metrics import Metrics
from serried.rules.all import RULES
from tests.support.budgets import budget
from tests.support.builders import Builder, compatible_group, job, node, pod, pod_group, workload
from tests.support.devices import claim, claiming, device_class, devices, taint_rule
from tests.support.volumes import csi_driver, csi_node, storage_capacity, storage_class, volume, volume_claim

Raw = dict[str, Any]
NAMED_LEVELS: Raw = {"metadata": {"name": "default", "uid": "u"}, "spec": {"levels": []}}


class Watched:
    """A Feed whose watches are played by the test."""

    def __init__(self, *kinds: Kind, optional: Collection[Kind] = ()) -> None:
        self.store = Store({"serried"}, rules=RULES)
        self.changes: list[tuple[Item | None, Item | None]] = []
        self.metrics = Metrics()
        client = cast("ApiClient", SimpleNamespace(metrics=self.metrics))  # nothing here runs a watch
        self.feed = Feed(client, FALLBACK, self.store, kinds or tuple(Kind), on_change=self._note, optional=optional)

    def _note(self, old: Item | None, new: Item | None) -> None:
        self.changes.append((old, new))

    def show(self, kind: Kind, item: Builder | Raw) -> None:
        self.feed.reflectors[kind].known.upsert(item if isinstance(item, dict) else item.raw())

    def end(self, kind: Kind, item: Builder | Raw) -> None:
        self.feed.reflectors[kind].known.delete(item if isinstance(item, dict) else item.raw())

    def list_all(self, kind: Kind) -> None:
        changes = self.feed.reflectors[kind].known
        changes.begin_list()
        changes.end_list("1")

    def unserve(self, kind: Kind) -> None:
        for _ in self.feed.reflectors[kind].known.report_unserved():
            pass

    def deny(self, kind: Kind) -> None:
        self.feed.reflectors[kind].known.report_denied()


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_objects_of_every_kind_reach_the_store_and_leave_it(watched: Watched) -> None:
    shown: list[tuple[Kind, Builder | Raw]] = [
        (Kind.NODES, node("n")),
        (Kind.PODS, pod("p")),
        (Kind.JOBS, job("j")),
        (Kind.POD_GROUPS, pod_group("g")),
        (Kind.WORKLOADS, workload("w")),
        (Kind.COMPATIBLE_POD_GROUPS, compatible_group("g")),
        (Kind.VOLUMES, volume("v")),
        (Kind.VOLUME_CLAIMS, volume_claim("c")),
        (Kind.STORAGE_CLASSES, storage_class("s")),
        (Kind.STORAGE_CAPACITIES, storage_capacity("s", "s", "1Gi")),
        (Kind.CSI_DRIVERS, csi_driver("d")),
        (Kind.CSI_NODES, csi_node("n", d=2)),
        (Kind.DEVICE_CLASSES, device_class("d")),
        (Kind.RESOURCE_SLICES, devices("n", 1)),
        (Kind.RESOURCE_CLAIMS, claim("c", 1)),
        (Kind.DEVICE_TAINT_RULES, taint_rule("t")),
        (Kind.NAMESPACES, {"metadata": {"name": "n", "uid": "u"}}),
        (Kind.BUDGETS, budget("b")),
        (Kind.TOPOLOGY_LEVELS, NAMED_LEVELS),
        (Kind.KUEUE_TOPOLOGIES, NAMED_LEVELS),
        (Kind.GROVE_BINDINGS, NAMED_LEVELS),
    ]
    for kind, item in shown:
        watched.show(kind, item)
    store = watched.store
    held: list[Sized] = [store.nodes, store.pods, store.jobs, store.groups, store.workloads]
    held += [*(kind.held for rule in store.all_rules for kind in rule.kinds), store.budgets]
    held += [store.levels.declared, store.levels.kueue, store.levels.grove]
    assert [len(entries) for entries in held] == [1, 1, 1, 2, *[1] * 16]
    assert set(store.pods) == {"pod-p"}
    for kind, item in shown:
        watched.end(kind, item)
    assert [len(entries) for entries in held] == [0] * 20
    assert [new is None for _, new in watched.changes] == [False] * 21 + [True] * 21


def test_the_owner_is_told_what_was_and_what_is(watched: Watched) -> None:
    watched.show(Kind.JOBS, job("j").size(2).version("1"))
    watched.show(Kind.JOBS, job("j").size(3).version("2"))
    old, new = watched.changes[-1]
    assert isinstance(old, Job)
    assert isinstance(new, Job)
    assert (old.parallelism, new.parallelism) == (2, 3)


def test_what_a_new_list_repeats_is_no_change(watched: Watched) -> None:
    watched.show(Kind.JOBS, job("j").version("1"))
    watched.show(Kind.JOBS, job("j").version("1"))
    assert len(watched.changes) == 1


def test_a_pod_made_anew_under_its_old_name_is_another_pod(watched: Watched) -> None:
    watched.show(Kind.PODS, pod("p").uid("first"))
    watched.show(Kind.PODS, pod("p").uid("second"))
    assert set(watched.store.pods) == {"second"}
    assert [(old and old.version, new is None) for old, new in watched.changes] == [
        (None, False),
        ("", True),
        (None, False),
    ]


def test_a_malformed_object_is_counted_logged_once_and_stops_nobody(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    watched.show(Kind.JOBS, job("good"))
    for _ in range(3):
        watched.show(Kind.JOBS, job("bad").with_field("many", "spec", "parallelism"))
    watched.show(Kind.JOBS, job("good").with_field([], "spec"))
    watched.show(Kind.JOBS, job("better"))
    assert set(watched.store.jobs) == {Key("default", "good"), Key("default", "better")}
    assert watched.feed.malformed == {Kind.JOBS: 4}
    assert 'serried_malformed_objects_total{resource="jobs"} 4.0' in watched.metrics.render().decode().splitlines()
    assert [vars(record)["object"] for record in caplog.records] == ["default/bad", "default/good"]


def test_a_malformed_object_can_still_be_deleted(watched: Watched) -> None:
    watched.show(Kind.JOBS, job("j"))
    watched.end(Kind.JOBS, job("j").with_field("many", "spec", "parallelism"))
    assert not watched.store.jobs


def test_synced_waits_for_every_kind_that_is_followed() -> None:
    watched = Watched(Kind.PODS, Kind.JOBS)
    watched.list_all(Kind.PODS)
    assert not watched.feed.synced.is_set()
    assert watched.feed.unlisted == {Kind.JOBS}
    watched.list_all(Kind.JOBS)
    assert watched.feed.synced.is_set()


def test_an_unserved_resource_is_reported_until_it_is_served() -> None:
    watched = Watched(Kind.POD_GROUPS)
    watched.list_all(Kind.POD_GROUPS)
    watched.unserve(Kind.POD_GROUPS)
    assert not watched.feed.synced.is_set()
    assert watched.feed.unserved == {Kind.POD_GROUPS}
    watched.list_all(Kind.POD_GROUPS)
    assert watched.feed.synced.is_set()
    assert not watched.feed.unserved


def test_a_needed_kind_that_is_not_served_any_more_is_an_obstacle_until_all_are_listed_again() -> None:
    watched = Watched(Kind.JOBS, Kind.PODS)
    watched.list_all(Kind.JOBS)
    watched.list_all(Kind.PODS)
    watched.unserve(Kind.JOBS)
    assert watched.store.obstacles.needed == "the API server does not serve jobs.batch (v1)"
    watched.list_all(Kind.PODS)
    assert watched.store.obstacles.needed
    watched.list_all(Kind.JOBS)
    assert not watched.store.obstacles.needed


def test_an_optional_kind_is_awaited_until_it_is_listed_or_found_unserved_or_not_granted() -> None:
    for settle in (Watched.list_all, Watched.unserve, Watched.deny):
        watched = Watched(Kind.PODS, Kind.JOBS, optional={Kind.JOBS})
        watched.list_all(Kind.PODS)
        assert watched.feed.unlisted == {Kind.JOBS}
        settle(watched, Kind.JOBS)
        assert watched.feed.synced.is_set(), settle


def test_an_optional_kind_that_goes_takes_its_objects_along_and_holds_nothing_up() -> None:
    watched = Watched(Kind.JOBS, optional={Kind.JOBS})
    watched.show(Kind.JOBS, job("j"))
    watched.list_all(Kind.JOBS)
    watched.unserve(Kind.JOBS)
    assert not watched.store.jobs
    assert watched.feed.synced.is_set()
    assert watched.feed.unserved == {Kind.JOBS}
    assert not watched.store.obstacles.needed


def test_nothing_is_missing_for_want_of_a_class_that_we_are_not_shown() -> None:
    watched = Watched(Kind.NODES, Kind.PODS, Kind.DEVICE_CLASSES, optional=OPTIONAL_KINDS)
    watched.show(Kind.PODS, pod("p").request("example.com/gpu", 1))
    seen = [watched.store.pods["pod-p"].missing]
    # Where they are not served there are none.
    for event in (watched.deny, watched.unserve, watched.deny, watched.list_all):
        event(Kind.DEVICE_CLASSES)
        seen.append(watched.store.pods["pod-p"].missing)
    gpu = ("example.com/gpu",)
    assert seen == [gpu, (), gpu, (), gpu]


FOR_CLAIMS = (Kind.STORAGE_CLASSES, Kind.STORAGE_CAPACITIES, Kind.CSI_DRIVERS, Kind.CSI_NODES)


def test_storage_is_followed_from_the_first_member_on_that_mounts_a_claim() -> None:
    watched = Watched(Kind.PODS, Kind.VOLUME_CLAIMS, *FOR_CLAIMS, optional=OPTIONAL_KINDS)
    for mounts_nothing in (
        pod("p").in_group("g"),
        pod("q").mounting("c"),
        pod("r").in_group("g").mounting("c").on("n"),
    ):
        watched.show(Kind.PODS, mounts_nothing)
    watched.list_all(Kind.PODS)
    watched.list_all(Kind.VOLUME_CLAIMS)
    assert watched.feed.synced.is_set()
    assert set(watched.feed.followed) == {Kind.PODS, Kind.VOLUME_CLAIMS}
    watched.show(Kind.VOLUME_CLAIMS, volume_claim("c").requesting("fast"))
    watched.show(Kind.PODS, pod("s").in_group("g").mounting("c"))
    assert set(watched.feed.followed) == set(watched.feed.reflectors)
    said = [watched.store.pods["pod-s"].obstacle]
    for kind in FOR_CLAIMS:
        watched.list_all(kind)
        said.append(watched.store.pods["pod-s"].obstacle)
    reading = "Serried is reading the storage of the cluster"
    assert said == [reading] * 4 + ["volume claim c is not bound, and its StorageClass fast does not exist"]


def test_a_kind_of_storage_that_we_are_not_shown_is_not_waited_for() -> None:
    watched = Watched(Kind.PODS, Kind.VOLUME_CLAIMS, *FOR_CLAIMS, optional=OPTIONAL_KINDS)
    watched.show(Kind.VOLUME_CLAIMS, volume_claim("c").requesting("fast"))
    watched.list_all(Kind.VOLUME_CLAIMS)
    watched.show(Kind.PODS, pod("p").in_group("g").mounting("c"))
    for kind in FOR_CLAIMS:
        watched.deny(kind)
    assert not watched.store.pods["pod-p"].obstacle


FOR_DEVICES = (Kind.DEVICE_CLASSES, Kind.RESOURCE_SLICES, Kind.RESOURCE_CLAIMS, Kind.DEVICE_TAINT_RULES)
CLAIMS_ONE = pod("s").in_group("g").with_field(claiming("c"), "spec", "resourceClaims")


def test_devices_are_followed_from_the_first_member_on_that_claims_some() -> None:
    watched = Watched(Kind.PODS, *FOR_DEVICES, optional=OPTIONAL_KINDS)
    watched.show(Kind.PODS, pod("p").in_group("g"))
    watched.show(Kind.PODS, CLAIMS_ONE.on("n").uid("bound"))
    watched.list_all(Kind.PODS)
    watched.list_all(Kind.DEVICE_CLASSES)
    assert watched.feed.synced.is_set()
    assert set(watched.feed.followed) == {Kind.PODS, Kind.DEVICE_CLASSES}
    watched.show(Kind.PODS, CLAIMS_ONE)
    assert set(watched.feed.followed) == set(watched.feed.reflectors)
    said = [watched.store.pods["pod-s"].obstacle]
    for kind in FOR_DEVICES[1:]:
        watched.list_all(kind)
        said.append(watched.store.pods["pod-s"].obstacle)
    assert said == ["Serried is listing the devices"] * 3 + ["ResourceClaim c does not exist"]


@pytest.mark.parametrize("denied", FOR_DEVICES)
def test_devices_that_we_are_not_shown_are_left_to_the_scheduler(denied: Kind) -> None:
    watched = Watched(Kind.PODS, *FOR_DEVICES, optional=OPTIONAL_KINDS)
    watched.show(Kind.PODS, CLAIMS_ONE)
    for kind in FOR_DEVICES:
        (watched.deny if kind is denied else watched.list_all)(kind)
    found = watched.store.pods["pod-s"]
    assert found.only_scheduler_counts
    assert not found.obstacle


def test_a_needed_kind_that_is_not_granted_is_waited_for() -> None:
    watched = Watched(Kind.PODS)
    watched.deny(Kind.PODS)
    assert not watched.feed.synced.is_set()


def test_it_is_blind_without_a_kind_that_it_needs_and_is_shown() -> None:
    watched = Watched(Kind.PODS, Kind.JOBS, Kind.POD_GROUPS, Kind("jobsets"), optional={Kind("jobsets")})
    begun = {kind: reflector.blind_since_monotonic for kind, reflector in watched.feed.reflectors.items()}
    assert watched.feed.blind_since == min(begun[kind] for kind in begun if kind is not Kind("jobsets"))
    watched.feed.reflectors[Kind.PODS].blind_since_monotonic = math.inf
    watched.feed.reflectors[Kind.JOBS].blind_since_monotonic = math.inf
    assert watched.feed.blind_since == begun[Kind.POD_GROUPS]
    watched.deny(Kind.POD_GROUPS)
    assert watched.feed.blind_since == math.inf
    watched.list_all(Kind.POD_GROUPS)
    assert watched.feed.blind_since == begun[Kind.POD_GROUPS]


def test_groups_are_followed_at_the_level_in_use(watched: Watched) -> None:
    assert watched.feed.reflectors[Kind.POD_GROUPS].resource == Resource(FALLBACK.group, "v1beta1", "podgroups")


def test_objects_that_are_in_the_cache_are_counted_until_they_go(watched: Watched) -> None:
    for name in ("a", "b"):
        watched.show(Kind.JOBS, job(name))
    watched.end(Kind.JOBS, job("a"))
    watched.end(Kind.JOBS, job("never-seen"))
    watched.feed.set_gauges(0.0)
    assert 'serried_cache_objects{resource="jobs"} 1.0' in watched.metrics.render().decode().splitlines()
