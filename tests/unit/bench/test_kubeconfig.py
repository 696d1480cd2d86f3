"""Our loader reads each kubeconfig of the comparison as kubectl does, or refuses it."""

import sys
from pathlib import Path

import pytest

from bench.kubeconfig import CASES, Case, make_pair, try_case


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_ours_is_right(tmp_path: Path, case: Case) -> None:
    tried = try_case(Path(sys.executable), "ours", case, tmp_path, make_pair(tmp_path))
    assert tried == {"case": case.name, "loader": "ours", "right": True}


def test_a_loader_that_is_wrong_is_told_so(tmp_path: Path) -> None:
    case = Case("none", {"token": "t"}, lambda answer: answer.get("token") == "other")
    assert not try_case(Path(sys.executable), "ours", case, tmp_path, {})["right"]
