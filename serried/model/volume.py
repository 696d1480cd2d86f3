"""PersistentVolumes and their claims, as far as they decide where pods may run."""

from dataclasses import dataclass

from serried.model.group import Key
from serried.model.selectors import NodeSelectorTerm


@dataclass(frozen=True, slots=True)
class Volume:
    """A PersistentVolume. ``terms`` are the nodes that reach it: None for all, else any one term suffices."""

    name: str
    terms: tuple[NodeSelectorTerm, ...] | None = None
    version: str = ""


@dataclass(frozen=True, slots=True)
class VolumeClaim:
    """A PersistentVolumeClaim. ``volume`` is the one that it is bound to, "" while there is none."""

    key: Key
    volume: str = ""
    version: str = ""
