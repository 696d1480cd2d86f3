"""A kubeconfig is read as kubectl reads it; the official Python client is the witness where it does so, too."""

import base64
import json
import ssl
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.client import Configuration
from kubernetes.config import load_kube_config

from serried.kube.auth import Credentials, CredentialsError, load_credentials, read_credentials
from serried.kube.kubeconfig import Kubeconfig, read_kubeconfig

API = "client.authentication.k8s.io"


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pki")
    command = f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=x -keyout {folder}/key -out {folder}/cert"
    subprocess.run(command.split(), check=True, capture_output=True)
    return folder


@pytest.fixture(autouse=True)
def _without_an_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)


def describe(name: str, cluster: dict[str, Any], user: dict[str, Any], /, **more: Any) -> dict[str, Any]:
    """A kubeconfig of one context, and its cluster and user of the same name."""
    return {
        "contexts": [{"name": name, "context": {"cluster": name, "user": name} | more}],
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": name, "user": user}],
        "current-context": name,
    }


def write(path: Path, document: dict[str, Any]) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text(yaml.safe_dump(document))
    return str(path)


def encode(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def load(tmp_path: Path, cluster: dict[str, Any], user: dict[str, Any]) -> Credentials:
    return load_credentials(write(tmp_path / "config", describe("c", {"server": "https://api"} | cluster, user)))


# ---------------------------------------------------------------- files


def test_the_first_of_several_files_counts_and_missing_ones_do_not(tmp_path: Path) -> None:
    one = write(tmp_path / "one", describe("a", {"server": "http://one"}, {"token": "1"}, namespace="team"))
    other = describe("a", {"server": "http://other"}, {"token": "2"})
    other["contexts"] += [{"name": "b", "context": {"cluster": "b", "user": "a"}}]
    other["clusters"] += [{"name": "b", "cluster": {"server": "http://b"}}]
    two = write(tmp_path / "two", other | {"current-context": "b"})
    merged = read_kubeconfig(f"{tmp_path / 'none'}:{one}:{two}")
    assert (merged.current, merged.namespace()) == ("a", "team")
    assert merged.choose().cluster["server"] == "http://one"
    chosen = merged.choose("b")
    assert (chosen.cluster["server"], chosen.user["token"]) == ("http://b", "1")


def test_paths_are_relative_to_the_file_that_names_them(tmp_path: Path, pki: Path) -> None:
    (tmp_path / "deep").mkdir()
    for name in ("cert", "key"):
        (tmp_path / "deep" / name).write_bytes((pki / name).read_bytes())
    (tmp_path / "deep" / "token").write_text("of-a-file\n")
    user = {"client-certificate": "cert", "client-key": "key", "tokenFile": "token"}
    document = describe("c", {"server": "https://api", "certificate-authority": "cert"}, user)
    credentials = load_credentials(write(tmp_path / "deep" / "config", document))
    assert credentials.tls is not None
    assert len(credentials.tls.get_ca_certs()) == 1
    assert credentials.read_token() == "of-a-file"


def test_certificates_may_stand_in_the_file_and_win_over_named_ones(tmp_path: Path, pki: Path) -> None:
    cluster = {"certificate-authority-data": encode(pki / "cert"), "certificate-authority": "/nowhere"}
    user = {f"client-{each}-data": encode(pki / name) for each, name in (("certificate", "cert"), ("key", "key"))}
    credentials = load(tmp_path, cluster, user | {"client-key": "/nowhere"})
    assert credentials.tls is not None
    assert len(credentials.tls.get_ca_certs()) == 1


def test_an_address_with_a_path_and_a_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    credentials = load(tmp_path, {"server": "https://host/k8s/one/", "proxy-url": "http://proxy:3128"}, {})
    assert (credentials.host, credentials.proxy) == ("https://host/k8s/one", "http://proxy:3128")
    monkeypatch.setenv("HTTPS_PROXY", "http://usual:1")
    assert load(tmp_path, {}, {}).proxy == "http://usual:1"
    monkeypatch.setenv("NO_PROXY", "api")
    assert load(tmp_path, {}, {}).proxy == ""


def test_a_token_that_somebody_writes_anew_into_the_file_is_found(tmp_path: Path) -> None:
    credentials = load(tmp_path, {}, {"token": "old"})
    write(tmp_path / "config", describe("c", {"server": "https://api"}, {"token": "new"}))
    assert (credentials.read_token(), credentials.renew_token()) == ("old", "new")


def oidc(token: str) -> dict[str, Any]:
    return {"auth-provider": {"name": "oidc", "config": {"id-token": token}}}


def make_id_token(**claims: Any) -> str:
    """A token as an identity provider makes it, but for its signature."""
    return f"e30.{base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip('=')}.signature"


def test_an_id_token_that_has_expired_is_said_until_kubectl_has_renewed_it(tmp_path: Path) -> None:
    credentials = load(tmp_path, {}, oidc(make_id_token(exp=1_500_000_000)))
    with pytest.raises(CredentialsError, match="oidc has expired: run any command of kubectl, which renews it"):
        credentials.read_token()
    renewed = make_id_token(exp=32_503_680_000)
    load(tmp_path, {}, oidc(renewed))
    assert credentials.read_token() == renewed


@pytest.mark.parametrize("token", ["opaque", make_id_token(), make_id_token(exp="soon"), "e30.?.x", "e30.WzFd.x"])
def test_an_id_token_that_does_not_say_when_it_expires_is_shown_to_the_server(tmp_path: Path, token: str) -> None:
    assert load(tmp_path, {}, oidc(token)).read_token() == token


@pytest.mark.parametrize(
    ("cluster", "user", "said"),
    [
        pytest.param({}, {"as": "admin", "token": "t"}, "impersonates another one", id="somebody else"),
        pytest.param({}, {"username": "u", "password": "p"}, "use a token or a certificate", id="a password"),
        pytest.param({}, {"auth-provider": {"name": "gcp"}}, "auth-provider gcp", id="a provider of old"),
        pytest.param({}, {"client-certificate": "/c"}, "client-key is missing", id="half of a certificate"),
        pytest.param({}, {"client-certificate-data": "x", "client-key-data": "x"}, "no base64", id="no base64"),
        pytest.param({"proxy-url": "socks5://p"}, {}, "one with http:// or https:// is needed", id="a proxy of a kind"),
        pytest.param({}, {"exec": {"command": "x"}}, "exec plugin of apiVersion ''", id="an exec without version"),
    ],
)
def test_what_would_mislead_is_refused(
    tmp_path: Path, cluster: dict[str, Any], user: dict[str, Any], said: str
) -> None:
    with pytest.raises(CredentialsError, match=said):
        load(tmp_path, cluster, user)


@pytest.mark.parametrize(
    ("context", "said"),
    [
        pytest.param({"cluster": "gone"}, "context c names the cluster gone, which does not exist", id="the cluster"),
        pytest.param({"user": "gone"}, "context c names the user gone, who does not exist", id="the user"),
    ],
)
def test_what_a_context_names_and_is_not_there_is_said(tmp_path: Path, context: dict[str, str], said: str) -> None:
    with pytest.raises(CredentialsError, match=said):
        load_credentials(write(tmp_path / "config", describe("c", {"server": "http://a"}, {}, **context)))


@pytest.mark.parametrize(
    "user", [{}, {"token": "t"}, {"token": "t", "exec": {"apiVersion": f"{API}/v1", "command": "false"}}]
)
@pytest.mark.parametrize(
    "cluster",
    [
        {"server": "https://api:6443"},
        {"server": "http://localhost:8001/"},
        {"server": "https://api/path", "tls-server-name": "other", "proxy-url": "http://proxy:1"},
        {"server": "https://api", "insecure-skip-tls-verify": True},
    ],
)
def test_the_official_client_reads_the_same(tmp_path: Path, cluster: dict[str, Any], user: dict[str, Any]) -> None:
    path = write(tmp_path / "config", describe("c", cluster, user))
    official = Configuration()
    load_kube_config(path, client_configuration=official, persist_config=False)
    ours = load_credentials(path)
    token = str(official.get_api_key_with_prefix("BearerToken", "authorization") or "").removeprefix("Bearer ")
    assert (ours.host, ours.read_token()) == (official.host.rstrip("/"), token)
    assert (ours.server_name, ours.proxy) == (official.tls_server_name or "", official.proxy or "")
    if ours.tls is not None:
        assert (ours.tls.verify_mode is ssl.CERT_NONE) is not official.verify_ssl


TEXTS = st.text("äß:/\0 ", max_size=3)
"""Texts that are never the name of a command."""

ODD = st.one_of(st.none(), st.booleans(), st.integers(), TEXTS, st.lists(st.integers(), max_size=2))
FIELDS = st.sampled_from(
    [
        *("server", "certificate-authority", "certificate-authority-data", "insecure-skip-tls-verify", "proxy-url"),
        *("tls-server-name", "token", "tokenFile", "client-certificate", "client-certificate-data", "client-key-data"),
        *("client-key", "exec", "auth-provider", "as", "username", "extensions"),
    ]
)
ODD_EXECS = st.fixed_dictionaries(
    {"apiVersion": st.just(f"{API}/v1")},
    optional=dict.fromkeys(("command", "args", "env", "interactiveMode", "provideClusterInfo", "installHint"), ODD),
)


@given(odd=st.dictionaries(FIELDS, ODD, max_size=4), plugin=st.none() | ODD_EXECS)
def test_whatever_stands_in_a_kubeconfig_it_is_read_or_refused_in_words(
    odd: dict[str, Any], plugin: dict[str, Any] | None
) -> None:
    user = {"exec": plugin} | odd if plugin else odd
    clusters, contexts = {"c": {"server": "https://a"} | odd}, {"c": {"cluster": "c", "user": "u"}}
    kubeconfig = Kubeconfig("file", "c", contexts, clusters, {"u": user})
    with suppress(CredentialsError):
        read_credentials(kubeconfig)


# ---------------------------------------------------------------- exec plugins

Make = Callable[..., dict[str, Any]]


@pytest.fixture
def make_plugin(tmp_path: Path) -> Make:
    """A factory of users whose credentials come from a script; the script records its calls."""

    def make(status: dict[str, Any] | None, version: str = "v1", code: int = 0, **more: Any) -> dict[str, Any]:
        answer = {"apiVersion": f"{API}/{version}", "kind": "ExecCredential", "status": status}
        (tmp_path / "answer").write_text(json.dumps(answer))
        script = tmp_path / "plugin"
        script.write_text(
            f'#!/bin/sh\necho "$KUBERNETES_EXEC_INFO" > {tmp_path}/info\necho "$@ $OWN" >> {tmp_path}/calls\n'
            f"cat {tmp_path}/answer\nexit {code}\n"
        )
        script.chmod(0o755)
        return {"exec": {"apiVersion": f"{API}/{version}", "command": "./plugin", **more}}

    return make


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_a_command_makes_a_token(tmp_path: Path, make_plugin: Make, version: str) -> None:
    more = {"args": ["get", "token"], "env": [{"name": "OWN", "value": "set"}], "provideClusterInfo": True}
    credentials = load(tmp_path, {}, make_plugin({"token": "made"}, version, interactiveMode="Never", **more))
    assert credentials.read_token() == credentials.read_token() == "made"
    assert (tmp_path / "calls").read_text() == "get token set\n"
    told = json.loads((tmp_path / "info").read_text())
    assert told["apiVersion"] == f"{API}/{version}"
    assert told["spec"] == {"interactive": False, "cluster": {"server": "https://api"}}


def test_a_command_runs_again_when_its_token_has_expired_or_was_refused(tmp_path: Path, make_plugin: Make) -> None:
    credentials = load(tmp_path, {}, make_plugin({"token": "short", "expirationTimestamp": "2020-01-01T00:00:00Z"}))
    make_plugin({"token": "next", "expirationTimestamp": "2999-01-01T00:00:00Z"})
    assert credentials.read_token() == "next"
    make_plugin({"token": "last"})
    assert (credentials.read_token(), credentials.renew_token(), credentials.read_token()) == ("next", "last", "last")


def test_a_command_makes_a_certificate(tmp_path: Path, pki: Path, make_plugin: Make) -> None:
    pair = {f"client{part}Data": (pki / name).read_text() for part, name in (("Certificate", "cert"), ("Key", "key"))}
    assert load(tmp_path, {}, make_plugin(pair)).read_token() == ""
    with pytest.raises(CredentialsError, match="do not load"):
        load(tmp_path, {}, make_plugin(pair | {"clientKeyData": "nonsense"}))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param({"code": 3}, "exit code 3", id="it fails"),
        pytest.param({"status": None}, "without status", id="no status"),
        pytest.param({"status": {}}, "neither a token nor a certificate", id="nothing in it"),
        pytest.param({"command": "no-such", "installHint": "Get it."}, "not installed. Get it.", id="not there"),
        pytest.param({"apiVersion": f"{API}/v1beta1"}, "of client.*v1, not of client.*v1beta1", id="another version"),
        pytest.param({"command": "true"}, "the plugin gives no ExecCredential", id="no JSON"),
        pytest.param({"interactiveMode": "Always"}, "needs input from a terminal", id="it asks, and nobody is there"),
    ],
)
def test_a_command_that_fails_is_named_with_the_reason(
    tmp_path: Path, make_plugin: Make, change: dict[str, Any], said: str
) -> None:
    answers = {"status": {"token": "t"}} | {name: change[name] for name in ("status", "code") if name in change}
    user = make_plugin(**answers)
    user["exec"] |= {name: value for name, value in change.items() if name not in answers and name != "code"}
    with pytest.raises(CredentialsError, match=f"exec plugin .*, which fails: .*{said}"):
        load(tmp_path, {}, user)


def test_nothing_of_a_certificate_stays_on_disk(tmp_path: Path, pki: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    load(tmp_path, {}, {f"client-{k}-data": encode(pki / n) for k, n in (("certificate", "cert"), ("key", "key"))})
    assert list((tmp_path / "tmp").iterdir()) == []
