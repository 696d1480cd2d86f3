"""Who is nominated: the members that are told their node with ``status.nominatedNodeName`` before they are tried."""

from enum import StrEnum

from serried.model.plan import Plan


class NominationPolicy(StrEnum):
    """Who is nominated: every member; those that are put aside, or that have no room to spare; nobody."""

    ALWAYS = "always"
    AUTO = "auto"
    NEVER = "never"

    def allows_any_node(self, plan: Plan) -> bool:
        """Whether the members of a plan may go without: as much room again is left if others take theirs."""
        if self is NominationPolicy.AUTO:
            return plan.spare >= len(plan.nodes)
        return self is NominationPolicy.NEVER
