import logging
from importlib import import_module

import orjson
import pytest

from serried.api.names import GroupKey, GroupKind
from serried.ops.log import UNTRUSTED_LOGGERS, JsonFormatter, RateLimitFilter, configure_logging, name_group
from tests.support.clock import Clock


def render(message: str, *, level: int = logging.INFO, error: Exception | None = None, **extra: object) -> object:
    info = (type(error), error, None) if error else None
    record = logging.getLogger("x").makeRecord("x", level, "f", 1, message, (), info, extra=extra)
    return orjson.loads(JsonFormatter().format(record))


def test_a_line_has_the_fields_of_extra() -> None:
    line = render("bound", pod="ns/a", node="n1")
    assert isinstance(line, dict)
    assert line.pop("ts") > 0
    assert line == {"level": "info", "logger": "x", "msg": "bound", "pod": "ns/a", "node": "n1"}


def test_a_record_about_a_group_says_its_kind() -> None:
    fields = name_group(GroupKey("ns", "root", GroupKind.COMPOSITE))
    assert fields == {"podGroup": "ns/composite:root", "kind": "CompositePodGroup"}


def test_what_json_cannot_hold_becomes_text() -> None:
    line = render("odd", err=ValueError("no"), keys={1: {2}})
    assert isinstance(line, dict)
    assert line["err"] == "no"
    assert line["keys"] == {"1": "{2}"}


def test_an_exception_brings_its_trace() -> None:
    line = render("failed", level=logging.ERROR, error=ValueError("why"))
    assert isinstance(line, dict)
    assert "ValueError: why" in line["trace"]


class Lines(logging.Handler):
    """The log lines that a process writes for these loggers' records."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.written: list[dict[str, object]] = []
        self.setFormatter(JsonFormatter())
        self.addFilter(RateLimitFilter(clock))

    def emit(self, record: logging.LogRecord) -> None:
        self.written.append(orjson.loads(self.format(record)))

    def say(self, name: str, message: str, level: int = logging.WARNING, error: Exception | None = None) -> None:
        info = (type(error), error, None) if error else None
        self.handle(logging.getLogger(name).makeRecord(name, level, "f", 1, message, (), info))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def lines(clock: Clock) -> Lines:
    return Lines(clock)


STRANGE = "serried.ops.server"


def test_what_a_stranger_causes_a_thousand_times_is_written_seldom_and_counted(clock: Clock, lines: Lines) -> None:
    for _ in range(1_000):
        lines.say(STRANGE, "the server closes a connection before its answer is complete")
        clock.advance(1 / 32)
    assert [line.get("leftOut") for line in lines.written] == [None, 319, 319, 319]


def test_another_message_is_written_all_the_same(lines: Lines) -> None:
    for message in ("one", "other", "one"):
        lines.say(STRANGE, message)
    lines.say("uvicorn.error", "one")
    assert [(line["logger"], line["msg"]) for line in lines.written] == [
        (STRANGE, "one"),
        (STRANGE, "other"),
        ("uvicorn.error", "one"),
    ]


def test_errors_of_two_kinds_are_both_written(lines: Lines) -> None:
    for error in (ValueError("x"), KeyError("y"), ValueError("z")):
        lines.say("uvicorn.error", "Exception in ASGI application", logging.ERROR, error)
    assert [str(line["trace"]) for line in lines.written] == ["ValueError: x", "KeyError: 'y'"]


def test_what_strangers_cannot_cause_is_written_each_time(lines: Lines) -> None:
    for _ in range(20):
        lines.say("serried.x", "bound")
    assert len(lines.written) == 20


@pytest.mark.parametrize("name", sorted(UNTRUSTED_LOGGERS - {"uvicorn.error"}))
def test_the_loggers_of_what_strangers_cause_are_there(name: str) -> None:
    assert isinstance(import_module(name).log, logging.Logger)


def test_the_level_holds_for_everybody(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    try:
        configure_logging("warning")
        logging.getLogger("serried.x").info("quiet")
        logging.getLogger("serried.x").warning("loud")
        for _ in range(1_000):
            logging.getLogger(STRANGE).warning("the server closes a connection before its answer is complete")
    finally:
        root.handlers[:], level = before
        root.setLevel(level)
        logging.getLogger("asyncio").setLevel(logging.NOTSET)
    lines = capsys.readouterr().err.splitlines()
    assert [orjson.loads(line)["msg"] for line in lines] == [
        "loud",
        "the server closes a connection before its answer is complete",
    ]
