"""``serried replay``: decides again from files, and says how that compares."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from cli import main
from extender.look.cluster import take_capture
from extender.look.snapshot import Capture, compress, write_snapshot
from serried.api.level import NATIVE
from serried.api.names import OwnerRef
from serried.api.verdict import Reason, Verdict
from serried.ops.steps import finish
from tests.support.builders import pod, pod_group
from tests.support.commands import Ended
from tests.support.extender_harness import SCHEDULER, Harness, gang, members, small_nodes


@pytest.fixture
async def capture() -> Capture:
    """A gang g that is planned, and a gang big that waits."""
    world = Harness()
    await world.add(*small_nodes(2), gang(2), *members(2)).run_until_idle()
    world.add(pod_group("big").gang(3), *[pod(f"big-{at}").cpu(1).scheduler(SCHEDULER).in_group("big") for at in "abc"])
    await world.run_until_idle()
    taken = finish(take_capture(world.core, NATIVE, next(key for key in world.store.groups if key.name == "big")))
    await world.close()
    return taken


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    def run(*rest: str) -> Ended:
        code = main(["replay", *rest])
        said = capsys.readouterr()
        return Ended(code, said.out, said.err)

    return run


def save(path: Path, capture: Capture) -> str:
    path.write_bytes(b"".join(write_snapshot(capture)))
    return str(path)


def owned(capture: Capture) -> Capture:
    """The same, where the gang that waits is that of the Job train."""
    owner = OwnerRef("Job", "train", "u-train", controller=True)
    groups = [replace(each, owners=(owner,)) if each.key == capture.group else each for each in capture.groups]
    return replace(capture, groups=tuple(groups))


def saying(capture: Capture, verdict: Verdict) -> Capture:
    """Return the capture with another verdict for the gang that it is about."""
    memories = [replace(each, verdict=verdict) if each.group == capture.group else each for each in capture.memories]
    return replace(capture, memories=tuple(memories))


def test_the_decision_that_the_file_is_about(capture: Capture, run: Callable[..., Ended], tmp_path: Path) -> None:
    ended = run(save(tmp_path / "a.json", capture))
    assert ended.code == 0
    assert ended.out.startswith("default/big: NoCapacity: only 2 of 3 members fit into the cluster")
    assert "The decision is the recorded one." in ended.out


def test_a_plan_is_shown_node_by_node(capture: Capture, run: Callable[..., Ended], tmp_path: Path) -> None:
    ended = run(save(tmp_path / "a.json", capture), "--group", "default/g")
    assert "default/g: Planned: 2 members on 1 node" in ended.out
    assert [line.split() for line in ended.out.splitlines() if line.strip().startswith("m")] == [
        ["m0", "n1"],
        ["m1", "n1"],
    ]


@pytest.mark.parametrize(
    ("named", "groups"),
    [
        pytest.param("job/train", ["default/big"], id="a Job"),
        pytest.param("train", ["default/big"], id="the Job's name alone"),
        pytest.param("default/job:train", ["default/big"], id="a Job as decisions name it"),
        pytest.param("podgroup/big", ["default/big"], id="a PodGroup"),
        pytest.param("g", ["default/g"], id="a PodGroup's name alone"),
    ],
)
def test_a_gang_is_named_as_people_name_it(
    capture: Capture, run: Callable[..., Ended], tmp_path: Path, named: str, groups: list[str]
) -> None:
    file = save(tmp_path / "a.json", owned(capture))
    assert [each["group"] for each in json.loads(run(file, "--group", named, "-o", "json").out)] == groups


def test_a_name_that_two_namespaces_have_is_refused_with_the_choices(
    capture: Capture, run: Callable[..., Ended], tmp_path: Path
) -> None:
    twin = replace(capture.groups[0], key=capture.groups[0].key._replace(namespace="team"))
    file = save(tmp_path / "a.json", replace(capture, groups=(*capture.groups, twin)))
    name = twin.key.name
    ended = run(file, "--group", name)
    assert ended.code == 2
    assert f"use default/{name} or team/{name}" in ended.err


def test_a_file_may_be_compressed(capture: Capture, run: Callable[..., Ended], tmp_path: Path) -> None:
    (tmp_path / "a.json.gz").write_bytes(b"".join(compress(write_snapshot(capture))))
    assert run(str(tmp_path / "a.json.gz")).code == 0


def test_all_groups_of_many_files_are_a_table(capture: Capture, run: Callable[..., Ended], tmp_path: Path) -> None:
    files = [save(tmp_path / name, capture) for name in ("a.json", "b.json")]
    ended = run(*files, "--all", "-o", "json")
    found = [(Path(each["file"]).name, each["group"], each["match"]) for each in json.loads(ended.out)]
    groups = ("default/big", "default/g")
    assert found == [(name, group, "equal") for name in ("a.json", "b.json") for group in groups]
    assert run(*files, "--all").out.count("equal") == 4


@pytest.mark.parametrize(
    ("terminal", "files", "flags", "shown"),
    [
        pytest.param("1", 2, (), True, id="of several files, for a person"),
        pytest.param("1", 1, ("--all",), True, id="of all groups of one file"),
        pytest.param("1", 1, (), False, id="not of one group"),
        pytest.param("", 2, ("--all",), False, id="not for a program"),
    ],
)
def test_progress_is_shown(
    capture: Capture,
    run: Callable[..., Ended],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    terminal: str,
    files: int,
    flags: tuple[str, ...],
    shown: bool,
) -> None:
    monkeypatch.setenv("FORCE_COLOR", terminal)
    ended = run(*[save(tmp_path / f"{number}.json", capture) for number in range(files)], *flags)
    assert ended.code == 0
    assert ("Deciding again" in ended.err) is shown
    assert "Deciding again" not in ended.out


@pytest.mark.parametrize(
    ("verdict", "code", "said"),
    [
        pytest.param(
            Verdict(Reason.NO_CAPACITY, have=1, need=3),
            0,
            "had the same reason, but other numbers",
            id="other numbers",
        ),
        pytest.param(Verdict(Reason.BEHIND_HEAD), 1, "The recorded decision was another one", id="another reason"),
    ],
)
def test_another_decision_is_told_with_the_recorded_one(
    capture: Capture, run: Callable[..., Ended], tmp_path: Path, verdict: Verdict, code: int, said: str
) -> None:
    ended = run(save(tmp_path / "a.json", saying(capture, verdict)))
    assert ended.code == code
    assert said in ended.out
    assert f"Recorded: {verdict.reason}" in ended.out


def test_yaml_has_both_decisions(capture: Capture, run: Callable[..., Ended], tmp_path: Path) -> None:
    (found,) = yaml.safe_load(run(save(tmp_path / "a.json", capture), "-o", "yaml").out)
    assert found["recorded"]["text"] == found["replayed"]["text"]


def test_without_a_group_the_file_does_not_say_which(
    capture: Capture, run: Callable[..., Ended], tmp_path: Path
) -> None:
    ended = run(save(tmp_path / "a.json", replace(capture, group=None)))
    assert ended.code == 2
    assert "name one with --group, or take --all; those that waited: default/big, default/g" in ended.err


@pytest.mark.parametrize(
    ("content", "flags", "code", "said"),
    [
        pytest.param(b"", (), 2, "a.json cannot be replayed", id="an empty file"),
        pytest.param(b"{}", (), 2, "it is no snapshot: it has no version", id="any other JSON"),
        pytest.param(b'{"version": 99}', (), 2, "it has version 99 of the format", id="a later format"),
        pytest.param(b'{"version": 1}', (), 2, "snapshot.level: Field required", id="a file that lacks something"),
        pytest.param(b"\x1f\x8b", (), 2, "its end is missing", id="half a compressed file"),
        pytest.param(
            b'{"detail": "no PodGroup team/x is known"}',
            (),
            2,
            "a server's refusal instead of a snapshot: no PodGroup team/x is known; download the snapshot with curl -f",
            id="the refusal that curl wrote",
        ),
        pytest.param(b'{"kind": "Status", "message": "forbidden"}', (), 2, "snapshot: forbidden", id="API server"),
        pytest.param(b"<html>Log in</html>", (), 2, "snapshot: a page in HTML", id="a proxy's page"),
        pytest.param(None, ("--group", "a//b"), 2, "'a//b' is not the name of a group", id="a wrong form"),
        pytest.param(None, ("--group", "x"), 4, "group x is not in the snapshot", id="a name that is not there"),
        pytest.param(None, ("--group", "a/b"), 4, "group a/b is not in the snapshot", id="a group that is not there"),
    ],
)
def test_what_cannot_be_replayed_is_named(
    capture: Capture,
    run: Callable[..., Ended],
    tmp_path: Path,
    content: bytes | None,
    flags: tuple[str, ...],
    code: int,
    said: str,
) -> None:
    path = tmp_path / "a.json"
    save(path, capture)
    if content is not None:
        path.write_bytes(content)
    ended = run(str(path), *flags)
    assert (ended.code, ended.out) == (code, "")
    assert said in ended.err


def test_a_file_that_is_not_there_is_named(run: Callable[..., Ended]) -> None:
    ended = run("nowhere.json")
    assert ended.code == 2
    assert "nowhere.json: No such file or directory" in ended.err
