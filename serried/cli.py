"""``serried extender`` and ``serried controller``: one image, two processes."""

import sys
from collections.abc import Sequence

from serried import __version__

_USAGE = """usage: serried {extender,controller} [--help] [FLAG ...]

  extender    answers kube-scheduler's filter, prioritize, bind and preempt calls
  controller  makes Workload and PodGroup for gang Jobs
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one process until it ends; returns the exit code. The other process's modules are not even imported."""
    command, *rest = list(sys.argv[1:] if argv is None else argv) or [""]
    if command == "extender":
        from extender.process import main as run_extender  # noqa: PLC0415

        return run_extender(rest)
    if command == "controller":
        from controller.process import main as run_controller  # noqa: PLC0415

        return run_controller(rest)
    if command in {"-h", "--help"}:
        sys.stdout.write(_USAGE)
        return 0
    if command == "--version":
        sys.stdout.write(f"serried {__version__}\n")
        return 0
    problem = f"serried: unknown command {command!r}\n" if command else ""
    sys.stderr.write(problem + _USAGE)
    return 2


if __name__ == "__main__":
    sys.exit(main())
