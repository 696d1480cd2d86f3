"""Discovery of an extender by a command, and the message when there is none."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli import main
from cli.access import HEADER
from cli.target import Target, find_kubeconfig, find_namespace, split_address
from serried.ops.access import TOKEN_HEADER
from tests.support.commands import Run
from tests.support.pod_proxy import PodProxy, extender_pod

EMPTY: dict[str, object] = {"head": None, "waiting": [], "leftOff": 0}


def pods(proxy: PodProxy, *names: str) -> None:
    items = [extender_pod(name) for name in names]
    document = {"kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": items}
    proxy.answer("/api/v1/namespaces/serried-system/pods", document)


def test_the_pod_is_found_by_its_labels_and_asked_through_the_api_server(proxy: PodProxy, run: Run) -> None:
    proxy.answer_debug("serried-0:8912", "queue", EMPTY)
    ended = run("queue", "-o", "json")
    assert (ended.code, json.loads(ended.out), ended.err) == (0, EMPTY, "")
    assert "labelSelector=app.kubernetes.io/name%3Dserried,app.kubernetes.io/component%3Dscheduler" in proxy.asked[0]


def test_its_port_is_the_one_that_is_named_ops(proxy: PodProxy, run: Run) -> None:
    document = {"kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": [extender_pod("serried-0", 9000)]}
    proxy.answer("/api/v1/namespaces/serried-system/pods", document)
    proxy.answer_debug("serried-0:9000", "selfcheck", {"active": True})
    proxy.answer_debug("serried-0:9000", "queue", EMPTY)
    assert run("queue").code == 0


def test_of_two_extenders_the_one_that_leads_is_asked(proxy: PodProxy, run: Run) -> None:
    pods(proxy, "serried-0", "serried-1")
    proxy.answer_debug("serried-0:8912", "selfcheck", {"active": False})
    proxy.answer_debug("serried-1:8912", "selfcheck", {"active": True})
    proxy.answer_debug("serried-1:8912", "queue", EMPTY)
    ended = run("queue")
    assert (ended.code, ended.err) == (0, "")


def test_where_none_leads_one_that_does_not_is_asked_and_it_is_said(proxy: PodProxy, run: Run) -> None:
    proxy.answer_debug("serried-0:8912", "selfcheck", {"active": False})
    proxy.answer_debug("serried-0:8912", "queue", EMPTY)
    ended = run("queue")
    assert ended.code == 0
    assert "no extender leads now" in ended.err


def test_an_address_is_asked_without_the_api_server(proxy: PodProxy, run: Run) -> None:
    proxy.answer("/debug/queue", EMPTY)
    assert run("queue", "-A", "--server", proxy.url).code == 0
    assert proxy.asked == ["/debug/queue?limit=1000000"]


def test_the_address_may_stand_in_the_environment(proxy: PodProxy, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERRIED_SERVER", proxy.url)
    proxy.answer("/debug/queue", EMPTY)
    assert run("queue").code == 0


def test_no_pod_is_told_with_labels_and_namespace(proxy: PodProxy, run: Run) -> None:
    pods(proxy)
    ended = run("queue")
    assert ended.code == 3
    assert "Serried is not installed in namespace serried-system of the API server http://" in ended.err
    assert "no pod with the labels app.kubernetes.io/name=serried" in ended.err
    assert "--serried-namespace" in ended.err
    assert len(ended.err.splitlines()) == 1


def test_pods_that_do_not_run_are_named_with_their_phase(proxy: PodProxy, run: Run) -> None:
    items = [extender_pod("serried-0", phase="Pending")]
    document = {"kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": items}
    proxy.answer("/api/v1/namespaces/serried-system/pods", document)
    ended = run("queue")
    assert (ended.code, "serried-system/serried-0 is Pending" in ended.err) == (3, True)


def test_one_that_does_not_answer_is_told_of_beside_the_answer_of_another(proxy: PodProxy, run: Run) -> None:
    pods(proxy, "serried-0", "serried-1")
    proxy.answer_debug("serried-0:8912", "selfcheck", {"detail": "starting"}, status=503)
    proxy.answer_debug("serried-1:8912", "selfcheck", {"active": True})
    proxy.answer_debug("serried-1:8912", "queue", EMPTY)
    ended = run("queue")
    assert (ended.code, ended.err) == (0, "serried: pod serried-system/serried-0 does not answer: starting\n")


def test_a_pod_that_does_not_answer_is_named_with_the_right_that_may_lack(proxy: PodProxy, run: Run) -> None:
    refused = {"kind": "Status", "code": 403, "message": 'User "eve" cannot get resource "pods/proxy"'}
    proxy.answer_debug("serried-0:8912", "selfcheck", refused, status=403)
    ended = run("queue")
    assert ended.code == 3
    assert 'pod serried-system/serried-0 does not answer: User "eve" cannot get resource "pods/proxy"' in ended.err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        pytest.param(
            ["--context", "away"],
            "kubeconfig) does not answer: nothing listens at this address (connection refused)",
            id="an API server that is not there",
        ),
        pytest.param(["--context", "her"], "has no context her: it has away, here; did you mean here?", id="a context"),
        pytest.param(
            ["--server", "http://127.0.0.1:1"],
            "the extender at http://127.0.0.1:1 does not answer: nothing listens at this address (connection refused)",
            id="a wrong address",
        ),
        pytest.param(
            ["--server", "http://no.such.host.invalid:80"],
            "DNS does not know the name in the address",
            id="a name that nobody knows",
        ),
    ],
)
def test_what_is_not_there_is_named(run: Run, flags: list[str], said: str) -> None:
    ended = run("queue", *flags)
    assert ended.code == 3
    assert said in ended.err
    assert "Error" not in ended.err


def test_https_to_plain_http_is_told_as_that(proxy: PodProxy, run: Run) -> None:
    server = proxy.url.replace("http://", "https://")
    ended = run("queue", "--server", server)
    assert ended.code == 3
    assert ended.err == (
        f"serried: the extender at {server} does not answer: the server speaks plain HTTP: use an address with "
        "http://\n"
    )


@pytest.mark.parametrize(
    ("status", "answer", "said"),
    [
        pytest.param(
            400,
            b"Client sent an HTTP request to an HTTPS server.\n",
            "the server speaks TLS: use an address with https://",
            id="plain HTTP to TLS",
        ),
        pytest.param(
            400,
            {"kind": "Status", "code": 400, "message": "address not allowed"},
            "the pod's address is loopback or link-local, and the API server forwards no requests",
            id="an address that an API server passes nothing on to",
        ),
    ],
)
def test_what_go_says_is_told_in_plain_words(proxy: PodProxy, run: Run, status: int, answer: Any, said: str) -> None:
    proxy.answer_debug("serried-0:8912", "selfcheck", answer, status=status)
    ended = run("queue")
    assert ended.code == 3
    assert f"pod serried-system/serried-0 does not answer: {said}" in ended.err
    assert len(ended.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("a: [b\n", "cannot be read: it is not YAML (line 2)", id="no YAML"),
        pytest.param("- a\n", "cannot be read: it is not an object", id="no object"),
        pytest.param("broken\n", "cannot be read: it is not an object", id="a word"),
        pytest.param("contexts: foo\n", "cannot be read: contexts is not a list", id="no list"),
        pytest.param("contexts: [a]\n", "an entry of contexts has no name, or no context", id="no entry"),
        pytest.param("kind: Config\n", "has no current context, and --context names none: it has none", id="nothing"),
        pytest.param(
            "contexts: [{name: a, context: {cluster: gone, user: u}}]\ncurrent-context: a\n",
            "cannot be used: ",
            id="a context of a cluster that is not there",
        ),
        pytest.param(None, "cannot be read: No such file or directory", id="no file"),
    ],
)
def test_a_broken_kubeconfig_is_named_with_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, said: str
) -> None:
    path = tmp_path / "broken"
    if text is not None:
        path.write_text(text)
    assert main(["queue", "--kubeconfig", str(path)]) == 3
    shown = capsys.readouterr().err
    assert shown.startswith(f"serried: kubeconfig {path} ")
    assert said in shown


def test_a_user_may_have_no_credentials(proxy: PodProxy, run: Run, tmp_path: Path) -> None:
    text = (tmp_path / "kubeconfig").read_text()
    (tmp_path / "kubeconfig").write_text(text.replace("{token: of-the-kubeconfig}", "{}"))
    proxy.answer_debug("serried-0:8912", "queue", EMPTY)
    assert run("queue").code == 0


def test_without_any_credentials_it_is_said_where_they_were_looked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "SERRIED_SERVER"):
        monkeypatch.delenv(name, raising=False)
    assert main(["queue"]) == 3
    shown = capsys.readouterr().err
    assert "neither --kubeconfig nor KUBECONFIG is set, ~/.kube/config does not exist, and this is not a pod" in shown


@pytest.mark.parametrize(
    "path", ["/", "/debug", "/debug/", "/debug/queue?limit=5", "/debug/groups/team/debug/x", "/debug/#gang"]
)
def test_the_address_of_a_page_is_taken_for_that_of_its_extender(path: str) -> None:
    assert split_address(f"http://localhost:8912{path}") == ("http://localhost:8912", "")
    assert split_address(f"https://proxy/serried{path}") == ("https://proxy", "/serried")


class TestKubeconfig:
    """The kubeconfig that kubectl would use, and its namespace."""

    @pytest.fixture(autouse=True)
    def home(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
        monkeypatch.setattr("cli.target.ACCOUNT", tmp_path)
        (tmp_path / "namespace").write_text("of-the-pod")
        return tmp_path

    @pytest.mark.parametrize(
        ("there", "target", "file", "namespace"),
        [
            pytest.param(["flag", "variable", "home"], Target(kubeconfig="flag"), "flag", "of-flag", id="the flag"),
            pytest.param(["variable", "home"], Target(), "variable", "of-variable", id="KUBECONFIG in a pod"),
            pytest.param(["home"], Target(), "home", "of-home", id="the usual place in a pod"),
            pytest.param([], Target(), "", "of-the-pod", id="else the pod's ServiceAccount"),
            pytest.param(["flag"], Target(kubeconfig="flag", context="bare"), "flag", "default", id="none is named"),
            pytest.param(["flag"], Target("http://h:1", kubeconfig="flag"), "flag", "of-flag", id="an address, too"),
        ],
    )
    def test_its_order_is_that_of_kubectl(
        self,
        home: Path,
        monkeypatch: pytest.MonkeyPatch,
        there: list[str],
        target: Target,
        file: str,
        namespace: str,
    ) -> None:
        files = {name: home / name for name in ("flag", "variable")} | {"home": home / ".kube" / "config"}
        (home / ".kube").mkdir()
        for name in there:
            contexts = [{"name": "c", "context": {"namespace": f"of-{name}"}}, {"name": "bare", "context": {}}]
            files[name].write_text(yaml.safe_dump({"current-context": "c", "contexts": contexts}))
        if "variable" in there:
            monkeypatch.setenv("KUBECONFIG", str(files["variable"]))
        if target.kubeconfig:
            target = replace(target, kubeconfig=str(files["flag"]))
        assert find_kubeconfig(target) == (str(files[file]) if file else "")
        assert find_namespace(target) == namespace
        assert find_namespace(target, "said") == "said"

    def test_of_several_files_the_first_current_context_counts(
        self, home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (home / "a").write_text(yaml.safe_dump({"current-context": "c", "contexts": None}))
        context = {"name": "c", "context": {"namespace": "team"}}
        (home / "b").write_text(yaml.safe_dump({"current-context": "other", "contexts": [context]}))
        monkeypatch.setenv("KUBECONFIG", f"{home / 'a'}:{home / 'b'}:{home / 'nowhere'}")
        assert find_namespace(Target()) == "team"


@pytest.mark.parametrize(
    ("address", "said"),
    [
        pytest.param("localhost:8912", "a URL with http:// or https:// is needed", id="no scheme"),
        pytest.param("http://h:99999", "Port out of range", id="a port that cannot be"),
        pytest.param("http://h:http", "Port could not be cast", id="a port that is no number"),
        pytest.param("http://[::1", "Invalid IPv6 URL", id="half an IPv6 address"),
        pytest.param("http://:8912", "a host, and a port other than 0, is needed", id="no host"),
    ],
)
def test_an_address_that_is_none_is_a_wrong_command_line(run: Run, address: str, said: str) -> None:
    ended = run("queue", "--server", address)
    assert ended.code == 2
    assert f"--server {address!r}" in ended.err
    assert said in ended.err


def test_a_route_that_an_older_extender_lacks_is_told_as_that(proxy: PodProxy, run: Run) -> None:
    proxy.answer_debug("serried-0:8912", "queue", {"detail": "Not Found"}, status=404)
    ended = run("queue")
    assert ended.code == 3
    assert "it has another version than this command" in ended.err


def test_a_page_that_is_no_json_is_told_as_that(proxy: PodProxy, run: Run) -> None:
    proxy.answer("/debug/queue", b"<html>Log in first</html>")
    ended = run("queue", "--server", proxy.url)
    assert ended.code == 3
    assert "with JSON: check that the address is that of an extender" in ended.err


TOKENS = "/api/v1/namespaces/serried-system/serviceaccounts/serried-debug-reader/token"
NO_TOKEN = {"detail": "serried: a bearer token is needed here"}


def answer_with_token(proxy: PodProxy) -> None:
    proxy.answer(TOKENS, {"status": {"token": "made-for-us"}})
    proxy.answer_debug("serried-0:8912", "queue", EMPTY)


class TestTokens:
    def test_one_is_made_for_the_way_through_the_api_server(self, proxy: PodProxy, run: Run) -> None:
        answer_with_token(proxy)
        assert run("queue").code == 0
        shown = [headers.get("x-serried-token") for target, headers in proxy.headers if "/proxy/debug/" in target]
        assert shown == ["made-for-us"] * 2

    def test_an_address_is_not_shown_what_opens_the_api_server(self, proxy: PodProxy, run: Run) -> None:
        proxy.answer("/debug/queue", EMPTY)
        assert run("queue", "--server", proxy.url).code == 0
        assert [headers.get("authorization") for _, headers in proxy.headers] == [None]

    def test_the_extender_looks_where_a_command_puts_it(self) -> None:
        assert HEADER.lower().encode() == TOKEN_HEADER

    def test_one_in_a_file_is_shown_instead(self, proxy: PodProxy, run: Run, tmp_path: Path) -> None:
        answer_with_token(proxy)
        (tmp_path / "token").write_text("mine\n")
        assert run("queue", "--token-file", str(tmp_path / "token")).code == 0
        assert TOKENS not in proxy.asked
        assert {headers.get("x-serried-token") for target, headers in proxy.headers if "/debug/" in target} == {"mine"}

    def test_an_address_is_shown_one_as_usual(
        self, proxy: PodProxy, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "token").write_text("mine")
        monkeypatch.setenv("SERRIED_TOKEN_FILE", str(tmp_path / "token"))
        proxy.answer("/debug/queue", EMPTY)
        assert run("queue", "--server", proxy.url).code == 0
        assert [headers.get("authorization") for _, headers in proxy.headers] == ["Bearer mine"]

    def test_an_extender_that_asks_for_none_is_asked_all_the_same(self, proxy: PodProxy, run: Run) -> None:
        proxy.answer(TOKENS, {"kind": "Status", "message": "not found"}, status=404)
        proxy.answer_debug("serried-0:8912", "queue", EMPTY)
        assert run("queue").code == 0

    def test_where_none_can_be_made_and_one_is_needed_the_reason_is_said(self, proxy: PodProxy, run: Run) -> None:
        refused = {"kind": "Status", "message": 'User "eve" cannot create resource "serviceaccounts/token"'}
        proxy.answer(TOKENS, refused, status=403)
        proxy.answer_debug("serried-0:8912", "selfcheck", NO_TOKEN, status=401)
        ended = run("queue")
        assert ended.code == 3
        assert "a bearer token is needed here" in ended.err
        assert 'User "eve" cannot create resource "serviceaccounts/token"' in ended.err
        assert "the Role serried-commands" in ended.err

    def test_a_right_that_lacks_is_told_in_the_extenders_words(self, proxy: PodProxy, run: Run) -> None:
        refused = {"detail": "serried: eve may not get /debug/queue: bind the ClusterRole serried-debug-reader to it"}
        proxy.answer("/debug/queue", refused, status=403)
        ended = run("queue", "--server", proxy.url)
        assert ended.code == 3
        assert "bind the ClusterRole serried-debug-reader" in ended.err

    def test_a_file_that_is_not_there_is_a_wrong_command_line(self, run: Run) -> None:
        ended = run("queue", "--token-file", "/nowhere")
        assert ended.code == 2
        assert "--token-file: " in ended.err

    def test_a_file_that_is_no_text_is_one_too(self, run: Run, tmp_path: Path) -> None:
        (tmp_path / "token").write_bytes(b"\xff\xfe")
        ended = run("queue", "--token-file", str(tmp_path / "token"))
        assert ended.code == 2
        assert "--token-file: " in ended.err
