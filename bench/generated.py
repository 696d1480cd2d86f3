"""The command line of the modules that generate a page in docs: print the page, or write it."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent


def offer_page(
    page: Path, render: Callable[[], str], arguments: Sequence[str] | None, *, program: str, about: str
) -> int:
    """Parse the arguments, then print the page, or write it if they contain ``--write``. Return the exit code.

    ``about`` is the docstring of the module; its first line is the description in the help.
    """
    parser = argparse.ArgumentParser(prog=program, description=about.split("\n", 1)[0])
    parser.add_argument("--write", action="store_true", help=f"write {page.relative_to(ROOT)}")
    if parser.parse_args(arguments).write:
        page.write_text(render())
    else:
        sys.stdout.write(render())
    return 0
