"""``python -m controller``: the controller process."""

import sys

from controller.process import main

if __name__ == "__main__":
    sys.exit(main())
