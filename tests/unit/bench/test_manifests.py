"""The parts of our manifests that a cluster gets, and the scheduler's copy of its configuration."""

from pathlib import Path

import pytest
import yaml

from bench.cluster import ClusterError, Spec, components, installation
from serried.settings import extender_settings

PORTS = {"filter": 20001, "bind": 20002}


@pytest.mark.parametrize(
    ("isolated", "source"),
    [(False, "scheduler-config.yaml"), (True, "kustomize/isolated/scheduler-config.yaml")],
    ids=["not isolated", "isolated"],
)
def test_the_scheduler_config_differs_only_where_it_must(isolated: bool, source: str) -> None:  # noqa: FBT001
    shipped = yaml.safe_load((installation.MANIFESTS / source).read_text())
    config = yaml.safe_load(installation.scheduler_config(Spec(name="a", isolated=isolated), Path("/k"), PORTS))

    assert config.pop("clientConnection") == {"kubeconfig": "/k", "qps": 5000, "burst": 5000}
    del shipped["clientConnection"]
    for extender in shipped["extenders"]:
        extender["urlPrefix"] = "http://127.0.0.1:20002" if "bindVerb" in extender else "http://127.0.0.1:20001"
    assert config == shipped


@pytest.mark.parametrize(
    ("weight", "asked"),
    [pytest.param(0, {}, id="not asked"), pytest.param(5, {"prioritizeVerb": "prioritize", "weight": 5}, id="more")],
)
def test_the_weight_of_the_scores_can_be_another_one(weight: int, asked: dict[str, object]) -> None:
    spec = Spec(name="a", prioritize_weight=weight)
    filters, binds = yaml.safe_load(installation.scheduler_config(spec, Path("/k"), PORTS))["extenders"]
    assert {name: filters[name] for name in ("prioritizeVerb", "weight") if name in filters} == asked
    assert not {"prioritizeVerb", "weight"} & binds.keys()


def test_more_profiles_stand_beside_the_shipped_one() -> None:
    config = yaml.safe_load(installation.scheduler_config(Spec(name="a", profiles=("second",)), Path("/k"), PORTS))
    assert [profile["schedulerName"] for profile in config["profiles"]] == ["serried", "second"]


EVERYWHERE = ["crds", "rbac", "volumes-and-devices", "policies"]


def test_the_gate_policy_is_applied_where_it_can_be_used() -> None:
    assert installation.pieces(Spec(name="a", hold="gate")) == [*EVERYWHERE, "gate"]
    assert installation.pieces(Spec(name="a", hold="filter")) == EVERYWHERE


def test_an_isolated_scheduler_comes_with_what_marks_members_and_an_extender_that_knows() -> None:
    isolated = Spec(name="a", hold="filter", isolated=True)
    assert installation.pieces(isolated) == [*EVERYWHERE, "marker"]
    files: dict[str, Path] = {name: Path(name) for name in components.PROCESSES}
    ports = dict.fromkeys(components.PORTS, 1)
    extender = components.commands(isolated, ports, files, Path("s"), Path("c"))["extender"]
    assert extender_settings(extender[3:]).isolated == "on"


def test_no_cluster_is_isolated_where_no_policy_could_mark_pods() -> None:
    with pytest.raises(ClusterError, match=r"--isolated needs Kubernetes 1\.36"):
        Spec(name="a", kubernetes="1.35.4", hold="filter", isolated=True)


def test_every_piece_is_shipped() -> None:
    for piece in installation.pieces(Spec(name="a")):
        assert (installation.MANIFESTS / "kustomize" / piece / "kustomization.yaml").is_file()


def test_a_kubeconfig_holds_a_token_and_no_certificate_of_the_administrator() -> None:
    config = installation.kubeconfig("https://127.0.0.1:1", b"ca", "secret")

    assert config["users"] == [{"name": "serried", "user": {"token": "secret"}}]


def test_our_scheduler_has_the_environment_of_the_manifests() -> None:
    documents = yaml.safe_load_all((installation.MANIFESTS / "kustomize/base/serried.yaml").read_text())
    containers = [
        container
        for document in documents
        if document["kind"] == "Deployment"
        for container in document["spec"]["template"]["spec"]["containers"]
    ]
    shipped = next(container["env"] for container in containers if container["name"] == "scheduler")
    assert ("env", *(f"{each['name']}={each['value']}" for each in shipped)) == components.THROUGH["scheduler"]
