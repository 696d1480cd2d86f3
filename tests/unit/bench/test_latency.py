"""The client that measures filter: the bytes it sends, the answers it takes, the marks it reports."""

import socket
import threading
from collections.abc import Callable, Iterator

import orjson
import pytest

from bench.latency import (
    AnswerError,
    Case,
    call,
    check_answer,
    describe_calls,
    make_request,
    measure_calls,
    render_table,
)

Start = Callable[..., str]

POD = {"metadata": {"name": "p"}, "spec": {}}


class Server:
    """Answers every request on every connection with the same bytes, in pieces."""

    def __init__(self, answer: bytes, piece: int = 1 << 16) -> None:
        self._answer, self._piece = answer, piece
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/filter"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # each piece goes at once
                while connection.recv(1 << 16):
                    for start in range(0, len(self._answer), self._piece):
                        connection.sendall(self._answer[start : start + self._piece])
                    if not self._answer.startswith(b"HTTP/1.1 200"):
                        break

    def close(self) -> None:
        self._listener.close()


def answer(names: list[str], error: str = "") -> bytes:
    body = orjson.dumps({"NodeNames": names} | ({"Error": error} if error else {}))
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)


@pytest.fixture
def serve() -> Iterator[Start]:
    servers: list[Server] = []

    def start(reply: bytes, piece: int = 1 << 16) -> str:
        servers.append(Server(reply, piece))
        return servers[-1].url

    yield start
    for server in servers:
        server.close()


def test_a_request_is_what_the_scheduler_sends() -> None:
    head, _, body = make_request("http://127.0.0.1:8910/filter", POD, ["a", "b"]).partition(b"\r\n\r\n")

    assert head.startswith(b"POST /filter HTTP/1.1\r\nHost: 127.0.0.1:8910\r\n")
    assert f"Content-Length: {len(body)}".encode() in head
    assert orjson.loads(body) == {"Pod": POD, "Nodes": None, "NodeNames": ["a", "b"]}


@pytest.mark.parametrize("piece", [1, 7, 1 << 16])
def test_an_answer_in_pieces_is_read_whole(serve: Start, piece: int) -> None:
    url = serve(answer(["a"]), piece)

    assert len(measure_calls(url, make_request(url, POD, ["a"]), 3)) == 3


@pytest.mark.parametrize("reply", [b"HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n", b"HTT"])
def test_any_other_answer_is_an_error(serve: Start, reply: bytes) -> None:
    url = serve(reply)
    host, port = url.removeprefix("http://").removesuffix("/filter").split(":")

    with socket.create_connection((host, int(port)), timeout=5) as connection, pytest.raises(AnswerError):
        call(connection, make_request(url, POD, ["a"]))


@pytest.mark.parametrize(
    ("reply", "passes", "fine"),
    [
        (answer(["a", "b"]), True, True),
        (answer([]), False, True),
        (answer([]), True, False),
        (answer(["a"]), False, False),
        (answer([], error="no"), False, False),
    ],
    ids=["passes", "held", "held but should pass", "passes but should be held", "error"],
)
def test_only_expected_answers_are_worth_measuring(serve: Start, reply: bytes, passes: bool, fine: bool) -> None:  # noqa: FBT001
    case = Case("pod", POD, passes)
    url = serve(reply)

    if fine:
        check_answer(url, case, ["a", "b"])
    else:
        with pytest.raises(AnswerError, match="2 names"):
            check_answer(url, case, ["a", "b"])


def scores(*given: int) -> bytes:
    body = orjson.dumps([{"Host": str(number), "Score": score} for number, score in enumerate(given)])
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)


@pytest.mark.parametrize(
    ("reply", "fine"),
    [
        pytest.param(scores(*[10] * 100, *[0] * 100), True, id="a broken rack and a whole one"),
        pytest.param(scores(*[0] * 200), False, id="no opinion"),
        pytest.param(scores(10, 0), False, id="not all nodes"),
    ],
)
def test_only_scores_that_tell_racks_apart_are_worth_measuring(serve: Start, reply: bytes, fine: bool) -> None:  # noqa: FBT001
    case = Case("pod", POD, passes=True, verb="prioritize")
    names = [str(number) for number in range(200)]
    url = serve(reply)

    if fine:
        check_answer(url, case, names)
    else:
        with pytest.raises(AnswerError, match="200 names"):
            check_answer(url, case, names)


def test_marks_are_milliseconds() -> None:
    assert describe_calls([0.001, 0.002, 0.0035]) == {"p50_ms": 2.0, "p95_ms": 3.5, "p99_ms": 3.5, "max_ms": 3.5}


def test_the_table_has_a_line_for_every_row() -> None:
    row = {"pod": "plain pod", "names": 5000, "p50_ms": 0.5, "p95_ms": 1.234, "p99_ms": 2.0}

    assert render_table([row]).splitlines()[2:] == ["| plain pod | 5,000 | 0.50 | 1.23 | 2.00 |"]
