import pytest

from tests.support.checked_clusters import answer_without_mistakes
from tests.support.pod_proxy import PodProxy


@pytest.fixture
def sound(proxy: PodProxy) -> PodProxy:
    """A cluster in which everything is as it is shipped."""
    answer_without_mistakes(proxy)
    return proxy
