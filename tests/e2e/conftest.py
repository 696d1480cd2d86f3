"""Stories on other Kubernetes versions run where those are built, and in `make test-full`, which builds them first."""

from collections.abc import Sequence

import pytest

from bench.cluster.binaries import are_at_hand


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Skip the stories of versions that are not there: a build takes longer than all the others."""
    for item in items:
        for version in {str(mark.args[0]) for mark in item.iter_markers("kubernetes")}:
            if not are_at_hand(version):
                reason = f"Kubernetes {version} is not built: python -m bench.cluster binaries --kubernetes {version}"
                item.add_marker(pytest.mark.skip(reason=reason))
