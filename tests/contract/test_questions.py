"""The commands that ask what would be, and decide again, with the routes that answer them, over a true connection."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx
import pytest
import yaml
from fastapi import FastAPI

from cli import main
from extender.look.routes import debug_routes
from serried.api.level import NATIVE
from serried.ops.server import make_server
from tests.support.builders import RACK, node, pod_group
from tests.support.extender_harness import SCHEDULER, Harness, members


@pytest.fixture
async def server() -> AsyncIterator[str]:
    """The address of an extender with two racks of two nodes, in which a gang of five waits for one."""
    world = Harness()
    world.add(*[node(f"n{at}").cpu(2).rack(f"rack-{at // 2}") for at in range(4)])
    await world.add(pod_group("g").gang(5).topology(), *members(5)).run_until_idle()
    app = FastAPI()
    app.include_router(debug_routes(world.core, Mock(), NATIVE, dict))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = make_server(app, "127.0.0.1", 0)
        task = asyncio.create_task(serving.serve([listener]))
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        serving.should_exit = True
        await task
    await world.close()


def make_job(name: str, size: int) -> dict[str, Any]:
    annotations = {"scheduling.serried.dev/required-topology": RACK}
    container = {"name": "main", "image": "train", "resources": {"requests": {"cpu": "1"}}}
    template = {"spec": {"schedulerName": SCHEDULER, "restartPolicy": "Never", "containers": [container]}}
    spec = {"parallelism": size, "completions": size, "completionMode": "Indexed", "template": template}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "annotations": annotations},
        "spec": spec,
    }


async def test_a_file_of_two_jobs_is_answered_with_a_table_and_an_exit_code(
    server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")  # the name of the file is long
    path = tmp_path / "jobs.yaml"
    path.write_text(yaml.safe_dump_all([make_job("four", 4), make_job("six", 6)]))
    asked = ["whatif", str(path), "-n", "team", "--server", server]
    assert await asyncio.to_thread(main, asked) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "Job team/four 0 yes rack-0 4 of 4 members fit into rack-0" in shown
    assert "Job team/six 0 no NoDomainFits: 6 members do not fit into any domain of example.com/rack" in shown


async def test_a_gang_that_waits_is_asked_about_with_one_node_more(
    server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["whatif", "--group", "default/g", "--server", server, "-o", "json"]
    assert await asyncio.to_thread(main, asked) == 1
    assert json.loads(capsys.readouterr().out)["groups"][0]["reason"] == "NoDomainFits"
    assert await asyncio.to_thread(main, [*asked, "--add", "1*n0"]) == 0
    nodes = json.loads(capsys.readouterr().out)["groups"][0]["nodes"]
    assert (sum(nodes.values()), sorted(nodes)) == (5, ["n0", "n0+1", "n1"])


async def test_what_is_wrong_with_a_question_reaches_the_caller(
    server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["whatif", "--group", "default/g", "--server", server, "--drain", "n9"]
    assert await asyncio.to_thread(main, asked) == 2
    assert "there is no node n9; see /debug/nodes" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["json", "gzip"])
async def test_the_file_of_a_decision_is_decided_again(
    server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    async with httpx.AsyncClient() as http:
        answer = await http.get(f"{server}/debug/snapshot", params={"group": "default/g", "form": form})
    path = tmp_path / "g.json"
    path.write_bytes(answer.content)
    assert await asyncio.to_thread(main, ["replay", str(path)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.startswith("default/g: NoDomainFits: 5 members do not fit into any domain of example.com/rack")
    assert "The decision is the recorded one." in shown
