"""How a command reaches an extender: by its address, or through the API server, which passes requests on to a pod.

The second way needs neither a port-forward nor a way to the pod: only the rights to list pods and to get pods/proxy.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson

from serried.cli.exits import CommandError, ExitCode
from serried.cli.output import note
from serried.kube.auth import Credentials, CredentialsError, load_credentials
from serried.kube.client import ONCE, ApiClient
from serried.kube.errors import ApiError, Forbidden, NotFound
from serried.kube.transport import Response
from serried.kube.wire import JSON, PODS, Selection

T = TypeVar("T")

HOME = "serried-system"
"""The namespace of the shipped manifests."""

LABELS = "app.kubernetes.io/name=serried,app.kubernetes.io/component=scheduler"
"""What the extender's pods have, in the shipped manifests."""

_OPS_PORT = 8912
"""The port of operations, where no port of the container is named ``ops``."""

_PROBE_SECONDS = 5.0
_ANSWER_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Target:
    """Which extender is asked, and how it is reached."""

    server: str = ""
    """The URL of its operations; "" for the way through the API server."""

    kubeconfig: str = ""
    """The file with the credentials; "" for the usual places."""

    context: str = ""
    """The context in that file; "" for the current one."""

    home: str = HOME
    """The namespace of its pods."""


class DebugApi:
    """``/debug`` of one extender."""

    def __init__(self, client: ApiClient, prefix: str, name: str) -> None:
        self._client = client
        self._prefix = prefix
        """What stands before ``/debug`` in every path."""
        self._name = name
        """What this extender is called in messages."""

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> Any:
        """The document at ``path`` below ``/debug``."""
        return await self._ask("GET", path, params=params)

    async def post(self, path: str, document: Any) -> Any:
        """The answer to ``document``."""
        return await self._ask("POST", path, body=orjson.dumps(document))

    async def _ask(self, method: str, path: str, **how: Any) -> Any:
        answer = await self._request(method, path, **how)
        try:
            return orjson.loads(answer.body)
        except ValueError as error:
            said = f"{self._name} answers /debug/{path} with no JSON: is this an extender of Serried?"
            raise CommandError(ExitCode.UNREACHABLE, said) from error

    async def _request(self, method: str, path: str, **how: Any) -> Response:
        whole = f"{self._prefix}/debug/{path}"
        try:
            return await self._client.request(method, whole, timeout=_ANSWER_SECONDS, retry=ONCE, **how)
        except ApiError as error:
            raise self._explain(path, error) from error

    def _explain(self, path: str, error: ApiError) -> CommandError:
        said = error.message or error.reason
        if isinstance(error, NotFound) and said == "Not Found":
            older = f"{self._name} has no /debug/{path}: it is of another version than this command"
            return CommandError(ExitCode.UNREACHABLE, older)
        if isinstance(error, NotFound):
            return CommandError(ExitCode.NOT_FOUND, said)
        if error.status in {400, 422}:
            return CommandError(ExitCode.USAGE, said)
        return CommandError(ExitCode.UNREACHABLE, f"{self._name} does not answer: {said or error.status}")


def ask(target: Target, work: Callable[[DebugApi], Awaitable[T]]) -> T:
    """What ``work`` finds out from the extender; raises CommandError."""

    async def run() -> T:
        async with reach(target) as debug:
            return await work(debug)

    return asyncio.run(run())


@asynccontextmanager
async def reach(target: Target) -> AsyncIterator[DebugApi]:
    """The extender that leads, else any that answers; raises CommandError if none does."""
    async with ApiClient(find_credentials(target), component="cli", retry=ONCE) as client:
        if target.server:
            yield DebugApi(client, "", f"the extender at {target.server}")
        else:
            yield await _find_leader(client, target.home)


def find_credentials(target: Target) -> Credentials:
    """Of the extender itself, if it has an address, else of the API server; raises CommandError."""
    if target.server:
        host = target.server.rstrip("/")
        if not host.startswith(("http://", "https://")):
            raise CommandError(ExitCode.USAGE, f"--server {target.server!r}: a URL with http:// or https:// is needed")
        return Credentials(host=host)
    try:
        return load_credentials(target.kubeconfig or None, target.context)
    except CredentialsError as error:
        raise CommandError(ExitCode.UNREACHABLE, f"{error}; or name the extender's address with --server") from error


async def _find_leader(client: ApiClient, home: str) -> DebugApi:
    pods = [pod for pod in await _list_pods(client, home) if pod.get("status", {}).get("phase") == "Running"]
    if not pods:
        raise CommandError(
            ExitCode.UNREACHABLE,
            f"no pod with the labels {LABELS} runs in namespace {home}: "
            "is Serried installed there? Name another namespace with --serried-namespace, or an address with --server",
        )
    answers = await asyncio.gather(*(_probe(client, pod) for pod in pods))
    found = [(debug, check) for debug, check in answers if check is not None]
    for debug, check in found:
        if check.get("active"):
            return debug
    if not found:
        refusals = "; ".join(sorted(_name_pod(pod) for pod in pods))
        raise CommandError(
            ExitCode.UNREACHABLE,
            f"no extender answers through the API server ({refusals}): "
            "the right to get pods/proxy is needed, and the pod must be ready; or name an address with --server",
        )
    note("no extender leads at the moment, so one that does not is asked: it knows no plans")
    return found[0][0]


async def _list_pods(client: ApiClient, home: str) -> list[JSON]:
    try:
        return [pod async for pod in client.items(PODS, Selection(namespace=home, labels=LABELS))]
    except Forbidden as error:
        said = f"{error.message}; the right to list pods there is needed, or an address with --server"
        raise CommandError(ExitCode.UNREACHABLE, said) from error
    except ApiError as error:
        raise CommandError(ExitCode.UNREACHABLE, f"the API server does not list pods: {error}") from error


async def _probe(client: ApiClient, pod: JSON) -> tuple[DebugApi, JSON | None]:
    """``/debug`` of the pod, and what its self-check says; None if it does not answer."""
    metadata = pod["metadata"]
    name = f"{metadata['name']}:{_find_port(pod)}"
    prefix = PODS.path(metadata["namespace"], name, "proxy")
    debug = DebugApi(client, prefix, f"pod {_name_pod(pod)}")
    try:
        return debug, await client.ask("GET", f"{prefix}/debug/selfcheck", timeout=_PROBE_SECONDS, retry=ONCE)
    except ApiError as error:
        note(f"pod {_name_pod(pod)} does not answer: {error.message or error.status}")
        return debug, None


def _find_port(pod: JSON) -> int:
    containers = (*pod["spec"].get("initContainers", ()), *pod["spec"].get("containers", ()))
    ports = (port for each in containers for port in each.get("ports", ()))
    return next((port["containerPort"] for port in ports if port.get("name") == "ops"), _OPS_PORT)


def _name_pod(pod: JSON) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
