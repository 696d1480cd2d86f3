"""The policy marks whatever the extender could take for a member, in any shape of pod, and nothing else."""

from collections.abc import Iterator
from typing import Any

import pytest

from serried.api.names import Malformed
from serried.api.pod import Pod, decode_pod
from serried.api.resources import MARKERS
from tests.e2e.manifests.server import KUSTOMIZE
from tests.support.builders import PodBuilder, pod
from tests.support.cluster_stage import SCHEDULER, ClusterStage, eventually, names

pytestmark = pytest.mark.e2e

ASKED, BOUND = sorted(MARKERS)
BARE = pod("specimen").scheduler(SCHEDULER)
CONTAINER = {"name": "main", "image": "none"}


def created(stage: ClusterStage, raw: dict[str, Any]) -> dict[str, Any]:
    """Return the pod that the API server would create (a dry run)."""
    raw["metadata"] = {**raw["metadata"], "namespace": stage.namespace}
    for container in raw["spec"]["containers"]:
        container.setdefault("image", "none")
    for owner in raw["metadata"].get("ownerReferences", []):
        owner["apiVersion"] = "batch/v1"
    made: dict[str, Any] = stage.cluster.api.post(f"/api/v1/namespaces/{stage.namespace}/pods?dryRun=All", raw)
    return made


def seen(stage: ClusterStage, builder: PodBuilder) -> Pod:
    """The pod as Serried would see it."""
    found = decode_pod(created(stage, builder.raw()))
    assert not isinstance(found, Malformed)
    return found


MEMBERS = [
    pytest.param(BARE.in_group("g"), id="the field"),
    pytest.param(BARE.labelled_group("g"), id="our label"),
    pytest.param(BARE.in_compatible_group("g"), id="the label of scheduler-plugins"),
    pytest.param(BARE.of_job("j", 0), id="an Indexed Job"),
    pytest.param(BARE.controlled_by("Job", "j"), id="any other Job"),
    pytest.param(BARE.of_job_set("s", "workers"), id="a JobSet"),
    pytest.param(BARE.of_replica("s", 0), id="a LeaderWorkerSet's leader"),
    pytest.param(BARE.of_replica("s", 0, 1), id="a LeaderWorkerSet's worker"),
    pytest.param(BARE.in_group("g").labelled_group("h").of_job("j", 0), id="several at once"),
]
OTHERS = [
    pytest.param(BARE, id="a pod of nothing"),
    pytest.param(BARE.controlled_by("ReplicaSet", "r"), id="a Deployment's"),
    pytest.param(BARE.owned_by("Job", "j"), id="owned but not controlled by a Job"),
    pytest.param(BARE.label("app", "ring"), id="one with other labels"),
]


@pytest.mark.parametrize("builder", MEMBERS)
def test_what_could_be_a_member_is_marked(stage: ClusterStage, builder: PodBuilder) -> None:
    found = seen(stage, builder)
    assert (found.may_be_member, found.marked) == (True, True)


@pytest.mark.parametrize("builder", OTHERS)
def test_what_cannot_is_not(stage: ClusterStage, builder: PodBuilder) -> None:
    found = seen(stage, builder)
    assert (found.may_be_member, found.marked) == (False, False)


def test_pods_of_other_schedulers_are_left_alone(stage: ClusterStage) -> None:
    assert not seen(stage, BARE.scheduler("default-scheduler").labelled_group("g")).marked


@pytest.mark.parametrize(
    "resources",
    [
        pytest.param({}, id="nothing"),
        pytest.param({"requests": {"cpu": "1"}}, id="requests"),
        pytest.param({"limits": {"cpu": "2"}, "requests": {"cpu": "1"}}, id="both"),
        pytest.param({"limits": {ASKED: "1"}, "requests": {ASKED: "1"}}, id="one marker by hand"),
        pytest.param({"limits": {"example.com/gpu": "8"}}, id="limits alone"),
    ],
)
def test_markers_ask_for_nothing_and_leave_the_rest_as_it_is(stage: ClusterStage, resources: dict[str, Any]) -> None:
    containers = [{**CONTAINER, "resources": resources}, {**CONTAINER, "name": "side"}]
    raw = BARE.labelled_group("g").with_field(containers, "spec", "containers").raw()
    first, second = created(stage, raw)["spec"]["containers"]
    none = dict.fromkeys(MARKERS, "0")
    limits = resources.get("limits", {})
    assert first["resources"]["limits"] == limits | none
    assert first["resources"]["requests"] == limits | resources.get("requests", {}) | none
    assert second["resources"] == {}


def test_markers_by_hand_are_kept_and_make_no_member(stage: ClusterStage) -> None:
    by_hand = dict.fromkeys(MARKERS, "0")
    stage.create_pods(["plain-0"], containers=[{**CONTAINER, "resources": {"limits": by_hand}}])
    stage.await_bound("plain", 1)


def test_a_quota_of_none_is_not_exceeded(stage: ClusterStage) -> None:
    hard = {f"requests.{marker}": "0" for marker in MARKERS}
    path = f"/api/v1/namespaces/{stage.namespace}/resourcequotas"
    stage.cluster.api.post(path, {"metadata": {"name": "none"}, "spec": {"hard": hard}})
    eventually("the quota", lambda: stage.cluster.api.get(path)["items"][0].get("status", {}).get("hard"))
    assert seen(stage, BARE.labelled_group("g")).marked


@pytest.fixture
def without_policy(stage: ClusterStage) -> Iterator[None]:
    """Pods are made as they were before the policy came."""
    marker = str(KUSTOMIZE / "marker")
    stage.cluster.kubectl("delete", "-k", marker)
    eventually("no marks", lambda: not seen(stage, BARE.labelled_group("g")).marked)
    yield
    stage.cluster.kubectl("apply", "-k", marker)
    eventually("marks", lambda: seen(stage, BARE.labelled_group("g")).marked)


def test_members_from_before_the_policy_are_bound_alone_and_told_of(stage: ClusterStage, without_policy: None) -> None:
    stage.create_group("ring", 3)
    stage.create_pods(names("ring", 2), "ring")
    stage.await_bound("ring", 2)
    eventually("the warning", lambda: any(reason == "Unmarked" for reason, _ in stage.events("ring-0")))
    assert stage.selfcheck()["isolation"]["isolated"] is True

    stage.create_pods(["wide-0"], "ring", cpu="1000")
    told = eventually("what waits", lambda: stage.selfcheck()["isolation"]["examples"])
    assert told == [f"{stage.namespace}/wide-0"]
