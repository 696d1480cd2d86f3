"""Which extender a command asks, and with whose credentials: the options of all commands that ask one.

Credentials are looked for as kubectl does: ``--kubeconfig``, KUBECONFIG, ``~/.kube/config``, the pod's ServiceAccount.
What is wrong with a kubeconfig is told before the official client's code reads it, whose words name Python's types.
"""

import os
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from urllib.parse import urlsplit

import typer

from serried.cli.complete import complete_contexts
from serried.cli.output import CommandError, ExitCode, find_near, option
from serried.kube.auth import Credentials, CredentialsError, load_credentials

_USUAL_KUBECONFIG = "~/.kube/config"

_POD_NAMESPACE = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
"""Where the kubelet writes it."""


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


def find_credentials(target: Target) -> Credentials:
    """Of the extender itself, if it has an address, else of the API server; raises CommandError."""
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
    if kubeconfig:
        _check_kubeconfig(kubeconfig, target.context)
    try:
        return load_credentials(kubeconfig or None, target.context)
    except CredentialsError as error:
        said = f"{_name_kubeconfig(kubeconfig)} cannot be used: {error.__cause__ or error}" if kubeconfig else _NOTHING
        raise CommandError(ExitCode.UNREACHABLE, said) from error


_NOTHING = (
    "there are no credentials for a cluster: neither --kubeconfig nor KUBECONFIG is set, ~/.kube/config does not "
    "exist, and this is not a pod with a ServiceAccount; --server takes the extender's own address"
)


def name_api_server(target: Target, credentials: Credentials) -> str:
    """The API server, and where its address is from."""
    if not (kubeconfig := find_kubeconfig(target)):
        return f"the API server {credentials.host} (of the pod's ServiceAccount)"
    context = target.context or read_contexts(kubeconfig).current
    return f"the API server {credentials.host} (context {context} of {kubeconfig})"


def _name_kubeconfig(kubeconfig: str) -> str:
    return f"kubeconfig {kubeconfig}"


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
        try:
            document = _read_kubeconfig(path)
        except CommandError:
            continue
        current = current or str(document.get("current-context") or "")
        for each in document.get("contexts") or ():
            namespaces.setdefault(str(each["name"]), str(each["context"].get("namespace") or ""))
    return Contexts(namespaces, current)


def _check_kubeconfig(kubeconfig: str, context: str) -> None:
    """Raises CommandError for what is no kubeconfig, or has no such context."""
    if os.pathsep not in kubeconfig:
        _read_kubeconfig(kubeconfig)
    names, current = read_contexts(kubeconfig)
    chosen = context or current
    if chosen in names:
        return
    has = f"it has {', '.join(sorted(names))}" if names else "it has none"
    said = f"no context {chosen}" if chosen else "no current context, and --context names none"
    near = find_near(chosen, names)
    hint = f"; did you mean {near}?" if near else ""
    raise CommandError(ExitCode.UNREACHABLE, f"{_name_kubeconfig(kubeconfig)} has {said}: {has}{hint}")


_SECTIONS = {"contexts": "context", "clusters": "cluster"}
"""Lists of a kubeconfig, each with the field that its entries have beside their name. A user may have nothing."""


def _read_kubeconfig(path: str) -> dict[str, Any]:
    """One kubeconfig; raises CommandError, which says where it is broken."""
    import yaml  # noqa: PLC0415 - an address needs none

    problem = "it is not an object"
    try:
        document = yaml.safe_load(Path(path).expanduser().read_text())
    except OSError as error:
        problem, document = error.strerror or str(error), None
    except (UnicodeError, yaml.YAMLError) as error:
        mark = getattr(error, "problem_mark", None)
        problem, document = f"it is not YAML{f' (line {mark.line + 1})' if mark else ''}", None
    if isinstance(document, dict):
        problem = next(filter(None, (_check_section(document, *each) for each in _SECTIONS.items())), "")
    if problem or not isinstance(document, dict):
        raise CommandError(ExitCode.UNREACHABLE, f"{_name_kubeconfig(path)} cannot be read: {problem}")
    return document


def _check_section(document: Mapping[str, Any], section: str, field: str) -> str:
    """What is wrong with a list of a kubeconfig; "" if nothing is."""
    entries = document.get(section)
    if not isinstance(entries, list | None):
        return f"{section} is not a list"
    for entry in entries or ():
        if not (isinstance(entry, dict) and "name" in entry and isinstance(entry.get(field), dict)):
            return f"an entry of {section} has no name, or no {field}"
    return ""


def split_address(server: str) -> tuple[str, str]:
    """The host of ``--server`` with its scheme, and what stands before ``/debug`` in paths; raises CommandError."""
    if not server.startswith(("http://", "https://")):
        raise CommandError(ExitCode.USAGE, f"--server {server!r}: a URL with http:// or https:// is needed")
    try:
        parts = urlsplit(server)
        known = bool(parts.hostname) and parts.port != 0
    except ValueError as error:
        raise CommandError(ExitCode.USAGE, f"--server {server!r}: {error}") from error
    if not known:
        raise CommandError(ExitCode.USAGE, f"--server {server!r}: a host, and a port other than 0, is needed")
    # People copy the address of the page, or of one of its documents.
    prefix = f"{parts.path}/".partition("/debug/")[0].rstrip("/")
    return f"{parts.scheme}://{parts.netloc}", prefix


def read_token(target: Target) -> str:
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
