"""Steady by default: the same examples every time, and no deadline that a busy machine could miss.

`make fuzz` takes other examples each time, and more of them. Tests of tools are marked as such by their folder.
"""

from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("steady", derandomize=True, deadline=None)
settings.register_profile("wide", max_examples=1000, deadline=None, print_blob=True)
settings.load_profile("steady")

_UNIT = Path(__file__).parent / "unit"
TOOLS = {_UNIT / "bench", _UNIT / "chaos"}
"""The folders whose tests are of what develops and measures Serried, and nobody installs."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the tests of tools to `make tools` and `make test-full`."""
    for item in items:
        if item.path.parent in TOOLS:
            item.add_marker(pytest.mark.tools)
