"""The certificate that a process signs itself: it needs no place where files can be written."""

import ssl
import tempfile

import pytest

from serried.callers.certificates import make_self_signed


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
