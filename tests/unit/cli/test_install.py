"""``serried install``: what it makes of a cluster's version, what it applies, and what it refuses before it begins."""

from dataclasses import replace
from typing import Any
from urllib.parse import unquote

import pytest
import yaml

from serried import __version__
from serried.api.names import INSTALLATION
from serried.api.resources import MARKERS
from serried.cli.install import Install, Installation, Layout, complete, list_left, read_shipped, render
from serried.cli.output import CommandError
from serried.cli.transport import open_client
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
    ],
)
def test_shape_and_scheduler_are_those_of_the_cluster_or_those_asked_for(
    cluster: str, shape: Layout, scheduler: str, made: tuple[Layout, str]
) -> None:
    plan = complete(replace(ASKED, shape=shape, scheduler_version=scheduler), {"gitVersion": cluster})
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
        complete(replace(ASKED, shape=shape), {"gitVersion": cluster})


@pytest.mark.parametrize("shape", [Layout.ISOLATED, Layout.GATE, Layout.BASE])
def test_every_container_has_its_image_and_the_scheduler_its_configuration(shape: Layout) -> None:
    objects = render(complete(replace(ASKED, shape=shape), {"gitVersion": "v1.37.1"}))
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
    plan = complete(replace(ASKED, shape=Layout.BASE), {"gitVersion": "v1.37.1"})
    assert {each["metadata"]["name"] for each in list_left(plan)} == {"serried-hold", "serried-gate", "serried-marker"}
    assert list_left(replace(plan, shape=Layout.ISOLATED)) == []


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
    proxy.answer("/api/v1/pods", LIST | {"items": []})
    allow(proxy)
    return proxy


def allow(proxy: PodProxy, *, allowed: bool = True) -> None:
    review = {"kind": "SelfSubjectAccessReview", "metadata": {}, "status": {"allowed": allowed}}
    proxy.answer("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)


def test_a_dry_run_prints_what_would_be_applied(cluster: PodProxy, run: Run) -> None:
    ended = run("install", "--dry-run", "--image", "mine:1", "--scheduler-version", "v1.36.4")
    assert ended.code == 0
    objects = list(yaml.safe_load_all(ended.out))
    assert {each["kind"] for each in objects} >= {"CustomResourceDefinition", "Namespace", "Deployment"}
    assert "image: mine:1\n" in ended.out
    assert "image: registry.k8s.io/kube-scheduler:v1.36.4\n" in ended.out
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
    assert "use helm upgrade, or helm uninstall before" in ended.out


def test_the_objects_of_an_installation_in_another_namespace_are_left_to_it(cluster: PodProxy, run: Run) -> None:
    role = {"metadata": {"name": "serried-extender", "labels": {INSTALLATION: "gangs"}}}
    cluster.answer("/apis/rbac.authorization.k8s.io/v1/clusterroles/serried-extender", role)
    ended = run("install")
    assert ended.code == 1
    said = " ".join(ended.out.split())
    assert "it is of the installation in namespace gangs, which would lose it" in said
    assert "serried uninstall --serried-namespace gangs" in said


def test_a_scheduler_that_is_newer_than_the_api_server_is_refused(cluster: PodProxy, run: Run) -> None:
    ended = run("install", "--scheduler-version", "1.38.0")
    assert ended.code == 1
    assert "1.38 is newer than the API server (1.37)" in " ".join(ended.out.split())


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
    assert said.count("WARNING default/job/train what 3 of its pods wait for the scheduler serried since") == times
    assert "marked" not in said.replace("markers", "")
    assert "plain" not in said
    asked = [each for each in cluster.asked if each.startswith("/api/v1/pods?")]
    assert sum("spec.schedulerName=serried,spec.nodeName=" in each for each in map(unquote, asked)) == times


def test_others_who_decide_about_pods_are_told_of(cluster: PodProxy, run: Run) -> None:
    names = ("volcano-scheduler", "kueue-controller-manager")
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["pods/status"]}
    vet = {"metadata": {"name": "vet"}, "webhooks": [{"name": "vet.example.com", "rules": [rule]}]}
    for kind, found in (("validating", []), ("mutating", [vet])):
        cluster.answer(f"/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations", LIST | {"items": found})
    items = [{"metadata": {"name": name, "namespace": "other"}} for name in names]
    cluster.answer("/apis/apps/v1/deployments", LIST | {"items": items})
    allow(cluster, allowed=False)
    said = " ".join(run("install").out.split())
    assert "WARNING other/volcano-scheduler what it starts gangs, too" in said
    assert "WARNING other/kueue-controller-manager" in said
    assert "WARNING mutatingwebhookconfiguration/vet: vet.example.com" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--scheduler-version", "latest"], "a version like 1.37.1 is needed"),
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
    assert f"serried:{__version__}" not in ended.err


async def test_who_waits_in_vain_is_told_what_keeps_the_pods(cluster: PodProxy) -> None:
    waiting = {"reason": "ImagePullBackOff", "message": "no such image"}
    status = {"initContainerStatuses": [{"name": "extender", "state": {"waiting": waiting}}]}
    pod = {"metadata": {"name": "serried-7d9f-x2x4z", "namespace": "serried-system"}, "status": status}
    cluster.answer("/api/v1/namespaces/serried-system/pods", LIST | {"items": [pod]})
    cluster.answer("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", LIST | {"items": []})
    ready = {"observedGeneration": 1, "updatedReplicas": 2, "readyReplicas": 2, "replicas": 2}
    for name, stands in (("serried", {"observedGeneration": 1}), ("serried-controller", ready)):
        deployment = {"metadata": {"name": name, "generation": 1}, "spec": {"replicas": 2}, "status": stands}
        cluster.answer(f"{HOME}/{name}", deployment)
    async with open_client(Credentials(cluster.url)) as client:
        work = Install(client, ASKED, "the API server", say=lambda _: None)
        with pytest.raises(CommandError) as told:
            await work.await_ready(0.0)
    assert str(told.value) == (
        "not ready after 0 s: deployment serried-system/serried is not ready (extender: ImagePullBackOff no such image)"
        ". Run the command again when this is mended"
    )
