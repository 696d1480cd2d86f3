"""Troubleshooting has a heading for each reason, and below it the sentence as Serried says it."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from serried.api.topology import LevelTable, Pool, explain_missing
from serried.api.verdict import Reason, Verdict, render
from serried.api.volume import VolumeClaim
from serried.cluster.rule import KindState
from tests.support.builders import RACK, Builder, NodeBuilder, node, pod
from tests.support.devices import rejection_message
from tests.support.extender_harness import Harness, gang, members, small_nodes

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "troubleshooting.md").read_text()
TEMPLATES = [{"name": "gpu", "resourceClaimTemplateName": "one"}]


def racks(*names: str) -> list[NodeBuilder]:
    """A node for each, with room for two members."""
    return [node(f"n{number}").cpu(2).rack(name) for number, name in enumerate(names, 1)]


SCENES: dict[str, Sequence[Builder]] = {
    "QuorumMissing": [*small_nodes(2), gang(4), *members(3)],
    "QuorumMissing: no ResourceClaim": [
        *(*small_nodes(2), gang(2)),
        *(each.with_field(TEMPLATES, "spec", "resourceClaims") for each in members(2)),
    ],
    "MemberGated": [*small_nodes(2), gang(2), *members(1), members(2)[1].gate("example.com/quota")],
    "NoDomainFits": [
        *(*(each.cpu(4) for each in racks("r1", "r2")), gang(4).topology(), *members(4)),
        *(pod(f"other-{number}").cpu(2).on(f"n{number}") for number in (1, 2)),
    ],
    "NoDomainFits: even if nothing ran": [*racks("r1"), gang(3).topology(), *members(3)],
    "NoDomainFits: no node has this label": [*small_nodes(2), gang(2).topology(), *members(2)],
    "NoCapacity": [node("n1").cpu(4), pod("other").cpu(2).on("n1"), gang(3), *members(3)],
    "NoCapacity: which no node has": [
        *(*small_nodes(2), gang(2)),
        *(each.request("nvidia.com/gpu", 1) for each in members(2)),
    ],
    "NoCapacity: can run nowhere": [*small_nodes(2), gang(2), *(each.mounting("data") for each in members(2))],
    "NoCapacity: kube-scheduler rejects": [
        *(*small_nodes(2), gang(2), *members(1)),
        members(2)[1].unschedulable(message=rejection_message("12 node(s) didn't match pod anti-affinity rules")),
    ],
    "DomainFull": [*racks("r1", "r2"), gang(2).topology(), *(each.on("n1") for each in members(2)), members(3)[2]],
    "DomainConflict": [
        *(*racks("r1", "r2"), gang(3).topology()),
        *(members(1)[0].on("n1"), members(2)[1].on("n2"), members(3)[2]),
    ],
}
"""The objects in the cluster for which the sentence is reported."""

SAID: dict[str, Verdict] = {
    "PodGroupMissing": Verdict(Reason.POD_GROUP_MISSING),
    "LevelUnknown": Verdict(
        Reason.LEVEL_UNKNOWN,
        key="spine",
        detail=explain_missing("spine", (), LevelTable({"spine": ("example.com/spine",)}, (Pool("", 2, {}),))),
    ),
    "NotItsPodGroup": Verdict(Reason.NOT_ITS_POD_GROUP, key="train"),
    "WorkloadAPIMissing": Verdict(Reason.API_MISSING),
    "RecordsUnreadable: install the CRDs": Verdict(
        Reason.RECORDS_UNREADABLE,
        detail="the API server does not serve reservations.scheduling.serried.dev (v1beta1): install the CRDs",
    ),
    "RecordsUnreadable: a later release": Verdict(
        Reason.RECORDS_UNREADABLE,
        detail=(
            "the Reservation has format 3 of a later release of Serried: run that release, or delete the Reservation"
        ),
    ),
    "RecordsUnreadable: a member of a committed gang": Verdict(
        Reason.RECORDS_UNREADABLE, detail="cannot tell whether team/train-0, a member of a committed gang, exists"
    ),
    "JobUnknown": Verdict(Reason.JOB_UNKNOWN),
    "NoDomainFits: may have no more": Verdict(
        Reason.NO_DOMAIN_FITS,
        need=1,
        key=RACK,
        detail="gangs of namespace team have 4 of 5 domains exclusively, and may have no more",
    ),
    "PriorityUnknown": Verdict(Reason.PRIORITY_UNKNOWN, key="urgent"),
    "GroupsUnplaced": Verdict(Reason.GROUPS_UNPLACED, 1, 2),
    "Planning": Verdict(Reason.PLANNING, need=1300),
    "Planning: Serried is counting": Verdict(
        Reason.PLANNING, need=2, detail="Serried is counting the pods that the affinity or spread rules of m0 select"
    ),
    "PlanUnfinished": Verdict(Reason.PLAN_UNFINISHED, 2, 1300),
    "BehindHead": Verdict(Reason.BEHIND_HEAD, need=2, key="default/g"),
    "AskingForNodes": Verdict(Reason.ASKING_FOR_NODES, 4, 16, "zone-a"),
    "NoNodesCame": Verdict(
        Reason.NO_NODES_CAME,
        4,
        16,
        "zone-a",
        detail="asked at 2026-11-29T09:30:00Z, Karpenter: FailedScheduling: limits exceeded",
    ),
    "Preempting": Verdict(Reason.PREEMPTING, 1, 2),
    "EvictionRefused": Verdict(Reason.EVICTION_REFUSED),
    "VictimsRemain": Verdict(Reason.VICTIMS_REMAIN, 1, 2),
    "Planned": Verdict(Reason.PLANNED, need=2),
    "Binding": Verdict(Reason.BINDING, 1, 2),
    "Scheduled": Verdict(Reason.SCHEDULED, 2),
    "DeadlineExceeded": Verdict(Reason.DEADLINE_EXCEEDED, 1, 2),
    "PlanOutdated": Verdict(Reason.PLAN_OUTDATED),
    "Broken": Verdict(Reason.BROKEN, 1, 2),
    "RecordFailed": Verdict(Reason.RECORD_FAILED),
}
"""The verdicts that a few objects alone do not produce. The tests of their own modules have more cases."""


def read_sections() -> dict[str, str]:
    """Return the page's text below each reason."""
    _, _, below = PAGE.partition("\n## What does the reason mean?\n")
    parts = re.split(r"^### (.*)\n", below.partition("\n## ")[0], flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


SECTIONS = read_sections()


def split(heading: str) -> tuple[str, str]:
    """Return Serried's message below a heading, and the page's text after it."""
    said, text = re.fullmatch(r"\n`(.*)`\n\n(.*)", SECTIONS[heading], re.DOTALL).groups()  # type: ignore[union-attr]
    return said, text.strip()


def test_every_reason_has_a_heading() -> None:
    assert {heading.partition(":")[0] for heading in SECTIONS} == set(Reason)
    assert SECTIONS.keys() == SCENES.keys() | SAID.keys()


@pytest.mark.parametrize("heading", SECTIONS)
def test_below_it_stands_what_to_do_in_few_words(heading: str) -> None:
    assert 1 < len(split(heading)[1].split()) <= 50


@pytest.mark.parametrize("heading", [heading for heading in SECTIONS if ": " in heading])
def test_a_heading_for_one_cause_has_the_words_by_which_people_find_it(heading: str) -> None:
    assert heading.partition(": ")[2] in split(heading)[0]


@pytest.mark.parametrize("heading", SCENES)
async def test_a_cluster_says_what_stands_there(heading: str) -> None:
    world = Harness()
    world.store.note_state(VolumeClaim, KindState.KNOWN)
    await world.add(*SCENES[heading]).run_until_idle()
    assert split(heading)[0] == render(world.heard.verdicts[-1][1])
    await world.close()


@pytest.mark.parametrize("heading", SAID)
def test_a_reason_has_the_words_that_stand_there(heading: str) -> None:
    assert split(heading)[0] == render(SAID[heading])
