import asyncio
import sys
from collections.abc import AsyncIterator

import pytest

from serried import __version__
from serried.kube.auth import Credentials, CredentialsError
from serried.kube.client import ONCE, ApiClient, RetryPolicy
from serried.kube.errors import (
    AlreadyExists,
    ApiError,
    BudgetRefusal,
    Conflict,
    Fenced,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    TooMany,
    Unauthorized,
    Unavailable,
)
from serried.kube.retry import Backoff
from serried.kube.wire import PODS, RESERVATIONS
from serried.ops.metrics import Metrics
from tests.support.apiserver import FakeApiServer
from tests.support.faults import calls
from tests.support.storage import BUDGET


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as server:
        server.add(PODS, {"metadata": {"name": "a", "namespace": "ns", "uid": "u1"}, "spec": {}})
        yield server


@pytest.fixture
async def client(server: FakeApiServer) -> AsyncIterator[ApiClient]:
    async with server.client() as client:
        yield client


@pytest.mark.parametrize(
    ("status", "reason", "kind"),
    [
        (400, "BadRequest", Invalid),
        (401, "Unauthorized", Unauthorized),
        (403, "Forbidden", Forbidden),
        (404, "NotFound", NotFound),
        (409, "Conflict", Conflict),
        (409, "AlreadyExists", AlreadyExists),
        (410, "Expired", Gone),
        (418, "", ApiError),
        (422, "Invalid", Invalid),
        (429, "TooManyRequests", TooMany),
        (500, "InternalError", Unavailable),
        (503, "ServiceUnavailable", Unavailable),
        (504, "Timeout", Unavailable),
    ],
)
async def test_each_refusal_has_its_class_and_says_what_was_asked(
    server: FakeApiServer, client: ApiClient, status: int, reason: str, kind: type[ApiError]
) -> None:
    server.reject(calls(), times=9, status=status, reason=reason)
    with pytest.raises(ApiError) as caught:
        await client.get(PODS, "ns", "a")
    assert type(caught.value) is kind
    assert (caught.value.status, caught.value.reason) == (status, reason)
    for part in ("GET /api/v1/namespaces/ns/pods/a", str(status), reason, "injected"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("page", "kind"),
    [
        ('{"kind":"Status","code":404,"reason":"NotFound","message":"no such pod"}', NotFound),
        ("404 page not found\n", NotFound),
        ("<html>no such page</html>", Unavailable),
        ('{"error":"no such page"}', Unavailable),
        ("", Unavailable),
    ],
)
async def test_a_404_counts_only_in_the_words_of_an_api_server(
    server: FakeApiServer, client: ApiClient, page: str, kind: type[ApiError]
) -> None:
    server.intercept(calls(), times=9, status=404, page=page)
    with pytest.raises(ApiError) as caught:
        await client.get(PODS, "ns", "a")
    assert (type(caught.value), caught.value.status) == (kind, 404)
    assert len(server.requests) == 1


POST_BODY = {"metadata": {"name": "new", "namespace": "ns"}}


async def ask(client: ApiClient, verb: str) -> None:
    match verb:
        case "get":
            await client.get(PODS, "ns", "a")
        case "create":
            await client.create(PODS, "ns", POST_BODY)
        case "patch":
            await client.patch_merge(PODS, "ns", "a", {"metadata": {"labels": {"x": "y"}}})
        case "bind":
            await client.bind("ns", "a", "u1", "n1")
        case "evict":
            await client.evict("ns", "a", "u1")
        case "replace":
            await client.replace(PODS, {"metadata": {"name": "a", "namespace": "ns", "uid": "u1"}, "spec": {}})
        case "delete":
            await client.delete(PODS, "ns", "a", uid="u1")


@pytest.mark.parametrize(
    ("verb", "status", "retry_after", "attempts"),
    [
        pytest.param("get", 503, None, 2, id="a read is repeated after 503"),
        pytest.param("get", 429, None, 2, id="a read is repeated after 429"),
        pytest.param("get", 500, None, 1, id="500 is not repeated"),
        pytest.param("get", 409, None, 1, id="conflict is not repeated"),
        pytest.param("create", 429, None, 2, id="a create is repeated after 429"),
        pytest.param("create", 503, 0, 2, id="and after 503 with Retry-After"),
        pytest.param("create", 503, None, 1, id="but not after a bare 503, which may come late"),
        pytest.param("patch", 503, None, 2, id="a merge patch is repeated after 503"),
        pytest.param("bind", 503, None, 2, id="a binding is repeated after 503"),
    ],
)
async def test_what_is_repeated(
    server: FakeApiServer, client: ApiClient, verb: str, status: int, retry_after: int | None, attempts: int
) -> None:
    server.reject(calls(), status=status, retry_after=retry_after)
    if attempts == 1:
        with pytest.raises(ApiError):
            await ask(client, verb)
    else:
        await ask(client, verb)
    assert len(server.requests) == attempts


async def test_the_last_failure_surfaces_when_attempts_are_used_up(server: FakeApiServer) -> None:
    server.reject(calls(), times=9, status=429, retry_after=0)
    async with server.client(RetryPolicy(attempts=3, backoff=Backoff(0.001, 0.001))) as client:
        with pytest.raises(TooMany) as caught:
            await client.get(PODS, "ns", "a")
    assert caught.value.retry_after == 0
    assert len(server.requests) == 3


async def test_a_large_object_is_sent_whole(server: FakeApiServer, client: ApiClient) -> None:
    large = {**POST_BODY, "spec": {"text": "x" * 1_000_000}}
    created = await client.create(PODS, "ns", large)
    replaced = await client.replace(PODS, {**created, "spec": {"text": "y" * 1_000_000}})
    assert (len(created["spec"]["text"]), replaced["spec"]["text"][:2]) == (1_000_000, "yy")


async def test_a_lost_answer_of_a_create_is_not_repeated(server: FakeApiServer, client: ApiClient) -> None:
    server.lose_answer(calls("POST"))
    with pytest.raises(Unavailable) as caught:
        await client.create(PODS, "ns", POST_BODY)
    assert not caught.value.unsent
    assert server.get_object(PODS, "ns", "new") is not None
    assert len(server.list_requests(calls("POST"))) == 1


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE"])
async def test_a_connection_that_closes_under_a_repeatable_request_does_no_harm(
    server: FakeApiServer, method: str
) -> None:
    async with server.client(ONCE) as client:
        obj = await client.get(PODS, "ns", "a")
        server.disconnect(calls(method))
        await {
            "GET": lambda: client.get(PODS, "ns", "a"),
            "PUT": lambda: client.replace(PODS, obj),
            "PATCH": lambda: client.patch_merge(PODS, "ns", "a", {"spec": {"x": 1}}),
            "DELETE": lambda: client.delete(PODS, "ns", "a"),
        }[method]()


async def test_no_server_is_said_so(unused_tcp_port: int) -> None:
    url = f"http://127.0.0.1:{unused_tcp_port}"
    async with ApiClient(Credentials(url), component="test", retry=ONCE) as client:
        with pytest.raises(Unavailable) as caught:
            await client.create(PODS, "ns", POST_BODY)
    assert caught.value.unsent
    assert "POST /api/v1/namespaces/ns/pods: no answer" in str(caught.value)


async def test_a_call_has_a_timeout(server: FakeApiServer) -> None:
    server.hold(calls("GET"))
    async with server.client(ONCE, timeout=0.05) as client:
        with pytest.raises(Unavailable, match=r"no answer in 0\.05 s"):
            await client.get(PODS, "ns", "a")
        with pytest.raises(Unavailable, match=r"no answer in 0\.05 s"):
            async with client.stream(PODS.path(), {"watch": "true"}):
                pass


async def test_a_call_that_gets_no_connection_is_known_to_be_unsent(server: FakeApiServer) -> None:
    gate = server.hold(calls("GET"))
    async with ApiClient(Credentials(server.url), component="test", retry=ONCE, connections=1) as client:
        first = asyncio.create_task(client.get(PODS, "ns", "a"))
        await gate.reached.wait()
        with pytest.raises(Unavailable, match=r"no connection in 0\.8 s") as caught:
            await client.request("POST", PODS.path("ns"), body=b"{}", timeout=1.0)
        gate.open()
        await first
    assert caught.value.unsent
    assert server.list_requests(calls("POST")) == []


async def test_bind_binds_that_pod_and_no_other(server: FakeApiServer, client: ApiClient) -> None:
    with pytest.raises(Conflict, match="UID in precondition: other"):
        await client.bind("ns", "a", "other", "n1")
    await client.bind("ns", "a", "u1", "n1", {"why": "gang"})
    bound = server.get_object(PODS, "ns", "a")
    assert bound is not None
    assert bound["spec"]["nodeName"] == "n1"
    assert bound["metadata"]["annotations"] == {"why": "gang"}
    await client.bind("ns", "a", "u1", "n1")
    with pytest.raises(Conflict, match='already assigned to node "n1"'):
        await client.bind("ns", "a", "u1", "n2")
    with pytest.raises(NotFound):
        await client.bind("ns", "absent", "u1", "n1")


async def test_evict_ends_that_pod_and_no_other(server: FakeApiServer, client: ApiClient) -> None:
    with pytest.raises(Conflict):
        await client.evict("ns", "a", "other")
    await client.evict("ns", "a", "u1")
    assert server.get_object(PODS, "ns", "a") is None
    with pytest.raises(NotFound):
        await client.evict("ns", "a", "u1")


async def test_a_budget_that_refuses_an_eviction_is_asked_once(server: FakeApiServer, client: ApiClient) -> None:
    server.reject(calls("POST", "eviction"), times=9, status=429, reason="TooManyRequests", causes=BUDGET)
    with pytest.raises(BudgetRefusal):
        await client.evict("ns", "a", "u1")
    assert len(server.list_requests(calls("POST", "eviction"))) == 1
    assert server.get_object(PODS, "ns", "a") is not None


async def test_an_api_server_that_has_too_much_to_do_is_no_budget_and_is_asked_again(
    server: FakeApiServer, client: ApiClient
) -> None:
    server.reject(calls("POST", "eviction"), times=2, status=429, retry_after=0)
    await client.rehearse_eviction("ns", "a", "u1")
    assert len(server.list_requests(calls("POST", "eviction"))) == 3
    assert server.get_object(PODS, "ns", "a") is not None


async def test_bind_is_done_although_its_answer_was_lost(server: FakeApiServer, client: ApiClient) -> None:
    server.lose_answer(calls("POST", "binding"))
    await client.bind("ns", "a", "u1", "n1")
    assert len(server.list_requests(calls("POST", "binding"))) == 2


@pytest.mark.parametrize("page", ["<html>a proxy</html>", "", '"ok"', "[]", "null", '{"message":"ok"}'])
@pytest.mark.parametrize("verb", ["get", "create", "patch", "bind", "evict"])
async def test_an_answer_that_is_no_api_servers_leaves_open_what_happened(
    server: FakeApiServer, client: ApiClient, verb: str, page: str
) -> None:
    server.garble(calls(), page=page)
    with pytest.raises(Unavailable, match="not an answer of an API server") as caught:
        await ask(client, verb)
    assert not caught.value.unsent
    assert len(server.requests) == 1


async def test_a_page_with_an_error_status_is_that_error(server: FakeApiServer, client: ApiClient) -> None:
    server.garble(calls(), status=403)
    with pytest.raises(Forbidden, match="a proxy"):
        await client.get(PODS, "ns", "a")


@pytest.mark.parametrize("page", ["{}", '{"items":[],"metadata":{}}', '{"metadata":{"resourceVersion":"1"}}',
                                  '{"items":{},"metadata":{"resourceVersion":"1"}}',
                                  '{"items":["x"],"metadata":{"resourceVersion":"1"}}'])  # fmt: skip
async def test_an_object_that_is_no_list_is_no_empty_list(server: FakeApiServer, client: ApiClient, page: str) -> None:
    server.garble(calls(), page=page)
    with pytest.raises(Unavailable, match="no list"):
        await client.list_all(PODS)


async def test_a_rotated_token_is_read_again(server: FakeApiServer) -> None:
    tokens = ["old"]
    credentials = Credentials(server.url, read_token=lambda: tokens[-1], renew_token=lambda: tokens[-1])
    async with ApiClient(credentials, component="test") as client:
        server.token = "old"
        await client.get(PODS, "ns", "a")
        server.token = "new"
        tokens.append("new")
        await client.get(PODS, "ns", "a")
        server.token = "unknown"
        with pytest.raises(Unauthorized):
            await client.get(PODS, "ns", "a")
    assert server.requests[-1].headers["authorization"] == "Bearer new"


class TestASourceOfTokensThatFails:
    """A file or an exec plugin; it may work again in a moment."""

    async def test_is_like_a_server_that_cannot_be_reached(self, server: FakeApiServer) -> None:
        credentials = Credentials(server.url, read_token=_fail)
        async with ApiClient(credentials, component="test", retry=ONCE) as client:
            with pytest.raises(Unavailable, match="no such file") as caught:
                await client.create(PODS, "ns", POST_BODY)
            with pytest.raises(Unavailable, match="no such file"):
                await _open_stream(client)
        assert (caught.value.status, caught.value.unsent) == (0, True)
        assert server.requests == []

    @pytest.mark.parametrize("way", ["call", "stream"])
    @pytest.mark.parametrize("error", [CredentialsError, PermissionError])
    async def test_so_is_one_that_fails_when_the_server_has_refused_the_token(
        self, server: FakeApiServer, way: str, error: type[Exception]
    ) -> None:
        server.token = "new"
        credentials = Credentials(server.url, read_token=lambda: "old", renew_token=lambda: _fail(error))
        async with ApiClient(credentials, component="test", retry=ONCE) as client:
            with pytest.raises(Unavailable, match="no such file"):
                await (client.get(PODS, "ns", "a") if way == "call" else _open_stream(client))

    async def test_is_asked_again(self, server: FakeApiServer) -> None:
        failures = 2

        def read() -> str:
            nonlocal failures
            failures -= 1
            return _fail() if failures >= 0 else ""

        policy = RetryPolicy(backoff=Backoff(0.001, 0.001))
        async with ApiClient(Credentials(server.url, read_token=read), component="test", retry=policy) as client:
            await client.create(PODS, "ns", POST_BODY)


async def _open_stream(client: ApiClient) -> None:
    async with client.stream(PODS.path(""), {}):
        pass


def _fail(error: type[Exception] = CredentialsError) -> str:
    raise error("no such file")


async def test_says_who_it_is(server: FakeApiServer, client: ApiClient) -> None:
    await client.get(PODS, "ns", "a")
    assert server.requests[-1].headers["user-agent"] == f"serried/{__version__} (test)"


async def test_replace_is_a_compare_and_swap(client: ApiClient) -> None:
    made = await client.create(RESERVATIONS, "ns", {"metadata": {"name": "r"}, "spec": {"phase": "planned"}})
    made["spec"]["phase"] = "committed"
    assert (await client.replace(RESERVATIONS, made))["spec"] == {"phase": "committed"}
    with pytest.raises(Conflict):
        await client.replace(RESERVATIONS, made)


async def test_delete_takes_only_the_object_that_was_meant(server: FakeApiServer, client: ApiClient) -> None:
    with pytest.raises(Conflict):
        await client.delete(PODS, "ns", "a", uid="other")
    await client.delete(PODS, "ns", "a", uid="u1")
    assert server.get_object(PODS, "ns", "a") is None


async def test_many_requests_share_the_connections(server: FakeApiServer, client: ApiClient) -> None:
    answers = await asyncio.gather(*(client.get(PODS, "ns", "a") for _ in range(300)))
    assert len(answers) == 300


class Failures(Metrics):
    """Metrics that record the failed requests."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, int]] = []

    def failed(self, method: str, status: int) -> None:
        self.seen.append((method, status))


async def test_every_refused_attempt_counts(server: FakeApiServer) -> None:
    metrics = Failures()
    retry = RetryPolicy(attempts=3, backoff=Backoff(first=0.001, cap=0.001))
    async with ApiClient(Credentials(server.url), component="test", retry=retry, metrics=metrics) as client:
        with pytest.raises(NotFound):
            await client.get(PODS, "ns", "none")
        assert metrics.seen == [("GET", 404)]
        server.reject(calls(), status=503, times=2)
        assert await client.get(PODS, "ns", "a")
    assert metrics.seen[1:] == [("GET", 503), ("GET", 503)]


async def test_what_is_asked_before_a_binding_is_asked_before_it_is_sent_again(
    server: FakeApiServer, client: ApiClient
) -> None:
    server.disconnect(calls(), times=9)

    def before() -> None:
        if server.requests:
            raise LookupError

    with pytest.raises(LookupError):
        await client.bind("ns", "a", "u1", "n1", before=before)
    assert len(server.requests) == 1


async def test_what_is_asked_before_a_binding_is_asked_when_it_has_its_connection(server: FakeApiServer) -> None:
    gate = server.hold(calls("GET"))
    heard: list[bool] = []
    async with ApiClient(Credentials(server.url), component="test", connections=1) as client:
        read = asyncio.create_task(client.get(PODS, "ns", "a"))
        await gate.reached.wait()
        fence = Fence()
        fenced = client.fenced(fence.may_write)

        def before() -> None:
            heard.append(gate.opened.is_set())

        write = asyncio.create_task(fenced.bind("ns", "a", "u1", "n1", before=before))
        await fence.asked.wait()
        gate.open()
        await write
        await read
    assert heard == [True]


class Fence:
    """A switch for the client's right to write; ``asked`` is set once the client has checked it."""

    def __init__(self) -> None:
        self.down = False
        self.asked = asyncio.Event()

    def may_write(self) -> bool:
        self.asked.set()
        return not self.down


class FallingFence(Fence):
    """A fence that falls in the turn of the loop after the first check."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[bool] = []

    def may_write(self) -> bool:
        asyncio.get_running_loop().call_soon(self.fall)
        self.answers.append(super().may_write())
        return self.answers[-1]

    def fall(self) -> None:
        self.down = True


class TestAFence:
    """A client that may not write any more sends nothing more, whatever it is doing."""

    @pytest.mark.parametrize("verb", ["create", "patch", "bind", "evict"])
    async def test_lets_no_change_through(self, server: FakeApiServer, client: ApiClient, verb: str) -> None:
        with pytest.raises(Fenced):
            await ask(client.fenced(lambda: False), verb)
        assert server.requests == []

    @pytest.mark.parametrize("verb", ["create", "patch", "bind"])
    async def test_is_asked_ahead_of_each_attempt(self, server: FakeApiServer, client: ApiClient, verb: str) -> None:
        server.reject(calls(), times=9, status=429, retry_after=0)
        with pytest.raises(Fenced):
            await ask(client.fenced(lambda: len(server.requests) < 2), verb)
        assert len(server.requests) == 2

    @pytest.mark.parametrize("verb", ["create", "patch", "bind", "evict", "replace", "delete"])
    async def test_is_asked_again_when_a_connection_is_free_at_last(self, server: FakeApiServer, verb: str) -> None:
        gate = server.hold(calls("GET"))
        fence = Fence()
        async with ApiClient(Credentials(server.url), component="test", connections=1) as client:
            read = asyncio.create_task(client.get(PODS, "ns", "a"))
            await gate.reached.wait()
            write = asyncio.create_task(ask(client.fenced(fence.may_write), verb))
            await fence.asked.wait()
            fence.down = True
            gate.open()
            with pytest.raises(Fenced):
                await write
            await read
        assert [request.method for request in server.requests] == ["GET"]

    @pytest.mark.parametrize("verb", ["patch", "bind", "replace", "delete"])
    async def test_is_asked_again_where_the_connection_ended_without_an_answer(
        self, server: FakeApiServer, client: ApiClient, verb: str
    ) -> None:
        server.disconnect(calls(), times=9)
        with pytest.raises(Fenced):
            await ask(client.fenced(lambda: not server.requests), verb)
        assert len(server.requests) == 1

    @pytest.mark.parametrize("verb", ["create", "patch", "bind", "evict"])
    async def test_is_asked_again_when_a_token_was_read_after_a_refusal(self, server: FakeApiServer, verb: str) -> None:
        server.token = "new"
        leads = [True]

        def renew() -> str:
            leads.clear()
            return "new"

        credentials = Credentials(server.url, read_token=lambda: "old", renew_token=renew)
        async with ApiClient(credentials, component="test") as client:
            with pytest.raises(Fenced):
                await ask(client.fenced(lambda: bool(leads)), verb)
        assert len(server.requests) == 1

    @pytest.mark.skipif(sys.version_info >= (3, 12), reason="there aiohttp writes the body in the step of the question")
    @pytest.mark.parametrize("verb", ["create", "patch", "bind", "evict", "replace", "delete"])
    async def test_is_asked_in_the_very_step_in_which_the_first_byte_is_written(
        self, server: FakeApiServer, client: ApiClient, verb: str
    ) -> None:
        await client.get(PODS, "ns", "a")  # so that there is a connection
        fence = FallingFence()
        with pytest.raises(Fenced):
            await ask(client.fenced(fence.may_write), verb)
        assert fence.answers == [True, False]
        assert [request.method for request in server.requests] == ["GET"]
        await client.get(PODS, "ns", "a")

    async def test_a_call_that_is_not_sent_is_no_failure_of_the_api_server(self, server: FakeApiServer) -> None:
        metrics = Failures()
        async with ApiClient(Credentials(server.url), component="test", metrics=metrics) as client:
            with pytest.raises(Fenced):
                await ask(client.fenced(lambda: False), "bind")
        assert metrics.seen == []

    async def test_lets_reads_pass_and_is_for_its_holder_alone(self, server: FakeApiServer, client: ApiClient) -> None:
        await client.fenced(lambda: False).get(PODS, "ns", "a")
        await ask(client, "create")
        assert len(server.requests) == 2
