"""Access to metrics and debug pages, as a real API server allows it, and the callers that reach them through it."""

import copy
import json
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from bench.cluster import Cluster, ClusterError
from bench.cluster.installation import MANIFESTS, kubeconfig
from tests.e2e.roles.rights import leave_out, list_grants
from tests.support.addresses import find_address
from tests.support.cluster_stage import RACK, SCHEDULER, ClusterStage, eventually, indexed_spec, names
from tests.support.commands import Run
from tests.unit.manifests.shipped import read_all

pytestmark = pytest.mark.e2e

HOME = "serried-system"
KEPT_SECONDS = 2.0
API_SERVER_KEEPS_SECONDS = 10.0
"""The time that the API server remembers a good token (apiserver/pkg/authentication/token/cache)."""

QUEUE = "/debug/queue"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
ROLES = f"{RBAC}/namespaces/{HOME}/roles"


class Remote:
    """Both processes of a cluster as they are seen over the network."""

    def __init__(self, cluster: Cluster, address: str, http: httpx.Client) -> None:
        self.cluster = cluster
        self.address = address
        self._http = http

    def ask(self, path: str, token: str = "", url: str = "", scheme: str = "https") -> httpx.Response:
        """The answer of the extender, or of the process at ``url``."""
        port = urlsplit(url or self.cluster.ops_url).port
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return self._http.get(f"{scheme}://{self.address}:{port}{path}", headers=headers)

    def find_status(self, verb: str, path: str, token: str) -> int:
        """The status of the extender's answer, of which no more is read: one of the pages never ends."""
        url = f"https://{self.address}:{urlsplit(self.cluster.ops_url).port}{path}"
        with self._http.stream(verb.upper(), url, headers={"Authorization": f"Bearer {token}"}) as answer:
            return answer.status_code

    def write_kubeconfig(self, token: str, directory: Path) -> str:
        """Write a kubeconfig with this token. Return its path."""
        authority = self.cluster.kubeconfig.parent / "pki" / "ca.crt"
        path = directory / "kubeconfig"
        path.write_text(json.dumps(kubeconfig(self.cluster.server, authority.read_bytes(), token)))
        return str(path)

    def create_account(self, name: str, role: str = "") -> str:
        """A ServiceAccount, with a role if one is named; its token."""
        self.cluster.kubectl("create", "serviceaccount", name, "-n", HOME)
        if role:
            account = f"--serviceaccount={HOME}:{name}"
            self.cluster.kubectl("create", "clusterrolebinding", name, f"--clusterrole={role}", account)
        return self.make_token(name)

    def make_token(self, name: str) -> str:
        return self.cluster.kubectl("create", "token", name, "-n", HOME).strip()

    @contextmanager
    def stopped_api_server(self) -> Iterator[None]:
        """The API server takes connections and answers nothing."""
        os.kill(self.cluster.pids["kube-apiserver"], signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.cluster.pids["kube-apiserver"], signal.SIGCONT)


@pytest.fixture(scope="module")
def remote(cluster: Cluster) -> Iterator[Remote]:
    """Both processes on every address, as the manifests have them."""
    address = find_address()
    kept = f"--ops-auth-cache={KEPT_SECONDS:g}"
    for name, url in (("extender", cluster.ops_url), ("controller", cluster.controller_url)):
        cluster.restart(name, f"--ops-listen=:{urlsplit(url).port}", kept)  # type: ignore[arg-type]
    cluster.kubectl("apply", "-f", str(MANIFESTS / "kustomize" / "monitoring" / "reader.yaml"))
    with httpx.Client(verify=False, timeout=20, trust_env=False) as http:  # noqa: S501 - it is signed by itself
        yield Remote(cluster, address, http)


@pytest.fixture(scope="module")
def reader(remote: Remote) -> str:
    """The token of the account that is shipped."""
    token = remote.make_token("serried-debug-reader")
    eventually("the role of the readers", lambda: remote.ask(QUEUE, token).status_code == 200)
    return token


@pytest.fixture
def tokens(remote: Remote, reader: str, strangers: str) -> dict[str, str]:
    """Tokens by caller; "" for the caller without one."""
    shipped = {"a reader": reader, "prometheus": remote.make_token("serried-metrics-reader")}
    return {"nobody": "", "a liar": reader[:-9] + "AAAAAAAAA", "a stranger": strangers, **shipped}


@pytest.mark.parametrize(
    ("path", "who", "status"),
    [
        pytest.param("/livez", "nobody", 200, id="probes need no token"),
        pytest.param("/readyz", "nobody", 200, id="readiness needs none either"),
        pytest.param(QUEUE, "a reader", 200, id="a token with the right"),
        pytest.param("/debug/groups/a/b", "a reader", 404, id="pages below a page are opened, too"),
        pytest.param("/metrics", "a reader", 200, id="and metrics"),
        pytest.param("/metrics", "prometheus", 200, id="metrics for Prometheus"),
    ],
)
def test_who_may_look_over_the_network_is_let_in(
    remote: Remote, tokens: dict[str, str], path: str, who: str, status: int
) -> None:
    eventually(f"{status} for {who}", lambda: remote.ask(path, tokens[who]).status_code == status)


@pytest.mark.parametrize(
    ("path", "who", "status"),
    [
        pytest.param(QUEUE, "nobody", 401, id="no token"),
        pytest.param("/metrics", "nobody", 401, id="no token for metrics"),
        pytest.param(QUEUE, "a liar", 401, id="a token that is none"),
        pytest.param(QUEUE, "a stranger", 403, id="a token without the right"),
        pytest.param(QUEUE, "prometheus", 403, id="a right to metrics and to nothing else"),
    ],
)
def test_who_may_not_is_refused_from_the_first_answer_on(
    remote: Remote, tokens: dict[str, str], path: str, who: str, status: int
) -> None:
    assert remote.ask(path, tokens[who]).status_code == status


@pytest.fixture(scope="module")
def strangers(remote: Remote) -> str:
    """The token of one who may nothing."""
    return remote.create_account("stranger")


@pytest.mark.full
def test_each_page_that_the_reader_s_role_opens_is_closed_to_others(
    remote: Remote, reader: str, strangers: str
) -> None:
    rules = remote.cluster.api.get(f"{RBAC}/clusterroles/serried-debug-reader")["rules"]
    pages = [(verb, path) for rule in rules for path in rule["nonResourceURLs"] for verb in rule["verbs"]]
    asked = [(verb, path.replace("*", "some")) for verb, path in pages]
    assert {page: remote.find_status(*page, strangers) for page in asked} == dict.fromkeys(asked, 403)
    refused = [page for page in asked if remote.find_status(*page, reader) in {401, 403, 503}]
    assert not refused


def test_the_controller_asks_as_well(remote: Remote, strangers: str) -> None:
    url = remote.cluster.controller_url
    assert remote.ask("/metrics", url=url).status_code == 401
    assert remote.ask("/metrics", strangers, url=url).status_code == 403
    token = remote.make_token("serried-metrics-reader")
    eventually("metrics", lambda: remote.ask("/metrics", token, url=url).status_code == 200)


def test_a_token_is_not_taken_by_plain_http_and_loopback_needs_none(remote: Remote, reader: str) -> None:
    assert remote.ask(QUEUE, reader, scheme="http").status_code == 400
    assert httpx.get(f"{remote.cluster.ops_url}{QUEUE}").status_code == 200


def test_what_is_said_to_a_stranger_names_the_role_and_not_the_token(remote: Remote, strangers: str) -> None:
    said = remote.ask(QUEUE, strangers).json()["detail"]
    assert f":stranger may not get {QUEUE}: bind the ClusterRole" in said
    log = Path(remote.cluster.logs["extender"]).read_text()
    assert strangers not in log + said


def test_a_token_that_is_taken_away_opens_nothing_when_its_time_is_over(remote: Remote) -> None:
    token = remote.create_account("passing", "serried-debug-reader")
    eventually("the right", lambda: remote.ask(QUEUE, token).status_code == 200)
    remote.cluster.kubectl("delete", "serviceaccount", "passing", "-n", HOME)
    begun = time.monotonic()
    eventually("no way in", lambda: remote.ask(QUEUE, token).status_code == 401)
    assert time.monotonic() - begun < KEPT_SECONDS + API_SERVER_KEEPS_SECONDS + 3


def test_a_right_that_is_taken_away_opens_nothing_when_its_time_is_over(remote: Remote) -> None:
    token = remote.create_account("demoted", "serried-debug-reader")
    eventually("the right", lambda: remote.ask(QUEUE, token).status_code == 200)
    remote.cluster.kubectl("delete", "clusterrolebinding", "demoted")
    begun = time.monotonic()
    eventually("no way in", lambda: remote.ask(QUEUE, token).status_code == 403)
    assert time.monotonic() - begun < KEPT_SECONDS + 3


@pytest.mark.full
def test_while_the_api_server_hangs_readers_go_on_for_a_time_and_probes_for_ever(remote: Remote, reader: str) -> None:
    assert remote.ask(QUEUE, reader).status_code == 200
    with remote.stopped_api_server():
        assert remote.ask(QUEUE, reader).status_code == 200
        time.sleep(KEPT_SECONDS)
        answer = remote.ask(QUEUE, reader)
        assert (answer.status_code, "does not answer" in answer.text) == (503, True)
        assert remote.ask("/livez").status_code == 200
    eventually("readers again", lambda: remote.ask(QUEUE, reader).status_code == 200)


@pytest.fixture
def pod(remote: Remote) -> Iterator[None]:
    """The extender as a pod that the API server reaches. Its node is none of kwok's, which would give it an address.

    The garbage collector of pods deletes every pod on a node that has been gone for 40 s: each pod names another one.
    """
    port = urlsplit(remote.cluster.ops_url).port
    (deployment,) = [each.content for each in read_all() if (each.kind, each.name) == ("Deployment", "serried")]
    template = copy.deepcopy(deployment["spec"]["template"])
    template["metadata"]["name"] = "serried-0"
    template["spec"]["nodeName"] = f"elsewhere-{uuid.uuid4().hex[:8]}"
    for container in [*template["spec"]["containers"], *template["spec"].get("initContainers", ())]:
        container["ports"] = [{"name": each["name"], "containerPort": port} for each in container.get("ports", ())]
    path = f"/api/v1/namespaces/{HOME}/pods"
    remote.cluster.api.post(path, {"apiVersion": "v1", "kind": "Pod", **template})
    status = {"phase": "Running", "podIP": remote.address, "podIPs": [{"ip": remote.address}]}
    patch = ("--subresource=status", "--type=merge", "-p", json.dumps({"status": status}))
    remote.cluster.kubectl("patch", "pod", "serried-0", "-n", HOME, *patch)
    yield
    remote.cluster.kubectl("delete", "pod", "serried-0", "-n", HOME, "--force", "--grace-period=0")


def test_a_person_reaches_it_through_the_api_server_with_nothing_but_a_kubeconfig(pod: None, serried: Run) -> None:
    ended = serried("queue", "-o", "json")
    assert ended.code == 0, ended.err
    assert "waiting" in json.loads(ended.out)


def test_who_is_no_administrator_needs_the_role_of_the_commands(
    remote: Remote, pod: None, serried: Run, tmp_path: Path
) -> None:
    mine = remote.write_kubeconfig(remote.create_account("person"), tmp_path)
    refused = serried("queue", "--kubeconfig", mine)
    assert refused.code == 3
    assert "cannot list resource" in refused.err
    account = f"--serviceaccount={HOME}:person"
    remote.cluster.kubectl("create", "rolebinding", "person", "--role=serried-commands", account, "-n", HOME)
    eventually("the commands", lambda: serried("queue", "--kubeconfig", mine).code == 0)
    with pytest.raises(ClusterError, match="Forbidden"):
        remote.cluster.kubectl("get", "secrets", "-n", HOME, "--kubeconfig", mine)


def test_a_tenant_is_told_the_gangs_of_namespaces_whose_pods_it_may_list(
    remote: Remote, pod: None, stage: ClusterStage, serried: Run, tmp_path: Path
) -> None:
    stage.create_group("ring", 5, RACK)
    stage.create_pods(names("ring", 5), "ring", cpu="30")
    stage.await_reason("ring", "NoDomainFits")
    mine = ("--kubeconfig", remote.write_kubeconfig(remote.create_account("tenant"), tmp_path))
    account = f"--serviceaccount={HOME}:tenant"
    remote.cluster.kubectl("create", "rolebinding", "tenant", "--role=serried-commands", account, "-n", HOME)
    eventually("the commands", lambda: serried("gangs", "-A", *mine).code == 0)
    for command in ("gangs", "queue"):
        out = serried(command, "-A", *mine).out
        assert ("in namespaces whose pods you may not list" in out, "ring" in out) == (True, False), out

    remote.cluster.kubectl("create", "rolebinding", "tenant", "--clusterrole=view", account, "-n", stage.namespace)
    asked = ("-A", "-o", "name", *mine)
    eventually("its name", lambda: serried("gangs", *asked).out == f"{stage.namespace}/ring\n")
    assert serried("queue", *asked).out == f"{stage.namespace}/ring\n"


def test_the_page_comes_through_the_api_server(pod: None, environment: dict[str, str]) -> None:
    # A shell lets what it runs in the background ignore Ctrl-C, and so all that this starts in turn.
    command = ["env", "--default-signal=INT", "serried", "page", "--no-browser"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True) as page:
        assert page.stdout is not None
        url = page.stdout.readline().strip()
        assert "<title>Serried</title>" in httpx.get(url).text
        try:
            with httpx.stream("GET", f"{url}stream") as answer:
                assert next(answer.iter_lines()).startswith('data: {"reset":true')
                page.send_signal(signal.SIGINT)
                _, said = page.communicate(timeout=30)
        finally:
            page.kill()
    assert (page.returncode, said) == (0, "serried: press Ctrl-C to end it\n")


@pytest.mark.full
@pytest.mark.parametrize(
    ("verb", "resource", "said"),
    [
        ("list", "pods", 'cannot list resource "pods"'),
        ("get", "pods/proxy", 'cannot get resource "pods/proxy"'),
        ("create", "pods/proxy", 'cannot create resource "pods/proxy"'),
        ("create", "serviceaccounts/token", "Serried could not create a token for the extender"),
    ],
)
def test_who_lacks_one_right_of_that_role_learns_which(
    remote: Remote, pod: None, serried: Run, tmp_path: Path, verb: str, resource: str, said: str
) -> None:
    name = f"lacks-{verb}-{resource.replace('/', '-')}"
    token = remote.create_account(name)
    rules = remote.cluster.api.get(f"{ROLES}/serried-commands")["rules"]
    (lacking,) = [grant for grant in list_grants(name, rules) if (grant.verb, grant.resource) == (verb, resource)]
    remote.cluster.api.post(ROLES, {"metadata": {"name": name}, "rules": leave_out(name, rules, lacking)})
    account = f"--serviceaccount={HOME}:{name}"
    remote.cluster.kubectl("create", "rolebinding", name, f"--role={name}", account, "-n", HOME)

    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"}, "spec": indexed_spec(SCHEDULER, "1")}
    manifest = tmp_path / "job.json"
    manifest.write_text(json.dumps(job))
    question = ("whatif", str(manifest), "--kubeconfig", remote.write_kubeconfig(token, tmp_path))
    eventually("the refusal", lambda: said in serried(*question).err)
    assert serried(*question).code == 3

    remote.cluster.kubectl("create", "rolebinding", f"{name}-no-more", "--role=serried-commands", account, "-n", HOME)
    eventually("the answer", lambda: serried(*question).code == 0)
