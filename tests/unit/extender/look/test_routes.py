"""Every page under ``/debug``, as the OpenAPI describes it; and the pages about the process itself."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import Mock

import httpx
import pytest
from fastapi import FastAPI
from pydantic import TypeAdapter

from extender.look.page import Broadcast, live_routes
from extender.look.routes import ProcessPages, conceal, debug_routes, process_routes
from extender.look.sketch import COLUMNS
from serried.api.level import FALLBACK
from serried.drift import Comparison
from serried.settings import controller_settings, extender_settings
from tests.support.endpoints import list_endpoints
from tests.support.extender_harness import Harness


@pytest.fixture
def app(world: Harness) -> FastAPI:
    app = FastAPI()
    app.include_router(debug_routes(world.core, Mock(), FALLBACK, dict))
    settings = extender_settings(["--queue-ageing=off", "--scheduler-name=b,a"], {"POD_NAME": "serried-0"})
    app.include_router(process_routes(settings, Mock(spec=Comparison)))
    return app


@pytest.fixture
async def http(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://debug") as http:
        yield http


async def test_every_page_is_described_and_has_an_example_of_its_own_shape(app: FastAPI) -> None:
    document = app.openapi()["paths"]
    described = [said for methods in document.values() for said in methods.values() if said.get("description")]
    routes = list(list_endpoints(app.routes))
    assert len(described) == len(routes) > 10
    for route in routes:
        model = TypeAdapter(route.response_model)
        example = route.responses[200]["content"]["application/json"]["example"]
        # An example that lacks a field, or has one too much, is another document's.
        assert model.dump_python(model.validate_python(example), mode="json") == example, route.path


def is_binary(content: dict[str, Any]) -> bool:
    return bool(content.get("schema", {}).get("format") == "binary")


async def test_every_question_and_answer_has_an_example(app: FastAPI) -> None:
    app.include_router(live_routes(Mock(spec=Broadcast)))
    document = app.openapi()["paths"]
    assert "/debug/stream" in document
    for path, methods in document.items():
        for said in methods.values():
            assert said["description"], path
            bodies = [said["responses"]["200"], *([said["requestBody"]] if "requestBody" in said else [])]
            contents = [content for body in bodies for content in body["content"].values()]
            assert all(each["example"] for each in contents if not is_binary(each)), path


async def test_the_example_of_the_stream_has_the_rows_that_are_sent() -> None:
    app = FastAPI()
    app.include_router(live_routes(Mock(spec=Broadcast)))
    content = app.openapi()["paths"]["/debug/stream"]["get"]["responses"]["200"]["content"]
    events = content["text/event-stream"]["example"].strip().split("\n\n")
    first, *others = [json.loads(event.removeprefix("data: ")) for event in events]
    columns = list(COLUMNS["nodes"])
    assert first["columns"]["nodes"] == columns
    rows = [row for message in others for row in message.get("nodes", ())]
    assert rows
    assert all(len(row) == len(columns) for row in rows)


async def test_what_stands_below_a_field_describes_it(app: FastAPI) -> None:
    schemas = app.openapi()["components"]["schemas"]
    assert schemas["GroupView"]["properties"]["placed"]["description"] == (
        "The number of members that are bound or have succeeded."
    )


async def test_the_settings_are_shown_as_a_command_line_would_have_them(http: httpx.AsyncClient) -> None:
    settings = {each["flag"]: each for each in (await http.get("/debug/config")).json()["settings"]}
    assert settings["--queue-ageing"] == {
        "flag": "--queue-ageing",
        "variable": "SERRIED_QUEUE_AGEING",
        "value": "off",
        "default": "86400",
        "about": "seconds of waiting after which a gang counts as one priority higher; off: never",
    }
    assert settings["--scheduler-name"]["value"] == "a,b"
    assert settings["--filter-listen"]["value"] == "127.0.0.1:8910"
    assert settings["--ops-listen"]["value"] == ":8912"
    assert settings["--kubeconfig"]["value"] == ""
    assert settings["--lease-holder-prefix"]["value"] == "serried-0"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        pytest.param("http://collector:4318/v1/traces", "http://collector:4318/v1/traces", id="a URL without secrets"),
        pytest.param("https://me:open-sesame@collector/v1", "https://***@collector/v1", id="user and password"),
        pytest.param("https://token@collector", "https://***@collector", id="a token for a user"),
        pytest.param("https://me:a@b/c?d@collector/v1", "https://***@collector/v1", id="a password of any characters"),
        pytest.param("https://collector/v1?key=open-sesame", "https://collector/v1?***", id="a key in the query"),
        pytest.param("https://me:a@collector?key=b@c", "https://***@c", id="rather too much than too little"),
        pytest.param("/etc/serried/tls@1.key", "/etc/serried/tls@1.key", id="a file"),
        pytest.param("a,b", "a,b", id="names"),
    ],
)
def test_a_url_is_shown_without_what_lets_somebody_in(value: str, shown: str) -> None:
    assert conceal(value) == shown


@pytest.mark.parametrize("read", [extender_settings, controller_settings])
def test_every_default_is_written_as_it_is_read(read: Any) -> None:
    shown = asyncio.run(ProcessPages(read([], {"POD_NAME": "p"}), Mock()).show_config()).settings
    assert len(shown) > 8
    told = [each for each in shown if not each.flag.startswith("--lease-holder")]  # whose default is the Pod's name
    assert {each.flag: each.value for each in told} == {each.flag: each.default for each in told}
