"""An odd object holds up nothing else: not its kind, not its namesake, and the Store forgets it like any other."""

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from serried.api.level import NATIVE
from serried.cluster.cache import Store
from serried.feed import Feed, Kind
from serried.kube.auth import Credentials
from serried.kube.client import ApiClient
from serried.rules.all import RULES
from tests.support.logged_errors import collect_errors
from tests.support.odd_objects import SPECIMENS, Raw, odd_objects


def follow(store: Store) -> Feed:
    """A feed of every kind, into which objects come as its watches would bring them."""
    return Feed(ApiClient(Credentials("http://nowhere"), component="test"), NATIVE, store, tuple(Kind))


def rename(raw: Raw, name: str) -> Raw:
    renamed = deepcopy(raw)
    renamed["metadata"] |= {"name": name, "uid": f"uid-of-{name}"}
    return renamed


def is_named(raw: Any) -> bool:
    """Return whether an object has a name. An API server has no objects without one."""
    metadata = raw.get("metadata") if isinstance(raw, dict) else None
    return isinstance(metadata, dict) and isinstance(metadata.get("name"), str)


def test_no_kind_that_is_followed_is_without_objects_to_spoil() -> None:
    assert set(SPECIMENS) == set(Kind)
    assert all(SPECIMENS.values())


@pytest.mark.parametrize("kind", Kind)
@given(data=st.data())
def test_an_odd_object_comes_between_good_ones_and_goes(kind: Kind, data: st.DataObject) -> None:
    odd = data.draw(odd_objects(*SPECIMENS[kind]))
    assume(is_named(odd))
    store = Store(["serried"], rules=RULES)
    feed = follow(store)
    known, channel = feed.reflectors[kind].known, feed.channels[kind]
    others = {each: SPECIMENS[each][0] for each in Kind if each is not Kind("pods.leaderworkersets")}
    before, after = rename(SPECIMENS[kind][0], "before"), rename(SPECIMENS[kind][0], "after")
    with collect_errors() as errors:
        for each, raw in others.items():
            feed.reflectors[each].known.upsert(raw)
        for raw in (before, odd, after, odd, before):
            known.upsert(raw)
        assert {channel.identify(before), channel.identify(after)} <= channel.held.keys()
        for raw in (before, odd, after):
            known.delete(raw)
        for each, raw in others.items():
            feed.reflectors[each].known.delete(raw)
    assert errors == []
    assert not channel.held
    assert store.occupancy.used == {}
