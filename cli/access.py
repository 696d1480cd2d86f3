"""The connection to an extender: directly by its address, or through the API server, which proxies requests to the pod.

A command calls `ask` with a function that gets a `DebugApi`. An asynchronous caller uses `connect_to_extender` instead.

The connection through the API server needs no port-forward, only the rights of the Role serried-commands. The API
server does not tell the pod who the user is. Therefore the command first creates a token for the ServiceAccount
serried-debug-reader and sends that token: the pod never sees the user's own credentials.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from cli.output import CommandError, ExitCode, print_note
from cli.rights import list_unreadable
from cli.target import Target, find_credentials, name_api_server, read_token, split_address
from serried.kube.auth import Credentials
from serried.kube.errors import ApiError, Forbidden
from serried.kube.wire import JSON, PODS, Resource, Selection, read_json, write_json

if TYPE_CHECKING:
    from serried.kube.client import ApiClient

T = TypeVar("T")

LABELS = "app.kubernetes.io/name=serried,app.kubernetes.io/component=scheduler"
"""The label selector of the extender's pods, as the shipped manifests label them."""

_OPS_PORT = 8912
"""The extender's operations port, used if none of the pod's container ports is named ``ops``."""

READER = "serried-debug-reader"
"""The ServiceAccount of the shipped manifests that may read ``/debug``; commands create tokens for it."""

HEADER = "X-Serried-Token"
"""The HTTP header with the token for the extender.

Requests through the API server cannot use ``Authorization``, which the API server reads itself (`serried.ops.access`).
"""

_TOKEN_SECONDS = 600
"""Lifetime of a token in seconds: the shortest that the API server allows."""

_ACCOUNTS = Resource("", "v1", "serviceaccounts")

_PROBE_SECONDS = 5.0
_ANSWER_SECONDS = 30.0


class DebugApi:
    """A client of the ``/debug`` routes of one extender, used by one run of a command.

    With ``--watch``, a new one is made after each lost connection.
    """

    def __init__(
        self,
        client: "ApiClient",
        name: str,
        prefix: str = "",
        *,
        token: str = "",
        token_problem: str = "",
        pod: JSON | None = None,
    ) -> None:
        self._client = client

        self._name = name
        """The extender's name in messages."""

        self.prefix = prefix
        """The part of each URL path before ``/debug``."""

        self.headers = {HEADER: token} if token else {}
        """The headers of every request."""

        self.pod = pod
        """The extender's pod; None if the extender is asked at its own address."""

        self._token_problem = token_problem
        """The reason why no token could be created, "" for none."""

        self._hidden: dict[str, bool] = {}
        """By namespace, whether the user may not list its pods. Kept so that a watch asks the API server once."""

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> Any:
        """Send a GET request for ``path`` below ``/debug``, with ``params`` as the query.

        Return the parsed JSON answer. Raises CommandError if the extender does not answer, or rejects the request.
        """
        return await self._ask("GET", path, params=params)

    async def post(self, path: str, document: Any) -> Any:
        """Send ``document`` as JSON to ``path`` below ``/debug`` and return the parsed JSON answer.

        Raises CommandError if ``document`` cannot be written as JSON, or if the extender does not answer or rejects the
        request.
        """
        try:
            body = write_json(document)
        except TypeError as error:
            raise CommandError(ExitCode.USAGE, f"the request cannot be written as JSON: {error}") from error
        return await self._ask("POST", path, body=body)

    async def list_hidden(self, namespaces: Collection[str]) -> set[str]:
        """Return those of ``namespaces`` whose pods the user may not list.

        Commands do not name gangs of these to the user.

        Return an empty set if ``--server`` names the extender's address: no API server is asked then, so the user is
        unknown.
        """
        if self.pod is None:
            return set()
        unknown = set(namespaces) - self._hidden.keys()
        found = await list_unreadable(self._client, unknown)
        self._hidden |= {each: each in found for each in unknown}
        return {each for each in namespaces if self._hidden[each]}

    async def _ask(self, method: str, path: str, **how: Any) -> Any:
        whole = f"{self.prefix}/debug/{path}"
        how = {"timeout": _ANSWER_SECONDS} | how
        try:
            answer = await self._client.request(method, whole, headers=self.headers, **how)
        except ApiError as error:
            raise self._explain(path, error) from error
        try:
            return read_json(answer.body)
        except ValueError as error:
            said = (
                f"{self._name} does not answer /debug/{path} with JSON: check that the address is that of an extender"
            )
            raise CommandError(ExitCode.UNREACHABLE, said) from error

    async def read_selfcheck(self) -> JSON | str:
        """Return the document of ``/debug/selfcheck``, or a sentence for the user that says why it cannot be had.

        The document has what the extender has found in the cluster, and what hinders it.
        """
        try:
            found = await self._ask("GET", "selfcheck", timeout=_PROBE_SECONDS)
        except CommandError as error:
            return str(error)
        return found if isinstance(found, dict) else f"{self._name} sends no self-check: check its address"

    def _explain(self, path: str, error: ApiError) -> CommandError:
        said = error.message or error.reason
        # The extender's own 404 differs from an API server's, and only that one is raised as NotFound.
        if error.status == 404 and said == "Not Found":
            other = "it has another version than this command, or is no extender; serried version shows both"
            return CommandError(ExitCode.UNREACHABLE, f"{self._name} has no /debug/{path}: {other}")
        if error.status == 404:
            return CommandError(ExitCode.NOT_FOUND, said)
        if error.status in {400, 422} and describe_failure(error) == said:
            return CommandError(ExitCode.USAGE, said)
        if error.status == 401 and self._token_problem:
            token_problem = f"Serried could not create a token for the extender: {self._token_problem}"
            return CommandError(ExitCode.UNREACHABLE, f"{self._name} does not answer: {said}. {token_problem}")
        return CommandError(ExitCode.UNREACHABLE, f"{self._name} does not answer: {describe_failure(error)}")


_NO_PROXY = (
    "the pod's address is loopback or link-local, and the API server forwards no requests to such addresses: use "
    "kubectl port-forward, and --server http://localhost:8912"
)

_MEANINGS = (
    (r"Connect call failed|Connection refused", "nothing listens at this address (connection refused)"),
    (r"WRONG_VERSION_NUMBER|RECORD_LAYER_FAILURE", "the server speaks plain HTTP: use an address with http://"),
    (r"HTTP request to an HTTPS server", "the server speaks TLS: use an address with https://"),
    (
        r"Name or service not known|nodename nor servname|name resolution|No address assoc",
        "DNS does not know the name in the address",
    ),
    (r"Network is unreachable|No route to host", "the network has no route to the address"),
    (
        r"ServerDisconnectedError|Server disconnected|Connection reset",
        "the server closed the connection without an answer: if it speaks TLS, use an address with https://",
    ),
    (r"address not allowed", _NO_PROXY),
)
"""Patterns in the error messages of Python, Go and the API server, each with the phrase shown to the user instead."""

_CERTIFICATE = re.compile(r"certificate verify failed: (.*?)(?: \(_ssl|['\]]|$)", re.IGNORECASE)
_CLASS = re.compile(r"^\w+(?:Error|Exception): ")


def describe_failure(error: ApiError) -> str:
    """Return a phrase for the user that says why a request failed.

    The phrase replaces messages of libraries, and a few of servers (`_MEANINGS`). Another message of the API server,
    such as a missing right, is returned unchanged.
    """
    said = error.message or error.reason or f"status {error.status}"
    for pattern, meaning in _MEANINGS:
        if re.search(pattern, said):
            return meaning
    if found := _CERTIFICATE.search(said):
        return (
            f"the command does not accept the certificate ({found[1]}): set --certificate-authority for an extender, "
            "or certificate-authority in the kubeconfig for an API server"
        )
    return _CLASS.sub("", said)


def ask(target: Target, work: Callable[[DebugApi], Awaitable[T]]) -> T:
    """Connect to the extender, call ``work`` with its client, and return what ``work`` returns.

    ``target`` has the command's options that say which extender it is, and with which credentials to ask it.
    Raises CommandError if no extender answers. Runs an event loop of its own, so only synchronous code may call it.
    """

    async def run() -> T:
        async with connect_to_extender(target) as debug:
            return await work(debug)

    return asyncio.run(run())


@asynccontextmanager
async def connect_to_extender(target: Target) -> AsyncIterator[DebugApi]:
    """Yield a client of the extender that leads, or of one that does not lead if none leads.

    ``target`` has the command's options that say where the extender is, and with which credentials to ask it. The
    connection is closed after the block. Raises CommandError if no extender answers.
    """
    from cli.transport import open_client  # noqa: PLC0415 - the help of a command needs no HTTP

    credentials = find_credentials(target)
    async with open_client(credentials) as client:
        yield await find_extender(client, target, credentials)


async def find_extender(client: "ApiClient", target: Target, credentials: Credentials) -> DebugApi:
    """Return a client of the extender that leads, or of one that does not lead if none leads.

    ``client`` and ``credentials`` are for the API server, which is asked for the extender's pods. If ``--server`` names
    an extender's address, they are for that extender, and no request is sent: the result is a client of it, whether it
    leads or not. Raises CommandError if no extender answers.
    """
    if target.server:
        return DebugApi(client, f"the extender at {target.server}", split_address(target.server)[1])
    pods = await _list_pods(client, target.home, name_api_server(target, credentials))
    return await _find_leader(client, target, pods)


async def _list_pods(client: "ApiClient", home: str, server: str) -> list[JSON]:
    """Return the running pods of the extender in the namespace ``home``.

    Raises CommandError if there are none, or if they cannot be listed. ``server`` is the API server's name in the error
    message.
    """
    try:
        pods = [pod async for pod in client.items(PODS, Selection(namespace=home, labels=LABELS))]
    except Forbidden as error:
        said = f"{error.message}: ask for the right to list pods in this namespace, or set --server"
        raise CommandError(ExitCode.UNREACHABLE, said) from error
    except ApiError as error:
        doing = "does not list pods" if error.status else "does not answer"
        raise CommandError(ExitCode.UNREACHABLE, f"{server} {doing}: {describe_failure(error)}") from error
    if not pods:
        said = (
            f"Serried is not installed in namespace {home} of {server}: it has no pod with the labels {LABELS}; "
            "set --serried-namespace to another namespace, or --server to the extender's address"
        )
        raise CommandError(ExitCode.UNREACHABLE, said)
    phases = {_name_pod(pod): pod.get("status", {}).get("phase", "Unknown") for pod in pods}
    if "Running" not in phases.values():
        states = ", ".join(f"{name} is {phase}" for name, phase in sorted(phases.items()))
        raise CommandError(ExitCode.UNREACHABLE, f"no pod of Serried runs: {states}. kubectl describe pod shows why")
    return [pod for pod in pods if phases[_name_pod(pod)] == "Running"]


async def _find_leader(client: "ApiClient", target: Target, pods: Sequence[JSON]) -> DebugApi:
    token, token_problem = await _make_token(client, target)
    debugs = [
        DebugApi(client, f"pod {_name_pod(pod)}", _find_path(pod), token=token, token_problem=token_problem, pod=pod)
        for pod in pods
    ]
    answers = await asyncio.gather(*(debug.read_selfcheck() for debug in debugs))
    refusals = [each for each in answers if isinstance(each, str)]
    found = [(debug, check) for debug, check in zip(debugs, answers, strict=True) if not isinstance(check, str)]
    if not found:
        raise CommandError(
            ExitCode.UNREACHABLE,
            f"{'; '.join(sorted(refusals))}. The command needs a ready pod and the rights of the Role serried-commands "
            f"in namespace {target.home}; or set --server to the extender's address",
        )
    for refusal in refusals:
        print_note(refusal)
    for debug, check in found:
        if check.get("active"):
            return debug
    print_note("no extender leads now: a standby answers, which knows no plans")
    return found[0][0]


async def _make_token(client: "ApiClient", target: Target) -> tuple[str, str]:
    """Return the token to send to the extender and "", or "" and the reason why no token could be created.

    The token is the content of ``--token-file``, else a new one for the ServiceAccount serried-debug-reader. A missing
    token does not end the command: an extender without authentication answers without one.
    """
    if token := read_token(target):
        return token, ""
    path = f"{_ACCOUNTS.path(target.home, READER)}/token"
    spec = {"expirationSeconds": _TOKEN_SECONDS}
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    try:
        answer = await client.ask("POST", path, body=write_json(body))
    except ApiError as error:
        return "", error.message or f"the API server answers {error.status}"
    return str((answer.get("status") or {}).get("token") or ""), ""


def _find_path(pod: JSON) -> str:
    metadata = pod["metadata"]
    return PODS.path(metadata["namespace"], f"https:{metadata['name']}:{_find_port(pod)}", "proxy")


def _find_port(pod: JSON) -> int:
    containers = (*pod["spec"].get("initContainers", ()), *pod["spec"].get("containers", ()))
    ports = (port for each in containers for port in each.get("ports", ()))
    return next((port["containerPort"] for port in ports if port.get("name") == "ops"), _OPS_PORT)


def _name_pod(pod: JSON) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
