"""The term of this instance: whether it leads, and what it may do."""

from collections.abc import Callable


class Term:
    """One term after the other.

    ``active`` is whether this term looks at groups at all, ``obstacle`` says why it cannot plan any of them yet;
    ``adopting`` is whether it is just taking over what earlier terms have left. ``holds_lease`` is asked whether the
    term has not run out by now.
    """

    def __init__(self, holds_lease: Callable[[], bool]) -> None:
        self.holds_lease = holds_lease
        self.active = False
        self.adopting = False
        self.obstacle = ""

    def leads(self) -> bool:
        """Whether this instance may write at this moment."""
        return (self.active or self.adopting) and self.holds_lease()

    @property
    def plans(self) -> bool:
        """Whether groups are looked at, and planned."""
        return self.active and not self.obstacle

    def end(self) -> None:
        """Another instance may lead from now on."""
        self.active = False
        self.adopting = False
        self.obstacle = ""
