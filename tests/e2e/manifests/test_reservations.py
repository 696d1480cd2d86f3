"""Reservations are written by Serried's extender alone, whatever a user may do in one namespace."""

from collections.abc import Iterator

import pytest

from bench.cluster import ClusterError
from tests.e2e.manifests.server import CONTROLLER, EXTENDER, GROUP, Json, Server, eventually

pytestmark = pytest.mark.e2e

AS_TENANT, AS_EXTENDER = ("--as", "tenant"), ("--as", EXTENDER)
DRY = ("--dry-run=server", *AS_TENANT)
FORBIDDEN = "Reservations are Serried's own"
RECORD = f"reservations.{GROUP}/kept"


def record(name: str, namespace: str = "default", **spec: object) -> Json:
    """A record of a gang of one."""
    metadata = {"name": name, "namespace": namespace}
    spec = {"podGroup": name, "podGroupUID": "u", "phase": "Planned", "minCount": 1, **spec}
    return {"apiVersion": f"{GROUP}/v1beta1", "kind": "Reservation", "metadata": metadata, "spec": spec}


@pytest.fixture(scope="module", autouse=True)
def tenant(server: Server) -> Iterator[None]:
    """The user "tenant" may do anything in one namespace, by a role that has nothing but wildcards."""
    server.run("create", "rolebinding", "tenant", "--clusterrole=cluster-admin", "--user=tenant", "-n", "default")
    eventually(lambda: server.run("auth", "can-i", "create", f"reservations.{GROUP}", *AS_TENANT).strip() == "yes")
    eventually(lambda: server.refuses(FORBIDDEN, "create", record("probe"), options=DRY))
    yield
    server.run("delete", "rolebinding", "tenant", "-n", "default")


@pytest.fixture
def kept(server: Server) -> Iterator[str]:
    """A record that the extender has written, as kubectl names it."""
    server.write("create", record("kept"), options=AS_EXTENDER)
    yield RECORD
    server.run("delete", RECORD, "--ignore-not-found")


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({}, id="of the format that is written"),
        pytest.param({"format": 1000}, id="of a format that nobody knows, which would stop all plans"),
        pytest.param(
            {"victims": [{"uid": "v", "namespace": "kube-system", "name": "v"}]},
            id="with a victim in another namespace",
        ),
    ],
)
def test_a_tenant_makes_no_record(server: Server, spec: Json) -> None:
    assert FORBIDDEN in server.refusal("create", record("forged", **spec), options=AS_TENANT)


def test_nor_does_one_change_a_record_by_whatever_verb(server: Server, kept: str) -> None:
    stored = server.get(kept)
    stored["spec"]["format"] = 1000
    assert FORBIDDEN in server.refusal("replace", stored, options=AS_TENANT)
    for patch in ({"spec": {"format": 1000}}, [{"op": "add", "path": "/spec/format", "value": 1000}]):
        with pytest.raises(ClusterError, match=FORBIDDEN):
            server.patch(kept, patch, *AS_TENANT)
    owned = record("kept", format=1000)
    assert FORBIDDEN in server.refusal("apply", owned, options=("--server-side", "--force-conflicts", *AS_TENANT))
    assert "format" not in server.get(kept)["spec"]


def test_nor_delete_one_alone_or_with_all_others(server: Server, kept: str) -> None:
    for what in ([kept], [f"reservations.{GROUP}", "--all", "-n", "default"]):
        with pytest.raises(ClusterError, match=FORBIDDEN):
            server.run("delete", *what, *AS_TENANT)
    path = f"/apis/{GROUP}/v1beta1/namespaces/default/reservations"
    with pytest.raises(ClusterError, match=FORBIDDEN):
        server.run("delete", "--raw", path, *AS_TENANT)
    assert server.get(kept)


@pytest.mark.parametrize("account", [CONTROLLER, "system:serviceaccount:default:default"])
def test_other_accounts_may_not_either(server: Server, kept: str, account: str) -> None:
    with pytest.raises(ClusterError, match=r"[Ff]orbidden|cannot patch"):
        server.patch(kept, {"spec": {"phase": "Committed"}}, "--as", account)


def test_the_extender_writes_changes_and_deletes_its_records(server: Server, kept: str) -> None:
    stored = server.get(kept)
    stored["spec"]["phase"] = "Committed"
    (written,) = server.write("replace", stored, options=AS_EXTENDER)
    assert written["spec"]["phase"] == "Committed"
    server.run("delete", kept, "--wait=false", *AS_EXTENDER)
    eventually(lambda: not server.run("get", kept, "--ignore-not-found"))


def test_an_administrator_cleans_up(server: Server, kept: str) -> None:
    """As in an emergency: a record of a later release stops all plans until it is gone."""
    server.patch(kept, {"spec": {"format": 3}})
    server.run("delete", kept)
    assert not server.run("get", kept, "--ignore-not-found")


def test_one_whose_owner_a_tenant_deletes_goes_with_it(server: Server) -> None:
    """The garbage collector may."""
    owner: Json = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owner", "namespace": "default"}}
    (made,) = server.write("create", owner, options=AS_TENANT)
    owned = record("owned")
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": made["metadata"]["uid"]}
    owned["metadata"]["ownerReferences"] = [reference]
    server.write("create", owned, options=AS_EXTENDER)
    server.run("delete", "configmap", "owner", *AS_TENANT)
    eventually(lambda: not server.run("get", f"reservations.{GROUP}/owned", "--ignore-not-found"), seconds=60.0)


def test_one_whose_namespace_is_deleted_goes_with_it(server: Server) -> None:
    """The namespace controller may."""
    server.run("create", "namespace", "team-b")
    server.write("create", record("left", "team-b"), options=AS_EXTENDER)
    server.run("delete", "namespace", "team-b", "--timeout=60s")
    assert not server.run("get", "namespace", "team-b", "--ignore-not-found")
