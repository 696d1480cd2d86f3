"""Mishaps on the way: the checker is told only of those that may delay a pod."""

import pytest

from tests.chaos.detour import name_fault
from tests.chaos.mishaps import Mishap, Request

WATCH = Request("GET", "/api/v1/pods?watch=true")
BINDING = Request("POST", "/api/v1/namespaces/ns/pods/a/binding")
CREATED = Request("POST", "/api/v1/namespaces/ns/events", b"no name")


@pytest.mark.parametrize(
    ("name", "request_", "mishap", "told"),
    [
        pytest.param("extender", WATCH, Mishap.DELAYED, None, id="a change that comes a second late"),
        pytest.param("scheduler", WATCH, Mishap.DUPLICATED, None, id="a change that comes twice"),
        pytest.param("extender", WATCH, Mishap.CUT, ("fault", "extender"), id="a watch that is cut"),
        pytest.param("controller", WATCH, Mishap.COMPACTED, ("fault", "controller"), id="a watch that is refused"),
        pytest.param("extender", BINDING, Mishap.ERROR, ("tamper", "ns/a"), id="a write of the extender"),
        pytest.param("extender", CREATED, Mishap.ERROR, ("fault", "extender"), id="a write about nobody"),
        pytest.param("scheduler", BINDING, Mishap.ERROR, ("fault", "scheduler"), id="a write of somebody else"),
    ],
)
def test_a_mishap_is_a_fault_if_it_holds_somebody_up(
    name: str, request_: Request, mishap: Mishap, told: tuple[str, str] | None
) -> None:
    assert name_fault(name, request_, mishap) == told
