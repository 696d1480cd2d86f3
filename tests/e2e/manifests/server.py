"""kubectl against a real API server, for the tests of the manifests."""

import base64
import copy
import json
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from bench.cluster import Cluster, ClusterError

KUSTOMIZE = Path(__file__).resolve().parents[3] / "manifests" / "kustomize"
NAMESPACE = "serried-system"
EXTENDER, CONTROLLER, SCHEDULER = (
    f"system:serviceaccount:{NAMESPACE}:{name}" for name in ("serried", "serried-controller", "serried-scheduler")
)
GROUP = "scheduling.serried.dev"
Json = dict[str, Any]

_FLEETING = {
    *("events", "events.events.k8s.io", "componentstatuses", "leases.coordination.k8s.io"),
    "clustertrustbundles.certificates.k8s.io",
}
"""Kinds of objects that come and go by themselves."""


class Server:
    """A real API server, spoken to by kubectl."""

    def __init__(self, cluster: Cluster, scratch: Path) -> None:
        self.cluster = cluster
        self.run = cluster.kubectl
        self._url = cluster.server
        self._tls = ssl.create_default_context(cadata=_authority(cluster.kubeconfig))
        self._file = scratch / "object.yaml"

    def apply(self, name: str) -> str:
        return self.run("apply", "-k", str(KUSTOMIZE / name))

    def write(self, verb: str, *objects: Json, options: tuple[str, ...] = ()) -> list[Json]:
        self._file.write_text(yaml.safe_dump_all(objects))
        return list(_items(self.run(verb, "-f", str(self._file), "-o", "json", *options)))

    def get(self, *arguments: str) -> Json:
        return dict(json.loads(self.run("get", *arguments, "-o", "json")))

    def list_objects(self) -> dict[str, Json]:
        """All objects by kind, namespace and name: `pods/default/one`; of the whole cluster `nodes/one`."""
        found: dict[str, Json] = {}
        for kind in set(self.run("api-resources", "--verbs=list", "-o", "name").split()) - _FLEETING:
            for item in self.get(kind, "-A")["items"]:
                metadata = item["metadata"]
                place = [metadata[key] for key in ("namespace", "name") if key in metadata]
                found["/".join([kind, *place])] = item
        return found

    def patch(self, target: str, patch: object, *options: str) -> str:
        kind = "json" if isinstance(patch, list) else "merge"
        return self.run("patch", *target.split("/"), "--type", kind, "-p", json.dumps(patch), *options)

    def patch_status(self, path: str, status: Json) -> None:
        """A bare PATCH by the extender's own token: kubectl would read the object first, which is not granted."""
        self.patch_bare(f"{path}/status", {"status": status}).raise_for_status()

    def status_refusal(self, path: str, patch: Json) -> str:
        """Return the message with which such a PATCH is refused."""
        answer = self.patch_bare(f"{path}/status", patch)
        assert answer.status_code in {403, 422}, answer.text
        return str(answer.json()["message"])

    def token(self, account: str) -> str:
        """One of an account of ours."""
        return self.run("create", "token", account, "-n", NAMESPACE).strip()

    def clients(self, account: str, number: int, connections: int) -> list[httpx.AsyncClient]:
        """Clients of an account of ours, each with so many connections."""
        limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
        headers = {"Authorization": f"Bearer {self.token(account)}"}
        return [
            httpx.AsyncClient(base_url=self._url, headers=headers, verify=self._tls, limits=limits, timeout=120.0)
            for _ in range(number)
        ]

    def patch_bare(self, path: str, patch: Json, account: str = "serried") -> httpx.Response:
        """A PATCH and nothing else, by the token of one of our accounts."""
        return self.ask_bare("PATCH", path, patch, account, "application/merge-patch+json")

    def ask_bare(
        self, verb: str, path: str, body: Json | None, account: str, kind: str = "application/json"
    ) -> httpx.Response:
        """A request and nothing else, by the token of one of our accounts; ``kind`` is the body's media type."""
        headers = {"Authorization": f"Bearer {self.token(account)}", "Content-Type": kind}
        content = None if body is None else json.dumps(body)
        return httpx.request(verb, f"{self._url}{path}", content=content, headers=headers, verify=self._tls)

    def refuses(self, said: str, verb: str, *objects: Json, options: tuple[str, ...] = ()) -> bool:
        """Return whether such a write is refused with these words by now: a policy comes into force after a while."""
        try:
            self.write(verb, *objects, options=options)
        except ClusterError as error:
            return said in str(error)
        return False

    def refusal(self, verb: str, *objects: Json, options: tuple[str, ...] = ()) -> str:
        with pytest.raises(ClusterError) as refused:
            self.write(verb, *objects, options=options)
        return str(refused.value)


def _authority(kubeconfig: Path) -> str:
    cluster = yaml.safe_load(kubeconfig.read_text())["clusters"][0]["cluster"]
    if encoded := cluster.get("certificate-authority-data"):
        return base64.b64decode(encoded).decode()
    return (kubeconfig.parent / str(cluster["certificate-authority"])).read_text()


def _items(text: str) -> Iterator[Json]:
    """kubectl prints several objects one after the other or, for some verbs, as a List."""
    rest = text.lstrip()
    while rest:
        item, end = json.JSONDecoder().raw_decode(rest)
        yield from item["items"] if item["kind"] == "List" else [item]
        rest = rest[end:].lstrip()


def eventually(check: Callable[[], bool], seconds: float = 10.0) -> None:
    """Policies and roles take effect when the API server's caches have seen them."""
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, "not within the time allowed"
        time.sleep(0.1)


def changed(item: Json, path: str, value: object) -> Json:
    """A copy with another value at a path under spec; None removes."""
    result = copy.deepcopy(item)
    *way, last = path.split(".")
    place: Any = result["spec"]
    for step in way:
        place = place[int(step) if step.isdigit() else step]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return result


def pod(name: str, scheduler: str = "nobody", gates: tuple[str, ...] = (), **metadata: Any) -> Json:
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default", **metadata},
        "spec": {
            "schedulerName": scheduler, "containers": [{"name": "c", "image": "none"}],
            "schedulingGates": [{"name": gate} for gate in gates],
        },
    }  # fmt: skip
