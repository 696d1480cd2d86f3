"""``/debug/queue``: who waits for room in which order, what is kept for the first of them, and who passed it."""

from fastapi import APIRouter
from pydantic import BaseModel

from extender.core import Core
from extender.scheduling.backfill import Head
from serried.model.group import GroupKind
from serried.model.verdict import render
from serried.plan.order import Waiting


class HeadView(BaseModel):
    """The gang for which room is kept, until when at the latest, and those that were let onto its nodes.

    ``forecast`` is empty if nobody can tell when it will have room; ``passed`` has the time by which each will have
    ended. After a ``missed`` forecast only those pass that have a deadline.
    """

    namespace: str
    name: str
    kind: GroupKind
    domain: str
    nodes: list[str]
    forecast: str
    until: str
    missed: bool
    passed: dict[str, str]


class WaitingView(BaseModel):
    """A gang that waits for room. ``countsAs`` is its priority with what waiting has added."""

    namespace: str
    name: str
    kind: GroupKind
    priority: int
    countsAs: int  # noqa: N815 - as the API's own names
    since: str
    message: str


class QueueView(BaseModel):
    """The queue; ``waiting`` in the order of their turns, ``leftOff`` more are not shown."""

    head: HeadView | None
    waiting: list[WaitingView]
    leftOff: int  # noqa: N815


def queue_routes(core: Core) -> APIRouter:
    """The route, below ``/debug``."""
    router = APIRouter()

    @router.get("/queue")
    async def show_queue(limit: int = 500) -> QueueView:
        queue = core.queue
        waiting = queue.order(core.group_scheduler.describe(group) for group in queue.backlog)
        shown = waiting[: max(0, limit)]
        head = queue.backfill.head
        return QueueView(
            head=None if head is None else _view_head(core, head),
            waiting=[_view_waiting(core, each) for each in shown],
            leftOff=len(waiting) - len(shown),
        )

    return router


def _view_head(core: Core, head: Head) -> HeadView:
    tell = core.queue.backfill.tell_time
    return HeadView(
        namespace=head.group.namespace,
        name=head.group.encoded,
        kind=head.group.kind,
        domain=head.forecast.domain,
        nodes=sorted(head.forecast.nodes),
        forecast="" if head.forecast.at is None else tell(head.forecast.at),
        until=tell(head.until),
        missed=head.late,
        passed={str(group): tell(end) for group, end in head.passed.items()},
    )


def _view_waiting(core: Core, waiting: Waiting) -> WaitingView:
    gang = core.groups.states.get(waiting.group)
    verdict = gang.verdict if gang is not None else None
    since = gang.quorum_since if gang is not None else None
    return WaitingView(
        namespace=waiting.group.namespace,
        name=waiting.group.encoded,
        kind=waiting.group.kind,
        priority=waiting.priority,
        countsAs=core.queue.counts_as(waiting),
        since="" if since is None else core.queue.backfill.tell_time(since),
        message=render(verdict) if verdict is not None else "",
    )
