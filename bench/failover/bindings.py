"""What the API server answered to Bindings, from its audit log. Pods do not show it: their nodeName never changes."""

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


def note_bindings(directory: Path) -> tuple[str, ...]:
    """Flags of an API server that writes every Binding, and its answer, into a log in this directory."""
    return audit.make_flags(directory, _RULES)


class Answer(NamedTuple):
    """What was answered to one Binding."""

    pod: str
    uid: str
    node: str
    status: int

    @property
    def accepted(self) -> bool:
        """Whether it has bound the pod."""
        return self.status == http.client.CREATED

    @property
    def refused(self) -> bool:
        """Whether it has done nothing. A failure of the server, or a client that has gone, leaves that open."""
        return http.client.BAD_REQUEST <= self.status < http.client.INTERNAL_SERVER_ERROR


def read_answers(events: Iterable[Mapping[str, Any]], namespace: str) -> Iterator[Answer]:
    """The answers to Bindings of pods of a namespace."""
    for event in events:
        target, asked = event.get("objectRef") or {}, event.get("requestObject") or {}
        if target.get("subresource") == "binding" and target.get("namespace") == namespace:
            uid = (asked.get("metadata") or {}).get("uid", "")
            node = (asked.get("target") or {}).get("name", "")
            yield Answer(target.get("name", ""), uid, node, (event.get("responseStatus") or {}).get("code", 0))


def count_accepted(answers: Iterable[Answer]) -> Counter[str]:
    """How many Bindings of each pod were accepted, by UID."""
    return Counter(each.uid for each in answers if each.accepted)


def judge(answers: Iterable[Answer], bound: Mapping[str, str]) -> list[str]:
    """What must never be, where pods were seen ``bound`` to these nodes, by UID.

    A Binding that is sent once more and refused does no harm, if it names the same node: whoever takes over cannot know
    which of the old leader's have arrived. To name another one is to have planned the pod twice.
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
