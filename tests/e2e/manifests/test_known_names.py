"""Annotations and labels below our prefix that nothing reads are refused, on every kind that Serried reads."""

from collections.abc import Iterator

import pytest

from bench.cluster import ClusterError
from tests.e2e.manifests.annotations import POLICIES, POLICY, TOPOLOGY, suspended
from tests.e2e.manifests.objects import gang
from tests.e2e.manifests.server import CONTROLLER, GROUP, Json, Server, eventually, pod
from tests.support.clusters import at_one_level

pytestmark = [pytest.mark.e2e, at_one_level("fallback", fixture="bare")]

TYPO, LABEL = f"{GROUP}/required-topolgy", f"{GROUP}/pod-group"
MEANT = f"nothing reads it; did you mean the annotation {TOPOLOGY} of the"
DRY = ("--dry-run=server",)
OWNER: Json = {"apiVersion": "batch/v1", "kind": "CronJob", "name": "nightly", "uid": "u", "controller": True}


def job(**annotations: str) -> Json:
    return suspended("typed", {name.replace("_", "-"): value for name, value in annotations.items()})


def in_template(field: str, name: str) -> Json:
    made = suspended("typed", {})
    made["spec"]["template"]["metadata"] = {field: {name: "x"}}
    return made


def cron_job(annotations: Json, own: Json | None = None) -> Json:
    template = {"metadata": {"annotations": annotations}, "spec": suspended("x", {})["spec"]}
    metadata = {"name": "nightly", "annotations": own or {}}
    spec = {"schedule": "0 0 1 1 *", "jobTemplate": template}
    return {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": metadata, "spec": spec}


def pod_group(**metadata: Json) -> Json:
    made = gang("typed")
    return {**made, "apiVersion": f"{GROUP}/v1beta1", "metadata": {"name": "typed", **metadata}}


def job_set(annotations: Json, of_jobs: Json | None = None) -> Json:
    jobs = [{"name": "w", "template": {"metadata": {"annotations": of_jobs or {}}, "spec": suspended("x", {})["spec"]}}]
    metadata = {"name": "typed", "annotations": annotations}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": metadata,
        "spec": {"replicatedJobs": jobs},
    }


@pytest.fixture(scope="module")
def kinds(server: Server) -> Iterator[Server]:
    """With a kind of the name of JobSets, of which only the metadata matter here."""
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": "v1alpha2", "served": True, "storage": True, "schema": schema}
    names = {"kind": "JobSet", "plural": "jobsets"}
    spec = {"group": "jobset.x-k8s.io", "scope": "Namespaced", "names": names, "versions": [version]}
    metadata = {"name": "jobsets.jobset.x-k8s.io", "annotations": {"api-approved.kubernetes.io": "unapproved, a test"}}
    kind = "CustomResourceDefinition"
    server.write("create", {"apiVersion": "apiextensions.k8s.io/v1", "kind": kind, "metadata": metadata, "spec": spec})
    server.run("wait", "crd/jobsets.jobset.x-k8s.io", "--for=condition=Established", "--timeout=30s")
    eventually(lambda: server.refuses("nothing reads it", "create", job_set({TYPO: "rack"}), options=DRY))
    yield server
    server.run("delete", "crd/jobsets.jobset.x-k8s.io")


REFUSED = [
    pytest.param(job(**{TYPO: "rack"}), f"metadata.annotations[{TYPO}]: {MEANT} Job?", id="of a Job"),
    pytest.param(
        in_template("annotations", TOPOLOGY),
        f"the pod template: metadata.annotations[{TOPOLOGY}]: {MEANT} Job?",
        id="of a Job, in its pod template",
    ),
    pytest.param(
        in_template("labels", f"{GROUP}/pod-grop"),
        f"nothing reads it; did you mean the label {LABEL} of its pods?",
        id="of the pods of a Job",
    ),
    pytest.param(
        job(**{f"{GROUP}/colour": "red"}),
        "nothing reads it; known are gang-policy, required-topology, preferred-topology, packing, exclusive, "
        "disruption-mode, of pods the label pod-group",
        id="that is like none",
    ),
    pytest.param(cron_job({TYPO: "rack"}), f"{MEANT} jobTemplate?", id="of the Jobs of a CronJob"),
    pytest.param(cron_job({}, {TOPOLOGY: "rack"}), f"{MEANT} jobTemplate?", id="of a CronJob itself"),
    pytest.param(pod_group(annotations={TYPO: "rack"}), f"{MEANT} PodGroup?", id="of a PodGroup"),
    pytest.param(pod_group(labels={TOPOLOGY: "rack"}), f"{MEANT} PodGroup?", id="a label of an annotation's name"),
    pytest.param(pod("typed", labels={f"{GROUP}/podgroup": "g"}), f"did you mean the label {LABEL}", id="of a pod"),
    pytest.param(job_set({TYPO: "rack"}), f"{MEANT} JobSet?", id="of a JobSet"),
    pytest.param(job_set({}, {TYPO: "rack"}), f"{MEANT} JobSet?", id="of the Jobs of a JobSet"),
    pytest.param(pod_group(annotations={TOPOLOGY: "my rack"}), 'Invalid value: "my rack"', id="a value of a PodGroup"),
    pytest.param(
        job_set({POLICY: "JobAsGang"}),
        'Unsupported value: "JobAsGang": supported values: "JobSetAsGang", "NoGang"',
        id="a value of a JobSet",
    ),
]
TAKEN = [
    pytest.param(job(**{TOPOLOGY: "rack", POLICY: "JobAsGang"}), id="annotations of a Job"),
    pytest.param(in_template("labels", LABEL), id="the label of pods"),
    pytest.param(cron_job({TOPOLOGY: "rack"}, {TOPOLOGY: "rack"}), id="a common annotation, as kustomize writes it"),
    pytest.param(
        pod_group(annotations={TOPOLOGY: "rack", f"{GROUP}/owner": "job/x"}, labels={f"{GROUP}/job-uid": "u"}),
        id="what the controller writes on a PodGroup",
    ),
    pytest.param(pod("typed", labels={LABEL: "g"}), id="a pod of a group"),
    pytest.param(job_set({POLICY: "JobSetAsGang"}, {POLICY: "NoGang"}), id="a JobSet and its Jobs"),
    pytest.param(
        pod("typed", labels={f"{GROUP}/podgroup": "g"}, ownerReferences=[OWNER]),
        id="a pod whose controller was there before",
    ),
    pytest.param(
        {**job(), "metadata": {"name": "typed", "annotations": {TYPO: "rack"}, "ownerReferences": [OWNER]}},
        id="a Job whose CronJob was there before",
    ),
    pytest.param(
        {**job_set({}), "metadata": {"name": "x", "annotations": {TOPOLOGY: "my rack"}, "ownerReferences": [OWNER]}},
        id="a value of a JobSet whose controller was there before",
    ),
    pytest.param(pod_group(labels={LABEL: "g"}), id="the label of pods on a PodGroup, as a common label"),
]


@pytest.mark.parametrize(("item", "said"), REFUSED)
def test_what_nothing_reads_is_refused_with_what_was_meant(kinds: Server, item: Json, said: str) -> None:
    assert said in kinds.refusal("create", item, options=DRY)


@pytest.mark.parametrize("item", TAKEN)
def test_what_is_read_or_was_there_is_taken(kinds: Server, item: Json) -> None:
    kinds.write("create", item, options=DRY)


def test_a_newer_controller_may_write_names_that_this_policy_does_not_know(server: Server) -> None:
    labels = {"app.kubernetes.io/managed-by": "serried", f"{GROUP}/name-of-a-later-release": "x"}
    server.write("create", pod_group(labels=labels), options=(*DRY, "--as", CONTROLLER))


def test_what_stood_there_before_the_policy_came_keeps_nobody_from_changing_the_object(server: Server) -> None:
    server.run("delete", *POLICIES)
    eventually(lambda: not server.refuses("nothing reads it", "create", job(**{TYPO: "rack"}), options=DRY))
    server.write("create", job(**{TYPO: "rack"}))
    try:
        server.run("apply", *POLICIES)
        other = suspended("other", {TYPO: "rack"})
        eventually(lambda: server.refuses("nothing reads it", "create", other, options=DRY))
        server.patch("job/typed", {"metadata": {"labels": {"a": "b"}, "annotations": {TYPO: "another rack"}}})
        with pytest.raises(ClusterError, match="nothing reads it"):
            server.patch("job/typed", {"metadata": {"annotations": {f"{GROUP}/colour": "red"}}})
    finally:
        server.run("apply", *POLICIES)
        server.run("delete", "job/typed")
