"""How a command reaches an extender: by its address, or through the API server, which passes requests on to a pod.

The second way needs no port-forward, only the rights of the Role serried-commands. The API server does not tell a pod
who asks. So a token for the ServiceAccount that may look is made first: a pod never sees the user's own credentials.
"""

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import orjson
import typer

from serried.cli.output import CommandError, ExitCode, note, option
from serried.kube.auth import Credentials, CredentialsError, load_credentials
from serried.kube.client import ONCE, ApiClient
from serried.kube.errors import ApiError, Forbidden
from serried.kube.wire import JSON, PODS, Resource, Selection

T = TypeVar("T")

LABELS = "app.kubernetes.io/name=serried,app.kubernetes.io/component=scheduler"
"""What the extender's pods have, in the shipped manifests."""

_OPS_PORT = 8912
"""The port of operations, where no port of the container is named ``ops``."""

READER = "serried-debug-reader"
"""The ServiceAccount that may look, in the shipped manifests."""

HEADER = "X-Serried-Token"
"""Where the extender looks for a token that comes through the API server (`serried.ops.access`)."""

_TOKEN_SECONDS = 600
"""How long a token is good: the shortest time that the API server grants."""

_ACCOUNTS = Resource("", "v1", "serviceaccounts")

_USUAL_KUBECONFIG = "~/.kube/config"

_POD_NAMESPACE = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
"""Where the kubelet writes it."""

_PROBE_SECONDS = 5.0
_ANSWER_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Target:
    """Which extender is asked, and how it is reached. The fields are options of every command that asks one."""

    server: Annotated[
        str,
        option(
            "URL",
            "The address of the extender, for example http://localhost:8912. "
            "By default the command reaches the extender's pod through the API server.",
            envvar="SERRIED_SERVER",
        ),
    ] = ""
    kubeconfig: Annotated[
        str,
        option(
            "FILE",
            "The kubeconfig. Default: KUBECONFIG, otherwise ~/.kube/config, otherwise the service account in a pod.",
        ),
    ] = ""
    context: Annotated[str, option("NAME", "The context of the kubeconfig. Default: the current one.")] = ""
    home: Annotated[
        str, typer.Option("--serried-namespace", metavar="NAME", help="The namespace of the extender's pods.")
    ] = "serried-system"
    token_file: Annotated[
        str,
        option(
            "FILE",
            "The bearer token for the extender. By default, without --server, the command creates one for the "
            "ServiceAccount serried-debug-reader.",
            envvar="SERRIED_TOKEN_FILE",
        ),
    ] = ""
    authority: Annotated[
        str,
        option(
            "FILE|any",
            "With --server https://...: the authority that signed the extender's certificate; any: do not check it.",
            "--certificate-authority",
            envvar="SERRIED_CERTIFICATE_AUTHORITY",
        ),
    ] = ""


def reaching(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose last parameter is ``target``, with the options of a Target in its place."""
    options = {name: each.replace(kind=Parameter.KEYWORD_ONLY) for name, each in signature(Target).parameters.items()}
    own = list(signature(command).parameters.values())[:-1]

    @wraps(command)
    def run(**given: Any) -> None:
        target = Target(**{name: given.pop(name) for name in options})
        command(**given, target=target)

    run.__signature__ = Signature([*own, *options.values()])  # type: ignore[attr-defined]
    return run


class DebugApi:
    """``/debug`` of one extender."""

    def __init__(self, client: ApiClient, name: str, prefix: str = "", token: str = "", obstacle: str = "") -> None:
        self._client = client

        self._name = name
        """What this extender is called in messages."""

        self._prefix = prefix
        """What stands before ``/debug`` in every path."""

        self._headers = {HEADER: token} if token else {}

        self._obstacle = obstacle
        """Why there is no token."""

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> Any:
        """The document at ``path`` below ``/debug``."""
        return await self._ask("GET", path, params=params)

    async def post(self, path: str, document: Any) -> Any:
        """The answer to ``document``."""
        try:
            body = orjson.dumps(document)
        except TypeError as error:
            raise CommandError(ExitCode.USAGE, f"what is asked cannot be sent as JSON: {error}") from error
        return await self._ask("POST", path, body=body)

    async def _ask(self, method: str, path: str, **how: Any) -> Any:
        whole = f"{self._prefix}/debug/{path}"
        how = {"timeout": _ANSWER_SECONDS} | how
        try:
            answer = await self._client.request(method, whole, retry=ONCE, headers=self._headers, **how)
        except ApiError as error:
            raise self._explain(path, error) from error
        try:
            return orjson.loads(answer.body)
        except ValueError as error:
            said = f"{self._name} answers /debug/{path} with no JSON: is this an extender of Serried?"
            raise CommandError(ExitCode.UNREACHABLE, said) from error

    async def probe(self) -> JSON | None:
        """What its self-check says; None if it does not answer, which a person is told."""
        try:
            found = await self._ask("GET", "selfcheck", timeout=_PROBE_SECONDS)
        except CommandError as error:
            note(str(error))
            return None
        return found if isinstance(found, dict) else None

    def _explain(self, path: str, error: ApiError) -> CommandError:
        said = error.message or error.reason
        # Its own 404 is not that of an API server, which alone is NotFound.
        if error.status == 404 and said == "Not Found":
            older = f"{self._name} has no /debug/{path}: it is of another version than this command"
            return CommandError(ExitCode.UNREACHABLE, older)
        if error.status == 404:
            return CommandError(ExitCode.NOT_FOUND, said)
        if error.status in {400, 422}:
            return CommandError(ExitCode.USAGE, said)
        if error.status == 401 and self._obstacle:
            said = f"{said}. No token could be made for it: {self._obstacle}"
        if "certificate verify failed" in said.lower():
            said = f"{said}; --certificate-authority says whose certificate it may have"
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
            yield DebugApi(client, f"the extender at {target.server}")
        else:
            yield await _find_leader(client, target)


def find_credentials(target: Target) -> Credentials:
    """Of the extender itself, if it has an address, else of the API server; raises CommandError."""
    if target.server:
        host = target.server.rstrip("/")
        _check_address(host)
        token = _read_token(target)
        return Credentials(
            host=host,
            tls=_trust(target.authority) if host.startswith("https://") else None,
            read_token=lambda: token,
            renew_token=lambda: token,
        )
    try:
        return load_credentials(find_kubeconfig(target) or None, target.context)
    except CredentialsError as error:
        raise CommandError(ExitCode.UNREACHABLE, f"{error}; or name the extender's address with --server") from error


def find_kubeconfig(target: Target) -> str:
    """The kubeconfig that kubectl would take, or several with colons between them; "" for none."""
    usual = Path(_USUAL_KUBECONFIG).expanduser()
    return target.kubeconfig or os.environ.get("KUBECONFIG", "") or (str(usual) if usual.exists() else "")


def find_namespace(target: Target, named: str = "") -> str:
    """The namespace that a command is about, as kubectl finds it.

    It is the one that is ``named``, else that of the context, else in a pod that of its ServiceAccount, else "default".
    """
    if named:
        return named
    if kubeconfig := find_kubeconfig(target):
        contexts = read_contexts(kubeconfig)
        return contexts.namespaces.get(target.context or contexts.current) or "default"
    try:
        return Path(_POD_NAMESPACE).read_text().strip() or "default"
    except OSError:
        return "default"


class Contexts(NamedTuple):
    """What a kubeconfig says of its contexts."""

    namespaces: Mapping[str, str]
    """The namespace of each context by its name; "" where it names none."""

    current: str
    """The current context, "" if none is chosen."""


def read_contexts(kubeconfig: str) -> Contexts:
    """The contexts of a kubeconfig, or of several with colons between them; what cannot be read has none."""
    namespaces: dict[str, str] = {}
    current = ""
    for path in filter(None, kubeconfig.split(os.pathsep)):
        document = _read_yaml(path)
        current = current or str(document.get("current-context") or "")
        for each in document.get("contexts") or ():
            if isinstance(each, dict) and isinstance(each.get("context"), dict):
                namespaces.setdefault(str(each.get("name")), str(each["context"].get("namespace") or ""))
    return Contexts(namespaces, current)


def _read_yaml(path: str) -> dict[str, Any]:
    import yaml  # noqa: PLC0415 - an address needs none

    try:
        document = yaml.safe_load(Path(path).expanduser().read_text())
    except (OSError, UnicodeError, yaml.YAMLError):
        return {}
    return document if isinstance(document, dict) and isinstance(document.get("contexts"), list | None) else {}


def _check_address(host: str) -> None:
    if not host.startswith(("http://", "https://")):
        raise CommandError(ExitCode.USAGE, f"--server {host!r}: a URL with http:// or https:// is needed")
    try:
        parts = urlsplit(host)
        known = bool(parts.hostname) and parts.port != 0
    except ValueError as error:
        raise CommandError(ExitCode.USAGE, f"--server {host!r}: {error}") from error
    if not known:
        raise CommandError(ExitCode.USAGE, f"--server {host!r}: a host, and a port other than 0, is needed")


def _read_token(target: Target) -> str:
    """What stands in the token's file; "" if none is named."""
    try:
        return Path(target.token_file).read_text().strip() if target.token_file else ""
    except (OSError, UnicodeError) as error:
        raise CommandError(ExitCode.USAGE, f"--token-file: {error}") from error


def _trust(authority: str) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=authority if authority not in {"", "any"} else None)
    except OSError as error:
        raise CommandError(ExitCode.USAGE, f"--certificate-authority {authority}: {error}") from error
    if authority == "any":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


async def _find_leader(client: ApiClient, target: Target) -> DebugApi:
    home = target.home
    pods = [pod for pod in await _list_pods(client, home) if pod.get("status", {}).get("phase") == "Running"]
    if not pods:
        raise CommandError(
            ExitCode.UNREACHABLE,
            f"no pod with the labels {LABELS} runs in namespace {home}: "
            "is Serried installed there? Name another namespace with --serried-namespace, or an address with --server",
        )
    token, obstacle = await _make_token(client, target)
    debugs = [DebugApi(client, f"pod {_name_pod(pod)}", _find_path(pod), token, obstacle) for pod in pods]
    answers = await asyncio.gather(*(debug.probe() for debug in debugs))
    found = [(debug, check) for debug, check in zip(debugs, answers, strict=True) if check is not None]
    for debug, check in found:
        if check.get("active"):
            return debug
    if not found:
        refusals = "; ".join(sorted(_name_pod(pod) for pod in pods))
        raise CommandError(
            ExitCode.UNREACHABLE,
            f"no extender answers through the API server ({refusals}): the rights of the Role serried-commands in "
            f"namespace {home} are needed, and the pod must be ready; or name an address with --server",
        )
    note("no extender leads at the moment, so one that does not is asked: it knows no plans")
    return found[0][0]


async def _make_token(client: ApiClient, target: Target) -> tuple[str, str]:
    """A token to show to the pod; or "", and why there is none: an extender that asks for none answers all the same."""
    if token := _read_token(target):
        return token, ""
    path = f"{_ACCOUNTS.path(target.home, READER)}/token"
    spec = {"expirationSeconds": _TOKEN_SECONDS}
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    try:
        answer = await client.ask("POST", path, body=orjson.dumps(body), retry=ONCE)
    except ApiError as error:
        return "", error.message or f"the API server answers {error.status}"
    return str((answer.get("status") or {}).get("token") or ""), ""


def _find_path(pod: JSON) -> str:
    metadata = pod["metadata"]
    return PODS.path(metadata["namespace"], f"https:{metadata['name']}:{_find_port(pod)}", "proxy")


async def _list_pods(client: ApiClient, home: str) -> list[JSON]:
    try:
        return [pod async for pod in client.items(PODS, Selection(namespace=home, labels=LABELS))]
    except Forbidden as error:
        said = f"{error.message}; the right to list pods there is needed, or an address with --server"
        raise CommandError(ExitCode.UNREACHABLE, said) from error
    except ApiError as error:
        raise CommandError(ExitCode.UNREACHABLE, f"the API server does not list pods: {error}") from error


def _find_port(pod: JSON) -> int:
    containers = (*pod["spec"].get("initContainers", ()), *pod["spec"].get("containers", ()))
    ports = (port for each in containers for port in each.get("ports", ()))
    return next((port["containerPort"] for port in ports if port.get("name") == "ops"), _OPS_PORT)


def _name_pod(pod: JSON) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
