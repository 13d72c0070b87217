"""Keys of tokens, the only module that uses the package ``cryptography``. Pure.

The package is imported when the first key is made, so a broker without security never imports it. A key verifies
signatures of its own algorithm only; the algorithm named by a token is compared with it, and decides nothing.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from danube.model.errors import ConfigurationError, InvalidArgumentError
from danube.security.flaws import BadProofError
from danube.security.jws import decode_part, encode_part

if TYPE_CHECKING:
    from types import ModuleType

    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

__all__ = [
    "EDDSA",
    "ES256",
    "HS256",
    "MIN_SECRET_BYTES",
    "RS256",
    "Key",
    "SigningKey",
    "ed25519_key",
    "ed25519_public",
    "key_of_jwk",
    "key_of_pem",
    "secret_key",
    "signing_key",
    "signing_key_of_pem",
]

EDDSA: Final = "EdDSA"
ES256: Final = "ES256"
HS256: Final = "HS256"
RS256: Final = "RS256"

MIN_SECRET_BYTES: Final = 32
"""Shortest secret of HS256 (RFC 7518, section 3.2)."""
_RSA_BITS: Final = (2048, 8192)
_MAX_RSA_EXPONENT: Final = 2**32
_P256_BYTES: Final = 32
_ED25519_BYTES: Final = 32
_KID_CHARS: Final = 22

_SMALL_ORDER: Final = frozenset(
    bytes.fromhex(each)
    for each in (
        "0000000000000000000000000000000000000000000000000000000000000000",
        "0100000000000000000000000000000000000000000000000000000000000000",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
        "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    )
)
"""Points of Ed25519 of order 1, 2, 4 or 8, without the sign of x: such a key accepts forged signatures."""


class Key:
    """A key that verifies signatures of one algorithm.

    Attributes:
        algorithm: the only one that it verifies.
        kid: thumbprint of a public key, by which tokens of this cluster name it; empty for a secret.
        verifies: tells whether a signature of some bytes is valid.
    """

    __slots__ = ("algorithm", "kid", "verifies")

    def __init__(self, algorithm: str, kid: str, verifies: Callable[[bytes, bytes], bool]) -> None:
        self.algorithm = algorithm
        self.kid = kid
        self.verifies = verifies

    def __repr__(self) -> str:
        return f"Key({self.algorithm}, {self.kid or '***'})"


class SigningKey:
    """A private Ed25519 key."""

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private
        self.public_bytes = private.public_key().public_bytes_raw()
        """The public key, 32 bytes."""
        self.kid = _kid(self.public_bytes)

    def __repr__(self) -> str:
        return f"SigningKey({self.kid})"

    def sign(self, data: bytes) -> bytes:
        """Return the signature of some bytes."""
        return self._private.sign(data)

    def private_pem(self) -> str:
        """Return the private key as text (PKCS 8), for a file that only its owner can read."""
        serialization = _module("hazmat.primitives.serialization")
        text: bytes = self._private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return text.decode("ascii")

    def public_pem(self) -> str:
        """Return the public key as text."""
        serialization = _module("hazmat.primitives.serialization")
        text: bytes = self._private.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        return text.decode("ascii")


def _module(name: str) -> ModuleType:
    try:
        return import_module(f"cryptography.{name}")
    except ImportError as error:
        raise ConfigurationError(
            "security needs the package 'cryptography', which is not installed; run: pip install"
            " 'danube-broker[security]'"
        ) from error


def _kid(public: bytes) -> str:
    return encode_part(hashlib.sha256(public).digest())[:_KID_CHARS]


def signing_key(seed: bytes) -> SigningKey:
    """Return the private key made from 32 random bytes."""
    private: Ed25519PrivateKey = _module("hazmat.primitives.asymmetric.ed25519").Ed25519PrivateKey.from_private_bytes(
        seed
    )
    return SigningKey(private)


def signing_key_of_pem(text: str) -> SigningKey:
    """Read a private key.

    Raises:
        ConfigurationError: it is not an unencrypted private Ed25519 key. The message does not contain the text.
    """
    serialization, ed25519 = (_module(f"hazmat.primitives.{name}") for name in ("serialization", "asymmetric.ed25519"))
    try:
        private = serialization.load_pem_private_key(text.encode(), None)
    except (ValueError, TypeError, _module("exceptions").UnsupportedAlgorithm):
        raise ConfigurationError("the text is not an unencrypted private key in PEM form") from None
    if not isinstance(private, ed25519.Ed25519PrivateKey):
        raise ConfigurationError("the private key is not an Ed25519 key; make one with 'danube security init'")
    return SigningKey(private)


def ed25519_key(public: bytes) -> Key:
    """Return the key with these 32 bytes.

    Raises:
        InvalidArgumentError: they are not a public key, or one that accepts forged signatures.
    """
    if len(public) != _ED25519_BYTES:
        raise InvalidArgumentError(f"a public Ed25519 key has {_ED25519_BYTES} bytes, not {len(public)}")
    if public[:-1] + bytes([public[-1] & 0x7F]) in _SMALL_ORDER:
        raise InvalidArgumentError("the public Ed25519 key is a point of small order: its signatures can be forged")
    loaded: Ed25519PublicKey = _module("hazmat.primitives.asymmetric.ed25519").Ed25519PublicKey.from_public_bytes(
        public
    )
    invalid = _module("exceptions").InvalidSignature

    def verify(signed: bytes, signature: bytes) -> bool:
        try:
            loaded.verify(signature, signed)
        except invalid:
            return False
        return True

    return Key(EDDSA, _kid(public), verify)


def secret_key(secret: bytes) -> Key:
    """Return the key of a shared secret (HS256).

    Raises:
        ConfigurationError: it is too short.
    """
    if len(secret) < MIN_SECRET_BYTES:
        raise ConfigurationError(
            f"the secret for HS256 tokens has {len(secret)} bytes; use at least {MIN_SECRET_BYTES} random ones"
        )

    def verify(signed: bytes, signature: bytes) -> bool:
        return hmac.compare_digest(hmac.digest(secret, signed, "sha256"), signature)

    return Key(HS256, "", verify)


def _rsa_key(loaded: RSAPublicKey) -> Key:
    numbers = loaded.public_numbers()
    least, most = _RSA_BITS
    if not least <= loaded.key_size <= most or not 3 <= numbers.e < _MAX_RSA_EXPONENT or numbers.e % 2 == 0:
        raise InvalidArgumentError(f"an RSA key must have {least} to {most} bits and an odd exponent below 2**32")
    padding, hashes = _module("hazmat.primitives.asymmetric.padding"), _module("hazmat.primitives.hashes")
    invalid = _module("exceptions").InvalidSignature

    def verify(signed: bytes, signature: bytes) -> bool:
        try:
            loaded.verify(signature, signed, padding.PKCS1v15(), hashes.SHA256())
        except invalid:
            return False
        return True

    return Key(RS256, _kid(numbers.n.to_bytes(loaded.key_size // 8 + 1) + numbers.e.to_bytes(4)), verify)


def _p256_key(loaded: EllipticCurvePublicKey) -> Key:
    if loaded.curve.name != "secp256r1":
        raise InvalidArgumentError(f"the curve {loaded.curve.name} is not supported; use P-256 or Ed25519")
    ec, hashes = _module("hazmat.primitives.asymmetric.ec"), _module("hazmat.primitives.hashes")
    to_der = _module("hazmat.primitives.asymmetric.utils").encode_dss_signature
    invalid = _module("exceptions").InvalidSignature

    def verify(signed: bytes, signature: bytes) -> bool:
        if len(signature) != 2 * _P256_BYTES:
            return False
        r, s = int.from_bytes(signature[:_P256_BYTES]), int.from_bytes(signature[_P256_BYTES:])
        try:
            loaded.verify(to_der(r, s), signed, ec.ECDSA(hashes.SHA256()))
        except invalid:
            return False
        return True

    numbers = loaded.public_numbers()
    return Key(ES256, _kid(b"".join(each.to_bytes(_P256_BYTES) for each in (numbers.x, numbers.y))), verify)


def key_of_pem(text: str) -> Key:
    """Read a public key: Ed25519, RSA from 2048 bits, or ECDSA on P-256.

    Raises:
        InvalidArgumentError: it is not one of these.
    """
    serialization = _module("hazmat.primitives.serialization")
    try:
        loaded = serialization.load_pem_public_key(text.encode())
    except (ValueError, _module("exceptions").UnsupportedAlgorithm) as error:
        raise InvalidArgumentError("the text is not a public key in PEM form") from error
    return _of_loaded(loaded)


def ed25519_public(text: str) -> bytes:
    """Read a public Ed25519 key; return its 32 bytes.

    Raises:
        InvalidArgumentError: it is not one.
    """
    serialization = _module("hazmat.primitives.serialization")
    try:
        loaded = serialization.load_pem_public_key(text.encode())
    except (ValueError, _module("exceptions").UnsupportedAlgorithm) as error:
        raise InvalidArgumentError("the text is not a public key in PEM form") from error
    if not isinstance(loaded, _module("hazmat.primitives.asymmetric.ed25519").Ed25519PublicKey):
        raise InvalidArgumentError("the key is of another kind; keys of teams are Ed25519 keys")
    public: bytes = loaded.public_bytes_raw()
    return public


def _of_loaded(loaded: object) -> Key:
    ed25519, rsa, ec = (_module(f"hazmat.primitives.asymmetric.{name}") for name in ("ed25519", "rsa", "ec"))
    if isinstance(loaded, ed25519.Ed25519PublicKey):
        return ed25519_key(loaded.public_bytes_raw())
    if isinstance(loaded, rsa.RSAPublicKey):
        return _rsa_key(loaded)
    if isinstance(loaded, ec.EllipticCurvePublicKey):
        return _p256_key(loaded)
    raise InvalidArgumentError("the key is of an unsupported kind; use Ed25519, RSA or ECDSA on P-256")


def key_of_jwk(jwk: Mapping[str, Any]) -> Key:
    """Return the public key of a JWK (RFC 7517).

    Raises:
        InvalidArgumentError: it is private, symmetric, malformed, or not for signatures of a supported algorithm.
    """
    if any(name in jwk for name in ("d", "p", "q", "k")):
        raise InvalidArgumentError("the JWK contains a private or symmetric key")
    if jwk.get("use", "sig") != "sig":
        raise InvalidArgumentError("the JWK is not for signatures")
    operations = jwk.get("key_ops", ["verify"])
    if not isinstance(operations, list) or "verify" not in operations:
        raise InvalidArgumentError("the JWK is not for verifying signatures")
    try:
        key = _of_members(jwk)
    except (BadProofError, ValueError, TypeError) as error:
        raise InvalidArgumentError("the JWK is malformed") from error
    if jwk.get("alg", key.algorithm) not in (key.algorithm, "Ed25519" if key.algorithm == EDDSA else key.algorithm):
        raise InvalidArgumentError("the JWK is for an unsupported algorithm")
    return key


def _of_members(jwk: Mapping[str, Any]) -> Key:
    def number(name: str) -> int:
        return int.from_bytes(decode_part(jwk[name] if isinstance(jwk.get(name), str) else ""))

    match jwk.get("kty"), jwk.get("crv"):
        case "OKP", "Ed25519":
            return ed25519_key(decode_part(jwk["x"] if isinstance(jwk.get("x"), str) else ""))
        case "RSA", _:
            n, e = number("n"), number("e")
            if n.bit_length() > _RSA_BITS[1] or e >= _MAX_RSA_EXPONENT:
                raise InvalidArgumentError(f"an RSA key must have at most {_RSA_BITS[1]} bits, and a small exponent")
            return _rsa_key(_module("hazmat.primitives.asymmetric.rsa").RSAPublicNumbers(e, n).public_key())
        case "EC", "P-256":
            ec = _module("hazmat.primitives.asymmetric.ec")
            numbers = ec.EllipticCurvePublicNumbers(number("x"), number("y"), ec.SECP256R1())
            return _p256_key(numbers.public_key())
    raise InvalidArgumentError("the JWK is of an unsupported kind; supported are Ed25519, RSA and P-256")
