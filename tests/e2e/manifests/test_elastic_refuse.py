"""With the policy of elastic-refuse, a change of parallelism is refused if the Job is a gang before or after it."""

from collections.abc import Iterator

import pytest

from serried.api.job import decode_job, is_gang_job
from tests.e2e.manifests.resizes import (
    ALLOWED,
    ALLOWED_NATIVELY,
    GROWING,
    MESSAGE,
    POLICY,
    REFUSED,
    REFUSED_NATIVELY,
    Resize,
    create,
    four,
    refusal,
    remove,
    resized,
    running,
)
from tests.e2e.manifests.server import KUSTOMIZE, Json, Server, eventually
from tests.support.builders import require_valid

pytestmark = [pytest.mark.e2e, pytest.mark.full]

NATIVELY = pytest.mark.parametrize("bare", ["native"], indirect=True, scope="session")


@pytest.fixture(scope="module")
def refusing(server: Server) -> Iterator[Server]:
    """With the policy in force."""
    server.run("apply", "-f", POLICY)
    stored = create(server, four())
    eventually(lambda: refusal(server, resized(stored, GROWING)) != "")
    remove(server)
    yield server
    server.run("delete", "-f", POLICY)


def is_gang(stored: Json) -> bool:
    return is_gang_job(require_valid(decode_job(stored)), {"serried"})


@pytest.fixture
def stored(refusing: Server, resize: Resize) -> Iterator[Json]:
    yield create(refusing, resize.job)
    remove(refusing)


@pytest.mark.parametrize("resize", REFUSED, ids=lambda resize: resize.sentence)
def test_a_gang_keeps_its_size(refusing: Server, stored: Json, resize: Resize) -> None:
    wanted = resized(stored, resize)
    assert is_gang(stored) or is_gang(wanted)
    assert refusal(refusing, wanted).startswith("403")
    assert MESSAGE in refusal(refusing, wanted)


@pytest.mark.parametrize("resize", ALLOWED, ids=lambda resize: resize.sentence)
def test_another_job_may_be_resized(refusing: Server, stored: Json, resize: Resize) -> None:
    wanted = resized(stored, resize)
    assert not (is_gang(stored) or is_gang(wanted)) or resize.parallelism == stored["spec"]["parallelism"]
    assert refusal(refusing, wanted) == ""


@NATIVELY
@pytest.mark.parametrize("resize", REFUSED_NATIVELY, ids=lambda resize: resize.sentence)
def test_a_gang_by_its_field_keeps_its_size(refusing: Server, stored: Json, resize: Resize) -> None:
    wanted = resized(stored, resize)
    assert is_gang(stored)
    assert MESSAGE in refusal(refusing, wanted)


@NATIVELY
@pytest.mark.parametrize("resize", ALLOWED_NATIVELY, ids=lambda resize: resize.sentence)
def test_what_is_no_gang_by_its_field_may_be_resized(refusing: Server, stored: Json, resize: Resize) -> None:
    wanted = resized(stored, resize)
    assert not is_gang(stored)
    assert refusal(refusing, wanted) == ""


def test_a_gang_that_has_ended_may_be_resized(refusing: Server) -> None:
    create(refusing, running().with_field(1, "spec", "activeDeadlineSeconds"))
    refusing.run("wait", "job/resized", "--for=condition=Failed", "--timeout=30s")
    ended = refusing.get("job", "resized")
    assert not is_gang(ended)
    assert refusal(refusing, resized(ended, GROWING)) == ""
    remove(refusing)


def test_a_gang_that_is_being_deleted_may_be_resized(refusing: Server) -> None:
    create(refusing, four().with_field(["example.com/keep"], "metadata", "finalizers"))
    refusing.run("delete", "job", "resized", "--wait=false")
    going = refusing.get("job", "resized")
    assert not is_gang(going)
    assert refusal(refusing, resized(going, GROWING)) == ""
    refusing.patch("job/resized", {"metadata": {"finalizers": None}})


def test_the_policy_has_no_type_error(refusing: Server) -> None:
    def checked() -> bool:
        status = refusing.get("validatingadmissionpolicy", "serried-elastic-refuse").get("status", {})
        assert not status.get("typeChecking")
        return "observedGeneration" in status

    eventually(checked)


def test_the_overlay_tells_the_controller_too(server: Server) -> None:
    rendered = server.run("kustomize", str(KUSTOMIZE / "overlays" / "elastic-refuse"))
    assert "--elastic-jobs=refuse" in rendered
    assert "serried-elastic-refuse" in rendered
