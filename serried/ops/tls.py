"""TLS for listeners, with files that may be replaced while it serves: mounted Secrets, files of cert-manager.

Every new connection is made with the files as they are then; who keeps one can see that the files are others now.
Files that do not go together, as while they are being written, change nothing: what was read before serves on.
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
"""A process that runs longer than its certificate would shut everybody out."""


class Use(StrEnum):
    """What a listener has certificates for."""

    SERVING = "serving"
    """It shows them to callers."""

    CLIENT_CA = "client_ca"
    """Callers must have one that is signed by one of these."""


class CertificateError(Exception):
    """Files of which no TLS can be made; the message is a sentence that names them."""


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """Where a listener's certificate is, in PEM."""

    certificate: str
    """With the intermediate ones."""

    key: str

    client_ca: str = ""
    """Whose certificates clients must have; "" if they need none."""

    def names(self) -> tuple[str, ...]:
        """All of them."""
        return tuple(name for name in (self.certificate, self.key, self.client_ca) if name)


class ReloadingContext(ssl.SSLContext):
    """A context for listeners that follows its files. Raises CertificateError if they are of no use at the start.

    Each state of the files has a context of its own, whole: one whose parts were exchanged could for a moment have the
    new certificate with the old key, and would let those resume who came by the old authority.
    """

    def __new__(cls, files: CertificateFiles) -> "ReloadingContext":  # noqa: ARG004 - __init__ takes them
        """A context that is never used itself: it hands out those of the files."""
        return super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)

    def __init__(self, files: CertificateFiles) -> None:
        self._files = files
        self._seen = _look(files)
        """The state of the files that was tried last."""
        self.current = make_context(files)
        """The context of connections that are made now: another one whenever the files are others."""

        self.expiries = _read_expiries(files)
        """When the certificates in use expire, in seconds since 1970; those that cannot be read are left out."""

        _IN_USE.add(self)

    def wrap_bio(self, *args: Any, **how: Any) -> ssl.SSLObject:
        """What the event loop calls for each new connection."""
        self.follow()
        return self.current.wrap_bio(*args, **how)

    def follow(self) -> None:
        """Look whether the files have changed, and use them from now on if they can be."""
        seen = _look(self._files)
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
"""Those of this process: metrics and pages tell of all of them, whoever listens."""


def list_expiries() -> dict[Use, float]:
    """When the certificates expire with which this process listens, in seconds since 1970; of each use the first.

    They are those of the files as these are now. One that a process has signed itself is not among them.
    """
    found: defaultdict[Use, float] = defaultdict(lambda: math.inf)
    for context in _IN_USE:
        context.follow()
        for use, expiry in context.expiries.items():
            found[use] = min(found[use], expiry)
    return dict(found)


def make_context(files: CertificateFiles) -> ssl.SSLContext:
    """A context of the files as they are now; raises CertificateError."""
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
    """A context with a certificate of its own making, which nobody can check: it only keeps listeners out."""
    context = _make_empty()
    with _lay_down(_sign_own()) as path:
        context.load_cert_chain(path)
    return context


class _Telling(ssl.SSLObject):
    """A connection that tells why a client was refused: the event loop does not."""

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
    context.sslobject_class = _Telling
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Whoever resumes a session shows no certificate again.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    context.set_alpn_protocols(["http/1.1"])
    return context


def list_names(certificate: Mapping[str, Any]) -> frozenset[str]:
    """The names in a client's certificate: its common names, and those that it has beside."""
    subject = [pair for part in certificate.get("subject", ()) for pair in part]
    common = {value for kind, value in subject if kind == "commonName"}
    return frozenset(common | {value for _, value in certificate.get("subjectAltName", ())})


def _look(files: CertificateFiles) -> tuple[tuple[int, ...], ...]:
    """What changes whenever a file does, also if a link before it is turned."""
    return tuple(_stat(name) for name in files.names())


def _stat(name: str) -> tuple[int, ...]:
    try:
        found = Path(name).stat()
    except OSError:
        return ()
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


def _read_expiries(files: CertificateFiles) -> dict[Use, float]:
    """When the certificates in these files are of no use any more.

    Callers need each of a chain. Of several authorities one is enough, as while the next one takes over.
    """
    found: dict[Use, float] = {}
    if chain := _list_expiries_in(files.certificate):
        found[Use.SERVING] = min(chain)
    if files.client_ca and (authorities := _list_expiries_in(files.client_ca)):
        found[Use.CLIENT_CA] = max(authorities)
    return found


def _list_expiries_in(name: str) -> list[float]:
    # A part of the time of a start, which only those need who have certificates.
    from cryptography import x509  # noqa: PLC0415

    try:
        certificates = x509.load_pem_x509_certificates(Path(name).read_bytes())
    except (OSError, ValueError, x509.InvalidVersion) as error:
        log.warning("nobody will be told when these certificates expire", extra={"file": name, "why": str(error)})
        return []
    return [certificate.not_valid_after_utc.timestamp() for certificate in certificates]


def _sign_own() -> bytes:
    """A key and a certificate for it, in PEM."""
    # A third of the time of a start, which only those need who come over the network.
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
def _lay_down(content: bytes) -> Iterator[str]:
    """A path under which the bytes are for a moment: in memory where that can be, for the file system is read-only."""
    if not hasattr(os, "memfd_create"):
        with NamedTemporaryFile() as file:
            Path(file.name).write_bytes(content)
            yield file.name
        return
    with os.fdopen(os.memfd_create("certificate"), "wb", buffering=0) as memory:
        memory.write(content)
        yield f"/proc/self/fd/{memory.fileno()}"
