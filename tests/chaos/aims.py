"""Targets of a fault (`Aim`): the gang, its members and their nodes, read from a write of the extender. Pure."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.chaos.gangs import Gang
from tests.chaos.mishaps import Request
from tests.chaos.objects import list_slots

Raw = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Aim:
    """A gang and its nodes; without a namespace anybody."""

    namespace: str = ""
    name: str = ""
    """Of the PodGroup, the record or the pod: the gang's own name, or one that begins with it."""

    nodes: tuple[str, ...] = ()
    """The nodes of the members' slots; empty if the write names none."""

    def takes(self, namespace: str, name: str) -> bool:
        """Return whether a gang of this name is meant."""
        return not self.namespace or (namespace == self.namespace and f"{self.name}-".startswith(f"{name}-"))

    def pick(self, gangs: list[Gang]) -> list[Gang]:
        """Return the gangs that are meant."""
        return [gang for gang in gangs if self.takes(gang.namespace, gang.name)]


ANYBODY = Aim()


def read_aim(request: Request) -> Aim:
    """The gang of a record, a nomination or a Binding, and the nodes that it names."""
    namespace, _, subject = request.subject.partition("/")
    name = subject.rpartition(".")[2]  # the record of what is no PodGroup: its kind comes first (`name_record`)
    try:
        body = json.loads(request.body)
    except ValueError:
        body = None
    nodes = _find_nodes(body) if isinstance(body, dict) else ()
    return Aim(namespace, name, tuple(dict.fromkeys(nodes)))


def _find_nodes(body: Raw) -> Iterator[str]:
    yield from (slot["node"] for slot in list_slots(body.get("spec") or {}))
    nominated = (body.get("status") or {}).get("nominatedNodeName")
    target = (body.get("target") or {}).get("name")
    yield from (str(node) for node in (nominated, target) if node)
