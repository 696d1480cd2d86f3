"""Two at once: a second scheduler that waits for no Lease, with an extender of its own that is always active."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from bench.cluster import Cluster, ports, processes
from bench.cluster.installation import REPOSITORY
from bench.cluster.waiting import answers

_READY_SECONDS = 20.0


def _replace_flag(argv: tuple[str, ...], flag: str, value: str) -> list[str]:
    found = list(argv)
    if flag in found:
        found[found.index(flag) + 1] = value
        return found
    return [f"{flag}={value}" if each.startswith(f"{flag}=") else each for each in found]


@contextmanager
def rival(cluster: Cluster, directory: Path) -> Iterator[None]:
    """Both are up for as long as the body runs, and are killed after it."""
    taken = ports.pick(("filter", "bind", "ops", "scheduler"), ())
    commands = cluster.commands
    extender = commands["extender"]
    for flag, value in (
        ("--filter-listen", f"{ports.LOOPBACK}:{taken['filter']}"),
        ("--bind-listen", f"{ports.LOOPBACK}:{taken['bind']}"),
        ("--ops-listen", f"{ports.LOOPBACK}:{taken['ops']}"),
        ("--lease", ""),
    ):
        extender = tuple(_replace_flag(extender, flag, value))
    scheduler = _make_scheduler(commands["scheduler"], directory, taken)
    started = [processes.spawn(extender, directory / "rival-extender.log", REPOSITORY)]
    try:
        deadline = time.monotonic() + _READY_SECONDS
        while not answers(f"http://{ports.LOOPBACK}:{taken['ops']}/readyz") and time.monotonic() < deadline:
            time.sleep(0.1)
        started.append(processes.spawn(scheduler, directory / "rival-scheduler.log", REPOSITORY))
        yield
    finally:
        processes.stop(started, signal.SIGKILL)


def _make_scheduler(command: tuple[str, ...], directory: Path, taken: dict[str, int]) -> list[str]:
    given = next(each.removeprefix("--config=") for each in command if each.startswith("--config="))
    config = yaml.safe_load(Path(given).read_text())
    config["leaderElection"] = {"leaderElect": False}
    for extender in config["extenders"]:
        verb = "bind" if "bindVerb" in extender else "filter"
        extender["urlPrefix"] = f"http://{ports.LOOPBACK}:{taken[verb]}"
    path = directory / "rival-scheduler.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    argv = tuple(_replace_flag(command, "--config", str(path)))
    return _replace_flag(argv, "--secure-port", str(taken["scheduler"]))
