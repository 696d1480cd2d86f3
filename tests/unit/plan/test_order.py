from serried.model.group import Key
from serried.plan.order import Waiting, order_groups


def test_priority_comes_before_age_and_age_before_name() -> None:
    late, early, urgent, twin = (
        Waiting(Key("ns", "late"), 0, 20.0),
        Waiting(Key("ns", "early"), 0, 10.0),
        Waiting(Key("ns", "urgent"), 5, 30.0),
        Waiting(Key("ns", "a-twin"), 0, 10.0),
    )
    assert order_groups([late, early, urgent, twin]) == [urgent, twin, early, late]
