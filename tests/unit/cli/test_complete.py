"""Shell completion: proposals from the cluster; without a cluster it is silent, and returns soon."""

import time
from pathlib import Path

import pytest

from cli import app as kubectl
from tests.support.pod_proxy import KUBECONFIG, PodProxy

GROUPS = [
    {"namespace": "team", "name": "train-5d9c7", "owner": "job/train"},
    {"namespace": "team", "name": "tune", "owner": ""},
    {"namespace": "team", "name": "serve-0", "owner": "leaderworkerset/serve"},
]
ALL = [*GROUPS, {"namespace": "other", "name": "far", "owner": ""}]


@pytest.fixture
def cluster(proxy: PodProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PodProxy:
    """A person's kubeconfig names it."""
    (tmp_path / "kubeconfig").write_text(KUBECONFIG.format(url=proxy.url))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    for name in ("_SERRIED_COMPLETE", "COMP_WORDS", "COMP_CWORD"):
        monkeypatch.setenv(name, "")
    proxy.answer_debug("serried-0:8912", "groups", ALL)
    proxy.answer_debug("serried-0:8912", "groups?limit=500&namespace=team", GROUPS)
    proxy.answer_debug("serried-0:8912", "domains", {"key": "zone", "keys": ["rack", "block"]})
    names = [{"metadata": {"name": name}} for name in ("default", "team", "tests")]
    proxy.answer("/api/v1/namespaces", {"kind": "List", "metadata": {"resourceVersion": "1"}, "items": names})
    return proxy


def complete(capsys: pytest.CaptureFixture[str], words: list[str]) -> list[str]:
    assert kubectl.complete(words) == 0
    said = capsys.readouterr()
    assert said.err == ""
    *proposed, end = said.out.split()
    assert end == ":4"
    return proposed


@pytest.mark.parametrize(
    ("words", "proposed"),
    [
        pytest.param(["explain", ""], ["job/train", "leaderworkerset/serve", "podgroup/tune"], id="gangs"),
        pytest.param(["explain", "job/"], ["job/train"], id="Jobs"),
        pytest.param(["explain", "tr"], ["train"], id="names without a kind"),
        pytest.param(["explain", "job", ""], ["train"], id="names behind a kind"),
        pytest.param(["explain", "-n", "team", "po"], ["podgroup/tune"], id="in a namespace"),
        pytest.param(["decisions", "--group", "job"], ["job/train"], id="a group of which there are decisions"),
        pytest.param(["decisions", "-A", "--group", "f"], ["far"], id="of all namespaces"),
        pytest.param(["whatif", "--group", "job"], ["job/train"], id="a group that is asked about"),
        pytest.param(["whatif", "--remove", "pod"], ["podgroup/tune"], id="a group that is left out"),
        pytest.param(["queue", "-n", "te"], ["team", "tests"], id="namespaces"),
        pytest.param(["top", "--key", ""], ["block", "rack", "zone"], id="topology keys"),
        pytest.param(["queue", "--context", ""], ["away", "here"], id="contexts"),
    ],
)
@pytest.mark.usefixtures("cluster")
def test_names_are_proposed(words: list[str], proposed: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert complete(capsys, words) == proposed


def test_namespaces_with_gangs_stand_in_where_none_may_be_listed(
    cluster: PodProxy, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.answer("/api/v1/namespaces", {"kind": "Status", "code": 403, "message": "no"}, status=403)
    assert complete(capsys, ["queue", "-n", ""]) == ["other", "team"]
    assert complete(capsys, ["queue", "--server", cluster.url, "-n", ""]) == []


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["explain", "--context", "away", ""], id="an API server that is not there"),
        pytest.param(["explain", "--context", "none", ""], id="a context that is not there"),
        pytest.param(["queue", "--kubeconfig", "/nowhere", "--context", ""], id="no kubeconfig"),
        pytest.param(["top", "--server", "nonsense", "--key", ""], id="an address that is none"),
    ],
)
@pytest.mark.usefixtures("cluster")
def test_where_nobody_answers_nothing_is_proposed_and_nothing_said(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert complete(capsys, words) == []


def test_who_presses_tab_does_not_wait_long(
    cluster: PodProxy, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def reply_late(*_: object) -> tuple[int, bytes]:
        time.sleep(1)
        return 200, b"{}"

    monkeypatch.setattr("cli.complete._SECONDS", 0.2)
    monkeypatch.setattr(cluster, "reply", reply_late)
    assert complete(capsys, ["explain", ""]) == []
