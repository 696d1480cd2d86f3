"""Events after which kube-scheduler tries a pod again, against our stories: a new one has to have its own."""

import re
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

from tests.support.go_modules import locate
from tests.support.requeue_events import EVENT_CASES, NO_CASE, TREE, Event

pytestmark = [pytest.mark.e2e, pytest.mark.full]

_REGISTERS = re.compile(r"^func \(\w+ \*?\w+\) EventsToRegister\(.*?^}", re.MULTILINE | re.DOTALL)
_EVENT = re.compile(r"fwk\.ClusterEvent\{\s*Resource:\s*fwk\.(\w+),\s*ActionType:\s*([^}]+?),?\s*\}")


def list_events(folder: Path) -> Iterator[Event]:
    """The events that the plugins in a folder register, whatever gates they are behind."""
    for path in sorted(folder.glob("*/*.go")):
        found = None if path.name.endswith("_test.go") else _REGISTERS.search(path.read_text())
        if found is None:
            continue
        assert found[0].count("ClusterEvent{") == len(_EVENT.findall(found[0])), f"{path.name} is written otherwise"
        for resource, actions in _EVENT.findall(found[0]):
            for action in re.findall(r"fwk\.(\w+)", actions):
                yield Event(path.parent.name, resource, action)


TOLD = Counter(chain.from_iterable(story.events for story in (*EVENT_CASES, TREE)))


def test_each_event_of_each_plugin_has_a_story_or_a_reason_why_it_has_none() -> None:
    folder = locate("k8s.io/kubernetes", "v1.37.1") / "pkg" / "scheduler" / "framework" / "plugins"
    assert set(list_events(folder)) == TOLD.keys() | NO_CASE.keys()


def test_no_event_is_told_twice_or_excused_as_well() -> None:
    assert set(TOLD.values()) == {1}
    assert not TOLD.keys() & NO_CASE.keys()
