"""The command ``serried``: starts the extender or the controller, or runs a command for administrators and users.

The extender and the controller start without importing the modules of the other commands, so that they spend neither
memory nor time on typer and rich. The distribution serried-cli contains the commands, but not these two processes.
"""

import sys
from collections.abc import Sequence
from importlib.util import find_spec

from serried import IMAGE, __version__

_SERVER_COMMANDS = {
    "extender": "extender.process",
    "controller": "controller.process",
    "replay": "extender.look.decide",
}
"""The commands that need modules which the distribution serried-cli lacks, each with one such module.

`explain_missing` looks for that module to learn whether the command can run.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command until it ends: that of ``argv``, or of the process's own command line if None.

    Return the exit code.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    if given and (missing := explain_missing(given[0])):
        sys.stderr.write(f"serried {given[0]}: {missing}\n")
        return 2
    match given:
        case ["extender", *flags]:
            from extender.process import main as run_extender  # noqa: PLC0415

            return run_extender(flags)
        case ["controller", *flags]:
            from controller.process import main as run_controller  # noqa: PLC0415

            return run_controller(flags)
    from cli.app import run  # noqa: PLC0415

    return run(given, "serried")


def explain_missing(command: str) -> str:
    """Return why the command cannot run in this Python environment, and where it can; "" if it can run here.

    The distribution serried-cli lacks the modules of a few commands.
    """
    needed = _SERVER_COMMANDS.get(command, "")
    room = needed.partition(".")[0]
    if not needed or (find_spec(room) and find_spec(needed)):
        return ""
    return (
        "this command needs the server's code, which serried-cli does not have: run the command in the image "
        f"{IMAGE}:{__version__}, "
        "or install the package serried"
    )
