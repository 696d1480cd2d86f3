"""The cases of component-helpers resource/helpers.go: PodRequests."""

from typing import Any

import pytest

from serried.api.level import ResizeRule
from serried.api.resources import has_markers, pod_requests

Raw = dict[str, Any]


def container(name: str = "main", restart: str = "", **requests: str) -> Raw:
    made: Raw = {"name": name, "resources": {"requests": requests}}
    return made | {"restartPolicy": restart} if restart else made


def spec(*main: Raw, init: tuple[Raw, ...] = (), **more: Any) -> Raw:
    return {"spec": {"containers": list(main), "initContainers": list(init), **more}}


def running(raw: Raw, *statuses: Raw, **more: Any) -> Raw:
    return raw | {"status": {"containerStatuses": list(statuses), **more}}


@pytest.mark.parametrize(
    ("pod", "requests"),
    [
        pytest.param(spec(container()), {}, id="nothing asked is one pod"),
        pytest.param(spec(container(cpu="0")), {}, id="zero asks for nothing"),
        pytest.param(spec(container(cpu="1"), container(cpu="500m")), {"cpu": 1500}, id="containers add up"),
        pytest.param(
            spec(container(cpu="1", memory="1Ki"), init=(container(cpu="3"), container(cpu="2"))),
            {"cpu": 3000, "memory": 1024},
            id="the largest init container counts where it is more",
        ),
        pytest.param(
            spec(container(cpu="1"), init=(container(restart="Always", cpu="2"),)),
            {"cpu": 3000},
            id="a sidecar adds to the containers",
        ),
        pytest.param(
            spec(container(cpu="1"), init=(container(restart="Always", cpu="2"), container(cpu="4"))),
            {"cpu": 6000},
            id="an init container runs beside the sidecars before it",
        ),
        pytest.param(
            spec(container(cpu="1"), init=(container(cpu="4"), container(restart="Always", cpu="2"))),
            {"cpu": 4000},
            id="an init container does not run beside the sidecars after it",
        ),
        pytest.param(
            spec(
                container(memory="1"),
                init=(
                    container(restart="Always", cpu="1"),
                    container(memory="4"),
                    container(restart="Always", cpu="2", memory="1"),
                    container(cpu="4"),
                ),
            ),
            {"cpu": 7000, "memory": 4},
            id="each resource has a peak of its own",
        ),
        pytest.param(
            spec(container(cpu="1"), overhead={"cpu": "250m", "memory": "1"}),
            {"cpu": 1250, "memory": 1},
            id="overhead comes on top",
        ),
        pytest.param(
            spec(
                container(cpu="1", memory="5", **{"example.com/gpu": "2"}),
                resources={"requests": {"cpu": "4", "hugepages-2Mi": "2Mi", "example.com/gpu": "9"}},
                overhead={"cpu": "1"},
            ),
            {"cpu": 5000, "memory": 5, "hugepages-2Mi": 2**21, "example.com/gpu": 2},
            id="pod level requests win for cpu, memory and huge pages only",
        ),
        pytest.param(
            running(spec(container(cpu="1")), {"name": "main", "allocatedResources": {"cpu": "2"}}),
            {"cpu": 2000},
            id="while it shrinks, what is still granted counts",
        ),
        pytest.param(
            running(
                spec(container(cpu="1")),
                {"name": "main", "allocatedResources": {"cpu": "1"}, "resources": {"requests": {"cpu": "3"}}},
            ),
            {"cpu": 3000},
            id="what it still runs with counts",
        ),
        pytest.param(
            running(
                spec(container(cpu="9")),
                {"name": "main", "allocatedResources": {"cpu": "2"}, "resources": {"requests": {"cpu": "2"}}},
                conditions=[{"type": "PodResizePending", "reason": "Infeasible"}],
            ),
            {"cpu": 2000},
            id="a resize that was refused does not count",
        ),
        pytest.param(
            running(
                spec(container(cpu="9")),
                {"name": "main", "allocatedResources": {"cpu": "2"}},
                conditions=[{"type": "PodResizePending", "reason": "Deferred"}],
            ),
            {"cpu": 9000},
            id="a resize that waits does count",
        ),
        pytest.param(
            spec(
                container(cpu="1", **{"scheduling.serried.dev/member": "1", "scheduling.serried.dev/member-bind": "1"})
            ),
            {"cpu": 1000},
            id="markers do not count, whatever a user has written",
        ),
    ],
)
def test_requests_are_counted_as_the_scheduler_does(pod: Raw, requests: dict[str, int]) -> None:
    assert dict(pod_requests(pod)) == {**requests, "pods": 1}


def resized(desired: Raw, granted: Raw | None, effective: Raw | None, *reasons: str) -> Raw:
    """A pod of one container with pod-level requests; ``reasons`` are of the condition that a resize waits."""
    memory = {"memory": "1"}
    raw = running(spec(container(cpu="1", memory="1"), resources={"requests": desired}))
    raw["status"] |= {} if granted is None else {"allocatedResources": memory | granted}
    raw["status"] |= {} if effective is None else {"resources": {"requests": memory | effective}}
    raw["status"]["conditions"] = [{"type": "PodResizePending", "reason": reason} for reason in reasons]
    return raw


@pytest.mark.parametrize("rule", ResizeRule)
@pytest.mark.parametrize(
    ("pod", "cpu"),
    [
        pytest.param(resized({"cpu": "2"}, None, None), 2, id="what is desired, if nothing else is reported"),
        pytest.param(resized({"cpu": "2"}, {"cpu": "4"}, {"cpu": "4"}), 4, id="what it has, while it shrinks"),
        pytest.param(resized({"cpu": "2"}, {"cpu": "2"}, {"cpu": "4"}), 4, id="what is in effect, if less is granted"),
        pytest.param(resized({"cpu": "2"}, {"cpu": "4"}, {"cpu": "3"}), 4, id="what is granted, if less is in effect"),
        pytest.param(resized({"cpu": "8"}, {"cpu": "4"}, {"cpu": "4"}), 8, id="what is desired, while it grows"),
        pytest.param(
            resized({"cpu": "8"}, {"cpu": "4"}, {"cpu": "4"}, "Deferred"), 8, id="what is desired, while it is put off"
        ),
        pytest.param(
            resized({"cpu": "100"}, {"cpu": "4"}, {"cpu": "4"}, "Infeasible"), 4, id="what it has, if it gets no more"
        ),
    ],
)
def test_a_pod_level_resize_counts_as(pod: Raw, cpu: int, rule: ResizeRule) -> None:
    assert dict(pod_requests(pod, rule)) == {"cpu": 1000 * cpu, "memory": 1, "pods": 1}


def swapping(**more: Any) -> Raw:
    """Return a pod in which one container grows and one shrinks by the same amount: no sum exceeds 3 CPUs."""
    statuses = [
        {"name": name, "allocatedResources": {"cpu": cpu}, "resources": {"requests": {"cpu": cpu}}}
        for name, cpu in (("a", "1"), ("b", "2"))
    ]
    return running(spec(container("a", cpu="2"), container("b", cpu="1")), *statuses, **more)


def shrinking_at_first() -> Raw:
    """An init container that does not go on beside the others, of which more is granted than is desired."""
    raw = spec(container(cpu="1"), init=(container("first", cpu="2"),))
    said = {"name": "first", "allocatedResources": {"cpu": "5"}, "resources": {"requests": {"cpu": "5"}}}
    return raw | {"status": {"initContainerStatuses": [said]}}


@pytest.mark.parametrize(
    ("pod", "containers", "sums"),
    [
        pytest.param(swapping(), 4, 3, id="one container grows while another one shrinks"),
        pytest.param(shrinking_at_first(), 2, 5, id="an init container shrinks"),
        pytest.param(
            swapping(allocatedResources={"cpu": "5"}, resources={"requests": {"cpu": "5"}}),
            4,
            5,
            id="the kubelet reports the pod as a whole",
        ),
        pytest.param(
            running(spec(container(cpu="1")), {"name": "main", "allocatedResources": {"cpu": "2"}}),
            1,
            2,
            id="nothing is known to be in effect",
        ),
    ],
)
def test_each_version_counts_a_resize_in_its_own_way_and_the_larger_counts_where_none_is_known(
    pod: Raw, containers: int, sums: int
) -> None:
    rules = {ResizeRule.CONTAINERS: containers, ResizeRule.SUMS: sums, ResizeRule.LARGEST: max(containers, sums)}
    found = {rule: dict(pod_requests(pod, rule))["cpu"] for rule in rules}
    assert found == {rule: 1000 * cpu for rule, cpu in rules.items()}


def test_pod_level_amounts_that_are_not_desired_at_that_level_count_since_1_37() -> None:
    raw = resized({"cpu": "2"}, {"cpu": "2", "memory": "8"}, {"cpu": "2", "memory": "8"})
    found = [dict(pod_requests(raw, rule))["memory"] for rule in (ResizeRule.CONTAINERS, ResizeRule.SUMS)]
    assert found == [1, 8]


ASKED, BOUND = "scheduling.serried.dev/member", "scheduling.serried.dev/member-bind"


@pytest.mark.parametrize(
    ("pod", "marked"),
    [
        pytest.param(spec(container(**{ASKED: "0", BOUND: "0"})), True, id="both"),
        pytest.param(spec(container(**{ASKED: "0"}), container(**{BOUND: "0"})), True, id="in two containers"),
        pytest.param(spec(container(), init=(container(**{ASKED: "0", BOUND: "1"}),)), True, id="in an init container"),
        pytest.param(
            spec({"name": "main", "resources": {"limits": {ASKED: "0", BOUND: "0"}}}), True, id="in the limits alone"
        ),
        pytest.param(spec(container(**{ASKED: "0"})), False, id="one of them: its bind call would go past us"),
        pytest.param(spec(container(cpu="1")), False, id="none"),
    ],
)
def test_a_pod_is_marked_if_an_isolated_scheduler_would_ask_about_it(pod: Raw, marked: bool) -> None:  # noqa: FBT001
    assert has_markers(pod["spec"]) is marked


def test_requests_come_sorted_by_name() -> None:
    names = [name for name, _ in pod_requests(spec(container(memory="1", cpu="1", **{"a.b/c": "1"})))]
    assert names == sorted(names)
