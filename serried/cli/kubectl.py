"""``kubectl serried ...``: the same commands as a plugin of kubectl, and its completion."""

import os
import shlex
import sys
from collections.abc import Sequence

from serried.cli.app import run

_NO_FILES = ":4"
"""What kubectl reads behind the proposals: that file names are none."""


def main(argv: Sequence[str] | None = None) -> int:
    """``kubectl-serried``, which kubectl runs for ``kubectl serried``; returns the exit code."""
    return run(list(sys.argv[1:] if argv is None else argv), "kubectl serried")


def complete(argv: Sequence[str] | None = None) -> int:
    """``kubectl_complete-serried``: proposals for the last of the words, one a line, as kubectl asks for them."""
    words = list(sys.argv[1:] if argv is None else argv) or [""]
    os.environ["_SERRIED_COMPLETE"] = "complete_bash"
    os.environ["COMP_WORDS"] = shlex.join(["serried", *words])
    os.environ["COMP_CWORD"] = str(len(words))
    run([], "serried")
    sys.stdout.write(f"{_NO_FILES}\n")
    return 0
