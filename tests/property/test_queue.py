"""Order and forecast against brute force, and against what they promise."""

from collections.abc import Iterable
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from serried.model.group import GroupKey
from serried.model.plan import Plan, Snapshot
from serried.model.resources import Resources
from serried.plan.forecast import Ending, foresee
from serried.plan.gang import plan_gang
from serried.plan.order import Ageing, Waiting, order_groups
from tests.support.strategies import Problem, problems

STEP = 100.0
PRIORITIES = (0, 10, 20)

groups = st.lists(
    st.builds(
        lambda number, priority, since: Waiting(GroupKey("ns", f"g{number}"), priority, float(since)),
        st.integers(0, 20),
        st.sampled_from((*PRIORITIES, 5, 30)),
        st.integers(0, 500),
    ),
    max_size=8,
    unique_by=lambda waiting: waiting.group,
)


@given(waiting=groups, now=st.integers(0, 1000), data=st.data())
def test_the_order_is_one_order_whatever_it_is_made_from(waiting: list[Waiting], now: int, data: st.DataObject) -> None:
    ageing = Ageing(STEP, PRIORITIES)
    shuffled = data.draw(st.permutations(waiting))
    ordered = order_groups(waiting, ageing, now)
    assert order_groups(shuffled, ageing, now) == ordered
    assert order_groups(ordered[1:], ageing, now) == ordered[1:]


@given(waiting=groups, now=st.integers(0, 1000))
def test_nobody_is_passed_for_ever(waiting: list[Waiting], now: int) -> None:
    """Whoever has waited a step for each priority that there is has only those before it that wait longer."""
    ordered = order_groups(waiting, Ageing(STEP, PRIORITIES), now)
    for place, patient in enumerate(ordered):
        if now - patient.since >= STEP * len(PRIORITIES):
            assert all(
                earlier.since <= patient.since or earlier.priority > PRIORITIES[-1] for earlier in ordered[:place]
            )


@given(waiting=groups)
def test_within_a_step_priority_alone_decides(waiting: list[Waiting]) -> None:
    fresh = [replace(each, since=each.since / 10) for each in waiting]
    ordered = order_groups(fresh, Ageing(STEP, PRIORITIES), STEP / 2)
    assert [each.priority for each in ordered] == sorted((each.priority for each in fresh), reverse=True)


@st.composite
def forecasts(draw: st.DrawFn, classes: int = 1) -> tuple[Problem, list[Ending]]:
    """A gang that does not fit, and what is used as pods with an end, without one, or that stay."""
    problem = draw(problems(classes=classes))
    names = sorted(problem.snapshot.nodes) or ["gone"]
    pods = st.builds(
        lambda node, cpu, memory, at: Ending(node, (("cpu", cpu), ("memory", memory), ("pods", 1)), at),
        st.sampled_from(names),
        st.integers(0, 4),
        st.integers(0, 4),
        st.sampled_from([1.0, 2.0, 3.0, 4.0, None, float("inf")]),
    )
    endings = draw(st.lists(pods, max_size=8))
    used: dict[str, Resources] = {name: dict(amounts) for name, amounts in problem.snapshot.used.items()}
    for ending in endings:
        before = used.get(ending.node, {})
        used[ending.node] = {key: before.get(key, 0) + amount for key, amount in ending.requests}
    return Problem(Snapshot(problem.snapshot.nodes, used), problem.ask), endings


def after(snapshot: Snapshot, ended: Iterable[Ending]) -> Snapshot:
    """The cluster without these pods."""
    used: dict[str, Resources] = {name: dict(amounts) for name, amounts in snapshot.used.items()}
    for ending in ended:
        asked = dict(ending.requests)
        used[ending.node] = {key: amount - asked.get(key, 0) for key, amount in used[ending.node].items()}
    return Snapshot(snapshot.nodes, used)


def by(endings: list[Ending], at: float) -> list[Ending]:
    return [ending for ending in endings if ending.at is not None and ending.at <= at]


@given(case=forecasts())
def test_the_forecast_is_the_first_moment_at_which_the_gang_fits(case: tuple[Problem, list[Ending]]) -> None:
    problem, endings = case
    ask = replace(problem.ask, excluded=frozenset())
    if isinstance(plan_gang(problem.snapshot, ask), Plan):
        return
    moments = [
        at for at in (1.0, 2.0, 3.0, 4.0) if isinstance(plan_gang(after(problem.snapshot, by(endings, at)), ask), Plan)
    ]
    forecast = foresee(problem.snapshot, ask, endings)
    assert (forecast.at if forecast else None) == min(moments, default=None)


@given(case=forecasts())
def test_there_is_a_forecast_if_the_gang_would_fit_once_all_have_ended_that_will(
    case: tuple[Problem, list[Ending]],
) -> None:
    problem, endings = case
    ask = replace(problem.ask, excluded=frozenset())
    if isinstance(plan_gang(problem.snapshot, ask), Plan):
        return
    left = after(problem.snapshot, [ending for ending in endings if ending.at != float("inf")])
    assert (foresee(problem.snapshot, ask, endings) is not None) == isinstance(plan_gang(left, ask), Plan)


@given(case=forecasts(classes=3))
def test_at_the_time_of_the_forecast_its_nodes_hold_the_gang(case: tuple[Problem, list[Ending]]) -> None:
    problem, endings = case
    forecast = foresee(problem.snapshot, problem.ask, endings)
    if forecast is None or forecast.at is None:
        return
    inside = {name: problem.snapshot.nodes[name] for name in forecast.nodes}
    then = after(problem.snapshot, by(endings, forecast.at))
    assert isinstance(plan_gang(Snapshot(inside, then.used), problem.ask), Plan)
