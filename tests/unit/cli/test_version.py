"""``serried version``: what asks, and what answers."""

import json

import pytest

from serried import __version__
from tests.support.commands import Run
from tests.support.pod_proxy import PodProxy

IMAGE = "registry.example.com/kube-scheduler:v1.37.1"


@pytest.fixture
def pod(proxy: PodProxy) -> None:
    proxy.answer_debug("serried-0:8912", "selfcheck", {"active": True, "version": "0.1.9"})
    _, document = proxy.answers["/api/v1/namespaces/serried-system/pods"]
    document["items"][0]["spec"]["containers"][0]["image"] = IMAGE


@pytest.mark.usefixtures("pod")
def test_both_sides_and_the_scheduler_are_told(run: Run) -> None:
    assert [line.split() for line in run("version").out.splitlines()] == [
        ["serried", __version__],
        ["extender", "0.1.9"],
        ["kube-scheduler", IMAGE],
        ["pod", "serried-0"],
    ]
    found = {"client": __version__, "extender": "0.1.9", "scheduler": IMAGE, "pod": "serried-0"}
    assert json.loads(run("version", "-o", "json").out) == found


def test_the_own_one_needs_no_cluster(proxy: PodProxy, run: Run) -> None:
    assert run("version", "--client", "-o", "name").out == f"{__version__}\n"
    assert proxy.asked == []


def test_the_own_one_is_told_though_nobody_answers(run: Run) -> None:
    ended = run("version", "--context", "away")
    assert (ended.code, ended.out.split()) == (3, ["serried", __version__])
    assert "does not answer" in ended.err


def test_an_address_says_nothing_of_a_scheduler(proxy: PodProxy, run: Run) -> None:
    proxy.answer("/debug/selfcheck", {"version": "0.1.9"})
    out = run("version", "--server", proxy.url).out
    assert "kube-scheduler   not known" in out
