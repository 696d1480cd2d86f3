"""The controller as a process of its own: flags, probes, signals."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from serried.api.level import FALLBACK
from serried.kube.wire import JOBS, pod_groups
from serried.ops.server import listen_everywhere
from tests.support.apiserver import FakeApiServer
from tests.support.builders import job
from tests.support.faults import calls

GROUPS = pod_groups(FALLBACK.group, FALLBACK.version)
KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: fake
clusters: [{{name: fake, cluster: {{server: "{url}"}}}}]
users: [{{name: fake, user: {{}}}}]
contexts: [{{name: fake, context: {{cluster: fake, user: fake}}}}]
"""


@asynccontextmanager
async def process(
    server: FakeApiServer, directory: Path, ops: str = "127.0.0.1:0"
) -> AsyncIterator[asyncio.subprocess.Process]:
    kubeconfig = directory / "kubeconfig"
    kubeconfig.write_text(KUBECONFIG.format(url=server.url))
    flags = ["--kubeconfig", str(kubeconfig), "--ops-listen", ops]
    running = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "cli", "controller", *flags, stderr=asyncio.subprocess.PIPE
    )
    try:
        yield running
    finally:
        if running.returncode is None:
            running.kill()
        await running.wait()


async def find_ops(running: asyncio.subprocess.Process) -> str:
    assert running.stderr is not None
    async for line in running.stderr:
        if b'"listening"' in line:
            return f"http://127.0.0.1:{json.loads(line)['port']}"
    raise AssertionError("the controller ended before it listened")


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.02)


async def wait_for_status(client: httpx.AsyncClient, path: str, status: int) -> httpx.Response:
    while (answer := await client.get(path)).status_code != status:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    return answer


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_it_serves_its_probes_does_its_work_and_ends_on_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    async with FakeApiServer() as server, process(server, tmp_path) as running, asyncio.timeout(60):
        server.add(JOBS, job("train").size(2).scheduler("serried").raw())
        async with httpx.AsyncClient(base_url=await find_ops(running)) as client:
            assert (await wait_for_status(client, "/readyz", 200)).text == "[+]synced ok\n"
            assert (await client.get("/livez")).status_code == 200
            await until(lambda: server.list_objects(GROUPS))
            metrics = (await client.get("/metrics")).text
            assert 'serried_api_writes_total{verb_resource="create workloads"} 1.0' in metrics
        running.send_signal(number)
        async with asyncio.timeout(10):
            assert await running.wait() == 0


async def test_it_is_alive_but_not_ready_while_a_resource_is_not_served(tmp_path: Path) -> None:
    async with FakeApiServer() as server, process(server, tmp_path) as running, asyncio.timeout(60):
        server.served.discard(GROUPS)
        async with httpx.AsyncClient(base_url=await find_ops(running)) as client:
            await until(lambda: server.list_requests(calls("GET", GROUPS.path())))
            assert (await client.get("/readyz")).status_code == 503
            assert (await client.get("/livez")).status_code == 200
            server.served.add(GROUPS)
            await wait_for_status(client, "/readyz", 200)


async def test_it_says_why_it_ends_if_it_cannot_listen(tmp_path: Path) -> None:
    with listen_everywhere(0) as taken:
        address = f":{taken.getsockname()[1]}"
        async with FakeApiServer() as server, process(server, tmp_path, address) as running, asyncio.timeout(60):
            assert running.stderr is not None
            said = (await running.stderr.read()).decode()
            assert await running.wait() == 1
    assert "one of its parts ended unexpectedly" in said
    assert "Address already in use" in said
