"""``/debug/cache/diff``: what the process knows of the cluster against the API server now."""

from fastapi import APIRouter, HTTPException

from extender.debug.view import View, exemplify
from serried.drift import Comparison, Difference, Drift


class DriftView(View):
    """One kind of objects. An object is named by namespace and name, or by its name alone."""

    kind: str

    served: bool
    """Whether the API server serves the kind."""

    listed: int
    """How many the API server has."""

    cached: int
    """How many the process knows."""

    missing: list[str]
    """Those that it does not know."""

    extra: list[str]
    """Those that it knows, and the API server does not have."""

    stale: list[str]
    """Those of which it knows an older state."""

    malformed: list[str]
    """Those that it cannot read: it goes by the last state of them that it could."""

    leftOff: int
    """How many more differed when they were listed, and were not looked at again."""

    error: str
    """Why the kind could not be compared, "" if it was."""


class CacheDiffView(View):
    """All kinds."""

    equal: bool
    """Whether nothing differs."""

    kinds: list[DriftView]


_EXAMPLE = CacheDiffView(
    equal=False,
    kinds=[
        DriftView(
            kind="pods",
            served=True,
            listed=512,
            cached=511,
            missing=["default/training-0"],
            extra=[],
            stale=[],
            malformed=[],
            leftOff=0,
            error="",
        )
    ],
)


def cache_routes(comparison: Comparison) -> APIRouter:
    """The route, below ``/debug``."""
    router = APIRouter()

    @router.get(
        "/cache/diff",
        responses=exemplify(
            _EXAMPLE, bad_request="There is no such kind.", too_many_requests="Another comparison is being made."
        ),
    )
    async def compare(kind: str = "") -> CacheDiffView:
        """List every kind that is watched, or the `kind` that is asked for, and compare it with what the process knows.

        A watch is always a little behind: what differs is looked at again after a second, and is told only if it
        differs still. At most 100 objects of a kind are. It costs the API server a list of each kind, so there is one
        comparison at a time: another one is answered with 429.
        """
        kinds = [each for each in comparison.kinds if kind in ("", each.value)]
        if not kinds:
            raise HTTPException(400, f"kind is one of {', '.join(comparison.kinds)}, not {kind[:100]!r}")
        if comparison.under_way:
            raise HTTPException(429, "another comparison is being made; ask again when it is done")
        views = [_view_drift(drift) for drift in await comparison.compare(kinds)]
        return CacheDiffView(equal=all(_is_equal(view) for view in views), kinds=views)

    return router


def _is_equal(view: DriftView) -> bool:
    return not (view.missing or view.extra or view.stale or view.malformed or view.leftOff or view.error)


def _view_drift(drift: Drift) -> DriftView:
    names = {difference: [name for name, found in drift.named if found is difference] for difference in Difference}
    return DriftView(
        kind=drift.kind.value,
        served=drift.served,
        listed=drift.listed,
        cached=drift.cached,
        missing=names[Difference.MISSING],
        extra=names[Difference.EXTRA],
        stale=names[Difference.STALE],
        malformed=names[Difference.MALFORMED],
        leftOff=drift.left_off,
        error=drift.error,
    )
