from collections.abc import Sequence

import pytest

from tests.unit.manifests.shipped import Document, read_all


@pytest.fixture(scope="session")
def documents() -> Sequence[Document]:
    return read_all()
