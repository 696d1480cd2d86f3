"""List the routes of a FastAPI app, including those of its routers."""

from collections.abc import Iterator, Sequence

from fastapi.routing import APIRoute
from starlette.routing import BaseRoute


def list_endpoints(routes: Sequence[BaseRoute]) -> Iterator[APIRoute]:
    """Yield every API route, also of nested routers. Each path is relative to its own router."""
    for route in routes:
        included = getattr(route, "original_router", None)
        if included is not None:
            yield from list_endpoints(included.routes)
        elif isinstance(route, APIRoute):
            yield route
