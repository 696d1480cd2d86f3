"""The shipped role of those who may look: every page of ours, and nothing of kube-apiserver, whose URLs it shares."""

import re
from collections.abc import Sequence
from unittest.mock import Mock

import pytest
from fastapi import FastAPI

from extender.look.page import Broadcast, live_routes
from extender.look.routes import debug_routes, process_routes
from serried.api.level import FALLBACK
from serried.ops.access import OPEN_PATHS
from serried.ops.server import ops_routes
from serried.settings import extender_settings
from tests.support.endpoints import list_endpoints
from tests.support.extender_harness import Harness
from tests.unit.manifests.shipped import read_all

PPROF = "/debug/pprof"
KUBE_APISERVER = (
    *("/", "/api", "/apis", "/openapi/v2", "/openapi/v3", "/version", "/logs", "/configz", "/flagz", "/statusz"),
    *(PPROF, f"{PPROF}/", f"{PPROF}/profile", f"{PPROF}/heap", "/debug/flags/v"),
    "/debug/api_priority_and_fairness/dump_requests",
)
"""Paths of the API server itself, which the same role would open if it named them. Its /metrics it does."""


def list_urls(name: str, verb: str) -> list[str]:
    """Return the URLs that a ClusterRole opens for a verb."""
    (role,) = [each for each in read_all() if (each.kind, each.name) == ("ClusterRole", name)]
    assert all(set(rule) == {"nonResourceURLs", "verbs"} for rule in role.content["rules"])
    return [url for rule in role.content["rules"] if verb in rule["verbs"] for url in rule["nonResourceURLs"]]


def is_granted(urls: Sequence[str], path: str) -> bool:
    """Return whether these URLs include the path, by the rules of the API server's RBAC."""
    return any(path == url or (url.endswith("*") and path.startswith(url[:-1])) for url in urls)


def list_pages(world: Harness) -> set[tuple[str, str]]:
    """Verb and path of every page, with something in place of each parameter."""
    app = FastAPI()
    live = live_routes(Mock(spec=Broadcast))
    app.include_router(ops_routes(dict, lambda: b""))
    app.include_router(debug_routes(world.core, Mock(), FALLBACK, dict))
    app.include_router(process_routes(extender_settings([], {}), Mock()))
    app.include_router(live)
    pages = {(verb, path) for path, verbs in app.openapi()["paths"].items() for verb in verbs}
    pages |= {("get", f"/debug{route.path.removeprefix('/debug')}") for route in list_endpoints(live.routes)}
    pages |= {("get", "/openapi.json")}
    return {(verb, re.sub(r"{[^}]*}", "x", path)) for verb, path in pages if path not in OPEN_PATHS}


async def test_a_reader_may_ask_for_every_page(world: Harness) -> None:
    pages = list_pages(world)
    assert len(pages) >= 20
    refused = {(verb, path) for verb, path in pages if not is_granted(list_urls("serried-debug-reader", verb), path)}
    assert refused == set()


async def test_a_reader_is_named_no_page_that_there_is_not(world: Harness) -> None:
    pages = list_pages(world)
    for verb in ("get", "post"):
        for url in list_urls("serried-debug-reader", verb):
            assert any(is_granted([url], path) for method, path in pages if method == verb), url


@pytest.mark.parametrize("path", KUBE_APISERVER)
async def test_nothing_of_the_api_server_is_opened_by_it(path: str) -> None:
    for name in ("serried-debug-reader", "serried-metrics-reader"):
        assert not is_granted([*list_urls(name, "get"), *list_urls(name, "post")], path)


def test_prometheus_may_scrape_and_no_more() -> None:
    assert list_urls("serried-metrics-reader", "get") == ["/metrics"]


def test_every_probe_of_the_manifests_is_open() -> None:
    probes = {
        container[probe]["httpGet"]["path"]
        for document in read_all()
        if document.kind == "Deployment"
        for kind in ("containers", "initContainers")
        for container in document.content["spec"]["template"]["spec"].get(kind, ())
        for probe in ("startupProbe", "livenessProbe", "readinessProbe")
        if probe in container and "httpGet" in container[probe]
    }
    assert {"/livez", "/readyz"} < probes
    assert probes <= OPEN_PATHS
