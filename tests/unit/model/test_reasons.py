"""What an operator reads of a gang."""

import pytest

from serried.api.verdict import Reason, Verdict, render


@pytest.mark.parametrize("reason", Reason)
def test_each_reason_has_a_sentence(reason: Reason) -> None:
    assert render(Verdict(reason)).removeprefix(f"{reason.value}: ")
