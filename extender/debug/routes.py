"""``/debug``: why a gang waits, what is reserved, what was decided. Reads the state, changes nothing.

Here the subjects are put together; each has a module of its own, with its routes and what they show. The routes are
coroutines although few of them wait for anything: FastAPI runs plain functions in other threads, and the state belongs
to the event loop alone.
"""

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter

from extender.core import Core
from extender.debug.cache import cache_routes
from extender.debug.config import config_routes
from extender.debug.decisions import decisions_routes
from extender.debug.domains import domains_routes
from extender.debug.groups import groups_routes
from extender.debug.lookup import lookup_routes
from extender.debug.nodes import nodes_routes
from extender.debug.queue import queue_routes
from extender.debug.reservations import reservations_routes
from extender.debug.selfcheck import selfcheck_routes
from extender.debug.snapshot import snapshot_routes
from extender.debug.tasks import tasks_routes
from extender.debug.vacancies import vacancies_routes
from extender.debug.whatif import whatif_routes
from extender.status.reports import Reports
from serried.drift import Comparison
from serried.model.level import ApiLevel
from serried.settings import CommonSettings


def debug_routes(core: Core, reports: Reports, level: ApiLevel, selfcheck: Callable[[], dict[str, Any]]) -> APIRouter:
    """The routes under ``/debug`` that show the scheduling state."""
    router = APIRouter(prefix="/debug", tags=["debug"])
    for subject in (
        groups_routes(core, level),
        lookup_routes(core),
        domains_routes(core),
        queue_routes(core),
        nodes_routes(core),
        reservations_routes(core),
        vacancies_routes(core),
        decisions_routes(reports),
        selfcheck_routes(selfcheck),
        snapshot_routes(core, level),
        whatif_routes(core),
    ):
        router.include_router(subject)
    return router


def process_routes(settings: CommonSettings, comparison: Comparison) -> APIRouter:
    """The routes under ``/debug`` that show the process: its settings, its tasks, its caches."""
    router = APIRouter(prefix="/debug", tags=["debug"])
    for subject in (config_routes(settings), tasks_routes(), cache_routes(comparison)):
        router.include_router(subject)
    return router
