"""Who is nominated: the members that are told their node with ``status.nominatedNodeName`` before they are tried."""

from enum import StrEnum

from serried.model.plan import Plan


class Stamps(StrEnum):
    """Who gets a stamp: every member; those that are asleep, or that have no room to spare; nobody."""

    ALWAYS = "always"
    AUTO = "auto"
    NEVER = "never"

    def leaves_loose(self, plan: Plan) -> bool:
        """Whether the members of a plan may go without stamps: as much room again is left if others take theirs."""
        if self is Stamps.AUTO:
            return plan.spare >= len(plan.nodes)
        return self is Stamps.NEVER
