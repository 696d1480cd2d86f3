"""``serried install``: what it makes of a cluster's version, what it applies, and what it refuses before it begins."""

from dataclasses import replace
from typing import Any
from urllib.parse import unquote

import pytest
import yaml

from cli.install import Install, Installation, Layout, list_obsolete, plan_installation, read_shipped, render
from cli.output import CommandError
from cli.transport import open_client
from serried import IMAGE, __version__
from serried.api.names import INSTALLATION
from serried.api.resources import MARKERS
from serried.kube.auth import Credentials
from tests.support.builders import pod
from tests.support.commands import Run
from tests.support.pod_proxy import PodProxy

ASKED = Installation(Layout.AUTO, "registry/serried:1", "registry.k8s.io/kube-scheduler", "")
LIST = {"kind": "List", "metadata": {"resourceVersion": "1"}}
HOME = "/apis/apps/v1/namespaces/serried-system/deployments"


@pytest.mark.parametrize(
    ("cluster", "shape", "scheduler", "made"),
    [
        pytest.param("v1.37.1", Layout.AUTO, "", (Layout.ISOLATED, "1.37.1"), id="the newest shape"),
        pytest.param("v1.35.4+k3s1", Layout.AUTO, "", (Layout.BASE, "1.35.4"), id="before 1.36 the base"),
        pytest.param("v1.36.4-gke.100", Layout.GATE, "1.35.4", (Layout.GATE, "1.35.4"), id="as asked"),
        pytest.param("v1.38.0-beta.0", Layout.AUTO, "", (Layout.ISOLATED, "1.38.0-beta.0"), id="a pre-release"),
    ],
)
def test_shape_and_scheduler_are_those_of_the_cluster_or_those_asked_for(
    cluster: str, shape: Layout, scheduler: str, made: tuple[Layout, str]
) -> None:
    plan = plan_installation(replace(ASKED, shape=shape, scheduler_version=scheduler), {"gitVersion": cluster})
    assert (plan.shape, plan.scheduler_version) == made
    assert plan.scheduler == f"registry.k8s.io/kube-scheduler:v{made[1]}"


@pytest.mark.parametrize(
    ("cluster", "shape", "said"),
    [
        pytest.param("v1.34.9", Layout.AUTO, "the cluster has Kubernetes 1.34.9; 1.35 or newer is needed", id="old"),
        pytest.param("v1.35.4", Layout.ISOLATED, "needs Kubernetes 1.36.*; use --shape base", id="a shape of 1.36"),
        pytest.param("", Layout.AUTO, "the API server names no version", id="no version"),
    ],
)
def test_a_cluster_that_is_too_old_is_told_of(cluster: str, shape: Layout, said: str) -> None:
    with pytest.raises(CommandError, match=said):
        plan_installation(replace(ASKED, shape=shape), {"gitVersion": cluster})


@pytest.mark.parametrize("shape", [Layout.ISOLATED, Layout.GATE, Layout.BASE])
def test_every_container_has_its_image_and_the_scheduler_its_configuration(shape: Layout) -> None:
    objects = render(plan_installation(replace(ASKED, shape=shape), {"gitVersion": "v1.37.1"}))
    pods = [each["spec"]["template"]["spec"] for each in objects if each["kind"] == "Deployment"]
    images = {each["image"] for pod in pods for each in (*pod.get("initContainers", ()), *pod["containers"])}
    assert images == {"registry/serried:1", "registry.k8s.io/kube-scheduler:v1.37.1"}
    (config,) = [each for each in objects if each["metadata"]["name"].startswith("serried-scheduler-config")]
    mounted = {
        volume["configMap"]["name"] for pod in pods for volume in pod.get("volumes", ()) if "configMap" in volume
    }
    assert mounted == {config["metadata"]["name"]}
    assert mounted != {"serried-scheduler-config"}


def test_another_shape_takes_out_what_it_has_not() -> None:
    plan = plan_installation(replace(ASKED, shape=Layout.BASE), {"gitVersion": "v1.37.1"})
    assert {each["metadata"]["name"] for each in list_obsolete(plan)} == {
        "serried-hold",
        "serried-gate",
        "serried-marker",
    }
    assert list_obsolete(replace(plan, shape=Layout.ISOLATED)) == []


def test_what_is_installed_has_the_label_by_which_it_is_uninstalled() -> None:
    assert {each["metadata"]["labels"].get(INSTALLATION) for _, each in read_shipped()} == {"serried-system"}


# ---------------------------------------------------------------- before anything is done


@pytest.fixture
def cluster(proxy: PodProxy) -> PodProxy:
    """A cluster without Serried, of somebody who may do everything."""
    proxy.answer("/version", {"gitVersion": "v1.37.1"})
    served: dict[str, dict[str, dict[str, Any]]] = {}
    for _, each in read_shipped():
        plural = {"y": f"{each['kind'].lower()[:-1]}ies"}.get(each["kind"][-1], f"{each['kind'].lower()}s")
        of_cluster = "namespace" not in each["metadata"]
        entry = {"kind": each["kind"], "name": plural, "namespaced": not of_cluster}
        served.setdefault(each["apiVersion"], {})[each["kind"]] = entry
    for version, kinds in served.items():
        path = f"/apis/{version}" if "/" in version else f"/api/{version}"
        proxy.answer(path, {"resources": list(kinds.values())})
    proxy.answer("/apis/apps/v1/deployments", LIST | {"items": []})
    proxy.answer("/api/v1/namespaces/serried-system/pods", LIST | {"items": []})
    proxy.answer("/api/v1/pods", LIST | {"items": []})
    allow(proxy)
    return proxy


def allow(proxy: PodProxy, *, allowed: bool = True) -> None:
    review = {"kind": "SelfSubjectAccessReview", "metadata": {}, "status": {"allowed": allowed}}
    proxy.answer("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)


def test_a_dry_run_for_a_version_needs_no_cluster(proxy: PodProxy, run: Run) -> None:
    proxy.answer("/version", {"kind": "Status", "code": 503, "message": "down"}, status=503)
    ended = run("install", "--dry-run", "--scheduler-version", "v1.36.4")
    assert ended.code == 0
    assert "rendered for Kubernetes 1.36.4, shape isolated: no cluster has answered" in ended.err
    assert "registry.k8s.io/kube-scheduler:v1.36.4" in ended.out


def test_a_dry_run_for_a_version_is_of_the_cluster_that_answers(cluster: PodProxy, run: Run) -> None:
    cluster.answer("/version", {"gitVersion": "v1.36.4"})
    ended = run("install", "--dry-run", "--shape", "isolated", "--scheduler-version", "v1.35.4")
    assert ended.code == 0
    assert "registry.k8s.io/kube-scheduler:v1.35.4" in ended.out


def test_a_dry_run_prints_what_would_be_applied(cluster: PodProxy, run: Run) -> None:
    ended = run("install", "--dry-run", "--image", "mine:1")
    assert ended.code == 0
    objects = list(yaml.safe_load_all(ended.out))
    assert {each["kind"] for each in objects} >= {"CustomResourceDefinition", "Namespace", "Deployment"}
    assert "image: mine:1\n" in ended.out
    assert "image: registry.k8s.io/kube-scheduler:v1.37.1\n" in ended.out
    assert cluster.asked == ["/version"]


def test_without_rights_nothing_is_done(cluster: PodProxy, run: Run) -> None:
    allow(cluster, allowed=False)
    ended = run("install")
    assert ended.code == 1
    assert "you may not write clusterrolebindings.rbac.authorization.k8s.io" in " ".join(ended.out.split())
    assert "nothing was installed: see the errors above" in ended.err


def test_what_helm_has_installed_is_left_to_helm(cluster: PodProxy, run: Run) -> None:
    labels = {"app.kubernetes.io/managed-by": "Helm"}
    cluster.answer(f"{HOME}/serried", {"metadata": {"name": "serried", "labels": labels}})
    ended = run("install")
    assert ended.code == 1
    assert "use helm upgrade, or run helm uninstall first" in ended.out


def test_the_objects_of_an_installation_in_another_namespace_are_left_to_it(cluster: PodProxy, run: Run) -> None:
    role = {"metadata": {"name": "serried-extender", "labels": {INSTALLATION: "gangs"}}}
    cluster.answer("/apis/rbac.authorization.k8s.io/v1/clusterroles/serried-extender", role)
    ended = run("install")
    assert ended.code == 1
    said = " ".join(ended.out.split())
    assert "it belongs to the installation in namespace gangs, which would lose it" in said
    assert "serried uninstall --serried-namespace gangs" in said


def test_a_scheduler_that_is_newer_than_the_api_server_is_refused(cluster: PodProxy, run: Run) -> None:
    ended = run("install", "--scheduler-version", "1.38.0-beta.0")
    assert ended.code == 1
    assert "1.38 is newer than the API server (1.37)" in " ".join(ended.out.split())


def test_a_cluster_that_is_newer_than_all_tests_is_told_of(cluster: PodProxy, run: Run) -> None:
    cluster.answer("/version", {"gitVersion": "v1.40.2"})
    said = " ".join(run("install").out.split())
    assert f"WARNING Kubernetes what 1.40 is not tested with Serried {__version__}; the newest tested is 1.37" in said


@pytest.mark.parametrize(
    ("shape", "times"),
    [
        pytest.param("isolated", 1, id="where the scheduler asks about marked pods only"),
        pytest.param("base", 0, id="but not where it asks about every pod"),
    ],
)
def test_pods_that_wait_since_before_are_told_of(cluster: PodProxy, run: Run, shape: str, times: int) -> None:
    job_pods = [pod(f"train-{n}").scheduler("serried").of_job("train", n) for n in range(3)]
    marked = pod("marked-0").scheduler("serried").of_job("marked", 0)
    for marker in MARKERS:
        marked = marked.request(marker, "0")
    plain = pod("plain").scheduler("serried")
    cluster.answer("/api/v1/pods", LIST | {"items": [each.raw() for each in (*job_pods, marked, plain)]})
    allow(cluster, allowed=False)
    said = " ".join(run("install", "--shape", shape).out.split())
    assert said.count("WARNING default/job/train what 3 of its pods have waited for the scheduler serried") == times
    assert "marked" not in said.replace("markers", "")
    assert "plain" not in said
    asked = [each for each in cluster.asked if each.startswith("/api/v1/pods?")]
    assert sum("spec.schedulerName=serried,spec.nodeName=" in each for each in map(unquote, asked)) == times


def test_others_who_decide_about_pods_are_told_of(cluster: PodProxy, run: Run) -> None:
    names = ("volcano-scheduler", "yunikorn-scheduler")
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["pods/status"]}
    vet = {"metadata": {"name": "vet"}, "webhooks": [{"name": "vet.example.com", "rules": [rule]}]}
    for kind, found in (("validating", []), ("mutating", [vet])):
        cluster.answer(f"/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations", LIST | {"items": found})
    items = [{"metadata": {"name": name, "namespace": "other"}} for name in names]
    cluster.answer("/apis/apps/v1/deployments", LIST | {"items": items})
    allow(cluster, allowed=False)
    said = " ".join(run("install").out.split())
    assert "WARNING other/volcano-scheduler, other/yunikorn-scheduler what it starts gangs, too" in said
    assert "WARNING mutatingwebhookconfiguration/vet: vet.example.com" in said


def test_the_gate_is_not_missed_before_it_is_installed(cluster: PodProxy, run: Run) -> None:
    """Beside an autoscaler the gate is needed, and it comes with the installation."""
    path = "/api/v1/namespaces/kube-system/configmaps/cluster-autoscaler-status"
    cluster.answer(path, {"metadata": {"namespace": "kube-system", "name": "cluster-autoscaler-status"}})
    cluster.answer("/apis/admissionregistration.k8s.io", {"versions": []})
    allow(cluster, allowed=False)
    ended = run("install")
    assert path in cluster.asked
    assert "you may not write" in " ".join(ended.out.split())
    assert "gangs that cannot start" not in " ".join(ended.out.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--scheduler-version", "latest"], "a version like 1.37.1 is needed"),
        (["--scheduler-version", "1.36.4-gke.100"], "a version like 1.37.1 is needed"),
        (["--serried-namespace", "mine"], "install knows serried-system only; use Helm"),
    ],
)
def test_bad_options_are_refused(cluster: PodProxy, run: Run, words: list[str], said: str) -> None:
    ended = run("install", *words)
    assert ended.code == 2
    assert said in ended.err


def test_a_refusal_is_told_with_the_object(cluster: PodProxy, run: Run) -> None:
    ended = run("install")
    assert ended.code == 1
    assert "customresourcedefinitions.apiextensions.k8s.io workloads.scheduling.serried.dev was refused" in ended.err
    assert f"{IMAGE}:{__version__}" not in ended.err


def stand(cluster: PodProxy, image: str, reason: str, message: str = "no such thing") -> None:
    """Let the pair's pod wait, whose extender has this image; the controller is ready."""
    waiting = {"reason": reason, "message": message}
    pod = {
        "metadata": {"name": "serried-7d9f-x2x4z", "namespace": "serried-system", "uid": "1"},
        "spec": {"initContainers": [{"name": "extender", "image": image}], "containers": []},
        "status": {"initContainerStatuses": [{"name": "extender", "state": {"waiting": waiting}}]},
    }
    cluster.answer("/api/v1/namespaces/serried-system/pods", LIST | {"items": [pod]})
    cluster.answer("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", LIST | {"items": []})
    ready = {"observedGeneration": 1, "updatedReplicas": 2, "readyReplicas": 2, "replicas": 2}
    for name, stands in (("serried", {"observedGeneration": 1}), ("serried-controller", ready)):
        deployment = {"metadata": {"name": name, "generation": 1}, "spec": {"replicas": 2}, "status": stands}
        cluster.answer(f"{HOME}/{name}", deployment)


async def wait(cluster: PodProxy, *, seconds: float, again: bool = False) -> str:
    """Return the message with which the command fails. With ``again`` the pods were there before the command."""
    async with open_client(Credentials(cluster.url)) as client:
        work = Install(client, replace(ASKED, shape=Layout.ISOLATED), "the API server", say=lambda _: None)
        if again:
            await work.apply([])
        with pytest.raises(CommandError) as told:
            await work.await_ready(seconds)
    return str(told.value)


async def test_who_waits_in_vain_is_told_what_keeps_the_pods(cluster: PodProxy) -> None:
    stand(cluster, "registry/serried:1", "CrashLoopBackOff")
    assert await wait(cluster, seconds=0) == (
        "not ready after 0 s: deployment serried-system/serried is not ready "
        "(extender: CrashLoopBackOff no such thing). Fix this and run the command again"
    )


@pytest.mark.parametrize("reason", ["ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"])
async def test_an_image_that_cannot_be_pulled_is_not_waited_for(cluster: PodProxy, reason: str) -> None:
    stand(cluster, "registry/serried:1", reason, "not found")
    assert await wait(cluster, seconds=3600) == (
        f"the nodes cannot pull registry/serried:1 (extender: {reason} not found). "
        "Push it there, or name another one with --image, and run the command again"
    )


async def test_a_registry_that_does_not_answer_once_is_asked_again(cluster: PodProxy) -> None:
    stand(cluster, "registry/serried:1", "ErrImagePull", "i/o timeout")
    assert (await wait(cluster, seconds=0)).startswith("not ready after")


@pytest.mark.parametrize(
    ("image", "reason", "again", "said"),
    [
        pytest.param("registry/serried:1", "ImagePullBackOff", True, "not ready after", id="an earlier try has failed"),
        pytest.param(
            "registry/serried:1", "ErrImagePull", True, "the nodes cannot pull", id="this try has failed, too"
        ),
        pytest.param("registry/serried:0", "ErrImagePull", False, "not ready after", id="it is the image before"),
    ],
)
async def test_pods_of_an_earlier_installation_end_no_later_one(
    cluster: PodProxy, image: str, reason: str, said: str, *, again: bool
) -> None:
    stand(cluster, image, reason, "not found")
    assert (await wait(cluster, seconds=0, again=again)).startswith(said)
