"""TLS for listeners, with certificate files that may be replaced at any time, as by cert-manager (`ReloadingContext`).

Each new connection uses the present content of the files. While that is invalid, for instance because in the middle of
an update the key does not belong to the certificate, the previous content stays in use.
"""

import logging
import math
import os
import socket
import ssl
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any
from weakref import WeakSet

log = logging.getLogger(__name__)

_SELF_SIGNED_DAYS = 3650
"""The validity of a self-signed certificate: long, because it is not renewed while the process runs."""


class Use(StrEnum):
    """The use of a certificate of a listener: to prove who the server is, or to verify certificates of clients."""

    SERVING = "serving"
    """The server certificate."""

    CLIENT_CA = "client_ca"
    """The CA certificates by which the certificates of clients are verified."""


class CertificateError(Exception):
    """Raised for certificate files that TLS cannot use. The message is a sentence that names the files."""


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """The paths of the PEM files of a TLS listener."""

    certificate: str
    """The file with the server's certificate, followed by intermediate ones."""

    key: str
    """The file with the private key of the certificate."""

    client_ca: str = ""
    """The file with the CA certificates for client certificates; "" if clients need no certificate."""

    def names(self) -> tuple[str, ...]:
        """Return the paths that are not empty."""
        return tuple(name for name in (self.certificate, self.key, self.client_ca) if name)


class ReloadingContext(ssl.SSLContext):
    """An SSL context for listeners that uses new content of its files without a restart.

    When the files have changed, they are loaded into a whole new context (``current``). If they were loaded into the
    old context, it could use the new certificate with the old key for a moment, and clients whose certificates the old
    CA had signed could resume their sessions. The constructor raises CertificateError if the files cannot be used.
    """

    def __new__(cls, files: CertificateFiles) -> "ReloadingContext":  # noqa: ARG004 - __init__ takes them
        """Create an empty context. asyncio requires that it is an `ssl.SSLContext`; connections use ``current``."""
        return super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)

    def __init__(self, files: CertificateFiles) -> None:
        self._files = files
        self._seen = _stat_files(files)
        """The result of `_stat_files` when the files were last read, successfully or not."""
        self.current = make_context(files)
        """The context for new connections, with the last valid content of the files."""

        self.expiries = _read_expiries(files)
        """The expiry of the certificates in use by `Use`, in seconds since 1970; without those that cannot be read."""

        _IN_USE.add(self)

    def wrap_bio(self, *args: Any, **how: Any) -> ssl.SSLObject:
        """Create the TLS object of a new connection, with the present content of the files. The event loop calls it."""
        self.follow()
        return self.current.wrap_bio(*args, **how)

    def follow(self) -> None:
        """Read the files again if they have changed. If they are valid, new connections use them from now on."""
        seen = _stat_files(self._files)
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self.current = make_context(self._files)
        except CertificateError as error:
            log.warning("cannot load changed certificates; the old ones stay in use", extra={"why": str(error)})
        else:
            self.expiries = _read_expiries(self._files)
            log.info("changed certificates are loaded and in use", extra={"files": self._files.names()})


_IN_USE: WeakSet[ReloadingContext] = WeakSet()
"""The contexts of all TLS listeners of this process, for `list_expiries`."""


def list_expiries() -> dict[Use, float]:
    """Return by use when the certificates of the TLS listeners of this process expire, in seconds since 1970.

    If several listeners have certificates of one use, it is the earliest of their times. Changed files are read again
    first. Self-signed certificates are not included, so the result is empty without certificate files.
    """
    found: defaultdict[Use, float] = defaultdict(lambda: math.inf)
    for context in _IN_USE:
        context.follow()
        for use, expiry in context.expiries.items():
            found[use] = min(found[use], expiry)
    return dict(found)


def make_context(files: CertificateFiles) -> ssl.SSLContext:
    """Return a server-side SSL context with the present content of the files.

    With a ``client_ca`` clients must have a certificate. Raises CertificateError if a file is missing or invalid, or
    if key and certificate do not belong together.
    """
    context = _make_empty()
    try:
        context.load_cert_chain(files.certificate, files.key)
        if files.client_ca:
            context.load_verify_locations(files.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ValueError) as error:
        raise CertificateError(
            f"{', '.join(files.names())}: {error}; the certificate, its key and the certificates of the authority "
            "must be there in PEM, and key and certificate must belong together"
        ) from error
    return context


def make_self_signed() -> ssl.SSLContext:
    """Return a server-side SSL context with a new self-signed certificate.

    It protects tokens against eavesdropping only: clients cannot verify who the server is.
    """
    context = _make_empty()
    with _write_temporary(_create_self_signed()) as path:
        context.load_cert_chain(path)
    return context


class _LoggingSSLObject(ssl.SSLObject):
    """The TLS object of a connection, which logs why a handshake failed; asyncio itself does not."""

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            log.warning("a TLS handshake with a client failed", extra={"why": str(error)})
            raise


def _make_empty() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sslobject_class = _LoggingSSLObject
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A client that resumes a session would not show its certificate again.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    context.set_alpn_protocols(["http/1.1"])
    return context


def list_names(certificate: Mapping[str, Any]) -> frozenset[str]:
    """Return the names in a client's certificate: its common names and subject alternative names.

    ``certificate`` is the result of ``SSLObject.getpeercert``.
    """
    subject = [pair for part in certificate.get("subject", ()) for pair in part]
    common = {value for kind, value in subject if kind == "commonName"}
    return frozenset(common | {value for _, value in certificate.get("subjectAltName", ())})


def _stat_files(files: CertificateFiles) -> tuple[tuple[int, ...], ...]:
    """Return a value that changes when any of the files is changed or replaced.

    Symbolic links are followed, because the kubelet replaces a link when a mounted Secret changes.
    """
    return tuple(_stat(name) for name in files.names())


def _stat(name: str) -> tuple[int, ...]:
    try:
        found = Path(name).stat()
    except OSError:
        return ()
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


def _read_expiries(files: CertificateFiles) -> dict[Use, float]:
    """Return when the certificates in these files expire, by use, in seconds since 1970. Unreadable ones are left out.

    For the server's certificate and its intermediates it is the first expiry. For CA certificates it is the last one:
    while a CA is replaced, the file has the old and the new one, and one valid CA is enough.
    """
    found: dict[Use, float] = {}
    if chain := _list_expiries_in(files.certificate):
        found[Use.SERVING] = min(chain)
    if files.client_ca and (authorities := _list_expiries_in(files.client_ca)):
        found[Use.CLIENT_CA] = max(authorities)
    return found


def _list_expiries_in(name: str) -> list[float]:
    # Imported here: it is slow, and only needed by processes with certificate files.
    from cryptography import x509  # noqa: PLC0415

    try:
        certificates = x509.load_pem_x509_certificates(Path(name).read_bytes())
    except (OSError, ValueError, x509.InvalidVersion) as error:
        log.warning(
            "cannot read when certificates expire; /debug/selfcheck does not warn of their expiry",
            extra={"file": name, "why": str(error)},
        )
        return []
    return [certificate.not_valid_after_utc.timestamp() for certificate in certificates]


def _create_self_signed() -> bytes:
    """Return a new private key, followed by its self-signed certificate, both in PEM."""
    # Imported here: it takes a third of the start time, and is only needed for listeners on the network.
    from cryptography import x509  # noqa: PLC0415
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

    key = ec.generate_private_key(ec.SECP256R1())
    host = socket.gethostname()
    now = datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"{host[:40]}@{int(now.timestamp())}")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=_SELF_SIGNED_DAYS))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host), x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return private + certificate.public_bytes(pem)


@contextmanager
def _write_temporary(content: bytes) -> Iterator[str]:
    """Yield the path of a temporary file with this content, in memory if possible: the file system may be read-only."""
    if not hasattr(os, "memfd_create"):
        with NamedTemporaryFile() as file:
            Path(file.name).write_bytes(content)
            yield file.name
        return
    with os.fdopen(os.memfd_create("certificate"), "wb", buffering=0) as memory:
        memory.write(content)
        yield f"/proc/self/fd/{memory.fileno()}"
