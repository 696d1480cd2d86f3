"""The controller's account writes its own Workloads and PodGroups, and of those of users no more than it needs to."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

import httpx
import pytest

from bench.cluster.api import ApiError
from serried.api.group import PROTECTION
from serried.api.parent import MANAGED_BY, MANAGER
from tests.e2e.manifests.objects import composite, gang, template, workload
from tests.e2e.manifests.server import GROUP, Json, Server, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.both_levels]

CONTROLLER = "serried-controller"
OWN = {MANAGED_BY: MANAGER}
OTHER_FINALIZER = "example.com/kept"
NOT_ITS_OWN = "may create and delete no Workloads and PodGroups but its own"
NO_METADATA = "may not change labels, annotations or owners of Workloads and PodGroups"
NO_FINALIZER = "may remove no finalizer of Workloads and PodGroups but"
NO_SPEC = "may change the spec of no Workloads and PodGroups but its own"
OWNERS = [{"apiVersion": "v1", "kind": "ConfigMap", "name": "other", "uid": "7"}]


class Place:
    """Groups of one API group, and who writes them there."""

    def __init__(self, server: Server, group: str) -> None:
        self.server, self.api = server, server.cluster.api
        self._version = f"{group}/v1beta1"

    def complete(self, item: Json, labels: dict[str, str], finalizers: Sequence[str] = ()) -> Json:
        metadata = item["metadata"] | {"labels": labels, "finalizers": list(finalizers)}
        return {**item, "metadata": metadata, "apiVersion": self._version}

    def make(self, item: Json, labels: dict[str, str], finalizers: Sequence[str] = ()) -> str:
        """Create an object as an administrator; returns its path."""
        self.api.post(self.path(item["kind"]), self.complete(item, labels, finalizers))
        return f"{self.path(item['kind'])}/{item['metadata']['name']}"

    def path(self, kind: str) -> str:
        return f"/apis/{self._version}/namespaces/default/{kind.lower()}s"

    def write(self, path: str, patch: Json) -> httpx.Response:
        """A merge patch by the controller."""
        return self.server.patch_bare(path, patch, CONTROLLER)

    def create(self, item: Json, labels: dict[str, str]) -> httpx.Response:
        """A rehearsal by the controller."""
        path = f"{self.path(item['kind'])}?dryRun=All"
        return self.server.ask_bare("POST", path, self.complete(item, labels), CONTROLLER)

    def delete(self, path: str) -> httpx.Response:
        """A rehearsal by the controller."""
        return self.server.ask_bare("DELETE", f"{path}?dryRun=All", None, CONTROLLER)

    def remove(self, path: str) -> None:
        """Delete an object, whatever protects it."""
        self.api.delete(path)
        with suppress(ApiError):  # it has gone
            self.api.patch(path, {"metadata": {"finalizers": None}})


@pytest.fixture(scope="module", params=["scheduling.k8s.io", GROUP])
def place(server: Server, request: pytest.FixtureRequest) -> Place:
    if request.param != GROUP and f"{request.param}/v1beta1" not in server.run("api-versions"):
        pytest.skip("this API server serves no native groups")
    return guarded(server, request.param)


def guarded(server: Server, group: str) -> Place:
    """Groups of one API group, once the policy is in force there."""
    found = Place(server, group)
    eventually(lambda: NOT_ITS_OWN in found.create(gang("probe"), {}).text)
    return found


@pytest.fixture
def made(place: Place) -> Iterator[dict[str, str]]:
    """Paths by what each is: its own or a user's, with a finalizer of somebody else."""
    kept = [OTHER_FINALIZER]
    paths = {
        "own PodGroup": place.make(gang("own"), OWN, kept),
        "own Workload": place.make(workload(template(), name="own"), OWN, kept),
        "user's PodGroup": place.make(gang("theirs"), {"team": "a"}, kept),
        "user's Workload": place.make(workload(template(), name="theirs"), {"team": "a"}, kept),
    }
    yield paths
    for path in paths.values():
        place.remove(path)


class Write(NamedTuple):
    """A patch by the controller, and the words of its refusal; "" if it is let through."""

    sentence: str
    target: str
    patch: Json
    refusal: str = ""


def count(number: int) -> Json:
    return {"spec": {"schedulingPolicy": {"gang": {"minCount": number}}}}


def counts(number: int) -> Json:
    return {"spec": {"podGroupTemplates": [template(schedulingPolicy={"gang": {"minCount": number}})]}}


WRITES = (
    Write("minCount of a PodGroup that it has made", "own PodGroup", count(5)),
    Write("minCount of a Workload that it has made", "own Workload", counts(5)),
    Write("minCount of a user's PodGroup", "user's PodGroup", count(5), NO_SPEC),
    Write("minCount of a user's Workload", "user's Workload", counts(5), NO_SPEC),
    Write("the label of its own, for a user's PodGroup", "user's PodGroup", {"metadata": {"labels": OWN}}, NO_METADATA),
    Write(
        "that label together with minCount", "user's PodGroup", {"metadata": {"labels": OWN}, **count(5)}, NO_METADATA
    ),
    Write("a label of its own PodGroup", "own PodGroup", {"metadata": {"labels": {"team": "b"}}}, NO_METADATA),
    Write("the label of its own PodGroup", "own PodGroup", {"metadata": {"labels": None}}, NO_METADATA),
    Write("an annotation", "user's Workload", {"metadata": {"annotations": {"note": "mine"}}}, NO_METADATA),
    Write("an owner", "user's PodGroup", {"metadata": {"ownerReferences": OWNERS}}, NO_METADATA),
    Write("a finalizer more", "user's PodGroup", {"metadata": {"finalizers": [OTHER_FINALIZER, "a/b"]}}, NO_FINALIZER),
    Write("a finalizer of somebody else", "user's PodGroup", {"metadata": {"finalizers": None}}, NO_FINALIZER),
    Write("such a finalizer of its own", "own Workload", {"metadata": {"finalizers": None}}, NO_FINALIZER),
    Write("what is fixed in its own", "own PodGroup", {"spec": {"priorityClassName": "high"}}, "immutable"),
)


@pytest.mark.parametrize("write", WRITES, ids=lambda write: write.sentence)
def test_the_controller_changes_the_size_of_its_own_and_nothing_else(
    place: Place, made: dict[str, str], write: Write
) -> None:
    answer = place.write(made[write.target], write.patch)
    assert write.refusal in answer.text
    assert answer.is_success is not bool(write.refusal), answer.text


def test_the_protection_of_a_user_s_group_goes_only_when_the_group_is_being_deleted(place: Place) -> None:
    path = place.make(gang("leaving"), {}, [PROTECTION, OTHER_FINALIZER])
    rest = {"metadata": {"finalizers": [OTHER_FINALIZER]}}
    try:
        assert NO_FINALIZER in place.write(path, rest).text
        place.api.delete(path)
        assert NO_FINALIZER in place.write(path, {"metadata": {"finalizers": None}}).text
        place.write(path, rest).raise_for_status()
        assert place.api.get(path)["metadata"]["finalizers"] == [OTHER_FINALIZER]
    finally:
        place.remove(path)


@pytest.mark.parametrize(("item", "field"), [(gang("raised"), "minCount"), (composite("raised"), "minGroupCount")])
def test_a_user_s_group_of_the_fallback_api_is_given_a_priority_and_nothing_with_it(
    server: Server, item: Json, field: str
) -> None:
    place = guarded(server, GROUP)
    path = place.make(item, {})
    try:
        both = {"spec": {"priority": 7, "schedulingPolicy": {"gang": {field: 9}}}}
        assert not place.write(path, both).is_success
        place.write(path, {"spec": {"priority": 7}}).raise_for_status()
        assert place.api.get(path)["spec"]["priority"] == 7
    finally:
        place.remove(path)


def test_the_controller_creates_and_deletes_its_own_alone(place: Place, made: dict[str, str]) -> None:
    for item in (gang("new"), workload(template(), name="new")):
        assert NOT_ITS_OWN in place.create(item, {}).text
        place.create(item, OWN).raise_for_status()
    for what, path in made.items():
        answer = place.delete(path)
        assert (NOT_ITS_OWN in answer.text) is what.startswith("user's"), what
        assert answer.is_success is what.startswith("own"), answer.text


def test_users_are_not_concerned(place: Place, made: dict[str, str]) -> None:
    for path in (made["user's PodGroup"], made["own PodGroup"]):
        place.api.patch(path, {"metadata": {"labels": {"team": "c"}, "annotations": {"note": "mine"}}, **count(6)})
        assert place.api.get(path)["spec"]["schedulingPolicy"]["gang"]["minCount"] == 6
