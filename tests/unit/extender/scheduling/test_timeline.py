"""The memory of what has happened to groups: bounded, and each milestone once a round."""

from extender.core.timeline import Milestone, Timelines
from serried.api.names import GroupKey
from serried.api.verdict import Reason, Verdict
from tests.support.clock import Clock


def key(number: int) -> GroupKey:
    return GroupKey("default", f"g{number}")


def test_of_ten_thousand_groups_the_one_of_which_nothing_was_heard_goes_first() -> None:
    timelines = Timelines(Clock())
    for number in range(10_000):
        timelines.note(key(number), Milestone.SEEN)
    timelines.note(key(0), Milestone.QUORUM)
    timelines.note(key(10_000), Milestone.SEEN)
    assert len(timelines) == 10_000
    assert timelines.of_group(key(1)) == ()
    assert [each.milestone for each in timelines.of_group(key(0))] == [Milestone.SEEN, Milestone.QUORUM]


def test_of_many_rounds_the_last_are_remembered_and_since_when_it_is_known() -> None:
    clock = Clock()
    timelines = Timelines(clock)
    timelines.note(key(0), Milestone.SEEN)
    timelines.note(key(0), Milestone.QUORUM)
    begun = clock()
    for _ in range(50):
        clock.advance(1)
        timelines.note(key(0), Milestone.PLANNED)
        timelines.note(key(0), Milestone.GIVEN_UP)
    found = timelines.of_group(key(0))
    assert len(found) == 16
    assert [each.milestone for each in found[:2]] == [Milestone.SEEN, Milestone.QUORUM]
    assert found[0].at == begun
    assert found[-1].at == begun + 50


def test_the_first_member_of_a_round_counts() -> None:
    timelines = Timelines(Clock())
    for _ in range(2):
        timelines.note(key(0), Milestone.PLANNED)
        for _member in range(3):
            timelines.note(key(0), Milestone.STEERED)
            timelines.note(key(0), Milestone.AT_BIND)
    reached = [each.milestone for each in timelines.of_group(key(0))]
    assert reached == [Milestone.PLANNED, Milestone.STEERED, Milestone.AT_BIND] * 2


def test_a_quorum_counts_anew_after_the_gang_has_broken() -> None:
    timelines = Timelines(Clock())
    for reason in (Reason.QUORUM_MISSING, Reason.NO_CAPACITY, Reason.NO_CAPACITY, Reason.BROKEN, Reason.NO_CAPACITY):
        timelines.note_verdict(key(0), Verdict(reason))
    reached = [each.milestone.value for each in timelines.of_group(key(0))]
    assert reached == ["seen", "quorum", "broken", "quorum"]
