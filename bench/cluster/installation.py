"""Apply Serried's manifests to a cluster, and write the kubeconfigs of its ServiceAccounts."""

import base64
import json
import subprocess
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from bench.cluster.api import Api
from bench.cluster.errors import ClusterError
from bench.cluster.ports import LOOPBACK
from bench.cluster.spec import Spec

REPOSITORY = Path(__file__).resolve().parents[2]
MANIFESTS = REPOSITORY / "manifests"
NAMESPACE = "serried-system"
GROUP = "scheduling.serried.dev"
ACCOUNTS = {"extender": "serried", "controller": "serried-controller", "scheduler": "serried-scheduler"}
_TOKEN_SECONDS = 30 * 24 * 3600
_ATTEMPTS = 10
_PAUSE = 0.5
"""Seconds between two attempts to apply a manifest."""


def pieces(spec: Spec) -> list[str]:
    """Return the paths of the kustomizations and manifests for a cluster of this spec, in the order of applying."""
    optional = (("gate", spec.gate_policy), ("marker", spec.isolated), ("base/sidecar-rbac.yaml", spec.one_account))
    return ["crds", "rbac", "volumes-and-devices", "policies", *(name for name, wanted in optional if wanted)]


def apply(kubectl: Path, kubeconfig: Path, names: Iterable[str]) -> None:
    """Apply kustomizations and manifests by kubectl. Each is tried several times, until its CRDs are served.

    Raise ClusterError if one cannot be applied.
    """
    for name in names:
        piece = MANIFESTS / "kustomize" / name
        option = "-k" if piece.is_dir() else "-f"
        command = [str(kubectl), "--kubeconfig", str(kubeconfig), "apply", option, str(piece)]
        for attempt in range(1, _ATTEMPTS + 1):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                break
            if attempt == _ATTEMPTS:
                raise ClusterError(f"kubectl apply {option} {piece} failed:\n{done.stderr.strip()}")
            time.sleep(_PAUSE)


def established(api: Api) -> bool:
    """Return whether all of Serried's CRDs are established."""
    listed = api.get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions")["items"]
    ours = [crd for crd in listed if crd["spec"]["group"] == GROUP]
    return bool(ours) and all(_is_established(crd) for crd in ours)


def _is_established(crd: dict[str, Any]) -> bool:
    conditions = crd.get("status", {}).get("conditions") or ()
    return any(condition["type"] == "Established" and condition["status"] == "True" for condition in conditions)


def name_accounts(spec: Spec) -> Mapping[str, str]:
    """Return the ServiceAccount of each process."""
    return ACCOUNTS | {"scheduler": ACCOUNTS["extender"]} if spec.one_account else ACCOUNTS


def write_kubeconfigs(
    api: Api, port: int, ca: Path, directory: Path, accounts: Mapping[str, str] = ACCOUNTS
) -> dict[str, Path]:
    """Write a kubeconfig for each process, with a token of its ServiceAccount. Return the paths."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    paths = {}
    for process, account in accounts.items():
        path = directory / f"{process}.kubeconfig"
        path.write_text(json.dumps(kubeconfig(f"https://{LOOPBACK}:{port}", ca.read_bytes(), _token(api, account))))
        path.chmod(0o600)
        paths[process] = path
    return paths


def _token(api: Api, account: str) -> str:
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": _TOKEN_SECONDS},
    }
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{account}/token"
    return str(api.post(path, body)["status"]["token"])


def kubeconfig(server: str, ca: bytes, token: str) -> dict[str, Any]:
    """Return a kubeconfig with one cluster, one user and one context."""
    cluster = {"server": server, "certificate-authority-data": base64.b64encode(ca).decode()}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "serried", "cluster": cluster}],
        "users": [{"name": "serried", "user": {"token": token}}],
        "contexts": [{"name": "serried", "context": {"cluster": "serried", "user": "serried"}}],
        "current-context": "serried",
    }


def scheduler_config(spec: Spec, kubeconfig_path: Path, ports: Mapping[str, int]) -> str:
    """Return the shipped scheduler configuration, with this cluster's ports, credentials, rate limit and profiles."""
    source = MANIFESTS / "kustomize" / ("isolated" if spec.isolated else "scheduler") / "scheduler-config.yaml"
    config = yaml.safe_load(source.read_text())
    config["clientConnection"] = {"kubeconfig": str(kubeconfig_path), "qps": spec.qps, "burst": spec.qps}
    for extender in config["extenders"]:
        verb = "bind" if "bindVerb" in extender else "filter"
        extender["urlPrefix"] = f"http://{LOOPBACK}:{ports[verb]}"
        if verb == "filter" and spec.prioritize_weight is not None:
            _set_weight(extender, spec.prioritize_weight)
    config["profiles"] += [{"schedulerName": name} for name in spec.profiles]
    return yaml.safe_dump(config, sort_keys=False)


def _set_weight(extender: dict[str, Any], weight: int) -> None:
    extender.pop("prioritizeVerb", None)
    extender.pop("weight", None)
    if weight:  # kube-scheduler rejects a verb without a weight, and a weight of 0
        extender |= {"prioritizeVerb": "prioritize", "weight": weight}
