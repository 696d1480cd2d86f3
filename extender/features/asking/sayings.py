"""What an autoscaler says of a pod: its last event about it."""

from serried.api.names import Raw, read_map, read_name, read_text
from serried.api.pod import Pod
from serried.kube.client import ApiClient
from serried.kube.wire import EVENTS, Selection

_AUTOSCALERS = ("karpenter", "cluster-autoscaler")
"""How the names of the components begin that write these events."""

_MAX_LENGTH = 300


async def find_saying(client: ApiClient, pod: Pod) -> str:
    """Return the last event of an autoscaler about a pod as ``reason: message``; "" if there is none.

    Raises ApiError.
    """
    selection = Selection(pod.namespace, fields=f"involvedObject.uid={pod.uid}")
    found = [each async for each in client.items(EVENTS, selection) if _is_autoscalers(each)]
    if not found:
        return ""
    last = max(found, key=_find_time)
    said = f"{read_name(last, 'reason')}: {read_text(last, 'message')}"
    return said if len(said) <= _MAX_LENGTH else f"{said[:_MAX_LENGTH]}..."


def _is_autoscalers(event: Raw) -> bool:
    component = read_name(read_map(event, "source"), "component") or read_name(event, "reportingComponent")
    return component.startswith(_AUTOSCALERS)


def _find_time(event: Raw) -> str:
    return read_text(event, "lastTimestamp") or read_text(event, "eventTime")
