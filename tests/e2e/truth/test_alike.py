"""Pods that `extender.scheduling.alike` calls alike: whether kube-scheduler finds the same nodes for them.

Each random cluster is asked about a few random pods, and about copies of each that differ in one thing: in something
that no filter looks at, or in something that one does. No two of all these may be alike and get other nodes. Labels are
looked at where pods run that keep others off by labels.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from itertools import combinations
from random import Random

import pytest

from extender.scheduling.alike import is_alike, is_judged_alone
from tests.e2e.truth.stage import TruthStage
from tests.support.truth.ours import Ours, read_pod
from tests.support.truth.rules import Cluster, Raw
from tests.support.truth.worlds import ALL, HOSTNAME, RACK, ZONE, Draws, Feature

SHORT = range(1000, 1006)
LONG = range(1000, 1060)

PODS_OF_A_CLUSTER = 3

FEATURE = "RestartAllContainersOnContainerExits"
"""What a kubelet declares that restarts all containers of a pod."""

DRAWN = ALL - {Feature.SAME_HOST}


def put(*path: str, value: object) -> Callable[[Raw], None]:
    """Sets a field; each step of the path but the last one is made if it is not there."""

    def change(pod: Raw) -> None:
        for name in path[:-1]:
            pod = pod.setdefault(name, {})
        pod[path[-1]] = value

    return change


def put_in_container(name: str, value: object) -> Callable[[Raw], None]:
    """Sets a field of the first container."""

    def change(pod: Raw) -> None:
        pod["spec"]["containers"][0][name] = value

    return change


OWNER = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "0-1", "controller": True}
RULE = {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [1]}}
RESTARTED = {"name": "main", "image": "none", "restartPolicy": "Never", "restartPolicyRules": [RULE]}
LIMITS = {"requests": {"cpu": "1900m"}}
TOLERATE = [{"operator": "Exists"}]
NEAR = {"topologyKey": ZONE, "labelSelector": {"matchLabels": {"app": "a"}}}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
IN_A = {"nodeSelectorTerms": [{"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["a"]}]}]}
SPREAD = {"maxSkew": 1, "topologyKey": HOSTNAME, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}

UNSEEN: Mapping[str, Callable[[Raw], None]] = {
    "annotations": put("metadata", "annotations", value={"example.com/a": "b"}),
    "owner": put("metadata", "ownerReferences", value=[OWNER]),
    "another label": put("metadata", "labels", "example.com/other", value="x"),
    "image": put_in_container("image", "other"),
    "environment": put_in_container("env", [{"name": "A", "value": "b"}]),
    "command": put_in_container("command", ["true"]),
    "container's name": put_in_container("name", "other"),
    "service account": put("spec", "serviceAccountName", value="other"),
    "host name": put("spec", "hostname", value="other"),
    "grace": put("spec", "terminationGracePeriodSeconds", value=7),
    "restarts": put("spec", "restartPolicy", value="Never"),
    "deadline": put("spec", "activeDeadlineSeconds", value=3600),
    "security": put("spec", "securityContext", value={"runAsUser": 1000}),
    "empty directory": put("spec", "volumes", value=[{"name": "v", "emptyDir": {}}]),
}
"""What no filter looks at."""

SEEN: Mapping[str, Callable[[Raw], None]] = {
    "label app": put("metadata", "labels", "app", value="c"),
    "label tier": put("metadata", "labels", "tier", value="x"),
    "namespace": put("metadata", "namespace", value="truth-two"),
    "amounts": put_in_container("resources", LIMITS),
    "amounts of the whole pod": put("spec", "resources", value={"requests": {"cpu": "7", "memory": "5Gi"}}),
    "host port": put_in_container("ports", [{"containerPort": 80, "hostPort": 8080}]),
    "node selector": put("spec", "nodeSelector", value={RACK: "r1"}),
    "node affinity": put("spec", "affinity", value={"nodeAffinity": {REQUIRED: IN_A}}),
    "tolerations": put("spec", "tolerations", value=TOLERATE),
    "affinity": put("spec", "affinity", value={"podAffinity": {REQUIRED: [NEAR]}}),
    "anti-affinity": put("spec", "affinity", value={"podAntiAffinity": {REQUIRED: [NEAR]}}),
    "spread": put("spec", "topologySpreadConstraints", value=[SPREAD]),
    "claim": put("spec", "volumes", value=[{"name": "v", "persistentVolumeClaim": {"claimName": "none"}}]),
    "feature": put("spec", "containers", value=[RESTARTED]),
}
"""What a filter looks at, in some clusters at least."""


@pytest.mark.parametrize("seeds", [SHORT, pytest.param(LONG, marks=pytest.mark.full)], ids=["short", "long"])
def test_pods_that_are_alike_get_the_same_nodes(truth: TruthStage, seeds: range) -> None:
    told = [each for seed in seeds for each in compare(truth, seed)]
    assert not [each for each in told if each]
    assert told, "no two pods were alike: nothing was compared"


def compare(truth: TruthStage, seed: int) -> Iterator[str]:
    """Of each two alike pods in one cluster, how they differ; "" if they do not."""
    draws = Draws(Random(seed), DRAWN)  # noqa: S311 - not for secrets
    cluster = truth.put(declare(draws.cluster()))
    ours = Ours(cluster)
    drawn = [draws.pod(f"p{index}") for index in range(PODS_OF_A_CLUSTER)]
    asked = truth.ask([copied for pod in drawn for copied in list_copies(pod)])
    read = [ours.show(pod) for pod, _ in asked]
    for (pod, (raw, found)), (other, (more, others)) in combinations(zip(read, asked, strict=True), 2):
        if is_judged_alone(pod) and is_judged_alone(other) and is_alike(pod, other):
            yield "" if found == others else f"seed {seed}: {raw} on {sorted(found)}, {more} on {sorted(others)}"
    truth.clear(cluster)


def list_copies(pod: Raw) -> Iterator[Raw]:
    """The pod, and one copy for each change."""
    yield pod
    for change in (*UNSEEN.values(), *SEEN.values()):
        copied = copy.deepcopy(pod)
        change(copied)
        yield copied


def declare(cluster: Cluster) -> Cluster:
    """The kubelet of every other node declares the feature."""
    for node in cluster.nodes[::2]:
        node["status"]["declaredFeatures"] = [FEATURE]
    return cluster


@pytest.mark.parametrize("change", UNSEEN.values(), ids=UNSEEN.keys())
def test_what_no_filter_looks_at_makes_nobody_another_one(change: Callable[[Raw], None]) -> None:
    pod: Raw = {"metadata": {"name": "p", "namespace": "truth-one"}, "spec": {"containers": [{"name": "c"}]}}
    copied = copy.deepcopy(pod)
    change(copied)
    one, other = read_pod(pod, "1"), read_pod(copied, "2")
    assert is_judged_alone(other)
    assert is_alike(one, other)
