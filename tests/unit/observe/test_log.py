import logging

import orjson
import pytest

from serried.model.group import GroupKey, GroupKind
from serried.observe.log import JsonFormatter, configure_logging, name_group


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


def test_the_level_holds_for_everybody(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    try:
        configure_logging("warning")
        logging.getLogger("serried.x").info("quiet")
        logging.getLogger("serried.x").warning("loud")
    finally:
        root.handlers[:], level = before
        root.setLevel(level)
        logging.getLogger("asyncio").setLevel(logging.NOTSET)
    lines = capsys.readouterr().err.splitlines()
    assert [orjson.loads(line)["msg"] for line in lines] == ["loud"]
