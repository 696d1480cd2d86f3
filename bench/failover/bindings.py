"""The API server's answers to Bindings, read from its audit log, and checks of them.

Pods do not show a second Binding: the API server rejects it, and their nodeName never changes.
"""

import http.client
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bench.cluster import audit

_RULES: tuple[dict[str, Any], ...] = (
    {"level": "Request", "verbs": ["create"], "resources": [{"group": "", "resources": ["pods/binding"]}]},
    {"level": "None"},
)


def make_binding_log_flags(directory: Path) -> tuple[str, ...]:
    """Return the API server's flags with which it logs every Binding and its answer to a file in the directory."""
    return audit.make_flags(directory, _RULES)


class Answer(NamedTuple):
    """The API server's answer to one Binding."""

    pod: str
    uid: str
    node: str
    status: int
    """The HTTP status, 0 if the log has none."""

    @property
    def accepted(self) -> bool:
        """True if the Binding bound the pod."""
        return self.status == http.client.CREATED

    @property
    def refused(self) -> bool:
        """True if the Binding had no effect. After a server error or a lost client, it may have had one."""
        return http.client.BAD_REQUEST <= self.status < http.client.INTERNAL_SERVER_ERROR


def read_answers(events: Iterable[Mapping[str, Any]], namespace: str) -> Iterator[Answer]:
    """Yield the answers to Bindings in a namespace, from events of the audit log."""
    for event in events:
        target, binding = event.get("objectRef") or {}, event.get("requestObject") or {}
        if target.get("subresource") == "binding" and target.get("namespace") == namespace:
            uid = (binding.get("metadata") or {}).get("uid", "")
            node = (binding.get("target") or {}).get("name", "")
            yield Answer(target.get("name", ""), uid, node, (event.get("responseStatus") or {}).get("code", 0))


def count_accepted(answers: Iterable[Answer]) -> Counter[str]:
    """Count the accepted Bindings of each pod, by UID."""
    return Counter(each.uid for each in answers if each.accepted)


def find_binding_defects(answers: Iterable[Answer], bound: Mapping[str, str]) -> list[str]:
    """Return a sentence for each pod that was bound twice, bound without a Binding, or planned for two nodes.

    ``bound`` has the node of each bound pod, by UID. A repeated Binding to the same node, which the API server rejects,
    is no defect: a new leader cannot know which Bindings of the old leader arrived. A rejected Binding to another node
    is one: the pod was planned twice.
    """
    found = list(answers)
    names = {each.uid: each.pod for each in found}
    accepted = count_accepted(found)
    defects = [f"pod {names[uid]} was bound by {times} Bindings" for uid, times in accepted.items() if times > 1]
    unexplained = bound.keys() - {each.uid for each in found if not each.refused}
    defects += [f"pod {names.get(uid, uid)} is bound, and the audit log has no Binding" for uid in sorted(unexplained)]
    return defects + [
        f"pod {each.pod} was on {bound[each.uid]}, and a Binding to {each.node} was refused"
        for each in found
        if each.refused and bound.get(each.uid, each.node) != each.node
    ]
