"""The files hang together: nothing is left out, nothing points nowhere."""

import re
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.chart.kustomization import build
from bench.chart.templates import list_overlays
from controller.diff.owner import DEFAULT_SCHEDULER
from serried import IMAGE, __version__
from serried.api.kinds import PARENTS
from serried.api.names import INSTALLATION
from serried.settings import controller_settings, extender_settings
from tests.unit.manifests.shipped import MANIFESTS, Document

KUSTOMIZATIONS = sorted(MANIFESTS.rglob("kustomization.yaml"))
IMAGE_TAG = re.compile(r"v?\d+\.\d+\.\d+")


def load(path: Path) -> dict[str, Any]:
    return dict(yaml.safe_load(path.read_text()))


def listed(kustomization: Path) -> set[Path]:
    content = load(kustomization)
    generated = [file for generator in content.get("configMapGenerator", []) for file in generator["files"]]
    named = [*content.get("resources", []), *content.get("components", []), *generated]
    return {(kustomization.parent / entry).resolve() for entry in named}


def pod_specs(documents: Sequence[Document]) -> Iterator[dict[str, Any]]:
    for document in documents:
        if document.kind == "Deployment":
            yield document.content["spec"]["template"]["spec"]


def containers(documents: Sequence[Document]) -> Iterator[dict[str, Any]]:
    for spec in pod_specs(documents):
        yield from (*spec.get("initContainers", ()), *spec["containers"])


@pytest.mark.parametrize("kustomization", KUSTOMIZATIONS, ids=lambda path: str(path.parent.relative_to(MANIFESTS)))
def test_a_kustomization_lists_existing_files_and_leaves_none_beside_it_out(kustomization: Path) -> None:
    entries = listed(kustomization)
    for entry in entries:
        assert (entry / "kustomization.yaml").is_file() if entry.is_dir() else entry.is_file()
    assert set(kustomization.parent.glob("*.yaml")) - {kustomization} <= entries


def test_the_base_takes_in_every_part_but_those_to_ask_for() -> None:
    components = (
        *("compatible", "control-plane", "elastic-refuse", "evict-broken", "evict-disrupted"),
        *("marker", "isolated", "monitoring", "namespaces", "network-policy", "network-policy-control-plane"),
    )
    asked_for = {MANIFESTS / "kustomize" / name for name in ("base", "gate", *components)}
    overlays = set((MANIFESTS / "kustomize" / "overlays").iterdir())
    parts = {path.parent for path in KUSTOMIZATIONS} - asked_for - overlays
    assert {
        entry for entry in listed(MANIFESTS / "kustomize" / "base" / "kustomization.yaml") if entry.is_dir()
    } == parts


def test_no_object_is_written_twice(documents: Sequence[Document]) -> None:
    names = [(document.kind, document.name) for document in documents]
    assert len(names) == len(set(names))


def test_images_are_pinned_by_kustomize_to_a_version(documents: Sequence[Document]) -> None:
    images = load(MANIFESTS / "kustomize" / "base" / "kustomization.yaml")["images"]
    tags = {image["name"]: image["newTag"] for image in images}
    assert {container["image"] for container in containers(documents)} == set(tags)
    assert all(IMAGE_TAG.fullmatch(tag) for tag in tags.values())
    assert tags[IMAGE] == __version__


def test_no_file_says_latest_or_invents_a_digest() -> None:
    for path in MANIFESTS.rglob("*.yaml"):
        assert not re.search(r":latest\b|@sha256:", path.read_text()), path


COMPONENTS = sorted(path.parent for path in KUSTOMIZATIONS if load(path)["kind"] == "Component")


@pytest.mark.parametrize("overlay", list_overlays(MANIFESTS / "kustomize").values(), ids=lambda path: path.name)
def test_every_object_has_the_labels_of_its_installation_and_no_selector_has_it(overlay: Path) -> None:
    components = [
        each for each in COMPONENTS if each.name not in {"control-plane", "isolated"} and "evict" not in each.name
    ]
    for item in build(overlay, *components):
        metadata = item.content["metadata"]
        usual = {key.partition("app.kubernetes.io/")[2]: value for key, value in metadata["labels"].items()}
        assert (usual["name"], usual["part-of"]) == ("serried", "serried"), item.identity
        assert usual["component"], item.identity
        assert metadata["labels"].pop(INSTALLATION) == "serried-system", item.identity
        assert INSTALLATION not in str({"metadata": metadata} | item.content), item.identity


def test_the_definition_that_scheduler_plugins_brings_too_is_of_no_installation() -> None:
    (definition,) = build(MANIFESTS / "kustomize" / "compatible")
    assert INSTALLATION not in str(definition.content)


def test_a_component_labels_no_object_that_is_listed_beside_it(tmp_path: Path) -> None:
    content = {"kind": "Component", "labels": [{"pairs": {INSTALLATION: "serried-system"}}]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(ValueError, match="objects of others"):
        build(tmp_path)
    assert [path for path in COMPONENTS if "labels" in load(path / "kustomization.yaml")] == []


def test_roles_and_accounts_that_are_bound_exist(documents: Sequence[Document]) -> None:
    existing = {(document.kind, document.name) for document in documents}
    built_in = {"system:kube-scheduler", "system:volume-scheduler", "extension-apiserver-authentication-reader"}
    for document in documents:
        if document.kind.endswith("RoleBinding"):
            role = document.content["roleRef"]
            assert (role["kind"], role["name"]) in existing or role["name"] in built_in
            assert all((s["kind"], s["name"]) in existing for s in document.content["subjects"])


def test_policies_that_are_bound_exist(documents: Sequence[Document]) -> None:
    existing = {(document.kind, document.name) for document in documents}
    bindings = [document for document in documents if document.kind.endswith("AdmissionPolicyBinding")]
    assert len(bindings) == 14
    for binding in bindings:
        assert (binding.kind.removesuffix("Binding"), binding.content["spec"]["policyName"]) in existing
        if parameters := binding.content["spec"].get("paramRef"):
            assert ("ConfigMap", parameters["name"]) in existing


def test_metadata_that_a_policy_keeps_is_kept_in_writes_of_the_status_too(documents: Sequence[Document]) -> None:
    kept: dict[str, set[str]] = {}
    for document in documents:
        spec = document.content.get("spec", {})
        guards = document.kind == "ValidatingAdmissionPolicy" and spec["failurePolicy"] == "Fail"
        if guards and "oldObject.metadata" in str(spec):
            of = kept.setdefault(str(spec.get("matchConditions")), set())  # several may be about the same writes
            of.update(*(rule["resources"] for rule in spec["matchConstraints"]["resourceRules"]))
    assert {"jobs", "pods"} <= set().union(*kept.values())
    for resources in kept.values():
        assert {f"{each}/status" for each in resources if "/" not in each} <= resources


def test_everything_namespaced_is_in_our_namespace_or_binds_a_role_of_kube_system(
    documents: Sequence[Document],
) -> None:
    for document in documents:
        namespace = document.content["metadata"].get("namespace", "")
        assert namespace in {"", "serried-system"} or document.kind == "RoleBinding"


def test_pods_are_not_scheduled_by_serried_itself(documents: Sequence[Document]) -> None:
    for spec in pod_specs(documents):
        assert spec["schedulerName"] == "default-scheduler"
        assert spec["priorityClassName"] == "system-cluster-critical"


def test_a_quota_admits_pods_of_our_priority_class_where_that_takes_one(documents: Sequence[Document]) -> None:
    (quota,) = [document.content for document in documents if document.kind == "ResourceQuota"]
    (scope,) = quota["spec"]["scopeSelector"]["matchExpressions"]
    assert (scope["scopeName"], scope["operator"]) == ("PriorityClass", "In")
    assert set(scope["values"]) == {spec["priorityClassName"] for spec in pod_specs(documents)}
    deployments = [document.content for document in documents if document.kind == "Deployment"]
    assert {each["metadata"]["namespace"] for each in deployments} == {quota["metadata"]["namespace"]}
    assert int(quota["spec"]["hard"]["pods"]) > sum(each["spec"]["replicas"] for each in deployments)


def test_containers_are_locked_down_probed_and_sized(documents: Sequence[Document]) -> None:
    for spec in pod_specs(documents):
        assert spec["securityContext"] == {
            "runAsNonRoot": True, "runAsUser": 65532, "runAsGroup": 65532, "seccompProfile": {"type": "RuntimeDefault"},
        }  # fmt: skip
    for container in containers(documents):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
        }  # fmt: skip
        alive = "/livez/pair" if container["name"] == "scheduler" else "/livez"
        assert container["livenessProbe"]["httpGet"]["path"] == alive
        assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
        assert set(container["resources"]["requests"]) == {"cpu", "memory"}


def test_selectors_ports_and_volumes_agree(documents: Sequence[Document]) -> None:
    deployments = [document.content for document in documents if document.kind == "Deployment"]
    labels = [deployment["spec"]["template"]["metadata"]["labels"] for deployment in deployments]
    for deployment, own in zip(deployments, labels, strict=True):
        assert deployment["spec"]["selector"]["matchLabels"] == own
    services = [document.content["spec"] for document in documents if document.kind == "Service"]
    # One Service has no selector: its EndpointSlice points to the leader.
    selectors = [service["selector"] for service in services if "selector" in service]
    assert len(selectors) == len(services) - 1
    for selector in selectors:
        assert [own.items() >= selector.items() for own in labels].count(True) == 1
    numbers = {port["containerPort"] for container in containers(documents) for port in container["ports"]}
    for container in containers(documents):
        named = {port["name"] for port in container["ports"]}
        # By number it is another container's.
        assert {container[probe]["httpGet"]["port"] for probe in ("livenessProbe", "readinessProbe")} <= named | numbers


def test_refusing_changes_of_parallelism_comes_with_the_controller_s_flag_for_it(documents: Sequence[Document]) -> None:
    component = load(MANIFESTS / "kustomize" / "elastic-refuse" / "kustomization.yaml")
    (patch,) = component["patches"]
    (deployment,) = [d for d in documents if (d.kind, d.name) == (patch["target"]["kind"], patch["target"]["name"])]
    (addition,) = yaml.safe_load(patch["patch"])
    assert addition["path"] == "/spec/template/spec/containers/0/args/-"
    (container,) = deployment.content["spec"]["template"]["spec"]["containers"]
    assert controller_settings([*container["args"], addition["value"]]).elastic_jobs == "refuse"


def test_evicting_what_is_left_of_broken_gangs_comes_with_the_extender_s_flag_for_it(
    documents: Sequence[Document],
) -> None:
    component = load(MANIFESTS / "kustomize" / "evict-broken" / "kustomization.yaml")
    (patch,) = component["patches"]
    (deployment,) = [d for d in documents if (d.kind, d.name) == (patch["target"]["kind"], patch["target"]["name"])]
    (addition,) = yaml.safe_load(patch["patch"])
    assert addition["path"] == "/spec/template/spec/initContainers/0/args/-"
    container = deployment.content["spec"]["template"]["spec"]["initContainers"][0]
    assert extender_settings([*container["args"], addition["value"]], {}).broken_gangs == "evict"


def test_ending_gangs_with_an_evicted_member_comes_with_the_extender_s_flag_for_it(
    documents: Sequence[Document],
) -> None:
    component = load(MANIFESTS / "kustomize" / "evict-disrupted" / "kustomization.yaml")
    (patch,) = component["patches"]
    (deployment,) = [d for d in documents if (d.kind, d.name) == (patch["target"]["kind"], patch["target"]["name"])]
    (addition,) = yaml.safe_load(patch["patch"])
    assert addition["path"] == "/spec/template/spec/initContainers/0/args/-"
    container = deployment.content["spec"]["template"]["spec"]["initContainers"][0]
    assert extender_settings([*container["args"], addition["value"]], {}).disrupted_gangs == "any"


def test_isolating_the_scheduler_comes_with_the_extender_s_flag_for_it(documents: Sequence[Document]) -> None:
    component = load(MANIFESTS / "kustomize" / "isolated" / "kustomization.yaml")
    (patch,) = component["patches"]
    (deployment,) = [d for d in documents if (d.kind, d.name) == (patch["target"]["kind"], patch["target"]["name"])]
    (addition,) = yaml.safe_load(patch["patch"])
    assert addition["path"] == "/spec/template/spec/initContainers/0/args/-"
    container = deployment.content["spec"]["template"]["spec"]["initContainers"][0]
    assert extender_settings([*container["args"], addition["value"]], {}).isolated == "on"


def test_the_switch_ships_without_a_value_and_an_upgrade_leaves_the_extender_s(documents: Sequence[Document]) -> None:
    (switch,) = [d.content for d in documents if (d.kind, d.name) == ("ConfigMap", "serried-hold")]
    assert "data" not in switch
    (gate,) = [d.content for d in documents if (d.kind, d.name) == ("MutatingAdmissionPolicy", "serried-gate")]
    assert "params.?data[?'hold'].orValue('filter') == 'gate'" in str(gate["spec"]["matchConditions"])


class TestLabelledNamespaces:
    """The component that gives the pods of labelled namespaces our scheduler."""

    def test_it_replaces_the_scheduler_that_pods_have_by_default_by_the_one_that_is_served(
        self, documents: Sequence[Document]
    ) -> None:
        (names,) = [d.content["data"] for d in documents if (d.kind, d.name) == ("ConfigMap", "serried-namespaces")]
        assert names["replaced"] == DEFAULT_SCHEDULER
        assert {names["scheduler"]} == extender_settings([], {}).schedulers

    def test_only_namespaces_that_an_administrator_has_labelled_are_concerned(
        self, documents: Sequence[Document]
    ) -> None:
        kind = "MutatingAdmissionPolicyBinding"
        (binding,) = [d.content["spec"] for d in documents if (d.kind, d.name) == (kind, "serried-namespaces")]
        selector = binding["matchResources"]["namespaceSelector"]
        assert selector == {"matchLabels": {"scheduling.serried.dev/scheduler": "enabled"}}
        reference = binding["paramRef"]
        assert (reference["name"], reference["parameterNotFoundAction"]) == ("serried-namespaces", "Allow")

    def test_pods_and_every_kind_whose_template_says_whether_it_is_a_gang_are(
        self, documents: Sequence[Document]
    ) -> None:
        (policy,) = [
            d.content["spec"]
            for d in documents
            if (d.kind, d.name) == ("MutatingAdmissionPolicy", "serried-namespaces")
        ]
        rules = policy["matchConstraints"]["resourceRules"]
        found = {(group, version, kind) for r in rules for group in r["apiGroups"] for version in r["apiVersions"]
                 for kind in r["resources"]}  # fmt: skip
        parents = {(api.group, api.version, api.plural) for api in PARENTS.values()}
        assert found == {("", "v1", "pods"), ("batch", "v1", "jobs"), *parents}
        # The scheduler of a pod never changes; that of a template does when a file is applied again.
        for rule in rules:
            verbs = ["CREATE"] if rule["resources"] == ["pods"] else ["CREATE", "UPDATE"]
            assert rule["operations"] == verbs

    def test_gate_and_markers_look_again_at_a_pod_whose_scheduler_was_replaced_after_them(
        self, documents: Sequence[Document]
    ) -> None:
        """The API server asks those again that matched at first, so they match whatever the scheduler is."""
        component = load(MANIFESTS / "kustomize" / "namespaces" / "kustomization.yaml")
        (patch,) = component["patches"]
        assert yaml.safe_load(patch["patch"]) == [{"op": "remove", "path": "/spec/matchConditions/0"}]
        policies = [
            d.content["spec"]
            for d in documents
            if d.kind == patch["target"]["kind"] and re.fullmatch(patch["target"]["name"], d.name)
        ]
        assert len(policies) == 2
        for policy in policies:
            assert policy["matchConditions"][0]["name"] == "scheduled-by-serried"
            assert policy["reinvocationPolicy"] == "IfNeeded"
            for mutation in policy["mutations"]:
                assert mutation["jsonPatch"]["expression"].startswith(
                    "!(object.spec.schedulerName in ['serried']) ? []"
                )


def test_bursts_of_the_extender_and_of_the_scheduler_wait_in_queues_of_their_own(documents: Sequence[Document]) -> None:
    level = next(each.content for each in documents if each.kind == "PriorityLevelConfiguration")
    queuing = level["spec"]["limited"]["limitResponse"]["queuing"]
    flows = [
        each.content["metadata"]["name"]
        for each in documents
        if each.kind == "FlowSchema" and each.content["spec"]["priorityLevelConfiguration"]["name"] == "serried"
    ]
    assert sorted(flows) == ["serried-bindings", "serried-scheduler"]
    assert queuing["handSize"] == 1
    assert len({choose_queue(flow, queuing["queues"]) for flow in flows}) == 2
    assert queuing["queueLengthLimit"] >= 1000


def choose_queue(schema: str, queues: int) -> int:
    """The only queue of a FlowSchema without a distinguisher (hashFlowID of upstream's apf_controller.go, and Deal)."""
    return int.from_bytes(sha256(schema.encode() + b"\0").digest()[:8], "little") % queues
