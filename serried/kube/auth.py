"""Credentials for the API server, read by the official client's configuration code. Nothing else of it is used.

The import is inside the function: it takes a second, which `serried --help` should not need.
"""

import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

TOKEN_LIFETIME_SECONDS = 60.0
"""How long a token is used before its source is asked again: service account tokens rotate on disk."""


class CredentialsError(Exception):
    """No usable credentials; the message says what was tried, where, and what to do."""


def _no_token() -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Credentials:
    """Where the API server is and who we are."""

    host: str
    """The URL of the API server, without a path."""

    tls: ssl.SSLContext | None = None
    """None for plain HTTP."""

    read_token: Callable[[], str] = field(default=_no_token, repr=False)
    """Returns the current bearer token, "" if there is none. It may block (files, exec plugins).

    Raises CredentialsError if its source fails; that may pass.
    """

    renew_token: Callable[[], str] = field(default=_no_token, repr=False)
    """The same, and reads the source anew, for when the server has refused the token."""

    server_name: str = ""
    """The name that the certificate must have; "" for that of the host."""

    proxy: str = ""
    """The URL of a proxy, "" for none."""


def load_credentials(kubeconfig: str | None = None, context: str = "") -> Credentials:
    """Credentials from the file ``kubeconfig``. Without one: in-cluster if available, else the default kubeconfig.

    ``context`` is one of the kubeconfig, and so no in-cluster credentials; "" is the current one. Raises
    CredentialsError.
    """
    settings = _load_settings(kubeconfig, context)
    host = str(settings.host).rstrip("/")
    origin = kubeconfig or "the default kubeconfig"
    if not host.startswith(("http://", "https://")):
        raise CredentialsError(f"{origin} names the server {host!r}: a URL with http:// or https:// is needed")
    return Credentials(
        host=host,
        tls=_tls(settings, origin) if host.startswith("https://") else None,
        read_token=lambda: _token(settings),
        renew_token=lambda: _token(_load_settings(kubeconfig, context)),
        server_name=settings.tls_server_name or "",
        proxy=settings.proxy or "",
    )


def _load_settings(kubeconfig: str | None, context: str = "") -> Any:
    from kubernetes import config  # noqa: PLC0415
    from kubernetes.client import Configuration  # noqa: PLC0415

    settings = Configuration()
    place = kubeconfig or config.KUBE_CONFIG_DEFAULT_LOCATION
    try:
        if kubeconfig is None and not context and _load_in_cluster(config, settings):
            return settings
        config.load_kube_config(place, context or None, client_configuration=settings, persist_config=False)
    # The loader raises whatever a malformed file makes it stumble over.
    except Exception as err:
        tried = place if kubeconfig else f"the service account (not in a pod) or {place}"
        raise CredentialsError(
            f"no credentials for the API server in {tried}: {err}; pass --kubeconfig, set KUBECONFIG, or run in a pod"
        ) from err
    return settings


def _load_in_cluster(config: Any, settings: Any) -> bool:
    try:
        config.load_incluster_config(client_configuration=settings)
    except config.ConfigException:
        return False
    return True


def _tls(settings: Any, origin: str) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=settings.ssl_ca_cert or None)
        if not settings.verify_ssl:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if settings.cert_file:
            context.load_cert_chain(settings.cert_file, settings.key_file)
    except OSError as err:
        files = ", ".join(name for name in (settings.ssl_ca_cert, settings.cert_file, settings.key_file) if name)
        raise CredentialsError(
            f"{origin} has certificates that do not load ({err}; {files}): check certificate-authority, "
            "client-certificate and client-key"
        ) from err
    return context


def _token(settings: Any) -> str:
    try:
        # Asking runs the configuration's refresh hook: expired exec tokens are renewed, and the in-cluster file is read
        # again each minute. Releases before 37 keep the token under the second name.
        value = str(settings.get_api_key_with_prefix("BearerToken", "authorization") or "").strip()
    # The hook raises whatever files and exec plugins make it stumble over.
    except Exception as err:
        raise CredentialsError(f"no token for the API server: {type(err).__name__}: {err}") from err
    scheme, _, token = value.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else value
