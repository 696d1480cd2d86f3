"""Annotations of a Job about its gang are refused where Serried could not follow them."""

from collections.abc import Iterator

import pytest

from bench.cluster import ClusterError
from tests.e2e.manifests.annotations import (
    DISRUPTION,
    EXCLUSIVE,
    PACKING,
    POLICIES,
    POLICY,
    PREFERRED,
    RIGHT,
    TOPOLOGY,
    WRONG,
    WRONG_POLICY,
    suspended,
)
from tests.e2e.manifests.server import Json, Server, eventually
from tests.support.clusters import at_one_level

pytestmark = [pytest.mark.e2e, at_one_level("fallback", fixture="bare")]


@pytest.fixture
def kept(server: Server) -> Iterator[str]:
    """A Job that says nothing."""
    server.write("create", suspended("kept", {}))
    yield "job/kept"
    server.run("delete", "job", "kept")


SAID = {TOPOLOGY: "rack", PREFERRED: "block", PACKING: "spread", EXCLUSIVE: "true", DISRUPTION: "all"}
ANOTHER = {TOPOLOGY: "zone", PREFERRED: "rack", PACKING: "pack", EXCLUSIVE: "false", DISRUPTION: "single"}


def resumed(job: Json) -> Json:
    """The same Job, not suspended."""
    return {**job, "spec": {**job["spec"], "suspend": False}}


def annotate(server: Server, target: str, name: str, value: str | None) -> str:
    return server.patch(target, {"metadata": {"annotations": {name: value}}})


@pytest.mark.parametrize("annotations", RIGHT)
def test_right_words_are_taken(server: Server, annotations: Json) -> None:
    server.write("create", suspended("right", annotations), options=("--dry-run=server",))


@pytest.mark.parametrize(("name", "value", "message"), [*WRONG, *WRONG_POLICY])
def test_a_job_created_with_a_wrong_word_is_refused(server: Server, name: str, value: str, message: str) -> None:
    refused = server.refusal("create", suspended("bad", {name: value}))
    assert f"metadata.annotations[{name}]: " in refused
    assert message in refused


@pytest.mark.parametrize(("name", "value", "message"), WRONG)
def test_a_wrong_word_given_later_is_refused(server: Server, kept: str, name: str, value: str, message: str) -> None:
    with pytest.raises(ClusterError) as refused:
        annotate(server, kept, name, value)
    assert message in str(refused.value)


def test_topology_and_disruption_mode_may_be_given_later_and_taken_back(server: Server, kept: str) -> None:
    for name, value in ((TOPOLOGY, "rack"), (DISRUPTION, "all"), (TOPOLOGY, None), (DISRUPTION, None)):
        annotate(server, kept, name, value)


@pytest.fixture
def running(server: Server) -> Iterator[str]:
    """A Job that says all that can be said, and is not suspended."""
    server.write("create", resumed(suspended("running", dict(SAID))))
    yield "job/running"
    server.run("delete", "job", "running")


@pytest.mark.parametrize("said", [ANOTHER, {}], ids=["changed", "removed"])
@pytest.mark.parametrize("name", SAID)
def test_what_a_running_job_says_of_its_gang_is_immutable(
    server: Server, running: str, name: str, said: dict[str, str]
) -> None:
    with pytest.raises(ClusterError) as refused:
        annotate(server, running, name, said.get(name))
    assert f"metadata.annotations[{name}]: Invalid value: it is immutable unless" in str(refused.value)
    server.patch(running, {"metadata": {"annotations": {"example.com/note": "x"}, "labels": {"a": "b"}}})


@pytest.mark.parametrize("name", [POLICY, TOPOLOGY])
def test_nor_can_it_be_changed_with_the_status(server: Server, running: str, name: str) -> None:
    said = {"metadata": {"annotations": {name: "NoGang"}}}
    with pytest.raises(ClusterError, match="Invalid value: it is immutable"):
        server.patch(running, said, "--subresource=status")
    server.patch(running, {"metadata": {"annotations": {"example.com/note": "x"}}}, "--subresource=status")


@pytest.mark.parametrize("name", ANOTHER)
def test_nothing_can_be_said_of_its_gang_once_a_job_runs(server: Server, name: str) -> None:
    server.write("create", resumed(suspended("silent", {"example.com/note": "x"})))
    try:
        with pytest.raises(ClusterError, match="it is immutable unless the Job is suspended"):
            annotate(server, "job/silent", name, ANOTHER[name])
    finally:
        server.run("delete", "job", "silent")


def test_a_job_may_say_it_in_the_moment_in_which_it_is_resumed(server: Server, kept: str) -> None:
    server.patch(kept, {"metadata": {"annotations": {TOPOLOGY: "rack"}}, "spec": {"suspend": False}})


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("NoGang", "JobAsGang", id="changed"),
        pytest.param("JobAsGang", None, id="removed"),
        pytest.param(None, "JobAsGang", id="added later"),
        pytest.param(None, "", id="added empty"),
    ],
)
def test_a_jobs_gang_policy_is_immutable(server: Server, before: str | None, after: str | None) -> None:
    server.write("create", suspended("fixed", {POLICY: before} if before else {}))
    try:
        with pytest.raises(ClusterError, match="Invalid value: it is immutable"):
            annotate(server, "job/fixed", POLICY, after)
        server.patch("job/fixed", {"metadata": {"labels": {"a": "b"}}})
    finally:
        server.run("delete", "job", "fixed")


def test_a_job_that_said_it_before_the_policy_came_can_still_be_changed(server: Server) -> None:
    server.run("delete", *POLICIES)
    wrong = {POLICY: "Gang", TOPOLOGY: "my rack", DISRUPTION: "All"}
    created = eventually_created(server, suspended("old", wrong))
    try:
        server.run("apply", *POLICIES)
        eventually(lambda: is_refused(server, suspended("new", wrong)))
        server.patch(created, {"metadata": {"labels": {"a": "b"}}})
        with pytest.raises(ClusterError, match="must be the key of a node label"):
            annotate(server, created, TOPOLOGY, "my other rack")
    finally:
        server.run("apply", *POLICIES)
        server.run("delete", created)


def eventually_created(server: Server, job: Json) -> str:
    """The API server forgets a policy a moment after its deletion."""
    eventually(lambda: not is_refused(server, job))
    server.write("create", job)
    return f"job/{job['metadata']['name']}"


def is_refused(server: Server, job: Json) -> bool:
    return server.refuses("denied request", "create", job, options=("--dry-run=server",))
