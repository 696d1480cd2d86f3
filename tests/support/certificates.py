"""An authority that signs certificates, good ones and bad ones, for tests of TLS."""

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


class Authority:
    """A certificate authority, with its files in ``directory``."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.now(UTC)
        builder = _begin(self._name, self._name, self._key, now - timedelta(hours=1), now + timedelta(hours=1))
        certificate = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True).sign(
            self._key, hashes.SHA256()
        )
        self.file = directory / f"{name}.crt"
        self.file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def sign(self, name: str, *, file: str = "", age: timedelta = timedelta(0)) -> tuple[Path, Path]:
        """Create a certificate for ``name`` and loopback, and return the paths of certificate and key.

        It is valid for one hour, of which ``age`` has passed already (negative: it begins to be valid later).
        """
        key = ec.generate_private_key(ec.SECP256R1())
        begin = datetime.now(UTC) - timedelta(minutes=1) - age
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        others = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))])
        certificate = (
            _begin(subject, self._name, key, begin, begin + timedelta(hours=1))
            .add_extension(others, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        paths = self._directory / f"{file or name}.crt", self._directory / f"{file or name}.key"
        paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        paths[1].write_bytes(_write_key(key))
        return paths


def _begin(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, begin: datetime, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
    )


def _write_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
