"""The verbs by TLS: who may call, and certificates that are replaced while the listener serves."""

import asyncio
import logging
import os
import shutil
import ssl
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import httpx
import pytest

from extender.core.http import server
from extender.core.http.server import Hangup, Listener, Reply, Routes, Security
from extender.lead.pair import Pair
from extender.process import secure_verbs
from serried.ops.tls import CertificateError
from serried.settings import Address, extender_settings
from tests.support.certificates import Authority

SCHEDULER = "system:kube-scheduler"
MOST = 100


def secure(certificate: Path, key: Path, clients: Path, *more: str) -> Security:
    """Return the TLS configuration that an extender makes from its flags."""
    argv = [f"--tls-cert-file={certificate}", f"--tls-private-key-file={key}", f"--client-ca-file={clients}", *more]
    found = secure_verbs(extender_settings(argv, {}))
    assert found is not None
    return found


class TlsHarness:
    """A listener by TLS, its own authority and that of its callers. ``linked`` files are used instead of its own."""

    def __init__(self, directory: Path, *flags: str, linked: tuple[Path, Path] | None = None) -> None:
        self.past = timedelta(0)
        """The time by which the listener's wall clock is ahead once a connection is made."""
        self.directory = directory
        self.ours = Authority(directory / "server", "ours")
        self.theirs = Authority(directory / "clients", "theirs")
        files = linked or self.ours.sign("serried")
        security = secure(*files, self.theirs.file, *flags)
        security = replace(security, wall=lambda: time.time() + self.past.total_seconds())
        self.listener = Listener(Routes({b"/filter": Reply}, {b"/bind": self.hold}, MOST), security=security)
        self.port = 0
        self.called = asyncio.Event()
        """Set once a bind call is open."""
        self.answers = asyncio.Event()
        """Set for bind calls to be answered."""

    async def hold(self, body: bytes, _hangup: Hangup) -> Reply:
        self.called.set()
        await self.answers.wait()
        return Reply(body)

    async def open(self) -> "TlsHarness":
        self.port = await self.listener.open("127.0.0.1", 0)
        return self

    def trust(self, certificate: tuple[Path, Path] | None) -> ssl.SSLContext:
        """Return the TLS context of a client that trusts our authority and has this certificate."""
        context = ssl.create_default_context(cafile=str(self.ours.file))
        if certificate is not None:
            context.load_cert_chain(*certificate)
        return context

    def caller(self, certificate: tuple[Path, Path] | None) -> httpx.AsyncClient:
        """A client with this certificate."""
        url = f"https://127.0.0.1:{self.port}"
        return httpx.AsyncClient(base_url=url, verify=self.trust(certificate), trust_env=False)


@pytest.fixture
async def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TlsHarness]:
    monkeypatch.setattr(server, "_FOLLOW_SECONDS", 0.05)
    made = await TlsHarness(tmp_path).open()
    yield made
    await made.listener.close()


async def ask(client: httpx.AsyncClient) -> int:
    return (await client.post("/filter", content=b"{}")).status_code


async def is_kept(client: httpx.AsyncClient) -> bool:
    """Return whether the connection may be used again after an answer to this client."""
    answer = await client.post("/filter", content=b"{}")
    assert answer.status_code == 200
    return "close" not in answer.headers.get_list("connection")


async def is_refused(client: httpx.AsyncClient) -> bool:
    async with client:
        try:
            return await ask(client) != 200
        except httpx.TransportError:
            return True


async def is_served(client: httpx.AsyncClient) -> bool:
    return not await is_refused(client)


class TestWhoMayCall:
    async def test_a_caller_whose_certificate_the_authority_has_signed(self, harness: TlsHarness) -> None:
        async with harness.caller(harness.theirs.sign(SCHEDULER)) as client:
            assert await ask(client) == 200
            assert await ask(client) == 200

    async def test_nobody_without_a_certificate(self, harness: TlsHarness, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.WARNING)
        assert await is_refused(harness.caller(None))
        assert "TLS handshake with a client failed" in caplog.text

    async def test_nobody_of_another_authority(self, harness: TlsHarness, tmp_path: Path) -> None:
        stranger = Authority(tmp_path / "strangers", "theirs").sign(SCHEDULER)
        assert await is_refused(harness.caller(stranger))

    async def test_nobody_whose_certificate_comes_from_our_own_authority(self, harness: TlsHarness) -> None:
        assert await is_refused(harness.caller(harness.ours.sign(SCHEDULER)))

    async def test_nobody_whose_certificate_has_expired(self, harness: TlsHarness) -> None:
        old = harness.theirs.sign(SCHEDULER, age=timedelta(days=1))
        assert await is_refused(harness.caller(old))

    async def test_nobody_whose_certificate_is_not_valid_yet(self, harness: TlsHarness) -> None:
        early = harness.theirs.sign(SCHEDULER, age=-timedelta(days=1))
        assert await is_refused(harness.caller(early))

    async def test_nobody_on_a_kept_connection_after_the_answer_with_which_the_certificate_has_expired(
        self, harness: TlsHarness
    ) -> None:
        async with harness.caller(harness.theirs.sign(SCHEDULER)) as client:
            assert await is_kept(client)
            harness.past = timedelta(minutes=58)
            assert await is_kept(client)
            harness.past = timedelta(minutes=60)
            assert not await is_kept(client)

    async def test_a_bind_call_that_was_open_when_the_certificate_expired_is_answered(
        self, harness: TlsHarness
    ) -> None:
        async with harness.caller(harness.theirs.sign(SCHEDULER)) as client, asyncio.TaskGroup() as tasks:
            call = tasks.create_task(client.post("/bind", content=b"{}"))
            await harness.called.wait()
            harness.past = timedelta(hours=1)
            harness.answers.set()
            answer = await call
            assert (answer.status_code, answer.content) == (200, b"{}")
            assert answer.headers["connection"] == "close"

    async def test_nobody_by_plain_http(self, harness: TlsHarness) -> None:
        client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{harness.port}", trust_env=False)
        assert await is_refused(client)

    @pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
    async def test_nobody_by_a_version_of_tls_below_1_2(self, harness: TlsHarness) -> None:
        context = harness.trust(harness.theirs.sign(SCHEDULER))
        context.set_ciphers("ALL:@SECLEVEL=0")
        context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
        context.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.open_connection("127.0.0.1", harness.port, ssl=context)

    async def test_a_caller_who_looks_for_another_name_hangs_up(self, harness: TlsHarness) -> None:
        context = harness.trust(harness.theirs.sign(SCHEDULER))
        with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
            await asyncio.open_connection("127.0.0.1", harness.port, ssl=context, server_hostname="else.example")


class TestNames:
    @pytest.fixture
    async def choosy(self, tmp_path: Path) -> AsyncIterator[TlsHarness]:
        made = await TlsHarness(tmp_path, f"--client-names={SCHEDULER},other").open()
        yield made
        await made.listener.close()

    @pytest.mark.parametrize("name", [SCHEDULER, "other", "localhost"])
    async def test_a_name_that_is_asked_for_may_call_and_no_other(self, choosy: TlsHarness, name: str) -> None:
        async with choosy.caller(choosy.theirs.sign(name)) as client:
            assert await ask(client) == (403 if name == "localhost" else 200)

    async def test_who_is_refused_reads_why(self, choosy: TlsHarness) -> None:
        async with choosy.caller(choosy.theirs.sign("mallory")) as client:
            answer = await client.post("/filter", content=b"{}")
            assert "--client-names" in answer.json()["Error"]
            assert answer.headers["connection"] == "close"


class TestReplacedFiles:
    """Each test replaces files of a listener that serves, while a connection is open, and looks who comes in then.

    The open connection ends with its next answer once the files are used, so that its caller shows who it is anew.
    """

    @pytest.fixture
    async def open_call(self, harness: TlsHarness) -> AsyncIterator[httpx.AsyncClient]:
        """A caller whose connection is open since before."""
        async with harness.caller(harness.theirs.sign(SCHEDULER)) as client:
            assert await is_kept(client)
            yield client

    async def find_serial(self, harness: TlsHarness) -> int:
        """Return the serial number of the certificate that the listener shows to a new client."""
        context = harness.trust(harness.theirs.sign("looker"))
        _, writer = await asyncio.open_connection("127.0.0.1", harness.port, ssl=context)
        shown = writer.get_extra_info("peercert")["serialNumber"]
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)
        return int(shown, 16)

    async def test_new_callers_see_the_new_certificate(self, harness: TlsHarness, open_call: httpx.AsyncClient) -> None:
        before = await self.find_serial(harness)
        assert await self.find_serial(harness) == before
        assert await is_kept(open_call)
        harness.ours.sign("serried")
        assert await self.find_serial(harness) != before
        assert not await is_kept(open_call)
        assert await is_kept(open_call)

    async def test_who_keeps_a_connection_is_asked_anew_also_if_nobody_else_comes(
        self, harness: TlsHarness, open_call: httpx.AsyncClient
    ) -> None:
        successor = Authority(harness.directory / "successor", "theirs")
        shutil.copy(successor.file, harness.theirs.file)
        async with asyncio.timeout(10):
            while await is_kept(open_call):
                pass
        with pytest.raises(httpx.TransportError):
            await ask(open_call)

    async def test_a_bind_call_that_was_open_before_is_answered(
        self, harness: TlsHarness, open_call: httpx.AsyncClient
    ) -> None:
        async with asyncio.TaskGroup() as tasks:
            call = tasks.create_task(open_call.post("/bind", content=b"{}"))
            await harness.called.wait()
            successor = Authority(harness.directory / "successor", "theirs")
            shutil.copy(successor.file, harness.theirs.file)
            assert await is_served(harness.caller(successor.sign(SCHEDULER)))
            harness.answers.set()
            assert (await call).status_code == 200
        with pytest.raises(httpx.TransportError):
            await ask(open_call)

    async def test_a_caller_of_the_new_authority_comes_in_and_one_of_the_old_does_not(
        self, harness: TlsHarness, open_call: httpx.AsyncClient
    ) -> None:
        old = harness.theirs.sign(SCHEDULER)
        successor = Authority(harness.directory / "successor", "theirs")
        new = successor.sign(SCHEDULER)
        assert await is_refused(harness.caller(new))
        shutil.copy(successor.file, harness.theirs.file)
        assert await is_served(harness.caller(new))
        assert await is_refused(harness.caller(old))
        assert not await is_kept(open_call)
        with pytest.raises(httpx.TransportError):
            await ask(open_call)

    async def test_while_two_authorities_are_listed_callers_of_both_come_in(self, harness: TlsHarness) -> None:
        old = harness.theirs.sign(SCHEDULER)
        successor = Authority(harness.directory / "successor", "successor")
        harness.theirs.file.write_bytes(harness.theirs.file.read_bytes() + successor.file.read_bytes())
        assert await is_served(harness.caller(old))
        assert await is_served(harness.caller(successor.sign(SCHEDULER)))

    @pytest.mark.parametrize("content", ["", "-----BEGIN CERTIFICATE-----\nMIIB", "no certificate at all"])
    @pytest.mark.parametrize("name", ["serried.crt", "serried.key"])
    async def test_a_file_that_is_half_written_changes_nothing_until_it_is_whole(
        self, harness: TlsHarness, open_call: httpx.AsyncClient, name: str, content: str
    ) -> None:
        path = harness.directory / "server" / name
        whole = path.read_bytes()
        before = await self.find_serial(harness)
        path.write_text(content)
        assert await self.find_serial(harness) == before
        assert await is_kept(open_call)
        path.write_bytes(whole)
        assert await self.find_serial(harness) == before

    async def test_an_authority_that_is_half_written_or_gone_changes_nothing(
        self, harness: TlsHarness, open_call: httpx.AsyncClient
    ) -> None:
        good = harness.theirs.sign(SCHEDULER)
        harness.theirs.file.write_text("")
        assert await is_served(harness.caller(good))
        harness.theirs.file.unlink()
        assert await is_served(harness.caller(good))
        assert await is_refused(harness.caller(None))
        assert await is_kept(open_call)

    async def test_a_new_certificate_waits_for_its_key(self, harness: TlsHarness, open_call: httpx.AsyncClient) -> None:
        before = await self.find_serial(harness)
        certificate, key = harness.ours.sign("serried", file="next")
        shutil.copy(certificate, harness.directory / "server" / "serried.crt")
        assert await self.find_serial(harness) == before
        assert await is_kept(open_call)
        shutil.copy(key, harness.directory / "server" / "serried.key")
        assert await self.find_serial(harness) != before

    async def test_a_secret_that_the_kubelet_swaps_is_followed(self, tmp_path: Path) -> None:
        secret = tmp_path / "secret"
        for version in ("1", "2"):
            certificate, key = Authority(secret / version, "ours").sign("serried")
            certificate.rename(secret / version / "tls.crt")
            key.rename(secret / version / "tls.key")
        (secret / "..data").symlink_to("1")
        for name in ("tls.crt", "tls.key", "ours.crt"):
            (secret / name).symlink_to(f"..data/{name}")
        harness = await TlsHarness(tmp_path / "house", linked=(secret / "tls.crt", secret / "tls.key")).open()
        client = harness.theirs.sign(SCHEDULER)
        harness.ours.file = secret / "ours.crt"
        assert await is_served(harness.caller(client))
        (secret / "..data_tmp").symlink_to("2")
        os.replace(secret / "..data_tmp", secret / "..data")  # noqa: PTH105 - the kubelet's call
        # It trusts the second authority alone by now.
        assert await is_served(harness.caller(client))
        await harness.listener.close()


@pytest.mark.parametrize("missing", ["serried.crt", "serried.key", "clients.crt"])
def test_files_that_are_not_there_end_the_start_with_their_names(tmp_path: Path, missing: str) -> None:
    authority = Authority(tmp_path, "clients")
    certificate, key = authority.sign("serried")
    (tmp_path / missing).unlink()
    with pytest.raises(CertificateError, match=f"{missing}.*No such file"):
        secure(certificate, key, authority.file)


async def test_a_probe_without_a_certificate_learns_whether_filter_would_answer(harness: TlsHarness) -> None:
    pair = Pair(Address("127.0.0.1", harness.port), "", lambda: True, str(harness.theirs.file))
    assert await pair.check_filter()
    await harness.listener.close()
    assert not await pair.check_filter()
