"""The ways from extenders to the API server, on which a story lets only so many Bindings through."""

import ssl
import threading
from base64 import b64decode
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from random import Random

import yaml

from bench.failover.kubelet import Kubelet
from bench.failover.pairs import Pairs
from tests.chaos.mishaps import WRITES, Mishap, Request, Weather
from tests.chaos.proxy import Proxy

_ELECTION = "/leases/"


class Toll:
    """Lets all Bindings through, or so many and no more: then the connections of the others are reset."""

    def __init__(self) -> None:
        self.refused = threading.Event()
        """Set when one did not come through."""

        self.writes: dict[str, list[str]] = {}
        """Every change that each pair has asked for, through or not, but for those of who leads; by Pod."""

        self._barred: set[str] = set()
        """The Pods none of whose Bindings comes through."""

        self._left: int | None = None
        self._lock = threading.Lock()
        """Needed because each road has a thread of its own."""

    def close_after(self, count: int) -> None:
        """Let so many through from now on."""
        self.refused.clear()
        self._left = count

    def open(self) -> None:
        """Let all of them through from now on."""
        self._left = None

    def bar(self, pod: str) -> None:
        """Let none of a Pod through any more: what it has sent before it was stopped may not be here yet."""
        self._barred.add(pod)

    def pay(self, pod: str) -> bool:
        """Return whether a Binding of a Pod comes through."""
        with self._lock:
            if self._left == 0:
                self.refused.set()
                return False
            if pod in self._barred:
                return False
            if self._left is not None:
                self._left -= 1
            return True

    def run_behind(self, pairs: Pairs, roads: ExitStack) -> Kubelet:
        """Start a pair whose extender goes by a road of its own, as long as these ``roads`` are open."""
        heard: list[str] = []
        road = _Road(self)

        def hear(request: Request) -> None:
            if request.method in WRITES and _ELECTION not in request.target:
                heard.append(f"{request.method} {request.target}")

        proxy = roads.enter_context(_make_proxy(pairs, road))
        proxy.hear = hear
        with _leading_to(proxy, pairs):
            pod = pairs.run_another()
        road.pod = pod.pod
        self.writes[pod.pod] = heard
        return pod


class _Road(Weather):
    """One extender's way: nothing happens on it but to Bindings."""

    def __init__(self, toll: Toll) -> None:
        super().__init__(Random(0))  # noqa: S311 - nothing is drawn
        self.pod = ""
        self._toll = toll

    def draw_request(self, request: Request) -> Mishap | None:
        is_binding = request.target.partition("?")[0].endswith("/binding")
        return Mishap.RESET_BEFORE if is_binding and not self._toll.pay(self.pod) else None


def _make_proxy(pairs: Pairs, road: Weather) -> Proxy:
    (cluster,) = yaml.safe_load(pairs.kubeconfigs["extender"].read_text())["clusters"]
    authority = b64decode(cluster["cluster"]["certificate-authority-data"]).decode()
    port = int(pairs.cluster.server.rpartition(":")[2])
    return Proxy(port, ssl.create_default_context(cadata=authority), road, lambda request, mishap: None)


@contextmanager
def _leading_to(proxy: Proxy, pairs: Pairs) -> Iterator[None]:
    """The extenders that are started while the body runs go there, also when they come back."""
    usual = pairs.kubeconfigs["extender"]
    detour = usual.with_name(f"extender-{proxy.port}.kubeconfig")
    detour.write_text(usual.read_text().replace(pairs.cluster.server, f"http://127.0.0.1:{proxy.port}"))
    pairs.kubeconfigs["extender"] = detour
    try:
        yield
    finally:
        pairs.kubeconfigs["extender"] = usual
