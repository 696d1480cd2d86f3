"""TLS for listeners (`ReloadingContext`), with files that may be replaced at any time: mounted Secrets, cert-manager.

Each new connection uses the files in their present state. While files do not fit together, as in the middle of an
update, the previous ones stay in use.
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
"""Long, because a process that outlives its certificate would reject all clients."""


class Use(StrEnum):
    """The purposes of certificates at a listener."""

    SERVING = "serving"
    """The server certificate."""

    CLIENT_CA = "client_ca"
    """The authorities that must have signed a client's certificate."""


class CertificateError(Exception):
    """Raised for files that TLS cannot use. The message is a sentence that names them."""


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """The PEM files of a listener."""

    certificate: str
    """The certificate, followed by intermediate ones."""

    key: str

    client_ca: str = ""
    """The authorities for client certificates; "" if clients need none."""

    def names(self) -> tuple[str, ...]:
        """Return the names of all files."""
        return tuple(name for name in (self.certificate, self.key, self.client_ca) if name)


class ReloadingContext(ssl.SSLContext):
    """A context for listeners that follows changes of its files. Raises CertificateError if they are unusable at first.

    Each state of the files has a complete context of its own. Exchanging parts of one context could combine the new
    certificate with the old key for a moment, and would let clients of the old authority resume sessions.
    """

    def __new__(cls, files: CertificateFiles) -> "ReloadingContext":  # noqa: ARG004 - __init__ takes them
        """Create a context that is not used itself: it delegates to the context of the files."""
        return super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)

    def __init__(self, files: CertificateFiles) -> None:
        self._files = files
        self._seen = _stat_files(files)
        """The state of the files that was tried last."""
        self.current = make_context(files)
        """The context for new connections; replaced when the files change."""

        self.expiries = _read_expiries(files)
        """The expiry of the certificates in use, in seconds since 1970; unreadable ones are left out."""

        _IN_USE.add(self)

    def wrap_bio(self, *args: Any, **how: Any) -> ssl.SSLObject:
        """Create the TLS object of a new connection; called by the event loop."""
        self.follow()
        return self.current.wrap_bio(*args, **how)

    def follow(self) -> None:
        """Use the files from now on if they have changed and are valid."""
        seen = _stat_files(self._files)
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self.current = make_context(self._files)
        except CertificateError as error:
            log.warning(
                "certificates have changed and cannot be used; the old ones serve on", extra={"why": str(error)}
            )
        else:
            self.expiries = _read_expiries(self._files)
            log.info("certificates have changed, and are used from now on", extra={"files": self._files.names()})


_IN_USE: WeakSet[ReloadingContext] = WeakSet()
"""The contexts of all listeners of this process, for metrics and pages."""


def list_expiries() -> dict[Use, float]:
    """Return by use when the first certificate of this process's listeners expires, in seconds since 1970.

    The files are checked for changes first. Self-signed certificates are not included.
    """
    found: defaultdict[Use, float] = defaultdict(lambda: math.inf)
    for context in _IN_USE:
        context.follow()
        for use, expiry in context.expiries.items():
            found[use] = min(found[use], expiry)
    return dict(found)


def make_context(files: CertificateFiles) -> ssl.SSLContext:
    """Return a context for the present state of the files. Raises CertificateError."""
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
    """Return a context with a new self-signed certificate.

    It protects against eavesdropping only: clients cannot verify it.
    """
    context = _make_empty()
    with _write_temporary(_create_self_signed()) as path:
        context.load_cert_chain(path)
    return context


class _LoggingSSLObject(ssl.SSLObject):
    """A connection that logs why a client was rejected, which the event loop does not."""

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            log.warning("a caller is refused by TLS", extra={"why": str(error)})
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
    """Return the names in a client's certificate: common names and alternative names."""
    subject = [pair for part in certificate.get("subject", ()) for pair in part]
    common = {value for kind, value in subject if kind == "commonName"}
    return frozenset(common | {value for _, value in certificate.get("subjectAltName", ())})


def _stat_files(files: CertificateFiles) -> tuple[tuple[int, ...], ...]:
    """Return a value that changes whenever a file changes, also by a symbolic link."""
    return tuple(_stat(name) for name in files.names())


def _stat(name: str) -> tuple[int, ...]:
    try:
        found = Path(name).stat()
    except OSError:
        return ()
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


def _read_expiries(files: CertificateFiles) -> dict[Use, float]:
    """Return by use when the certificates in these files expire.

    A chain is valid until its first certificate expires. Authorities are valid until the last one expires, because
    during a rotation one is enough.
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
        log.warning("the expiry of these certificates cannot be read", extra={"file": name, "why": str(error)})
        return []
    return [certificate.not_valid_after_utc.timestamp() for certificate in certificates]


def _create_self_signed() -> bytes:
    """Return a new key and a self-signed certificate, in PEM."""
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
    """Yield a path with the content: in memory if possible, because the file system may be read-only."""
    if not hasattr(os, "memfd_create"):
        with NamedTemporaryFile() as file:
            Path(file.name).write_bytes(content)
            yield file.name
        return
    with os.fdopen(os.memfd_create("certificate"), "wb", buffering=0) as memory:
        memory.write(content)
        yield f"/proc/self/fd/{memory.fileno()}"
