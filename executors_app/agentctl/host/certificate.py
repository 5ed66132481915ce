"""The TLS certificate of a host, which it creates itself if the operator has none."""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

from executors_app.agentctl.state_files import replace_file

_VALIDITY: Final = timedelta(days=3650)
_COMMON_NAME: Final = "kandev agentctl host"


@dataclass(frozen=True, slots=True)
class Certificate:
    """The paths of a certificate and its key, in PEM format."""

    certificate: Path
    key: Path

    def context(self) -> ssl.SSLContext:
        """Return a TLS server context; raises ValueError if the files cannot be read or do not match."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.certificate, self.key)
        except OSError as error:
            raise ValueError(f"the certificate {self.certificate} with the key {self.key}: {error}") from error
        return context

    def fingerprint(self) -> str:
        """Return the SHA-256 of the first certificate, as in ``Executor.config``; raises OSError, ValueError."""
        text = self.certificate.read_text(encoding="ascii")
        first = text[text.index(ssl.PEM_HEADER) :].partition(ssl.PEM_FOOTER)[0] + ssl.PEM_FOOTER
        return "sha256:" + hashlib.sha256(ssl.PEM_cert_to_DER_cert(first)).hexdigest()


def load_or_create_certificate(root: Path, names: Collection[str]) -> Certificate:
    """Return the host's own certificate, created at its first start. Raises OSError."""
    made = Certificate(root / "tls.pem", root / "tls.key")
    if not (made.certificate.exists() and made.key.exists()):
        certificate, key = _self_signed(names)
        replace_file(made.key, key)
        replace_file(made.certificate, certificate)
    return made


def _self_signed(names: Collection[str]) -> tuple[bytes, bytes]:
    # Imported here: only a host that creates its certificate needs this package.
    from cryptography import x509  # noqa: PLC0415
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, _COMMON_NAME)])
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + _VALIDITY)
        .add_extension(x509.SubjectAlternativeName([_subject_alternative_name(name) for name in names]), critical=False)
    )
    certificate = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    plain = serialization.NoEncryption()
    return certificate, key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)


def _subject_alternative_name(name: str) -> Any:
    from cryptography import x509  # noqa: PLC0415

    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)
