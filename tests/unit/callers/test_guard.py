"""Callers of metrics and debug pages: their address, their credentials, and the API server's reviews of them."""

import asyncio
import logging
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request

from serried.kube.errors import Forbidden, Unavailable
from serried.kube.wire import Failure
from serried.ops.access import Guard, Reviews, TokenDemand, names_address, read_seconds
from tests.support.access_reviews import FakeReviews
from tests.support.clock import Clock

KEPT = 30.0
AWAY = ("10.0.0.9", 40000)
HERE = ("127.0.0.1", 40000)
TOKEN = "a-good-token"
READER = "system:serviceaccount:team:reader"


class GuardHarness:
    """A guard before three pages, and the API server that it asks."""

    def __init__(self, demand: TokenDemand = TokenDemand.REMOTE) -> None:
        self.fake_reviews = FakeReviews()
        self.clock = Clock()
        self.fake_reviews.users[TOKEN] = READER
        self.fake_reviews.grants |= {
            (READER, "get", "/metrics"),
            (READER, "get", "/debug/queue"),
            (READER, "get", "/debug/stream"),
        }
        app = FastAPI()
        for path in ("/livez", "/readyz", "/metrics", "/debug/queue", "/debug/nodes"):
            app.get(path)(self._answer)
        app.post("/debug/queue")(self._answer)
        app.get("/debug/stream")(self._tell_seconds)
        app.get("/slow")(self._wait)
        self.patience = asyncio.Event()
        """Set for slow pages to be answered."""
        reviews = Reviews(self.fake_reviews.client(), KEPT, self.clock, self.clock.sleep)
        self.guard = Guard(app, demand, reviews)

    async def _answer(self) -> str:
        return "answered"

    async def _wait(self) -> None:
        await self.patience.wait()

    async def _tell_seconds(self, request: Request) -> str:
        return str(read_seconds(request.scope))

    async def ask(
        self,
        path: str = "/debug/queue",
        token: str = TOKEN,
        *,
        peer: tuple[str, int] = AWAY,
        scheme: str = "https",
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        host: str = "localhost:8912",
    ) -> httpx.Response:
        """Send one request; without a token if it is ""."""
        shown = {"Authorization": f"Bearer {token}"} if token else {}
        transport = httpx.ASGITransport(self.guard, client=peer)
        async with httpx.AsyncClient(transport=transport, base_url=f"{scheme}://{host}") as http:
            return await http.request(method, path, headers=shown | dict(headers or {}))


@pytest.fixture
def harness() -> GuardHarness:
    return GuardHarness()


def refusal(status: int, message: str) -> Unavailable:
    return Unavailable("POST reviews", Failure(status, "", message))


class TestWhoComesFromElsewhere:
    async def test_may_look_with_the_token_of_one_who_may(self, harness: GuardHarness) -> None:
        assert (await harness.ask()).json() == "answered"

    async def test_may_look_for_as_long_as_the_answer_about_the_token_counts(self, harness: GuardHarness) -> None:
        assert (await harness.ask("/debug/stream")).json() == str(KEPT)

    @pytest.mark.parametrize("path", ["/livez", "/readyz"])
    async def test_probes_need_no_token(self, harness: GuardHarness, path: str) -> None:
        assert (await harness.ask(path, "", scheme="http")).status_code == 200
        assert harness.fake_reviews.asked == []

    @pytest.mark.parametrize("path", ["/metrics", "/debug/queue", "/debug/nothing", "/nothing", "//livez", "/livez/"])
    async def test_without_a_token_is_told_how_to_come(self, harness: GuardHarness, path: str) -> None:
        answer = await harness.ask(path, "")
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert "port-forward" in answer.json()["detail"]

    async def test_with_a_token_that_is_nobodys_is_refused(self, harness: GuardHarness) -> None:
        answer = await harness.ask(token="invented")
        assert (answer.status_code, "knows no user" in answer.text) == (401, True)

    async def test_without_the_right_reads_which_one_and_as_whom(self, harness: GuardHarness) -> None:
        answer = await harness.ask("/debug/nodes")
        assert answer.status_code == 403
        assert f"{READER} may not get /debug/nodes: bind the ClusterRole serried-debug-reader" in answer.text

    async def test_the_method_is_what_may_be_done(self, harness: GuardHarness) -> None:
        assert (await harness.ask(method="POST")).status_code == 403
        harness.fake_reviews.grants.add((READER, "post", "/debug/queue"))
        harness.clock.advance(KEPT)
        assert (await harness.ask(method="POST")).status_code == 200

    async def test_a_token_in_the_header_of_our_own_counts_as_well(self, harness: GuardHarness) -> None:
        assert (await harness.ask(token="", headers={"X-Serried-Token": TOKEN})).status_code == 200

    @pytest.mark.parametrize("shown", ["Basic dXNlcjpwYXNz", "Bearer", "Bearer ", TOKEN])
    async def test_other_credentials_are_none(self, harness: GuardHarness, shown: str) -> None:
        assert (await harness.ask(token="", headers={"Authorization": shown})).status_code == 401
        assert harness.fake_reviews.asked == []

    async def test_plain_http_is_refused_before_a_token_is_looked_at(self, harness: GuardHarness) -> None:
        answer = await harness.ask(scheme="http")
        assert (answer.status_code, "https" in answer.text) == (400, True)
        assert harness.fake_reviews.asked == []

    @pytest.mark.parametrize(("path", "token"), [("/debug/" + "x" * 2000, TOKEN), ("/debug/queue", "x" * 20_000)])
    async def test_what_is_too_long_is_not_asked_about(self, harness: GuardHarness, path: str, token: str) -> None:
        assert (await harness.ask(path, token)).status_code in {401, 414}
        assert harness.fake_reviews.asked == []

    async def test_who_they_are_is_told_to_the_api_server_in_full(self, harness: GuardHarness) -> None:
        await harness.ask()
        assert harness.fake_reviews.specs[1] == {
            "user": READER,
            "uid": "1",
            "groups": ["team"],
            "extra": {"a": ["b"]},
            "nonResourceAttributes": {"path": "/debug/queue", "verb": "get"},
        }


class TestWhoIsThereAlready:
    @pytest.mark.parametrize("address", ["127.0.0.1", "::1", "::ffff:127.0.0.1"])
    async def test_loopback_needs_nothing(self, harness: GuardHarness, address: str) -> None:
        assert (await harness.ask(token="", peer=(address, 1), scheme="http")).status_code == 200

    async def test_and_may_look_for_ever(self, harness: GuardHarness) -> None:
        assert (await harness.ask("/debug/stream", "", peer=("127.0.0.1", 1))).json() == "inf"

    @pytest.mark.parametrize("address", ["127.0.0.6", "::ffff:127.0.0.6", "127.8.9.1"])
    async def test_the_proxy_of_a_mesh_does_not_lend_its_place_to_those_it_speaks_for(
        self, harness: GuardHarness, address: str
    ) -> None:
        assert (await harness.ask(token="", peer=(address, 1))).status_code == 401

    @pytest.mark.parametrize("address", ["10.0.0.1", "::ffff:10.0.0.1", "fd00::1", "169.254.1.1", "", "localhost"])
    async def test_other_addresses_are_elsewhere(self, harness: GuardHarness, address: str) -> None:
        assert (await harness.ask(token="", peer=(address, 1))).status_code == 401

    async def test_what_a_proxy_would_say_of_the_caller_does_not_count(self, harness: GuardHarness) -> None:
        said = {"X-Forwarded-For": "127.0.0.1", "X-Real-IP": "127.0.0.1", "Forwarded": "for=127.0.0.1"}
        assert (await harness.ask(token="", headers=said)).status_code == 401

    async def test_where_loopback_is_shared_it_needs_a_token_too_by_plain_http_as_well(self) -> None:
        harness = GuardHarness(TokenDemand.ALWAYS)
        assert (await harness.ask(token="", peer=("127.0.0.1", 1), scheme="http")).status_code == 401
        assert (await harness.ask(peer=("127.0.0.1", 1), scheme="http")).status_code == 200

    async def test_where_no_tokens_are_asked_for_everybody_may_look(self) -> None:
        harness = GuardHarness(TokenDemand.OFF)
        assert (await harness.ask(token="", scheme="http")).status_code == 200


class TestByWhichNameTheyComeByLoopback:
    @pytest.mark.parametrize(
        "host", ["localhost", "LOCALHOST:1", "127.0.0.1:8912", "[::1]:8912", "[::1]", "10.0.0.7:80"]
    )
    async def test_who_asks_for_localhost_or_an_address_needs_nothing(self, harness: GuardHarness, host: str) -> None:
        assert (await harness.ask(token="", peer=HERE, scheme="http", host=host)).status_code == 200

    @pytest.mark.parametrize(
        "host", ["evil.example", "evil.example:8912", "localhost.evil.example", "127.0.0.1.evil", "a:b"]
    )
    async def test_a_web_page_that_has_its_own_name_mean_loopback_reads_nothing(
        self, harness: GuardHarness, host: str
    ) -> None:
        answer = await harness.ask(token="", peer=HERE, scheme="http", headers={"Host": host})
        assert (answer.status_code, "use localhost" in answer.text) == (401, True)

    def test_each_name_counts_where_there_are_two(self) -> None:
        assert not names_address([(b"host", b"localhost"), (b"host", b"evil.example")])

    def test_where_no_name_is_said_none_is_wrong(self) -> None:
        assert names_address([(b"accept", b"*/*")])

    async def test_by_another_name_a_token_is_enough(self, harness: GuardHarness) -> None:
        assert (await harness.ask(peer=HERE, scheme="http", host="jump.example:8912")).status_code == 200

    async def test_probes_may_use_any_name(self, harness: GuardHarness) -> None:
        assert (await harness.ask("/livez", "", peer=HERE, scheme="http", host="node.example")).status_code == 200

    async def test_where_a_token_is_needed_anyway_no_other_name_is_recommended(self) -> None:
        answer = await GuardHarness(TokenDemand.ALWAYS).ask(token="", peer=HERE, scheme="http", host="evil.example")
        assert (answer.status_code, "use localhost" in answer.text) == (401, False)

    async def test_where_no_tokens_are_asked_for_the_name_does_not_matter(self) -> None:
        harness = GuardHarness(TokenDemand.OFF)
        assert (await harness.ask(token="", peer=HERE, scheme="http", host="x.example")).status_code == 200


class TestWhatStrangersHaveForNothing:
    async def test_invented_tokens_and_paths_are_reviewed_only_so_often(self, harness: GuardHarness) -> None:
        await harness.ask()
        begun = harness.clock()
        statuses = {(await harness.ask(token=f"invented-{number}")).status_code for number in range(200)}
        statuses |= {(await harness.ask(f"/debug/{number}")).status_code for number in range(100)}
        assert (statuses, len(harness.fake_reviews.asked)) == ({401, 403}, 302)
        assert harness.clock() - begun == pytest.approx((302 - 200) / 50)

    async def test_while_they_are_reviewed_who_is_known_does_not_wait(self, harness: GuardHarness) -> None:
        await harness.ask()
        harness.fake_reviews.open.clear()
        crowd = [asyncio.create_task(harness.ask(token=f"invented-{number}")) for number in range(100)]
        await until(lambda: len(harness.fake_reviews.asked) == 3)
        assert (await harness.ask()).status_code == 200
        assert (await harness.ask("/livez", "", scheme="http")).status_code == 200
        harness.fake_reviews.open.set()
        assert {(await ask).status_code for ask in crowd} == {401}

    async def test_who_hangs_up_keeps_nobody_from_being_reviewed(self, harness: GuardHarness) -> None:
        harness.fake_reviews.open.clear()
        gone = asyncio.create_task(harness.ask())
        await until(lambda: len(harness.fake_reviews.asked) == 1)
        again = asyncio.create_task(harness.ask())
        gone.cancel()
        harness.fake_reviews.open.set()
        assert (await again).status_code == 200

    async def test_they_take_no_place_of_a_reader(self, harness: GuardHarness) -> None:
        harness.fake_reviews.open.clear()
        crowd = [asyncio.create_task(harness.ask(token=f"invented-{number}")) for number in range(100)]
        assert (await harness.ask(token="", peer=HERE)).status_code == 200
        harness.fake_reviews.open.set()
        await asyncio.gather(*crowd)

    async def test_who_comes_when_many_are_answered_is_told_to_come_back(self, harness: GuardHarness) -> None:
        asks = [asyncio.create_task(harness.ask("/slow", "", peer=HERE)) for _ in range(66)]
        await until(lambda: sum(ask.done() for ask in asks) == 2)
        refused = [ask.result() for ask in asks if ask.done()]
        assert {(answer.status_code, answer.headers["retry-after"]) for answer in refused} == {(503, "5")}
        assert (await harness.ask("/livez", "", peer=HERE)).status_code == 200
        harness.patience.set()
        assert sorted([(await ask).status_code for ask in asks]) == [200] * 64 + [503] * 2
        assert (await harness.ask(token="", peer=HERE)).status_code == 200

    async def test_nothing_is_read_of_who_is_refused(self, harness: GuardHarness) -> None:
        sender = Caller(harness.guard)
        await sender.answer
        assert (sender.read, sender.sent[0]["status"]) == (0, 401)


class TestWhatIsKept:
    async def test_the_api_server_is_asked_once_for_as_long_as_its_word_counts(self, harness: GuardHarness) -> None:
        for _ in range(3):
            assert (await harness.ask()).status_code == 200
        assert harness.fake_reviews.asked == ["TokenReview", "SubjectAccessReview"]
        harness.clock.advance(KEPT)
        await harness.ask()
        assert harness.fake_reviews.asked == ["TokenReview", "SubjectAccessReview"] * 2

    async def test_a_token_that_is_taken_away_is_refused_when_that_time_is_over(self, harness: GuardHarness) -> None:
        await harness.ask()
        harness.fake_reviews.users.clear()
        harness.clock.advance(KEPT - 1)
        assert (await harness.ask()).status_code == 200
        harness.clock.advance(1)
        assert (await harness.ask()).status_code == 401

    async def test_a_right_that_is_taken_away_is_refused_when_that_time_is_over(self, harness: GuardHarness) -> None:
        await harness.ask()
        harness.fake_reviews.grants.clear()
        harness.clock.advance(KEPT - 1)
        assert (await harness.ask()).status_code == 200
        harness.clock.advance(1)
        assert (await harness.ask()).status_code == 403

    async def test_a_right_that_is_given_counts_sooner(self, harness: GuardHarness) -> None:
        assert (await harness.ask("/debug/nodes")).status_code == 403
        harness.fake_reviews.grants.add((READER, "get", "/debug/nodes"))
        assert (await harness.ask("/debug/nodes")).status_code == 403
        harness.clock.advance(10)
        assert (await harness.ask("/debug/nodes")).status_code == 200

    async def test_the_right_of_one_token_is_not_that_of_another_of_the_same_name(self, harness: GuardHarness) -> None:
        harness.fake_reviews.users |= {"in-the-group": "jane", "in-no-group": "jane"}
        harness.fake_reviews.groups |= {"in-the-group": ["operators"], "in-no-group": []}
        harness.fake_reviews.grants.add(("operators", "get", "/debug/nodes"))
        assert (await harness.ask("/debug/nodes", "in-the-group")).status_code == 200
        assert (await harness.ask("/debug/nodes", "in-no-group")).status_code == 403

    async def test_those_who_ask_the_same_at_once_share_one_review(self, harness: GuardHarness) -> None:
        harness.fake_reviews.open.clear()
        asks = [asyncio.create_task(harness.ask()) for _ in range(50)]
        await until(lambda: len(harness.fake_reviews.asked) == 1)
        harness.fake_reviews.open.set()
        assert {(await ask).status_code for ask in asks} == {200}
        assert harness.fake_reviews.asked == ["TokenReview", "SubjectAccessReview"]

    async def test_neither_what_is_kept_nor_the_log_has_a_token(
        self, harness: GuardHarness, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        await harness.ask()
        harness.fake_reviews.error = refusal(0, "no way there")
        await harness.ask(token="another-token")
        kept = list_strings(harness.guard)
        assert READER in kept, "this test looks where nothing is kept"
        assert not [text for text in [*kept, caplog.text] if TOKEN in text or "another-token" in text]


class TestTheApiServerIsDown:
    async def test_who_was_known_goes_on_for_a_time_and_then_reads_why_not(self, harness: GuardHarness) -> None:
        await harness.ask()
        harness.fake_reviews.error = refusal(0, "no answer in 5 s")
        assert (await harness.ask()).status_code == 200
        harness.clock.advance(KEPT)
        answer = await harness.ask()
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        assert "does not answer" in answer.json()["detail"]

    async def test_it_is_asked_again_as_soon_as_it_is_back(self, harness: GuardHarness) -> None:
        harness.fake_reviews.error = refusal(503, "")
        assert (await harness.ask()).status_code == 503
        harness.fake_reviews.error = None
        assert (await harness.ask()).status_code == 200

    async def test_loopback_and_probes_do_not_wait_for_it(self, harness: GuardHarness) -> None:
        harness.fake_reviews.open.clear()
        waiting = asyncio.create_task(harness.ask())
        await until(lambda: len(harness.fake_reviews.asked) == 1)
        assert (await harness.ask("/readyz", "")).status_code == 200
        assert (await harness.ask(token="", peer=("127.0.0.1", 1))).status_code == 200
        harness.fake_reviews.open.set()
        assert (await waiting).status_code == 200

    async def test_a_right_that_we_lack_ourselves_is_named(self, harness: GuardHarness) -> None:
        harness.fake_reviews.error = Forbidden("POST reviews", Failure(403, "Forbidden", "cannot create tokenreviews"))
        answer = await harness.ask()
        assert (answer.status_code, "manifests/kustomize/rbac" in answer.text) == (503, True)


class Caller:
    """One ASGI request without a token."""

    def __init__(self, guard: Guard) -> None:
        self.sent: list[MutableMapping[str, Any]] = []
        self.read = 0
        """The number of times that the request's body was read."""
        about = {"type": "http", "path": "/metrics", "method": "GET", "scheme": "https", "headers": [], "client": AWAY}
        self.answer = asyncio.create_task(guard(about, self._receive, self._send))

    async def _receive(self) -> MutableMapping[str, Any]:
        self.read += 1
        return {"type": "http.request", "body": b"", "more_body": False}

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        self.sent.append(message)


async def until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not happened():  # noqa: ASYNC110 - it is seen from outside
            await asyncio.sleep(0.001)


def list_strings(root: object) -> list[str]:
    """Every string and byte string that an object leads to."""
    found: list[str] = []
    seen: set[int] = set()
    waiting: list[Any] = [root]
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, str | bytes):
            found.append(one if isinstance(one, str) else one.decode("latin-1"))
        elif isinstance(one, dict):
            waiting += [*one.keys(), *one.values()]
        elif isinstance(one, list | tuple | set | frozenset):
            waiting += one
        elif type(one).__module__.startswith(("serried", "cachetools")):
            waiting += [vars(one)] if hasattr(one, "__dict__") else []
            waiting += list(one.items()) if hasattr(one, "items") else []
            waiting += [getattr(one, name, None) for name in getattr(type(one), "__slots__", ())]
    return found
