import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from extender.core.binding import records as reservations
from extender.core.binding.records import Records
from serried.api.group import PodGroup, Policy
from serried.api.names import GroupKey, GroupKind, decode_group_key
from serried.api.reservation import Reservation, Slot, name_record
from serried.cluster.cache import Store
from serried.kube.errors import AlreadyExists, ApiError, Conflict
from serried.kube.retry import Backoff
from serried.kube.wire import Resource
from serried.rules.all import RULES
from tests.support.builders import pod_group
from tests.support.composites import composite
from tests.support.extender_harness import GANG, gang
from tests.support.fake_api import FakeApi, error

GROUP = gang(2).value()


def reservation(**nodes: str) -> Reservation:
    return Reservation(GANG, GROUP.uid, "r1", 2, {name: Slot(name, name, node) for name, node in nodes.items()})


def committed(**nodes: str) -> Reservation:
    planned = reservation(**nodes)
    return Reservation(planned.group, planned.group_uid, "r1", 2, planned.slots, nodes.keys())


@pytest.fixture
def api() -> FakeApi:
    return FakeApi()


@pytest.fixture
def records(api: FakeApi) -> Records:
    return Records(api.client(), "scheduling.serried.dev/v1beta1", "term-1")


async def test_a_record_is_owned_by_its_podgroup_and_names_the_term(api: FakeApi, records: Records) -> None:
    await records.write(GROUP, reservation(a="n1", b="n1"))
    record = api.records[GANG.object_key]
    assert [owner["uid"] for owner in record["metadata"]["ownerReferences"]] == [GROUP.uid]
    assert (record["spec"]["term"], record["spec"]["phase"], record["spec"]["minCount"]) == ("term-1/0", "Planned", 2)


async def test_the_record_of_a_part_of_a_workload_has_a_name_that_objects_may_have(
    api: FakeApi, records: Records
) -> None:
    part = GroupKey("default", "w", GroupKind.WORKLOAD, "workers", "0")
    group = PodGroup(part, "u", Policy(1), workload="w", template="workers")
    await records.write(group, Reservation(part, "u", "", 1, {"a": Slot("a", "a", "n1")}))
    ((key, record),) = api.records.items()
    assert key.name.startswith("w.workers.0-")
    assert "/" not in key.name
    assert [(owner["kind"], owner["name"]) for owner in record["metadata"]["ownerReferences"]] == [("Workload", "w")]
    later = Records(api.client(), "scheduling.k8s.io/v1alpha1", "term-2")
    (loaded,) = await later.take_over()
    assert loaded.group == part
    await later.remove(loaded)
    assert api.records == {}


async def test_the_record_of_a_tree_brings_back_its_groups_and_their_quorums(api: FakeApi, records: Records) -> None:
    store = Store([], rules=RULES)
    store.put_composite(composite("root").gang(2).value())
    tree = store.groups[GroupKey("default", "root", GroupKind.COMPOSITE)]
    slots = {"a": Slot("a", "a0", "n1", "leader"), "b": Slot("b", "b0", "n1", "workers")}
    await records.write(tree, Reservation(tree.key, tree.uid, "", 2, slots, parts={"leader": 1, "workers": 1}))
    ((_, record),) = api.records.items()
    assert [owner["kind"] for owner in record["metadata"]["ownerReferences"]] == ["CompositePodGroup"]
    (loaded,) = await Records(api.client(), "scheduling.k8s.io/v1beta1", "term-2").take_over()
    assert (loaded.group, loaded.slots, loaded.parts) == (tree.key, slots, {"leader": 1, "workers": 1})


async def test_the_record_of_a_single_group_says_nothing_of_parts_as_in_former_versions(
    api: FakeApi, records: Records
) -> None:
    await records.write(GROUP, reservation(a="n1", b="n1"))
    ((_, record),) = api.records.items()
    assert "parts" not in record["spec"]
    assert record["spec"]["slots"] == [
        {"node": "n1", "members": [{"uid": "a", "name": "a"}, {"uid": "b", "name": "b"}]}
    ]
    (loaded,) = await Records(api.client(), "scheduling.k8s.io/v1beta1", "term-2").take_over()
    assert (loaded.need, loaded.parts) == (2, {"": 2})
    assert loaded.find_parts_below_quorum({"a"}) == {""}


def test_parts_with_like_names_have_records_of_their_own() -> None:
    assert name_record(decode_group_key("default", "a.b/c")) != name_record(decode_group_key("default", "a/b/c"))


async def test_a_later_write_replaces_and_the_end_removes(api: FakeApi, records: Records) -> None:
    held = reservation(a="n1", b="n1")
    await records.write(GROUP, held)
    held.commit({"a", "b"})
    await records.write(GROUP, held)
    assert api.record_phase() == "Committed"
    await records.remove(held)
    assert api.records == {}


async def test_a_write_over_another_version_is_refused_and_the_next_one_starts_from_what_is_there(
    api: FakeApi, records: Records
) -> None:
    held = reservation(a="n1")
    await records.write(GROUP, held)
    api.records[GANG.object_key]["metadata"] |= {
        "resourceVersion": "of somebody else",
        "labels": {"of": "somebody else"},
    }
    with pytest.raises(ApiError):
        await records.write(GROUP, held)
    await records.write(GROUP, held)
    assert api.records[GANG.object_key]["metadata"]["resourceVersion"] != "of somebody else"


async def test_a_create_whose_answer_was_lost_does_not_stop_the_gang_for_ever(api: FakeApi, records: Records) -> None:
    api.lose_answer("create")
    with pytest.raises(ApiError):
        await records.write(GROUP, reservation(a="n1"))
    await records.write(GROUP, reservation(a="n2"))
    assert api.records[GANG.object_key]["spec"]["slots"][0]["node"] == "n2"


class TestARecordOfAnotherTermThatThisOneHasNeverRead:
    """Two were active at once, or an earlier leader's write was late. Nobody may be there to delete it."""

    @pytest.fixture
    def late(self, api: FakeApi) -> Records:
        return Records(api.client(), "scheduling.serried.dev/v1beta1", "late")

    async def test_a_plan_is_replaced_and_its_term_can_commit_it_no_more(
        self, api: FakeApi, records: Records, late: Records
    ) -> None:
        await late.write(GROUP, reservation(a="n1", b="n1"))
        await records.write(GROUP, reservation(a="n2", b="n2"))
        record = api.records[GANG.object_key]
        assert (record["spec"]["term"], record["spec"]["slots"][0]["node"]) == ("term-1/0", "n2")
        with pytest.raises(Conflict):
            await late.write(GROUP, committed(a="n1", b="n1"))
        assert api.record_phase() == "Planned"

    async def test_a_commit_is_not(self, api: FakeApi, records: Records, late: Records) -> None:
        await late.write(GROUP, committed(a="n1", b="n1"))
        for _ in range(2):
            with pytest.raises(Conflict, match="late/0 has committed it"):
                await records.write(GROUP, reservation(a="n2", b="n2"))
        assert api.record_phase() == "Committed"

    async def test_one_that_goes_at_that_moment_is_written_by_the_next_try(
        self, api: FakeApi, records: Records, late: Records
    ) -> None:
        await late.write(GROUP, reservation(a="n1", b="n1"))
        api.fail("get", error(404))
        with pytest.raises(AlreadyExists):
            await records.write(GROUP, reservation(a="n2", b="n2"))
        del api.records[GANG.object_key]
        await records.write(GROUP, reservation(a="n2", b="n2"))
        assert api.record_phase() == "Planned"


async def test_a_create_whose_answer_was_lost_is_removed_with_its_round(api: FakeApi, records: Records) -> None:
    held = reservation(a="n1")
    api.lose_answer("create")
    with pytest.raises(ApiError):
        await records.write(GROUP, held)
    await records.remove(held)
    assert api.records == {}


async def test_a_commit_that_lands_after_it_was_looked_for_is_removed_with_its_round(
    api: FakeApi, records: Records
) -> None:
    held = reservation(a="n1")
    held.commit({"a"})
    api.fail("create", error(0))
    with pytest.raises(ApiError):
        await records.write(GROUP, held)
    assert not await records.is_committed(held)
    await Records(api.client(), "v1", "us").write(GROUP, held)  # the same request, late
    api.records[GANG.object_key]["spec"]["term"] = records.term
    await records.remove(held)
    assert not api.records


async def test_a_commit_that_lands_after_its_round_is_replaced_by_the_next_one(api: FakeApi, records: Records) -> None:
    held, again = reservation(a="n1"), reservation(a="n2")
    held.commit({"a"})
    again.commit({"a"})
    api.fail("create", error(0))
    with pytest.raises(ApiError):
        await records.write(GROUP, held)
    assert not await records.is_committed(held)
    await records.remove(held)
    await Records(api.client(), "v1", "us").write(GROUP, held)
    api.records[GANG.object_key]["spec"]["term"] = records.term
    await records.write(GROUP, again)
    assert await records.is_committed(again)


async def test_a_record_that_was_collected_under_us_is_made_anew(api: FakeApi, records: Records) -> None:
    held = reservation(a="n1")
    await records.write(GROUP, held)
    api.records.clear()
    with pytest.raises(ApiError):
        await records.write(GROUP, held)
    await records.write(GROUP, held)
    assert api.record_phase() == "Planned"


async def test_the_end_of_an_old_round_does_not_delete_the_record_of_a_new_one(api: FakeApi, records: Records) -> None:
    old, new = reservation(a="n1"), reservation(a="n2")
    await records.write(GROUP, old)
    await records.write(GROUP, new)
    await records.remove(old)
    assert api.record_phase() == "Planned"
    await records.remove(new)
    assert api.record_phase() is None


async def test_a_record_on_which_somebody_has_put_a_label_is_removed_all_the_same(
    api: FakeApi, records: Records
) -> None:
    held = reservation(a="n1")
    await records.write(GROUP, held)
    api.records[GANG.object_key]["metadata"] |= {"resourceVersion": "later", "labels": {"of": "somebody else"}}
    await records.remove(held)
    assert api.records == {}


async def test_removing_what_was_never_written_calls_nobody(api: FakeApi, records: Records) -> None:
    await records.remove(reservation(a="n1"))
    assert api.calls == []


async def test_removing_what_is_gone_already_is_fine(api: FakeApi, records: Records) -> None:
    held = reservation(a="n1")
    await records.write(GROUP, held)
    api.records.clear()
    await records.remove(held)


@pytest.mark.parametrize(
    "stored",
    [
        pytest.param(reservation(a="n1", b="n2"), id="the same members on the same nodes"),
        pytest.param(reservation(a="n1"), id="fewer members"),
        pytest.param(reservation(a="n1", b="n9"), id="another node"),
    ],
)
async def test_only_the_very_commit_counts_as_done(api: FakeApi, records: Records, stored: Reservation) -> None:
    asked = reservation(a="n1", b="n2")
    asked.commit(asked.slots)
    stored.commit(stored.slots)
    await records.write(GROUP, stored)
    assert await records.is_committed(asked) is (stored.slots == asked.slots)


async def test_the_same_commit_of_another_term_is_not_ours(api: FakeApi, records: Records) -> None:
    asked = reservation(a="n1", b="n2")
    asked.commit(asked.slots)
    await Records(api.client(), "v1", "another").write(GROUP, asked)
    assert not await records.is_committed(asked)


async def test_a_planned_or_missing_record_is_no_commit(api: FakeApi, records: Records) -> None:
    asked = reservation(a="n1")
    asked.commit({"a"})
    assert not await records.is_committed(asked)
    await Records(api.client(), "v1", "another").write(GROUP, reservation(a="n1"))
    assert not await records.is_committed(asked)
    api.fail("get", error(500))
    with pytest.raises(ApiError):
        await records.is_committed(asked)


async def test_a_new_term_reads_all_records_and_deletes_what_it_cannot_read(api: FakeApi, records: Records) -> None:
    await Records(api.client(), "v1", "earlier").write(GROUP, reservation(a="n1"))
    await Records(api.client(), "v1", "earlier").write(
        pod_group("x").value(), Reservation(pod_group("x").value().key, "uid", "", 1, {"x": Slot("x", "x", "n1")})
    )
    del api.records[pod_group("x").value().key.object_key]["spec"]["phase"]
    (loaded,) = await records.take_over()
    assert (loaded.group, loaded.slots) == (GANG, {"a": Slot("a", "a", "n1")})
    assert set(api.records) == {GANG.object_key}
    await records.remove(loaded)
    assert api.records == {}


async def test_a_second_term_of_ours_forgets_what_it_knew_of_the_first(api: FakeApi, records: Records) -> None:
    await records.write(GROUP, reservation(a="n1"))
    await Records(api.client(), "v1", "other").take_over()
    (loaded,) = await records.take_over()
    await records.remove(loaded)
    assert api.records == {}


class TestTheNextLeader:
    """Instance ``records`` has written a record, and another one takes over."""

    @pytest.fixture
    def held(self) -> Reservation:
        return reservation(a="n1")

    @pytest.fixture
    async def successor(self, api: FakeApi, records: Records, held: Reservation) -> Records:
        await records.write(GROUP, held)
        successor = Records(api.client(), "v1", "successor")
        await successor.take_over()
        return successor

    async def test_writes_its_term_before_anything_else(self, api: FakeApi, successor: Records) -> None:
        assert api.records[GANG.object_key]["spec"]["term"] == successor.term == "successor/1"

    @pytest.mark.parametrize("committed", [True, False])
    async def test_nothing_that_the_last_one_still_writes_is_taken(
        self,
        api: FakeApi,
        records: Records,
        successor: Records,
        held: Reservation,
        committed: bool,  # noqa: FBT001
    ) -> None:
        if committed:
            held.commit({"a"})
        with pytest.raises(ApiError):
            await records.write(GROUP, held)
        assert (api.record_phase(), api.records[GANG.object_key]["spec"]["term"]) == ("Planned", successor.term)

    async def test_what_it_has_committed_the_last_one_neither_deletes_nor_overwrites(
        self, api: FakeApi, records: Records, successor: Records, held: Reservation
    ) -> None:
        (taken,) = await successor.take_over()
        taken.commit({"a"})
        await successor.write(GROUP, taken)
        for _ in range(2):  # the second one knows that it is unsure, and looks first
            with pytest.raises(ApiError):
                await records.write(GROUP, held)
        await records.remove(held)
        assert api.record_phase() == "Committed"

    async def test_the_last_one_deletes_nothing_also_if_it_has_not_noticed(
        self, api: FakeApi, records: Records, successor: Records, held: Reservation
    ) -> None:
        await records.remove(held)
        assert api.record_phase() == "Planned"
        (taken,) = await successor.take_over()
        await successor.remove(taken)
        assert api.records == {}

    async def test_takes_what_the_last_one_wrote_at_the_last_moment(self, api: FakeApi, records: Records) -> None:
        await records.write(GROUP, reservation(a="n1"))

        def commit(_: object) -> None:
            api.before_write = lambda _: None
            api.records[GANG.object_key]["spec"]["phase"] = "Committed"
            api.records[GANG.object_key]["metadata"]["resourceVersion"] = "newer"

        api.before_write = commit
        (taken,) = await Records(api.client(), "v1", "successor").take_over()
        assert taken.committed == {"a"}

    async def test_a_record_that_goes_while_it_is_taken_over_is_none(self, api: FakeApi, records: Records) -> None:
        await records.write(GROUP, reservation(a="n1"))
        api.before_write = lambda _: api.records.clear()
        assert await Records(api.client(), "v1", "successor").take_over() == []

    @pytest.mark.parametrize("committed", [False, True])
    @pytest.mark.parametrize("status", [422, 403, 500, 503, 429])
    async def test_a_record_that_cannot_be_written_keeps_no_other_from_being_taken_over(
        self,
        api: FakeApi,
        records: Records,
        held: Reservation,
        monkeypatch: pytest.MonkeyPatch,
        committed: bool,  # noqa: FBT001
        status: int,
    ) -> None:
        monkeypatch.setattr(reservations, "_RETRY", Backoff(0.0, 0.0))
        if committed:
            held.commit({"a"})
        await records.write(GROUP, held)
        other = pod_group("x").value()
        await records.write(other, Reservation(other.key, "uid", "", 1, {"x": Slot("x", "x", "n1")}))
        api.reject("replace", GANG.object_key, error(status))
        successor = Records(api.client(), "v1", "successor")
        taken = await successor.take_over()
        api.recover()
        assert {each.group: bool(each.committed) for each in taken} == {GANG: committed, other.key: False}
        assert api.records[other.key.object_key]["spec"]["term"] == successor.term
        with pytest.raises(ApiError):  # what an earlier leader still sends for it
            await records.write(other, Reservation(other.key, "uid", "", 1, {"x": Slot("x", "x", "n2")}))
        assert (GANG.object_key in api.records) is committed
        for each in taken:
            await successor.remove(each)
        assert api.records == {}

    @pytest.mark.parametrize("committed", [False, True])
    async def test_one_that_cannot_be_deleted_either_is_taken_as_it_is_and_removed_when_that_is_allowed(
        self,
        api: FakeApi,
        records: Records,
        held: Reservation,
        committed: bool,  # noqa: FBT001
    ) -> None:
        if committed:
            held.commit({"a"})
        await records.write(GROUP, held)
        for verb in ("replace", "delete"):
            api.reject(verb, GANG.object_key, error(403))
        successor = Records(api.client(), "v1", "successor")
        (taken,) = await successor.take_over()
        assert (taken.slots, bool(taken.committed)) == (held.slots, committed)
        with pytest.raises(ApiError):
            await successor.remove(taken)
        api.recover()
        await successor.remove(taken)
        assert api.records == {}

    async def test_one_that_cannot_be_written_may_be_overwritten_when_that_is_allowed(
        self, api: FakeApi, records: Records, held: Reservation
    ) -> None:
        await records.write(GROUP, held)
        for verb in ("replace", "delete"):
            api.reject(verb, GANG.object_key, error(403))
        successor = Records(api.client(), "v1", "successor")
        (taken,) = await successor.take_over()
        taken.commit({"a"})
        with pytest.raises(ApiError):
            await successor.write(GROUP, taken)
        api.recover()
        await successor.write(GROUP, taken)
        assert (api.record_phase(), api.records[GANG.object_key]["spec"]["term"]) == ("Committed", successor.term)

    async def test_one_that_can_be_neither_read_nor_deleted_keeps_no_other_from_being_taken_over(
        self, api: FakeApi, records: Records, held: Reservation
    ) -> None:
        await records.write(GROUP, held)
        other = pod_group("x").value()
        await records.write(other, Reservation(other.key, "uid", "", 1, {"x": Slot("x", "x", "n1")}))
        del api.records[GANG.object_key]["spec"]["phase"]
        api.reject("delete", GANG.object_key, error(500))
        (taken,) = await Records(api.client(), "v1", "successor").take_over()
        assert taken.group == other.key

    async def test_a_failure_of_a_moment_is_outlasted(
        self, api: FakeApi, records: Records, held: Reservation, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(reservations, "_RETRY", Backoff(0.0, 0.0))
        await records.write(GROUP, held)
        api.fail("replace", *[error(500)] * 3)
        successor = Records(api.client(), "v1", "successor")
        assert len(await successor.take_over()) == 1
        assert api.records[GANG.object_key]["spec"]["term"] == successor.term

    async def test_a_plan_that_could_only_be_deleted_is_written_anew(
        self, api: FakeApi, records: Records, held: Reservation
    ) -> None:
        await records.write(GROUP, held)
        api.fail("replace", error(403))
        successor = Records(api.client(), "v1", "successor")
        (taken,) = await successor.take_over()
        assert api.records == {}
        await successor.write(GROUP, taken)
        assert api.records[GANG.object_key]["spec"]["term"] == successor.term

    @pytest.mark.parametrize("committed", [False, True])
    async def test_a_write_that_was_done_though_an_error_came_is_seen_to_be_done(
        self,
        api: FakeApi,
        records: Records,
        held: Reservation,
        monkeypatch: pytest.MonkeyPatch,
        committed: bool,  # noqa: FBT001
    ) -> None:
        monkeypatch.setattr(reservations, "_MAX_FAILURES", 0)
        if committed:
            held.commit({"a"})
        await records.write(GROUP, held)
        api.lose_answer("replace", error(500))
        successor = Records(api.client(), "v1", "successor")
        (taken,) = await successor.take_over()
        await successor.write(GROUP, taken)
        assert len(api.list_calls("create")) == 1

    async def test_if_nobody_answers_the_takeover_is_to_be_begun_again(
        self, api: FakeApi, records: Records, held: Reservation
    ) -> None:
        await records.write(GROUP, held)
        api.fail("replace", error(0))
        with pytest.raises(ApiError):
            await Records(api.client(), "v1", "successor").take_over()

    async def test_a_takeover_whose_answer_was_lost_is_seen_to_be_done(self, api: FakeApi, records: Records) -> None:
        await records.write(GROUP, reservation(a="n1"))
        successor = Records(api.client(), "v1", "successor")
        api.lose_answer("replace", error(409, "Conflict"))
        (taken,) = await successor.take_over()
        await successor.remove(taken)
        assert api.records == {}


async def test_an_instance_that_does_not_lead_writes_and_deletes_nothing(api: FakeApi) -> None:
    leads = True
    records, held = Records(api.client(), "v1", "term-1", lambda: leads), reservation(a="n1")
    await records.write(GROUP, held)
    calls, leads = len(api.calls), False
    with pytest.raises(ApiError):
        await records.write(GROUP, held)
    await records.remove(held)
    assert len(api.calls) == calls


class HalfDead(FakeApi):
    """An API server that refuses the first write of one record, and answers the first one of another only later."""

    def __init__(self, refused: str) -> None:
        super().__init__()
        self.answers = asyncio.Event()
        self._refused = refused
        self._tried: set[str] = set()

    async def replace(self, resource: Resource, obj: Mapping[str, Any]) -> dict[str, Any]:
        name = obj["metadata"]["name"]
        if name not in self._tried:
            self._tried.add(name)
            if name == self._refused:
                raise error(0)
            await self.answers.wait()
        return await super().replace(resource, obj)


async def test_what_is_left_of_a_takeover_that_failed_does_not_meddle_with_the_next_one() -> None:
    """Otherwise the record that was claimed twice would have no owner, and stay when its gang is bound."""
    groups = [pod_group(name).gang(1).value() for name in ("a", "b")]
    api = HalfDead(refused=name_record(groups[0].key))
    for group in groups:
        held = Reservation(group.key, group.uid, "", 1, {group.key.name: Slot(group.key.name, group.key.name, "n1")})
        await Records(api.client(), "v1", "earlier").write(group, held)
    records = Records(api.client(), "v1", "ours")
    with pytest.raises(ApiError):
        await records.take_over()
    taken = await records.take_over()
    api.answers.set()
    for _ in range(10):
        await asyncio.sleep(0)
    for each in taken:
        await records.remove(each)
    assert api.records == {}
