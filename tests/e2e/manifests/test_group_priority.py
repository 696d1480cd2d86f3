"""The priority of a group of the fallback API is written by Serried's controller alone."""

import json
from collections.abc import Iterator

import httpx
import pytest

from bench.cluster import ClusterError
from tests.e2e.manifests.objects import REF
from tests.e2e.manifests.server import EXTENDER, GROUP, Json, Server, changed, eventually

pytestmark = pytest.mark.e2e

AS_TENANT = ("--as", "tenant")
FORBIDDEN = "spec.priority: Forbidden: Serried's controller sets it"
MOST = 1000000000


def group(kind: str, name: str, **spec: object) -> Json:
    policies = {"PodGroup": {"gang": {"minCount": 2}}, "CompositePodGroup": {"gang": {"minGroupCount": 2}}}
    metadata = {"name": name, "namespace": "default"}
    spec = {"schedulingPolicy": policies[kind], "workloadRef": REF, **spec}
    return {"apiVersion": f"{GROUP}/v1beta1", "kind": kind, "metadata": metadata, "spec": spec}


@pytest.fixture(params=["PodGroup", "CompositePodGroup"])
def kind(request: pytest.FixtureRequest, tenant: None) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def tenant(server: Server) -> Iterator[None]:
    """The user "tenant" may do anything in one namespace, by a role that has nothing but wildcards."""
    server.run("create", "rolebinding", "tenant", "--clusterrole=cluster-admin", "--user=tenant", "-n", "default")
    eventually(lambda: server.run("auth", "can-i", "create", f"podgroups.{GROUP}", *AS_TENANT).strip() == "yes")
    probe = group("PodGroup", "probe", priority=1)
    eventually(lambda: server.refuses(FORBIDDEN, "create", probe, options=DRY))
    yield
    server.run("delete", "rolebinding", "tenant", "-n", "default")


DRY = ("--dry-run=server", *AS_TENANT)


@pytest.fixture
def made(server: Server, kind: str) -> Iterator[str]:
    """A tenant's group without a priority, as kubectl names it."""
    name = f"{kind.lower()}s.{GROUP}/mine"
    server.write("create", group(kind, "mine"), options=AS_TENANT)
    yield name
    server.run("delete", name)


@pytest.mark.parametrize("spec", [{"priority": MOST}, {"priority": 0}, {"priority": 5, "priorityClassName": "high"}])
def test_a_tenant_makes_no_group_with_a_priority(server: Server, kind: str, spec: Json) -> None:
    assert FORBIDDEN in server.refusal("create", group(kind, "greedy", **spec), options=AS_TENANT)


def test_nor_does_one_write_it_later_by_whatever_verb(server: Server, kind: str, made: str) -> None:
    stored = server.get(made)
    assert FORBIDDEN in server.refusal("replace", changed({**stored}, "priority", MOST), options=AS_TENANT)
    for patch in ({"spec": {"priority": MOST}}, [{"op": "add", "path": "/spec/priority", "value": MOST}]):
        with pytest.raises(ClusterError, match=FORBIDDEN):
            server.patch(made, patch, *AS_TENANT)
    owned = group(kind, "mine", priority=MOST)
    assert FORBIDDEN in server.refusal("apply", owned, options=("--server-side", "--force-conflicts", *AS_TENANT))
    assert "priority" not in server.get(made)["spec"]


def test_nor_by_way_of_the_status(server: Server, made: str) -> None:
    patch = json.dumps({"spec": {"priority": MOST}, "status": {"conditions": []}})
    server.run("patch", *made.split("/"), "--subresource=status", "--type=merge", "-p", patch, *AS_TENANT)
    assert "priority" not in server.get(made)["spec"]


@pytest.mark.parametrize("account", [EXTENDER, "system:serviceaccount:default:default"])
def test_other_accounts_may_not_either(server: Server, made: str, account: str) -> None:
    with pytest.raises(ClusterError, match=r"Forbidden|cannot patch"):
        server.patch(made, {"spec": {"priority": MOST}}, "--as", account)


def give(server: Server, made: str, priority: int | None) -> httpx.Response:
    """The controller writes a priority: it reads no group by name."""
    plural, _, name = made.partition(f".{GROUP}/")
    path = f"/apis/{GROUP}/v1beta1/namespaces/default/{plural}/{name}"
    return server.patch_bare(path, {"spec": {"priority": priority}}, "serried-controller")


def test_the_controller_writes_it_once_and_then_it_stays(server: Server, made: str) -> None:
    give(server, made, 7).raise_for_status()
    assert server.get(made)["spec"]["priority"] == 7
    for value in (8, None):
        assert "immutable once set" in give(server, made, value).text
        for who in (AS_TENANT, ()):
            with pytest.raises(ClusterError, match=rf"immutable once set|{FORBIDDEN}"):
                server.patch(made, {"spec": {"priority": value}}, *who)


def test_what_has_a_priority_may_be_changed_otherwise_by_its_tenant(server: Server, made: str) -> None:
    give(server, made, 7).raise_for_status()
    server.patch(made, {"metadata": {"labels": {"team": "a"}}}, *AS_TENANT)
    (replaced,) = server.write("replace", {**server.get(made), "status": {}}, options=AS_TENANT)
    assert replaced["spec"]["priority"] == 7


def test_one_that_is_deleted_and_made_anew_has_none(server: Server, kind: str, made: str) -> None:
    give(server, made, 7).raise_for_status()
    kept = server.get(made)
    server.run("delete", made, *AS_TENANT)
    del kept["metadata"]["resourceVersion"], kept["metadata"]["uid"]
    assert FORBIDDEN in server.refusal("create", kept, options=AS_TENANT)
    server.write("create", group(kind, "mine"), options=AS_TENANT)
    assert "priority" not in server.get(made)["spec"]


def test_an_administrator_restores_one_as_it_was(server: Server, kind: str) -> None:
    (restored,) = server.write("create", group(kind, "restored", priority=7), options=("--dry-run=server",))
    assert restored["spec"]["priority"] == 7
