"""Choice of the candidates that kube-scheduler may preempt."""

from hypothesis import given
from hypothesis import strategies as st

from extender.core.protocol import Candidate
from extender.features.plain_pods import Loss, choose_least_loss

few = st.integers(0, 3)


@st.composite
def losses(draw: st.DrawFn) -> list[Loss]:
    """Candidates on nodes of their own, with small numbers: so that many are equal in some."""
    return [
        Loss(Candidate(f"n{index}", ("u",), draw(few)), draw(few), gangs, draw(few) if gangs else 0)
        for index, gangs in enumerate(draw(st.lists(few, max_size=6)))
    ]


def standing(loss: Loss) -> tuple[int, int]:
    """Return the criteria by which kube-scheduler compares candidates first."""
    return loss.candidate.violations, loss.priority


@given(losses())
def test_pods_with_a_candidate_keep_one(found: list[Loss]) -> None:
    assert bool(choose_least_loss(found)) is bool(found)


@given(losses())
def test_no_gang_goes_where_others_that_count_no_more_would_do(found: list[Loss]) -> None:
    kept = choose_least_loss(found)
    for loss in found:
        if loss.candidate in kept and loss.gangs:
            assert len(kept) == 1
            assert all(other.gangs or standing(other) > standing(loss) for other in found)


@given(losses())
def test_no_gang_is_spared_at_the_cost_of_what_counts_more(found: list[Loss]) -> None:
    kept = choose_least_loss(found)
    if found:
        assert min(standing(loss) for loss in found if loss.candidate in kept) == min(map(standing, found))


@given(losses())
def test_the_order_of_the_candidates_says_nothing(found: list[Loss]) -> None:
    assert set(choose_least_loss(found)) == set(choose_least_loss(found[::-1]))
