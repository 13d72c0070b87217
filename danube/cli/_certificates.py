"""Makes the certificates of a cluster: an authority, and a certificate for each broker; ECDSA on P-256.

The only module of the command line that uses the package ``cryptography``.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

from danube.model.errors import ConfigurationError, InvalidArgumentError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate, GeneralName, KeyUsage

__all__ = ["Pair", "broker_pair", "first_host", "make_authority"]

_AUTHORITY_DAYS: Final = 3650
_BROKER_DAYS: Final = 825
_LOCAL: Final = ("localhost", "127.0.0.1", "::1")
"""Names that every broker's certificate has, for clients on its machine."""


class Pair(NamedTuple):
    """A certificate and its private key, as PEM."""

    certificate: str
    key: str

    def __repr__(self) -> str:
        return "Pair(..., '***')"


def _load() -> None:
    try:
        import cryptography  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(
            "certificates need the package 'cryptography', which is not installed; run: pip install"
            " 'danube-broker[security]'"
        ) from error


def _packed(certificate: Certificate, key: EllipticCurvePrivateKey) -> Pair:
    from cryptography.hazmat.primitives import serialization

    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Pair(certificate.public_bytes(serialization.Encoding.PEM).decode(), private.decode())


def make_authority(cluster: str) -> Pair:
    """Return a new certificate authority of a cluster, valid for ten years.

    Raises:
        ConfigurationError: the package ``cryptography`` is not installed.
    """
    _load()
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Danube cluster {cluster}"[:64])])
    now = datetime.now(UTC)
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=_AUTHORITY_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(identifier, critical=False)
        .sign(key, hashes.SHA256())
    )
    return _packed(made, key)


def broker_pair(authority: Pair, cluster: str, broker: str, hosts: Sequence[str]) -> Pair:
    """Return a new certificate of a broker, for its ports and its links to others, valid for 825 days.

    Args:
        authority: signs it.
        cluster: name of the cluster.
        broker: ``b1``, ``b2`` and so on.
        hosts: names and addresses under which clients and brokers reach it; those of the own machine are added.

    Raises:
        ConfigurationError: the authority is invalid, or the package ``cryptography`` is not installed.
        InvalidArgumentError: a host is invalid.
    """
    _load()
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    try:
        issuer = x509.load_pem_x509_certificate(authority.certificate.encode())
        signs = serialization.load_pem_private_key(authority.key.encode(), None)
    except (ValueError, TypeError) as error:
        raise ConfigurationError("the certificate or the key of the authority is invalid") from error
    if not isinstance(signs, ec.EllipticCurvePrivateKey):
        raise ConfigurationError("the key of the authority is no ECDSA key")
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.now(UTC)
    names = [_name(host) for host in dict.fromkeys((*hosts, *_LOCAL))]
    names.append(x509.UniformResourceIdentifier(f"danube://{cluster}/broker/{broker}"))
    made = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{broker} of {cluster}"[:64])]))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(min(now + timedelta(days=_BROKER_DAYS), issuer.not_valid_after_utc))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signs.public_key()), critical=False)
        .sign(signs, hashes.SHA256())
    )
    return _packed(made, key)


def first_host(certificate: str) -> str:
    """Return the first name or address in a certificate (PEM) that :func:`broker_pair` has made.

    Raises:
        ConfigurationError: it is no such certificate, or the package ``cryptography`` is not installed.
    """
    _load()
    from cryptography import x509

    try:
        made = x509.load_pem_x509_certificate(certificate.encode())
        names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound) as error:
        raise ConfigurationError("the certificate of the first broker is invalid") from error
    return next(str(name.value) for name in names if isinstance(name, x509.DNSName | x509.IPAddress))


def _usage(*, signs: bool) -> KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _name(host: str) -> GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        pass  # a name, then
    if not host or not host.isascii() or any(character in host for character in " /:@"):
        raise InvalidArgumentError(f"{host!r} is no host; write a name or an address, without a port")
    return x509.DNSName(host)
