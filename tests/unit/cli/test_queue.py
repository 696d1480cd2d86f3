"""``serried queue``: the gangs that wait for room, and the one for which room is kept."""

import json

import pytest
import yaml

from tests.support.commands import Run
from tests.support.pod_proxy import PodProxy

HEAD = {
    "namespace": "team",
    "name": "big-6cfb9",
    "owner": "job/big",
    "kind": "PodGroup",
    "domain": "rack-3",
    "nodes": ["n1", "n2"],
    "forecast": "2026-01-01T10:00:00Z",
    "until": "2026-01-01T10:10:00Z",
    "missed": False,
    "passed": {"team/small-77d": "2026-01-01T09:55:00Z"},
    "owners": {"team/small-77d": "job/small"},
}


def waiting(position: int, name: str, namespace: str = "team", owner: str = "") -> dict[str, object]:
    return {
        "position": position,
        "namespace": namespace,
        "name": name,
        "owner": owner,
        "kind": "PodGroup",
        "priority": 0,
        "countsAs": 1,
        "since": "2026-01-01T09:00:00Z",
        "message": f"NoCapacity: no room for [{name}]",
    }


@pytest.fixture
def queue(proxy: PodProxy) -> dict[str, object]:
    rows = [waiting(1, "big-6cfb9", owner="job/big"), waiting(2, "x", "other")]
    document: dict[str, object] = {"head": HEAD, "waiting": rows, "leftOff": 3}
    proxy.answer_debug("serried-0:8912", "queue", document)
    return document


def test_people_see_the_order_and_why_each_waits(queue: dict[str, object], run: Run) -> None:
    out = run("queue", "-A").out
    assert (
        "Serried keeps 2 nodes in rack-3 for team/job/big. It releases them in 40 min (11:10:00) at the latest." in out
    )
    assert "The gang should start in 30 min (11:00:00)." in out
    assert ["team/job/small", "in", "25", "min", "(10:55:00)"] in [line.split() for line in out.splitlines()]
    rows = [line.split() for line in out.splitlines() if "NoCapacity" in line]
    assert [row[:6] for row in rows] == [
        ["1", "team", "job/big", "0", "30", "min"],
        ["2", "other", "x", "0", "30", "min"],
    ]
    assert "NoCapacity: no room for [big-6cfb9]" in out
    assert "3 more wait and are not shown: see --limit." in out


def test_wide_has_the_name_on_debug_and_what_waiting_has_added(queue: dict[str, object], run: Run) -> None:
    (row,) = [line for line in run("queue", "-o", "wide").out.splitlines() if "NoCapacity" in line]
    assert row.split()[:6] == ["1", "team", "job/big", "0", "big-6cfb9", "1"]
    assert "30 min ago (10:00:00)" in row


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        pytest.param((), ["job/big"], id="of the context's namespace"),
        pytest.param(("-A",), ["team/job/big", "other/x"], id="of all, with the namespace that explain needs"),
    ],
)
def test_names_alone_are_for_other_commands(
    queue: dict[str, object], run: Run, flags: tuple[str, ...], names: list[str]
) -> None:
    assert run("queue", "-o", "name", *flags).out.split() == names


def test_groups_of_one_owner_are_told_apart(proxy: PodProxy, run: Run) -> None:
    rows = [waiting(place, f"serve-{place}", owner="leaderworkerset/serve") for place in (1, 2)]
    proxy.answer_debug("serried-0:8912", "queue", {"head": None, "waiting": rows, "leftOff": 0})
    out = run("queue").out
    assert "leaderworkerset/serve (serve-1)" in out
    assert "leaderworkerset/serve (serve-2)" in out


def test_an_older_extender_names_no_owner(queue: dict[str, object], proxy: PodProxy, run: Run) -> None:
    old = {name: value for name, value in waiting(1, "big-6cfb9").items() if name != "owner"}
    proxy.answer_debug("serried-0:8912", "queue", {"head": None, "waiting": [old], "leftOff": 0})
    assert " big-6cfb9 " in run("queue").out


def test_programs_get_the_document_of_debug(queue: dict[str, object], run: Run) -> None:
    assert json.loads(run("queue", "-A", "-o", "json").out) == queue
    assert yaml.safe_load(run("queue", "-A", "-o", "yaml").out) == queue


def test_one_namespace_is_chosen_from_all_that_wait(queue: dict[str, object], proxy: PodProxy, run: Run) -> None:
    found = json.loads(run("queue", "-n", "other", "-o", "json").out)
    assert [each["name"] for each in found["waiting"]] == ["x"]
    assert found["leftOff"] == 0
    assert any(each.endswith("/debug/queue?limit=1000000") for each in proxy.asked)


@pytest.mark.parametrize(
    "unsaid",
    [
        pytest.param(set(), id="as the extender numbers them"),
        pytest.param({"position"}, id="though an older extender does not number them"),
    ],
)
def test_a_turn_is_that_among_all_namespaces(
    queue: dict[str, list[dict[str, object]]], run: Run, proxy: PodProxy, unsaid: set[str]
) -> None:
    stripped = [{name: value for name, value in each.items() if name not in unsaid} for each in queue["waiting"]]
    proxy.answer_debug("serried-0:8912", "queue", queue | {"waiting": stripped})
    rows = [line.split() for line in run("queue", "-n", "other").out.splitlines() if "NoCapacity" in line]
    assert [row[:3] for row in rows] == [["2", "other", "x"]]
    (found,) = json.loads(run("queue", "-n", "other", "-o", "json").out)["waiting"]
    assert found["position"] == 2


def test_who_waits_elsewhere_is_counted(queue: dict[str, object], run: Run) -> None:
    assert "4 wait in other namespaces: -A shows them." in run("queue").out


class TestOfOtherNamespaces:
    """The output for a user who may not list the pods of the other namespaces."""

    @pytest.fixture(autouse=True)
    def tenant(self, queue: dict[str, object], proxy: PodProxy) -> None:
        proxy.listable = frozenset({"other"})

    def test_whose_room_is_kept_is_not_said(self, run: Run) -> None:
        out = run("queue", "-n", "other").out
        assert "Serried keeps 2 nodes in rack-3 for a gang of another namespace." in out
        assert "team" not in out
        assert "job/small" not in out

    def test_gangs_are_counted_and_turns_stay(self, run: Run) -> None:
        out = run("queue", "-A").out
        assert [line.split()[:3] for line in out.splitlines() if "NoCapacity" in line] == [["2", "other", "x"]]
        assert out.endswith("1 waits in namespaces whose pods you may not list.\n")

    def test_a_limit_counts_what_is_shown(self, run: Run) -> None:
        out = run("queue", "-A", "--limit", "1").out
        assert [line.split()[1:3] for line in out.splitlines() if "NoCapacity" in line] == [["other", "x"]]

    def test_programs_learn_no_more(self, run: Run) -> None:
        found = json.loads(run("queue", "-A", "-o", "json").out)
        assert "team" not in json.dumps(found)
        assert [each["position"] for each in found["waiting"]] == [2]

    def test_what_the_api_server_does_not_say_is_no_right(self, proxy: PodProxy, run: Run) -> None:
        refused = {"kind": "Status", "code": 403, "message": "no"}
        proxy.answer("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", refused, status=403)
        out = run("queue", "-A").out
        assert "2 wait in namespaces whose pods you may not list." in out

    def test_who_names_the_extender_is_asked_for_no_rights(
        self, queue: dict[str, object], proxy: PodProxy, run: Run
    ) -> None:
        proxy.answer("/debug/queue", queue)
        assert "team/job/big" in run("queue", "-A", "--server", proxy.url).out


def test_no_rows_are_no_empty_queue(queue: dict[str, object], run: Run) -> None:
    out = run("queue", "--limit", "0").out
    assert "1 wait in namespace team and are not shown: see --limit." in out
    assert "No gang" not in out


def test_an_empty_queue_is_said_to_be_empty(proxy: PodProxy, run: Run) -> None:
    proxy.answer_debug("serried-0:8912", "queue", {"head": None, "waiting": [], "leftOff": 0})
    assert run("queue").out == "No gang waits for resources in namespace team.\n"
    assert run("queue", "-A").out == "No gang waits for resources.\n"


class TestInEightyColumns:
    """The width of the output, from the terminal or from COLUMNS."""

    @pytest.fixture(autouse=True)
    def narrow(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLUMNS", "80")

    def test_a_long_reason_stands_below_its_row(self, proxy: PodProxy, run: Run) -> None:
        row = waiting(1, "one-rack-7549667c5d-one-rack-pgt-0-7d55db47ff", "a-team-of-the-company", "job/one-rack")
        row["message"] = "NoDomainFits: 14 members do not fit into any domain of topology.serried.dev/rack, " * 2
        proxy.answer_debug("serried-0:8912", "queue", {"head": None, "waiting": [row], "leftOff": 0})
        header, first, *rest = run("queue", "-A").out.splitlines()
        assert max(map(len, (header, first, *rest))) <= 80
        assert first.split()[:3] == ["1", "a-team-of-the-company", "job/one-rack"]
        assert len(rest) == 3
        assert all(len(line.split()) > 3 for line in rest[:-1])

    def test_a_name_that_is_too_long_takes_two_lines(self, proxy: PodProxy, run: Run) -> None:
        row = waiting(1, "x" * 100)
        proxy.answer_debug("serried-0:8912", "queue", {"head": None, "waiting": [row], "leftOff": 0})
        lines = run("queue").out.splitlines()
        assert max(map(len, lines)) <= 80
        assert "".join(lines).count("x") >= 200
