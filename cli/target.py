"""The options that say which extender a command asks, and with which credentials.

Credentials are found as kubectl finds them: ``--kubeconfig``, KUBECONFIG, ``~/.kube/config``, the pod's ServiceAccount.
"""

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from cli.output import CommandError, ExitCode, option
from serried.kube.auth import ACCOUNT, Credentials, CredentialsError, find_account, read_credentials
from serried.kube.kubeconfig import find_kubeconfig as find_named
from serried.kube.kubeconfig import read_kubeconfig


def complete_contexts(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the contexts of the kubeconfig that begin with ``incomplete``, for shell completion."""
    return sorted(name for name in set(list_contexts(read_target(ctx))) if name.startswith(incomplete))


def read_target(ctx: typer.Context) -> "Target":
    """Return the `Target` from the options typed so far, for shell completion."""
    names = Target.__dataclass_fields__
    return Target(**{name: value for name, value in ctx.params.items() if name in names and value})


@dataclass(frozen=True, slots=True)
class Target:
    """The extender that a command asks, and the way to reach it and to authenticate to it.

    Each field is an option of the command.
    """

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
    context: Annotated[
        str,
        option("NAME", "The context of the kubeconfig. Default: the current one.", autocompletion=complete_contexts),
    ] = ""
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


def with_target_options(command: Callable[..., None]) -> Callable[..., None]:
    """Decorator of a command's function: replaces its last parameter, ``target``, by the options of a `Target`.

    typer reads the options from the new signature; the function gets the `Target` made of their values.
    """
    options = {name: each.replace(kind=Parameter.KEYWORD_ONLY) for name, each in signature(Target).parameters.items()}
    own = list(signature(command).parameters.values())[:-1]

    @wraps(command)
    def run(**given: Any) -> None:
        target = Target(**{name: given.pop(name) for name in options})
        command(**given, target=target)

    run.__signature__ = Signature([*own, *options.values()])  # type: ignore[attr-defined]
    return run


def find_credentials(target: Target) -> Credentials:
    """Return the credentials for the server that the command connects to.

    That is the extender if ``--server`` is given, otherwise the API server. Raises CommandError if there are none.
    """
    if target.server:
        host, _ = split_address(target.server)
        token = read_token(target)
        return Credentials(
            host=host,
            tls=_trust(target.authority) if host.startswith("https://") else None,
            read_token=lambda: token,
            renew_token=lambda: token,
        )
    kubeconfig = find_kubeconfig(target)
    try:
        found = read_credentials(read_kubeconfig(kubeconfig), target.context) if kubeconfig else find_account()
    except CredentialsError as error:
        raise CommandError(ExitCode.UNREACHABLE, str(error)) from error
    if found is None:
        raise CommandError(ExitCode.UNREACHABLE, _NOTHING)
    return found


_NOTHING = (
    "there are no credentials for a cluster: neither --kubeconfig nor KUBECONFIG is set, ~/.kube/config does not "
    "exist, and this is not a pod with a ServiceAccount; or set --server to the extender's address"
)


def name_api_server(target: Target, credentials: Credentials) -> str:
    """Return the API server's name for messages: its address, and where the address is from.

    That is a kubeconfig with its context, or the pod's ServiceAccount.
    """
    if not (kubeconfig := find_kubeconfig(target)):
        return f"the API server {credentials.host} (of the pod's ServiceAccount)"
    context = target.context or read_kubeconfig(kubeconfig).current
    return f"the API server {credentials.host} (context {context} of {kubeconfig})"


def find_kubeconfig(target: Target) -> str:
    """Return the path of the kubeconfig that kubectl would use; "" if there is none.

    KUBECONFIG may name several files; then their paths with colons between them.
    """
    return find_named(target.kubeconfig)


def find_namespace(target: Target, named: str = "") -> str:
    """Return the namespace in which a command works, as kubectl finds it.

    That is ``named`` (the option ``--namespace``) if given, else the namespace of the kubeconfig's context. Without a
    kubeconfig, it is that of the pod's ServiceAccount. If the context or the pod has none, return "default".
    """
    if named:
        return named
    if kubeconfig := find_kubeconfig(target):
        try:
            return read_kubeconfig(kubeconfig).namespace(target.context) or "default"
        except CredentialsError:  # reported when the credentials are needed
            return "default"
    try:
        return (ACCOUNT / "namespace").read_text().strip() or "default"
    except OSError:
        return "default"


def list_contexts(target: Target) -> list[str]:
    """Return the names of the kubeconfig's contexts; an empty list if it cannot be read."""
    kubeconfig = find_kubeconfig(target)
    try:
        return list(read_kubeconfig(kubeconfig).contexts) if kubeconfig else []
    except CredentialsError:
        return []


def split_address(server: str) -> tuple[str, str]:
    """Split the value of ``--server`` into scheme with host, and the path before ``/debug``.

    For example ``https://host/gangs/debug/`` into ``https://host`` and ``/gangs``. Raises CommandError if it is no URL.
    """
    if not server.startswith(("http://", "https://")):
        raise CommandError(ExitCode.USAGE, f"--server {server!r}: a URL with http:// or https:// is needed")
    try:
        parts = urlsplit(server)
        known = bool(parts.hostname) and parts.port != 0
    except ValueError as error:
        raise CommandError(ExitCode.USAGE, f"--server {server!r}: {error}") from error
    if not known:
        raise CommandError(ExitCode.USAGE, f"--server {server!r}: a host, and a port other than 0, is needed")
    # Users copy the address of the page, or of a document below it.
    prefix = f"{parts.path}/".partition("/debug/")[0].rstrip("/")
    return f"{parts.scheme}://{parts.netloc}", prefix


def read_token(target: Target) -> str:
    """Return the token in the file of ``--token-file``, "" without that option.

    Raises CommandError if it cannot be read.
    """
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
