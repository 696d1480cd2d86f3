"""The routes of an app, those of routers that it includes among them."""

from collections.abc import Iterator, Sequence

from fastapi.routing import APIRoute
from starlette.routing import BaseRoute


def list_endpoints(routes: Sequence[BaseRoute]) -> Iterator[APIRoute]:
    """Every route of FastAPI, also of routers in routers; the paths are those below their own router."""
    for route in routes:
        included = getattr(route, "original_router", None)
        if included is not None:
            yield from list_endpoints(included.routes)
        elif isinstance(route, APIRoute):
            yield route
