"""The chart is the kustomization: what Helm renders is what kubectl makes of it, object by object."""

from pathlib import Path

import pytest
import yaml

from bench.chart.__main__ import CHART
from bench.chart.kustomization import build
from bench.chart.values import SHAPES
from bench.cluster.release import HELM_VERSIONS
from serried import __version__
from serried.api.level import NEWEST_MINOR
from serried.api.names import INSTALLATION
from serried.settings import controller_settings, extender_settings
from tests.e2e.manifests.charts import RELEASE, Helm, Objects, combine, find_helm, kustomize, read_objects
from tests.e2e.manifests.server import KUSTOMIZE, NAMESPACE, Json
from tests.support.written import read_code_block

pytestmark = pytest.mark.e2e


@pytest.fixture(params=[pytest.param(version, marks=pytest.mark.tools) for version in HELM_VERSIONS])
def helm(request: pytest.FixtureRequest) -> Helm:
    return find_helm(request.param)


KEPT = {("CustomResourceDefinition", "podgroups.scheduling.x-k8s.io")}
"""The objects that Helm leaves when it uninstalls the chart."""

DEPLOYMENTS = ("serried", "serried-controller")

OF_CHARTS = {
    "helm.sh/chart": f"serried-{__version__}",
    "app.kubernetes.io/instance": RELEASE,
    "app.kubernetes.io/version": __version__,
    "app.kubernetes.io/managed-by": "Helm",
}
"""The labels that all objects of a chart have."""

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
        if key[0] != "CustomResourceDefinition" or key in KEPT:
            labels = rendered[key]["metadata"]["labels"]
            assert {name: labels.pop(name) for name in OF_CHARTS} == OF_CHARTS, key
            each["metadata"].setdefault("labels", {})
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
        own.write(read_code_block("docs/placement.md", heading, "yaml"))
    left, whole = read_objects(kustomize(patched)), read_objects(kustomize(KUSTOMIZE / "overlays" / "control-plane"))
    assert whole.keys() - left.keys() == {("ClusterRoleBinding", COMPONENT)}


def test_a_kustomization_with_another_namespace_makes_processes_that_refuse_to_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moved = combine(tmp_path, "overlays/isolated", ())
    with (moved / "kustomization.yaml").open("a") as own:
        own.write("namespace: gangs\n")
    found = read_objects(kustomize(moved))
    for name, read in zip(DEPLOYMENTS, (extender_settings, controller_settings), strict=True):
        deployment = found["Deployment", name]
        pod = deployment["spec"]["template"]["spec"]
        container = (pod.get("initContainers") or pod["containers"])[0]
        assert {each["name"] for each in container["env"]} == {"POD_NAME", "POD_NAMESPACE"}
        with pytest.raises(SystemExit):
            read(container["args"], {"POD_NAMESPACE": deployment["metadata"]["namespace"]})
        assert "A kustomization with `namespace:`" in capsys.readouterr().err


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


def render(helm: Helm, scratch: Path, values: Json, *options: str) -> Objects:
    """Return the objects that the chart renders from a file of values."""
    (scratch / "values.yaml").write_text(yaml.safe_dump(values))
    return read_objects(helm.template("--values", str(scratch / "values.yaml"), *options))


@pytest.mark.parametrize("shape", SHAPES)
def test_labels_and_annotations_arrive_and_selectors_stay(helm: Helm, tmp_path: Path, shape: str) -> None:
    values = {
        "commonLabels": {"team": "platform"},
        "podLabels": {"tier": "control"},
        "podAnnotations": {"example.com/checked": "yes"},
        "serviceAccount": {"annotations": {"example.com/role": "gangs"}},
        **{part: {"enabled": True} for part in PARTS},
        "monitoring": {"enabled": True, "labels": {"release": "kps"}, "interval": "1m"},
    }
    found = render(helm, tmp_path, values, "--set", f"shape={shape}")
    crds = {key for key in found if key[0] == "CustomResourceDefinition"} - KEPT
    assert {each["metadata"]["labels"]["team"] for key, each in found.items() if key not in crds} == {"platform"}
    plain = read_objects(helm.template("--set", f"shape={shape}"))
    for name in DEPLOYMENTS:
        pod = found["Deployment", name]["spec"]["template"]["metadata"]
        assert pod["labels"].items() >= {"team": "platform", "tier": "control"}.items()
        assert pod["annotations"]["example.com/checked"] == "yes"
        assert found["ServiceAccount", name]["metadata"]["annotations"] == {"example.com/role": "gangs"}
        assert found["Deployment", name]["spec"]["selector"] == plain["Deployment", name]["spec"]["selector"]
    for kind in ("PodMonitor", "PrometheusRule"):
        assert found[kind, "serried"]["metadata"]["labels"]["release"] == "kps"
    (endpoint,) = found["PodMonitor", "serried"]["spec"]["podMetricsEndpoints"]
    assert endpoint["interval"] == "1m"


@pytest.mark.parametrize("shape", SHAPES)
def test_every_flag_and_policy_follows_the_names_of_the_schedulers(helm: Helm, tmp_path: Path, shape: str) -> None:
    parts = {"elasticJobs": "refuse", "labelledNamespaces": {"enabled": shape != "base"}}
    found = render(helm, tmp_path, {"shape": shape, "scheduler": {"names": ["gangs", "serried"]}, **parts})
    for name in DEPLOYMENTS:
        pod = found["Deployment", name]["spec"]["template"]["spec"]
        assert "--scheduler-name=gangs,serried" in (pod.get("initContainers") or pod["containers"])[0]["args"]
    (config,) = (
        each["data"]["scheduler-config.yaml"] for key, each in found.items() if key[1].startswith("serried-scheduler-c")
    )
    own = [{"schedulerName": "default-scheduler"}] if shape == "control-plane" else []
    assert yaml.safe_load(config)["profiles"] == [*own, {"schedulerName": "gangs"}, {"schedulerName": "serried"}]
    policies = {name: str(each["spec"]) for (kind, name), each in found.items() if kind.endswith("AdmissionPolicy")}
    following = {name for name, spec in policies.items() if "['gangs', 'serried']" in spec}
    expected = {"base": set(), "gate": {"serried-gate"}}.get(shape, {"serried-gate", "serried-marker"})
    assert following == {"serried-elastic-refuse"} | expected
    assert not [name for name, spec in policies.items() if "['serried']" in spec]
    if shape != "base":
        assert found["ConfigMap", "serried-namespaces"]["data"]["scheduler"] == "gangs"


@pytest.mark.parametrize("shape", SHAPES)
def test_environment_volumes_and_where_pods_go_are_those_of_the_values(helm: Helm, tmp_path: Path, shape: str) -> None:
    variable = {"name": "SERRIED_LOG_LEVEL", "value": "debug"}
    volume, mount = {"name": "cache", "emptyDir": {}}, {"name": "cache", "mountPath": "/cache"}
    extra = {"extraEnv": [variable], "extraVolumes": [volume], "extraVolumeMounts": [mount]}
    near: Json = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}}
    spread = {"maxSkew": 1, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}
    values = {"extender": extra, "controller": extra, "affinity": near, "topologySpreadConstraints": [spread]}
    found = render(helm, tmp_path, values, "--set", f"shape={shape}")
    for name in DEPLOYMENTS:
        spec = found["Deployment", name]["spec"]
        pod = spec["template"]["spec"]
        container = (pod.get("initContainers") or pod["containers"])[0]
        assert (container["env"][-1], container["volumeMounts"][-1], pod["volumes"][-1]) == (variable, mount, volume)
        assert pod["affinity"] == near
        assert pod["topologySpreadConstraints"] == [spread | {"labelSelector": spec["selector"]}]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("tls", "secret"),
    [
        pytest.param({"secretName": "our-tls"}, "our-tls", id="a Secret"),
        pytest.param({"issuer": {"name": "our-ca"}}, "serried-tls", id="an issuer of cert-manager"),
    ],
)
def test_the_certificate_is_mounted_and_its_flags_name_it(
    helm: Helm, tmp_path: Path, shape: str, tls: Json, secret: str
) -> None:
    found = render(helm, tmp_path, {"shape": shape, "tls": tls})
    for name in DEPLOYMENTS:
        pod = found["Deployment", name]["spec"]["template"]["spec"]
        container = (pod.get("initContainers") or pod["containers"])[0]
        assert container["args"].count("--tls-cert-file=/var/run/serried/tls/tls.crt") == 1
        assert container["args"].count("--tls-private-key-file=/var/run/serried/tls/tls.key") == 1
        assert {"name": "tls", "mountPath": "/var/run/serried/tls", "readOnly": True} in container["volumeMounts"]
        assert {"name": "tls", "secret": {"secretName": secret}} in pod["volumes"]
    made = found.get(("Certificate", "serried"), {"spec": {"secretName": ""}})["spec"]
    assert made["secretName"] == (secret if "issuer" in tls else "")


def test_the_dashboard_goes_to_its_folder_and_where_a_sidecar_finds_it(helm: Helm, tmp_path: Path) -> None:
    dashboard = {"labels": {"dashboards": "ours"}, "annotations": {"example.com/by": "us"}, "folder": "Gangs"}
    found = render(helm, tmp_path, {"monitoring": {"enabled": True, "dashboard": dashboard}})
    metadata = found["ConfigMap", "serried-dashboard"]["metadata"]
    assert metadata["labels"]["dashboards"] == "ours"
    assert metadata["annotations"] == {"example.com/by": "us", "grafana_folder": "Gangs"}


def test_what_helm_template_prints_has_no_hook_that_would_run_at_once(helm: Helm) -> None:
    assert "helm.sh/hook" not in helm.template()


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
    [("v1.37.1-eks-1234567", "v1.37.1"), ("v1.36.4-gke.1000", "v1.36.4"), ("v1.38.0-beta.0", "v1.38.0-beta.0")],
)
def test_kube_scheduler_has_the_version_of_the_cluster_without_the_vendor_s_addition(
    helm: Helm, version: str, tag: str
) -> None:
    if helm.version.startswith("3."):
        tag = tag.partition("-")[0]  # its option for the version keeps the numbers only; a cluster's it takes whole
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
        ("extender.extraArgs={--preemtion=advice}", "1.37.1", NAMESPACE, "'--preemtion=advice' does not match pattern"),
        ("extender.extraArgs={--scheduler-name=a}", "1.37.1", NAMESPACE, "may not contain --scheduler-name"),
        (
            "tls.secretName=a,controller.extraArgs={--tls-cert-file=/x}", "1.37.1", NAMESPACE,
            "controller.extraArgs may not contain --tls-cert-file",
        ),
        ("podLabels.app\\.kubernetes\\.io/name=a", "1.37.1", NAMESPACE, "podLabels may not contain app."),
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
