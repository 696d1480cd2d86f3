"""The fault-injecting proxy: each mishap is what its name says, and without one nothing is changed."""

import json
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random

import httpx
import pytest

from tests.chaos import mishaps, proxy, sight
from tests.chaos.mishaps import Mishap, Request, Weather
from tests.chaos.proxy import Proxy, Trap
from tests.support.threaded_server import ThreadedServer

BINDING = "/api/v1/namespaces/ns/pods/a/binding"
CHANGE = b'{"type":"MODIFIED","object":{}}\n'


class Server(ThreadingHTTPServer):
    """Answers everything, and counts the writes."""

    daemon_threads = True
    writes = 0


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        if "watch=" in self.path:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for _ in range(3):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(CHANGE), CHANGE))
            self.wfile.write(b"0\r\n\r\n")
        else:
            self._answer(b"{}")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.writes += 1
        self._answer(body)

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *told: object) -> None:
        pass


class Stage:
    """A server behind a proxy on which one mishap falls, or none."""

    def __init__(self, server: Server, proxy: Proxy, client: httpx.Client) -> None:
        self.server = server
        self.proxy = proxy
        self.client = client
        self.told: list[tuple[str, Mishap]] = []

    def befall(self, monkeypatch: pytest.MonkeyPatch, mishap: Mishap) -> None:
        for kinds in ("_ANY", "_BEGIN", "_CHANGE"):
            monkeypatch.setattr(mishaps, kinds, (mishap,))
        self.proxy.weather.requests = 1.0

    def bind(self) -> httpx.Response:
        return self.client.post(BINDING, content=b"hello")

    def watch(self) -> httpx.Response:
        return self.client.get("/api/v1/pods?watch=true")


@pytest.fixture
def stage() -> Iterator[Stage]:
    server = Server(("127.0.0.1", 0), Handler)
    told: list[tuple[str, Mishap]] = []
    weather = Weather(Random(1))
    proxy = Proxy(server.server_port, None, weather, lambda request, mishap: told.append((request.subject, mishap)))
    with ThreadedServer(server), proxy, httpx.Client(base_url=f"http://127.0.0.1:{proxy.port}", timeout=20) as client:
        made = Stage(server, proxy, client)
        made.told = told
        yield made


def test_in_calm_weather_all_passes_unchanged(stage: Stage) -> None:
    assert [stage.bind().content for _ in range(3)] == [b"hello"] * 3
    assert stage.watch().content == CHANGE * 3
    assert stage.client.get("/x").content == b"{}"
    assert not stage.told


def test_who_listens_hears_every_request_whatever_becomes_of_it(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[tuple[str, str]] = []
    stage.proxy.hear = lambda request: heard.append((request.method, request.target))
    stage.bind()
    stage.befall(monkeypatch, Mishap.ERROR)
    stage.bind()
    assert heard == [("POST", BINDING)] * 2
    assert stage.server.writes == 1


def test_a_request_is_on_its_way_for_as_long_as_is_said_and_then_done(stage: Stage) -> None:
    stage.proxy.linger = lambda request: 0.3 if request.path == BINDING else 0.0
    begun = time.monotonic()
    stage.client.get("/x")
    assert time.monotonic() - begun < 0.3
    assert stage.bind().content == b"hello"
    assert time.monotonic() - begun >= 0.3


@pytest.mark.parametrize(("mishap", "status"), [(Mishap.TOO_MANY, 429), (Mishap.ERROR, 500), (Mishap.UNAVAILABLE, 503)])
def test_a_refused_write_is_not_done(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, mishap: Mishap, status: int
) -> None:
    stage.befall(monkeypatch, mishap)
    stage.proxy.weather.source = Random(3)
    answers = [stage.bind() for _ in range(5)]
    refused = [answer for answer in answers if answer.status_code == status]
    assert refused
    assert {answer.status_code for answer in answers} <= {status, 409}
    assert all(answer.json()["kind"] == "Status" for answer in answers)
    assert stage.server.writes == 0
    assert ("ns/a", mishap) in stage.told
    assert refused[0].headers.get("Retry-After") == ("1" if mishap is Mishap.TOO_MANY else None)


@pytest.mark.parametrize(("mishap", "writes"), [(Mishap.RESET_BEFORE, 0), (Mishap.RESET_AFTER, 1)])
def test_a_reset_comes_before_or_after_the_write(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, mishap: Mishap, writes: int
) -> None:
    stage.befall(monkeypatch, mishap)
    with pytest.raises(httpx.TransportError):
        stage.client.post("/api/v1/namespaces/ns/events", content=json.dumps({"metadata": {"name": "e"}}))
    assert stage.server.writes == writes
    assert stage.told == [("ns/e", mishap)]


def test_of_the_writes_that_are_never_answered_some_are_done(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "_SILENT_SECONDS", (0.0, 0.01))
    stage.befall(monkeypatch, Mishap.SILENT)
    for _ in range(20):
        with pytest.raises(httpx.TransportError):
            stage.client.post("/api/v1/namespaces/ns/events", content=json.dumps({"metadata": {"name": "e"}}))
    assert 0 < stage.server.writes < 20
    assert stage.told == [("ns/e", Mishap.SILENT)] * 20


def test_a_slow_body_arrives_whole(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.befall(monkeypatch, Mishap.SLOW_BODY)
    assert stage.client.get("/x").content == b"{}"


def test_a_compacted_watch_is_answered_410(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.befall(monkeypatch, Mishap.COMPACTED)
    answer = stage.watch()
    assert (answer.status_code, answer.json()["reason"]) == (410, "Expired")


def test_an_expired_watch_says_so_in_an_event(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.befall(monkeypatch, Mishap.EXPIRED)
    answer = stage.watch()
    assert (answer.status_code, answer.json()["type"], answer.json()["object"]["code"]) == (200, "ERROR", 410)


@pytest.mark.parametrize(
    ("mishap", "content"),
    [
        pytest.param(Mishap.DUPLICATED, CHANGE * 6, id="each change comes twice"),
        pytest.param(Mishap.ENDED, b"", id="the watch ends in good order"),
        pytest.param(Mishap.DELAYED, CHANGE * 3, id="late, but whole"),
    ],
)
def test_what_happens_to_watched_changes(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, mishap: Mishap, content: bytes
) -> None:
    stage.befall(monkeypatch, mishap)
    stage.proxy.weather.requests = 0.0
    stage.proxy.weather.changes = 1.0
    assert stage.watch().content == content


def test_a_busy_watch_is_not_held_up_at_each_change(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.befall(monkeypatch, Mishap.DELAYED)
    stage.proxy.weather.requests = 0.0
    stage.proxy.weather.changes = 1.0
    assert stage.watch().content == CHANGE * 3
    assert stage.proxy.weather.counted == {Mishap.DELAYED: 1}


def test_a_watch_that_was_ended_is_left_alone_for_a_while(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.befall(monkeypatch, Mishap.ENDED)
    stage.proxy.weather.requests = 0.0
    stage.proxy.weather.changes = 1.0

    def watch(kind: str) -> bytes:
        # By a connection of its own: the proxy ends that of a watch that it has ended, maybe while it is used again.
        return httpx.get(f"http://127.0.0.1:{stage.proxy.port}/api/v1/{kind}?watch=true").content

    assert [watch("pods") for _ in range(3)] == [b"", CHANGE * 3, CHANGE * 3]
    assert watch("nodes") == b""


def test_a_process_is_blind_from_the_end_of_a_watch_to_the_next_one(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sight, "BLIND_SECONDS", 0.0)
    noted: list[str] = []

    def look() -> list[str]:
        stage.proxy.sight.look(lambda note, _about: noted.append(note))
        return noted

    stage.befall(monkeypatch, Mishap.ERROR)
    stage.watch()
    assert look() == ["fall"]
    stage.proxy.weather.requests = 0.0
    stage.watch()
    assert look() == ["fall", "rise"]


def test_in_a_silence_a_watch_shows_nothing_and_then_all_of_it(stage: Stage) -> None:
    stage.proxy.silence(0.3)
    begun = time.monotonic()
    assert stage.watch().content == CHANGE * 3
    assert time.monotonic() - begun >= 0.29


def test_a_watch_is_cut(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.befall(monkeypatch, Mishap.CUT)
    stage.proxy.weather.requests = 0.0
    stage.proxy.weather.changes = 1.0
    with pytest.raises(httpx.TransportError):
        stage.watch()


@pytest.mark.parametrize(
    ("request_", "subject", "updates"),
    [
        (Request("POST", BINDING), "ns/a", True),
        (Request("PATCH", "/api/v1/namespaces/ns/pods/a/status?x=y"), "ns/a", True),
        (Request("POST", "/apis/g/v1/namespaces/ns/reservations", b'{"metadata":{"name":"r"}}'), "ns/r", False),
        (Request("POST", "/apis/g/v1/namespaces/ns/reservations", b"k8s\0"), "", False),
        (Request("GET", "/api/v1/pods?watch=1"), "", False),
    ],
)
def test_what_a_request_is_about(request_: Request, subject: str, updates: bool) -> None:  # noqa: FBT001 - of a table
    assert (request_.subject, request_.updates) == (subject, updates)


def test_the_same_seed_brings_the_same_weather() -> None:
    def play(seed: int) -> list[Mishap | None]:
        weather = Weather(Random(seed), requests=0.3, changes=0.3)
        return [weather.draw_request(Request("POST", BINDING)) for _ in range(200)]

    assert play(1) == play(1) != play(2)
    assert {found for seed in range(30) for found in play(seed)} > {Mishap.CONFLICT, Mishap.SILENT, None}


@pytest.mark.parametrize(("after", "writes"), [(False, 0), (True, 1)], ids=["before it is done", "once it is done"])
def test_a_trap_springs_once_at_its_request(stage: Stage, after: bool, writes: int) -> None:  # noqa: FBT001 - of a table
    sprung: list[str] = []
    stage.proxy.trap = Trap("POST", "/binding", after, lambda request: sprung.append(request.subject))
    assert stage.client.get(BINDING).status_code == 200
    with pytest.raises(httpx.TransportError):
        stage.bind()
    assert (sprung, stage.server.writes) == (["ns/a"], writes)
    assert stage.bind().status_code == 200
    assert len(sprung) == 1


def test_a_trap_may_let_its_request_go_on_when_it_is_done(stage: Stage) -> None:
    writes: list[int] = []
    spring = lambda _request: writes.append(stage.server.writes)  # noqa: E731 - a callback
    stage.proxy.trap = Trap("POST", "/binding", after=False, spring=spring, resets=False)
    assert stage.bind().content == b"hello"
    assert (writes, stage.server.writes) == ([0], 1)


def test_a_client_can_be_spared_the_ends_of_its_watches() -> None:
    weather = Weather(Random(1), requests=1.0, changes=1.0, ends=0.0)
    for _ in range(300):
        weather.draw_request(Request("GET", "/x?watch=true"))
        weather.draw_change()
    assert set(weather.counted) == {Mishap.TOO_MANY, Mishap.DELAYED, Mishap.DUPLICATED}


def test_what_cannot_be_sent_twice_is_left_as_it_is() -> None:
    weather = Weather(Random(1), changes=1.0)
    drawn = {weather.draw_change({Mishap.DUPLICATED}) for _ in range(100)}
    assert drawn == {Mishap.DELAYED, Mishap.CUT, Mishap.ENDED, None}
