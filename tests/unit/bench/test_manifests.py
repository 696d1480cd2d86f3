"""What of our manifests a cluster gets, and the scheduler's copy of its configuration."""

from pathlib import Path

import yaml

from bench.cluster import Spec, installation

PORTS = {"filter": 20001, "bind": 20002}


def test_the_scheduler_config_differs_only_where_it_must() -> None:
    shipped = yaml.safe_load((installation.MANIFESTS / "scheduler-config.yaml").read_text())
    config = yaml.safe_load(installation.scheduler_config(Path("/k"), PORTS, 5000))

    assert config.pop("clientConnection") == {"kubeconfig": "/k", "qps": 5000, "burst": 5000}
    del shipped["clientConnection"]
    for extender in shipped["extenders"]:
        extender["urlPrefix"] = "http://127.0.0.1:20002" if "bindVerb" in extender else "http://127.0.0.1:20001"
    assert config == shipped


def test_the_gate_policy_is_applied_where_it_can_be_used() -> None:
    assert installation.pieces(Spec(name="a", hold="gate")) == ["crds", "rbac", "policies", "gate"]
    assert installation.pieces(Spec(name="a", hold="filter")) == ["crds", "rbac", "policies"]


def test_every_piece_is_shipped() -> None:
    for piece in installation.pieces(Spec(name="a")):
        assert (installation.MANIFESTS / "kustomize" / piece / "kustomization.yaml").is_file()


def test_a_kubeconfig_holds_a_token_and_no_certificate_of_the_administrator() -> None:
    config = installation.kubeconfig("https://127.0.0.1:1", b"ca", "secret")

    assert config["users"] == [{"name": "serried", "user": {"token": "secret"}}]
