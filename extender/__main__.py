"""``python -m extender``: the extender process."""

import sys

from extender.process import main

if __name__ == "__main__":
    sys.exit(main())
