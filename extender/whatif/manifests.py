"""What a set of manifests says: groups, their pods, and the owners of which a controller would make both."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from extender.whatif.admission import make_pod, usable
from serried.cluster.store import Store
from serried.decode.compatible import decode_compatible_group
from serried.decode.fields import read_map
from serried.decode.groups import decode_composite, decode_pod_group, decode_workload
from serried.decode.identity import GANG_POLICY
from serried.decode.jobs import decode_job
from serried.decode.malformed import Malformed
from serried.decode.parents import decode_job_set, decode_leader_worker_set
from serried.model.composite import Composite
from serried.model.group import COMPATIBLE_API, GroupKey, PodGroup, Workload, composite_api_version
from serried.model.level import ApiLevel
from serried.model.parent import PARENT_APIS, Owner, Parent
from serried.model.pod import Pod

MOST_PODS = 10_000

_READ_KINDS = ("Job", "JobSet", "LeaderWorkerSet", "PodGroup", "CompositePodGroup", "Workload", "Pod")

READ = f"{', '.join(_READ_KINDS)}, and Lists of them"

_UNREAD = f"this kind is not read; send the pods that it makes, or their Job. What is read: {READ}"

_UID = "whatif:"
"""Before the UID of what does not exist; no true one has a colon."""

_OWNERS: Mapping[str, Callable[[object], Owner | Malformed]] = {
    "Job": decode_job,
    "JobSet": decode_job_set,
    "LeaderWorkerSet": decode_leader_worker_set,
}

_APIS: Mapping[str, frozenset[str]] = {
    "Pod": frozenset({"v1"}),
    "Job": frozenset({"batch/v1"}),
    **{kind.value: frozenset({api.api_version}) for kind, api in PARENT_APIS.items()},
}
"""The apiVersions that are read of kinds that are at home elsewhere; of groups the API level says them."""


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

    refused: list[str] = field(default_factory=list)
    """What cannot be answered for, a sentence each: where it stands, what is wrong, and what to do."""

    @contextmanager
    def judging(self) -> Iterator[None]:
        """What is read in here is refused, and no more, if it is wrong (ValueError)."""
        try:
            yield
        except ValueError as problem:
            self.refused.append(str(problem))

    def add(self, more: "Manifests") -> None:
        """Add the groups and members of others."""
        for key, group in more.groups.items():
            self.groups.setdefault(key, group)
        for group_key, pods in more.members.items():
            self.members.setdefault(group_key, []).extend(pods)

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
        _check_api(place, obj, store)
        match kind:
            case "Job" | "JobSet" | "LeaderWorkerSet":
                self._read_owner(place, obj)
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

    def _read_owner(self, place: str, obj: dict[str, Any]) -> None:
        owner = _OWNERS[obj["kind"]](obj)
        if isinstance(owner, Malformed) or owner.problem:
            raise ValueError(f"{place}: {owner.problem}")
        if isinstance(owner, Parent) and "scheduling" in read_map(obj, "spec"):
            raise ValueError(
                f"{place}: of spec.scheduling its own controller makes a Workload and PodGroups, and which ones is not "
                f"known here; send these with the pods, or ask for a gang with the annotation {GANG_POLICY} instead"
            )
        self.owners.append(Asked(place, obj, owner))

    def _read_pod(self, place: str, obj: dict[str, Any], store: Store) -> None:
        self.count(1)
        pod = make_pod(place, obj, obj["metadata"], store)
        if pod.group is None:
            self.single.append(pod)
        else:
            self.members.setdefault(pod.group, []).append(pod)


def _check_api(place: str, obj: Mapping[str, Any], store: Store) -> None:
    """Raise ValueError for an object of a kind or of a version that is not read. Others have a Job, too."""
    kind, api = obj["kind"], obj.get("apiVersion")
    if kind not in _READ_KINDS:
        raise ValueError(f"{place}: {_UNREAD}")
    if not api:
        return
    read = _APIS.get(kind) or _list_group_apis(kind, store.level)
    if not isinstance(api, str) or api.rpartition("/")[0] not in {each.rpartition("/")[0] for each in read}:
        raise ValueError(f"{place}, of {api}: {_UNREAD}")
    if api not in read:
        raise ValueError(f"{place}: {api} is not read here; this kind is read as {', '.join(sorted(read))}")


def _list_group_apis(kind: str, level: ApiLevel) -> frozenset[str]:
    if kind == "CompositePodGroup":
        return level.read | {level.composite_api_version, composite_api_version(level.api_version)}
    return level.read | ({COMPATIBLE_API} if kind == "PodGroup" else frozenset())


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
