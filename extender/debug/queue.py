"""``/debug/queue``: who waits for room in which order, what is kept for the first of them, and who passed it."""

from fastapi import APIRouter, Response

from extender.core import Core
from extender.debug.view import View, exemplify, write_long
from extender.scheduling.backfill import Head
from serried.model.group import GroupKey, GroupKind
from serried.model.verdict import render
from serried.observe.pace import one_by_one
from serried.plan.order import Turn, Waiting


class HeadView(View):
    """The gang for which room is kept. Times are RFC 3339."""

    namespace: str
    name: str
    kind: GroupKind
    domain: str

    nodes: list[str]
    """Where room is kept."""

    forecast: str
    """When it will have room; empty if nobody can tell."""

    until: str
    """When room is kept no longer."""

    missed: bool
    """Whether a forecast was missed: then only gangs with a deadline may pass."""

    passed: dict[str, str]
    """The gangs that were let onto its nodes, and when each will have ended."""


class WaitingView(View):
    """A gang that waits for room."""

    position: int
    """Its place in the queue, from 1."""

    namespace: str
    name: str
    kind: GroupKind
    priority: int

    countsAs: int
    """Its priority with what waiting has added."""

    since: str
    """Since when it has its quorum, RFC 3339."""

    message: str


class QueueView(View):
    """The queue."""

    head: HeadView | None

    waiting: list[WaitingView]
    """In the order of their turns."""

    leftOff: int
    """How many more are not shown."""


_EXAMPLE = QueueView(
    head=HeadView(
        namespace="default",
        name="training",
        kind=GroupKind.POD_GROUP,
        domain="rack-2",
        nodes=["node-7", "node-8"],
        forecast="2026-08-01T12:40:00Z",
        until="2026-08-01T12:50:00Z",
        missed=False,
        passed={"default/small": "2026-08-01T12:31:00Z"},
    ),
    waiting=[
        WaitingView(
            position=1,
            namespace="default",
            name="training",
            kind=GroupKind.POD_GROUP,
            priority=0,
            countsAs=1,
            since="2026-08-01T12:00:00Z",
            message="NoCapacity: the cluster has room for 6 of 8 members",
        )
    ],
    leftOff=0,
)


def queue_routes(core: Core) -> APIRouter:
    """The route, below ``/debug``."""
    router = APIRouter()

    @router.get("/queue", response_model=QueueView, responses=exemplify(_EXAMPLE))
    async def show_queue(limit: int = 500) -> Response:
        """The gangs that wait for room in the order of their turns, and what is kept for the first of them.

        `limit` chooses the first ones; `leftOff` says how many more wait.
        """
        queue = core.queue
        turns = [find_turn(core, group) async for group in one_by_one(queue.backlog) if group in queue]
        waiting = [each for _, each in sorted(turns)]
        shown = waiting[: max(0, limit)]
        head = None if queue.backfill.head is None else _view_head(core, queue.backfill.head)
        view = QueueView(head=head, waiting=[], leftOff=len(waiting) - len(shown))
        # Between two of them one may go.
        places = (_view_waiting(core, place, each) for place, each in enumerate(shown, 1) if each.group in queue)
        return await write_long(view, "waiting", places)

    return router


def find_turn(core: Core, group: GroupKey) -> tuple[Turn, Waiting]:
    """The turn of a group in the queue, and what gives it."""
    waiting = core.queue.describe(group, core.groups.states.get(group))
    return core.queue.turn_of(waiting), waiting


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


def _view_waiting(core: Core, position: int, waiting: Waiting) -> WaitingView:
    state = core.groups.states.get(waiting.group)
    verdict = state.verdict if state is not None else None
    since = state.quorum_since if state is not None else None
    return WaitingView(
        position=position,
        namespace=waiting.group.namespace,
        name=waiting.group.encoded,
        kind=waiting.group.kind,
        priority=waiting.priority,
        countsAs=core.queue.counts_as(waiting),
        since="" if since is None else core.queue.backfill.tell_time(since),
        message=render(verdict) if verdict is not None else "",
    )
