"""Groups that are disrupted together: the members of the highest group of mode all."""

import pytest

from serried.api.group import Branch, Leaf, Tree, find_disrupted
from serried.api.names import Disruption
from tests.support.builders import pod_group

SINGLE, ALL = Disruption.SINGLE, Disruption.ALL


def tree(root: Disruption, inner: Disruption, leaf: Disruption) -> Tree:
    """Leaf a beside a branch of b and c; the mode of b is given, a and c are single."""
    branch = Branch("inner", 1, None, (Leaf("b", 1, disruption=leaf), Leaf("c", 1)), inner)
    return Branch("root", 1, None, (Leaf("a", 1), branch), root)


@pytest.mark.parametrize(
    ("found", "leaf", "expected"),
    [
        pytest.param(tree(SINGLE, SINGLE, SINGLE), "b", "", id="nobody, where all are single"),
        pytest.param(tree(SINGLE, SINGLE, ALL), "b", "b", id="a PodGroup by itself"),
        pytest.param(tree(SINGLE, ALL, SINGLE), "b", "bc", id="all below a branch"),
        pytest.param(tree(SINGLE, ALL, ALL), "b", "bc", id="the branch before the PodGroup in it"),
        pytest.param(tree(ALL, SINGLE, ALL), "b", "abc", id="the whole tree before what is in it"),
        pytest.param(tree(SINGLE, ALL, ALL), "a", "", id="nobody beside the branch"),
        pytest.param(tree(SINGLE, SINGLE, ALL), "c", "", id="nobody beside the PodGroup"),
        pytest.param(tree(ALL, ALL, ALL), "x", "", id="nobody of a PodGroup that is not there"),
    ],
)
def test_those_below_the_highest_group_of_mode_all_go_together(found: Tree, leaf: str, expected: str) -> None:
    assert find_disrupted(found, leaf) == frozenset(expected)


def test_a_group_that_is_in_no_tree_goes_as_a_whole_or_pod_by_pod() -> None:
    assert pod_group("g").disruption(ALL).value().find_disrupted("") == {""}
    assert not pod_group("g").value().find_disrupted("")
