"""Changes of a Job's parallelism, which the policy of elastic-refuse refuses or lets through."""

from typing import NamedTuple

from bench.cluster.api import ApiError
from tests.e2e.manifests.server import KUSTOMIZE, Json, Server
from tests.support.builders import JobBuilder, job

JOBS = "/apis/batch/v1/namespaces/default/jobs"
RESIZED = f"{JOBS}/resized"
# No such kinds are served here: the garbage collector leaves alone what it cannot look up.
OWNERS = {"CronJob": {"apiVersion": "example.com/v1"}, "JobSet": {"apiVersion": "jobset.x-k8s.io/v1alpha2"}}
POLICY = str(KUSTOMIZE / "elastic-refuse" / "policy.yaml")
MESSAGE = "spec.parallelism: Forbidden: cannot change parallelism for a Job that is scheduled as a gang"


class Resize(NamedTuple):
    """A Job, and the parallelism that it is to have; None leaves the completions as they are."""

    sentence: str
    job: JobBuilder
    parallelism: int
    completions: int | None = None


def four() -> JobBuilder:
    """A gang of four, by its shape; suspended, so that nobody acts on it."""
    pod = {"restartPolicy": "Never", "containers": [{"name": "c", "image": "none"}]}
    return job("resized").with_field(pod, "spec", "template", "spec").scheduler("serried").suspended().size(4)


def running() -> JobBuilder:
    return four().with_field(False, "spec", "suspend")  # noqa: FBT003  # a JSON value


def labelled(key: str) -> JobBuilder:
    return four().with_field({"labels": {key: "g"}}, "spec", "template", "metadata")


def selecting_itself() -> JobBuilder:
    return labelled("app").with_field({"matchLabels": {"app": "g"}}, "spec", "selector").manual_selector()


def asking() -> JobBuilder:
    return four().gang_policy("JobAsGang").not_indexed()


GROWING = Resize("a gang that grows", four(), 5, 5)
REFUSED = [
    GROWING,
    Resize("a gang that shrinks", four(), 3, 3),
    Resize("a gang that is to run fewer pods at a time", four(), 2),
    Resize("a gang that is to run none", four(), 0),
    Resize("a gang that is to be one pod", four(), 1, 1),
    Resize("a Job that becomes a gang", four().size(2, 4), 4),
    Resize("a single pod that becomes a gang", four().size(1), 2, 2),
    Resize("a gang that runs", running(), 5, 5),
    Resize("a gang of a CronJob", four().controlled_by("CronJob", "nightly"), 5, 5),
    Resize("a gang that something owns and nothing controls", four().owned_by("JobSet", "s"), 5, 5),
    Resize("a gang that asks", asking(), 5),
    Resize("a gang that asks and has no completions", asking().with_field(None, "spec", "completions"), 5),
    Resize("a part of something larger that asks", asking().controlled_by("JobSet", "s"), 5),
]
ALLOWED = [
    Resize("a gang that stays as it is", four(), 4),
    Resize("a Job of another scheduler", four().scheduler("default-scheduler"), 5, 5),
    Resize("a Job that is not Indexed", four().not_indexed(), 5),
    Resize("a Job with more completions than it runs pods", four().size(2, 8), 4),
    Resize("a single pod that stops", four().size(1), 0),
    Resize("a Job that wants no gang", four().gang_policy("NoGang"), 5, 5),
    Resize("a part of something larger", four().controlled_by("JobSet", "s"), 5, 5),
    Resize("a Job whose pods name a PodGroup", labelled("scheduling.serried.dev/pod-group"), 5, 5),
    Resize("a Job whose pods name a PodGroup of scheduler-plugins", labelled("scheduling.x-k8s.io/pod-group"), 5, 5),
    Resize("a Job with a selector of its own", selecting_itself(), 5, 5),
    Resize("a Job of one completion that asks", asking().size(4, 1), 5),
]
# Fields that only an API server with the native API keeps.
REFUSED_NATIVELY = [
    Resize("a gang by its field", four().not_indexed().scheduling(schedulingPolicy={"gang": {}}), 5),
    Resize(
        "a gang by its field, and none by its annotation",
        asking().gang_policy("NoGang").scheduling(schedulingPolicy={"gang": {}}),
        5,
    ),
]
ALLOWED_NATIVELY = [
    Resize("no gang by its field", four().scheduling(schedulingPolicy={"basic": {}}), 5, 5),
    Resize("a Job whose pods name a PodGroup by the field", four().template_group("g"), 5, 5),
]


def create(server: Server, builder: JobBuilder) -> Json:
    """The Job as stored; without version, for kube-controller-manager changes its status meanwhile."""
    raw = builder.raw()
    for owner in raw["metadata"].get("ownerReferences", []):
        owner.update(OWNERS[owner["kind"]])
    stored = dict(server.cluster.api.post(JOBS, raw))
    del stored["metadata"]["resourceVersion"]
    return stored


def remove(server: Server) -> None:
    server.run("delete", "job", "resized", "--cascade=background")


def resized(stored: Json, resize: Resize) -> Json:
    completions = {} if resize.completions is None else {"completions": resize.completions}
    return {**stored, "spec": {**stored["spec"], "parallelism": resize.parallelism, **completions}}


def refusal(server: Server, wanted: Json) -> str:
    """Return the message with which a change is refused, "" if it is allowed; nothing is changed."""
    try:
        server.cluster.api.request("PUT", f"{RESIZED}?dryRun=All", wanted)
    except ApiError as error:
        return str(error)
    return ""
