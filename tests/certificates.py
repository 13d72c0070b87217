"""Certificates for tests: an authority, and what it issues, in files."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from danube.model.tls import TlsConfig


@dataclass
class Files:
    """An authority, and the files that it makes in a directory."""

    directory: Path
    authority: trustme.CA

    @property
    def ca(self) -> str:
        return str(self.directory / "ca.pem")

    def pair(self, name: str, *hosts: str, days: float = 30.0, before_days: float = 1.0) -> tuple[str, str]:
        """Return the files of a certificate and its key; ``hosts`` may be URIs."""
        now = datetime.now(UTC)
        secret = ec.generate_private_key(ec.SECP256R1())
        issuer, issuer_key = self.authority._certificate, self.authority._private_key
        certificate = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(issuer.subject)
            .public_key(secret.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=before_days))
            .not_valid_after(now + timedelta(days=days))
            .add_extension(
                x509.SubjectAlternativeName([_name(host) for host in hosts or ("127.0.0.1", "localhost")]), False
            )
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), False)
            .sign(issuer_key, hashes.SHA256())
        )
        cert, key = self.directory / f"{name}.pem", self.directory / f"{name}.key"
        cert.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        key.write_bytes(
            secret.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return str(cert), str(key)

    def remove(self, name: str) -> None:
        """Remove the certificate that :meth:`pair` has made."""
        (self.directory / f"{name}.pem").unlink()

    def server(self, **settings: Any) -> TlsConfig:
        cert, key = self.pair("server")
        return TlsConfig(**({"cert": cert, "key": key} | settings))


def _name(text: str) -> x509.GeneralName:
    if "://" in text:
        return x509.UniformResourceIdentifier(text)
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def make_files(directory: Path) -> Files:
    authority = trustme.CA(key_type=trustme.KeyType.ECDSA)
    authority.cert_pem.write_to_path(str(directory / "ca.pem"))
    return Files(directory, authority)
