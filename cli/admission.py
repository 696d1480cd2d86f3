"""Admission of the pods in manifests: a dry run shows if the API server would accept the pods, and with what changes.

`admit` is called by ``serried whatif`` before it asks the extender. In a dry run, the API server applies LimitRanges,
the overhead of RuntimeClasses, quotas and all webhooks, and creates nothing. The requests use the user's own
credentials, because the extender may not create pods.

One dry run checks one pod. Whether the quotas are large enough for all pods of the manifests together is computed here.
Usage and scopes follow kube-apiserver 1.37 (pkg/quota/v1/evaluator/core/pods.go). Quotas with the scope
CrossNamespacePodAffinity are left to the dry run.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

from cli.output import CommandError
from cli.rights import Right, has_right
from cli.target import Target, find_credentials
from cli.transport import open_client
from serried.api.job import decode_job
from serried.api.kinds import PARENTS
from serried.api.layouts import LAYOUTS
from serried.api.names import (
    Malformed,
    Raw,
    read_map,
    read_objects,
    read_text,
    read_texts,
)
from serried.api.parent import decode_parent
from serried.api.resources import PODS as COUNTED_PODS
from serried.api.resources import is_extended, parse_cpu, parse_quantity, pod_requests
from serried.kube.client import ApiClient
from serried.kube.errors import ApiError, Forbidden, Invalid, NotFound
from serried.kube.wire import EVERYTHING, PODS, Resource, write_json

Decoded = TypeVar("Decoded")

_QUOTAS = Resource("", "v1", "resourcequotas")
_CLAIM_TEMPLATES = Resource("resource.k8s.io", "v1", "resourceclaimtemplates")

_DEPENDENCY_KINDS = frozenset({"Namespace", "ServiceAccount", "RuntimeClass", "PriorityClass", "LimitRange"})
"""Kinds of objects that a pod may need and that may be in the same manifests, so that they do not exist yet.

A dry run rejects a pod whose Namespace or PriorityClass does not exist. Such a pod is reported as not checked.
"""

_ALL_REST = "defaults, LimitRanges, RuntimeClasses, quotas and admission"


_QUOTA_RESOURCES = frozenset({"cpu", "memory", "ephemeral-storage"})


@dataclass(frozen=True, slots=True)
class PodCount:
    """A number of equal pods that the manifests would create."""

    pod: Raw
    """One of the equal pods, as the API server returned it in a dry run."""

    count: int


class Quotas:
    """The ResourceQuotas of one namespace, with the amounts that are still free. Lives for one call of `admit`.

    The pods of each object in the manifests are charged, so that the next object finds only the rest.
    """

    def __init__(self, quotas: Iterable[Raw]) -> None:
        self._quotas = list(quotas)
        self._left = [_list_left(each) for each in self._quotas]

    def charge(self, wanted: Iterable[PodCount]) -> str:
        """Subtract what these pods use from all quotas and return "".

        If one quota has less left than the pods use, subtract nothing and return a sentence that names it.
        """
        asked = list(wanted)
        needs = [_sum_usage(quota, asked) for quota in self._quotas]
        for quota, left, need in zip(self._quotas, self._left, needs, strict=True):
            for name, amount in need.items():
                if name in left and amount > left[name]:
                    return _describe(quota, name, amount, left[name], sum(each.count for each in asked))
        for left, need in zip(self._left, needs, strict=True):
            for name in left.keys() & need.keys():
                left[name] -= need[name]
        return ""


def _list_left(quota: Raw) -> dict[str, int]:
    status = read_map(quota, "status")
    used = read_map(status, "used")
    return {name: _parse(name, hard) - _parse(name, used.get(name, "0")) for name, hard in _list_hard(quota)}


def _list_hard(quota: Raw) -> Iterable[tuple[str, Any]]:
    return (read_map(read_map(quota, "status"), "hard") or read_map(read_map(quota, "spec"), "hard")).items()


def _parse(name: str, quantity: object) -> int:
    return parse_cpu(str(quantity)) if _is_cpu(name) else parse_quantity(str(quantity))


def _is_cpu(name: str) -> bool:
    return name in {"cpu", "requests.cpu", "limits.cpu"}


def _sum_usage(quota: Raw, wanted: Iterable[PodCount]) -> dict[str, int]:
    """Return how much these pods use of one quota, by the quota's resource names such as ``requests.cpu``.

    Pods that do not match the quota's scopes use nothing. cpu is in millicores, all others in base units.
    """
    total: dict[str, int] = {}
    for each in wanted:
        if _applies(quota, each.pod):
            for name, amount in _list_usage(each.pod):
                total[name] = total.get(name, 0) + amount * each.count
    return total


def _list_usage(pod: Raw) -> Iterator[tuple[str, int]]:
    """Yield what one pod uses, by the resource names of quotas, such as ``count/pods`` and ``requests.cpu``.

    cpu is in millicores, all others in base units.
    """
    yield "count/pods", 1
    for name, amount in pod_requests(pod):
        if name in _QUOTA_RESOURCES or name.startswith("hugepages-") or name == COUNTED_PODS:
            yield name, amount
        if name in _QUOTA_RESOURCES or name.startswith("hugepages-") or is_extended(name):
            yield f"requests.{name}", amount
    overhead = dict(pod_requests({"spec": {"overhead": read_map(read_map(pod, "spec"), "overhead")}}))
    for name, amount in pod_requests(_copy_limits_to_requests(pod)):
        if name in _QUOTA_RESOURCES:
            yield f"limits.{name}", amount + overhead.get(name, 0)


def _copy_limits_to_requests(pod: Raw) -> dict[str, Any]:
    """Return a pod that has the limits of this pod as requests, for its containers and for the pod as a whole.

    So the function that adds up the requests of a pod's containers can add up the limits, too. All other fields, such
    as the overhead, are left out.
    """
    spec = read_map(pod, "spec")
    turned: dict[str, Any] = {"resources": {"requests": read_map(read_map(spec, "resources"), "limits")}}
    for name in ("containers", "initContainers"):
        turned[name] = [
            {**each, "resources": {"requests": read_map(read_map(each, "resources"), "limits")}}
            for each in read_objects(spec, name)
        ]
    return {"spec": turned}


def _applies(quota: Raw, pod: Raw) -> bool:
    spec = read_map(quota, "spec")
    selectors = [{"scopeName": name, "operator": "Exists"} for name in read_texts(spec, "scopes")]
    selectors += [dict(each) for each in read_objects(read_map(spec, "scopeSelector"), "matchExpressions")]
    return all(_matches(each, pod) for each in selectors)


def _matches(selector: Raw, pod: Raw) -> bool:
    spec = read_map(pod, "spec")
    best_effort = read_text(read_map(pod, "status"), "qosClass") == "BestEffort"
    terminating = spec.get("activeDeadlineSeconds") is not None
    match read_text(selector, "scopeName"):
        case "Terminating":
            return terminating
        case "NotTerminating":
            return not terminating
        case "BestEffort":
            return best_effort
        case "NotBestEffort":
            return not best_effort
        case "PriorityClass":
            return _matches_class(selector, read_text(spec, "priorityClassName"))
    return False


def _matches_class(selector: Raw, name: str) -> bool:
    values = read_texts(selector, "values")
    matches: Mapping[str, bool] = {
        "Exists": bool(name),
        "DoesNotExist": not name,
        "In": name in values,
        "NotIn": name not in values,
    }
    return matches.get(read_text(selector, "operator"), False)


def _describe(quota: Raw, name: str, amount: int, left: int, pods: int) -> str:
    where = read_text(read_map(quota, "metadata"), "name")
    whole = dict(_list_hard(quota)).get(name)
    return (
        f"quota {where} has {_show(name, left)} of {whole} {name} left, and its {pods} pods need {_show(name, amount)}"
    )


def _show(name: str, amount: int) -> str:
    return f"{amount / 1000:g}" if _is_cpu(name) else str(amount)


@dataclass(slots=True)
class Admitted:
    """The result of `admit`: the objects of the manifests after the dry run, and what was rejected or not checked."""

    objects: list[Any] = field(default_factory=list)
    """The objects in the order of the manifests, with the pod specs that admission returned.

    None stands for an object whose pods the API server would reject. The ResourceClaimTemplates that the pods name and
    that exist in the cluster follow at the end, because the extender does not watch them.
    """

    refused: list[str] = field(default_factory=list)
    """A sentence for each object whose pods the API server would reject: the object and the reason."""

    unchecked: list[str] = field(default_factory=list)
    """A sentence for each thing that the dry run could not check, with the reason.

    For instance quotas that the user may not list.
    """


async def admit(target: Target, objects: Sequence[Any], namespace: str) -> Admitted:
    """Send the pods of these objects to the API server as a dry run, and return the objects as admission changes them.

    ``namespace`` is for objects that name none. What could not be checked is listed in the result and is no error.
    """
    try:
        credentials = find_credentials(replace(target, server=""))
    except CommandError as error:
        return Admitted(list(objects), unchecked=[f"{_ALL_REST}: {error}"])
    async with open_client(credentials) as client:
        dry_run = _AdmissionDryRun(client, namespace, objects)
        for each in objects:
            await dry_run.admit_object(each)
    dry_run.admitted.objects += dry_run.claim_templates
    return dry_run.admitted


class _RejectedError(Exception):
    """The API server would reject the pods of an object, or a quota is too small for them.

    Its message is the reason.
    """


class _UncheckedError(Exception):
    """The dry run of an object's pods is not possible, for instance without the right to create pods.

    Its message is the reason.
    """


class _Template(NamedTuple):
    """A pod template in an object of the manifests.

    ``path`` leads to it in the object, for instance ``("spec", "template")``. ``pods`` is the number of its pods.
    """

    path: tuple[str | int, ...]
    pods: int

    quorum: int
    """The number of these pods that are needed for the gang to start, as minCount says; at most ``pods``."""


class _NamespaceState(NamedTuple):
    """The quotas of a namespace, and whether dry runs are possible there. Read once per namespace."""

    obstacle: str
    """The reason why the user cannot make a dry run in the namespace, "" if it is possible."""

    quotas: Quotas


class _AdmissionDryRun:
    """Admits one object of the manifests after the other, and collects the result. Lives for one call of `admit`."""

    def __init__(self, client: ApiClient, namespace: str, objects: Sequence[Any]) -> None:
        self.admitted = Admitted()
        self.claim_templates: list[Any] = []
        self._known_templates = {_identify_claim_template(each, namespace) for each in objects}
        self._client = client
        self._namespace = namespace
        self._namespaces: dict[str, _NamespaceState] = {}
        self._dependencies = [name for name in map(_find_dependency, objects) if name]
        """The names of the objects in the manifests that pods may depend on."""

    async def admit_object(self, obj: Any) -> None:
        templates = list(_list_templates(obj)) if isinstance(obj, dict) else []
        if not templates:
            self.admitted.objects.append(obj)
            return
        metadata = read_map(obj, "metadata")
        home = read_text(metadata, "namespace") or self._namespace
        source = f"{obj['kind']} {home}/{metadata.get('name') or metadata.get('generateName')}"
        try:
            obj = await self._admit_pods(obj, home, templates)
        except _RejectedError as problem:
            self.admitted.refused.append(f"{source}: {problem}")
            obj = None
        except _UncheckedError as problem:
            self._add_unchecked(str(problem))
        self.admitted.objects.append(obj)

    def _add_unchecked(self, sentence: str) -> None:
        if sentence not in self.admitted.unchecked:
            self.admitted.unchecked.append(sentence)

    async def _admit_pods(self, obj: Any, namespace: str, templates: Sequence[_Template]) -> Any:
        home = await self._read_namespace(namespace)
        if home.obstacle:
            raise _UncheckedError(home.obstacle)
        pods = []
        for template in templates:
            pod = await self._dry_run_pod(namespace, _value_at(obj, template.path))
            obj = _replace_at(obj, template.path, _merge_admitted(_value_at(obj, template.path), pod))
            pods.append(pod)
            await self._read_claim_templates(namespace, pod)
        self._charge_quotas(home.quotas, templates, pods)
        return obj

    async def _read_claim_templates(self, namespace: str, pod: Mapping[str, Any]) -> None:
        """Read the ResourceClaimTemplates that a pod names, and append them to ``claim_templates``.

        One that does not exist is skipped: the extender reports it. One that cannot be read is reported as not checked.
        """
        for claim in read_objects(read_map(pod, "spec"), "resourceClaims"):
            name = read_text(claim, "resourceClaimTemplateName")
            if not name or (namespace, name) in self._known_templates:
                continue
            self._known_templates.add((namespace, name))
            try:
                found = await self._client.get(_CLAIM_TEMPLATES, namespace, name)
            except NotFound:
                continue
            except ApiError as error:
                said = f"devices of ResourceClaimTemplate {name} in namespace {namespace}"
                self._add_unchecked(f"{said}: {error.message or error}")
                continue
            about = {"apiVersion": _CLAIM_TEMPLATES.api_version, "kind": "ResourceClaimTemplate"}
            metadata = {"name": name, "namespace": namespace}
            self.claim_templates.append({**about, "metadata": metadata, "spec": found.get("spec")})

    def _charge_quotas(self, quotas: Quotas, templates: Sequence[_Template], pods: Sequence[Mapping[str, Any]]) -> None:
        """Charge the pods of all templates to the quotas. ``pods`` has one admitted pod for each template.

        If the quotas are too small for all pods, charge only the quorum of each template and report the rest as not
        checked. Raises _RejectedError if the quotas are too small for the quorum, too.
        """
        pairs = list(zip(pods, templates, strict=True))
        problem = quotas.charge(PodCount(pod, template.pods) for pod, template in pairs)
        if problem and quotas.charge(PodCount(pod, template.quorum) for pod, template in pairs):
            raise _RejectedError(problem)
        if problem:
            self._add_unchecked(f"whether all pods can be created: {problem}; the quota suffices for minCount pods")

    async def _dry_run_pod(self, namespace: str, template: Mapping[str, Any]) -> dict[str, Any]:
        """Return the pod that the API server would create from a pod template.

        Raises _RejectedError if the API server would reject the pod. Raises _UncheckedError if the dry run is not
        possible, or if the API server's message names an object that the manifests create.
        """
        metadata = {key: value for key, value in read_map(template, "metadata").items() if key in _KEPT}
        spec = {key: value for key, value in read_map(template, "spec").items() if key != "nodeName"}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {**metadata, "generateName": "whatif-"}, "spec": spec}
        try:
            how = {"params": {"dryRun": "All"}, "body": write_json(pod)}
            return await self._client.ask_object("POST", PODS.path(namespace), **how)
        except (Forbidden, Invalid) as error:
            brought = next((name for name in self._dependencies if f'"{name}"' in error.message), "")
            if "dry run" in error.message:
                raise _UncheckedError(f"{_ALL_REST} in namespace {namespace}: {error.message}") from error
            if brought:
                said = f"{error.message}; these manifests create {brought}"
                raise _UncheckedError(f"{_ALL_REST} in namespace {namespace}: {said}") from error
            raise _RejectedError(f"the API server would reject its pods: {error.message}") from error
        except ApiError as error:
            raise _UncheckedError(f"{_ALL_REST} in namespace {namespace}: {error}") from error

    async def _read_namespace(self, namespace: str) -> _NamespaceState:
        if namespace not in self._namespaces:
            obstacle = await self._find_obstacle(namespace)
            self._namespaces[namespace] = _NamespaceState(
                obstacle, Quotas([] if obstacle else await self._list_quotas(namespace))
            )
        return self._namespaces[namespace]

    async def _find_obstacle(self, namespace: str) -> str:
        try:
            allowed = await has_right(self._client, Right("create", PODS, namespace=namespace))
        except ApiError as error:
            return f"{_ALL_REST} in namespace {namespace}: {error}"
        return (
            ""
            if allowed
            else (f"{_ALL_REST} in namespace {namespace}: this needs the right to create pods in the namespace")
        )

    async def _list_quotas(self, namespace: str) -> list[Any]:
        try:
            return [each async for each in self._client.items(_QUOTAS, replace(EVERYTHING, namespace=namespace))]
        except ApiError as error:
            self._add_unchecked(f"quotas in namespace {namespace} for more than one pod: {error.message or error}")
            return []


_KEPT = ("labels", "annotations")


def _identify_claim_template(obj: Any, namespace: str) -> tuple[str, str]:
    """Return namespace and name if the object is a ResourceClaimTemplate, else ("", "").

    ``namespace`` is for an object that names none.
    """
    metadata = obj.get("metadata") if isinstance(obj, dict) and obj.get("kind") == "ResourceClaimTemplate" else None
    if not isinstance(metadata, dict):
        return "", ""
    return str(metadata.get("namespace") or namespace), str(metadata.get("name") or "")


def _find_dependency(obj: Any) -> str:
    if not isinstance(obj, dict) or obj.get("kind") not in _DEPENDENCY_KINDS:
        return ""
    metadata = obj.get("metadata")
    return str(metadata.get("name") or "") if isinstance(metadata, dict) else ""


def _value_at(obj: Any, path: Sequence[str | int]) -> Any:
    for step in path:
        obj = obj[step]
    return obj


def _replace_at(obj: Any, path: Sequence[str | int], value: Any) -> Any:
    """Return a copy of a JSON object with ``value`` at ``path``, for instance ``("spec", "template")``."""
    if not path:
        return value
    first, *rest = path
    copy = list(obj) if isinstance(obj, list) else dict(obj)
    copy[first] = _replace_at(obj[first], rest, value)  # type: ignore[index]
    return copy


def _merge_admitted(template: Mapping[str, Any], pod: Mapping[str, Any]) -> dict[str, Any]:
    """Return the pod template with the labels, annotations and spec that admission gave to its pod."""
    admitted = read_map(pod, "metadata")
    metadata = {**read_map(template, "metadata"), **{key: admitted[key] for key in _KEPT if key in admitted}}
    return {**template, "metadata": metadata, "spec": pod.get("spec")}


# --- templates -------------------------------------------------------------------------------------------------------


def _list_templates(obj: Mapping[str, Any]) -> Iterator[_Template]:
    """Yield the pod templates of a Pod, Job or other owner of pods.

    Yield none for an object of another kind, whose pods Serried does not know, and for an object with invalid fields:
    the extender rejects it.
    """
    lister = _LISTERS.get((str(obj.get("apiVersion")), str(obj.get("kind"))))
    if lister is None:
        return
    metadata = obj.get("metadata")
    name = {"name": "whatif", **metadata} if isinstance(metadata, dict) else {}
    try:
        found = list(lister({**obj, "metadata": {**name, "uid": "whatif"}}))
        specs = [read_map(read_map({"": _value_at(obj, each.path)}, ""), "spec") for each in found]
    except (ValueError, LookupError, TypeError):
        return
    if all(specs):
        yield from found


def _list_pod(_: Mapping[str, Any]) -> Iterator[_Template]:
    yield _Template((), 1, 1)


def _list_job(obj: Mapping[str, Any]) -> Iterator[_Template]:
    job = _read(decode_job(obj))
    yield _Template(("spec", "template"), job.at_once, min(job.min_count or job.at_once, job.at_once))


def _list_parent(kind: str, obj: Mapping[str, Any]) -> Iterator[_Template]:
    _read(decode_parent(kind, obj))
    layout = LAYOUTS[kind](obj)
    pods: Counter[tuple[str | int, ...]] = Counter()  # stages may share a template
    for source in layout.sources:
        pods[source.pod_path] += layout.copies * source.stage.size
    for path, count in pods.items():
        yield _Template(path, count, count)


def _read(found: Decoded | Malformed) -> Decoded:
    if isinstance(found, Malformed):
        raise ValueError(found.problem)  # noqa: TRY004 - what people have sent
    return found


_LISTERS: Mapping[tuple[str, str], Callable[[Mapping[str, Any]], Iterator[_Template]]] = {
    ("v1", "Pod"): _list_pod,
    ("batch/v1", "Job"): _list_job,
    **{(row.api_version, row.kind): partial(_list_parent, row.kind) for row in PARENTS.values()},
}
