"""Credentials for the API server, from a pod's ServiceAccount or from a kubeconfig, with client-go's precedence.

`load_credentials` is the entry. A token in the kubeconfig takes precedence over an exec plugin. The token or
certificate from an exec plugin is cached until it expires or the API server rejects it. Source:
k8s.io/client-go/tools/clientcmd and plugin/pkg/client/auth/exec.
"""

import base64
import binascii
import json
import os
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from serried.kube.kubeconfig import USUAL_KUBECONFIG, CredentialsError, Entry, Kubeconfig, read_kubeconfig

__all__ = ["TOKEN_LIFETIME_SECONDS", "Credentials", "CredentialsError", "load_credentials"]

TOKEN_LIFETIME_SECONDS = 60.0
"""The age at which a bearer token is read from its source again: the kubelet rotates ServiceAccount tokens on disk."""

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""The folder in which the kubelet stores a pod's token, the CA certificate of the API server and the namespace."""

_EXEC_GROUP = "client.authentication.k8s.io/"
_EXEC_VERSIONS = ("v1", "v1beta1")
_EXEC_SECONDS = 600.0
"""The timeout of an exec plugin: it may have to wait for a person who logs in with a browser."""


def _no_token() -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Credentials:
    """The URL of one API server, and how the client connects to it and authenticates."""

    host: str
    """The URL of the API server; it may have a path."""

    tls: ssl.SSLContext | None = None
    """The SSL context with the API server's CA and the client certificate, if any; None for plain HTTP."""

    read_token: Callable[[], str] = field(default=_no_token, repr=False)
    """Function that returns the current bearer token, "" if there is none. It may block (files, exec plugins).

    Raises CredentialsError if the source of the token fails, which may be temporary.
    """

    renew_token: Callable[[], str] = field(default=_no_token, repr=False)
    """Function that reads the token anew after the API server has rejected it. Returns and raises as ``read_token``."""

    server_name: str = ""
    """The name that the server's certificate must have; "" for the host name in the URL."""

    proxy: str = ""
    """The URL of the HTTP proxy, "" for none."""


def load_credentials(kubeconfig: str | None = None, context: str = "") -> Credentials:
    """Return credentials from the file ``kubeconfig``; if it is None, from the pod, else from the default kubeconfig.

    ``context`` is a context of the kubeconfig; "" is the current one. With a context, credentials of the pod are not
    used. Raises CredentialsError.
    """
    if kubeconfig is None and not context and (found := find_account()):
        return found
    place = kubeconfig or os.environ.get("KUBECONFIG") or USUAL_KUBECONFIG
    try:
        return read_credentials(read_kubeconfig(place), context)
    except CredentialsError as err:
        tried = "" if kubeconfig else ", and this is not a pod with a ServiceAccount"
        raise CredentialsError(f"{err}{tried}; pass --kubeconfig, set KUBECONFIG, or run in a pod") from err


def find_account() -> Credentials | None:
    """Return the credentials of the pod's ServiceAccount; None outside of a pod. Raises CredentialsError."""
    host, port = (os.environ.get(f"KUBERNETES_SERVICE_{name}", "") for name in ("HOST", "PORT"))
    token, authority = ACCOUNT / "token", ACCOUNT / "ca.crt"
    if not (host and port and token.exists() and authority.exists()):
        return None
    read = partial(_read_token_file, token)
    tls = _make_tls({"certificate-authority": str(authority)}, "the pod's ServiceAccount")
    return Credentials(f"https://{f'[{host}]' if ':' in host else host}:{port}", tls, read, read)


def read_credentials(kubeconfig: Kubeconfig, context: str = "") -> Credentials:
    """Return the credentials for a context of a kubeconfig; "" is the current context.

    If the user has an exec plugin, it runs immediately. Raises CredentialsError if the credentials cannot be used.
    """
    try:
        return _read(kubeconfig, context)
    except (AttributeError, KeyError, TypeError, ValueError) as err:
        # A field has the wrong type, such as a list instead of an object. kubectl rejects the file, too.
        raise CredentialsError(
            f"kubeconfig {kubeconfig.place} cannot be used: a field of context {context or kubeconfig.current}, or of "
            f"its cluster or user, has a value of the wrong type ({err})"
        ) from err


def _read(kubeconfig: Kubeconfig, context: str) -> Credentials:
    entry = kubeconfig.choose(context)
    origin = f"kubeconfig {kubeconfig.place}"
    host = str(entry.cluster.get("server") or "").rstrip("/")
    if not host.startswith(("http://", "https://")):
        raise CredentialsError(f"{origin} names the server {host!r}: a URL with http:// or https:// is needed")
    _reject_unsupported(entry.user, origin)
    tls = _make_tls(entry.cluster, origin) if host.startswith("https://") else None
    _load_certificate(tls, entry.user, origin)
    name = str(entry.cluster.get("tls-server-name") or "")
    proxy = _find_proxy(entry, host, origin)
    if entry.user.get("exec") and not _read_user_token(entry.user):
        plugin = _ExecPlugin(entry, tls, origin)
        return Credentials(host, tls, plugin.read, plugin.run, name, proxy)

    def renew() -> str:
        return _read_user_token(read_kubeconfig(kubeconfig.place).choose(context).user)

    # kubectl renews the token of an auth-provider in the file, so the file is read each time.
    read = renew if entry.user.get("auth-provider") else partial(_read_user_token, entry.user)
    return Credentials(host, tls, read_token=read, renew_token=renew, server_name=name, proxy=proxy)


def _reject_unsupported(user: Mapping[str, Any], origin: str) -> None:
    """Raise CredentialsError if a kubeconfig's user needs a way to authenticate that Serried lacks: impersonation etc.

    If the field were ignored, requests would have another user than those of kubectl, and misleading answers.
    ``origin`` names the kubeconfig in the message.
    """
    said = ""
    if any(name in user for name in ("as", "as-uid", "as-groups", "as-user-extra")):
        said = "has a user who impersonates another one (as), which is not supported: use a user without that"
    elif user.get("username"):
        said = "has a user with a password, which API servers do not take any more: use a token or a certificate"
    elif (provider := (user.get("auth-provider") or {}).get("name")) and provider != "oidc":
        said = f"has the auth-provider {provider}, which kubectl does not know any more: use its exec plugin"
    if said:
        raise CredentialsError(f"{origin} {said}")


def _find_proxy(entry: Entry, host: str, origin: str) -> str:
    """Return the URL of the proxy for the API server at the URL ``host``; "" for none.

    It is the ``proxy-url`` of the cluster in the kubeconfig, else that of the environment (HTTPS_PROXY, NO_PROXY).
    ``origin`` names the kubeconfig in a CredentialsError, which is raised for a ``proxy-url`` that is not HTTP.
    """
    from urllib.request import getproxies, proxy_bypass  # noqa: PLC0415 - the help of a command needs no HTTP

    proxy = str(entry.cluster.get("proxy-url") or "")
    if proxy and not proxy.startswith(("http://", "https://")):
        raise CredentialsError(f"{origin} has the proxy-url {proxy}: one with http:// or https:// is needed")
    scheme, _, rest = host.partition("://")
    found = getproxies()
    usual = found.get(scheme) or found.get("all") or ""
    return proxy or (usual if usual and not proxy_bypass(rest.partition("/")[0]) else "")


def _read_user_token(user: Mapping[str, Any]) -> str:
    """Return the token of a kubeconfig's user, "" for none.

    Raises CredentialsError if the token's file is empty or missing, or if the token has expired.
    """
    provided = str(((user.get("auth-provider") or {}).get("config") or {}).get("id-token") or "")
    stated = str(user.get("token") or provided)
    if user.get("tokenFile"):
        return _read_token_file(Path(str(user["tokenFile"])), stated)
    if stated == provided and _read_expiry(provided) <= datetime.now(UTC).timestamp():
        # Serried does not renew it: the new one would have to be written into the kubeconfig, which only kubectl
        # rewrites without losing comments and order.
        raise CredentialsError(
            "the id-token of the auth-provider oidc has expired: run any command of kubectl, which renews it in the "
            "kubeconfig, or use the exec plugin of kubelogin"
        )
    return stated


def _read_expiry(token: str) -> float:
    """Return when a JSON Web Token expires, in seconds since 1970; infinity if it has no expiry."""
    part = token.split(".")[1] if token.count(".") == 2 else ""
    try:
        claims = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
        return float(claims.get("exp", "inf"))
    except (AttributeError, TypeError, ValueError):
        return float("inf")


def _read_token_file(path: Path, otherwise: str = "") -> str:
    try:
        token = path.read_text().strip()
    except (OSError, UnicodeError) as err:
        token, problem = "", str(err)
    else:
        problem = f"{path} is empty"
    if not (token or otherwise):
        raise CredentialsError(f"no token for the API server: {problem}")
    return token or otherwise


# ---------------------------------------------------------------- certificates


def _make_tls(cluster: Mapping[str, Any], origin: str) -> ssl.SSLContext:
    data, file = (cluster.get(f"certificate-authority{suffix}") for suffix in ("-data", ""))
    if cluster.get("insecure-skip-tls-verify"):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context
    try:
        if data:
            pem = _decode(data, "certificate-authority-data", origin).decode("ascii")
            return ssl.create_default_context(cadata=pem)
        return ssl.create_default_context(cafile=file or None)
    except (OSError, ValueError) as err:
        raise _certificate_error(origin, err, file or "certificate-authority-data") from err


def _load_certificate(tls: ssl.SSLContext | None, user: Mapping[str, Any], origin: str) -> None:
    """Load the client certificate of a kubeconfig's user into ``tls``. Does nothing without a certificate or ``tls``.

    Data in the kubeconfig has precedence over a file. Raises CredentialsError if only one of certificate and key is
    given, or if they are invalid. ``origin`` names the kubeconfig in the message.
    """
    names = ("client-certificate", "client-key")
    given = [user.get(f"{name}-data") or user.get(name) for name in names]
    if tls is None or not any(given):
        return
    if not all(given):
        missing = names[given.index(next(filter(lambda each: not each, given)))]
        raise CredentialsError(f"{origin} has half of a certificate: {missing} is missing")
    inline = [user.get(f"{name}-data") for name in names]
    try:
        with tempfile.TemporaryDirectory(prefix="serried-") as folder:
            files = [str(user.get(name)) for name in names]
            for number, (name, data) in enumerate(zip(names, inline, strict=True)):
                if data:
                    files[number] = _write_private(Path(folder) / name, _decode(data, f"{name}-data", origin))
            tls.load_cert_chain(*files)
    except OSError as err:
        said = ", ".join(f"{name}-data" if data else str(user[name]) for name, data in zip(names, inline, strict=True))
        raise _certificate_error(origin, err, said) from err


def _write_private(path: Path, content: bytes) -> str:
    """Write ``content`` to a file that only the current user can read. Return its path."""
    path.touch(mode=0o600)
    path.write_bytes(content)
    return str(path)


def _decode(data: object, name: str, origin: str) -> bytes:
    try:
        return base64.b64decode(str(data))
    except binascii.Error as err:
        raise CredentialsError(f"{origin} has a {name} that is no base64: {err}") from err


def _certificate_error(origin: str, err: Exception, files: str) -> CredentialsError:
    return CredentialsError(
        f"{origin} has certificates that do not load ({err}; {files}): check certificate-authority, "
        "client-certificate and client-key"
    )


# ---------------------------------------------------------------- commands that make credentials


class _ExecPlugin:
    """An exec plugin of a kubeconfig: a command that prints a token or a client certificate, which may expire.

    A token is cached until it expires. A certificate is loaded into the SSL context ``tls`` of the connections. The
    plugin runs when the instance is created.
    """

    def __init__(self, entry: Entry, tls: ssl.SSLContext | None, origin: str) -> None:
        self._spec: Mapping[str, Any] = entry.user["exec"]
        self._cluster = entry.cluster
        self._tls = tls
        self._origin = origin
        self._command = str(self._spec.get("command") or "")
        self._token = ""
        self._expires = float("inf")
        """The end of the token's or certificate's validity, seconds since 1970; infinity if the plugin names none."""
        version = str(self._spec.get("apiVersion") or "")
        if version.removeprefix(_EXEC_GROUP) not in _EXEC_VERSIONS:
            known = " or ".join(_EXEC_GROUP + each for each in _EXEC_VERSIONS)
            raise CredentialsError(f"{origin} has an exec plugin of apiVersion {version!r}: {known} is needed")
        self.run()

    def read(self) -> str:
        """Return the token, "" if the plugin prints a certificate. Run the plugin if the last token has expired.

        Raises CredentialsError.
        """
        if datetime.now(UTC).timestamp() >= self._expires:
            return self.run()
        return self._token

    def run(self) -> str:
        """Run the plugin, whether or not the last token has expired. Return the token as `read` does."""
        status = self._parse(self._start())
        self._token = str(status.get("token") or "")
        pem = {name: status.get(f"{field}Data") for name, field in _CERTIFICATE.items()}
        if not (self._token or all(pem.values())):
            raise self._plugin_error("the plugin gives neither a token nor a certificate with its key")
        self._expires = float("inf")
        if stamp := status.get("expirationTimestamp"):
            with suppress(ValueError):
                self._expires = datetime.fromisoformat(str(stamp)).timestamp()
        if all(pem.values()):
            encoded = {f"{name}-data": base64.b64encode(str(text).encode()) for name, text in pem.items()}
            texts = {name: data.decode() for name, data in encoded.items()}
            _load_certificate(self._tls, texts, f"what {self._command} gives")
        return self._token

    def _start(self) -> str:
        own = {str(each.get("name")): str(each.get("value") or "") for each in self._spec.get("env") or ()}
        asks = self._check_interactive()
        spec: dict[str, Any] = {"interactive": asks}
        if self._spec.get("provideClusterInfo"):
            spec["cluster"] = _describe_cluster(self._cluster)
        info = {"apiVersion": self._spec["apiVersion"], "kind": "ExecCredential", "spec": spec}
        try:
            done = subprocess.run(  # noqa: S603 - the person's own command
                [self._command, *map(str, self._spec.get("args") or ())],
                env=os.environ | own | {"KUBERNETES_EXEC_INFO": json.dumps(info)},
                stdin=None if asks else subprocess.DEVNULL,
                stdout=subprocess.PIPE,  # stderr is the terminal: the plugin shows its messages to the user there
                text=True,
                timeout=_EXEC_SECONDS,
                check=False,
            )
        except FileNotFoundError as err:
            hint = str(self._spec.get("installHint") or "").strip()
            raise self._plugin_error(f"it is not installed{f'. {hint}' if hint else ''}") from err
        except (OSError, ValueError, subprocess.TimeoutExpired) as err:
            raise self._plugin_error(str(err)) from err
        if done.returncode:
            raise self._plugin_error(f"exit code {done.returncode}")
        return done.stdout

    def _check_interactive(self) -> bool:
        """Return whether the plugin may prompt a person (its ``interactiveMode``, and whether there is a terminal).

        Raises CredentialsError if the plugin requires a terminal and there is none.
        """
        mode = self._spec.get("interactiveMode") or "IfAvailable"
        present = sys.stdin is not None and sys.stdin.isatty()
        if mode == "Always" and not present:
            raise self._plugin_error("the plugin needs input from a terminal, but there is none")
        return present and mode != "Never"

    def _parse(self, text: str) -> Mapping[str, Any]:
        try:
            document = json.loads(text)
            version, status = document.get("apiVersion"), document.get("status")
        except (ValueError, AttributeError) as err:
            raise self._plugin_error("the plugin gives no ExecCredential") from err
        if version != self._spec["apiVersion"]:
            raise self._plugin_error(f"it gives an ExecCredential of {version}, not of {self._spec['apiVersion']}")
        if not isinstance(status, dict):
            raise self._plugin_error("it gives an ExecCredential without status")
        return status

    def _plugin_error(self, why: str) -> CredentialsError:
        return CredentialsError(f"{self._origin} has the exec plugin {self._command}, which fails: {why}")


_CERTIFICATE = {"client-certificate": "clientCertificate", "client-key": "clientKey"}
"""The names of the fields of a client certificate: in a kubeconfig -> in the status of an ExecCredential."""


def _describe_cluster(cluster: Mapping[str, Any]) -> dict[str, Any]:
    """Return the cluster of a kubeconfig in the form in which an exec plugin gets it (``provideClusterInfo``)."""
    data = cluster.get("certificate-authority-data")
    if not data and (file := cluster.get("certificate-authority")):
        with suppress(OSError):
            data = base64.b64encode(Path(str(file)).read_bytes()).decode()
    config = next(
        (
            each.get("extension")
            for each in cluster.get("extensions") or ()
            if each.get("name") == f"{_EXEC_GROUP.rstrip('/')}/exec"
        ),
        None,
    )
    found = {
        "server": cluster.get("server"),
        "tls-server-name": cluster.get("tls-server-name"),
        "insecure-skip-tls-verify": cluster.get("insecure-skip-tls-verify"),
        "certificate-authority-data": data,
        "proxy-url": cluster.get("proxy-url"),
        "config": config,
    }
    return {name: value for name, value in found.items() if value}
