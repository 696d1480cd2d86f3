"""One run: a cluster behind proxies, a load, faults in rounds, an invariant checker beside it, and what came of it."""

import json
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from bench.cluster import Cluster, Spec
from tests.chaos.checker_process import CheckerProcess
from tests.chaos.clock_faults import ClockFaults
from tests.chaos.cluster_faults import ClusterFaults
from tests.chaos.detour import count_weather, detour
from tests.chaos.gangs import MIXES
from tests.chaos.load import Load
from tests.chaos.measures import Measures
from tests.chaos.mishaps import Mishap
from tests.chaos.objects import OUR_SCHEDULER, POD_GROUP_LABEL
from tests.chaos.process_faults import ProcessFaults
from tests.chaos.storm import CLOCKS, RESTARTED, Ambush, Plan, Storm
from tests.chaos.writes import Writes

CANARY = ("default", "canary")
"""A gang that is bound in part by hand: a checker that does not tell of it is blind."""

_TIDY_SECONDS = 90.0
"""The time after which the groups of the last gangs must be gone, too."""

_PAUSE_SECONDS = 125.0
"""The time for which something that has just ended may be felt before writing is forbidden.

The message about the gang that never fits may have been written just before: its Event is written again after 60 s.
"""

_CANARY_SECONDS = 20.0


def make_spec(name: str, api: str = "native", shape: str = "asked") -> Spec:
    """12 nodes of 8 CPU in 4 racks.

    In the ``shape`` ``isolated`` kube-scheduler asks the extender about members alone, not about plain pods.
    """
    gates = ("GenericWorkload=true", "TopologyAwareWorkloadScheduling=true", "CompositePodGroup=true")
    return Spec(
        name=name,
        nodes=12,
        racks=4,
        node_cpu="8",
        api="native" if api == "native" else "fallback",
        hold="filter",
        isolated=shape == "isolated",
        server_gates=gates if api == "native" else (),
        serried_args=("--barrier-idle", "8", "--repair-seconds", "20"),
    )


class Soak:
    """A run on a cluster that is up. ``directory`` is for the checker's files, ``say`` hears how it goes."""

    def __init__(
        self,
        cluster: Cluster,
        plan: Plan,
        directory: Path,
        say: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),
    ) -> None:
        self._cluster = cluster
        self._plan = plan
        self._directory = directory
        self._say = say
        self._writes = Writes()
        self._complaints: list[str] = []
        """The faults that no rule of the checker is about."""

    def run(self) -> dict[str, Any]:
        """The whole run; its result."""
        source, cluster = Random(self._plan.seed), self._cluster
        with ExitStack() as stack:
            self._checker = CheckerProcess(cluster, self._directory)
            stack.callback(self._checker.close)
            note = self._checker.note
            self._clocks = ClockFaults(self._directory, note)
            if CLOCKS in self._plan.kinds:
                stack.enter_context(self._clocks.prepared())
            self._proxies = stack.enter_context(detour(cluster, source, note))
            for name, proxy in self._proxies.items():
                proxy.hear = partial(self._writes.take, name)
            mix, delays = MIXES[self._plan.mix], Random(self._plan.seed)
            for name in ("extender", "scheduler"):  # the processes that bind members
                self._proxies[name].linger = lambda request: mix.draw_delay(delays, request.path)
            self._processes = ProcessFaults(cluster, RESTARTED, note)
            self._load = Load(cluster, Random(source.random()), self._plan.alive, mix)
            self._faults = ClusterFaults(cluster, self._load, Random(source.random()), note)
            self._measures = Measures(cluster, self._complain)
            self._storm = Storm(
                self._plan,
                cluster,
                proxies=self._proxies,
                processes=self._processes,
                faults=self._faults,
                clocks=self._clocks,
                source=source,
                directory=self._directory,
                note=note,
                complain=self._complain,
            )
            self._load.start()
            stack.callback(self._load.stop)
            self._processes.start()
            stack.callback(self._processes.stop)
            for number in range(self._plan.rounds):
                self._run_round(number)
            self._finish()
            return self._describe(self._checker.end())

    def _run_round(self, number: int) -> None:
        self._storm.rage(number, self._sample)
        self._storm.calm_down(number, self._sample)
        self._measures.probe(number)
        kills, weather = sum(self._processes.kills.values()), sum(count_weather(self._proxies).values())
        cluster = sum(self._faults.counted.values()) + sum(self._faults.aimed.values())
        counted = self._load.counted
        self._say(
            f"[{self._measures.seconds:6.0f}s] round {number + 1} of {self._plan.rounds}: {weather} faults on the way,"
            f" {kills} kills, {cluster} in the cluster; {counted['completed']} of {counted['submitted']} gangs"
            f" completed; {len(self._checker.found) + len(self._complaints)} violations"
        )

    def _sample(self) -> None:
        self._measures.sample()
        self._proxies["extender"].sight.look(self._checker.note)

    def _complain(self, text: str) -> None:
        self._complaints.append(text)
        self._say(f"VIOLATION {text}")

    # --- the end -----------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Let the remaining gangs get their turn, without new ones. Then nothing happens, so nobody may write."""
        self._storm.end()
        self._load.finish()
        deadline = time.monotonic() + self._plan.patience
        while self._load.unfinished and time.monotonic() < deadline:
            self._sample()
            self._faults.tidy()
            time.sleep(0.5)
        for name in self._load.unfinished:
            self._complain(f"{name} was not completed within {self._plan.patience:.0f} s")
        if self._plan.rest:
            self._await_rest()
        self._load.stop()
        if self._plan.rest:
            self._rest()
        self._betray()

    def _await_rest(self) -> None:
        """Until all groups are gone but those that never fit, and these are judged by the room that there is now."""
        deadline = time.monotonic() + _TIDY_SECONDS
        while len(self._list_groups()) > len(self._load.standing) and time.monotonic() < deadline:
            time.sleep(0.5)
        self._load.renew_standing()
        time.sleep(_PAUSE_SECONDS)

    def _rest(self) -> None:
        self._measures.compare(len(self._load.standing))
        self._checker.note("rest", "")
        self._writes.begin()
        time.sleep(self._plan.rest)
        self._writes.end()
        self._checker.note("work", "")

    def _list_groups(self) -> list[dict[str, Any]]:
        """The PodGroups that are there: in the end the one that never fits."""
        path = f"/apis/{self._cluster.spec.api_version}/podgroups"
        items: list[dict[str, Any]] = self._cluster.api.get(path)["items"]
        return items

    def _betray(self) -> None:
        """Break promise 1 by hand: a run without violations says something only if this one is found."""
        namespace, name = CANARY
        version, post = self._cluster.spec.api_version, self._cluster.api.post
        spec: dict[str, Any] = {"schedulingPolicy": {"gang": {"minCount": 2}}}
        body = {"apiVersion": version, "kind": "PodGroup", "metadata": {"name": name}, "spec": spec}
        post(f"/apis/{version}/namespaces/{namespace}/podgroups", body)
        pod: dict[str, Any] = {"schedulerName": OUR_SCHEDULER, "containers": [{"name": "main", "image": "none"}]}
        metadata: dict[str, Any] = {"name": f"{name}-0"}
        if self._cluster.spec.api == "native":
            pod["schedulingGroup"] = {"podGroupName": name}
        else:
            metadata["labels"] = {POD_GROUP_LABEL: name}
        post(f"/api/v1/namespaces/{namespace}/pods", {"metadata": metadata, "spec": pod})
        target = {"apiVersion": "v1", "kind": "Node", "name": "node-00000"}
        binding = {"metadata": {"name": f"{name}-0"}, "target": target}
        post(f"/api/v1/namespaces/{namespace}/pods/{name}-0/binding", binding)
        deadline = time.monotonic() + _CANARY_SECONDS
        while not any(is_canary(each) for each in self._checker.found):
            if time.monotonic() > deadline:
                self._complain("the checker is blind: a gang that was bound in part by hand was not found")
                return
            time.sleep(0.1)

    # --- the result --------------------------------------------------------------------------------------------

    def _describe(self, checked: dict[str, Any]) -> dict[str, Any]:
        weather = count_weather(self._proxies)
        measured = self._measures.describe()
        told = [*checked.pop("violations"), *self._writes.describe()]
        found = [json.dumps(each) for each in told if not is_canary(each)]
        cluster = {kind: self._faults.counted[kind] for kind in self._faults.kinds}
        aimed = {kind: self._faults.aimed[kind] for kind in self._faults.kinds}
        return {
            "kubernetes": self._cluster.spec.kubernetes,
            "api": self._cluster.spec.api,
            "seed": self._plan.seed,
            "minutes": round(self._measures.seconds / 60, 1),
            "rounds": self._plan.rounds,
            "kinds": list(self._plan.kinds),
            "mix": self._plan.mix,
            "isolated": self._cluster.spec.isolated,
            "faults": {
                "proxy": {mishap.value: weather[mishap] for mishap in Mishap},
                "kills": {name: self._processes.kills[name] for name in RESTARTED},
                "at_writes": dict(sorted(self._storm.trapped.items())),
                "freezes": {name: self._processes.freezes[name] for name in RESTARTED},
                "own_ends": self._processes.own_ends,
                "cluster": cluster,
                "cluster_at_writes": aimed,
                "ambushes": sort_ambushes(self._storm.ambushed),
                "split_brains": self._storm.splits,
                "long_freezes": self._storm.long_freezes,
                "silences": self._storm.silences,
                "clocks": self._clocks.jumps,
            },
            "totals": {
                "proxy": sum(weather.values()),
                "kills": sum(self._processes.kills.values()),
                "freezes": sum(self._processes.freezes.values()),
                "cluster": sum(cluster.values()) + sum(aimed.values()),
                "violations": len(found) + len(self._complaints),
            },
            "gangs": {**dict(sorted(self._load.counted.items())), "unfinished": self._load.unfinished},
            "violations": found + self._complaints,
            **checked,
            **measured,
        }


def sort_ambushes(ambushed: Mapping[Ambush, int]) -> dict[str, dict[str, dict[str, int]]]:
    """Return how often each fault was done before and after each write."""
    found: dict[str, dict[str, dict[str, int]]] = {}
    for (write, moment, kind), number in sorted(ambushed.items()):
        found.setdefault(write, {"before": {}, "after": {}})[moment][kind] = number
    return found


def is_canary(violation: dict[str, Any]) -> bool:
    """Return whether a violation is the one that was made on purpose, to be found."""
    return bool(violation["rule"] == "half bound" and violation["subject"] == "/".join(CANARY))
