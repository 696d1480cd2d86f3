"""What a set of manifests says: groups, their pods, and the owners of which a controller would make both."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from extender.whatif.admission import make_pod, usable
from serried.cluster.store import Store
from serried.decode.compatible import decode_compatible_group
from serried.decode.groups import decode_composite, decode_pod_group, decode_workload
from serried.decode.jobs import decode_job
from serried.decode.malformed import Malformed
from serried.decode.parents import decode_job_set, decode_leader_worker_set
from serried.model.composite import Composite
from serried.model.group import GroupKey, PodGroup, Workload
from serried.model.parent import Owner
from serried.model.pod import Pod

MOST_PODS = 10_000

READ = "Job, JobSet, LeaderWorkerSet, PodGroup, CompositePodGroup, Workload, Pod, and Lists of them"

_UID = "whatif:"
"""Before the UID of what does not exist; no true one has a colon."""

_OWNERS: Mapping[str, Callable[[object], Owner | Malformed]] = {
    "Job": decode_job,
    "JobSet": decode_job_set,
    "LeaderWorkerSet": decode_leader_worker_set,
}


class Asked(NamedTuple):
    """An owner of which somebody asks."""

    place: str
    """Where its manifest stands."""

    raw: Mapping[str, Any]
    owner: Owner


@dataclass(slots=True)
class Manifests:
    """What the manifests say, so far."""

    groups: dict[GroupKey, tuple[str, PodGroup]] = field(default_factory=dict)
    """Each group, with what it comes from."""

    members: dict[GroupKey, list[Pod]] = field(default_factory=dict)
    """The pods by the group that they name, or that their owner makes."""

    single: list[Pod] = field(default_factory=list)
    """The pods of no group."""

    owners: list[Asked] = field(default_factory=list)
    workloads: list[tuple[str, Workload]] = field(default_factory=list)
    composites: list[Composite] = field(default_factory=list)
    pods: int = 0

    sources: set[tuple[str, str]] = field(default_factory=set)
    """What each object was made from: its apiVersion, then kind, namespace and name."""

    def count(self, more: int) -> None:
        """There are so many more pods. Raises ValueError if they are too many."""
        self.pods += more
        if self.pods > MOST_PODS:
            raise ValueError(f"there are more than {MOST_PODS} pods; ask for fewer at a time")

    def read(self, place: str, raw: object, namespace: str, store: Store) -> None:
        """Read one more object, which stands at ``place``. Raises ValueError: what, where, and what to do."""
        obj = _complete(place, raw, namespace)
        kind = obj["kind"]
        source = f"{kind} {obj['metadata']['namespace']}/{obj['metadata']['name']}"
        place = f"{place}, {source}"
        if (origin := (str(obj.get("apiVersion", "")), source)) in self.sources:
            raise ValueError(f"{place}: there is another one of this name; send it once, or under a name of its own")
        self.sources.add(origin)
        match kind:
            case "Job" | "JobSet" | "LeaderWorkerSet":
                owner = _OWNERS[kind](obj)
                if isinstance(owner, Malformed) or owner.problem:
                    raise ValueError(f"{place}: {owner.problem}")
                self.owners.append(Asked(place, obj, owner))
            case "Pod":
                self._read_pod(place, obj, store)
            case "PodGroup":
                compatible = str(obj.get("apiVersion", "")).startswith("scheduling.x-k8s.io/")
                group = usable(place, decode_compatible_group(obj) if compatible else decode_pod_group(obj))
                self.groups[group.key] = (source, group)
            case "CompositePodGroup":
                self.composites.append(usable(place, decode_composite(obj)))
            case "Workload":
                self.workloads.append((place, usable(place, decode_workload(obj))))
            case _:
                raise ValueError(
                    f"{place}: this kind is not read; send the pods that it makes, or their Job. What is read: {READ}"
                )

    def _read_pod(self, place: str, obj: dict[str, Any], store: Store) -> None:
        self.count(1)
        pod = make_pod(place, obj, obj["metadata"], store)
        if pod.group is None:
            self.single.append(pod)
        else:
            self.members.setdefault(pod.group, []).append(pod)


def _complete(place: str, raw: object, namespace: str) -> dict[str, Any]:
    """An object as it would be created: without what an API server has written into it."""
    if not isinstance(raw, dict) or not isinstance(raw.get("kind"), str):
        raise ValueError(f"{place} is no manifest: it has no kind")  # noqa: TRY004 - what people have sent
    metadata: Any = raw.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    name = metadata.get("name") or metadata.get("generateName")
    if not isinstance(name, str):
        raise ValueError(f"{place}, {raw['kind']}: metadata.name is missing")  # noqa: TRY004 - as above
    home = metadata.get("namespace") or namespace
    kept = {key: metadata[key] for key in ("labels", "annotations", "ownerReferences") if key in metadata}
    made = {**kept, "name": name, "namespace": home, "uid": f"{_UID}{raw['kind']}:{home}/{name}"}
    return {**{key: value for key, value in raw.items() if key != "status"}, "metadata": made}
