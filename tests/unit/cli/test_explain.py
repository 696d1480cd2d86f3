"""``serried explain``: a person who has only a name finds within one call why the gang waits, and what would help."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from serried.api.verdict import NO_LABEL, NO_USE_TO_WAIT, Reason, Stage, Verdict, render
from tests.support.commands import Run
from tests.support.pod_proxy import PodProxy

MANUAL = Path(__file__).resolve().parents[3] / "docs" / "troubleshooting.md"

TRAIN: dict[str, Any] = {
    "namespace": "team",
    "name": "train",
    "kind": "PodGroup",
    "object": {"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "name": "train"},
    "policy": "Gang",
    "minCount": 2,
    "members": 2,
    "placed": 0,
    "waiting": 2,
    "priority": 7,
    "preempts": True,
    "topologyKey": "rack",
    "domain": "",
    "state": "Waiting",
    "reason": "NoDomainFits",
    "message": "NoDomainFits: 2 members do not fit into any domain of rack (r1: 1)",
    "preemption": None,
    "detail": [
        {"name": "train-0", "uid": "u0", "state": "Waiting", "node": "", "planned": "", "nominated": ""},
        {"name": "train-1", "uid": "u1", "state": "Bound", "node": "n1", "planned": "", "nominated": ""},
    ],
}
DECISION = {"at": "2026-01-01T09:00:00Z", "group": "team/train", "kind": "PodGroup", "reason": "X", "text": "X: said"}


def lead(proxy: PodProxy, what: str, *groups: dict[str, Any]) -> None:
    names = [{"namespace": each["namespace"], "name": each["name"], "kind": each["kind"]} for each in groups]
    proxy.answer_debug("serried-0:8912", f"lookup/{what}", names)
    for each in groups:
        proxy.answer_debug("serried-0:8912", f"groups/{each['namespace']}/{each['name']}", each)
    proxy.answer_debug("serried-0:8912", "decisions", [DECISION])


@pytest.mark.parametrize(
    ("said", "asked"),
    [
        pytest.param("podgroup/train", "podgroup/train", id="a PodGroup"),
        pytest.param("podgroups.scheduling.k8s.io/train", "podgroup/train", id="as kubectl writes it"),
        pytest.param("pg/train", "podgroup/train", id="in short"),
        pytest.param("Job/train", "job/train", id="a Job"),
        pytest.param("po/train-0", "pod/train-0", id="a pod"),
        pytest.param("lws/train", "leaderworkerset/train", id="a LeaderWorkerSet"),
        pytest.param("job train", "job/train", id="a kind and a name, as kubectl takes them"),
        pytest.param("jobs.batch train", "job/train", id="a kind with its group"),
        pytest.param("train", "job/train", id="a name that a Job has"),
        pytest.param("train", "podgroup/train", id="a name that a PodGroup has"),
        pytest.param("train-0-x7k2p", "pod/train-0-x7k2p", id="a name that a pod has"),
        pytest.param("team/train", "job/train", id="a namespace and a name"),
        pytest.param("team/job/train", "job/train", id="a namespace, a kind and a name"),
        pytest.param("team/job:train", "job/train", id="as decisions name a Job without a PodGroup"),
        pytest.param("jobset:train:workers:0", "jobset/train", id="as they name a part of a JobSet"),
    ],
)
def test_many_names_lead_to_a_group(proxy: PodProxy, run: Run, said: str, asked: str) -> None:
    lead(proxy, f"team/{asked}", TRAIN)
    ended = run("explain", *said.split())
    assert (ended.code, ended.err) == (0, "")
    assert "team/train" in ended.out


def test_reason_numbers_and_what_helps_stand_together(proxy: PodProxy, run: Run) -> None:
    lead(proxy, "team/podgroup/train", TRAIN)
    out = run("explain", "podgroup/train").out
    facts = dict(re.split(r" {2,}", line.strip(), maxsplit=1) for line in out.splitlines() if "  " in line.strip())
    assert facts["reason"] == "NoDomainFits"
    assert facts["why"] == "2 members do not fit into any domain of rack (r1: 1)"
    assert "serried top shows how full each domain is" in facts["what helps"]
    assert facts["where"] == "one domain of rack"
    assert facts["30 min ago (10:00:00)"] == "X: said"


def test_what_has_no_effect_is_told(proxy: PodProxy, run: Run) -> None:
    lead(proxy, "team/podgroup/train", TRAIN | {"unread": ["annotation x has no effect, because nothing reads it"]})
    assert "no effect  annotation x has no effect" in re.sub(" {3,}", "  ", run("explain", "podgroup/train").out)


def test_a_label_is_called_by_the_level_that_it_stands_for(proxy: PodProxy, run: Run) -> None:
    lead(
        proxy, "team/podgroup/train", TRAIN | {"topologyKey": "example.com/r", "topologyLevel": "rack", "domain": "r1"}
    )
    assert "one domain of rack (example.com/r): r1" in run("explain", "podgroup/train").out


DIAGNOSIS = {
    "key": "rack",
    "need": 2,
    "domains": [
        {"domain": "r1", "slots": 1, "need": 2, "nodes": 3, "text": "r1: 1 of 2; cpu 2 nodes, taint gpu 1 node"},
        *({"domain": f"x{n}", "slots": 0, "need": 2, "nodes": 1, "text": f"x{n}: 0 of 2"} for n in range(12)),
    ],
    "domainsLeftOff": 4,
    "advice": [{"change": "smaller", "text": "ask for 14 cpu instead of 16; the gang would run in r1"}],
}


def test_what_would_make_it_fit_stands_beside_what_each_domain_lacks(proxy: PodProxy, run: Run) -> None:
    lead(proxy, "team/podgroup/train", TRAIN | {"diagnosis": DIAGNOSIS})
    out = run("explain", "podgroup/train").out
    assert "ask for 14 cpu instead of 16; the gang would run in r1" in out
    (row,) = [line.split(maxsplit=5) for line in out.splitlines() if line.startswith("r1 ")]
    assert row == ["r1", "1", "of", "2", "3", "cpu 2 nodes, taint gpu 1 node"]
    assert "7 more domains are not shown." in out
    assert any(each.endswith("groups/team/train?diagnosis=advice") for each in proxy.asked)


def test_where_no_change_helps_it_is_said(proxy: PodProxy, run: Run) -> None:
    lead(proxy, "team/podgroup/train", TRAIN | {"diagnosis": DIAGNOSIS | {"advice": []}})
    assert "No single change that Serried tried would make the gang fit." in run("explain", "podgroup/train").out


def test_turn_forecast_and_what_has_happened(proxy: PodProxy, run: Run) -> None:
    told = {
        "queue": {"position": 5, "length": 9, "before": ["a/1", "a/2", "a/3", "a/4"], "owners": ["", "", "job/x", ""]},
        "forecast": {"at": "2026-01-01T12:00:00Z", "basis": "the ends of 3 pods", "domain": "r1", "nodes": []},
        "timeline": [{"milestone": "quorum", "at": "2026-01-01T08:00:00Z"}],
    }
    lead(proxy, "team/podgroup/train", TRAIN | told)
    out = run("explain", "podgroup/train").out
    assert "5 of 9 that wait for resources, after a/2, a/job/x, a/4" in out
    assert "in 2 h 30 min (13:00:00), by the ends of 3 pods" in out
    assert ["90", "min", "ago", "(09:00:00)", "quorum"] in [line.split() for line in out.splitlines()]


def test_who_is_before_it_is_told_as_far_as_the_reader_may_list_their_pods(proxy: PodProxy, run: Run) -> None:
    turn = {"position": 3, "length": 9, "before": ["theirs/1", "team/2"], "owners": ["job/secret", "job/x"]}
    lead(proxy, "team/podgroup/train", TRAIN | {"queue": turn})
    proxy.listable = frozenset({"team"})
    assert "3 of 9 that wait for resources, after team/job/x\n" in run("explain", "podgroup/train").out
    (found,) = json.loads(run("explain", "podgroup/train", "-o", "json").out)
    assert (found["queue"]["before"], found["queue"]["owners"]) == (["team/2"], ["job/x"])


def test_of_several_groups_none_is_looked_for_what_would_make_it_fit(proxy: PodProxy, run: Run) -> None:
    lead(proxy, "team/leaderworkerset/serve", TRAIN | {"name": "serve-0"}, TRAIN | {"name": "serve-1"})
    run("explain", "leaderworkerset/serve")
    assert not any("diagnosis=advice" in each for each in proxy.asked)


def test_members_stand_in_the_order_of_their_ranks(proxy: PodProxy, run: Run) -> None:
    members = [{**TRAIN["detail"][0], "name": f"train-{rank}"} for rank in (0, 1, 10, 11, 2)]
    lead(proxy, "team/podgroup/train", TRAIN | {"detail": members})
    out = run("explain", "podgroup/train").out
    assert re.findall(r"^(train-\d+)", out, re.MULTILINE) == [f"train-{rank}" for rank in (0, 1, 2, 10, 11)]


LONG = "X: 16 members do not fit into any domain of rack (r1: 9, r2: 7); 48 members fit into the whole cluster"


@pytest.mark.parametrize(
    ("earlier", "shown"),
    [
        pytest.param(LONG, "X: as above", id="the same"),
        pytest.param(
            LONG.replace("9, r2: 7", "8, r3: 7"),
            "X: ... domain of rack (r1: 8, r3: 7); 48 members ...",
            id="other numbers in the midst of it",
        ),
        pytest.param("X: 5 of 8 members exist", "X: 5 of 8 members exist", id="another sentence"),
        pytest.param("Y: waits", "Y: waits", id="another reason"),
    ],
)
def test_a_sentence_that_was_said_is_not_said_again(proxy: PodProxy, run: Run, earlier: str, shown: str) -> None:
    lead(proxy, "team/podgroup/train", TRAIN | {"message": LONG})
    said = [DECISION | {"text": LONG, "at": "2026-01-01T09:00:00Z"}, DECISION | {"text": earlier}]
    proxy.answer_debug("serried-0:8912", "decisions", said)
    decisions = run("explain", "podgroup/train").out.partition("DECISION\n")[2].splitlines()
    assert [re.split(r" {3,}", line)[1] for line in decisions] == ["X: as above", shown]


def test_members_that_wait_stand_before_those_that_run(proxy: PodProxy, run: Run) -> None:
    lead(proxy, "team/podgroup/train", TRAIN)
    out = run("explain", "podgroup/train").out
    assert out.index("train-0") < out.index("train-1")


@pytest.mark.parametrize(
    ("preemption", "said"),
    [
        pytest.param(
            {"domain": "r1", "victims": ["other/p"], "blocker": "", "protections": []},
            ["WOULD BE EVICTED IN r1", "other/p"],
            id="pods that would have to go",
        ),
        pytest.param(
            {"domain": "", "victims": [], "blocker": "protection", "protections": ["kube-system/p is protected"]},
            ["No eviction would help in the cluster. Obstacle: protection (kube-system/p is protected)."],
            id="nobody whose end would help",
        ),
        pytest.param(
            {"domain": "", "victims": [], "blocker": "protection", "protections": ["they stay"], "protected": 12},
            ["Obstacle: protection (12 pods: they stay)."],
            id="how many of them may not go",
        ),
    ],
)
def test_a_search_for_victims_is_told(proxy: PodProxy, run: Run, preemption: dict[str, Any], said: list[str]) -> None:
    lead(proxy, "team/podgroup/train", TRAIN | {"preemption": preemption})
    out = run("explain", "podgroup/train").out
    assert all(part in out for part in said)


def test_victims_are_named_as_far_as_the_reader_may_list_pods_there(proxy: PodProxy, run: Run) -> None:
    found = {"domain": "r1", "victims": ["theirs/p", "team/q"], "blocker": "", "protections": []}
    lead(proxy, "team/podgroup/train", TRAIN | {"preemption": found})
    proxy.listable = frozenset({"team"})
    out = run("explain", "podgroup/train").out
    assert "theirs" not in out
    assert "team/q" in out
    assert "and 1 in namespaces whose pods you may not list" in " ".join(out.split())


def test_programs_get_a_list_however_many_groups_there_are(proxy: PodProxy, run: Run) -> None:
    lead(proxy, "team/leaderworkerset/serve", TRAIN | {"name": "serve-0"}, TRAIN | {"name": "serve-1"})
    found = json.loads(run("explain", "leaderworkerset/serve", "-o", "json").out)
    assert [(each["name"], each["reason"]) for each in found] == [
        ("serve-0", "NoDomainFits"),
        ("serve-1", "NoDomainFits"),
    ]
    assert found[0]["decisions"] == [DECISION]


def test_the_namespace_is_that_of_the_context_or_the_one_that_is_said(proxy: PodProxy, run: Run) -> None:
    lead(proxy, "other/job/train", TRAIN)
    assert run("explain", "job/train").code == 4
    assert run("explain", "job/train", "-n", "other").code == 0


def test_what_is_in_no_group_is_not_found_and_the_sentence_says_why(proxy: PodProxy, run: Run) -> None:
    refused = {"detail": "pod team/web is in no group: Serried lets the scheduler place it like any other pod"}
    proxy.answer_debug("serried-0:8912", "lookup/team/pod/web", refused, status=404)
    ended = run("explain", "pod/web")
    assert ended.code == 4
    assert ended.err == f"serried: {refused['detail']}\n"


@pytest.mark.parametrize(
    ("what", "said"),
    [
        pytest.param("/train", "'/train' is not the name of a group: use job/train", id="no kind"),
        pytest.param("podgroup/", "'podgroup/' is not the name of a group", id="no name"),
        pytest.param("team/{}", "'team/{}' is not the name of a group", id="what no name is"),
        pytest.param("job", "the name is missing: use job NAME", id="a kind alone"),
        pytest.param("deploy/web", "serried knows podgroup, job, jobset", id="a kind that has no gangs"),
    ],
)
def test_what_is_no_name_is_a_wrong_command_line(run: Run, what: str, said: str) -> None:
    ended = run("explain", what)
    assert ended.code == 2
    assert said in ended.err


def test_a_name_that_may_be_several_things_is_refused_with_the_choices(proxy: PodProxy, run: Run) -> None:
    lead(proxy, "team/podgroup/train", TRAIN)
    lead(proxy, "team/job/train", TRAIN | {"name": "train-5d9c7"})
    ended = run("explain", "train")
    assert ended.code == 2
    assert "use podgroup/train or job/train" in ended.err
    assert run("explain", "job/train").code == 0


@pytest.mark.parametrize(
    ("what", "said"),
    [
        pytest.param(
            "train",
            "belongs to one, in namespace team: use -n for another",
            id="a name",
        ),
        pytest.param("jbo/train", "in namespace jbo; did you mean job/train?", id="a kind that is mistyped"),
    ],
)
def test_a_name_that_leads_nowhere_is_not_found(run: Run, what: str, said: str) -> None:
    ended = run("explain", what)
    assert (ended.code, ended.out) == (4, "")
    assert said in ended.err


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        pytest.param("job/train", "; did you mean podgroup/train?", id="a PodGroup has the name"),
        pytest.param("job/other", "", id="nothing has it"),
    ],
)
def test_a_kind_that_the_name_does_not_have_is_told_with_the_one_that_has_it(
    proxy: PodProxy, run: Run, said: str, hint: str
) -> None:
    lead(proxy, "team/podgroup/train", TRAIN)
    refused = {"detail": f"no job team/{said.partition('/')[2]} is known"}
    proxy.answer_debug("serried-0:8912", f"lookup/team/{said}", refused, status=404)
    assert (run("explain", said).code, run("explain", said).err) == (4, f"serried: {refused['detail']}{hint}\n")


def test_a_job_that_is_no_gang_is_told_of_by_its_name_alone(proxy: PodProxy, run: Run) -> None:
    refused = {"detail": "job team/web is no gang: Serried lets the scheduler place its pods one by one"}
    proxy.answer_debug("serried-0:8912", "lookup/team/job/web", refused, status=404)
    ended = run("explain", "web")
    assert (ended.code, ended.err) == (4, f"serried: {refused['detail']}\n")


def test_several_are_shown_one_after_the_other(proxy: PodProxy, run: Run) -> None:
    lead(proxy, "team/job/train", TRAIN | {"owner": "job/train"})
    lead(proxy, "team/job/other", TRAIN | {"name": "other-7d5", "owner": "job/other"})
    out = run("explain", "job", "train", "other").out
    assert out.index("team/job/train") < out.index("team/job/other")
    assert run("explain", "job/train", "-o", "name").out == "team/job/train\n"


@pytest.mark.parametrize(
    ("said", "key", "helps"),
    [
        pytest.param(
            Verdict(Reason.NO_DOMAIN_FITS, need=2, key="rack", detail=NO_LABEL),
            "rack",
            "label the nodes",
            id="no node has the label",
        ),
        pytest.param(
            Verdict(Reason.NO_DOMAIN_FITS, need=5, key="rack", detail=NO_USE_TO_WAIT),
            "rack",
            "ask for less, or for one domain of a wider level, or add nodes",
            id="no domain would be enough",
        ),
        pytest.param(
            Verdict(Reason.NO_CAPACITY, have=4, need=5, detail=NO_USE_TO_WAIT),
            "",
            "ask for less, or add nodes",
            id="the whole cluster would not be enough",
        ),
    ],
)
def test_free_room_is_no_advice_where_it_would_not_help(
    proxy: PodProxy, run: Run, said: Verdict, key: str, helps: str
) -> None:
    told = {"reason": said.reason.value, "message": render(said), "topologyKey": key}
    lead(proxy, "team/podgroup/train", TRAIN | told)
    out = run("explain", "podgroup/train").out
    assert helps in out
    assert "free room" not in out


def test_without_a_domain_there_is_no_table_of_domains(proxy: PodProxy, run: Run) -> None:
    advice = [{"change": "label", "text": "label the nodes"}]
    none = DIAGNOSIS | {"domains": [], "domainsLeftOff": 0, "advice": advice}
    lead(proxy, "team/podgroup/train", TRAIN | {"diagnosis": none})
    out = run("explain", "podgroup/train").out
    assert "label the nodes" in out
    assert "DOMAIN" not in out


@pytest.mark.parametrize("reason", list(Reason))
def test_each_reason_has_advice_and_a_heading_in_the_docs(reason: Reason) -> None:
    assert reason.advice or reason.stage is Stage.BOUND
    assert re.search(rf"^### {reason}(: .+)?$", MANUAL.read_text(), re.MULTILINE)


def test_a_reason_of_another_version_is_shown_without_advice(proxy: PodProxy, run: Run) -> None:
    lead(proxy, "team/podgroup/train", TRAIN | {"reason": "NewOne", "message": "NewOne: something new"})
    out = run("explain", "podgroup/train").out
    assert "something new" in out
    assert "what helps" not in out
