import pytest

from extender.leadership import AlwaysActive, Leadership
from serried.kube.changes import Deleted, Upserted


class Turns:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.seen: list[bool] = []

    def __call__(self, active: bool) -> None:  # noqa: FBT001 - the callback's one argument
        self.seen.append(active)


@pytest.fixture
def turns() -> Turns:
    return Turns()


def lease(holder: str | None) -> dict[str, object]:
    return {"metadata": {"name": "serried", "namespace": "serried"}, "spec": {"holderIdentity": holder}}


@pytest.mark.parametrize(
    "holder",
    [
        pytest.param("serried-0_3f0c", id="the scheduler beside us: the Pod's name, an underscore and a UUID"),
        pytest.param("serried-0", id="an identity that is the Pod's name alone"),
    ],
)
def test_active_while_the_scheduler_beside_us_holds_the_lease(turns: Turns, holder: str) -> None:
    leadership = Leadership("serried-0", turns)
    leadership.take(holder)
    assert (leadership.active, leadership.holder, turns.seen) == (True, holder, [True])


@pytest.mark.parametrize("holder", ["serried-01_3f0c", "serried-1_3f0c", "serried", "serried-0-x_1", ""])
def test_not_active_while_another_one_holds_it(turns: Turns, holder: str) -> None:
    leadership = Leadership("serried-0", turns)
    leadership.take(holder)
    assert (leadership.active, turns.seen) == (False, [])


def test_only_turns_are_told_not_renewals(turns: Turns) -> None:
    leadership = Leadership("serried-0", turns)
    for holder in ("serried-0_a", "serried-0_a", "serried-0_b", "serried-1_c", "serried-1_c", "serried-0_d"):
        leadership.take(holder)
    assert turns.seen == [True, False, True]


def test_it_follows_the_watch_of_the_lease(turns: Turns) -> None:
    leadership = Leadership("serried-0", turns)
    leadership.follow(Upserted(lease("serried-0_a")))
    leadership.follow(Upserted({"spec": "nonsense"}))
    assert leadership.active
    leadership.follow(Upserted(lease(None)))
    assert not leadership.active
    leadership.follow(Upserted(lease("serried-0_a")))
    leadership.follow(Deleted(lease("serried-0_a")))
    assert turns.seen == [True, False, True, False]


def test_without_a_lease_it_is_active_from_the_beginning(turns: Turns) -> None:
    leadership = AlwaysActive("", turns)
    leadership.begin()
    assert (leadership.active, turns.seen) == (True, [True])
