import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from serried.kube.auth import CredentialsError, load_credentials


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pki")
    command = f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=x -keyout {folder}/key -out {folder}/cert"
    subprocess.run(command.split(), check=True, capture_output=True)
    return folder


@pytest.fixture(autouse=True)
def _outside_of_a_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)


def write(folder: Path, cluster: dict[str, Any], user: dict[str, Any]) -> str:
    path = folder / "kubeconfig"
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(yaml.safe_dump(document))
    return str(path)


def test_plain_http_needs_no_tls(tmp_path: Path) -> None:
    credentials = load_credentials(write(tmp_path, {"server": "http://127.0.0.1:8001/"}, {}))
    assert (credentials.host, credentials.tls, credentials.read_token()) == ("http://127.0.0.1:8001", None, "")


@pytest.fixture
def account(tmp_path: Path, certificate: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a pod's ServiceAccount."""
    (tmp_path / "token").write_text("mounted")
    (tmp_path / "ca.crt").write_bytes((certificate / "cert").read_bytes())
    monkeypatch.setattr("serried.kube.auth.ACCOUNT", tmp_path)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    return tmp_path


def test_a_pod_uses_its_service_account(account: Path) -> None:
    credentials = load_credentials()
    assert (credentials.host, credentials.read_token()) == ("https://[fd00::1]:443", "mounted")
    (account / "token").write_text("rotated")
    assert credentials.renew_token() == "rotated"


def test_a_token_that_cannot_be_read_any_more_is_said_so(account: Path) -> None:
    credentials = load_credentials()
    for spoil in (lambda token: token.write_text(""), Path.unlink):
        spoil(account / "token")
        with pytest.raises(CredentialsError, match="no token for the API server"):
            credentials.read_token()


def test_certificates_and_token_of_a_kubeconfig(tmp_path: Path, certificate: Path) -> None:
    cluster = {"server": "https://api:6443", "certificate-authority": str(certificate / "cert")}
    user = {"client-certificate": str(certificate / "cert"), "client-key": str(certificate / "key"), "token": "t0"}
    credentials = load_credentials(write(tmp_path, cluster | {"tls-server-name": "kubernetes"}, user))
    assert credentials.tls is not None
    assert credentials.tls.check_hostname
    assert [ca["subject"] for ca in credentials.tls.get_ca_certs()] == [((("commonName", "x"),),)]
    assert credentials.read_token() == "t0"
    assert credentials.server_name == "kubernetes"
    assert "t0" not in repr(credentials)


def test_a_token_file_is_read_again_on_demand(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("one\n")
    credentials = load_credentials(write(tmp_path, {"server": "http://api"}, {"tokenFile": str(token)}))
    assert credentials.read_token() == "one"
    token.write_text("two\n")
    assert credentials.renew_token() == "two"


def test_verification_can_be_turned_off(tmp_path: Path) -> None:
    path = write(tmp_path, {"server": "https://api", "insecure-skip-tls-verify": True}, {})
    credentials = load_credentials(path)
    assert credentials.tls is not None
    assert not credentials.tls.check_hostname


def test_a_missing_file_is_named_with_a_way_out(tmp_path: Path) -> None:
    with pytest.raises(CredentialsError, match=r"absent.*pass --kubeconfig"):
        load_credentials(str(tmp_path / "absent"))


def test_a_file_that_is_no_kubeconfig_is_named(tmp_path: Path) -> None:
    path = tmp_path / "broken"
    path.write_text("{]")
    with pytest.raises(CredentialsError, match="broken"):
        load_credentials(str(path))


def test_a_certificate_that_does_not_load_is_named(tmp_path: Path) -> None:
    (tmp_path / "ca").write_text("nonsense")
    path = write(tmp_path, {"server": "https://api", "certificate-authority": str(tmp_path / "ca")}, {})
    with pytest.raises(CredentialsError, match=r"certificates that do not load.*/ca"):
        load_credentials(path)


def test_a_server_that_is_no_url_is_named(tmp_path: Path) -> None:
    with pytest.raises(CredentialsError, match="'api:6443'"):
        load_credentials(write(tmp_path, {"server": "api:6443"}, {}))


def test_a_context_is_chosen_by_its_name(tmp_path: Path) -> None:
    path = Path(write(tmp_path, {"server": "http://one"}, {}))
    document = yaml.safe_load(path.read_text())
    document["clusters"].append({"name": "d", "cluster": {"server": "http://two"}})
    document["contexts"].append({"name": "d", "context": {"cluster": "d", "user": "u"}})
    path.write_text(yaml.safe_dump(document))
    assert [load_credentials(str(path), context).host for context in ("", "c", "d")] == [
        "http://one",
        "http://one",
        "http://two",
    ]


def test_a_context_is_of_a_kubeconfig_also_in_a_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBECONFIG", write(tmp_path, {"server": "http://one"}, {}))
    assert load_credentials(None, "c").host == "http://one"
