"""Records of access control in the metadata. Pure.

Keys::

    /security/roles/{name}              RoleRecord
    /security/bindings/{id}             BindingRecord
    /security/principals/{type}:{name}  PrincipalRecord; the subject is percent-encoded
    /security/keys/{id}                 ApiKeyRecord
    /security/issuers/{kid}             IssuerRecord: a key that signs tokens
    /security/revoked/{token id}        RevocationRecord, until the token would have expired

Each record is a msgpack array whose first element is a version. New fields are added at its end, with a default. A
field that *takes away* (a condition, a narrower ceiling) raises the version: a broker that does not know it must not
act as if it were absent. So a record of a higher version grants nothing, and a key of one is not accepted
(:class:`UnknownVersion`); a revocation and a suspension count whatever their version is.

Permissions are stored by name, and unknown names grant nothing.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar
from urllib.parse import quote, unquote

import msgspec

from danube.model.decoding import UNDECODABLE
from danube.model.errors import DataLossError, InvalidArgumentError
from danube.model.quotas import PrincipalQuota
from danube.security.limits import YEAR_S
from danube.security.permissions import Permission
from danube.security.roles import Grant
from danube.security.scopes import parse_scope

__all__ = [
    "BINDINGS",
    "ISSUERS",
    "KEYS",
    "PREFIX",
    "PRINCIPALS",
    "RECORD_VERSION",
    "REVOKED",
    "ROLES",
    "ApiKeyRecord",
    "BindingRecord",
    "GrantRecord",
    "IssuerRecord",
    "PrincipalRecord",
    "RevocationRecord",
    "RoleRecord",
    "SecurityRecord",
    "UnknownVersion",
    "decode_record",
    "encode_record",
    "permissions_of",
    "principal_key",
    "subject_of_key",
]

PREFIX: Final = "/security/"
ROLES: Final = "/security/roles/"
BINDINGS: Final = "/security/bindings/"
PRINCIPALS: Final = "/security/principals/"
KEYS: Final = "/security/keys/"
ISSUERS: Final = "/security/issuers/"
REVOKED: Final = "/security/revoked/"

RECORD_VERSION: Final = 1


class _Record(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    version: int = RECORD_VERSION


class GrantRecord(msgspec.Struct, frozen=True, array_like=True):
    """Some permissions within a scope; part of other records."""

    permissions: tuple[str, ...]
    scope: str

    @classmethod
    def of(cls, grant: Grant) -> GrantRecord:
        """Return the record of a grant."""
        return cls(grant.permissions.titles, str(grant.scope))

    @property
    def grant(self) -> Grant:
        """The grant; InvalidArgumentError if the scope is invalid."""
        return Grant(permissions_of(self.permissions), parse_scope(self.scope))


class RoleRecord(_Record, frozen=True, kw_only=True):
    """A role that administrators have defined."""

    permissions: tuple[str, ...]
    description: str = ""
    created_us: int = 0
    """Unix time in microseconds, here and below."""
    created_by: str = ""
    """The subject of the principal that has made it, here and below."""


class BindingRecord(_Record, frozen=True, kw_only=True):
    """Grants a subject some roles within a scope."""

    subject: str
    roles: tuple[str, ...]
    scope: str
    created_us: int = 0
    created_by: str = ""


class PrincipalRecord(_Record, frozen=True, kw_only=True):
    """A principal that is suspended or has a quota, or a group that is suspended. Others need no record."""

    is_suspended: bool = False
    description: str = ""
    """Why it is suspended."""
    quota: PrincipalQuota | None = None
    changed_us: int = 0
    changed_by: str = ""


class ApiKeyRecord(_Record, frozen=True, kw_only=True):
    """An API key."""

    subject: str
    hash: bytes
    """SHA-256; the key itself is stored nowhere."""
    ceiling: tuple[GrantRecord, ...] | None = None
    """What it may do at most; None: whatever its principal may do."""
    expires_us: int = 0
    """0: never."""
    description: str = ""
    created_us: int = 0
    created_by: str = ""


class IssuerRecord(_Record, frozen=True, kw_only=True):
    """A public key whose tokens are accepted: of the cluster, of one of its brokers, or of a team."""

    name: str
    """The ``iss`` of its tokens: the name of the cluster, or that of the team."""
    public: bytes
    """The Ed25519 public key, 32 bytes. The key of the record is its thumbprint."""
    ceiling: tuple[GrantRecord, ...] | None = None
    """What its tokens may do at most; None: whatever their principals may do."""
    longest_life_s: float = YEAR_S
    """Longest life of its tokens."""
    description: str = ""
    created_us: int = 0
    created_by: str = ""


class RevocationRecord(_Record, frozen=True, kw_only=True):
    """A token that is no longer accepted. It is removed when the token has expired."""

    expires_us: int
    reason: str = ""
    created_us: int = 0
    created_by: str = ""


SecurityRecord = RoleRecord | BindingRecord | PrincipalRecord | ApiKeyRecord | IssuerRecord | RevocationRecord
_KINDS: Final[dict[str, type[SecurityRecord]]] = {
    ROLES: RoleRecord,
    BINDINGS: BindingRecord,
    PRINCIPALS: PrincipalRecord,
    KEYS: ApiKeyRecord,
    ISSUERS: IssuerRecord,
    REVOKED: RevocationRecord,
}
_DECODERS: Final = {prefix: msgspec.msgpack.Decoder(kind) for prefix, kind in _KINDS.items()}
_RAW: Final = msgspec.msgpack.Decoder(list[Any])
_encode: Final = msgspec.msgpack.Encoder().encode

R = TypeVar("R")


class UnknownVersion(msgspec.Struct, frozen=True):
    """A record that a later version of Danube has written."""

    prefix: str
    version: int


def encode_record(record: SecurityRecord) -> bytes:
    """Return the value of a key."""
    return _encode(record)


def decode_record(key: str, value: bytes) -> SecurityRecord | UnknownVersion:
    """Return the record in the value of a key.

    Raises:
        DataLossError: the value is damaged, or the key is none of this module.
    """
    prefix = key[: key.find("/", len(PREFIX)) + 1]
    decoder = _DECODERS.get(prefix)
    if decoder is None:
        raise DataLossError(f"the metadata key {key} belongs to no record of access control; remove it")
    try:
        fields = _RAW.decode(value)
        if not fields or not isinstance(fields[0], int) or fields[0] < 1:
            raise DataLossError(f"the metadata record {key} has no version; restore the metadata from a backup")
        if fields[0] > RECORD_VERSION:
            return UnknownVersion(prefix, fields[0])
        return decoder.decode(value)
    except UNDECODABLE as error:
        raise DataLossError(
            f"the metadata record {key} does not decode: {error}; restore the metadata from a backup"
        ) from error


def permissions_of(titles: tuple[str, ...]) -> Permission:
    """Return the permissions with these names, without unknown ones and BrokerInternal."""
    found = Permission(0)
    for each in Permission:
        if each.title in titles and each is not Permission.BROKER_INTERNAL:
            found |= each
    return found


def principal_key(subject: str) -> str:
    """Return the key of a principal's record."""
    return PRINCIPALS + quote(subject, safe=":@._-")


def subject_of_key(key: str) -> str:
    """Return the subject of a principal's key.

    Raises:
        InvalidArgumentError: it has another form than :func:`principal_key` gives it.
    """
    subject = unquote(key.removeprefix(PRINCIPALS))
    if principal_key(subject) != key:
        raise InvalidArgumentError(f"{key} is not the key of a principal")
    return subject
