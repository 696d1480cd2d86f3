"""Whether the quotas of a namespace have room for the pods of a manifest, all of them together.

The dry run of a pod checks one pod. Usage and scopes are those of kube-apiserver 1.37
(pkg/quota/v1/evaluator/core/pods.go); of the scope CrossNamespacePodAffinity the dry run alone is believed.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from serried.api.names import Raw, read_map, read_objects, read_text, read_texts
from serried.api.resources import PODS, is_extended, parse_cpu, parse_quantity, pod_requests

_PLAIN = frozenset({"cpu", "memory", "ephemeral-storage"})


@dataclass(frozen=True, slots=True)
class Wanted:
    """Pods that are alike."""

    pod: Raw
    """One of them, as it was admitted."""

    count: int


class Quotas:
    """The quotas of one namespace, and what is left of them after the pods that found room before."""

    def __init__(self, quotas: Iterable[Raw]) -> None:
        self._quotas = list(quotas)
        self._left = [_list_left(each) for each in self._quotas]

    def take(self, wanted: Iterable[Wanted]) -> str:
        """Take the room of some pods; a sentence about the quota that has no room for all of them, and no room then."""
        asked = list(wanted)
        needs = [_add_up(quota, asked) for quota in self._quotas]
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


def _add_up(quota: Raw, wanted: Iterable[Wanted]) -> dict[str, int]:
    """What the pods to which a quota applies use of it."""
    total: dict[str, int] = {}
    for each in wanted:
        if _applies(quota, each.pod):
            for name, amount in _measure(each.pod):
                total[name] = total.get(name, 0) + amount * each.count
    return total


def _measure(pod: Raw) -> Iterator[tuple[str, int]]:
    """What one pod uses of each resource that quotas name."""
    yield "count/pods", 1
    for name, amount in pod_requests(pod):
        if name in _PLAIN or name.startswith("hugepages-") or name == PODS:
            yield name, amount
        if name in _PLAIN or name.startswith("hugepages-") or is_extended(name):
            yield f"requests.{name}", amount
    overhead = dict(pod_requests({"spec": {"overhead": read_map(read_map(pod, "spec"), "overhead")}}))
    for name, amount in pod_requests(_turn(pod)):
        if name in _PLAIN:
            yield f"limits.{name}", amount + overhead.get(name, 0)


def _turn(pod: Raw) -> dict[str, Any]:
    """A pod whose requests are the limits of this one."""
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
