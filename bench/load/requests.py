"""Count the writes to the API server, from its own metrics. They are the load that a pod puts on the control plane."""

import re
from collections import Counter

from serried.kube.client import ApiClient

_WRITES = frozenset({"POST", "PUT", "PATCH", "APPLY", "DELETE"})
_SAMPLE = re.compile(r"^apiserver_request_total\{(?P<labels>.*)\} (?P<value>\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


async def read_writes(client: ApiClient) -> Counter[str]:
    """Return the number of writes that the API server has answered, by verb and resource like ``POST pods/binding``."""
    return parse_writes((await client.request("GET", "/metrics")).body.decode())


def parse_writes(metrics: str) -> Counter[str]:
    """Return the number of writes by verb and resource, from the text of the API server's metrics."""
    found: Counter[str] = Counter()
    for sample in _SAMPLE.finditer(metrics):
        labels = dict(_LABEL.findall(sample["labels"]))
        if labels.get("verb") in _WRITES:
            resource = "/".join(part for part in (labels.get("resource"), labels.get("subresource")) if part)
            found[f"{labels['verb']} {resource}"] += int(float(sample["value"]))
    return found
