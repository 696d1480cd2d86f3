from collections.abc import AsyncIterator

import pytest

from extender.options import BackfillMode
from extender.wiring import FEATURES
from tests.support import extender_harness
from tests.support.extender_harness import Harness


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the tests of the core once more without each feature in turn, and without all of them.

    A test that is about a feature all the same says so: `needs`.
    """
    marks = metafunc.definition
    if marks.get_closest_marker("core") is None:
        return
    names = {each.__name__.lower(): each for each in FEATURES}
    needed = {name for mark in marks.iter_markers("needs") for name in mark.args}
    assert needed <= names.keys(), f"no feature is called {needed - names.keys()}"
    cases = [pytest.param((), id="whole")]
    cases += [pytest.param((each,), id=f"no {name}") for name, each in names.items() if name not in needed]
    cases += [] if needed else [pytest.param(FEATURES, id="alone")]
    metafunc.parametrize("left_out", cases, indirect=True)


@pytest.fixture(autouse=True)
def left_out(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Worlds of this test are made without these features."""
    monkeypatch.setattr(extender_harness, "LEFT_OUT", set(getattr(request, "param", ())))


@pytest.fixture
async def world() -> AsyncIterator[Harness]:
    made = Harness()
    yield made
    await made.close()


@pytest.fixture
async def world_without_backfill() -> AsyncIterator[Harness]:
    made = Harness(backfill=BackfillMode.OFF)
    yield made
    await made.close()
