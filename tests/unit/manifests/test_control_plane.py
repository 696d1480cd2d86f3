"""The cluster's own scheduler calls a Service: its config, the extenders' flags and the Service are one agreement."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from serried.settings import ExtenderSettings, extender_settings
from tests.unit.manifests.shipped import MANIFESTS, Document

FOLDER = MANIFESTS / "kustomize" / "control-plane"
SERVICE = "serried-verbs"


def load(path: str) -> dict[str, Any]:
    return dict(yaml.safe_load((MANIFESTS / "kustomize" / path).read_text()))


@pytest.fixture
def config() -> dict[str, Any]:
    return load("control-plane/scheduler-config.yaml")


@pytest.fixture
def steps() -> list[dict[str, Any]]:
    """The patch of the Deployment."""
    (patch,) = [
        each for each in load("control-plane/kustomization.yaml")["patches"] if each["target"]["name"] == "serried"
    ]
    return list(yaml.safe_load(patch["patch"]))


def patched(steps: list[dict[str, Any]], path: str) -> Any:
    (found,) = [step["value"] for step in steps if step["path"] == f"/spec/template/spec/{path}"]
    return found


@pytest.fixture
def settings(steps: list[dict[str, Any]]) -> ExtenderSettings:
    arguments = [argument.replace("$(POD_IP)", "10.0.0.7") for argument in patched(steps, "containers/0/args")]
    return extender_settings(arguments, {})


def one(documents: Sequence[Document], kind: str, name: str) -> dict[str, Any]:
    (found,) = [each.content for each in documents if (each.kind, each.name) == (kind, name)]
    return found


def test_the_scheduler_asks_as_in_the_isolated_installation_but_by_tls_through_the_service(
    config: dict[str, Any],
) -> None:
    isolated = load("isolated/scheduler-config.yaml")
    for entry, beside in zip(config["extenders"], isolated["extenders"], strict=True):
        assert entry.pop("enableHTTPS") is True
        url, tls = urlsplit(entry.pop("urlPrefix")), entry.pop("tlsConfig")
        assert (url.scheme, url.hostname) == ("https", f"{SERVICE}.serried-system.svc")
        assert url.port == urlsplit(beside.pop("urlPrefix")).port
        assert tls["serverName"] == url.hostname
        assert {"caFile", "certFile", "keyFile"} <= tls.keys()
        assert entry == beside
    for name in ("podInitialBackoffSeconds", "podMaxBackoffSeconds"):
        assert config[name] == isolated[name]


def test_pods_of_other_profiles_never_wait_for_serried_whose_own_are_among_them(
    config: dict[str, Any], documents: Sequence[Document]
) -> None:
    assert [profile["schedulerName"] for profile in config["profiles"]] == ["default-scheduler", "serried"]
    assert all(entry["managedResources"] for entry in config["extenders"])
    ours = one(documents, "Deployment", "serried")["spec"]["template"]["spec"]
    assert ours["schedulerName"] == "default-scheduler"


def test_the_extenders_hold_a_lease_of_their_own_and_the_service_leads_to_its_holder(
    settings: ExtenderSettings, documents: Sequence[Document]
) -> None:
    assert (settings.lease_mode, settings.scheduler_livez, settings.isolated) == ("hold", "", "on")
    allowed = {
        resource: rule["resourceNames"]
        for rule in one(documents, "Role", "serried-extender-election")["rules"]
        if "resourceNames" in rule
        for resource in rule["resources"]
    }
    assert settings.lease is not None
    assert settings.endpoint_slice is not None
    assert allowed == {"leases": [settings.lease.name], "endpointslices": [settings.endpoint_slice.name]}
    # A Service finds its slices by a label, which says what we name them.
    assert settings.endpoint_slice.name == SERVICE
    assert "selector" not in one(documents, "Service", SERVICE)["spec"]


def test_ports_of_service_flags_and_container_agree(
    settings: ExtenderSettings, steps: list[dict[str, Any]], documents: Sequence[Document]
) -> None:
    served = {port["name"]: port["port"] for port in one(documents, "Service", SERVICE)["spec"]["ports"]}
    assert served == {"filter": settings.filter_listen.port, "bind": settings.bind_listen.port}
    opened = [step["value"] for step in steps if step["path"].endswith("/ports/-")]
    assert {port["name"]: port["containerPort"] for port in opened} == served


def test_the_verbs_know_their_caller_and_their_files_are_mounted(
    settings: ExtenderSettings, steps: list[dict[str, Any]]
) -> None:
    assert settings.client_names == {"serried-scheduler"}
    mounts = {mount["name"]: mount["mountPath"] for mount in patched(steps, "containers/0/volumeMounts")}
    assert {volume["name"] for volume in patched(steps, "volumes")} == set(mounts)
    for file, volume in (
        (settings.tls_cert_file, "tls"),
        (settings.tls_private_key_file, "tls"),
        (settings.client_ca_file, "clients"),
    ):
        assert str(file).startswith(f"{mounts[volume]}/")
