"""PersistentVolumes and their claims, as far as they decide where pods may run."""

from dataclasses import dataclass

from serried.model.group import Key
from serried.model.selectors import NodeSelectorTerm


@dataclass(frozen=True, slots=True)
class Volume:
    """A PersistentVolume."""

    name: str

    terms: tuple[NodeSelectorTerm, ...] | None = None
    """The nodes that reach it: any one term suffices; None for all nodes."""

    version: str = ""


@dataclass(frozen=True, slots=True)
class VolumeClaim:
    """A PersistentVolumeClaim."""

    key: Key

    volume: str = ""
    """The name of the volume that it is bound to, "" while there is none."""

    version: str = ""
