"""``python -m cli``: the command ``serried``."""

import sys

from cli import main

if __name__ == "__main__":
    sys.exit(main())
