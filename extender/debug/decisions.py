"""``/debug/decisions``: what was decided of whom, and when."""

from fastapi import APIRouter, HTTPException, Response

from extender.debug.view import View, exemplify, write_list
from extender.status.reports import Reports, Said
from serried.model.group import GroupKind


class DecisionView(View):
    """One decision, newest first."""

    id: str
    """What the line of the log names, too."""

    at: str
    group: str
    kind: GroupKind
    reason: str
    text: str


_EXAMPLE = DecisionView(
    id="3fa1c2-17",
    at="2026-08-01T12:00:00Z",
    group="default/training",
    kind=GroupKind.POD_GROUP,
    reason="NoCapacity",
    text="NoCapacity: the cluster has room for 6 of 8 members",
)


def decisions_routes(reports: Reports) -> APIRouter:
    """The routes, below ``/debug``."""
    router = APIRouter()

    @router.get("/decisions", response_model=list[DecisionView], responses=exemplify([_EXAMPLE]))
    async def list_decisions(limit: int = 100, group: str = "") -> Response:
        """The last decisions, the newest first; of one group if `group` names it as `namespace/name`."""
        said = [one for one in reversed(reports.decisions) if not group or str(one.group) == group]
        return await write_list(_view_decision(one) for one in said[: max(0, limit)])

    @router.get("/decisions/{id}", responses=exemplify(_EXAMPLE, not_found="It is not among the last decisions."))
    async def show_decision(id: str) -> DecisionView:  # noqa: A002 - the path's own word
        """One decision, by the `decision` that a line of the log names. The last 1000 are remembered."""
        found = next((one for one in reports.decisions if one.id == id), None)
        if found is None:
            raise HTTPException(404, f"no decision {id[:100]!r} is among the last {len(reports.decisions)}")
        return _view_decision(found)

    return router


def _view_decision(said: Said) -> DecisionView:
    return DecisionView(
        id=said.id, at=said.at, group=str(said.group), kind=said.group.kind, reason=said.reason, text=said.text
    )
