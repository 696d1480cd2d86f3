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
        "skipped": [],
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


def test_what_is_no_gang_is_no_yes(proxy: PodProxy, run: Run, job: str) -> None:
    why = "kube-scheduler places its pods one by one: it is not Indexed"
    answer(proxy, "whatif", prediction("Fits", noGang=why, message=f"no gang, so {why}; 4 of 4 members fit"))
    ended = run("whatif", job)
    assert ended.code == 0
    assert "no gang   rack-2" in ended.out
    assert "yes" not in ended.out
    answer(proxy, "whatif", prediction("DoesNotFit", noGang=why, nodes={}))
    assert run("whatif", job).code == 1


def test_a_job_that_does_not_fit_is_a_no_for_scripts(proxy: PodProxy, run: Run, job: str) -> None:
    document = answer(proxy, "whatif", prediction("DoesNotFit", nodes={}, message="NoCapacity: too little"))
    ended = run("whatif", job, "-o", "json")
    groups = [{**each, "file": job} for each in document["groups"]]
    expected = {**document, "groups": groups, "refused": [], "unchecked": []}
    assert (ended.code, json.loads(ended.out)) == (1, expected)


def test_victims_are_named(proxy: PodProxy, run: Run, job: str) -> None:
    answer(proxy, "whatif", prediction("FitsAfterEvictions", preemption={"victims": ["default/web"]}))
    ended = run("whatif", job)
    assert ended.code == 1
    assert "WOULD BE EVICTED" in ended.out
    assert "default/web" in ended.out


def test_what_makes_no_pods_is_named_as_left_out(proxy: PodProxy, run: Run, job: str) -> None:
    document = answer(proxy, "whatif", prediction("Fits"))
    document["skipped"] = ["Service web", "ConfigMap a"]
    assert "Left out, because these objects make no pods of gangs: Service web, ConfigMap a." in run("whatif", job).out


def test_what_cannot_be_answered_for_is_told_beside_the_others(proxy: PodProxy, run: Run, job: str) -> None:
    document = answer(proxy, "whatif", prediction("Fits"))
    document |= {"fits": False, "refused": ["document 2, Deployment default/web: this kind is not read"]}
    ended = run("whatif", job)
    assert (ended.code, "4 of 4 members fit" in ended.out) == (1, True)
    assert "Serried could not plan: document 2, Deployment default/web: this kind is not read." in ended.out


class TestSeveralFiles:
    """Each gang has its verdict, with the file; what is wrong with one ends no other."""

    @pytest.fixture
    def files(self, tmp_path: Path) -> list[str]:
        (tmp_path / "a.yaml").write_text(JOB)
        (tmp_path / "b.yaml").write_text(f"{JOB.replace('train', 'b1')}---\n{JOB.replace('train', 'b2')}")
        return [str(tmp_path / name) for name in ("a.yaml", "b.yaml")]

    def test_each_verdict_names_its_file(self, proxy: PodProxy, run: Run, files: list[str]) -> None:
        gangs = [prediction("Fits", source=f"Job team/{name}, worker") for name in ("train", "b1", "b2")]
        answer(proxy, "whatif", *gangs)
        ended = run("whatif", *files)
        found = json.loads(run("whatif", *files, "-o", "json").out)
        places = [files[0], f"{files[1]}, document 1", f"{files[1]}, document 2"]
        assert [each["file"] for each in found["groups"]] == places
        rows = [line for line in ended.out.splitlines() if "4 of 4 members fit" in line]
        assert [any(place in row for row in rows) for place in places] == [True] * 3

    def test_what_the_extender_refuses_names_its_file(self, proxy: PodProxy, run: Run, files: list[str]) -> None:
        document = answer(proxy, "whatif", prediction("Fits"))
        problem = "Job team/b1: PriorityClass gold does not exist; create it, or name another one"
        document |= {"fits": False, "refused": [f"document 1, item 2, {problem}", "document 1, item 3 is no manifest"]}
        ended = run("whatif", *files)
        assert ended.code == 1
        assert f"Serried could not plan: {files[1]}, document 1, {problem}." in ended.out
        assert f"Serried could not plan: {files[1]}, document 2 is no manifest." in ended.out
        assert "4 of 4 members fit" in ended.out

    def test_a_document_that_is_not_yaml_ends_no_other(
        self, proxy: PodProxy, run: Run, files: list[str], tmp_path: Path
    ) -> None:
        (tmp_path / "b.yaml").write_text(f"{JOB}---\na: [b\n---\n{JOB.replace('train', 'b2')}")
        answer(proxy, "whatif", prediction("Fits"))
        ended = run("whatif", *files)
        assert ended.code == 1
        assert f"Serried could not plan: {files[1]}, document 2: it is not YAML: line 5: " in ended.out
        assert [each["metadata"]["name"] for each in json.loads(proxy.bodies[-1])] == ["train", "train", "b2"]

    def test_a_file_that_is_not_yaml_ends_no_other(
        self, proxy: PodProxy, run: Run, files: list[str], tmp_path: Path
    ) -> None:
        (tmp_path / "b.yaml").write_text("a: [")
        answer(proxy, "whatif", prediction("Fits"))
        ended = run("whatif", *files)
        assert (ended.code, f"Serried could not plan: {files[1]}: it is not YAML" in ended.out) == (1, True)

    def test_titles_are_not_broken(self, proxy: PodProxy, run: Run, files: list[str]) -> None:
        answer(proxy, "whatif", prediction("Fits", source="Job default/training-job"))
        assert "\nJob default/training-job\nNODE" in run("whatif", *files).out


def test_a_gang_that_exists_is_shown_by_its_job(proxy: PodProxy, run: Run) -> None:
    there = prediction("Fits", source="PodGroup team/train-5d9c7", owner="job/train")
    answer(proxy, "whatif", there)
    proxy.answer_debug("serried-0:8912", "lookup/team/job/train", [{"namespace": "team", "name": "train-5d9c7"}])
    assert "\nteam/job/train  " in run("whatif", "--group", "job/train").out


@pytest.mark.parametrize(
    ("flags", "namespace"),
    [pytest.param((), "team", id="the context's"), pytest.param(("-n", "other"), "other", id="the one that is said")],
)
def test_manifests_without_a_namespace_go_where_kubectl_puts_them(
    proxy: PodProxy, run: Run, job: str, flags: tuple[str, ...], namespace: str
) -> None:
    answer(proxy, "whatif", prediction("Fits"))
    run("whatif", job, *flags)
    assert proxy.asked[-1].endswith(f"whatif?namespace={namespace}")


def test_changes_go_with_the_question(proxy: PodProxy, run: Run, job: str) -> None:
    answer(proxy, "whatif", prediction("Fits"), displaced=3)
    group = {"namespace": "team", "name": "other-5d9c7", "kind": "PodGroup"}
    proxy.answer_debug("serried-0:8912", "lookup/team/job/other", [group])
    ended = run("whatif", job, "--drain", "n1", "--drain", "n2", "--add", "4*n3", "--remove", "job/other")
    assert "3 pods of the drained nodes would need another node" in ended.out
    assert "drain=n1&drain=n2&add=4*n3&remove=team/other-5d9c7" in proxy.asked[-1].replace("%2A", "*")


@pytest.mark.parametrize("name", ["train", "job/train", "team/job:train", "team/train"])
def test_a_gang_that_exists_is_named_as_people_name_it(proxy: PodProxy, run: Run, name: str) -> None:
    answer(proxy, "whatif", prediction("Fits", source="PodGroup team/train-5d9c7"))
    group = {"namespace": "team", "name": "train-5d9c7", "kind": "PodGroup"}
    proxy.answer_debug("serried-0:8912", "lookup/team/job/train", [group])
    assert run("whatif", "--group", name).code == 0
    assert proxy.asked[-1].endswith("whatif?namespace=team&group=team/train-5d9c7")


def test_manifests_may_come_from_another_command(proxy: PodProxy, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(JOB))
    answer(proxy, "whatif", prediction("Fits"))
    assert run("whatif", "-").code == 0


@pytest.mark.parametrize(
    ("text", "read"),
    [
        pytest.param("data: {8080: a}", {"data": {"8080": "a"}}, id="a number as a key"),
        pytest.param("data: {on: a}", {"data": {"on": "a"}}, id="a truth value as a key"),
        pytest.param("d: 2024-13-45", {"d": "2024-13-45"}, id="what looks like a day and is none"),
        pytest.param("d: 2024-01-05", {"d": "2024-01-05"}, id="a day"),
        pytest.param("a: &a {x: 1}\nb: {<<: *a}", {"a": {"x": 1}, "b": {"x": 1}}, id="anchors are written out"),
    ],
)
def test_yaml_is_read_as_by_kubernetes(
    proxy: PodProxy, run: Run, tmp_path: Path, text: str, read: dict[str, Any]
) -> None:
    (tmp_path / "job.yaml").write_text(text)
    answer(proxy, "whatif", prediction("Fits"))
    assert run("whatif", str(tmp_path / "job.yaml")).code == 0
    assert json.loads(proxy.bodies[-1]) == [read]


def test_what_the_extender_objects_to_is_told(proxy: PodProxy, run: Run, job: str) -> None:
    proxy.answer_debug("serried-0:8912", "whatif", {"detail": "there is no node n9; see /debug/nodes"}, status=400)
    ended = run("whatif", job, "--drain", "n9")
    assert (ended.code, ended.out) == (2, "")
    assert "there is no node n9; see /debug/nodes" in ended.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param([], "name a file with manifests, or a gang that exists", id="nothing is asked"),
        pytest.param(["nowhere.yaml"], "nowhere.yaml: No such file or directory", id="no such file"),
    ],
)
def test_what_cannot_be_asked_is_told(run: Run, arguments: list[str], said: str) -> None:
    ended = run("whatif", *arguments)
    assert ended.code == 2
    assert said in ended.err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param(b"a: [", "it is not YAML: line 2", id="a list without end"),
        pytest.param(b"? [a]\n: b", "a key of a map is no text", id="a list as a key"),
        pytest.param(b"a: 0x_", "it is not YAML: invalid literal", id="what looks like a number and is none"),
        pytest.param(b"a: \xff", "codec can't decode byte 0xff", id="bytes that are no text"),
        pytest.param(b"a: 99999999999999999999999", "cannot be written as JSON", id="a number that is too long"),
    ],
)
def test_a_file_that_cannot_be_read_is_told(run: Run, tmp_path: Path, text: bytes, said: str) -> None:
    (tmp_path / "bad.yaml").write_bytes(text)
    ended = run("whatif", str(tmp_path / "bad.yaml"))
    assert ended.code == 2
    assert said in ended.err
