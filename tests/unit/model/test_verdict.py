"""Sentences about priorities."""

from serried.api.priority import PriorityMismatch
from serried.api.verdict import describe_mismatch


def test_a_group_whose_priority_is_not_that_of_its_class() -> None:
    said = describe_mismatch(PriorityMismatch(1000, "high", 10**9))
    assert said == (
        "Serried uses priority 1000 for all members of the group, "
        "although its spec.priority 1000000000 is not that of PriorityClass high"
    )


def test_one_that_names_no_class_and_has_members_that_do() -> None:
    said = describe_mismatch(PriorityMismatch(0, "", 7, strays=2, members=3, stray="m1", stray_priority=50))
    assert said == (
        "Serried uses priority 0 for all members of the group, although its spec.priority 7 is set without a class"
        " and 2 of 3 members have another priority, such as m1 with 50"
    )
