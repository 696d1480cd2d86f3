"""The certificate that a process signs itself needs no place where files can be written; of others the end is known."""

import shutil
import ssl
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from weakref import WeakSet

import pytest

from serried.ops import tls as certificates
from serried.ops.tls import CertificateFiles, ReloadingContext, Use, list_expiries, make_self_signed
from tests.support.certificates import Authority

HOUR, DAY = 3600.0, 86_400.0


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Authority:
    """The only authority whose certificates this process listens with."""
    monkeypatch.setattr(certificates, "_IN_USE", WeakSet())
    return Authority(tmp_path)


def listen(authority: Authority, days: float = 0.0) -> ReloadingContext:
    """A context with a certificate that is good for about an hour and so many days, and with one for callers."""
    certificate, key = authority.sign("serried", file=f"after {days}", age=-timedelta(days=days))
    return ReloadingContext(CertificateFiles(str(certificate), str(key), client_ca=str(authority.file)))


def near(seconds: float) -> object:
    """A time that is so far ahead, within a few minutes."""
    return pytest.approx(time.time() + seconds, abs=300)


def shake_hands(server: ssl.SSLContext) -> str:
    """The version of TLS that a client and a server with this context agree on."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(to_client, to_server), server.wrap_bio(to_server, to_client, server_side=True)]
    for end in ends * 3:
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
    return str(ends[0].version())


def test_it_is_made_where_no_file_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/proc/nowhere")
    with pytest.raises(OSError, match="nowhere"):
        tempfile.mkstemp()
    assert shake_hands(make_self_signed()) == "TLSv1.3"


def test_it_is_made_where_memory_cannot_be_had_as_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("os.memfd_create")
    assert shake_hands(make_self_signed()) == "TLSv1.3"


def test_the_end_of_each_certificate_is_known(authority: Authority) -> None:
    context = listen(authority, days=3)
    assert list_expiries() == {Use.SERVING: near(3 * DAY + HOUR), Use.CLIENT_CA: near(HOUR)}
    assert context.expiries == list_expiries()


def test_of_two_listeners_the_first_end_counts(authority: Authority) -> None:
    contexts = [listen(authority, days) for days in (5, 2, 9)]
    assert list_expiries()[Use.SERVING] == near(2 * DAY + HOUR)
    assert len(contexts) == 3


def test_after_a_replacement_it_is_the_end_of_the_new_certificate_though_nobody_has_come_since(
    authority: Authority, tmp_path: Path
) -> None:
    context = listen(authority)
    before = context.current
    certificate, key = authority.sign("new", age=-timedelta(days=4))
    shutil.copy(certificate, tmp_path / "after 0.0.crt")
    shutil.copy(key, tmp_path / "after 0.0.key")
    assert context.current is before
    assert list_expiries()[Use.SERVING] == near(4 * DAY + HOUR)
    assert context.current is not before


def test_of_a_chain_the_first_end_counts_and_of_authorities_the_last(authority: Authority, tmp_path: Path) -> None:
    chain = tmp_path / "chain.crt"
    certificate, key = authority.sign("serried", age=-timedelta(days=3))
    chain.write_bytes(certificate.read_bytes() + authority.file.read_bytes())
    later = authority.sign("later", age=-timedelta(days=7))[0]
    both = tmp_path / "both.crt"
    both.write_bytes(authority.file.read_bytes() + later.read_bytes())
    context = ReloadingContext(CertificateFiles(str(chain), str(key), client_ca=str(both)))
    assert context.expiries == {Use.SERVING: near(HOUR), Use.CLIENT_CA: near(7 * DAY + HOUR)}


def test_a_listener_whose_certificate_has_no_end_that_can_be_read_serves(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_content: bytes) -> None:
        raise ValueError("invalid serial number")

    monkeypatch.setattr("cryptography.x509.load_pem_x509_certificates", refuse)
    context = listen(authority)
    assert shake_hands(make_self_signed()) == "TLSv1.3"
    assert (context.expiries, list_expiries()) == ({}, {})
    assert "cannot read when certificates expire; /debug/selfcheck does not warn of their expiry" in caplog.text
