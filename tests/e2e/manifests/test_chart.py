"""The chart is the kustomization: what Helm renders is what kubectl makes of it, object by object."""

from pathlib import Path

import pytest

from bench.chart.__main__ import CHART
from bench.chart.kustomization import build
from bench.chart.values import SHAPES
from bench.cluster.release import HELM_VERSIONS
from serried import __version__
from serried.api.level import NEWEST_MINOR
from serried.api.names import INSTALLATION
from tests.e2e.manifests.charts import Helm, combine, find_helm, kustomize, read_objects
from tests.e2e.manifests.server import KUSTOMIZE, NAMESPACE
from tests.support.written import read_block

pytestmark = pytest.mark.e2e


@pytest.fixture(params=[pytest.param(version, marks=pytest.mark.tools) for version in HELM_VERSIONS])
def helm(request: pytest.FixtureRequest) -> Helm:
    return find_helm(request.param)


KEPT = {("CustomResourceDefinition", "podgroups.scheduling.x-k8s.io")}
"""What Helm leaves when it uninstalls the chart."""

OVERLAYS = ("base", "overlays/gate", "overlays/isolated", "overlays/control-plane", "overlays/elastic-refuse")


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_what_the_chart_is_made_of_is_what_kubectl_makes_of_a_kustomization(overlay: str) -> None:
    made = read_objects(kustomize(KUSTOMIZE / overlay))
    for deployment in (each for key, each in made.items() if key[0] == "Deployment"):
        pod = deployment["spec"]["template"]["spec"]
        for container in (*pod.get("initContainers", ()), *pod["containers"]):
            container["image"] = container["image"].split(":")[0]
    assert {item.identity: item.content for item in build(KUSTOMIZE / overlay)} == made


@pytest.mark.parametrize(
    ("options", "overlay", "components", "kubernetes"),
    [
        pytest.param([], "overlays/isolated", [], "1.37.1", id="by default"),
        pytest.param(["shape=gate"], "overlays/gate", [], "1.36.4", id="gate"),
        pytest.param(["shape=base"], "base", [], "1.35.4", id="base"),
        pytest.param(["shape=control-plane"], "overlays/control-plane", [], "1.37.1", id="control-plane"),
        pytest.param(["shape=base", "elasticJobs=refuse"], "overlays/elastic-refuse", [], "1.37.1", id="fixed size"),
        pytest.param(
            ["extender.extraArgs={--broken-gangs=evict}"], "overlays/isolated", ["evict-broken"], "1.37.1", id="flag"
        ),
        pytest.param(["networkPolicy.enabled=true"], "overlays/isolated", ["network-policy"], "1.37.1", id="network"),
        pytest.param(
            ["networkPolicy.enabled=true", "shape=control-plane"],
            "overlays/control-plane",
            ["network-policy-control-plane"],
            "1.37.1",
            id="network of the control plane",
        ),
        pytest.param(["monitoring.enabled=true"], "overlays/isolated", ["monitoring"], "1.37.1", id="monitoring"),
        pytest.param(
            ["compatible.enabled=true", "shape=base"],
            "base",
            ["compatible"],
            "1.35.4",
            id="others' PodGroups",
        ),
        pytest.param(
            ["labelledNamespaces.enabled=true"], "overlays/isolated", ["namespaces"], "1.37.1", id="labelled namespaces"
        ),
        pytest.param(
            ["labelledNamespaces.enabled=true", "shape=base"], "base", ["namespaces"], "1.37.1", id="labelled, no gate"
        ),
    ],
)
def test_helm_renders_the_objects_of_the_kustomization(
    helm: Helm, tmp_path: Path, options: list[str], overlay: str, components: list[str], kubernetes: str
) -> None:
    settings = [word for option in ("namespace.create=true", *options) for word in ("--set", option)]
    rendered = read_objects(helm.template(*settings, kubernetes=kubernetes))
    for key in KEPT & rendered.keys():
        assert rendered[key]["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    made = read_objects(kustomize(combine(tmp_path, overlay, components)).replace("v1.37.1", f"v{kubernetes}"))
    assert rendered.keys() == made.keys()
    for key, each in made.items():
        if key[0] == "CustomResourceDefinition":  # Helm renders no values there
            each["metadata"].get("labels", {}).pop(INSTALLATION, None)
        assert rendered[key] == each, key


COMPONENT = "serried-extender-volumes-and-devices"


def test_the_rights_for_volumes_and_devices_are_left_out_where_the_values_say_so(helm: Helm) -> None:
    left = read_objects(helm.template("--set", "volumesAndDevices.enabled=false"))
    whole = read_objects(helm.template())
    assert whole.keys() - left.keys() == {("ClusterRole", COMPONENT), ("ClusterRoleBinding", COMPONENT)}


def test_the_patch_of_the_page_takes_the_rights_for_volumes_and_devices_away(tmp_path: Path) -> None:
    heading = "## Can the extender plan without volumes and devices?"
    patched = combine(tmp_path, "overlays/control-plane", ())
    with (patched / "kustomization.yaml").open("a") as own:
        own.write(read_block("docs/placement.md", heading, "yaml"))
    left, whole = read_objects(kustomize(patched)), read_objects(kustomize(KUSTOMIZE / "overlays" / "control-plane"))
    assert whole.keys() - left.keys() == {("ClusterRoleBinding", COMPONENT)}


def test_lint_finds_nothing(helm: Helm) -> None:
    said = helm.run("lint", "--strict", str(CHART), "--kube-version", "1.37.1", "--namespace", NAMESPACE)
    assert "0 chart(s) failed" in said
    assert "[WARNING]" not in said


def test_each_value_arrives_where_it_belongs(helm: Helm) -> None:
    settings = {
        "image.repository": "r.io/serried",
        "image.digest": f"sha256:{'a' * 64}",
        "imagePullPolicy": "Always",
        "imagePullSecrets[0].name": "regcred",
        "extender.replicas": "3",
        "controller.replicas": "1",
        "extender.resources.requests.cpu": "2",
        "scheduler.image.repository": "r.io/kube-scheduler",
        "scheduler.image.tag": "v1.36.4",
        "controller.extraArgs[0]": "--workers=8",
        "priorityClassName": "important",
        "nodeSelector.pool": "system",
        "tolerations[0].key": "system",
        "networkPolicy.enabled": "true",
        "networkPolicy.apiServerPorts": "{8443}",
        "architectures": "{arm64}",
        "labelledNamespaces.enabled": "true",
        "labelledNamespaces.replaced": "{default-scheduler,volcano}",
    }
    found = read_objects(
        helm.template(*(word for key, value in settings.items() for word in ("--set", f"{key}={value}")))
    )
    pair, controller = (found["Deployment", name]["spec"] for name in ("serried", "serried-controller"))
    assert (pair["replicas"], controller["replicas"]) == (3, 1)
    pods = [each["template"]["spec"] for each in (pair, controller)]
    (extender,), (scheduler,), (managing,) = pods[0]["initContainers"], pods[0]["containers"], pods[1]["containers"]
    assert extender["image"] == managing["image"] == f"r.io/serried@sha256:{'a' * 64}"
    assert scheduler["image"] == "r.io/kube-scheduler:v1.36.4"
    assert extender["resources"]["requests"] == {"cpu": 2, "memory": "256Mi"}
    assert managing["args"][-1] == "--workers=8"
    for pod in pods:
        assert (pod["priorityClassName"], pod["imagePullSecrets"]) == ("important", [{"name": "regcred"}])
        assert (pod["nodeSelector"], pod["tolerations"][0]["key"]) == ({"pool": "system"}, "system")
        (term,) = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        assert {"key": "kubernetes.io/arch", "operator": "In", "values": ["arm64"]} in term["matchExpressions"]
    assert found["ConfigMap", "serried-namespaces"]["data"]["replaced"] == "default-scheduler,volcano"
    assert {each["imagePullPolicy"] for each in (extender, scheduler, managing)} == {"Always"}
    (scope,) = found["ResourceQuota", "serried-critical-pods"]["spec"]["scopeSelector"]["matchExpressions"]
    assert scope["values"] == ["important"]
    assert found["NetworkPolicy", "serried"]["spec"]["egress"][0]["ports"] == [{"protocol": "TCP", "port": 8443}]


PARTS = ("monitoring", "networkPolicy", "labelledNamespaces", "compatible")


@pytest.mark.parametrize("shape", SHAPES)
def test_in_another_namespace_nothing_names_the_usual_one(helm: Helm, shape: str) -> None:
    parts = ",".join(f"{part}.enabled=true" for part in PARTS)
    text = helm.template("--set", f"shape={shape},namespace.create=true,{parts}", namespace="gangs")
    assert "serried-system" not in text
    found = read_objects(text)
    assert "system:serviceaccount:gangs:serried'" in str(
        found["ValidatingAdmissionPolicy", "serried-extender-deletions"]
    )
    pod = found["Deployment", "serried"]["spec"]["template"]["spec"]
    extender = (pod.get("initContainers") or pod["containers"])[0]
    lease = "serried-extender" if shape == "control-plane" else "serried"
    assert {f"--lease=gangs/{lease}", "--hold-switch=gangs/serried-hold"} <= set(extender["args"])


@pytest.mark.parametrize(
    ("version", "tag"),
    [("v1.37.1-eks-1234567", "v1.37.1"), ("v1.36.4-gke.1000", "v1.36.4"), ("1.37.0-rc.1", "v1.37.0")],
)
def test_kube_scheduler_has_the_version_of_the_cluster_without_the_vendor_s_addition(
    helm: Helm, version: str, tag: str
) -> None:
    (scheduler,) = read_objects(helm.template(kubernetes=version))["Deployment", "serried"]["spec"]["template"]["spec"][
        "containers"
    ]
    assert scheduler["image"] == f"registry.k8s.io/kube-scheduler:{tag}"


@pytest.mark.parametrize(
    ("settings", "kubernetes", "namespace", "said"),
    [
        ("replicas=3", "1.37.1", NAMESPACE, "additional properties 'replicas' not allowed"),
        ("shape=insulated", "1.37.1", NAMESPACE, "'control-plane'"),
        ("extender.replicas=0", "1.37.1", NAMESPACE, "/extender/replicas"),
        ("shape=isolated", "1.35.4", NAMESPACE, "needs Kubernetes 1.36, and this cluster has v1.35.4."),
        ("shape=base,labelledNamespaces.enabled=true", "1.35.4", NAMESPACE, "Leave it out, and set schedulerName"),
        ("shape=base", "1.34.2", NAMESPACE, "incompatible with Kubernetes"),
        ("shape=base", "1.37.1", "kube-system", "Serried needs a namespace of its own, and kube-system is none"),
        ("shape=base", "1.37.1", "7even", "The namespace must begin with a letter"),
        ("scheduler.image.tag=v1.37.1", "1.36.4", NAMESPACE, "newer than the API server (v1.36.4)"),
        ("scheduler.image.tag=v1.35.4", "1.37.1", NAMESPACE, "more than one minor version older"),
        ("extender.extraArgs={--lease=a/b}", "1.37.1", NAMESPACE, "extender.extraArgs may not contain --lease"),
        ("controller.extraArgs={--lease=a/b}", "1.37.1", NAMESPACE, "the chart sets this flag. Leave it out."),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_with_a_sentence(
    helm: Helm, settings: str, kubernetes: str, namespace: str, said: str
) -> None:
    assert said in helm.refusal("--set", settings, kubernetes=kubernetes, namespace=namespace)


def test_what_is_rendered_for_a_kubernetes_that_nobody_has_tried_says_so(helm: Helm) -> None:
    said = (
        f"# WARNING: Kubernetes 1.40 is not tested with Serried {__version__}; the newest tested is 1.{NEWEST_MINOR}."
    )
    assert said in helm.template(kubernetes="1.40.1").splitlines()
    assert "WARNING" not in helm.template(kubernetes=f"1.{NEWEST_MINOR}.9")
