"""``serried decisions``: what was decided last."""

import json

from tests.support.commands import Run
from tests.support.pod_proxy import PodProxy

SAID = {
    "at": "2026-01-01T09:00:00Z",
    "group": "team/train",
    "kind": "PodGroup",
    "reason": "Planned",
    "text": "Planned: placed, [2] members",
}


def test_they_are_told_as_they_were_said(proxy: PodProxy, run: Run) -> None:
    proxy.answer_debug("serried-0:8912", "decisions", [SAID])
    ended = run("decisions")
    assert ended.out.splitlines()[1].split(maxsplit=2) == [SAID["at"], SAID["group"], f"{SAID['text']}   "]
    assert json.loads(run("decisions", "-o", "json").out) == [SAID]


def test_group_and_limit_choose(proxy: PodProxy, run: Run) -> None:
    proxy.answer_debug("serried-0:8912", "decisions", [])
    assert run("decisions", "--group", "team/train", "--limit", "3").out == "Nothing has been decided.\n"
    assert proxy.asked[-1].endswith("/debug/decisions?limit=3&group=team/train")
