"""Invalid input to a verb or a route: an answer in the protocol's form, no traceback, nothing reserved."""

import inspect
from collections.abc import AsyncIterator
from typing import Any, cast
from unittest.mock import Mock

import httpx
import pytest
from fastapi import FastAPI
from starlette.types import ASGIApp

from extender.core.protocol import MAX_BYTES
from extender.look.routes import debug_routes, process_routes
from extender.process import make_reports
from serried.api.level import FALLBACK
from serried.kube.events import EventWriter
from serried.settings import extender_settings
from tests.support.endpoints import list_endpoints
from tests.support.extender_harness import members
from tests.support.verbs_stage import ANSWERS, GOOD, Extender

VERBS = list(GOOD)


def connect(app: ASGIApp) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(cast("Any", app))
    return httpx.AsyncClient(transport=transport, base_url="http://extender")


@pytest.fixture
async def extender() -> AsyncIterator[Extender]:
    made = await Extender().open()
    yield made
    await made.close()


def assert_refused(answer: httpx.Response, verb: str) -> str:
    """kube-scheduler reads the ``Error`` of a 200 only; where the protocol has no error, the status says it."""
    assert answer.status_code == (200 if verb in {"filter", "bind"} else 400)
    assert answer.headers["content-type"] == "application/json"
    sentence = str(answer.json()["Error"])
    assert sentence.startswith(f"serried {verb}: ")
    assert "internal error" not in sentence
    assert "Traceback" not in answer.text
    return sentence


BODIES = [
    pytest.param(b"", "not JSON", id="no body"),
    pytest.param(b"{", "not JSON", id="half an object"),
    pytest.param(b"hello", "not JSON", id="no JSON"),
    pytest.param(b'{"Pod":"\xff\xfe"}', "not JSON", id="no UTF-8"),
    pytest.param(b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "not JSON", id="nested 100,000 times"),
    pytest.param(b"null", "must be a JSON object", id="null"),
    pytest.param(b"[]", "must be a JSON object", id="a list"),
    pytest.param(b"7", "must be a JSON object", id="a number"),
    pytest.param(b"{}", "", id="an empty object"),
    pytest.param(b'{"Pod":7,"NodeNames":7,"PodName":7,"Node":7}', "must be", id="wrong types"),
    pytest.param(b'{"pod":{},"nodenames":[]}', "", id="keys in another case"),
    pytest.param(b" " * (10 * 1024 * 1024), f"larger than {MAX_BYTES} bytes", id="10 MB"),
]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(("body", "sentence"), BODIES)
async def test_a_bad_body_is_refused_and_the_next_good_call_works(
    extender: Extender, verb: str, body: bytes, sentence: str
) -> None:
    assert sentence in assert_refused(await extender.call(verb, body), verb)
    extender.assert_untouched()
    answer = await extender.call(verb, GOOD[verb])
    assert (answer.status_code, answer.json()) == (200, ANSWERS[verb])


def assert_protocol(answer: httpx.Response) -> None:
    """An answer or a refusal that kube-scheduler can read."""
    assert answer.status_code in {200, 400}
    assert isinstance(answer.json(), dict | list)
    assert "internal error" not in answer.text
    assert "Traceback" not in answer.text


@pytest.mark.parametrize(("verb", "name"), [(verb, name) for verb, good in GOOD.items() for name in good])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "", "x", [], [None], {"x": []}], ids=repr)
async def test_any_other_value_in_any_field_gets_an_answer_in_the_protocols_form(
    extender: Extender, verb: str, name: str, value: object
) -> None:
    assert_protocol(await extender.call(verb, {**GOOD[verb], name: value}))
    assert len(extender.world.ledger) == 0


class TestUnknownThings:
    async def test_unknown_nodes_are_passed_on_for_a_plain_pod(self, extender: Extender) -> None:
        answer = await extender.call("filter", {**GOOD["filter"], "NodeNames": ["nowhere"]})
        assert answer.json() == {"NodeNames": ["nowhere"]}

    async def test_unknown_nodes_are_no_place_for_a_member(self, extender: Extender) -> None:
        asked = {"Pod": members(1)[0].raw(), "Nodes": None, "NodeNames": ["nowhere"]}
        answer = (await extender.call("filter", asked)).json()
        assert answer["NodeNames"] == []
        assert set(answer["FailedAndUnresolvableNodes"]) == {"nowhere"}
        extender.assert_untouched()

    async def test_no_nodes_at_all(self, extender: Extender) -> None:
        member = {"Pod": members(1)[0].raw(), "NodeNames": []}
        assert (await extender.call("filter", {**GOOD["filter"], "NodeNames": []})).json() == {"NodeNames": []}
        assert (await extender.call("filter", member)).json()["NodeNames"] == []

    async def test_a_binding_of_an_unknown_pod(self, extender: Extender) -> None:
        answer = await extender.call("bind", {**GOOD["bind"], "PodName": "q", "PodUID": "u"})
        assert (answer.status_code, answer.json()) == (200, {"Error": "pod default/q with UID u does not exist"})
        extender.assert_untouched()

    @pytest.mark.parametrize("field", ["PodName", "PodNamespace", "Node"])
    @pytest.mark.parametrize("name", ["..", "../../nodes", "p/eviction?x", "p#", "p\r\nX: y", "P", "-p", "p" * 254])
    async def test_a_name_that_no_object_has_never_reaches_the_api_server(
        self, extender: Extender, field: str, name: str
    ) -> None:
        answer = await extender.call("bind", {**GOOD["bind"], field: name})
        assert assert_refused(answer, "bind") == f"serried bind: {field} must be a name as Kubernetes objects have them"
        assert extender.world.api.calls == []

    async def test_a_binding_of_a_member_that_has_no_slot(self, extender: Extender) -> None:
        asked = {"PodName": "m0", "PodNamespace": "default", "PodUID": "pod-m0", "Node": "n1"}
        assert "no node is planned for" in (await extender.call("bind", asked)).json()["Error"]
        extender.assert_untouched()

    async def test_a_verb_that_does_not_exist_and_a_method_that_is_not_post(self, extender: Extender) -> None:
        assert (await extender.call("permit", {})).status_code == 404
        assert (await extender.http.get("/filter")).status_code == 405


@pytest.mark.parametrize("verb", VERBS)
async def test_an_instance_that_is_not_active_says_so_and_closes_the_connection(extender: Extender, verb: str) -> None:
    extender.switch.active = False
    answer = await extender.call(verb, GOOD[verb])
    assert (answer.status_code, answer.headers["connection"]) == (503, "close")
    assert "not active" in answer.json()["Error"]
    extender.assert_untouched()


@pytest.mark.parametrize("verb", VERBS)
async def test_a_bug_is_an_error_without_a_traceback_and_the_next_call_works(
    extender: Extender, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(extender.world.service, verb, Mock(side_effect=RuntimeError("a secret")))
        answer = await extender.call(verb, GOOD[verb])
    assert answer.status_code == (200 if verb in {"filter", "bind"} else 400)
    assert answer.json()["Error"] == f"serried {verb}: internal error (RuntimeError), see the extender's log"
    assert (await extender.call(verb, GOOD[verb])).json() == ANSWERS[verb]


@pytest.fixture
async def debug(extender: Extender) -> AsyncIterator[httpx.AsyncClient]:
    """The routes under /debug over the same cluster, its gang looked at once."""
    world = extender.world
    events = EventWriter(world.api.client(), "serried")
    reports = make_reports(world.api.client(), world.store, events, FALLBACK, world.clock)
    app = FastAPI()
    app.include_router(debug_routes(world.core, reports, FALLBACK, lambda: {"version": "x"}))
    await world.run_until_idle()
    reports.report_verdict(*world.heard.verdicts[-1])
    async with connect(app) as http:
        yield http


class TestDebug:
    @pytest.mark.parametrize(
        "path", ["/groups", "/groups/default/g", "/nodes", "/reservations", "/decisions", "/selfcheck"]
    )
    async def test_every_page_answers(self, debug: httpx.AsyncClient, path: str) -> None:
        assert (await debug.get(f"/debug{path}")).status_code == 200

    async def test_a_group_says_why_it_waits_and_shows_its_members(self, debug: httpx.AsyncClient) -> None:
        group = (await debug.get("/debug/groups/default/g")).json()
        assert (group["reason"], group["message"]) == ("QuorumMissing", "QuorumMissing: 1 of 2 members exist")
        assert [(member["name"], member["state"]) for member in group["detail"]] == [("m0", "Waiting")]

    async def test_a_decision_is_found_by_the_id_that_the_log_names(self, debug: httpx.AsyncClient) -> None:
        (decision,) = (await debug.get("/debug/decisions?group=default/g")).json()
        assert (await debug.get(f"/debug/decisions/{decision['id']}")).json() == decision

    async def test_a_decision_that_nobody_remembers_is_404(self, debug: httpx.AsyncClient) -> None:
        answer = await debug.get("/debug/decisions/none")
        assert answer.status_code == 404
        assert "is among the last" in answer.json()["detail"]

    @pytest.mark.parametrize("name", ["nobody", "%00", "x" * 5000, "job:nobody"])
    async def test_an_unknown_group_is_404_with_a_sentence_that_helps(
        self, debug: httpx.AsyncClient, name: str
    ) -> None:
        answer = await debug.get(f"/debug/groups/default/{name}")
        assert answer.status_code == 404
        assert "see /debug/groups" in answer.json()["detail"]

    @pytest.mark.parametrize("query", ["dryRun", "dryRun=", "dryRun=All"])
    async def test_a_dry_run_says_who_would_go_or_why_nobody(self, debug: httpx.AsyncClient, query: str) -> None:
        group = (await debug.get(f"/debug/groups/default/g?{query}")).json()
        assert group["dryRun"] == {"message": "the gang does not wait for free resources", "found": None}

    @pytest.mark.parametrize("value", ["all", "true", "Server", "x" * 5000])
    async def test_another_word_for_a_dry_run_is_400(self, debug: httpx.AsyncClient, value: str) -> None:
        answer = await debug.get(f"/debug/groups/default/g?dryRun={value}")
        assert answer.status_code == 400
        assert answer.json()["detail"] == f"dryRun is All or nothing, not {value[:100]!r}"

    @pytest.mark.parametrize("query", ["nodes?limit=many", "decisions?limit=", "decisions?limit=1.5"])
    async def test_a_value_that_is_no_number_is_422(self, debug: httpx.AsyncClient, query: str) -> None:
        assert (await debug.get(f"/debug/{query}")).status_code == 422

    @pytest.mark.parametrize(
        ("query", "count"), [("limit=0", 0), ("limit=-5", 0), ("limit=1", 1), ("prefix=n2", 1), ("prefix=x", 0)]
    )
    async def test_nodes_are_chosen_by_prefix_and_number(
        self, debug: httpx.AsyncClient, query: str, count: int
    ) -> None:
        assert len((await debug.get(f"/debug/nodes?{query}")).json()) == count

    async def test_a_page_that_does_not_exist_is_404(self, debug: httpx.AsyncClient) -> None:
        assert (await debug.get("/debug/nothing")).status_code == 404

    async def test_the_state_is_read_on_the_event_loop_that_owns_it(self, extender: Extender) -> None:
        router = debug_routes(extender.world.core, Mock(), FALLBACK, dict)
        router.include_router(process_routes(extender_settings([], {}), Mock()))
        endpoints = [route.endpoint for route in list_endpoints(router.routes)]
        assert len(endpoints) > 10
        assert all(inspect.iscoroutinefunction(endpoint) for endpoint in endpoints)
