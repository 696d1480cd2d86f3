"""Sentences about priorities."""

from serried.api.priority import PriorityMismatch
from serried.api.verdict import describe_mismatch


def test_a_group_whose_priority_is_not_that_of_its_class() -> None:
    said = describe_mismatch(PriorityMismatch(1000, "high", 10**9))
    assert said == (
        "the group counts with priority 1000, and all its members do; "
        "its spec.priority says 1000000000, which PriorityClass high does not give it"
    )


def test_one_that_names_no_class_and_has_members_that_do() -> None:
    said = describe_mismatch(PriorityMismatch(0, "", 7, strays=2, members=3, stray="m1", stray_priority=50))
    assert said == (
        "the group counts with priority 0, and all its members do; "
        "its spec.priority says 7, which no PriorityClass gives it; 2 of 3 members have another, such as m1 with 50"
    )
