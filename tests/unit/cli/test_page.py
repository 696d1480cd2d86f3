"""``serried page``: requests of a browser on this machine reach the extender that leads, and nothing else does."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from cli.output import CommandError
from cli.page import serving
from cli.target import Target
from tests.support.commands import Run
from tests.support.pod_proxy import KUBECONFIG, PodProxy, extender_pod
from tests.unit.cli.conftest import Step

PODS = "/api/v1/namespaces/serried-system/pods"
TOKENS = "/api/v1/namespaces/serried-system/serviceaccounts/serried-debug-reader/token"


@pytest.fixture
def target(proxy: PodProxy, tmp_path: Path) -> Target:
    """A kubeconfig whose user may create tokens."""
    (tmp_path / "kubeconfig").write_text(KUBECONFIG.format(url=proxy.url))
    proxy.answer(TOKENS, {"status": {"token": "made-for-us"}})
    proxy.answer_debug("serried-0:8912", "", b"<!doctype html>")
    return Target(kubeconfig=str(tmp_path / "kubeconfig"))


@pytest.fixture
async def url(target: Target) -> AsyncIterator[str]:
    async with serving(target) as url:
        yield url


async def ask(url: str, method: str = "GET", **how: object) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False) as http:
        return await http.request(method, url, **how)  # type: ignore[arg-type]


async def test_the_page_and_what_it_asks_for_come_from_the_extender(proxy: PodProxy, url: str) -> None:
    proxy.answer_debug("serried-0:8912", "queue?limit=3", {"waiting": []})
    assert (await ask(url)).text == "<!doctype html>"
    answer = await ask(f"{url}queue?limit=3")
    assert (answer.json(), answer.headers["content-type"]) == ({"waiting": []}, "application/json")
    shown = {headers.get("x-serried-token") for path, headers in proxy.headers if "/proxy/debug/" in path}
    assert shown == {"made-for-us"}


async def test_what_the_page_sends_is_passed_on(proxy: PodProxy, url: str) -> None:
    proxy.answer_debug("serried-0:8912", "whatif", {"fits": True})
    assert (await ask(f"{url}whatif", "POST", json={"of": "mine"})).json() == {"fits": True}
    assert json.loads(proxy.bodies[-1]) == {"of": "mine"}
    assert proxy.headers[-1][1]["content-type"] == "application/json"


async def test_a_refusal_of_the_extender_stays_one(proxy: PodProxy, url: str) -> None:
    proxy.answer_debug("serried-0:8912", "groups", {"detail": "no such state"}, status=400)
    answer = await ask(f"{url}groups?state=x")
    assert (answer.status_code, answer.json()) == (400, {"detail": "no such state"})


@pytest.mark.parametrize(
    ("change", "status"),
    [
        pytest.param(lambda url: url.replace("/debug/", "x/debug/"), 404, id="a guessed secret"),
        pytest.param(lambda url: "/".join([*url.split("/")[:3], "debug/"]), 404, id="no secret"),
        pytest.param(lambda url: url.replace("/debug/", "/metrics"), 404, id="another page"),
        pytest.param(lambda url: f"{url}..%2f..%2f..%2fsecrets", 400, id="a way out of the pages, hidden"),
        pytest.param(lambda url: f"{url}%2e%2e/%2e%2e/secrets", 400, id="the same otherwise"),
    ],
)
async def test_nothing_else_is_passed_on(proxy: PodProxy, url: str, change: object, status: int) -> None:
    assert callable(change)
    before = len(proxy.asked)
    assert (await ask(change(url))).status_code == status
    assert len(proxy.asked) == before


async def test_nothing_is_deleted(proxy: PodProxy, url: str) -> None:
    before = len(proxy.asked)
    assert (await ask(f"{url}queue", "DELETE")).status_code == 400
    assert len(proxy.asked) == before


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"nonsense\r\n\r\n", id="no request"),
        pytest.param(b"POST /x HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n", id="more than the page ever sends"),
        pytest.param(b"GET / HT", id="half a request"),
    ],
)
async def test_what_is_no_request_gets_no_answer(url: str, sent: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(url).port)
    writer.write(sent)
    writer.write_eof()
    assert await reader.read() == b""
    writer.close()


async def test_when_the_leader_is_gone_the_next_one_is_asked(proxy: PodProxy, url: str) -> None:
    proxy.answer_debug("serried-0:8912", "queue", {"detail": "starting"}, status=503)
    proxy.answer(PODS, {"kind": "List", "metadata": {"resourceVersion": "2"}, "items": [extender_pod("serried-1")]})
    proxy.answer_debug("serried-1:8912", "selfcheck", {"active": True})
    proxy.answer_debug("serried-1:8912", "queue", {"waiting": ["by the next"]})
    assert (await ask(f"{url}queue")).status_code == 503
    assert (await ask(f"{url}queue")).json() == {"waiting": ["by the next"]}


async def test_while_no_extender_answers_the_page_is_told_so(proxy: PodProxy, url: str) -> None:
    proxy.answer_debug("serried-0:8912", "queue", {"detail": "starting"}, status=503)
    proxy.answer(PODS, {"kind": "List", "metadata": {"resourceVersion": "2"}, "items": []})
    await ask(f"{url}queue")
    answer = await ask(f"{url}queue")
    assert (answer.status_code, "Serried is not installed" in answer.json()["detail"]) == (502, True)


async def test_who_goes_is_read_for_no_longer(target: Target) -> None:
    """The stream of the page never ends by itself."""
    ended = asyncio.Event()

    async def stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if b"selfcheck" in await reader.readuntil(b"\r\n\r\n"):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
            writer.close()
            return
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n")
        with suppress(ConnectionError):
            await reader.read()
        writer.close()
        ended.set()

    server = await asyncio.start_server(stream, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with serving(Target(server=f"http://127.0.0.1:{port}")) as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(url).port)
        writer.write(f"GET {httpx.URL(url).path}stream HTTP/1.1\r\n\r\n".encode())
        await reader.readuntil(b"data: 1\n\n")
        writer.close()
        await ended.wait()
    server.close()


async def test_a_port_that_is_taken_is_named(target: Target, url: str) -> None:
    port = httpx.URL(url).port
    assert port is not None
    with pytest.raises(CommandError, match=f"--port {port}: Address already in use"):
        async with serving(target, port):
            pass


class TestOpening:
    """The page in the browser, until the user presses Ctrl-C."""

    @pytest.fixture(autouse=True)
    def opened(self, target: Target, steps: list[Step], monkeypatch: pytest.MonkeyPatch) -> list[str]:
        opened: list[str] = []

        def open_file(address: str) -> None:
            file = Path(urlsplit(address).path)
            assert file.stat().st_mode & 0o077 == 0
            assert file.parent.stat().st_mode & 0o077 == 0
            opened.append(file.read_text())

        monkeypatch.setattr("cli.page.webbrowser.open", open_file)
        monkeypatch.setenv("DISPLAY", ":0")
        return opened

    def test_the_browser_gets_the_address_by_a_file_of_the_user_alone(self, run: Run, opened: list[str]) -> None:
        ended = run("page")
        assert (ended.code, ended.err) == (0, "serried: press Ctrl-C to end it\n")
        assert opened == [f'<meta http-equiv="refresh" content="0;url={ended.out.strip()}">\n']

    @pytest.mark.parametrize("flags", [pytest.param(["--no-browser"], id="as asked"), pytest.param([], id="no screen")])
    def test_none_is_opened_where_none_is_wanted_or_can_be_seen(
        self, run: Run, opened: list[str], flags: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if not flags:
            monkeypatch.setattr("cli.page.sys.platform", "linux")
            monkeypatch.delenv("DISPLAY")
            monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
        ended = run("page", *flags)
        assert ended.out.startswith("http://127.0.0.1:")
        assert opened == []

    def test_without_an_extender_nothing_is_opened(self, proxy: PodProxy, run: Run, opened: list[str]) -> None:
        proxy.answer(PODS, {"kind": "List", "metadata": {"resourceVersion": "2"}, "items": []})
        assert run("page").code == 3
        assert opened == []
