"""The messages of autoscalers about the members of a gang, read from their Events."""

from collections.abc import Set

from serried.api.names import Raw, read_map, read_name, read_text
from serried.kube.client import ApiClient
from serried.kube.wire import EVENTS, Selection

_AUTOSCALERS = ("karpenter", "cluster-autoscaler")
"""The event sources (``source.component``) that are autoscalers."""

_MAX_LENGTH = 300


async def find_last_event(client: ApiClient, namespace: str, uids: Set[str]) -> str:
    """Return the latest event of an autoscaler about one of the pods, as ``reason: message``; "" if there is none.

    ``uids`` are the pods' UIDs: all members without Serried's gate, as Cluster Autoscaler emits none about a pod that
    fits on an existing node. Raises ApiError.
    """
    found = [
        each
        for component in _AUTOSCALERS
        async for each in client.items(EVENTS, Selection(namespace, fields=f"source={component}"))
        if read_text(read_map(each, "involvedObject"), "uid") in uids
    ]
    if not found:
        return ""
    last = max(found, key=_find_time)
    text = f"{read_name(last, 'reason')}: {read_text(last, 'message')}"
    return shorten(text)


def shorten(text: str) -> str:
    """Return the text, cut to 300 characters and "..." if it is longer."""
    return text if len(text) <= _MAX_LENGTH else f"{text[:_MAX_LENGTH]}..."


def _find_time(event: Raw) -> str:
    return read_text(event, "lastTimestamp") or read_text(event, "eventTime")
