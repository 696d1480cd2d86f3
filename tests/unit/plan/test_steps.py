import pytest

from serried.ops.steps import finish, sort_in_steps


@pytest.mark.parametrize("count", [0, 1, 499, 500, 501, 2_300])
def test_what_is_sorted_in_steps_is_sorted_and_keeps_the_order_of_equals(count: int) -> None:
    items = [(number * number % 7, number) for number in range(count)]
    assert finish(sort_in_steps(items, lambda item: item[0])) == sorted(items, key=lambda item: item[0])


def test_a_long_list_takes_several_steps() -> None:
    assert len(list(sort_in_steps(range(2_000), lambda item: -item))) > 4
