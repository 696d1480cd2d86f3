import pytest

from serried.api.level import FALLBACK, NATIVE, NATIVE_LEVELS, ApiLevel, ResizeRule

NEXT = ApiLevel("native", "scheduling.k8s.io", "v1", like="v1beta1")
OWN, NEWER = (
    "scheduling.serried.dev/v1beta1",
    {f"scheduling.k8s.io/{version}" for version in ("v1", "v1beta1", "v1alpha3")},
)


@pytest.mark.parametrize(
    ("level", "apis"),
    [
        pytest.param(NATIVE, {OWN, *NEWER}, id="v1beta1 reads what v1 has stored"),
        pytest.param(NEXT, {OWN, *NEWER}, id="and v1 what v1beta1 has"),
        pytest.param(NATIVE_LEVELS[-2], {OWN, "scheduling.k8s.io/v1alpha2"}, id="v1alpha2 reads its own alone"),
        pytest.param(NATIVE_LEVELS[-1], {OWN, "scheduling.k8s.io/v1alpha1"}, id="and so does v1alpha1"),
        pytest.param(FALLBACK, {OWN}, id="at the fallback nothing native is read"),
    ],
)
def test_what_was_created_in_one_version_is_read_in_another_of_the_same_storage(
    level: ApiLevel, apis: set[str]
) -> None:
    assert level.readable_versions == apis


@pytest.mark.parametrize("level", [NATIVE, NEXT], ids=lambda level: level.version)
def test_what_depends_on_the_version_depends_on_its_shape(level: ApiLevel) -> None:
    assert (level.inline, level.count_mutable, level.has_composites, level.has_preemption) == (False, True, True, True)
    assert level.condition == "PodGroupInitiallyScheduled"
    odd = ApiLevel("native", level.group, level.version, like="v1alpha2")
    assert (odd.count_mutable, odd.has_composites, odd.condition) == (False, False, "PodGroupScheduled")


@pytest.mark.parametrize(
    ("level", "rule"),
    [
        pytest.param(NATIVE_LEVELS[-1], ResizeRule.CONTAINERS, id="v1alpha1 is 1.35"),
        pytest.param(NATIVE_LEVELS[-2], ResizeRule.CONTAINERS, id="v1alpha2 is 1.36"),
        pytest.param(NATIVE, ResizeRule.SUMS, id="v1beta1 is 1.37"),
        pytest.param(NEXT, ResizeRule.SUMS, id="what comes after it counts like it"),
        pytest.param(FALLBACK, ResizeRule.LARGEST, id="our own API tells no version"),
    ],
)
def test_the_level_tells_by_which_rule_resizes_count(level: ApiLevel, rule: ResizeRule) -> None:
    assert level.resize_rule is rule


def test_composite_groups_are_where_they_were_found_and_else_where_they_are_known_to_be() -> None:
    found = ApiLevel("native", "scheduling.k8s.io", "v1", like="v1beta1", composite_version="v1beta2")
    assert found.composite_api_version == "scheduling.k8s.io/v1beta2"
    assert NEXT.composite_api_version == "scheduling.k8s.io/v1alpha3"
    assert found.level_of("").composite_api_version == found.composite_api_version
    assert found.level_of(OWN).composite_api_version == FALLBACK.composite_api_version == OWN
