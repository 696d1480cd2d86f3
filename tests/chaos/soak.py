"""One run: a cluster behind proxies, a load, faults in rounds, an invariant checker beside it, and what came of it."""

import json
import ssl
import statistics
import subprocess
import sys
import threading
import time
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

import httpx

from bench.cluster import Cluster, Spec
from bench.cluster.api import ApiError
from bench.cluster.cluster import AnyName
from bench.cluster.components import Name
from bench.cluster.installation import REPOSITORY
from tests.chaos.checker import summarize
from tests.chaos.cluster_faults import ClusterFaults
from tests.chaos.excuses import SPLIT_BRAIN
from tests.chaos.kubelet import Kubelet
from tests.chaos.load import Load
from tests.chaos.mishaps import WRITES, Mishap, Request, Weather
from tests.chaos.proxy import Proxy, Trap
from tests.chaos.rival import rival

KINDS = ("kills", "freezes", "proxy", "cluster", "split")
"""What can be chosen; ``split`` is two schedulers and extenders that are active at once."""

RESTARTED: tuple[AnyName, ...] = ("extender", "controller", "scheduler", "kube-apiserver", "etcd")
_KILLED: tuple[AnyName, ...] = (*("extender",) * 6, *("controller",) * 4, "scheduler", "kube-apiserver", "etcd")
_PROXIED: tuple[Name, ...] = ("extender", "controller", "scheduler")
_TRAPS = (("POST", "/reservations"), ("PUT", "/reservations"), ("PATCH", "/pods/"), ("POST", "/binding"),
          ("DELETE", "/reservations"))  # fmt: skip
"""The writes between plan and bind: the record, its commit, a nomination, a Binding, the record's end."""

_TIDY_SECONDS = 90.0
"""How long it may take until the groups of the last gangs are gone, too."""

_SAMPLE_SECONDS = 5.0
_PROBES = 3


@dataclass(frozen=True, slots=True)
class Plan:
    """How long and how hard; times in seconds."""

    seed: int
    rounds: int
    kinds: tuple[str, ...] = KINDS
    storm: float = 12.0
    """How long faults come in a round."""

    quiet: float = 8.0
    """How long none come after them, once all processes are ready again."""

    alive: int = 30
    """How many gangs there are at a time: more than fit."""

    requests: float = 0.08
    changes: float = 0.12
    patience: float = 150.0
    """How long the last gangs may take once there are no more faults."""

    rest: float = 12.0


def make_spec(name: str, api: str = "native") -> Spec:
    """12 nodes of 8 CPU in 4 racks."""
    gates = ("GenericWorkload=true", "TopologyAwareWorkloadScheduling=true", "CompositePodGroup=true")
    return Spec(
        name=name,
        nodes=12,
        racks=4,
        node_cpu="8",
        api="native" if api == "native" else "fallback",
        hold="filter",
        server_gates=gates if api == "native" else (),
        serried_args=("--barrier-idle", "8", "--repair-seconds", "20"),
    )


class CheckerProcess:
    """The invariant checker, started and spoken to."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self._report = directory / "checker.json"
        command = [
            sys.executable, "-m", "tests.chaos.checker", "--server", cluster.server, "--pki", str(cluster.pki),
            "--ops", cluster.ops_url, "--api-version", cluster.spec.api_version, "--report", str(self._report),
        ]  # fmt: skip
        self._log = (directory / "checker.log").open("w")
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, cwd=REPOSITORY
        )
        self._lock = threading.Lock()
        self.violations: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def note(self, what: str, about: str) -> None:
        """Tell it what is being done."""
        assert self._process.stdin is not None
        with self._lock:
            if self._process.stdin.closed:
                return
            self._process.stdin.write(json.dumps({"note": what, "about": about}) + "\n")
            self._process.stdin.flush()

    def end(self) -> dict[str, Any]:
        """Its report."""
        assert self._process.stdin is not None
        with self._lock:
            self._process.stdin.close()
        self._process.wait(30)
        self._reader.join()
        self._log.close()
        report: dict[str, Any] = json.loads(self._report.read_text())
        return report

    def kill(self) -> None:
        """End it, if it is there still."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.violations.append(line.strip())
            print(f"VIOLATION {line.strip()}", file=sys.stderr, flush=True)


@dataclass
class Soak:
    """A run on a cluster that is up."""

    cluster: Cluster
    plan: Plan
    directory: Path
    say: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True)
    memory: list[dict[str, float]] = field(default_factory=list)
    lags: list[float] = field(default_factory=list)
    splits: int = 0
    trapped: Counter[str] = field(default_factory=Counter)

    def run(self) -> dict[str, Any]:
        """The whole run; its result."""
        source = Random(self.plan.seed)
        with ExitStack() as stack:
            self._checker = CheckerProcess(self.cluster, self.directory)
            stack.callback(self._checker.kill)
            self._proxies = {name: stack.enter_context(self._proxy(name, source)) for name in _PROXIED}
            stack.enter_context(self._rerouted())
            self._kubelet = Kubelet(self.cluster, RESTARTED, self._checker.note)
            self._load = Load(self.cluster, Random(source.random()), self.plan.alive)
            self._faults = ClusterFaults(self.cluster, self._load, Random(source.random()), self._checker.note)
            self._begun = time.monotonic()
            self._load.start()
            stack.callback(self._load.stop)
            self._kubelet.start()
            stack.callback(self._kubelet.stop)
            for number in range(self.plan.rounds):
                self._rage(source, number)
                self._calm_down()
                self._probe(number)
                self._report(number)
            unfinished = self._finish()
            self._rest()
            return self._describe(self._checker.end(), unfinished)

    def _proxy(self, name: Name, source: Random) -> Proxy:
        port = urlsplit(self.cluster.server).port
        assert port is not None
        config = json.loads(self.cluster.kubeconfigs[name].read_text())
        authority = config["clusters"][0]["cluster"]["certificate-authority-data"]
        tls = ssl.create_default_context(cadata=b64decode(authority).decode())
        token = config["users"][0]["user"]["token"]

        def tell(request: Request, _mishap: Mishap) -> None:
            # Only what a gang of its own would feel: the rest must not delay anybody for long.
            if name == "extender" and request.method in WRITES and request.subject:
                self._checker.note("tamper", request.subject)
            else:
                self._checker.note("fault", name)

        return Proxy(port, tls, Weather(Random(source.random())), tell, token)

    @contextmanager
    def _rerouted(self) -> Iterator[None]:
        """The three processes of ours speak to the API server through their proxies."""
        usual = {name: self.cluster.kubeconfigs[name].read_text() for name in _PROXIED}
        for name, text in usual.items():
            proxied = text.replace(self.cluster.server, f"http://127.0.0.1:{self._proxies[name].port}")
            self.cluster.kubeconfigs[name].write_text(proxied)
        for name in _PROXIED:
            self.cluster.restart(name)
        try:
            yield
        finally:
            for name, text in usual.items():
                self.cluster.kubeconfigs[name].write_text(text)

    # --- a round -----------------------------------------------------------------------------------------------

    def _rage(self, source: Random, number: int) -> None:
        """Faults of all kinds, one after the other, while the weather is bad."""
        end = time.monotonic() + self.plan.storm
        self._blow(self.plan.requests, self.plan.changes)
        if "split" in self.plan.kinds and number % 8 == 2:
            self._split()
        deeds = self._list_deeds(source)
        while time.monotonic() < end and deeds:
            source.choice(deeds)()
            self._faults.repair()
            self._sample()
            time.sleep(source.uniform(0.2, 1.2))

    def _list_deeds(self, source: Random) -> list[Callable[[], None]]:
        deeds: list[Callable[[], None]] = []
        if "kills" in self.plan.kinds:
            deeds += [lambda: self._kubelet.kill(source.choice(_KILLED)), lambda: self._set_trap(source)] * 2
        if "freezes" in self.plan.kinds:
            deeds.append(lambda: self._kubelet.freeze(source.choice(RESTARTED), source.uniform(0.3, 4.0)))
        if "cluster" in self.plan.kinds:
            deeds += [lambda: self._faults.do(source.choice(sorted(self._faults.kinds)))] * 3
        return deeds or [lambda: None]

    def _set_trap(self, source: Random) -> None:
        """The extender dies at its next write of some kind."""
        method, part = source.choice(_TRAPS)

        def spring() -> None:
            self.trapped[f"{method} {part.strip('/')}"] += 1
            self._kubelet.kill("extender")

        self._proxies["extender"].trap = Trap(method, part, source.random() < 0.5, spring)

    def _split(self) -> None:
        """Two are active at once, for as long as a storm."""
        self._checker.note("fall", SPLIT_BRAIN)
        try:
            with rival(self.cluster, self.directory):
                self.splits += 1
                time.sleep(self.plan.storm / 2)
        finally:
            self._checker.note("rise", SPLIT_BRAIN)

    def _calm_down(self) -> None:
        """No new faults; and a while after all is ready again."""
        self._proxies["extender"].trap = None
        self._blow(0.0, 0.0)
        self._await_repair()
        if not self._kubelet.await_well(90):
            self._checker.violations.append("a process did not become ready again")
        end = time.monotonic() + self.plan.quiet
        while time.monotonic() < end:
            self._sample()
            time.sleep(0.5)
        self._faults.tidy()

    def _await_repair(self) -> None:
        deadline = time.monotonic() + 60
        while not self._faults.repair() and time.monotonic() < deadline:
            time.sleep(0.3)

    def _blow(self, requests: float, changes: float) -> None:
        for proxy in self._proxies.values():
            proxy.weather.requests = requests if "proxy" in self.plan.kinds else 0.0
            proxy.weather.changes = changes if "proxy" in self.plan.kinds else 0.0

    def _report(self, number: int) -> None:
        kills, weather = sum(self._kubelet.kills.values()), sum(self._count_weather().values())
        counted = self._load.counted
        second = time.monotonic() - self._begun
        self.say(
            f"[{second:6.0f}s] round {number + 1} of {self.plan.rounds}: {weather} faults on the way, {kills} kills,"
            f" {sum(self._faults.counted.values())} in the cluster; {counted['completed']} of {counted['submitted']}"
            f" gangs completed; {len(self._checker.violations)} violations"
        )

    # --- the end -----------------------------------------------------------------------------------------------

    def _finish(self) -> list[str]:
        """Nothing new comes: what is there gets its turn. Those that did not."""
        self._load.finish()
        deadline = time.monotonic() + self.plan.patience
        while self._load.unfinished and time.monotonic() < deadline:
            self._sample()
            self._faults.tidy()
            time.sleep(0.5)
        return self._load.unfinished

    def _rest(self) -> None:
        """Nobody does anything, so nobody may write."""
        self._load.stop()
        deadline = time.monotonic() + _TIDY_SECONDS
        while len(self._list_groups()) > 1 and time.monotonic() < deadline:
            time.sleep(0.5)
        time.sleep(self.plan.rest / 2)
        self._checker.note("rest", "")
        time.sleep(self.plan.rest)

    def _list_groups(self) -> list[dict[str, Any]]:
        """The PodGroups that are there: in the end the one that never fits."""
        items: list[dict[str, Any]] = self.cluster.api.get(f"/apis/{self.cluster.spec.api_version}/podgroups")["items"]
        return items

    # --- what is measured --------------------------------------------------------------------------------------

    def _sample(self) -> None:
        now = time.monotonic() - self._begun
        if self.memory and now - self.memory[-1]["second"] < _SAMPLE_SECONDS:
            return
        pids = self.cluster.pids
        found = {name: read_resident_mib(pids[name]) for name in ("extender", "controller", "scheduler")}
        self.memory.append({"second": round(now, 1), **found})

    def _probe(self, number: int) -> None:
        """How long it takes until the extender knows of a new object."""
        version = self.cluster.spec.api_version
        path = f"/apis/{version}/namespaces/default/podgroups"
        for place in range(_PROBES):
            name = f"probe-{number}-{place}"
            spec = {"schedulingPolicy": {"gang": {"minCount": 2}}}
            body = {"apiVersion": version, "kind": "PodGroup", "metadata": {"name": name}, "spec": spec}
            try:
                self.cluster.api.post(path, body)
                self.lags += self._await_known(f"{self.cluster.debug_url}/groups/default/{name}?diagnosis=none")
                with self.cluster.api.session() as session:
                    session.request("DELETE", f"{path}/{name}")
            except (ApiError, OSError, httpx.HTTPError):
                return

    def _await_known(self, url: str) -> Sequence[float]:
        begun = time.monotonic()
        while time.monotonic() - begun < 20:
            if httpx.get(url).status_code == 200:
                return [time.monotonic() - begun]
            time.sleep(0.005)
        self._checker.violations.append(f"{url} is not known for 20 s")
        return []

    def _count_weather(self) -> Counter[Mishap]:
        return sum((proxy.weather.counted for proxy in self._proxies.values()), Counter())

    def _describe(self, checked: dict[str, Any], unfinished: list[str]) -> dict[str, Any]:
        weather = self._count_weather()
        kubelet, load = self._kubelet, self._load
        found = [json.dumps(each) for each in checked.pop("violations")]
        others = [line for line in self._checker.violations if not line.startswith("{")]
        late = [f"{name} was not completed within {self.plan.patience:.0f} s" for name in unfinished]
        return {
            "kubernetes": self.cluster.spec.kubernetes,
            "api": self.cluster.spec.api,
            "seed": self.plan.seed,
            "minutes": round((time.monotonic() - self._begun) / 60, 1),
            "rounds": self.plan.rounds,
            "kinds": list(self.plan.kinds),
            "faults": {
                "proxy": {mishap.value: weather[mishap] for mishap in Mishap},
                "kills": {name: kubelet.kills[name] for name in RESTARTED},
                "at_writes": dict(sorted(self.trapped.items())),
                "freezes": {name: kubelet.freezes[name] for name in RESTARTED},
                "own_ends": dict(kubelet.own_ends),
                "cluster": {kind: self._faults.counted[kind] for kind in self._faults.kinds},
                "split_brains": self.splits,
            },
            "totals": {
                "proxy": sum(weather.values()),
                "kills": sum(kubelet.kills.values()),
                "freezes": sum(kubelet.freezes.values()),
                "cluster": sum(self._faults.counted.values()),
                "violations": len(found) + len(others) + len(late),
            },
            "gangs": {**dict(sorted(load.counted.items())), "unfinished": unfinished},
            "violations": found + others + late,
            **checked,
            "watch_lag_seconds": summarize(self.lags),
            "memory_mib": list(summarize_memory(self.memory)),
        }


def summarize_memory(samples: Sequence[dict[str, float]], parts: int = 8) -> Iterator[dict[str, float]]:
    """The middle of the samples of each part of a run."""
    if not samples:
        return
    length = (samples[-1]["second"] + 1.0) / parts
    for part in range(parts):
        inside = [each for each in samples if part * length <= each["second"] < (part + 1) * length]
        if inside:
            middle = {
                name: round(statistics.median(each[name] for each in inside), 1)
                for name in samples[0]
                if name != "second"
            }
            yield {"minute": round((part + 1) * length / 60, 1), **middle}


def read_resident_mib(pid: int) -> float:
    """The resident memory of a process; 0.0 for none."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    kib = next((int(line.split()[1]) for line in lines if line.startswith("VmRSS:")), 0)
    return round(kib / 1024, 1)
