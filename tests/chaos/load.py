"""A steady load: keeps so many gangs alive, replaces members that are lost, and removes what has ended.

It stands for the users and controllers of a cluster, so no outage of the API server ends it: what fails is tried again
at the next turn.
"""

import threading
from collections import Counter
from random import Random
from typing import Any

from bench.cluster import Cluster
from bench.cluster.api import ApiError
from tests.chaos.gangs import HIGH, Gang, Mix, Objects, draw_gang

NAMESPACES = 3
_TURN_SECONDS = 0.4
_NEW_AT_ONCE = 4
Raw = dict[str, Any]


class Load:
    """``alive`` gangs at a time; a thread of its own from `start` to `stop`."""

    def __init__(self, cluster: Cluster, source: Random, alive: int, mix: Mix) -> None:
        self._cluster = cluster
        self._objects = Objects(cluster.spec)
        self._source = source
        self._alive = alive
        self._mix = mix
        self._serial = 0
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._spaces = [f"chaos-{number}" for number in range(NAMESPACES)]
        self._made: set[str] = set()
        self._gangs: dict[tuple[str, str], Gang] = {}
        self._doomed: dict[tuple[str, str], str] = {}
        """The gangs that are being removed, with the outcome each counts as. It does not change while the pods go."""

        self.standing = [Gang("plain", self._spaces[0], "never-fits", 30, 30, 8000, 0)]
        """The gangs that wait from the first moment to the last one."""

        self.counted: Counter[str] = Counter()
        """Gangs that were submitted, have completed, were deleted by a fault; members that were replaced."""

        self.pods: list[Raw] = []
        """The pods of the last turn."""

    def start(self) -> None:
        """Make what all gangs need, and begin."""
        post = self._cluster.api.post
        post("/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": HIGH}, "value": 1000})
        self._thread.start()

    def finish(self) -> None:
        """Submit nothing new."""
        self._alive = 0

    def renew_standing(self) -> None:
        """Make a member of each gang that waits for ever anew: so what is said of the gang is as of now."""
        for gang in self.standing:
            name, _ = gang.members[0]
            self._delete(f"/api/v1/namespaces/{gang.namespace}/pods/{name}")

    def stop(self) -> None:
        """End."""
        self._ended.set()
        self._thread.join()

    @property
    def unfinished(self) -> list[str]:
        """The gangs that have not completed."""
        with self._lock:
            return sorted(f"{namespace}/{name}" for namespace, name in self._gangs)

    def list_gangs(self) -> list[Gang]:
        """Return the gangs that are alive."""
        with self._lock:
            return list(self._gangs.values())

    def doom(self, gang: Gang) -> None:
        """Mark a gang as deleted by somebody, so that nothing of it is made again."""
        with self._lock:
            self._doomed[gang.namespace, gang.name] = "deleted"

    def lose_namespace(self, space: str) -> None:
        """Forget a namespace that was deleted with all its objects, and use a new one in its place."""
        with self._lock:
            lost = [name for name in self._gangs if name[0] == space]
            for name in lost:
                del self._gangs[name]
                self._doomed.pop(name, None)
            self.counted["deleted"] += len(lost)
            self._serial += 1
            self._spaces[self._spaces.index(space)] = f"{space.rpartition('-')[0]}-{self._serial}"

    @property
    def spare(self) -> list[str]:
        """The namespaces that may be deleted."""
        with self._lock:
            return self._spaces[1:]

    def _run(self) -> None:
        while not self._ended.wait(_TURN_SECONDS):
            try:
                self._turn()
            except (ApiError, OSError, ValueError):
                self.counted["turns in vain"] += 1

    def _turn(self) -> None:
        self.pods = self._cluster.api.get("/api/v1/pods")["items"]
        jobs = {_name(each): each for each in self._cluster.api.get("/apis/batch/v1/jobs")["items"]}
        pods = {_name(each): each for each in self.pods}
        with self._lock:
            self._submit()
            gangs = list(self._gangs.items())
            spaces = set(self._spaces) - self._made
        for space in spaces:
            self._create("/api/v1/namespaces", {"metadata": {"name": space}})
            self._made.add(space)
        self._replace_refused()
        for gang in self.standing:
            self._make(gang, pods)
        for name, gang in gangs:
            if name not in self._doomed and self._is_over(gang, pods, jobs):
                self._doomed[name] = "completed"
            if name in self._doomed:
                self._remove(gang, pods, self._doomed[name])
            elif gang.kind != "job" or name not in jobs:
                self._make(gang, pods)

    def _submit(self) -> None:
        for _ in range(min(_NEW_AT_ONCE, self._alive - len(self._gangs))):
            self._serial += 1
            gang = draw_gang(self._mix, self._source, self._serial, self._source.choice(self._spaces))
            self._gangs[gang.namespace, gang.name] = gang
            self.counted["submitted"] += 1
            self.counted[f"submitted: {gang.kind}"] += 1

    def _replace_refused(self) -> None:
        """Replace pods that their kubelet has refused, as their maker would. A Job's controller does so by itself."""
        for pod in self.pods:
            if pod["status"].get("phase") == "Failed" and "ownerReferences" not in pod["metadata"]:
                self.counted["refused pods replaced"] += 1
                self._delete("/api/v1/namespaces/{}/pods/{}".format(*_name(pod)))

    def _is_over(self, gang: Gang, pods: dict[tuple[str, str], Raw], jobs: dict[tuple[str, str], Raw]) -> bool:
        if gang.kind == "job":
            job = jobs.get((gang.namespace, gang.name), {})
            conditions = job.get("status", {}).get("conditions") or ()
            return any(each["type"] in {"Complete", "Failed"} and each["status"] == "True" for each in conditions)
        phases = [pods.get((gang.namespace, name), {}).get("status", {}).get("phase") for name, _ in gang.members]
        return all(phase == "Succeeded" for phase in phases)

    def _make(self, gang: Gang, pods: dict[tuple[str, str], Raw]) -> None:
        """Create what is missing of it."""
        missing = [each for each in gang.members if (gang.namespace, each[0]) not in pods]
        if gang.kind != "job" and not missing:
            return
        for path, body in self._objects.list_leading(gang):
            self._create(path, body)
        if missing and len(missing) < len(gang.members):
            self.counted["members replaced"] += len(missing)
        for name, group in missing:
            self._create(f"/api/v1/namespaces/{gang.namespace}/pods", self._objects.make_member(gang, name, group))

    def _remove(self, gang: Gang, pods: dict[tuple[str, str], Raw], how: str) -> None:
        for name, _ in gang.members:
            if (gang.namespace, name) in pods:
                self._delete(f"/api/v1/namespaces/{gang.namespace}/pods/{name}")
        for path, body in self._objects.list_leading(gang):
            self._delete(f"{path}/{body['metadata']['name']}")
        with self._lock:
            if self._gangs.pop((gang.namespace, gang.name), None) is not None:
                self.counted[how] += 1
                self.counted[f"{how}: {gang.kind}"] += 1
            self._doomed.pop((gang.namespace, gang.name), None)

    def _create(self, path: str, body: Raw) -> None:
        try:
            self._cluster.api.post(path, body)
        except ApiError as error:
            # There already; or its namespace is being deleted.
            if error.status not in {403, 404, 409}:
                raise

    def _delete(self, path: str) -> None:
        self._cluster.api.delete(path, fine=(404, 409))


def _name(raw: Raw) -> tuple[str, str]:
    return raw["metadata"]["namespace"], raw["metadata"]["name"]
