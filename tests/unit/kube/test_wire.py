import orjson
import pytest
from yarl import URL

from serried.kube.wire import (
    JOBS,
    NODES,
    PODS,
    BadLineError,
    LineSplitter,
    Selection,
    decode_change,
    decode_failure,
    identity,
    list_params,
    pod_groups,
    stream_params,
    watch_params,
)

GROUPS = pod_groups("scheduling.k8s.io", "v1beta1")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        pytest.param(PODS.path(), "/api/v1/pods", id="all namespaces"),
        pytest.param(PODS.path("ns"), "/api/v1/namespaces/ns/pods", id="one namespace"),
        pytest.param(PODS.path("ns", "a", "binding"), "/api/v1/namespaces/ns/pods/a/binding", id="subresource"),
        pytest.param(NODES.path("", "n1"), "/api/v1/nodes/n1", id="cluster-scoped"),
        pytest.param(NODES.path("ignored", "n1"), "/api/v1/nodes/n1", id="cluster-scoped has no namespace"),
        pytest.param(JOBS.path("ns", "j"), "/apis/batch/v1/namespaces/ns/jobs/j", id="named group"),
        pytest.param(GROUPS.root, "/apis/scheduling.k8s.io/v1beta1", id="discovery"),
    ],
)
def test_paths(path: str, expected: str) -> None:
    assert path == expected


@pytest.mark.parametrize("name", ["..", ".", "a/b", "../../nodes/n", "a?b", "a#b", "a%2f..", "a\r\nb", "\u00e4"])
def test_a_name_that_no_object_has_leads_nowhere_else(name: str) -> None:
    sent = URL("https://server" + PODS.path("default", name, "binding"))
    *before, last, binding = sent.raw_path.split("/")
    assert (before, binding) == (["", "api", "v1", "namespaces", "default", "pods"], "binding")
    assert not set(last) & set("/?#\r\n")
    assert (sent.raw_query_string, sent.raw_fragment) == ("", "")


def test_parameters_of_lists_and_watches() -> None:
    chosen = Selection(fields="spec.nodeName=n1", labels="a=b")
    selectors = {"fieldSelector": "spec.nodeName=n1", "labelSelector": "a=b"}
    watching = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": "300"}
    assert list_params(chosen, 500, "") == selectors | {"limit": "500"}
    assert list_params(Selection(), 500, "t") == {"limit": "500", "continue": "t"}
    assert watch_params(chosen, "7", 300) == selectors | watching | {"resourceVersion": "7"}
    initial = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
    assert stream_params(Selection(), 300) == watching | initial


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_lines_do_not_depend_on_chunks(size: int) -> None:
    stream = b'{"a":1}\n\n{"b":"' + b"x" * 20 + b'"}\r\n{"c":3}\n'
    splitter = LineSplitter()
    lines = [line for at in range(0, len(stream), size) for line in splitter.feed(stream[at : at + size])]
    assert [line.strip() for line in lines] == [b'{"a":1}', b'{"b":"' + b"x" * 20 + b'"}', b'{"c":3}']


def test_half_a_line_is_no_line() -> None:
    assert list(LineSplitter().feed(b'{"type":"ADDED"')) == []


@pytest.mark.parametrize(
    "line",
    [b"", b"{", b"null", b"[]", b"{}", b'{"type":1,"object":{}}', b'{"type":"ADDED"}', b'{"type":"ADDED","object":[]}'],
)
def test_what_is_no_change_is_a_bad_line(line: bytes) -> None:
    with pytest.raises(BadLineError):
        decode_change(line)


@pytest.mark.parametrize(
    ("metadata", "version", "ends_the_list"),
    [
        pytest.param({"resourceVersion": "7"}, "7", False, id="plain bookmark"),
        pytest.param(
            {"resourceVersion": "8", "annotations": {"k8s.io/initial-events-end": "true"}}, "8", True, id="end of list"
        ),
        pytest.param(None, "", False, id="no metadata"),
        pytest.param({"resourceVersion": 7, "annotations": []}, "", False, id="odd types"),
    ],
)
def test_bookmarks(metadata: object, version: str, *, ends_the_list: bool) -> None:
    change = decode_change(orjson.dumps({"type": "BOOKMARK", "object": {"metadata": metadata}}))
    assert (change.version, change.ends_initial_events) == (version, ends_the_list)


@pytest.mark.parametrize(
    ("body", "reason", "message", "retry_after"),
    [
        pytest.param(
            b'{"kind":"Status","reason":"Conflict","message":"no","details":{"retryAfterSeconds":3}}',
            "Conflict",
            "no",
            3.0,
            id="a Status",
        ),
        pytest.param(b'{"details":{"retryAfterSeconds":3600}}', "", "", 60.0, id="an hour is too long to stay away"),
        pytest.param(b"upstream gone\n", "", "upstream gone", None, id="text"),
        pytest.param(b"[1]", "", "", None, id="other JSON"),
        pytest.param(b'{"details":null,"reason":null}', "", "", None, id="a Status of nulls"),
        pytest.param(b"", "", "", None, id="nothing"),
    ],
)
def test_failures_are_read_from_any_body(body: bytes, reason: str, message: str, retry_after: float | None) -> None:
    failure = decode_failure(409, body)
    assert (failure.code, failure.reason, failure.message) == (409, reason, message)
    assert failure.retry_after == retry_after


def test_an_object_without_name_has_no_identity() -> None:
    assert identity({"metadata": {"name": "n"}}) == ("", "n", "")
    with pytest.raises(BadLineError):
        identity({"metadata": {"namespace": "ns"}})
