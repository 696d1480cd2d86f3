"""How a command ends, for scripts."""

from enum import Enum


class ExitCode(Enum):
    """The exit codes of all commands, each with what it means."""

    DONE = (0, "success")
    NO = (1, "the answer is no: there is a mistake, or a gang does not fit")
    USAGE = (2, "the command line, or a file in it, is invalid")
    UNREACHABLE = (3, "the extender or the API server does not answer")
    NOT_FOUND = (4, "the object does not exist")
    BROKEN = (5, "the command failed by a mistake in Serried")

    def __init__(self, number: int, meaning: str) -> None:
        self.number = number
        self.meaning = meaning


class CommandError(Exception):
    """Ends the command; the message is one sentence for a person, and says what to do."""

    def __init__(self, code: ExitCode, message: str) -> None:
        super().__init__(message)
        self.code = code
