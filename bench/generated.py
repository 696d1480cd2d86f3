"""Pages of docs that are made from what they describe: printed, or written into their place."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent


def offer_page(
    page: Path, render: Callable[[], str], arguments: Sequence[str] | None, *, program: str, about: str
) -> int:
    """The command line of such a page: print it, or with ``--write`` write it. ``about`` begins the help."""
    parser = argparse.ArgumentParser(prog=program, description=about.split("\n", 1)[0])
    parser.add_argument("--write", action="store_true", help=f"write {page.relative_to(ROOT)}")
    if parser.parse_args(arguments).write:
        page.write_text(render())
    else:
        sys.stdout.write(render())
    return 0
