"""The way from extenders to the API server, on which a story lets only so many Bindings through."""

import ssl
import threading
from base64 import b64decode
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import yaml

from bench.failover.pairs import Pairs
from tests.chaos.mishaps import Mishap, Request, Weather
from tests.chaos.proxy import Proxy


class Toll(Weather):
    """Lets all Bindings through, or so many and no more: then the connections of the others are reset."""

    def __init__(self) -> None:
        super().__init__(Random(0))  # noqa: S311 - nothing is drawn
        self.passed: Counter[str] = Counter()
        """How often a Binding of each pod went through, by ``namespace/name``."""

        self.refused = threading.Event()
        """Set when one did not."""

        self._left: int | None = None

    def close_after(self, count: int) -> None:
        """Let so many through from now on."""
        self.refused.clear()
        self._left = count

    def open(self) -> None:
        """Let all of them through from now on."""
        self._left = None

    def draw_request(self, request: Request) -> Mishap | None:
        """What happens to a request: to those that are no Bindings, nothing."""
        if not request.target.partition("?")[0].endswith("/binding"):
            return None
        if self._left == 0:
            self.refused.set()
            return Mishap.RESET_BEFORE
        if self._left is not None:
            self._left -= 1
        self.passed[request.subject] += 1
        return None


@contextmanager
def toll_road(pairs: Pairs) -> Iterator[Toll]:
    """The extenders of Pods that are started while the body runs go this way."""
    path = pairs.kubeconfigs["extender"]
    usual = path.read_text()
    (cluster,) = yaml.safe_load(usual)["clusters"]
    authority = b64decode(cluster["cluster"]["certificate-authority-data"]).decode()
    toll = Toll()
    port = int(pairs.cluster.server.rpartition(":")[2])
    tls = ssl.create_default_context(cadata=authority)
    with Proxy(port, tls, toll, lambda request, mishap: None) as proxy:
        path.write_text(usual.replace(pairs.cluster.server, f"http://127.0.0.1:{proxy.port}"))
        try:
            yield toll
        finally:
            path.write_text(usual)
