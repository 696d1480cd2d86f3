"""Requests of a command: connections, proxies and TLS."""

import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest

from cli.transport import open_client
from serried.kube.auth import Credentials, CredentialsError
from serried.kube.client import ApiClient
from serried.kube.errors import Forbidden, TooMany, Unauthorized, Unavailable
from serried.kube.wire import PODS
from tests.support.apiserver import FakeApiServer
from tests.support.faults import calls


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as server:
        server.add(PODS, {"metadata": {"name": "a", "namespace": "ns", "uid": "u1"}, "spec": {}})
        yield server


@pytest.fixture
async def client(server: FakeApiServer) -> AsyncIterator[ApiClient]:
    async with open_client(Credentials(server.url)) as client:
        yield client


async def test_objects_are_read_listed_changed_and_streamed(client: ApiClient) -> None:
    assert (await client.get(PODS, "ns", "a"))["metadata"]["uid"] == "u1"
    assert [pod["metadata"]["name"] for pod in await client.list_all(PODS)] == ["a"]
    changed = await client.patch_merge(PODS, "ns", "a", {"metadata": {"labels": {"k": "v w"}}})
    assert changed["metadata"]["labels"] == {"k": "v w"}
    async with client.stream("/api/v1/pods", {"watch": "true", "resourceVersion": "0"}) as chunks:
        assert b'"u1"' in await anext(aiter(chunks))


@pytest.mark.parametrize(
    ("status", "kind"),
    [pytest.param(403, Forbidden, id="forbidden"), pytest.param(429, TooMany, id="too many")],
)
async def test_a_refusal_is_told_as_the_server_says_it(
    server: FakeApiServer, client: ApiClient, status: int, kind: type[Exception]
) -> None:
    server.reject(calls("GET", "pods"), status=status, message="no")
    with pytest.raises(kind, match="no"):
        await client.get(PODS, "ns", "a")


async def test_a_token_that_is_refused_is_read_anew_once(server: FakeApiServer) -> None:
    server.token = "new"
    credentials = Credentials(server.url, read_token=lambda: "old", renew_token=lambda: "new")
    async with open_client(credentials) as client:
        assert (await client.get(PODS, "ns", "a"))["metadata"]["name"] == "a"
    wrong = Credentials(server.url, read_token=lambda: "old", renew_token=lambda: "old")
    async with open_client(wrong) as client:
        with pytest.raises(Unauthorized):
            await client.get(PODS, "ns", "a")


async def test_without_credentials_nothing_is_sent() -> None:
    def refuse() -> str:
        raise CredentialsError("the plugin fails")

    async with open_client(Credentials("http://127.0.0.1:1", read_token=refuse)) as client:
        with pytest.raises(Unavailable, match="the plugin fails"):
            await client.read("/version")


async def test_where_nobody_listens_it_says_so_and_nothing_was_sent() -> None:
    async with open_client(Credentials("http://127.0.0.1:1")) as client:
        with pytest.raises(Unavailable, match=r"Connect call failed|Connection refused") as told:
            await client.read("/version")
    assert told.value.unsent


async def test_who_does_not_answer_in_time_is_not_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with open_client(Credentials(f"http://127.0.0.1:{silent.getsockname()[1]}")) as client:
            with pytest.raises(Unavailable, match=r"no answer in 0\.2 s"):
                await client.request("GET", "/version", timeout=0.2)


@pytest.mark.parametrize("names", [{}, {"server_name": "kubernetes", "proxy": "http://proxy:3128"}])
async def test_the_name_of_a_certificate_and_a_proxy_are_those_of_the_kubeconfig(
    monkeypatch: pytest.MonkeyPatch, names: dict[str, Any]
) -> None:
    made: list[dict[str, Any]] = []
    usual: Callable[..., None] = httpx.AsyncClient.__init__

    def keep(self: httpx.AsyncClient, **how: Any) -> None:
        made.append(how)
        usual(self, **how | {"transport": httpx.MockTransport(answer), "proxy": None})

    def answer(request: httpx.Request) -> httpx.Response:
        made.append(request.extensions)
        return httpx.Response(200, json={})

    monkeypatch.setattr(httpx.AsyncClient, "__init__", keep)
    async with open_client(Credentials("https://api/k8s/one", **names)) as client:
        await client.read("/version")
    opened, extensions = made
    assert (extensions.get("sni_hostname", ""), opened["proxy"] or "") == (
        names.get("server_name", ""),
        names.get("proxy", ""),
    )
