"""Build the oracle, or say why it cannot be built: python -m bench.oracle."""

import sys

from bench.cluster.progress import stderr_report
from bench.oracle import OracleError, build


def main() -> int:
    """Print where the program is; return 1 without one."""
    try:
        print(build(stderr_report()))
    except OracleError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
