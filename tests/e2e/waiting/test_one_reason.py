"""One reason, the same everywhere: condition, events of PodGroup and pod, log line, metric, /debug and the commands."""

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from cli import main
from tests.support.cluster_stage import ClusterStage, Raw, eventually, names

pytestmark = pytest.mark.e2e

_TELLING_SECONDS = 2.0
"""The one second, and as much again for a machine that runs other tests beside this one."""

_PATIENCE_SECONDS = 30.0

_REST_SECONDS = 6.0
"""Several times as long as anything that is put off."""


def told(stage: ClusterStage, about: str) -> list[str]:
    """Return Serried's event messages about an object."""
    return [message for reason, message in stage.events(about) if reason == "NoCapacity"]


def sum_metric(stage: ClusterStage, name: str, **labels: str) -> float:
    families = text_string_to_metric_families(httpx.get(stage.cluster.metrics_url).text)
    samples = (sample for family in families for sample in family.samples if sample.name == name)
    return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())


def count_writes(stage: ClusterStage) -> float:
    return sum_metric(stage, "serried_api_writes_total")


def find_line(stage: ClusterStage, group: str, sentence: str) -> Raw | None:
    """The line of the extender's log about a decision."""
    lines = Path(stage.cluster.logs["extender"]).read_text().splitlines(keepends=True)
    whole = (json.loads(line) for line in lines if line.endswith("\n") and '"decided"' in line)
    return next((line for line in whole if (line["podGroup"], line["text"]) == (group, sentence)), None)


def measure_delays(begun: float, has_it: Mapping[str, Callable[[], bool]]) -> dict[str, float]:
    """Return when each place was last asked without having it, in seconds after ``begun``; 0 if it had it at once.

    So the time that a question takes here is not counted.
    """
    lacked = dict.fromkeys(has_it, 0.0)
    left = list(has_it)
    while left:
        for place in list(left):
            asked = time.time()
            if has_it[place]():
                left.remove(place)
            else:
                lacked[place] = asked - begun
        assert time.time() - begun < _PATIENCE_SECONDS, left
        time.sleep(0.02)
    return lacked


def versions(stage: ClusterStage) -> dict[str, str]:
    return {pod["metadata"]["name"]: pod["metadata"]["resourceVersion"] for pod in stage.pods("wide")}


def test_a_gang_without_room_says_the_same_everywhere_and_then_is_silent(
    stage: ClusterStage, capsys: pytest.CaptureFixture[str]
) -> None:
    stage.create_group("wide", 3)
    stage.create_pods(names("wide", 3), "wide", cpu="1000")
    sentence = stage.await_reason("wide", "NoCapacity", "0 of 3")["message"]
    first, *others = sorted(versions(stage))
    group = f"{stage.namespace}/wide"
    line = eventually("its line in the log", lambda: find_line(stage, group, sentence))

    def is_explained() -> bool:
        assert main(["explain", "podgroup/wide", "-n", stage.namespace, "--server", stage.cluster.ops_url]) == 0
        return sentence.partition(": ")[2] in " ".join(capsys.readouterr().out.split())  # in lines of 80 columns

    delays = measure_delays(
        line["ts"],
        {
            "the pod's event": lambda: told(stage, first) == [sentence],
            "the PodGroup's event": lambda: told(stage, "wide") == [sentence],
            "the condition": lambda: stage.condition("wide")[2] == sentence,
            "the metric": lambda: sum_metric(stage, "serried_groups", state="NoCapacity") >= 1,
            "the commands": is_explained,
        },
    )
    assert all(delay < _TELLING_SECONDS for delay in delays.values()), delays
    assert not any(told(stage, other) for other in others), "no write per pod"
    decision = httpx.get(f"{stage.cluster.debug_url}/decisions/{line['decision']}").json()
    assert (decision["group"], decision["text"]) == (group, sentence)

    # What the scheduler itself says of a held pod is constant, so nothing makes it try again.
    eventually("the scheduler's word", lambda: all(pod["status"].get("conditions") for pod in stage.pods("wide")))
    writes = count_writes(stage)
    seen = versions(stage)
    deadline = time.monotonic() + _REST_SECONDS
    while time.monotonic() < deadline:
        assert count_writes(stage) == writes, "a gang that waits costs no writes"
        assert versions(stage) == seen, "nor does anybody touch its pods"
        time.sleep(0.5)


def test_its_page_says_what_would_make_it_fit(stage: ClusterStage) -> None:
    stage.create_group("wide", 3)
    stage.create_pods(names("wide", 3), "wide", cpu="40")
    stage.await_reason("wide", "NoCapacity", "0 of 3")
    page = f"{stage.cluster.debug_url}/groups/{stage.namespace}/wide?diagnosis=advice"
    found = httpx.get(page, timeout=30.0).json()
    assert found["diagnosis"]["dominant"].startswith("cpu ")
    assert [each["milestone"] for each in found["timeline"]][:2] == ["seen", "quorum"]
    assert found["queue"]["position"] >= 1
    advice = [each["text"] for each in found["diagnosis"]["advice"]]
    assert any(each.startswith("ask for ") for each in advice), advice
