"""Steady by default: the same examples every time, and no deadline that a busy machine could miss.

`make test` takes the first 25 of the 100 examples of `make test-full`; `make fuzz` takes others each time, and more of
them. Tests of tools are marked as such by their folder. `make test` does not read those of what has not changed:
tests/unchanged.py says how that is found.
"""

import gc
from pathlib import Path

import pytest
from hypothesis import settings

from tests.unchanged import ROOT, find_unchanged

settings.register_profile("steady", derandomize=True, deadline=None)
settings.register_profile("short", settings.get_profile("steady"), max_examples=25)
settings.register_profile("wide", max_examples=1000, deadline=None, print_blob=True)
settings.load_profile("steady")

_UNIT = Path(__file__).parent / "unit"
TOOLS = {_UNIT / "bench", _UNIT / "chaos"}
"""The folders whose tests are of what develops and measures Serried, and nobody installs."""


LEAVE_OUT = "--leave-out-unchanged"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Know the option of `make test`."""
    parser.addoption(
        LEAVE_OUT, action="store_true", help="do not read folders of tests.unchanged that have not changed"
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """True for a folder that `make test` leaves out, and for what is in it; None leaves the answer to pytest."""
    if not config.getoption(LEAVE_OUT):
        return None
    # A folder that is named on the command line is not asked about itself.
    left = (ROOT / folder for folder in find_unchanged())
    return True if any(collection_path.is_relative_to(folder) for folder in left) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the tests of tools to `make tools` and `make test-full`."""
    for item in items:
        if item.path.parent in TOOLS:
            item.add_marker(pytest.mark.tools)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what `make test` has left out."""
    config = terminalreporter.config
    if config.getoption(LEAVE_OUT):
        named = {str(Path(each)) for each in config.args}
        for folder in find_unchanged():
            if named & {folder, *(str(each) for each in Path(folder).parents)}:
                terminalreporter.write_line(f"left out, as nothing there has changed: {folder} (tests/unchanged.py)")


def pytest_collection_finish() -> None:
    """Exempt the tests themselves from garbage collection: they live as long as the process."""
    gc.collect()
    gc.freeze()
