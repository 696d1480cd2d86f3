"""The manifests of a what-if question: YAML or JSON, one document or several, with Jobs, PodGroups, Pods and others.

A what-if question asks whether the gangs in manifests would fit in the cluster. Nothing is created.

`read_documents` and `flatten` split the text into objects. `separate_podless` leaves out objects that create no pods,
such as the Services of a chart. `Manifests.read` decodes the others. `make_pod` creates a pod as admission would.

A kind is known by its API group, too, because a Service of Knative creates pods. An object of an unknown kind might
create pods, so the answer lists it as refused, and says that not everything fits.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

import yaml

from extender.look.claims import add_ephemeral_claims
from serried.api.device import NOTHING, HypotheticalClaims
from serried.api.group import (
    Composite,
    PodGroup,
    Workload,
    decode_compatible_group,
    decode_composite,
    decode_pod_group,
    decode_workload,
)
from serried.api.job import decode_job
from serried.api.kinds import OWNER_KINDS
from serried.api.level import ApiLevel
from serried.api.names import (
    COMPATIBLE_API,
    GANG_POLICY,
    JOB,
    GroupKey,
    Malformed,
    composite_api_version,
    read_map,
    read_objects,
    read_text,
)
from serried.api.parent import Owner, Parent, decode_parent
from serried.api.pod import Pod, decode_pod
from serried.api.priority import PriorityClass, decode_priority_class
from serried.api.resolved import Named, resolve_owner
from serried.api.topology import explain_missing
from serried.api.verdict import Reason, Verdict, render
from serried.kube.wire import read_json

if TYPE_CHECKING:
    from serried.cluster.cache import Store

Decoded = TypeVar("Decoded")


def make_pod(
    place: str,
    template: Mapping[str, Any],
    metadata: Mapping[str, Any],
    store: "Store",
    coming: HypotheticalClaims,
    *,
    alike: bool = False,
) -> Pod:
    """Return the pod that a template would create, with the fields that admission sets, such as default requests.

    ``place`` says where the manifest is in the request body, for errors. ``template`` has the pod's spec, ``metadata``
    its metadata. ``coming`` are the claims of the what-if question. If ``alike`` is True, more pods are created from
    this template, so the claims that it names are used by several pods. Raises ValueError with a text for the user: the
    place, the error, and what to do.
    """
    spec = template.get("spec")
    if not isinstance(spec, dict):
        raise ValueError(f"{place}: spec is missing")  # noqa: TRY004 - what people have sent
    try:
        admitted = {**default_requests(_admit(spec, store.priority_classes)), "nodeName": ""}
    except ValueError as problem:
        raise ValueError(f"{place}: {problem}") from None
    # Claims of templates are created before kube-scheduler tries the pod.
    pod = replace(require_decoded(place, decode_pod({"metadata": metadata, "spec": admitted})), unclaimed="")
    if pod.scheduler not in store.schedulers:
        names = " or ".join(sorted(store.schedulers))
        raise ValueError(
            f"{place}: schedulerName is {pod.scheduler}, which Serried does not serve; it has to be {names}"
        )
    try:
        coming = add_ephemeral_claims(coming, pod, spec, alike=alike)
    except ValueError as problem:
        raise ValueError(f"{place}: {problem}") from None
    return store.shape_hypothetical(pod, coming)


def default_requests(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a pod's spec with the requests that an API server sets: a limit without a request becomes the request.

    It does the same as SetDefaults_Pod and defaultPodRequests of 1.37 (pkg/apis/core/v1/defaults.go).
    """
    said = dict(spec)
    for name in ("containers", "initContainers"):
        if spec.get(name) is not None:
            said[name] = [_default_container(each) for each in read_objects(spec, name)]
    containers = [*read_objects(said, "containers"), *read_objects(said, "initContainers")]
    asked = {key for each in containers for key in read_map(read_map(each, "resources"), "requests")}
    resources = read_map(spec, "resources")
    # A request of a container replaces the pod's limit as the pod's request; huge pages are the exception.
    open_ = {
        key: amount
        for key, amount in read_map(resources, "limits").items()
        if key.startswith("hugepages-") or key not in asked
    }
    if open_:
        said["resources"] = {**resources, "requests": {**open_, **read_map(resources, "requests")}}
    return said


def _default_container(container: Mapping[str, Any]) -> dict[str, Any]:
    resources = read_map(container, "resources")
    limits = read_map(resources, "limits")
    if not limits:
        return dict(container)
    return {**container, "resources": {**resources, "requests": {**limits, **read_map(resources, "requests")}}}


def require_decoded(place: str, found: Decoded | Malformed) -> Decoded:
    """Return ``found`` if it could be decoded. Otherwise raise ValueError with ``place``, and which field is wrong."""
    if isinstance(found, Malformed):
        raise ValueError(f"{place}: {found.problem}")  # noqa: TRY004 - what people have sent
    return found


def _admit(spec: Mapping[str, Any], classes: Mapping[str, PriorityClass]) -> dict[str, Any]:
    name = read_text(spec, "priorityClassName")
    default = min((each for each in classes.values() if each.is_default), key=lambda each: each.value, default=None)
    found = classes.get(name) if name else default
    if name and found is None and spec.get("priority") is None:
        raise ValueError(f"PriorityClass {name} does not exist; create it, or name another one")
    said: dict[str, Any] = {}
    if found is not None:
        said["priority"] = found.value
        if found.preemption is not None:
            said["preemptionPolicy"] = found.preemption.value
    return {**said, **{key: value for key, value in spec.items() if value is not None}}


_MAX_DEPTH = 64

_MAX_REPEATED = 1 << 16
"""The largest number of values that YAML aliases may repeat, in all documents together."""

_REPEATED = f"aliases repeat more than {_MAX_REPEATED} values; write less"

_PREFIX = "tag:yaml.org,2002:"
_AS_TEXT = ("timestamp", "binary", "value")
"""The YAML tags that JSON has no type for. Their values are read as text."""

_UNREAD_TAGS = ("set", "omap", "pairs")

_PARSER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""PyYAML's parser: the one in C if it is installed."""


class _Loader(_PARSER):  # type: ignore[misc]
    """A YAML loader that reads like Kubernetes: the keys of maps are text.

    YAML nodes are composed in Python instead of C, so that other threads can run. The values that merged maps (``<<``)
    repeat are counted and limited, because a few lines can stand for millions of values.
    """

    yaml_constructors: ClassVar[dict[str | None, Any]] = {
        **{
            tag: read
            for tag, read in yaml.SafeLoader.yaml_constructors.items()
            if tag is None or tag.removeprefix(_PREFIX) not in _UNREAD_TAGS
        },
        **{f"{_PREFIX}{name}": yaml.SafeLoader.construct_yaml_str for name in _AS_TEXT},
    }

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.anchors: dict[str, yaml.Node] = {}
        self._repeated = 0

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[str, Any]:  # noqa: FBT001, FBT002 - so it is called
        found: dict[str, Any] = {}
        merged: list[Any] = []
        for key, value in node.value:
            if key.tag == f"{_PREFIX}merge":
                each = self.construct_object(value, deep=True)
                merged += each if isinstance(each, list) else [each]
            elif isinstance(key, yaml.ScalarNode):
                found[str(key.value)] = self.construct_object(value, deep=deep)
            else:
                raise yaml.constructor.ConstructorError(None, None, "a key of a map is no text", key.start_mark)
        for each in merged:
            if not isinstance(each, dict):
                raise yaml.constructor.ConstructorError(None, None, "<< takes maps only", node.start_mark)
            self._repeated += len(each) + 1
            if self._repeated > _MAX_REPEATED:
                raise yaml.constructor.ConstructorError(None, None, _REPEATED, node.start_mark)
            for name, said in each.items():
                found.setdefault(name, said)
        return found


for _name, _method in vars(yaml.composer.Composer).items():
    if not _name.startswith("__"):
        setattr(_Loader, _name, _method)


def read_documents(text: str) -> list[Any]:
    """Return the documents of a YAML or JSON text.

    Raises ValueError, with the line if known, if it cannot be parsed. Raises ValueError also if its values are nested
    too deep, or if YAML aliases repeat too many values.
    """
    documents = _read_json(text) if text.lstrip()[:1] in ("{", "[") else None
    try:
        documents = documents or list(yaml.load_all(text, _Loader))
    except yaml.YAMLError as problem:
        raise ValueError(f"it is not YAML{_describe_place(problem)}") from None
    except ValueError as problem:
        raise ValueError(f"it is not YAML: {problem}") from None
    except RecursionError:
        raise ValueError(f"more than {_MAX_DEPTH} levels are not read") from None
    _check_size(documents)
    return documents


def _read_json(text: str) -> list[Any] | None:
    try:
        return [read_json(text)]
    except ValueError:
        return None  # the text may be YAML that begins with a bracket


def _check_size(documents: list[Any]) -> None:
    """Raise ValueError if YAML aliases repeat too many values, or if values are nested too deep."""
    seen: set[int] = set()
    repeated = 0
    level: list[Any] = [documents]
    for _ in range(_MAX_DEPTH + 1):
        for each in level:
            repeated += len(each) + 1 if id(each) in seen else 0
            seen.add(id(each))
        if repeated > _MAX_REPEATED:
            raise ValueError(_REPEATED)
        values = [value for each in level for value in (each.values() if isinstance(each, dict) else each)]
        level = [value for value in values if isinstance(value, dict | list)]
    if level:
        raise ValueError(f"more than {_MAX_DEPTH} levels are not read")


def _describe_place(problem: yaml.YAMLError) -> str:
    mark: Any = getattr(problem, "problem_mark", None)
    said = getattr(problem, "problem", "") or ""
    return f": line {mark.line + 1}: {said}" if mark is not None else ""


def flatten(documents: list[Any], where: str = "document") -> Iterator[tuple[str, Any]]:
    """Yield every object of the documents with its place in the request body, such as ``document 2, item 1``.

    A List, a JSON array, and an object with only ``manifests`` are not yielded, but their items are. ``where`` is the
    beginning of the place.
    """
    for number, document in enumerate(documents, 1):
        place = f"{where} {number}"
        items = _list_items(document)
        if items is not None:
            yield from flatten(items, f"{place}, item")
        elif document is not None:
            yield place, document


def _list_items(document: Any) -> list[Any] | None:
    if isinstance(document, list):
        return document
    if not isinstance(document, dict):
        return None
    items = document.get("manifests") if "kind" not in document else document.get("items")
    is_list = "kind" not in document or str(document["kind"]).endswith("List")
    return items if is_list and isinstance(items, list) else None


MOST_PODS = 10_000

_READ_KINDS = (*OWNER_KINDS, "PodGroup", "CompositePodGroup", "Workload", "Pod")

READ = f"{', '.join(_READ_KINDS)}, and Lists of them"

_UNREAD = (
    "Serried does not read this kind; send the pods that it makes, or their Job, as kubectl get -o yaml shows them, "
    f"with their PodGroup; or ask for a gang that exists by its name; or leave it out if it makes no pods. "
    f"Serried reads {READ}"
)

_UID = "whatif:"
"""The prefix of the UIDs of a what-if question's objects. Real UIDs have no colon, so they differ."""

_APIS: Mapping[str, frozenset[str]] = {
    "Pod": frozenset({"v1"}),
    **{row.kind: frozenset({row.api_version}) for row in OWNER_KINDS.values()},
}
"""The apiVersions that are read, by kind.

Those of PodGroups and Workloads depend on what the API server serves: `_list_group_apis`.
"""


def resolve_levels(place: str, owner: Named, store: "Store") -> Named:
    """Return an owner (such as a Job) in which names of topology levels are replaced by the label keys they stand for.

    A preferred level for which the cluster has no label is removed. Raises ValueError, with ``place``, if the cluster
    has no label for the required level, or if the labels of all levels are not known yet.
    """
    table = store.levels.table
    resolved = resolve_owner(owner, table)
    if missing := resolved.missing:
        verdict = Verdict(Reason.LEVEL_UNKNOWN, key=missing, detail=explain_missing(missing, owner.wanted, table))
        raise ValueError(f"{place}: {render(verdict)}")
    return resolved.owner


class SentOwner(NamedTuple):
    """An owner of pods in a what-if question: a Job, JobSet or LeaderWorkerSet."""

    place: str
    """The place of its manifest in the request body, for errors: ``document 2, Job default/train``."""

    raw: Mapping[str, Any]
    owner: Owner


@dataclass(slots=True)
class Manifests:
    """The decoded objects of one what-if question. They are read one by one."""

    groups: dict[GroupKey, tuple[str, PodGroup]] = field(default_factory=dict)
    """The groups by key. Each comes with its source, the kind, namespace and name of its manifest as one text."""

    members: dict[GroupKey, list[Pod]] = field(default_factory=dict)
    """The pods by the key of their group: the one that they name, or the one that their owner would get."""

    single: list[Pod] = field(default_factory=list)
    """The pods that name no group."""

    coming: HypotheticalClaims = NOTHING
    """The claims and claim templates among the objects of the what-if question."""

    owners: list[SentOwner] = field(default_factory=list)
    workloads: list[tuple[str, Workload]] = field(default_factory=list)
    composites: list[Composite] = field(default_factory=list)
    pods: int = 0

    sources: set[tuple[str, str]] = field(default_factory=set)
    """The objects read so far, to find duplicates: the apiVersion, and the kind, namespace and name as one text."""

    refused: list[str] = field(default_factory=list)
    """A sentence about each object that could not be read or planned: its place, the error, and what to do."""

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """Catch a ValueError in the ``with`` block, and add its text to ``refused``, so that other objects are read."""
        try:
            yield
        except ValueError as problem:
            self.refused.append(str(problem))

    def add(self, more: "Manifests") -> None:
        """Add the groups and members of ``more``, which holds what one owner, such as a Job, creates.

        A group that is here already stays as it is.
        """
        for key, group in more.groups.items():
            self.groups.setdefault(key, group)
        for group_key, pods in more.members.items():
            self.members.setdefault(group_key, []).extend(pods)

    def count(self, more: int) -> None:
        """Add ``more`` to the number of pods. Raises ValueError if that exceeds `MOST_PODS`."""
        self.pods += more
        if self.pods > MOST_PODS:
            raise ValueError(f"there are more than {MOST_PODS} pods; ask for fewer at a time")

    def read(self, place: str, raw: object, namespace: str, store: "Store") -> None:
        """Decode one more object, ``raw``, and add it.

        ``place`` says where it is in the request body, for errors. ``namespace`` is for objects without one. Raises
        ValueError with a text for the user: the place, the error, and what to do.
        """
        obj = _complete(place, raw, namespace)
        kind = obj["kind"]
        source = f"{kind} {obj['metadata']['namespace']}/{obj['metadata']['name']}"
        place = f"{place}, {source}"
        if (origin := (str(obj.get("apiVersion", "")), source)) in self.sources:
            raise ValueError(f"{place}: there is another one of this name; send it once, or under a name of its own")
        self.sources.add(origin)
        _check_api(place, obj, store)
        match kind:
            case _ if kind in OWNER_KINDS:
                self._read_owner(place, obj, store)
            case "Pod":
                self._read_pod(place, obj, store)
            case "PodGroup":
                compatible = str(obj.get("apiVersion", "")).startswith("scheduling.x-k8s.io/")
                group = require_decoded(place, decode_compatible_group(obj) if compatible else decode_pod_group(obj))
                _check_names(place, group.stray)
                self.groups[group.key] = (source, group)
            case "CompositePodGroup":
                self.composites.append(require_decoded(place, decode_composite(obj)))
            case "Workload":
                self.workloads.append((place, require_decoded(place, decode_workload(obj))))

    def _read_owner(self, place: str, obj: dict[str, Any], store: "Store") -> None:
        owner = decode_job(obj) if obj["kind"] == JOB else decode_parent(obj["kind"], obj)
        if isinstance(owner, Malformed) or owner.problem:
            raise ValueError(f"{place}: {owner.problem}")
        _check_names(place, owner.stray)
        if isinstance(owner, Parent) and "scheduling" in read_map(obj, "spec"):
            raise ValueError(
                f"{place}: its own controller creates a Workload and PodGroups from spec.scheduling, and Serried "
                f"does not know which; send these with the pods, or ask for a gang with the annotation "
                f"{GANG_POLICY} instead"
            )
        self.owners.append(SentOwner(place, obj, resolve_levels(place, owner, store)))

    def _read_pod(self, place: str, obj: dict[str, Any], store: "Store") -> None:
        self.count(1)
        pod = make_pod(place, obj, obj["metadata"], store, self.coming)
        if pod.group is None:
            self.single.append(pod)
        else:
            self.members.setdefault(pod.group, []).append(pod)


def _check_names(place: str, stray: str) -> None:
    """Raise ValueError if an object has an annotation or label with Serried's prefix that Serried does not know.

    ``stray`` is the phrase about it that decoding the object has returned; "" if there is none. Serried's admission
    policy rejects such objects, too.
    """
    if stray:
        raise ValueError(f"{place}: {stray}")


def _check_api(place: str, obj: Mapping[str, Any], store: "Store") -> None:
    """Raise ValueError if objects of this kind, API group or version are not read."""
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
        return level.readable_versions | {level.composite_api_version, composite_api_version(level.api_version)}
    return level.readable_versions | ({COMPATIBLE_API} if kind == "PodGroup" else frozenset())


def _complete(place: str, raw: object, namespace: str) -> dict[str, Any]:
    """Return a manifest as an object to be created: with namespace and a made-up UID, without status.

    ``generateName`` is taken as the name. Raises ValueError if it has no kind or no name.
    """
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


_CORE = (
    "ConfigMap",
    "Endpoints",
    "LimitRange",
    "Namespace",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "ResourceQuota",
    "Secret",
    "Service",
    "ServiceAccount",
)

_KINDS = {
    *(("", kind) for kind in _CORE),
    ("autoscaling", "HorizontalPodAutoscaler"),
    ("cert-manager.io", "Certificate"),
    ("cert-manager.io", "Issuer"),
    ("k8s.cni.cncf.io", "NetworkAttachmentDefinition"),
    ("monitoring.coreos.com", "PodMonitor"),
    ("monitoring.coreos.com", "PrometheusRule"),
    ("monitoring.coreos.com", "ServiceMonitor"),
    ("resource.nvidia.com", "ComputeDomain"),
    ("scheduling.k8s.io", "PriorityClass"),
}

_GROUPS = {
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "apiregistration.k8s.io",
    "coordination.k8s.io",
    "discovery.k8s.io",
    "gateway.networking.k8s.io",
    "networking.k8s.io",
    "node.k8s.io",
    "policy",
    "rbac.authorization.k8s.io",
    "resource.k8s.io",
    "storage.k8s.io",
}
"""The API groups in which no kind creates pods, so that their objects are skipped."""


def separate_priority_classes(
    objects: Iterable[tuple[str, Any]], known: Mapping[str, PriorityClass]
) -> tuple[list[tuple[str, Any]], dict[str, PriorityClass]]:
    """Separate the PriorityClasses of a what-if question from its other objects. Return the others, and the classes.

    Each object comes with its place in the request body. The separated classes are returned by name. Where another
    object names one of them, the priority is filled in, as admission does. A class whose name exists in the cluster
    (``known``) is returned with the other objects, because the value in the cluster counts.
    """
    rest: list[tuple[str, Any]] = []
    classes: dict[str, PriorityClass] = {}
    for place, raw in objects:
        is_class = isinstance(raw, dict) and raw.get("kind") == "PriorityClass" and _makes_no_pods(raw)
        found = decode_priority_class(raw) if is_class else None
        if isinstance(found, PriorityClass) and found.name not in known:
            classes[found.name] = found
        else:
            rest.append((place, raw))
    return ([(place, _resolve(raw, classes)) for place, raw in rest] if classes else rest), classes


def _resolve(value: Any, classes: Mapping[str, PriorityClass]) -> Any:
    """Return a manifest, or a part of one, with the priority filled in wherever it names one of ``classes``.

    A priority that is there already stays as it is.
    """
    if isinstance(value, list):
        return [_resolve(each, classes) for each in value]
    if not isinstance(value, dict):
        return value
    said = {name: _resolve(each, classes) for name, each in value.items()}
    named = said.get("priorityClassName")
    found = classes.get(named) if isinstance(named, str) else None
    if found is None or said.get("priority") is not None:
        return said
    policy = {} if found.preemption is None else {"preemptionPolicy": found.preemption.value}
    return {**policy, **said, "priority": found.value}


def separate_podless(objects: Iterable[tuple[str, Any]]) -> tuple[list[tuple[str, Any]], list[str]]:
    """Separate the objects that may create pods from those that create none, such as a chart's Services.

    Return the former with their places in the request body, and the latter as kind and name.
    """
    kept: list[tuple[str, Any]] = []
    skipped: list[str] = []
    for place, raw in objects:
        if _makes_no_pods(raw):
            skipped.append(f"{raw['kind']} {_find_name(raw)}".rstrip())
        else:
            kept.append((place, raw))
    return kept, skipped


def _makes_no_pods(raw: Any) -> bool:
    if not isinstance(raw, dict) or not isinstance(raw.get("kind"), str):
        return False
    version = raw.get("apiVersion")
    if not isinstance(version, str) or not version:
        return False
    group = version.rpartition("/")[0]
    return group in _GROUPS or (group, raw["kind"]) in _KINDS


def _find_name(raw: dict[str, Any]) -> str:
    metadata = raw.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    return str(metadata.get("name") or metadata.get("generateName") or "")
