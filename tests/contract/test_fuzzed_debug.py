"""The routes of /debug under what their own OpenAPI allows, and much that it does not.

Every answer has a status that the document names and the shape that it names; it comes in a bounded time, and leaves
the state as it was. FastAPI checks no shape of what a page writes entry by entry, so it is checked here.
"""

import json
import re
import time
from collections.abc import Iterator
from typing import Any, cast
from urllib.parse import quote

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from tests.support.debug_stage import DebugStage
from tests.support.logged_errors import collect_errors
from tests.support.odd_objects import NUMBERS, TEXTS, Json, odd_objects

SECONDS = 5.0
"""The longest time that an answer may take. What-if may work for 10 s, but this cluster is small."""

_NOT_OURS = {307, 404, 405, 422}
"""The statuses that FastAPI answers by itself; only 422 is in the document."""

_ELSEWHERE = {"/debug/stream"}
"""The stream has no end and no parameters; `test_fuzzed_operations` covers it."""


def find_schema(operation: dict[str, Any]) -> dict[str, Any] | None:
    """Return the schema of the answer from the document; None if the answer is not JSON."""
    found: dict[str, Any] = operation["responses"]["200"].get("content", {}).get("application/json", {})
    return found.get("schema")


def seal(components: dict[str, Any]) -> dict[str, Any]:
    """Forbid fields that the document does not name."""
    schemas = {
        name: schema if "properties" not in schema else {"additionalProperties": False, **schema}
        for name, schema in components["schemas"].items()
    }
    return {**components, "schemas": schemas}


class Routes(DebugStage):
    """The pages, asked without a socket."""

    def __init__(self) -> None:
        super().__init__()
        self.document: dict[str, Any] = self.app.openapi()
        self.shapes = {
            (method, path): Draft202012Validator({**schema, "components": seal(self.document["components"])})
            for path, methods in self.document["paths"].items()
            for method, operation in methods.items()
            if (schema := find_schema(operation)) is not None
        }
        transport = httpx.ASGITransport(cast("Any", self.app))
        self.http = httpx.AsyncClient(transport=transport, base_url="http://extender")

    def close(self) -> None:
        self.run(self.http.aclose())
        super().close()


@pytest.fixture(scope="module")
def routes() -> Iterator[Routes]:
    made = Routes()
    yield made
    made.close()


WORDS = st.sampled_from(
    [
        "default",
        "g",
        "default/g",
        "n1",
        "4*n1",
        "999999*n1",
        "example.com/rack",
        "PodGroup",
        "pod",
        "nodes",
        "m0",
        "job:j",
        *TEXTS,
    ]
) | st.text(max_size=8)


def values_of(schema: dict[str, Any], document: dict[str, Any]) -> st.SearchStrategy[str]:
    """Draw values for a parameter of this schema, valid and invalid ones."""
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    for choice in schema.get("anyOf", ()):
        if choice.get("type") != "null":
            return values_of(choice, document)
    if schema.get("type") == "array":
        return values_of(schema["items"], document)
    if "enum" in schema:
        return st.sampled_from(schema["enum"]) | WORDS
    if schema.get("type") in {"integer", "number"}:
        return st.integers().map(str) | st.sampled_from(NUMBERS).map(str) | WORDS
    return WORDS


MANIFESTS = st.lists(odd_objects() | Json, max_size=3)
BODIES = (
    MANIFESTS.map(lambda objects: json.dumps(objects).encode())
    | MANIFESTS.map(lambda objects: "\n".join(f"---\n# YAML\n{json.dumps(each)}" for each in objects).encode())
    | st.binary(max_size=60)
    | st.text(max_size=60).map(str.encode)
    | st.sampled_from(
        [
            b"[" * 1020 + b"]" * 1020, b"{" * 900, b'{"items":' * 900 + b"1" + b"}" * 900, b"[" * 100_000,
            b'{"manifests":[' * 500 + b"]}" * 500, b"- " * 900 + b"a", b"a: &a [b]\nc: [*a, *a]", b"x" * 300_000,
            b"kind: List\nitems: 7", b"kind: Job\nmetadata: {name: j}", b"? [a]\n: b", b"!!python/object:os.system {}",
            b"kind: Pod\nmetadata: {name: p}\nspec: {replicas: 99999999999999999999}",
            b"\xef\xbb\xbf{}", b"%YAML 9.9\n---\n",
        ]
    )
)  # fmt: skip


@st.composite
def questions(draw: st.DrawFn, document: dict[str, Any]) -> tuple[str, str, str, bytes]:
    """Method, path as the document has it, path as it is asked, and body."""
    paths = sorted(set(document["paths"]) - _ELSEWHERE)
    template = draw(st.sampled_from(paths) | st.sampled_from(["/debug/whatif", "/debug/whatif", "/debug/cache/diff"]))
    method = draw(st.sampled_from(sorted(document["paths"][template])))
    operation = document["paths"][template][method]
    path = template
    query = []
    for parameter in operation.get("parameters", ()):
        values = values_of(parameter["schema"], document)
        if parameter["in"] == "path":
            path = path.replace(f"{{{parameter['name']}}}", quote(draw(values), safe=""))
        else:
            asked = draw(st.lists(values, max_size=2))
            query += [f"{quote(parameter['name'])}={quote(value, safe='')}" for value in asked]
    body = draw(BODIES) if method == "post" else b""
    return method, template, path + ("?" + "&".join(query) if query else ""), body


def find_page(path: str, document: dict[str, Any]) -> str | None:
    """Return the route that answers a path; None if none does. Dots or slashes in a name may lead to another route."""
    return next((each for each in document["paths"] if re.fullmatch(re.sub(r"{\w+}", "[^/]+", each), path)), None)


def name_type(answer: httpx.Response) -> str:
    return str(answer.headers.get("content-type", "")).partition(";")[0]


def assert_answers(answer: httpx.Response, operation: dict[str, Any]) -> None:
    named = {int(status) for status in operation["responses"] if status.isdecimal()}
    assert answer.status_code in named | _NOT_OURS
    assert answer.status_code != 500
    if answer.status_code == 200:
        assert name_type(answer) in operation["responses"]["200"]["content"]
    if "json" in name_type(answer):
        said = answer.json()
        assert answer.status_code < 400 or said["detail"]
    assert "Traceback" not in answer.text


@pytest.mark.parametrize("examples", [100, pytest.param(2_000, marks=pytest.mark.full)])
def test_every_question_has_an_answer_that_the_document_names(routes: Routes, examples: int) -> None:
    async def ask(method: str, template: str, path: str, body: bytes) -> None:
        begun = time.monotonic()
        answer = await routes.http.request(method, path, content=body)
        assert_answers(answer, routes.document["paths"][template][method])
        page = find_page(answer.request.url.path, routes.document)
        if answer.status_code == 200 and name_type(answer) == "application/json" and page is not None:
            routes.shapes[method, page].validate(answer.json())
        assert time.monotonic() - begun < SECONDS

    @settings(max_examples=examples)
    @given(question=questions(routes.document))
    def fuzz(question: tuple[str, str, str, bytes]) -> None:
        routes.run(ask(*question))

    with collect_errors() as errors:
        fuzz()
    assert errors == []
    routes.extender.assert_untouched()
    assert len(routes.extender.world.store.groups) == 1
