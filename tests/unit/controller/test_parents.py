"""Objects that a JobSet or a LeaderWorkerSet should have, and the events about it."""

import tracemalloc
from collections.abc import Iterator, Sequence
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.diff.changes import CreatePodGroup, Observed, ReportAmbiguous, SetMinCount
from controller.diff.objects import pod_group_body, workload_body
from controller.diff.owner import (
    DesiredAction,
    GangSettings,
    MinCountUpdate,
    diff,
    find_no_gang_event,
    find_surplus_groups,
    find_warnings,
    find_warnings_of_parent,
    make_workload_create,
)
from serried.api.group import PodGroup, Policy, Workload, decode_pod_group, decode_workload
from serried.api.level import FALLBACK, NATIVE_LEVELS
from serried.api.names import REPLICA
from serried.api.parent import MANAGED_BY, PARENT_UID
from tests.support.builders import RACK, JobBuilder, PodGroupBuilder, WorkloadBuilder, job, pod_group, workload
from tests.support.parents import JobSetBuilder, LeaderWorkerSetBuilder, job_set, leader_worker_set

SERVED = ["serried"]
INLINE = NATIVE_LEVELS[-1]
TYPO = "scheduling.serried.dev/required-topolgy"


def training() -> JobSetBuilder:
    return job_set("s").gang_policy().topology().replicated("driver").replicated("workers", replicas=2, pods=4)


def serving() -> LeaderWorkerSetBuilder:
    return leader_worker_set("s").gang_policy().size(replicas=2, pods=4)


def of_serving() -> WorkloadBuilder:
    return workload("w").for_parent("LeaderWorkerSet", "s").gang_template("t", 4)


def group_of(name: str, template: str = "t") -> PodGroupBuilder:
    return pod_group(name).gang(4).from_template("w", template)


def made_for(parent: JobSetBuilder | LeaderWorkerSetBuilder) -> Workload:
    """The Workload, as it comes back from the API server."""
    body = workload_body(make_workload_create(parent.value(), DesiredAction.START), FALLBACK)
    made = decode_workload({**body, "metadata": {**body["metadata"], "uid": "u"}})
    assert isinstance(made, Workload)
    return made


def missing_in(
    parent: JobSetBuilder | LeaderWorkerSetBuilder, made: Workload, groups: Sequence[PodGroup], replicas: Sequence[str]
) -> list[CreatePodGroup]:
    """The creates of PodGroups where these replicas have leaders."""
    changes = diff(
        parent.value(), Observed([made], groups, replicas=replicas), DesiredAction.START, MinCountUpdate.NEVER
    )
    return [each for each in changes if isinstance(each, CreatePodGroup)]


class Leaders(list[str]):
    """Indexes of replicas that count how many of them were looked at."""

    seen = 0

    def __iter__(self) -> Iterator[str]:
        for index in super().__iter__():
            self.seen += 1
            yield index


def lagging(parent: JobSetBuilder | LeaderWorkerSetBuilder, found: Observed) -> list[tuple[object, int, int]]:
    """Return the changes that follow a new size: object, minCount and index of the template."""
    changes = diff(parent.value(), found, DesiredAction.COMPLETE, MinCountUpdate.PATCH)
    return [(each.item, each.count, each.template) for each in changes if isinstance(each, SetMinCount)]


def test_one_gang_over_all_has_one_template_in_its_domain() -> None:
    body = workload_body(make_workload_create(training().value(), DesiredAction.START), FALLBACK)
    assert body["spec"]["controllerRef"] == {"apiGroup": "jobset.x-k8s.io", "kind": "JobSet", "name": "s"}
    (owner,) = body["metadata"]["ownerReferences"]
    assert (owner["apiVersion"], owner["kind"], owner["uid"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet", "jobset-s")
    assert owner["controller"]
    assert body["metadata"]["labels"] == {MANAGED_BY: "serried", PARENT_UID: "jobset-s"}
    (template,) = made_for(training()).templates
    assert (template.name, template.policy, template.topology_key) == ("s-pgt-0", Policy(9), RACK)


def test_stages_have_templates_of_their_names() -> None:
    staged = training().in_order().replicated("evaluators", pods=2)
    assert [(each.name, each.policy) for each in made_for(staged).templates] == [
        ("workers", Policy(8)),
        ("evaluators", Policy(2)),
    ]


def test_each_replica_gets_a_pod_group_of_its_own_that_says_which() -> None:
    made = made_for(serving())
    groups = []
    for create in missing_in(serving(), made, [], ["0", "1"]):
        body = pod_group_body(create, FALLBACK)
        decoded = decode_pod_group({**body, "metadata": {**body["metadata"], "uid": "u"}})
        assert isinstance(decoded, PodGroup)
        groups.append(decoded)
    assert [group.labels[REPLICA] for group in groups] == ["0", "1"]
    assert len({group.key for group in groups}) == 2
    assert {(group.workload, group.template) for group in groups} == {(made.key.name, "s-pgt-0")}
    assert not missing_in(serving(), made, groups, ["0", "1"])


def test_only_replicas_that_are_there_and_wanted_need_a_pod_group() -> None:
    made = made_for(serving())
    seen = ["1", "2", "01", "-1", "x", "", "²", "9" * 50]
    assert [create.replica for create in missing_in(serving(), made, [], seen)] == ["1"]
    one = made_for(training())
    assert [create.replica for create in missing_in(training(), one, [], seen)] == [""]


@given(st.integers(0, 2_000_000), st.sets(st.integers(0, 2_000_000), max_size=20))
def test_a_number_of_replicas_costs_nothing(replicas: int, there: set[int]) -> None:
    parent, made = serving().size(replicas, 4).value(), made_for(serving())
    own = {MANAGED_BY: "serried", PARENT_UID: "leaderworkerset-s"}
    groups = [group_of(f"g{n}").with_field({**own, REPLICA: str(n)}, "metadata", "labels").value() for n in there]
    tracemalloc.start()
    missing = list(
        diff(parent, Observed([made], replicas=[str(n) for n in there]), DesiredAction.START, MinCountUpdate.NEVER)
    )
    surplus = find_surplus_groups(parent, Observed([made], groups))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    created = {int(change.replica) for change in missing if isinstance(change, CreatePodGroup)}
    assert created == {index for index in there if index < replicas}
    assert {group.labels[REPLICA] for group in surplus} == {str(index) for index in there if index >= replicas}
    assert peak < 30_000  # bytes; a list of 2,000 numbers has more


def test_a_look_at_a_thousand_new_replicas_costs_what_it_takes_of_them() -> None:
    leaders = Leaders(map(str, range(1000)))
    changes = diff(
        serving().size(1000, 4).value(),
        Observed([made_for(serving())], replicas=leaders),
        DesiredAction.START,
        MinCountUpdate.PATCH,
    )
    assert [change.replica for change in islice(changes, 8) if isinstance(change, CreatePodGroup)] == leaders[:8]
    assert leaders.seen == 8


def test_what_a_workload_contains_is_not_missing() -> None:
    body = workload_body(make_workload_create(serving().topology().value(), DesiredAction.START), INLINE)
    assert body["spec"]["podGroups"] == [{"name": "s-pgt-0", "policy": {"gang": {"minCount": 4}}}]
    contained = workload("w").for_parent("LeaderWorkerSet", "s").inline_gang("t", 4).value()
    assert not missing_in(serving(), contained, [], ["0", "1"])


def test_pod_groups_of_replicas_that_are_gone_are_surplus_if_they_are_ours() -> None:
    own = {MANAGED_BY: "serried", PARENT_UID: "leaderworkerset-s"}
    ours = [group_of(f"g{index}").with_field({**own, REPLICA: str(index)}, "metadata", "labels") for index in range(4)]
    foreign = group_of("theirs").replica(7)
    found = Observed([of_serving().value()], [each.value() for each in (*ours, foreign)])
    assert [group.key.name for group in find_surplus_groups(serving().value(), found)] == ["g2", "g3"]


def test_what_we_made_follows_a_changed_size() -> None:
    made = made_for(serving())
    (create,) = missing_in(serving(), made, [], ["0"])
    body = pod_group_body(create, FALLBACK)
    group = decode_pod_group({**body, "metadata": {**body["metadata"], "uid": "u"}})
    assert isinstance(group, PodGroup)
    found = Observed([made], [group])
    assert not lagging(serving(), found)
    assert lagging(serving().size(2, 6), found) == [(made, 6, 0), (group, 6, 0)]


def test_a_users_workload_keeps_its_size() -> None:
    found = Observed([of_serving().value()], [group_of("g").replica(0).value()])
    assert not lagging(serving().size(2, 6), found)


def test_each_stage_follows_its_own_size() -> None:
    staged = job_set("s").gang_policy().in_order().replicated("a", pods=2).replicated("b", pods=3)
    made = made_for(staged)
    grown = job_set("s").gang_policy().in_order().replicated("a", pods=2).replicated("b", pods=5)
    assert lagging(grown, Observed([made])) == [(made, 5, 1)]


def test_a_gang_that_shrinks_to_one_pod_waits_for_one() -> None:
    made = made_for(serving())
    assert lagging(serving().size(2, 1), Observed([made])) == [(made, 1, 0)]


def test_a_stage_that_shrinks_to_one_pod_or_none_waits_for_one() -> None:
    made = made_for(job_set("s").gang_policy().in_order().replicated("a", pods=2).replicated("b", pods=3))
    for left in (1, 0):
        shrunk = job_set("s").gang_policy().in_order().replicated("a", pods=2).replicated("b", pods=left)
        assert lagging(shrunk, Observed([made])) == [(made, 1, 1)]


@pytest.mark.parametrize(
    ("found", "problems"),
    [
        pytest.param(Observed([of_serving().value()]), [], id="one Workload"),
        pytest.param(
            Observed([of_serving().value(), of_serving().uid("x").value()]),
            ["Workloads w, w all refer to it, but exactly one may"],
            id="two Workloads",
        ),
        pytest.param(
            Observed([of_serving().uid(f"{place}").value() for place in range(1_000)]),
            ["Workloads w, w, w and 997 more all refer to it, but exactly one may"],
            id="a thousand Workloads",
        ),
        pytest.param(
            Observed([workload("w").for_parent("LeaderWorkerSet", "s").value()]),
            ["Workload w needs one template with the name of each group of pods"],
            id="no template",
        ),
        pytest.param(
            Observed([of_serving().value()], [group_of("a").replica(1).value(), group_of("b").replica(1).value()]),
            ["PodGroups a, b are all for the same pods of Workload w"],
            id="two PodGroups of one replica",
        ),
        pytest.param(
            Observed([of_serving().value()], [group_of("a").replica(0).value(), group_of("b").replica(1).value()]),
            [],
            id="one of each",
        ),
    ],
)
def test_what_is_not_clear_is_said(found: Observed, problems: list[str]) -> None:
    changes = diff(serving().value(), found, DesiredAction.START, MinCountUpdate.NEVER)
    assert [change.problem for change in changes if isinstance(change, ReportAmbiguous)] == problems


COMPLAINTS: list[tuple[str, JobSetBuilder | LeaderWorkerSetBuilder, list[str], str]] = [
    ("nothing to say", training(), [], ""),
    ("one that asks for nothing", training().in_order().gang_policy("NoGang"), [], ""),
    ("a word that is none", training().gang_policy("Gang"), ["FailedWorkloadCompilation"],
     "must be one of JobSetAsGang, NoGang"),
    ("a word of another kind", serving().gang_policy("JobSetAsGang"), ["FailedWorkloadCompilation"],
     "must be one of ReplicaAsGang, NoGang"),
    ("a key that is none", training().topology("no key"), ["FailedWorkloadCompilation"], "is no label key"),
    ("another scheduler", training().replicated("x", scheduler="other"), ["SchedulerNotGangAware"],
     "Serried does not serve its scheduler other"),
    ("another scheduler, of one that only wants one domain",
     job_set("s").replicated("w", pods=2, scheduler="other").topology(), ["SchedulerNotGangAware"],
     "create it again with schedulerName serried"),
    ("stages", training().in_order(), ["GangPerStage"], "(startupPolicy), so each of them with more than one pod"),
    ("workers that start later", serving().startup_leader_ready(), ["GangPerStage"], "are a gang without their leader"),
    ("exclusive placement", training().annotation("alpha.jobset.sigs.k8s.io/exclusive-topology", "rack"),
     ["NoGang"], "(exclusive-topology)"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("builder", "reasons", "part"), [pytest.param(b, r, p, id=sentence) for sentence, b, r, p in COMPLAINTS]
)
def test_a_parent_is_told_what_it_should_know(
    builder: JobSetBuilder | LeaderWorkerSetBuilder, reasons: list[str], part: str
) -> None:
    said = find_warnings_of_parent(builder.value(), SERVED)
    assert [reason for reason, _ in said] == reasons
    assert all(part in message for _, message in said)


@pytest.mark.parametrize(
    "owner",
    [training().annotation(TYPO, "rack"), job("j").size(2).scheduler("serried").annotation(TYPO, "rack")],
    ids=["a parent", "a Job"],
)
def test_an_owner_is_told_what_nothing_reads(owner: JobSetBuilder | JobBuilder) -> None:
    (reason, said), *rest = find_warnings(owner.value(), DesiredAction.START, GangSettings(SERVED))
    assert (reason, rest) == ("UnknownName", [])
    assert "did you mean the annotation scheduling.serried.dev/required-topology" in said
    assert find_warnings(owner.condition("Completed").value(), DesiredAction.NONE, GangSettings(SERVED)) == []


def test_jobs_that_ask_within_a_gang_are_told_of() -> None:
    raw = training().raw()
    annotations = {"scheduling.serried.dev/gang-policy": "JobAsGang"}
    raw["spec"]["replicatedJobs"][1]["template"]["metadata"] = {"annotations": annotations}
    assert [reason for reason, _ in find_warnings_of_parent(JobSetBuilder(raw).value(), SERVED)] == [
        "GangPolicyIgnored"
    ]


def test_nine_stages_are_told_of() -> None:
    staged = job_set("s").gang_policy().in_order()
    for number in range(9):
        staged = staged.replicated(f"stage-{number}", pods=2)
    ((reason, said),) = find_warnings_of_parent(staged.value(), SERVED)
    assert (reason, "has 9 stages" in said) == ("NoGang", True)


REFUSALS: list[tuple[str, JobSetBuilder | LeaderWorkerSetBuilder, str]] = [
    ("one that names our scheduler and does not ask", job_set("s").replicated("w", pods=2),
     "the annotation scheduling.serried.dev/gang-policy: JobSetAsGang"),
    ("one that asks", training(), ""),
    ("one that says that it is none", training().gang_policy("NoGang"), ""),
    ("one of another scheduler", job_set("s").replicated("w", pods=2, scheduler="other"), ""),
    ("one pod", job_set("s").replicated("w", pods=1), ""),
]  # fmt: skip


@pytest.mark.parametrize(("builder", "part"), [pytest.param(b, p, id=sentence) for sentence, b, p in REFUSALS])
def test_a_parent_that_is_no_gang_is_told_why_if_it_could_be_meant_as_one(
    builder: JobSetBuilder | LeaderWorkerSetBuilder, part: str
) -> None:
    said = find_no_gang_event(builder.value(), GangSettings(SERVED))
    assert (said is not None) is bool(part)
    assert said is None or (said.reason == "NoGang" and part in said.message)
