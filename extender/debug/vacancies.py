"""``/debug/vacancies``: the slots that are kept for replacements of members that have ended."""

from fastapi import APIRouter, Response

from extender.core import Core
from extender.debug.view import View, exemplify, write_list
from serried.cluster.vacancies import Vacancy
from serried.model.group import GroupKind


class VacancyView(View):
    """The slot of a member that has ended."""

    namespace: str
    group: str
    kind: GroupKind
    member: str

    index: int | None
    """The member's completion index, None if it had none."""

    node: str
    """Where the member ran."""

    claimed: bool
    """Whether room is kept there."""

    refusal: str
    """Why the kubelet would not run the member, "" for any other end."""

    replacement: str
    """The pod that comes in its place, "" while there is none."""

    seconds: float
    """How long the slot has been kept."""


_EXAMPLE = VacancyView(
    namespace="default",
    group="training",
    kind=GroupKind.POD_GROUP,
    member="training-0",
    index=0,
    node="node-7",
    claimed=True,
    refusal="",
    replacement="training-0-x7k2p",
    seconds=12.5,
)


def vacancies_routes(core: Core) -> APIRouter:
    """The route, below ``/debug``."""
    router = APIRouter()

    @router.get("/vacancies", response_model=list[VacancyView], responses=exemplify([_EXAMPLE]))
    async def list_vacancies() -> Response:
        """Every slot of a bound member that has ended without success, and who comes in its place."""
        return await write_list(_view_vacancy(core, vacancy) for vacancy in list(core.store.vacancies))

    return router


def _view_vacancy(core: Core, vacancy: Vacancy) -> VacancyView:
    replacement = core.store.pods.get(vacancy.replacement)
    now = core.clock()
    return VacancyView(
        namespace=vacancy.group.namespace,
        group=vacancy.group.encoded,
        kind=vacancy.group.kind,
        member=vacancy.pod.name,
        index=vacancy.pod.index,
        node=vacancy.pod.node,
        claimed=core.store.occupancy.node_of(vacancy.claimant) is not None,
        refusal=vacancy.refusal,
        replacement=replacement.name if replacement is not None else "",
        seconds=round(now - (now if vacancy.since is None else vacancy.since), 1),
    )
