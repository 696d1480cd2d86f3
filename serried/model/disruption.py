"""Whether the pods of a group may be disrupted one by one."""

from enum import StrEnum


class Disruption(StrEnum):
    """DisruptionMode: whether the pods of a group may be preempted one by one, or only all together."""

    SINGLE = "single"
    ALL = "all"
