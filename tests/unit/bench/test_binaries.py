"""The order of the places, and the build at the end of it."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from bench.cluster import binaries, build, download, release
from bench.cluster.errors import ClusterError
from bench.cluster.progress import Report
from bench.cluster.release import Binary

NEXT = "1.38.0-beta.0"
NAMES = ("etcd", *release.KUBERNETES, *release.KWOK)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(binaries.BIN, raising=False)
    monkeypatch.delenv(release.DOWNLOADS, raising=False)
    return tmp_path


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Download and build replaced by notes of what they were asked for."""
    taken: list[str] = []

    def fetch(wanted: Mapping[Path, Binary], _report: Report) -> dict[Path, Binary]:
        taken.extend(f"download {binary.name}" for binary in wanted.values())
        return dict(wanted)

    def compile_all(wanted: Mapping[Path, Binary], _report: Report) -> None:
        taken.extend(f"build {binary.name}" for binary in wanted.values())
        for path, binary in wanted.items():
            program(path, binary.version)

    monkeypatch.setattr(download, "fetch", fetch)
    monkeypatch.setattr(build, "build", compile_all)
    return taken


def program(path: Path, version: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho Kubernetes v{version}\n")
    path.chmod(0o755)


def quiet(_text: str) -> None:
    pass


def test_a_version_is_at_hand_once_its_last_binary_is_there(home: Path, steps: list[str]) -> None:
    assert not binaries.are_at_hand("1.37.1")
    located = binaries.locate("1.37.1", quiet)

    assert binaries.are_at_hand("1.37.1")
    assert not binaries.are_at_hand("1.36.4")
    located["kwok"].unlink()
    assert not binaries.are_at_hand("1.37.1")


def test_the_scheduler_of_another_version_takes_the_place_of_the_clusters_own(home: Path, steps: list[str]) -> None:
    located = binaries.locate("1.37.1", quiet, NEXT)

    assert located["kube-scheduler"] == home / "cache/serried/kubernetes" / NEXT / "kube-scheduler"
    assert located["kubectl"] == home / "cache/serried/kubernetes/1.37.1/kubectl"
    assert set(located.paths) == set(NAMES)
    assert steps.count("build kube-scheduler") == 1


def test_a_version_is_at_hand_with_a_scheduler_of_another_one_once_that_is_there(steps: list[str]) -> None:
    binaries.locate("1.37.1", quiet)
    assert not binaries.are_at_hand("1.37.1", NEXT)

    binaries.locate("1.37.1", quiet, NEXT)

    assert binaries.are_at_hand("1.37.1", NEXT)


def test_an_empty_machine_downloads_then_builds_into_the_cache(home: Path, steps: list[str]) -> None:
    located = binaries.locate("1.37.1", quiet)

    assert located["kubectl"] == home / "cache/serried/kubernetes/1.37.1/kubectl"
    assert located["kwokctl"] == home / f"cache/serried/kwok/{release.KWOK_VERSION}/kwokctl"
    assert set(located.paths) == set(NAMES)
    assert {step for step in steps if step.startswith("build")} == {f"build {name}" for name in NAMES}
    assert steps.index("download kubectl") < steps.index("build etcd")


def test_a_full_cache_is_enough(steps: list[str]) -> None:
    binaries.locate("1.37.1", quiet)
    steps.clear()

    binaries.locate("1.37.1", quiet)

    assert steps == []


def test_kwok_is_shared_by_all_versions(steps: list[str]) -> None:
    binaries.locate("1.37.1", quiet)
    steps.clear()

    binaries.locate("1.36.4", quiet)

    assert not any("kwok" in step for step in steps)


@pytest.mark.parametrize("version", release.HELM_VERSIONS)
def test_helm_lies_beside_the_control_plane_and_is_found_once_it_is_there(
    home: Path, steps: list[str], version: str
) -> None:
    assert binaries.find_helm(version) is None
    located = binaries.locate_helm(version, quiet)

    assert located == home / "cache" / "serried" / "helm" / version / "helm"
    assert steps == ["download helm", "build helm"]
    assert binaries.find_helm(version) == located


def test_downloads_can_be_switched_off(monkeypatch: pytest.MonkeyPatch, steps: list[str]) -> None:
    monkeypatch.setenv(release.DOWNLOADS, "off")

    binaries.locate("1.37.1", quiet)

    assert steps
    assert all(step.startswith("build") for step in steps)


@pytest.mark.parametrize("layout", ["", "1.37.1"])
def test_the_users_directory_comes_first(
    home: Path, monkeypatch: pytest.MonkeyPatch, steps: list[str], layout: str
) -> None:
    for name in NAMES:
        program(home / "bin" / layout / name, "1.37.1")
    monkeypatch.setenv(binaries.BIN, str(home / "bin"))

    located = binaries.locate("1.37.1", quiet)

    assert steps == []
    assert {path.parent for path in located.paths.values()} == {home / "bin" / layout}


def test_the_users_directory_has_a_scheduler_of_another_version_below_its_name(
    home: Path, monkeypatch: pytest.MonkeyPatch, steps: list[str]
) -> None:
    for name in NAMES:
        program(home / "bin" / name, "1.37.1")
    program(home / "bin" / NEXT / "kube-scheduler", NEXT)
    monkeypatch.setenv(binaries.BIN, str(home / "bin"))

    located = binaries.locate("1.37.1", quiet, NEXT)

    assert steps == []
    assert located["kube-scheduler"] == home / "bin" / NEXT / "kube-scheduler"
    assert located["kube-apiserver"] == home / "bin" / "kube-apiserver"


def test_what_the_users_directory_lacks_comes_from_the_next_place(
    home: Path, monkeypatch: pytest.MonkeyPatch, steps: list[str]
) -> None:
    program(home / "bin/kube-apiserver", "1.37.1")
    monkeypatch.setenv(binaries.BIN, str(home / "bin"))

    located = binaries.locate("1.37.1", quiet)

    assert located["kube-apiserver"] == home / "bin/kube-apiserver"
    assert "build kube-apiserver" not in steps
    assert "build etcd" in steps


def test_another_version_in_the_users_directory_is_an_error(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(home / "bin/kube-apiserver", "1.30.0")
    monkeypatch.setenv(binaries.BIN, str(home / "bin"))

    with pytest.raises(ClusterError, match=r"says 'Kubernetes v1\.30\.0', but 1\.37\.1 was asked for"):
        binaries.locate("1.37.1", quiet)


def test_a_users_directory_that_is_none_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(binaries.BIN, "/nowhere")

    with pytest.raises(ClusterError, match="is no directory"):
        binaries.locate("1.37.1", quiet)


def test_without_go_the_message_says_what_to_install(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(home))
    monkeypatch.setenv(release.DOWNLOADS, "http://127.0.0.1:1")
    said: list[str] = []

    with pytest.raises(ClusterError, match=r"Install Go 1\.26 or newer") as caught:
        binaries.locate("1.37.1", said.append)

    assert binaries.BIN in str(caught.value)
    assert len(said) == 1


def test_a_version_without_pinned_modules_says_so(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    program(home / "path/go", "none")
    monkeypatch.setenv("PATH", str(home / "path"))
    monkeypatch.setenv(release.DOWNLOADS, "off")

    with pytest.raises(ClusterError, match=r"no go\.mod and go\.sum in .*kubernetes-1\.37\.99"):
        binaries.locate("1.37.99", quiet)


def test_a_failed_build_shows_the_end_of_gos_output(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    go = home / "path/go"
    program(go, "none")
    go.write_text("#!/bin/sh\necho undefined: everything >&2\nexit 2\n")
    monkeypatch.setenv("PATH", f"{home / 'path'}:{os.environ['PATH']}")
    monkeypatch.setenv(release.DOWNLOADS, "off")

    with pytest.raises(ClusterError, match="undefined: everything") as caught:
        binaries.locate("1.37.1", quiet)

    assert "It needs Go 1.26.0, which Go 1.26 or newer fetches by itself" in str(caught.value)

    assert [path.name for path in (home / "cache/serried/kubernetes/1.37.1").iterdir()] == [".lock"]


def test_a_control_plane_is_built_at_once_with_its_nodes(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    go, asked = home / "path/go", home / "asked"
    program(go, "none")
    go.write_text(
        f'#!/bin/sh\necho "$@" >> {asked}\nfor word; do\n'
        '  if [ "$last" = -o ]; then into=$word; fi\n  last=$word\n'
        f"done\nfor name in server {' '.join(NAMES)}; do touch $into$name; chmod +x $into$name; done\n"
    )
    monkeypatch.setenv("PATH", f"{home / 'path'}:{os.environ['PATH']}")
    monkeypatch.setenv(release.DOWNLOADS, "off")
    located = binaries.locate("1.37.1", quiet)
    assert len(asked.read_text().splitlines()) == 1
    assert all(path.is_file() for path in located.paths.values())


def test_the_build_is_readonly_and_stamped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOFLAGS", "-mod=vendor")
    _, *kubernetes = release.control_plane("1.37.1")

    command = build.command("go", kubernetes, Path("out"))

    assert "-mod=readonly" in command
    assert "-X k8s.io/component-base/version.gitVersion=v1.37.1" in command[command.index("-ldflags") + 1]
    assert "vendor" not in build.environment()["GOFLAGS"]


def test_a_pre_release_is_stamped_whole(home: Path) -> None:
    command = build.command("go", [release.kubernetes("kube-scheduler", NEXT)], home)

    stamps = command[command.index("-ldflags") + 1].split()
    assert f"k8s.io/component-base/version.gitVersion=v{NEXT}" in stamps
    assert "k8s.io/component-base/version.gitMinor=38" in stamps


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param("module m\n\ngo 1.26.0\n", "1.26.0", id="the line go"),
        pytest.param("module m\n\ngo 1.27.0\n\ntoolchain go1.27.3\n", "1.27.3", id="the line toolchain before it"),
    ],
)
def test_go_mod_says_which_go_builds_it(home: Path, lines: str, expected: str) -> None:
    (home / "go.mod").write_text(lines)
    assert release.go_version(home) == expected


def test_go_fetches_the_one_that_go_mod_names_though_the_user_forbids_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOTOOLCHAIN", "local")
    assert build.environment()["GOTOOLCHAIN"] == "auto"


@pytest.mark.parametrize("version", sorted(path.name for path in release.MODULES.iterdir()))
def test_every_module_directory_is_complete(version: str) -> None:
    assert (release.MODULES / version / "go.mod").is_file()
    assert (release.MODULES / version / "go.sum").is_file()
