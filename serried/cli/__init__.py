"""The command ``serried``: two processes, and commands for people who want to know what these do.

A process is started without the modules of the commands: neither typer nor rich takes room in it, nor time.
"""

import sys
from collections.abc import Sequence

from serried import __version__


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command until it ends; returns the exit code."""
    given = list(sys.argv[1:] if argv is None else argv)
    match given:
        case ["extender", *flags]:
            from extender.process import main as run_extender  # noqa: PLC0415

            return run_extender(flags)
        case ["controller", *flags]:
            from controller.process import main as run_controller  # noqa: PLC0415

            return run_controller(flags)
        case ["--version"]:
            sys.stdout.write(f"serried {__version__}\n")
            return 0
    from serried.cli.app import run  # noqa: PLC0415

    return run(given, "serried")
