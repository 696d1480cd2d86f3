"""``/debug/reservations``: the slots that are kept for gangs from their plan to the last Binding."""

from fastapi import APIRouter, Response

from extender.core import Core
from extender.debug.view import View, exemplify, write_list
from serried.model.group import GroupKey, GroupKind


class ReservationView(View):
    """The slots kept for one state: member names by node."""

    namespace: str
    name: str
    kind: GroupKind
    phase: str
    stage: str
    domain: str
    need: int
    atBind: int
    bound: int
    slots: dict[str, list[str]]


_EXAMPLE = ReservationView(
    namespace="default",
    name="training",
    kind=GroupKind.POD_GROUP,
    phase="Planned",
    stage="Gathering",
    domain="rack-2",
    need=2,
    atBind=1,
    bound=0,
    slots={"node-7": ["training-0"], "node-8": ["training-1"]},
)


def reservations_routes(core: Core) -> APIRouter:
    """The route, below ``/debug``."""
    router = APIRouter()

    @router.get("/reservations", response_model=list[ReservationView], responses=exemplify([_EXAMPLE]))
    async def list_reservations() -> Response:
        """Every reservation: which nodes are kept for whom, and how far the binding of the gang is."""
        groups = [reservation.group for reservation in core.ledger]
        # Between two of them one may go.
        return await write_list(view for group in groups if (view := view_reservation(core, group)))

    return router


def view_reservation(core: Core, key: GroupKey) -> ReservationView | None:
    """The slots of a group; None if it has none."""
    reservation = core.ledger.of_group(key)
    state = core.groups.states.get(key)
    if reservation is None:
        return None
    slots: dict[str, list[str]] = {}
    for slot in reservation.slots.values():
        slots.setdefault(slot.node, []).append(slot.name)
    cycle = state.cycle if state else None
    return ReservationView(
        namespace=key.namespace,
        name=key.encoded,
        kind=key.kind,
        phase=reservation.phase,
        stage=cycle.stage.value if cycle else "",
        domain=reservation.domain,
        need=reservation.need,
        atBind=len(cycle.at_bind) if cycle else 0,
        bound=len(cycle.bound) if cycle else 0,
        slots=slots,
    )
