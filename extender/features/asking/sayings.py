"""The statements of autoscalers about the members of a gang, read from their Events."""

from collections.abc import Set

from serried.api.names import Raw, read_map, read_name, read_text
from serried.kube.client import ApiClient
from serried.kube.wire import EVENTS, Selection

_AUTOSCALERS = ("karpenter", "cluster-autoscaler")
"""The components that write these events."""

_MAX_LENGTH = 300


async def find_saying(client: ApiClient, namespace: str, uids: Set[str]) -> str:
    """Return the last event of an autoscaler about one of these pods as ``reason: message``; "" if there is none.

    All of them count: Cluster Autoscaler says nothing of a member that fits on a node that exists. Raises ApiError.
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
    said = f"{read_name(last, 'reason')}: {read_text(last, 'message')}"
    return cut(said)


def cut(said: str) -> str:
    """Return a text that is short enough for the reason of a gang."""
    return said if len(said) <= _MAX_LENGTH else f"{said[:_MAX_LENGTH]}..."


def _find_time(event: Raw) -> str:
    return read_text(event, "lastTimestamp") or read_text(event, "eventTime")
