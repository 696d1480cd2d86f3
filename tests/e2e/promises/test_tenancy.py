"""A user of one namespace has no part in the gangs of another, and keeps no more than a share from them."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.cluster import Cluster, ClusterError
from serried.api.names import COMPATIBLE_LABEL, DOMAIN, GANG, POD_GROUP_LABEL
from tests.support.cluster_stage import RACK, ClusterStage, Raw, eventually, names, pod_spec, staged
from tests.support.clusters import at_one_level

pytestmark = pytest.mark.e2e

USER = "intruder"
MOST = 2**31 - 1
WHOLE_NODE = "30"
NODES = 12
SHARE = 9
"""80 % of the nodes, rounded down."""


class Intruder:
    """A user with the role ``edit`` in one namespace, who writes objects there that are about another one's."""

    def __init__(self, home: ClusterStage, scratch: Path) -> None:
        self.home = home
        self.version = home.cluster.spec.api_version
        self._file = scratch / "object.json"
        here = ("-n", home.namespace)
        self._as_user = (*here, "--as", USER)
        home.cluster.kubectl("create", "rolebinding", USER, "--clusterrole=edit", f"--user={USER}", *here)
        eventually("the right", lambda: self._may("pods") and self._may(f"podgroups.{self.version.partition('/')[0]}"))

    def _may(self, resource: str) -> bool:
        try:
            return bool(self.home.cluster.kubectl("auth", "can-i", "create", resource, *self._as_user))
        except ClusterError:
            return False  # it says no by its exit code

    def write(self, version: str, kind: str, name: str, spec: Raw, metadata: Raw) -> None:
        """Create an object."""
        body = {"apiVersion": version, "kind": kind, "metadata": {"name": name, **metadata}, "spec": spec}
        self._file.write_text(json.dumps(body))
        self.home.cluster.kubectl("create", "-f", str(self._file), *self._as_user)

    def write_pod(self, name: str, metadata: Raw, **fields: object) -> None:
        """Create a pod of Serried's scheduler; ``fields`` are more of its spec."""
        self.write("v1", "Pod", name, pod_spec("1") | fields, metadata)

    def write_gang(self, name: str, min_count: int, **metadata: object) -> None:
        """Create a PodGroup."""
        self.write(self.version, "PodGroup", name, {"schedulingPolicy": {"gang": {"minCount": min_count}}}, metadata)

    def name_gang(self, gang: str, of: str) -> None:
        """Create pods that say in each way that they are of this gang of that namespace; one of them is bound."""
        labels = {POD_GROUP_LABEL: gang, COMPATIBLE_LABEL: gang}
        told = {GANG: f"{self.version} {of}/{gang}", DOMAIN: "rack-3"}
        self.write_pod("by-label", {"labels": labels})
        self.write_pod("by-annotation", {"labels": labels, "annotations": told})
        self.write_pod("bound", {"labels": labels, "annotations": told}, nodeName=f"node-{NODES - 1:05d}")
        if self.home.native:
            self.write_pod("by-field", {}, schedulingGroup={"podGroupName": gang})


@pytest.fixture
def intruder(cluster: Cluster, tmp_path: Path) -> Iterator[Intruder]:
    with staged(ClusterStage, cluster) as home:
        yield Intruder(home, tmp_path)


def list_members(stage: ClusterStage, group: str) -> set[str]:
    """Return the pods that the extender takes for members of a gang."""
    return {member["name"] for member in stage.debug_page(group).get("detail", ())}


@pytest.mark.both_levels
def test_pods_that_name_a_gang_of_another_namespace_are_none_of_it_and_do_not_keep_it_waiting(
    stage: ClusterStage, intruder: Intruder
) -> None:
    stage.create_group("ring", 2, RACK)
    stage.create_pods(["ring-0"], "ring")
    intruder.name_gang("ring", stage.namespace)
    theirs = {pod["metadata"]["name"] for pod in intruder.home.pods()}
    eventually("a gang of their own", lambda: list_members(intruder.home, "ring") == theirs)
    intruder.home.await_reason("ring", "PodGroupMissing")
    stage.await_reason("ring", "QuorumMissing", "1 of 2 members exist")
    assert list_members(stage, "ring") == {"ring-0"}

    intruder.write_gang("ring", MOST, annotations={"scheduling.serried.dev/required-topology": RACK})
    intruder.home.await_reason("ring", "QuorumMissing", f"{len(theirs)} of {MOST} members exist")
    stage.create_pods(["ring-1"], "ring")
    stage.await_bound("ring", 2)
    assert len(stage.racks("ring")) == 1
    assert intruder.home.bound().keys() == {"bound"}
    assert not intruder.home.reservations()
    assert not intruder.home.held_in_ledger()


def test_pods_with_the_uid_of_a_job_of_another_namespace_are_none_of_its_gang(
    stage: ClusterStage, intruder: Intruder
) -> None:
    job = stage.submit_job("train")
    stage.await_bound("train", 2)
    group = stage.group_of_job("train")
    owned = [{"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": job.uid, "controller": True}]
    labels = {"batch.kubernetes.io/job-name": "train", "batch.kubernetes.io/controller-uid": job.uid}
    # Garbage collection would delete whatever has an owner in another namespace.
    with stage.stopped("kube-controller-manager"):
        intruder.write_gang(group, MOST, ownerReferences=owned)
        intruder.write_pod("by-owner", {"labels": labels, "ownerReferences": owned})
        eventually("a gang of its own", lambda: list_members(intruder.home, "job:train") == {"by-owner"})
        assert list_members(stage, group) == stage.bound("train").keys()
        assert stage.debug_page(group)["minCount"] == 2


def test_a_pod_that_is_none_of_a_jobs_and_names_its_gang_is_held_and_told_why(stage: ClusterStage) -> None:
    stage.create_job("train", 2)
    stage.await_bound("train", 2)
    group = stage.group_of_job("train")
    stage.create_pods(["stranger"], group)
    told = "the pod names the PodGroup of Job train, but is not a pod of this Job"
    eventually("the reason", lambda: any(told in said for said in stage.messages("stranger", "NotItsPodGroup")))
    assert "stranger" not in list_members(stage, group)
    assert not stage.bound("stranger")


@at_one_level("fallback")
def test_deleted_members_keep_no_more_than_the_share_of_their_namespace_while_another_waits(
    stage: ClusterStage,
) -> None:
    # A gang with a member on each node, and a small one, which stays.
    stage.create_group("ring", NODES + 1)
    stage.create_pods(names("ring", NODES), "ring", cpu=WHOLE_NODE)
    stage.create_pods(["stays"], "ring")
    stage.await_bound("", NODES + 1)
    with staged(ClusterStage, stage.cluster) as other:
        waiting = names("next", NODES - SHARE + 1)
        for gang in waiting:
            other.create_group(gang, 1)
            other.create_pods([gang], gang, cpu=WHOLE_NODE)
            other.await_reason(gang, "NoCapacity")

        stage.delete_pods(*names("ring", NODES))
        other.await_bound("next", NODES - SHARE)
        eventually("the places of so many", lambda: len({kept["node"] for kept in stage.vacancies()}) == SHARE)
        (last,) = set(waiting) - other.bound().keys()
        other.await_reason(last, "NoCapacity")
