"""Clusters in every state of disrepair, with processes that are not theirs."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bench.cluster import Spec, cluster, components, ports, processes, state
from bench.cluster.errors import ClusterError
from bench.cluster.processes import Process
from bench.cluster.progress import silent
from bench.cluster.state import Place, Record
from bench.cluster.waiting import raise_for_dead, wait_for

SLEEP = (sys.executable, "-c", "import time; time.sleep(60)")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv(state.STATE, str(tmp_path / "state"))
    return state.place("a")


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[Process]:
    process = processes.spawn(SLEEP, tmp_path / "sleep.log", tmp_path)
    yield process
    processes.stop([process], signal.SIGKILL)


def record(**found: Process) -> Record:
    return Record(Spec(name="a"), "ready", dict.fromkeys(("apiserver", *components.PORTS), 20001), found)


def test_a_record_survives_the_disk(place: Place, sleeper: Process) -> None:
    place.write(record(extender=sleeper))

    assert place.read() == record(extender=sleeper)


def test_down_without_a_cluster_says_so() -> None:
    assert not cluster.down("a")


def test_down_ends_processes_and_removes_the_directory(place: Place, sleeper: Process) -> None:
    place.write(record(extender=sleeper))

    assert cluster.down("a")
    assert not sleeper.alive
    assert not place.directory.exists()


def test_a_process_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    deaf = (
        sys.executable,
        "-c",
        "import signal,time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(60)",
    )
    process = processes.spawn(deaf, tmp_path / "log", tmp_path)
    wait_for("its handler", lambda: (tmp_path / "log").read_text() != "", {"deaf": process}, 10)

    processes.stop([process], grace=0.2)

    assert not process.alive


@pytest.mark.parametrize("change", [{"started": 1}, {"argv": ("other",)}])
def test_down_never_signals_a_pid_that_now_is_another_process(
    place: Place, sleeper: Process, change: dict[str, object]
) -> None:
    place.write(record(extender=replace(sleeper, **change)))  # type: ignore[arg-type]

    assert cluster.down("a")
    assert sleeper.alive
    assert not place.directory.exists()


def test_down_with_dead_processes(place: Place, sleeper: Process) -> None:
    place.write(record(extender=sleeper))
    os.kill(sleeper.pid, signal.SIGKILL)

    assert cluster.down("a")
    assert not place.directory.exists()


@pytest.mark.parametrize(
    "content", ["", "{", '{"spec": {}}', '{"spec": {"name": 1}, "phase": "x", "ports": {}, "processes": {}}']
)
def test_down_with_a_broken_record(place: Place, content: str) -> None:
    place.directory.mkdir(parents=True)
    place.file.write_text(content)

    assert cluster.status()[0]["phase"] == "broken"
    assert cluster.down("a")
    assert not place.directory.exists()


def test_down_finds_components_that_only_kwokctl_has_recorded(place: Place, tmp_path: Path) -> None:
    process = processes.spawn((*SLEEP, f"--data-dir={place.kwok}/etcd"), tmp_path / "log", tmp_path)
    write_pid(place, "etcd", process.pid)

    assert cluster.down("a")
    assert not process.alive


def test_down_spares_a_stranger_behind_a_pid_file_of_kwokctl(place: Place, sleeper: Process) -> None:
    write_pid(place, "etcd", sleeper.pid)
    write_pid(place, "kube-apiserver", 0)
    (place.kwok / "pids" / "kube-scheduler.pid").write_text("not a number")

    assert cluster.down("a")
    assert sleeper.alive


def test_down_with_half_of_the_directory_gone(place: Place, sleeper: Process) -> None:
    place.write(record(etcd=sleeper))

    assert cluster.status("a")[0]["phase"] == "ready"
    assert cluster.down("a")
    assert not sleeper.alive


def write_pid(place: Place, component: str, pid: int) -> None:
    path = place.kwok / "pids" / f"{component}.pid"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(str(pid))


@pytest.mark.parametrize("name", ["../a", "", "/etc", "."])
def test_names_that_lead_elsewhere_are_refused(name: str) -> None:
    with pytest.raises(ClusterError, match="no name of a cluster"):
        cluster.down(name)


def test_up_refuses_a_name_in_use(place: Place) -> None:
    place.write(record())

    with pytest.raises(ClusterError, match="down --name a"):
        cluster.Cluster.up(Spec(name="a"))
    assert place.file.exists()


def test_open_without_a_cluster() -> None:
    with pytest.raises(ClusterError, match="no cluster a"):
        cluster.Cluster.open("a")


def test_kill_and_start_keep_the_command(place: Place, sleeper: Process) -> None:
    place.write(record(extender=sleeper))
    opened = cluster.Cluster.open("a")

    opened.kill("extender")
    assert opened.alive == {"extender": False}
    opened.start("extender")

    try:
        again = cluster.Cluster.open("a")
        assert again.alive == {"extender": True}
        assert again.pids["extender"] != sleeper.pid
        assert processes.command_line(again.pids["extender"]) == SLEEP
        with pytest.raises(ClusterError, match="no controller"):
            again.kill("controller")
    finally:
        opened.down()


def test_a_death_while_waiting_is_told_with_the_end_of_the_log(tmp_path: Path) -> None:
    command = (sys.executable, "-c", "print('out of luck', flush=True); raise SystemExit(3)")
    process = processes.spawn(command, tmp_path / "log", tmp_path)

    with pytest.raises(ClusterError, match=r"(?s)extender \(pid \d+\) died while waiting for x.*out of luck"):
        wait_for("x", lambda: False, {"extender": process}, 10)


def test_a_deadline_is_told_with_the_logs(sleeper: Process) -> None:
    with pytest.raises(ClusterError, match=r"x: not within 0 s"):
        wait_for("x", lambda: False, {"extender": sleeper}, 0)
    raise_for_dead({"extender": sleeper}, "now")


def test_start_times_are_wall_clock(sleeper: Process) -> None:
    assert abs(sleeper.started_at - time.time()) < 10


def test_a_spawned_process_outlives_its_parent_and_leads_its_own_session(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from bench.cluster.processes import spawn; "
        f"print(spawn({SLEEP!r}, Path({str(tmp_path)!r}) / 'log', Path('/')).pid)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    process = processes.adopt(int(done.stdout), tmp_path / "log")

    assert process is not None
    try:
        assert os.getsid(process.pid) == process.pid
        assert Path(f"/proc/{process.pid}/cwd").resolve() == Path("/")
    finally:
        processes.stop([process], signal.SIGKILL)


def test_ports_differ_and_avoid_what_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ports.SHARE, raising=False)  # each process of a run beside others has a share of its own
    taken = set(ports.RANGE) - set(range(20100, 20200))
    with socket.socket() as busy:
        busy.bind((ports.LOOPBACK, 0))
        assert not ports.is_free(busy.getsockname()[1])

    picked = ports.pick(("a", "b", "c"), taken)

    assert set(picked) == {"a", "b", "c"}
    assert len(set(picked.values())) == 3
    assert all(20100 <= port < 20200 for port in picked.values())


def test_no_port_left_is_an_error() -> None:
    with pytest.raises(ClusterError, match="no free port"):
        ports.pick(("a",), set(ports.RANGE))


def test_a_share_of_the_ports_is_kept_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ports.SHARE, "20100-20199")

    picked = ports.pick(("a", "b", "c"), ())

    assert all(20100 <= port < 20200 for port in picked.values())


def test_ports_of_other_clusters_count_although_nobody_listens(place: Place) -> None:
    place.write(record())

    assert state.recorded_ports(state.places()) == {20001}


def test_the_lock_is_said_once_and_released(place: Place) -> None:
    with place.lock(silent):
        pass
    with place.lock(silent):
        assert (place.root / ".a.lock").exists()


def test_serried_processes_get_their_own_credentials(tmp_path: Path) -> None:
    kubeconfigs: dict[str, Path] = {name: tmp_path / f"{name}.kubeconfig" for name in components.PROCESSES}
    listen = dict.fromkeys(components.PORTS, 20001)
    spec = Spec(name="a", hold="auto", kubernetes="1.35.4", serried_args=("--bind-timeout", "5"))

    commands = components.commands(spec, listen, kubeconfigs, tmp_path / "kube-scheduler", tmp_path / "config.yaml")

    assert commands["extender"][:3] == [sys.executable, "-m", "extender"]
    assert commands["extender"][-2:] == ["--bind-timeout", "5"]
    # Without MutatingAdmissionPolicy there is no gate to choose.
    assert commands["extender"][commands["extender"].index("--hold") + 1] == "filter"
    assert str(kubeconfigs["controller"]) in commands["controller"]
    assert json.dumps(commands["scheduler"]).count(str(kubeconfigs["scheduler"])) == 2
