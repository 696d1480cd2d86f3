"""What a state machine says to a step that it does not have."""


class IllegalTransition(ValueError):
    """Something was asked for a step that its state does not allow: an error in our own code. Nothing has changed."""
