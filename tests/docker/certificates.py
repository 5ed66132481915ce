"""A certificate authority for tests, and certificates for servers and their clients."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

SERVER, CLIENT = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH


@dataclass(frozen=True)
class Pair:
    """The files of a certificate and its key."""

    certificate: Path
    key: Path


class Authority:
    """A certificate authority; ``certificate`` is its own certificate."""

    def __init__(self, directory: Path):
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Authority of {directory.name}")])
        basic = x509.BasicConstraints(ca=True, path_length=0)
        made = self._builder(self._name, self._key.public_key()).add_extension(basic, critical=True)
        usage = x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=True,
            crl_sign=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        made = made.add_extension(usage, critical=True)
        self._issuer_id = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        made = made.add_extension(self._issuer_id, critical=False)
        self.certificate = self._write("ca.pem", made.sign(self._key, hashes.SHA256()))

    def issue(self, name: str, usage: x509.ObjectIdentifier, *addresses: str, organization: str = "") -> Pair:
        """Return a certificate for ``name`` that is valid for ``addresses``: IP addresses or host names."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.NameAttribute(NameOID.COMMON_NAME, name)]
        if organization:
            names.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
        subject = x509.Name(names)
        made = self._builder(subject, key.public_key())
        made = made.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(self._issuer_id)
        made = made.add_extension(issuer, critical=False)
        if addresses:
            alternatives = x509.SubjectAlternativeName(map(_general_name, addresses))
            made = made.add_extension(alternatives, critical=False)
        path = self._directory / f"{name}-key.pem"
        form = serialization.PrivateFormat.PKCS8
        path.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
        path.chmod(0o600)
        return Pair(self._write(f"{name}.pem", made.sign(self._key, hashes.SHA256())), path)

    def _builder(self, subject: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=1))
        )

    def _write(self, name: str, certificate: x509.Certificate) -> Path:
        path = self._directory / name
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return path


def _general_name(address: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        return x509.DNSName(address)
