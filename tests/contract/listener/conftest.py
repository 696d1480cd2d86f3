from collections.abc import Callable, Mapping
from typing import Any

import uvloop


def pytest_asyncio_loop_factories(config: Any, item: Any) -> Mapping[str, Callable[[], Any]]:
    """The loop of the process: what a closed or paused transport does differs between loops."""
    return {"uvloop": uvloop.new_event_loop}
