"""Read the containers and probes of a shipped Deployment, as a kubelet needs them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from bench.cluster.installation import MANIFESTS

BASE = MANIFESTS / "kustomize" / "base"


@dataclass(frozen=True, slots=True)
class Probe:
    """An httpGet probe. Times are seconds; the defaults are those of the API."""

    path: str
    port: int
    """The port in the manifest. Two Pods on one machine listen on other ports (`Kubelet.ports`)."""
    scheme: str = "http"
    period: float = 10.0
    timeout: float = 1.0
    failures: int = 3
    """The number of consecutive failures after which the container is ended."""


@dataclass(frozen=True, slots=True)
class Container:
    """One container of a Pod."""

    name: str
    arguments: tuple[str, ...]
    sidecar: bool
    """True for an init container that keeps running: the containers after it start once it has started."""
    startup: Probe | None
    liveness: Probe | None
    readiness: Probe | None


def read_pod(file: str, deployment: str) -> list[Container]:
    """Return the containers of a Deployment in the base kustomization, in the order in which they start."""
    documents = yaml.safe_load_all((BASE / file).read_text())
    (found,) = [each for each in documents if (each["kind"], each["metadata"]["name"]) == ("Deployment", deployment)]
    spec = found["spec"]["template"]["spec"]
    every: list[dict[str, Any]] = [*spec.get("initContainers", ()), *spec["containers"]]
    ports = {port["name"]: port["containerPort"] for each in every for port in each["ports"]}
    return [_read_container(each, ports) for each in every]


def _read_container(raw: Mapping[str, Any], ports: Mapping[str, int]) -> Container:
    return Container(
        raw["name"],
        tuple(raw.get("args", ())),
        raw.get("restartPolicy") == "Always",
        startup=_read_probe(raw.get("startupProbe"), ports),
        liveness=_read_probe(raw.get("livenessProbe"), ports),
        readiness=_read_probe(raw.get("readinessProbe"), ports),
    )


def _read_probe(raw: Mapping[str, Any] | None, ports: Mapping[str, int]) -> Probe | None:
    if raw is None:
        return None
    get = raw["httpGet"]
    return Probe(
        get["path"],
        ports.get(get["port"], get["port"]),
        scheme=get.get("scheme", "HTTP").lower(),
        period=raw.get("periodSeconds", 10.0),
        timeout=raw.get("timeoutSeconds", 1.0),
        failures=raw.get("failureThreshold", 3),
    )
