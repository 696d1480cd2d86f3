"""Lets the processes of ours reach the API server through proxies that inject faults."""

import json
import ssl
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from random import Random
from urllib.parse import urlsplit

from bench.cluster import Cluster
from bench.cluster.components import Name
from tests.chaos.mishaps import HARMLESS, WRITES, Mishap, Request, Weather
from tests.chaos.proxy import Proxy

PROXIED: tuple[Name, ...] = ("extender", "controller", "scheduler")
_ENDS = {"scheduler": 0.1}
"""The part of the ends of watches that come: kube-scheduler's client-go waits up to 30 s after several."""


@contextmanager
def detour(cluster: Cluster, source: Random, note: Callable[[str, str], None]) -> Iterator[Mapping[Name, Proxy]]:
    """The proxies, for as long as the body runs."""
    with ExitStack() as stack:
        proxies = {name: stack.enter_context(_make_proxy(cluster, name, source, note)) for name in PROXIED}
        usual = {name: cluster.kubeconfigs[name].read_text() for name in PROXIED}
        for name, text in usual.items():
            stack.callback(cluster.kubeconfigs[name].write_text, text)
            proxied = text.replace(cluster.server, f"http://127.0.0.1:{proxies[name].port}")
            cluster.kubeconfigs[name].write_text(proxied)
        for name in PROXIED:
            cluster.restart(name)
        yield proxies


def _make_proxy(cluster: Cluster, name: Name, source: Random, note: Callable[[str, str], None]) -> Proxy:
    port = urlsplit(cluster.server).port
    assert port is not None
    config = json.loads(cluster.kubeconfigs[name].read_text())
    authority = config["clusters"][0]["cluster"]["certificate-authority-data"]
    tls = ssl.create_default_context(cadata=b64decode(authority).decode())
    token = config["users"][0]["user"]["token"]

    def tell(request: Request, mishap: Mishap) -> None:
        said = name_fault(name, request, mishap)
        if said is not None:
            note(*said)

    return Proxy(port, tls, Weather(Random(source.random()), ends=_ENDS.get(name, 1.0)), tell, token)


def name_fault(name: str, request: Request, mishap: Mishap) -> tuple[str, str] | None:
    """Return the note for the checker about a mishap of a process: its kind and its subject; None for nothing."""
    if mishap in HARMLESS:
        return None
    # Only what a gang of its own would feel: the rest must not delay anybody for long.
    if name == "extender" and request.method in WRITES and request.subject:
        return "tamper", request.subject
    return "fault", name


def count_weather(proxies: Mapping[Name, Proxy]) -> Counter[Mishap]:
    """Count the mishaps on all proxies so far."""
    return sum((proxy.weather.counted for proxy in proxies.values()), Counter())
