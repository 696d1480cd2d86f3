"""Build the oracle, and print its path or the error: python -m bench.oracle."""

import sys

from bench.cluster.progress import stderr_report
from bench.oracle import OracleError, build


def main() -> int:
    """Build the program if needed and print its path. Return 1 if it cannot be built, else 0."""
    try:
        print(build(stderr_report()))
    except OracleError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
