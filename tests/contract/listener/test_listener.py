"""HTTP, valid and invalid, on the verbs' sockets. The client is bare: it sends requests that no library would."""

import asyncio
import logging

import pytest

from extender.core.http import server as listener
from extender.core.http.server import Listener, Routes
from tests.support.listener import MOST, SOON, Client, ListenerHarness, post


class TestRequests:
    async def test_one_connection_carries_one_call_after_the_other(self, client: Client) -> None:
        for size in (0, 1, MOST):
            await client.send(post("/quick", b"x" * size))
            status, headers, body = await client.reply()
            assert (status, body) == (200, {"size": size})
            assert headers == {"content-type": "application/json", "content-length": str(len(f'{{"size":{size}}}'))}

    async def test_a_request_may_arrive_byte_by_byte(self, client: Client) -> None:
        for byte in post("/quick", b"abc"):
            await client.send(bytes([byte]))
            await asyncio.sleep(0)
        assert await client.body() == {"size": 3}

    async def test_a_chunked_body_is_put_together(self, harness: ListenerHarness, client: Client) -> None:
        head = b"POST /quick HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        await client.send(head + b"3\r\nabc\r\n")
        await client.send(b"2;x=y\r\nde\r\n0\r\nTrailer: t\r\n\r\n")
        assert await client.body() == {"size": 5}
        assert harness.seen == [b"abcde"]

    async def test_a_query_is_no_part_of_the_path(self, client: Client) -> None:
        await client.send(post("/quick?timeout=5s"))
        assert (await client.reply())[0] == 200

    async def test_pipelined_requests_are_answered_in_order_also_behind_an_open_call(
        self, harness: ListenerHarness, client: Client
    ) -> None:
        await client.send(post("/quick", b"1") + post("/slow", b"22") + post("/quick", b"333") + post("/slow", b"4444"))
        assert await client.body() == {"size": 1}
        await harness.await_requests(2)
        assert harness.seen == [b"1", b"22"]
        harness.release.set()
        assert [await client.body() for _ in range(3)] == [{"slow": 2}, {"size": 3}, {"slow": 4}]

    @pytest.mark.parametrize(
        "behind",
        [
            pytest.param(post("/quick", b"x" * 900) * 5, id="bytes"),
            pytest.param(post("/quick") * 17, id="requests"),
            pytest.param(post("/quick", b"x" * (MOST + 1)), id="a large one"),
        ],
    )
    async def test_too_much_behind_an_open_call_ends_the_connection(
        self, harness: ListenerHarness, client: Client, behind: bytes
    ) -> None:
        await client.send(post("/slow", b"s") + behind)
        assert await client.closed()
        await harness.await_hangups(b"s")
        assert harness.seen == [b"s"]

    async def test_trailers_without_end_behind_an_open_call_end_the_connection(
        self, harness: ListenerHarness, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(listener, "_MAX_OTHER_BYTES", 5000)
        head = b"POST /quick HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nx: "
        await client.send(post("/slow", b"s") + head + b"a" * 4000)
        await harness.await_requests(1)
        await client.send(b"a" * 4000)
        assert await client.closed()
        await harness.await_hangups(b"s")

    async def test_what_waited_behind_a_call_makes_room_when_it_is_answered(
        self, harness: ListenerHarness, client: Client
    ) -> None:
        harness.release.set()
        for _ in range(5):
            await client.send(post("/slow", b"s") + post("/quick", b"x" * 900) * 4)
            assert [await client.body() for _ in range(5)] == [{"slow": 1}, *[{"size": 900}] * 4]


class TestTheEndOfAConnection:
    @pytest.mark.parametrize(
        "request_",
        [
            pytest.param(post("/quick", b"1", "Connection: close"), id="the client asks for it"),
            pytest.param(post("/quick", b"1", version="1.0"), id="HTTP/1.0"),
            pytest.param(post("/quick", b"1", "Connection: keep-alive", version="1.0"), id="HTTP/1.0, keep-alive"),
            pytest.param(post("/quick", b"", "Connection: Upgrade", "Upgrade: h2c"), id="an upgrade that we decline"),
        ],
    )
    async def test_the_answer_says_that_it_is_the_last_one(
        self, harness: ListenerHarness, client: Client, request_: bytes
    ) -> None:
        await client.send(request_ + post("/quick", b"not this one"))
        status, headers, body = await client.reply()
        assert (status, headers["connection"], body) == (200, "close", {"size": len(harness.seen[0])})
        assert await client.closed()
        assert len(harness.seen) == 1

    async def test_a_handler_can_end_it(self, harness: ListenerHarness, client: Client) -> None:
        await client.send(post("/quick", b"leave") + post("/quick", b"not this one"))
        assert (await client.reply())[1]["connection"] == "close"
        assert await client.closed()
        assert harness.seen == [b"leave"]

    @pytest.mark.parametrize("sent", [b"", post("/quick", b"12345")[:-3]], ids=["nothing", "half a request"])
    async def test_a_silent_or_slow_client_is_not_waited_for(
        self, harness: ListenerHarness, sent: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(listener, "IDLE_SECONDS", SOON)
        client = Client(*await asyncio.open_connection("127.0.0.1", harness.port))
        await client.send(sent)
        assert await client.closed(within=10 * SOON)
        await client.close()

    async def test_an_open_call_is_not_idle(self, harness: ListenerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(listener, "IDLE_SECONDS", SOON)
        client = Client(*await asyncio.open_connection("127.0.0.1", harness.port))
        await client.send(post("/slow", b"s"))
        await asyncio.sleep(3 * SOON)
        harness.release.set()
        assert await client.body() == {"slow": 1}
        assert await client.closed(within=10 * SOON)
        await client.close()

    async def test_a_client_that_does_not_read_holds_up_nobody_else(
        self, harness: ListenerHarness, client: Client
    ) -> None:
        many = post("/quick", b"x") * 1000

        async def flood() -> None:
            while True:
                await client.send(many)

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(flood(), 1.0)  # the server stopped reading, so sending stops too
        other = Client(*await asyncio.open_connection("127.0.0.1", harness.port))
        await other.send(post("/quick", b"ab"))
        assert await other.body() == {"size": 2}
        await other.close()
        assert await client.body() == {"size": 1}


class TestHangUp:
    async def test_an_open_call_learns_that_the_client_went(self, harness: ListenerHarness, client: Client) -> None:
        await client.send(post("/slow", b"gone"))
        await harness.await_requests(1)
        await client.close()
        await harness.await_hangups(b"gone")

    async def test_a_client_that_went_gets_nothing_begun_that_it_had_sent_ahead(
        self, harness: ListenerHarness, client: Client
    ) -> None:
        await client.send(post("/slow", b"gone") + post("/quick", b"never"))
        await harness.await_requests(1)
        await client.close()
        await asyncio.sleep(SOON)
        assert (harness.seen, harness.hung_up) == ([b"gone"], [b"gone"])

    async def test_others_go_on_waiting(self, harness: ListenerHarness, client: Client) -> None:
        other = Client(*await asyncio.open_connection("127.0.0.1", harness.port))
        await other.send(post("/slow", b"stays"))
        await client.send(post("/slow", b"goes"))
        await harness.await_requests(2)
        await client.close()
        await asyncio.sleep(SOON)
        harness.release.set()
        assert await other.body() == {"slow": 5}
        assert harness.hung_up == [b"goes"]
        await other.close()


class TestContinue:
    async def test_a_client_that_asks_before_it_sends_is_invited(self, client: Client) -> None:
        request = post("/quick", b"abc", "Expect: 100-continue")
        await client.send(request[:-3])
        assert (await client.head())[0] == 100
        await client.send(request[-3:])
        assert await client.body() == {"size": 3}

    async def test_the_invitation_comes_after_the_answer_that_is_due(
        self, harness: ListenerHarness, client: Client
    ) -> None:
        await client.send(post("/slow", b"s") + post("/quick", b"abc", "Expect: 100-continue")[:-3])
        await harness.await_requests(1)
        harness.release.set()
        assert await client.body() == {"slow": 1}
        assert (await client.head())[0] == 100
        await client.send(b"abc")
        assert await client.body() == {"size": 3}


class TestRefusals:
    async def test_no_such_path_and_no_such_method(self, client: Client) -> None:
        await client.send(post("/nothing"))
        assert (await client.reply())[0::2] == (404, {"Error": "serried: unknown verb"})
        await client.send(b"GET /quick HTTP/1.1\r\nHost: x\r\n\r\n")
        status, headers, body = await client.reply()
        assert (status, headers["allow"], body) == (405, "post", {"Error": "serried: POST is the only method"})
        await client.send(b"HEAD /quick HTTP/1.1\r\nHost: x\r\n\r\n" + post("/quick"))
        assert (await client.head())[0] == 405
        assert await client.body() == {"size": 0}

    @pytest.mark.parametrize(
        "garbage",
        [b"\x16\x03\x01\x02\x00\x01", b"hello\r\n\r\n", b"POST /quick HTTP/1.1\r\nContent-Length: x\r\n\r\n"],
        ids=["TLS", "no HTTP", "a length that is none"],
    )
    async def test_what_is_not_http_is_400_and_the_end(
        self, harness: ListenerHarness, client: Client, garbage: bytes
    ) -> None:
        await client.send(garbage)
        status, headers, body = await client.reply()
        assert (status, headers["connection"]) == (400, "close")
        assert body["Error"].startswith("serried: the request is not HTTP: ")
        assert await client.closed()
        assert harness.seen == []

    async def test_garbage_behind_an_open_call_is_a_hang_up(self, harness: ListenerHarness, client: Client) -> None:
        await client.send(post("/slow", b"s") + b"hello\r\n\r\n")
        assert await client.closed()
        await harness.await_hangups(b"s")

    async def test_a_head_without_end_is_refused(self, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(listener, "_MAX_OTHER_BYTES", 5000)
        await client.send(b"POST /quick HTTP/1.1\r\nX: " + b"x" * 4000)
        await client.send(b"x" * 4000)
        assert (await client.reply())[0] == 431

    @pytest.mark.parametrize(
        ("begin", "endless"),
        [
            pytest.param(b"0\r\nx: ", b"a" * 4000, id="the value of a trailer"),
            pytest.param(b"0\r\n", b"x: a\r\n" * 700, id="trailers"),
            pytest.param(b"", b"1\r\nx\r\n" * 800, id="chunks of one byte"),
            pytest.param(b"1;", b"x" * 4000, id="the extension of a chunk"),
        ],
    )
    async def test_what_a_request_has_beside_its_body_has_an_end(
        self, harness: ListenerHarness, client: Client, begin: bytes, endless: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(listener, "_MAX_OTHER_BYTES", 5000)
        await client.send(b"POST /quick HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + begin)
        for _ in range(2):
            await client.send(endless)
        assert (await client.reply())[0] == 431
        assert await client.closed()
        assert harness.seen == []

    async def test_the_bodies_of_many_requests_do_not_count(
        self, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(listener, "_MAX_OTHER_BYTES", 5000)
        for _ in range(20):
            await client.send(post("/quick", b"x" * MOST))
            assert await client.body() == {"size": MOST}

    async def test_line_ends_without_a_request_have_an_end(
        self, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(listener, "_MAX_OTHER_BYTES", 5000)
        await client.send(b"\r\n" * 2000)
        await client.send(b"\r\n" * 2000)
        assert (await client.reply())[0] == 431

    @pytest.mark.parametrize("head", ["Content-Length: 9000000", "Transfer-Encoding: chunked"])
    async def test_of_a_body_that_is_too_large_the_handler_sees_the_beginning(
        self, harness: ListenerHarness, client: Client, head: str
    ) -> None:
        chunk = f"{MOST + 1:x}\r\n".encode() if "chunked" in head else b""
        await client.send(f"POST /quick HTTP/1.1\r\nHost: x\r\n{head}\r\n\r\n".encode() + chunk + b"x" * (MOST + 1))
        status, headers, body = await client.reply()
        assert (status, headers["connection"], body) == (200, "close", {"size": MOST + 1})
        for _ in range(20):
            await client.send(b"x" * 100_000)  # is read and dropped: a reset would take the answer with it
        assert await client.closed()
        assert len(harness.seen) == 1

    async def test_the_rest_of_a_refused_body_is_not_read_for_ever(
        self, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(listener, "_LINGER_SECONDS", SOON)
        await client.send(b"POST /quick HTTP/1.1\r\nHost: x\r\nContent-Length: 900000000\r\n\r\n" + b"x" * (MOST + 1))
        assert await client.body() == {"size": MOST + 1}
        with pytest.raises(ConnectionError):  # noqa: PT012 - how many writes it takes is the kernel's affair
            for _ in range(100):
                await client.send(b"x" * 1000)
                await asyncio.sleep(0.02)

    @pytest.mark.parametrize("path", ["/bug", "/slow"])
    async def test_a_bug_is_500_without_a_traceback_and_the_next_call_works(
        self, client: Client, path: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.ERROR):
            await client.send(post(path, b"bug"))
            assert (await client.reply())[0::2] == (500, {"Error": "serried: internal error, see the extender's log"})
        assert "a secret" in caplog.text
        await client.send(post("/quick"))
        assert await client.body() == {"size": 0}


class TestClosing:
    async def test_idle_connections_end_and_no_new_ones_are_taken(
        self, harness: ListenerHarness, client: Client
    ) -> None:
        await client.send(post("/quick"))
        await client.body()
        await harness.listener.close()
        assert await client.closed()
        with pytest.raises(ConnectionError):
            await asyncio.open_connection("127.0.0.1", harness.port)

    async def test_a_call_that_ends_soon_is_answered(self, harness: ListenerHarness, client: Client) -> None:
        await client.send(post("/slow", b"s") + post("/quick", b"too late"))
        await harness.await_requests(1)
        asyncio.get_running_loop().call_later(0.05, harness.release.set)
        await harness.listener.close()
        status, headers, body = await client.reply()
        assert (status, headers["connection"], body) == (200, "close", {"slow": 1})
        assert await client.closed()
        assert harness.seen == [b"s"]

    async def test_a_call_that_does_not_is_503(
        self, harness: ListenerHarness, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(listener, "_CLOSING_SECONDS", 0.05)
        await client.send(post("/slow", b"s"))
        await harness.await_requests(1)
        await harness.listener.close()
        assert (await client.reply())[0::2] == (503, {"Error": "serried: the extender is stopping"})
        assert await client.closed()

    async def test_serving_ends_when_it_is_cancelled(self, harness: ListenerHarness) -> None:
        other = Listener(Routes({}, {}, 1))
        with pytest.raises(OSError, match="in use"):
            await other.serve("127.0.0.1", harness.port)
        await harness.listener.close()
        serving = asyncio.create_task(harness.listener.serve("127.0.0.1", 0))
        await asyncio.sleep(0.05)
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
