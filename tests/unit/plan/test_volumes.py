"""Members that choose between volumes: each volume goes to one claim, a shared claim gets one."""

from dataclasses import replace
from itertools import permutations
from random import Random

from serried.api.resources import ATTACHED, CHOSEN
from serried.api.verdict import Verdict
from serried.api.volume import SHARED, ClaimRequirements, Volume, VolumeChoice, VolumePool
from serried.plan.capacity import MemberClass, group_classes
from serried.plan.fit import matches_terms
from serried.plan.gang import plan_gang
from serried.plan.request import Plan, PlanRequest, Snapshot
from serried.rules.volumes.plan import VolumeChoices, concerns
from tests.support.builders import node, pod
from tests.support.rules import PLAN_RULES
from tests.support.volumes import volume

ZONE = "topology.kubernetes.io/zone"
NODES = {f"{zone}{at}": node(f"{zone}{at}").label(ZONE, zone).value() for zone in "ab" for at in (1, 2)}


def disk(name: str, *zones: str, size: str = "1Gi") -> Volume:
    where = {"matchExpressions": [{"key": ZONE, "operator": "In", "values": list(zones)}]}
    return volume(name).available("local", size).node_affinity(where).value()


def pool_of(*disks: Volume, request: int = 1 << 30) -> VolumePool:
    ordered = tuple(sorted(disks, key=lambda each: each.capacity))
    return VolumePool(ClaimRequirements("local", request), f"{CHOSEN}local/{request}", ordered)


def classes(*choices: tuple[VolumeChoice, ...]) -> list[MemberClass]:
    """A class of one member for each of these."""
    found = []
    for at, each in enumerate(choices):
        value = pod(f"p{at}").value()
        found += group_classes([replace(value, shape=replace(value.shape, volumes=each))])
    return found


def state(kinds: list[MemberClass], used: dict[str, dict[str, int]] | None = None) -> VolumeChoices:
    found = VolumeChoices(Snapshot(NODES, used or {}, rules=PLAN_RULES), kinds)
    found.count()
    return found


def admitting(found: VolumeChoices, kind: MemberClass) -> str:
    return " ".join(name for name in NODES if found.admits(kind, name))


def test_a_volume_goes_to_one_member_and_comes_back() -> None:
    (kind,) = classes((VolumeChoice(pool_of(disk("v", "a"), disk("w", "b"))),))
    found = state([kind])
    assert found.couples
    assert found.list_keys() == [ZONE]
    assert admitting(found, kind) == "a1 a2 b1 b2"
    found.place(kind, "a1")
    assert admitting(found, kind) == "b1 b2"
    found.place(kind, "b2")
    assert admitting(found, kind) == ""
    found.place(kind, "a1", -1)
    assert admitting(found, kind) == "a1 a2"


def test_the_smallest_that_fits_is_taken_first() -> None:
    small, large = disk("s", "a"), disk("l", "a", size="4Gi")
    wide = VolumeChoice(pool_of(large, request=2 << 30))
    narrow = VolumeChoice(pool_of(small, large))
    for order in permutations([narrow, wide]):
        first, second = classes(*((each,) for each in order))
        found = state([first, second])
        found.place(first, "a1")
        assert found.admits(second, "a2")
        found.place(second, "a2")
        assert not admitting(found, first)


def test_a_member_with_two_claims_needs_both_volumes_on_one_node() -> None:
    pool = pool_of(disk("v", "a"), disk("w", "b"), disk("x", "b"))
    (both,) = classes((VolumeChoice(pool), VolumeChoice(pool)))
    found = state([both])
    assert admitting(found, both) == "b1 b2"
    found.place(both, "b1")
    assert admitting(found, both) == ""


def test_a_shared_claim_gets_one_volume_and_all_go_where_it_is() -> None:
    shared = VolumeChoice(pool_of(disk("v", "a"), disk("w", "b")), "default/data")
    (kind,) = classes((shared,))
    found = state([kind])
    found.place(kind, "b1")
    assert admitting(found, kind) == "b1 b2"
    found.place(kind, "b2")
    found.place(kind, "b2", -1)
    found.place(kind, "b1", -1)
    assert admitting(found, kind) == "a1 a2 b1 b2"


def test_the_first_member_has_to_be_there_before_others_of_a_shared_claim() -> None:
    (made,) = classes((VolumeChoice(None, "default/data"),))
    found = state([made])
    found.begin_wave()
    assert found.fits_wave(made, "a1")
    found.place(made, "a1")
    assert not found.fits_wave(made, "b1")
    found.begin_wave()
    assert found.fits_wave(made, "b1")
    assert admitting(found, made) == "a1 a2 b1 b2"


def test_what_planned_members_of_others_will_take_is_taken() -> None:
    pool = pool_of(disk("v", "a"), disk("w", "b"))
    (kind,) = classes((VolumeChoice(pool),))
    assert admitting(state([kind], {"a2": {pool.amount: 1}}), kind) == "b1 b2"
    shared = {name: {VolumeChoice(pool, "default/other").amount: 2} for name in ("a1", "a2")}
    assert admitting(state([kind], shared), kind) == "b1 b2"


def test_a_claim_that_planned_members_share_takes_one_volume_however_many_they_are() -> None:
    pool = pool_of(disk("u", "a"), disk("v", "a"))
    (kind,) = classes((VolumeChoice(pool),))
    shared = {"a1": {VolumeChoice(pool, "default/other").amount: 2}}
    assert admitting(state([kind], shared), kind) == "a1 a2"


def test_a_full_node_takes_a_member_whose_shared_volume_is_attached_there() -> None:
    limit, shared = f"{ATTACHED}csi", f"{ATTACHED}csi{SHARED}default/data"
    value = pod("p").value()
    (kind,) = group_classes([replace(value, shape=replace(value.shape, requests=((shared, 1),)))])
    nodes = {name: node(name).allocatable(limit, 1).value() for name in ("with", "without")}
    used = {"with": {limit: 2, shared: 1}, "without": {limit: 2}}  # more than the driver's limit, which was lowered
    found = VolumeChoices(Snapshot(nodes, used, rules=PLAN_RULES), [kind])
    found.count()
    assert [name for name in nodes if found.admits(kind, name)] == ["with"]


def test_after_the_first_is_taken_and_given_back_the_first_that_is_left_is_next() -> None:
    dice = Random(7)  # noqa: S311 - a test that can be repeated
    for _ in range(200):
        disks = [disk(f"v{at}", *dice.choice(["a", "b", "ab"]), size=f"{dice.randint(1, 3)}Gi") for at in range(6)]
        pool = pool_of(*disks)
        (kind,) = classes((VolumeChoice(pool),))
        found, taken = state([kind]), list[tuple[str, Volume]]()
        for _ in range(20):
            name = dice.choice(list(NODES))
            reached = [each for each in pool.volumes if each.terms and matches_terms(each.terms, NODES[name])]
            left = [each for each in reached if each not in [volume for _, volume in taken]]
            assert found.admits(kind, name) == bool(left)
            if left and dice.random() < 0.7:
                found.place(kind, name)
                taken.append((name, left[0]))
            elif taken:
                found.place(kind, taken[-1][0], -1)
                taken.pop()


def test_each_volume_that_is_sorted_is_charged() -> None:
    (kind,) = classes((VolumeChoice(pool_of(*(disk(f"v{at}", "a") for at in range(3000)))),))
    snapshot = Snapshot(NODES, {}, rules=PLAN_RULES)
    VolumeChoices(snapshot, [kind]).count()
    assert snapshot.limit.spent >= 3000


def test_others_choose_nothing() -> None:
    assert not concerns(group_classes([pod("p").value()]))


def plan(*choices: tuple[VolumeChoice, ...], used: dict[str, dict[str, int]] | None = None) -> Plan | Verdict:
    """Plan a gang whose members have these claims."""
    members = [member for kind in classes(*choices) for member in kind.members]
    return plan_gang(Snapshot(NODES, used or {}, rules=PLAN_RULES), PlanRequest(members, len(members)))


def test_members_of_one_class_go_where_each_has_a_volume() -> None:
    pool = pool_of(disk("v", "a"), disk("w", "b"), disk("x", "b"))
    found = plan(*[(VolumeChoice(pool),)] * 3)
    assert isinstance(found, Plan)
    assert sorted(name[0] for name in found.nodes.values()) == ["a", "b", "b"]
    assert len(found.waves) == 1


def test_too_few_volumes_are_said_with_their_class() -> None:
    found = plan(*[(VolumeChoice(pool_of(disk("v", "a"), disk("w", "b"))),)] * 3)
    assert isinstance(found, Verdict)
    assert (found.have, found.need) == (2, 3)
    assert found.detail == "2 PersistentVolumes of StorageClass local are left for 3 volume claims"


def test_those_who_can_have_one_volume_alone_get_it() -> None:
    only, any_of_two = disk("v", "a"), disk("w", "b")
    choosy = (VolumeChoice(pool_of(only, request=1 << 29)),)
    found = plan((VolumeChoice(pool_of(only, any_of_two)),), choosy)
    assert isinstance(found, Plan)
    assert {uid: name[0] for uid, name in found.nodes.items()} == {"pod-p0": "b", "pod-p1": "a"}


def test_members_that_share_a_claim_go_to_one_volume_and_the_first_goes_ahead() -> None:
    shared = (VolumeChoice(pool_of(disk("v", "a"), disk("w", "b")), "default/data"),)
    found = plan(*[shared] * 4)
    assert isinstance(found, Plan)
    assert len({name[0] for name in found.nodes.values()}) == 1
    assert [len(wave) for wave in found.waves] == [1, 3]
