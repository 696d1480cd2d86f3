"""Compare the HTTP clients httpx and aiohttp: which sends a burst of Bindings with the least CPU.

A server in a process of its own answers each POST at once with 201, like an idle kube-apiserver. The client process
sends 1,000 small POSTs, 64 in flight, over warm connections. CPU seconds of the client process count more than wall
time, because in the extender the client shares its event loop with kube-scheduler's calls.

    python -m bench.http_client            one JSON object on stdout and in `bench/results/`
"""

import argparse
import asyncio
import json
import multiprocessing
import socket
import ssl
import statistics
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import cast

import aiohttp
import httptools
import httpx
import orjson
import uvloop

from bench.machine import describe_machine, measure_noise

RESULTS = Path(__file__).with_name("results")
Post = Callable[[str, bytes], Awaitable[int]]

_ANSWER_BODY = orjson.dumps({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201})
_ANSWER = (
    b"HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nCache-Control: no-cache, private\r\nContent-Length: "
    + str(len(_ANSWER_BODY)).encode()
    + b"\r\n\r\n"
    + _ANSWER_BODY
)


class _CreatedProtocol(asyncio.Protocol):
    """One connection of the server. Answers every request with 201, and keeps the connection open."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass
        self._parser = httptools.HttpRequestParser(self)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        self._transport.write(_ANSWER)


async def _serve(listener: socket.socket, tls: ssl.SSLContext | None) -> None:
    server = await asyncio.get_running_loop().create_server(_CreatedProtocol, sock=listener, ssl=tls, backlog=256)
    await server.serve_forever()


def _run_server(ready: Connection, certificate: str) -> None:
    tls = None
    if certificate:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(certificate)
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
        ready.send(listener.getsockname()[1])
        uvloop.run(_serve(listener, tls))


@asynccontextmanager
async def _aiohttp_client(base: str, tls: ssl.SSLContext | None) -> AsyncIterator[Post]:
    connector = aiohttp.TCPConnector(limit=64, ssl=tls or True)
    async with aiohttp.ClientSession(base, connector=connector, auto_decompress=False) as session:

        async def post(path: str, body: bytes) -> int:
            async with session.post(path, data=body, headers={"Content-Type": "application/json"}) as answer:
                orjson.loads(await answer.read())
                return answer.status

        yield post


@asynccontextmanager
async def _httpx_client(base: str, tls: ssl.SSLContext | None) -> AsyncIterator[Post]:
    limits = httpx.Limits(max_connections=64, max_keepalive_connections=64)
    async with httpx.AsyncClient(base_url=base, limits=limits, verify=tls or True, trust_env=False) as client:

        async def post(path: str, body: bytes) -> int:
            answer = await client.post(path, content=body, headers={"Content-Type": "application/json"})
            orjson.loads(answer.content)
            return answer.status_code

        yield post


CLIENTS = {"aiohttp": _aiohttp_client, "httpx": _httpx_client}


def _binding(number: int) -> tuple[str, bytes]:
    name = f"gang-{number // 20}-{number % 20}"
    body = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name, "namespace": "default", "uid": f"00000000-0000-4000-8000-{number:012d}"},
        "target": {"apiVersion": "v1", "kind": "Node", "name": f"node-{number % 1000}"},
    }
    return f"/api/v1/namespaces/default/pods/{name}/binding", orjson.dumps(body)


async def _burst(post: Post, bodies: list[tuple[str, bytes]], in_flight: int) -> None:
    waiting = iter(bodies)

    async def work() -> None:
        for path, body in waiting:
            status = await post(path, body)
            if status != 201:
                raise RuntimeError(f"POST {path}: {status}")

    await asyncio.gather(*(work() for _ in range(in_flight)))


async def _measure(client: str, base: str, tls: ssl.SSLContext | None, args: argparse.Namespace) -> dict[str, object]:
    bodies = [_binding(number) for number in range(args.posts)]
    cpu, wall = [], []
    async with CLIENTS[client](base, tls) as post:
        await _burst(post, bodies[: args.in_flight * 4], args.in_flight)
        for _ in range(args.rounds):
            cpu_before, wall_before = time.process_time(), time.perf_counter()
            await _burst(post, bodies, args.in_flight)
            cpu.append(time.process_time() - cpu_before)
            wall.append(time.perf_counter() - wall_before)
    return {"client": client, "tls": tls is not None, "cpu_seconds": _spread(cpu), "wall_seconds": _spread(wall)}


def _spread(samples: list[float]) -> dict[str, float]:
    points = {"min": min(samples), "median": statistics.median(samples), "max": max(samples)}
    return {name: round(value, 4) for name, value in points.items()}


def _make_certificate(folder: Path) -> Path:
    both = folder / "server.pem"
    subprocess.run(
        f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1 "
        f"-keyout {both} -out {folder / 'cert.pem'}".split(),
        check=True,
        capture_output=True,
    )
    both.write_bytes(both.read_bytes() + (folder / "cert.pem").read_bytes())
    return both


def _run_one(client: str, certificate: str, args: argparse.Namespace) -> dict[str, object]:
    here, there = multiprocessing.Pipe()
    server = multiprocessing.Process(target=_run_server, args=(there, certificate), daemon=True)
    server.start()
    try:
        scheme = "https" if certificate else "http"
        tls = ssl.create_default_context(cafile=certificate) if certificate else None
        runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        with runner:
            return runner.run(_measure(client, f"{scheme}://127.0.0.1:{here.recv()}", tls, args))
    finally:
        server.terminate()
        server.join()


def main() -> None:
    """Measure each client over plain TCP and over TLS, print the result as one JSON object and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--posts", type=int, default=1000, help="requests in one burst")
    parser.add_argument("--in-flight", type=int, default=64, help="requests in flight, and connections")
    parser.add_argument("--rounds", type=int, default=5, help="bursts per client and transport")
    parser.add_argument("--date", default=datetime.now(UTC).strftime("%Y-%m-%d"), help="part of the result's file name")
    parser.add_argument("--results", type=Path, default=RESULTS, help="directory of the result")
    args = parser.parse_args()
    noise = measure_noise()
    with tempfile.TemporaryDirectory() as folder:
        certificate = str(_make_certificate(Path(folder)))
        runs = [_run_one(client, where, args) for where in ("", certificate) for client in CLIENTS]
    versions = {name: version(name) for name in ("aiohttp", "httpx", "uvloop")}
    about = {"date": args.date, "machine": describe_machine(), "noise_before": round(noise, 2)}
    asked = {"posts": args.posts, "in_flight": args.in_flight, "rounds": args.rounds, "versions": versions}
    result = json.dumps(about | asked | {"runs": runs}, indent=2)
    (args.results / f"http-client-{args.date}.json").write_text(result + "\n")
    print(result)


if __name__ == "__main__":
    main()
