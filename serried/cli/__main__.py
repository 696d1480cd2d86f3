"""``python -m serried.cli``: the command ``serried``."""

import sys

from serried.cli import main

if __name__ == "__main__":
    sys.exit(main())
