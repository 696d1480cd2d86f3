"""The term of this instance: whether it leads, and what it may do."""

from collections.abc import Callable


class Term:
    """One term after the other. ``holds_lease`` is asked whether the term has not run out by now."""

    def __init__(self, holds_lease: Callable[[], bool]) -> None:
        self.holds_lease = holds_lease

        self.active = False
        """Whether this term looks at groups at all."""

        self.recovering = False
        """Whether it is just taking over what earlier terms have left."""

        self.obstacle = ""
        """Why it cannot plan any group yet, a phrase; "" for no reason."""

    def leads(self) -> bool:
        """Whether this instance may write at this moment."""
        return (self.active or self.recovering) and self.holds_lease()

    @property
    def plans(self) -> bool:
        """Whether groups are looked at, and planned."""
        return self.active and not self.obstacle

    def end(self) -> None:
        """Another instance may lead from now on."""
        self.active = False
        self.recovering = False
        self.obstacle = ""
