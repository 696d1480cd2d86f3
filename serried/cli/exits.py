"""How a command ends, for scripts."""

from enum import Enum


class ExitCode(Enum):
    """The exit codes of all commands, each with what it means."""

    DONE = (0, "what was asked for has been shown")
    NO = (1, "the answer is no: a mistake was found, or something does not fit")
    USAGE = (2, "the command line, or a file that it names, cannot be understood")
    UNREACHABLE = (3, "no extender, or no API server, answers")
    NOT_FOUND = (4, "there is no such object")

    def __init__(self, number: int, meaning: str) -> None:
        self.number = number
        self.meaning = meaning


class CommandError(Exception):
    """Ends the command; the message is one sentence for a person, and says what to do."""

    def __init__(self, code: ExitCode, message: str) -> None:
        super().__init__(message)
        self.code = code
