"""The older minors that Serried supports read the same CRDs and policies, and refuse the same."""

from collections.abc import Iterator

import pytest

from bench.cluster import Spec
from tests.e2e.manifests import annotations, resizes
from tests.e2e.manifests.endpoint import Endpoint, ours
from tests.e2e.manifests.objects import gang, largest, template, workload
from tests.e2e.manifests.rules import ALLOWED, BAD, GOOD, REFUSED, Change
from tests.e2e.manifests.server import Server, changed, eventually
from tests.e2e.manifests.test_policies import GATE_CASES, created_gates, switch_to
from tests.e2e.manifests.test_preferred_topology import RULES, preferred
from tests.support.clusters import on_kubernetes, run_cluster

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module", params=[on_kubernetes("1.36.4"), on_kubernetes("1.35.4")])
def older(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    spec = Spec(
        name=f"manifests-{request.param.replace('.', '-')}",
        nodes=1,
        racks=1,
        blocks=1,
        api="fallback",
        hold="filter",
        kubernetes=request.param,
        serried=False,
    )
    with run_cluster(spec, tmp_path_factory) as cluster:
        server = Server(cluster, tmp_path_factory.mktemp("objects"))
        gate = ("rbac", "gate") if spec.has_mutating_policies else ()
        for part in ("crds", "policies", *gate):
            server.apply(part)
        server.run("apply", "-f", resizes.POLICY)
        server.run("wait", "crd", "--all", "--for=condition=Established", "--timeout=30s")
        yield server


@pytest.fixture(scope="module")
def api(older: Server) -> Endpoint:
    return ours(older.cluster)


def test_good_objects_are_taken(api: Endpoint) -> None:
    for item in (*GOOD, largest()):
        api.rehearse(item)


def test_bad_objects_are_refused_with_a_reason(api: Endpoint) -> None:
    assert [bad.sentence for bad in BAD if bad.message not in api.refusal(bad.item)] == []


def test_a_bad_preference_is_refused_with_a_reason(api: Endpoint) -> None:
    groups = [(rule.sentence, gang(**preferred(*rule.levels)), rule.message) for rule in RULES]
    templates = [
        (rule.sentence, workload(template(**preferred(*rule.levels))), rule.of_template or rule.message)
        for rule in RULES
    ]
    assert [sentence for sentence, item, message in groups + templates if message not in api.refusal(item)] == []


def test_changes_are_refused_with_a_reason(api: Endpoint) -> None:
    def refusal(change: Change) -> str:
        return api.refusal(changed(api.keep(change.item), change.path, change.value), "replace")

    assert [change.sentence for change in REFUSED if change.message not in refusal(change)] == []


def test_what_may_change_may_be_changed(api: Endpoint) -> None:
    for change in ALLOWED:
        api.rehearse(changed(api.keep(change.item), change.path, change.value), "replace")


def test_a_gang_keeps_its_size_and_other_jobs_do_not(older: Server) -> None:
    def is_refused(resize: resizes.Resize) -> bool:
        stored = resizes.create(older, resize.job)
        refused = resizes.MESSAGE in resizes.refusal(older, resizes.resized(stored, resize))
        resizes.remove(older)
        return refused

    eventually(lambda: is_refused(resizes.REFUSED[0]))
    assert [resize.sentence for resize in resizes.REFUSED if not is_refused(resize)] == []
    assert [resize.sentence for resize in resizes.ALLOWED if is_refused(resize)] == []


def test_a_job_with_a_wrong_word_is_refused(older: Server) -> None:
    for name, value, message in (case.values for case in (*annotations.WRONG, *annotations.WRONG_POLICY)):
        assert str(message) in older.refusal("create", annotations.suspended("bad", {str(name): value}))


def test_the_switch_gives_gang_pods_our_gate(older: Server) -> None:
    if not older.cluster.spec.has_mutating_policies:
        pytest.skip("this version serves no MutatingAdmissionPolicy")
    # Without its own API of gangs the API server drops their field.
    cases = [(item, gates) for item, gates in GATE_CASES if "schedulingGroup" not in item["spec"]]
    switch_to(older, "gate")
    eventually(lambda: created_gates(older, cases) == [gates for _, gates in cases])
