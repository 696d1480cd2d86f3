"""Whether the labels of nodes are such that a gang finds its domain."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import combinations

from serried.cli.check.findings import Area, Finding, Severity
from serried.cli.check.observed import Observed

_WIDER_KEYS = ("topology.kubernetes.io/zone", "topology.kubernetes.io/region")
_MOST_NAMES = 5

Labels = Mapping[str, Mapping[str, str]]


def check_nodes(seen: Observed) -> Iterator[Finding]:
    """Labels that are missing, and keys that do not nest."""
    if not seen.nodes:
        return
    for key in seen.keys:
        yield from _check_key(seen.nodes, key)
    labels = {key for labels in seen.nodes.values() for key in labels}
    keys = [*seen.keys, *(key for key in _WIDER_KEYS if key in labels and key not in seen.keys)]
    for one, other in combinations(keys, 2):
        if one in seen.keys or other in seen.keys:
            yield from _check_nesting(seen.nodes, one, other)


def _check_key(nodes: Labels, key: str) -> Iterator[Finding]:
    without = sorted(name for name, labels in nodes.items() if key not in labels)
    where = f"label {key}"
    if len(without) == len(nodes):
        what = "groups ask for it, and no node has it: no such gang starts"
        yield Finding(Severity.ERROR, Area.NODES, where, what, f"kubectl label nodes NODE {key}=VALUE")
    elif without:
        what = (
            f"{len(without)} of {len(nodes)} nodes lack it ({_name_some(without)}): no gang that asks for it gets them"
        )
        yield Finding(Severity.WARNING, Area.NODES, where, what, f"kubectl label nodes {without[0]} {key}=VALUE")


def _check_nesting(nodes: Labels, one: str, other: str) -> Iterator[Finding]:
    """Two keys nest if each value of the one that has more lies in one value of the other."""
    homes = defaultdict[str, set[str]](set)
    back = defaultdict[str, set[str]](set)
    for labels in nodes.values():
        if one in labels and other in labels:
            homes[labels[one]].add(labels[other])
            back[labels[other]].add(labels[one])
    narrow, wide = (one, other) if len(homes) >= len(back) else (other, one)
    found = homes if narrow == one else back
    for value, around in sorted(found.items()):
        if len(around) > 1:
            what = (
                f"{value} lies in {_name_some(sorted(around))} of {wide}: a gang that asks for one domain of {narrow} "
                "may be spread over these"
            )
            fix = f"give each domain of {narrow} a value of its own, for example with that of {wide} before it"
            yield Finding(Severity.WARNING, Area.NODES, f"label {narrow}", what, fix)
            return


def _name_some(names: list[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
