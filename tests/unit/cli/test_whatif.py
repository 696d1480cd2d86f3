"""``serried whatif``: asks about manifests, and says whether they fit."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import Run
from tests.support.pod_proxy import PodProxy

JOB = "kind: Job\nmetadata: {name: train, creationTimestamp: 2026-01-01T00:00:00Z}\n"


def prediction(outcome: str, **said: Any) -> dict[str, Any]:
    return {
        "namespace": "team",
        "name": "job:train",
        "kind": "Job",
        "source": "Job team/train",
        "outcome": outcome,
        "priority": 0,
        "members": 4,
        "need": 4,
        "placed": 4,
        "domain": "rack-2",
        "nodes": {"node-7": 4},
        "reason": "",
        "message": "4 of 4 members fit into rack-2",
        "preemption": None,
    } | said


def answer(proxy: PodProxy, path: str, *groups: dict[str, Any], displaced: int = 0) -> dict[str, Any]:
    changes = {"drained": [], "displaced": displaced, "added": [], "removed": []}
    fits = all(each["outcome"] == "Fits" for each in groups)
    document = {
        "fits": fits,
        "groups": list(groups),
        "changes": changes,
        "workSeconds": 0.1,
        "longestSliceSeconds": 0.0,
    }
    proxy.answer_debug("serried-0:8912", path, document)
    return document


@pytest.fixture
def job(tmp_path: Path) -> str:
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    return str(path)


def test_a_job_that_fits(proxy: PodProxy, run: Run, job: str) -> None:
    answer(proxy, "whatif", prediction("Fits"))
    ended = run("whatif", job, "-n", "team")
    assert ended.code == 0
    assert "4 of 4 members fit into rack-2" in ended.out
    assert "node-7" in ended.out
    assert "whatif?namespace=team" in proxy.asked[-1]


def test_a_job_that_does_not_fit_is_a_no_for_scripts(proxy: PodProxy, run: Run, job: str) -> None:
    document = answer(proxy, "whatif", prediction("DoesNotFit", nodes={}, message="NoCapacity: too little"))
    ended = run("whatif", job, "-o", "json")
    assert (ended.code, json.loads(ended.out)) == (1, document)


def test_victims_are_named(proxy: PodProxy, run: Run, job: str) -> None:
    answer(proxy, "whatif", prediction("FitsAfterEvictions", preemption={"victims": ["default/web"]}))
    ended = run("whatif", job)
    assert ended.code == 1
    assert "WOULD BE EVICTED" in ended.out
    assert "default/web" in ended.out


def test_changes_go_with_the_question(proxy: PodProxy, run: Run, job: str) -> None:
    answer(proxy, "whatif", prediction("Fits"), displaced=3)
    ended = run("whatif", job, "--drain", "n1", "--drain", "n2", "--add", "4*n3", "--remove", "team/other")
    assert "3 pods of the drained nodes would need another place" in ended.out
    assert "drain=n1&drain=n2&add=4*n3&remove=team/other" in proxy.asked[-1].replace("%2F", "/").replace("%2A", "*")


def test_a_group_that_exists_needs_no_file(proxy: PodProxy, run: Run) -> None:
    answer(proxy, "whatif", prediction("Fits", source="PodGroup team/train"))
    assert run("whatif", "--group", "team/train").code == 0


def test_manifests_may_come_from_another_command(proxy: PodProxy, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(JOB))
    answer(proxy, "whatif", prediction("Fits"))
    assert run("whatif", "-").code == 0


def test_what_the_extender_objects_to_is_told(proxy: PodProxy, run: Run, job: str) -> None:
    proxy.answer_debug("serried-0:8912", "whatif", {"detail": "there is no node n9; see /debug/nodes"}, status=400)
    ended = run("whatif", job, "--drain", "n9")
    assert (ended.code, ended.out) == (2, "")
    assert "there is no node n9; see /debug/nodes" in ended.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param([], "name a file with manifests, or a group", id="nothing is asked"),
        pytest.param(["nowhere.yaml"], "nowhere.yaml: No such file or directory", id="no such file"),
        pytest.param(["BAD"], "is no YAML", id="a file that is no YAML"),
    ],
)
def test_what_cannot_be_asked_is_told(run: Run, tmp_path: Path, arguments: list[str], said: str) -> None:
    (tmp_path / "bad.yaml").write_text("a: [")
    ended = run("whatif", *[each.replace("BAD", str(tmp_path / "bad.yaml")) for each in arguments])
    assert ended.code == 2
    assert said in ended.err
