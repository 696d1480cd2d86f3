"""``serried decisions``: the latest decisions."""

import json
import re
from typing import Any

import pytest

from tests.support.commands import Run
from tests.support.pod_proxy import PodProxy

SAID = {
    "id": "3fa-1",
    "at": "2026-01-01T09:00:00Z",
    "group": "team/train-5d9c7",
    "owner": "job/train",
    "kind": "PodGroup",
    "reason": "Planned",
    "text": "Planned: placed, [2] members",
}
EARLIER = {**SAID, "id": "3fa-0", "at": "2026-01-01T08:00:00Z", "group": "team/job:train", "text": "X: waits for pods"}
ELSEWHERE = {**SAID, "id": "3fa-2", "group": "other/serve", "owner": ""}


@pytest.fixture
def decisions(proxy: PodProxy) -> None:
    proxy.answer_debug("serried-0:8912", "decisions", [ELSEWHERE, SAID])


@pytest.mark.usefixtures("decisions")
def test_they_are_told_as_they_were_said_with_the_job_and_their_age(run: Run) -> None:
    (row,) = run("decisions").out.splitlines()[1:]
    assert re.split(r" {3,}", row) == ["30 min", "team", "job/train", SAID["text"]]
    assert json.loads(run("decisions", "-o", "json").out) == [SAID]


@pytest.mark.usefixtures("decisions")
def test_decisions_of_namespaces_that_the_reader_may_not_list_are_not_shown(proxy: PodProxy, run: Run) -> None:
    proxy.listable = frozenset({"team"})
    assert json.loads(run("decisions", "-A", "-o", "json").out) == [SAID]


@pytest.mark.usefixtures("decisions")
def test_wide_has_the_time_by_the_own_clock_and_the_name_on_debug(run: Run) -> None:
    out = run("decisions", "-A", "-o", "wide").out
    assert "30 min ago (10:00:00)" in out
    assert "train-5d9c7" in out
    assert run("decisions", "-A", "-o", "name").out.split() == ["serve", "job/train"]


@pytest.mark.parametrize(
    ("flags", "shown"),
    [
        pytest.param((), ["3fa-1"], id="those of the context's namespace"),
        pytest.param(("-n", "other"), ["3fa-2"], id="those of another one"),
        pytest.param(("-A",), ["3fa-2", "3fa-1"], id="all"),
        pytest.param(("-A", "--limit", "1"), ["3fa-2"], id="the newest of all"),
        pytest.param(("-n", "nobody"), [], id="none"),
    ],
)
@pytest.mark.usefixtures("decisions")
def test_a_namespace_and_a_number_choose(run: Run, flags: tuple[str, ...], shown: list[str]) -> None:
    assert [each["id"] for each in json.loads(run("decisions", "-o", "json", *flags).out)] == shown


@pytest.mark.usefixtures("decisions")
def test_no_rows_are_told_apart_from_no_decisions(run: Run) -> None:
    assert run("decisions", "-n", "nobody").out == "Serried has decided nothing in namespace nobody: -A shows all.\n"
    assert run("decisions", "-A", "--limit", "0").out == "2 are not shown: see --limit.\n"


def test_a_gang_is_asked_for_by_its_job_and_from_before_it_had_a_group(proxy: PodProxy, run: Run) -> None:
    group = {"namespace": "team", "name": "train-5d9c7", "kind": "PodGroup"}
    proxy.answer_debug("serried-0:8912", "lookup/team/job/train", [group])
    by_group: dict[str, Any] = {"team/train-5d9c7": [SAID], "team/job:train": [EARLIER]}
    for name, said in by_group.items():
        proxy.answer_debug("serried-0:8912", f"decisions?group={name}&limit=1000000", said)
    found = json.loads(run("decisions", "--group", "job/train", "-o", "json").out)
    assert found == [SAID, EARLIER]


def test_of_a_gang_that_is_gone_they_are_still_shown(proxy: PodProxy, run: Run) -> None:
    proxy.answer_debug("serried-0:8912", "decisions", [SAID])
    assert run("decisions", "--group", "team/train-5d9c7").code == 0


@pytest.mark.parametrize(
    ("group", "code", "said"),
    [
        pytest.param("one-rack", 4, "Serried knows no group one-rack", id="a name that nothing has"),
        pytest.param("a//b", 2, "'a//b' is not the name of a group: use job/train", id="a form that is none"),
        pytest.param("deployment/web", 2, "name the Job or one of its pods", id="a kind that is none"),
    ],
)
def test_a_group_that_is_none_is_no_empty_answer(proxy: PodProxy, run: Run, group: str, code: int, said: str) -> None:
    proxy.answer_debug("serried-0:8912", "decisions", [])
    ended = run("decisions", "--group", group)
    assert (ended.code, ended.out) == (code, "")
    assert said in ended.err
