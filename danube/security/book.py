"""All records of access control, and the changes that principals may make of them. Pure.

A :class:`SecurityBook` mirrors the metadata (:meth:`SecurityBook.apply`), and derives from them what decisions and
proofs need: rights, keys of tokens, API keys, revocations. Each change is judged first, for the principal that asks for
it, and is returned as records to write; the book changes when the metadata have changed.

**A principal can only grant permissions that it has itself,** in the same scope, and only with ManageSecurity there.
That holds for each way to give a permission:

* a binding gives the permissions of its roles within its scope;
* a changed role gives its permissions wherever it is bound;
* a key (of an API, or one that signs tokens) lets its holder act as other principals. So it has a ceiling that its
  maker has. One without a ceiling can be made only by a principal that has all permissions on the cluster.

Taking away needs ManageSecurity where something is taken away. The last administrator stays.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from danube.model.errors import (
    AlreadyExistsError,
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidNameError,
    LimitExceededError,
    NotFoundError,
)
from danube.model.names import validate_identifier
from danube.model.quotas import PrincipalQuota, change_principal_quota, check_principal_quota
from danube.security.claims import Profile, Trusted
from danube.security.evaluate import Rights
from danube.security.keys import ed25519_key
from danube.security.limits import SecurityLimits
from danube.security.permissions import Permission, parse_permissions
from danube.security.proofs import ApiKey, Keyring
from danube.security.records import (
    BINDINGS,
    ISSUERS,
    KEYS,
    PRINCIPALS,
    REVOKED,
    ROLES,
    ApiKeyRecord,
    BindingRecord,
    GrantRecord,
    IssuerRecord,
    PrincipalRecord,
    RevocationRecord,
    RoleRecord,
    SecurityRecord,
    UnknownVersion,
    decode_record,
    permissions_of,
    principal_key,
    subject_of_key,
)
from danube.security.roles import BUILT_IN_ROLES, Binding, Grant, Principal, PrincipalType, Role, parse_subject
from danube.security.scopes import CLUSTER, Scope, parse_scope, scope_of

__all__ = ["Change", "SecurityBook", "first_records"]

_ID: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_EVERYTHING: Final = ~Permission.BROKER_INTERNAL
_ON_CLUSTER: Final = scope_of(CLUSTER)
_NOTHING: Final = Permission(0)
_INIT: Final = "danube security init"
_NO_QUOTA: Final = PrincipalQuota()


class Change(NamedTuple):
    """A record to write, or (None) to remove."""

    key: str
    record: SecurityRecord | None


class SecurityBook:
    """The records of one cluster.

    Args:
        cluster: its name.
        limits: of records.
    """

    def __init__(self, cluster: str, limits: SecurityLimits) -> None:
        self._cluster = cluster
        self._limits = limits
        self.rights = Rights()
        """Roles and bindings; its generation changes with each change of rights."""
        self.api_keys: dict[str, ApiKey] = {}
        """By id; always the same object, as the next one."""
        self.revoked: dict[str, float] = {}
        """Ids of revoked tokens, with the Unix times in seconds at which they would have expired."""
        self.quotas: dict[str, PrincipalQuota] = {}
        """Of the principals that have one, by subject."""
        self.records: dict[str, SecurityRecord] = {}
        """All records by key, without unusable ones."""
        self.unusable: dict[str, str] = {}
        """Why other records have no effect, by key."""
        self._counts: dict[str, int] = {}
        self._issuers: dict[str, Trusted] = {}
        self._configured: tuple[tuple[str | None, Trusted], ...] = ()
        self._configured_issuers: frozenset[str] = frozenset()
        self._keyring: Keyring | None = None

    @property
    def keyring(self) -> Keyring:
        """The keys of tokens: those of the records, and those that the broker is configured with."""
        found = self._keyring
        if found is None:
            found = Keyring(self._configured)
            for kid, trusted in self._issuers.items():
                if trusted.issuer not in self._reserved():
                    found.add(kid, trusted)
            self._keyring = found
        return found

    def configure(self, trusted: Iterable[tuple[str | None, Trusted]], issuers: Iterable[str] = ()) -> None:
        """Replace the keys that the broker is configured with: of OIDC issuers, and the secret of upstream's tokens.

        Records of other keys with the name of such an issuer have no effect, nor those with the name of one of
        ``issuers``, which may have no key now.
        """
        self._configured = tuple(trusted)
        self._configured_issuers = frozenset(issuers)
        self._keyring = None

    def _reserved(self) -> set[str]:
        return {trusted.issuer for _, trusted in self._configured} | self._configured_issuers

    @property
    def has_administrator(self) -> bool:
        """Whether a binding grants the role admin on the cluster."""
        return _administrator(self.records) is not None

    # --- As the metadata say

    def load(self, items: Iterable[tuple[str, bytes]]) -> None:
        """Add all records below the prefix; the book must be new."""
        for key, value in items:
            self.apply(key, value)

    def apply(self, key: str, value: bytes | None) -> None:
        """Apply a change of the metadata: a key has this value now, or (None) is gone.

        A record that cannot be used has no effect, except that a revocation revokes and a suspension suspends: it is
        listed in :attr:`unusable`, to be logged.
        """
        record: SecurityRecord | UnknownVersion | None = None
        problem = ""
        try:
            record = None if value is None else decode_record(key, value)
            if isinstance(record, UnknownVersion):
                problem = (
                    f"it was written by a later version of Danube (record version {record.version}); update this one"
                )
            self._set(key, None if isinstance(record, UnknownVersion) else record)
        except (DataLossError, InvalidArgumentError, InvalidNameError, FailedPreconditionError) as error:
            problem = error.message
            self._set(key, None)
        if problem:
            self.unusable[key] = problem
            self._fail_closed(key)
        else:
            self.unusable.pop(key, None)

    def _set(self, key: str, record: SecurityRecord | None) -> None:
        prefix = key[: key.rfind("/") + 1]
        name = key[len(prefix) :]
        match record:
            case RoleRecord():
                self.rights.set_role(name, Role(name, permissions_of(record.permissions), record.description))
            case BindingRecord():
                subject = parse_subject(record.subject)
                self.rights.set_binding(name, Binding(name, subject, record.roles, parse_scope(record.scope)))
            case ApiKeyRecord():
                self.api_keys[name] = _api_key(record)
            case IssuerRecord():
                self._issuers[name] = self._trusted(name, record)
                self._keyring = None
            case RevocationRecord():
                self.revoked[name] = record.expires_us / 1e6
            case PrincipalRecord():
                self.rights.set_suspended(subject_of_key(key), record.is_suspended)
                self._set_quota(key, record.quota)
            case None:
                self._unset(prefix, name, key)
        had = key in self.records
        if record is None:
            self.records.pop(key, None)
        else:
            self.records[key] = record
        self._counts[prefix] = self._counts.get(prefix, 0) + (key in self.records) - had

    def _unset(self, prefix: str, name: str, key: str) -> None:
        if prefix == ROLES:
            self.rights.set_role(name, None)
        elif prefix == BINDINGS:
            self.rights.set_binding(name, None)
        elif prefix == KEYS:
            self.api_keys.pop(name, None)
        elif prefix == ISSUERS and name in self._issuers:
            del self._issuers[name]
            self._keyring = None
        elif prefix == REVOKED:
            self.revoked.pop(name, None)
        elif prefix == PRINCIPALS:
            self._suspend(key, is_suspended=False)
            self._set_quota(key, None)

    def _fail_closed(self, key: str) -> None:
        prefix = key[: key.rfind("/") + 1]
        if prefix == REVOKED:
            self.revoked[key[len(prefix) :]] = float("inf")
        elif prefix == PRINCIPALS:
            self._suspend(key, is_suspended=True)

    def _set_quota(self, key: str, quota: PrincipalQuota | None) -> None:
        if quota is not None:
            check_principal_quota(quota)
            self.quotas[subject_of_key(key)] = quota
        elif key in self.records:
            self.quotas.pop(subject_of_key(key), None)

    def _suspend(self, key: str, *, is_suspended: bool) -> None:
        try:
            subject = subject_of_key(key)
        except InvalidArgumentError:
            return  # no principal has such a key
        self.rights.set_suspended(subject, is_suspended)

    def _trusted(self, kid: str, record: IssuerRecord) -> Trusted:
        key = ed25519_key(record.public)
        if key.kid != kid:
            raise InvalidArgumentError(f"the public key of issuer {record.name!r} has the thumbprint {key.kid}")
        if record.name == self._cluster and record.ceiling is not None:
            raise InvalidArgumentError("a key of the cluster has no ceiling")
        ceiling = None if record.ceiling is None else tuple(each.grant for each in record.ceiling)
        return Trusted(key, record.name, Profile.CLUSTER, (self._cluster,), ceiling, record.longest_life_s)

    # --- Changes that principals ask for

    def put_role(
        self, by: Principal, name: str, permissions: Sequence[str], description: str = "", *, now_us: int
    ) -> list[Change]:
        """Add or replace a role.

        Raises:
            InvalidArgumentError: an unknown permission, or none; the description is too long.
            InvalidNameError: the name is invalid.
            FailedPreconditionError: the role is built in.
            PermissionDeniedError: see :meth:`~danube.security.evaluate.Rights.check_may_change`.
            LimitExceededError: there are ``max_roles``.
        """
        validate_identifier("role", name)
        self._check_description(description)
        if name in BUILT_IN_ROLES:
            raise FailedPreconditionError(f"role {name!r} is built in and cannot be changed; choose another name")
        if not permissions:
            raise InvalidArgumentError(f"role {name!r} needs at least one permission")
        found = parse_permissions(permissions)
        self.rights.check_may_change(by, Role(name, found))
        self._check_room(ROLES, name, self._limits.max_roles, "max_roles")
        record = RoleRecord(permissions=found.titles, description=description, created_us=now_us, created_by=str(by))
        return [Change(ROLES + name, record)]

    def drop_role(self, by: Principal, name: str) -> list[Change]:
        """Remove a role.

        Raises:
            NotFoundError: there is no such role.
            FailedPreconditionError: it is built in, or in use.
            PermissionDeniedError: the principal lacks ManageSecurity on the cluster.
        """
        self._check_manages(by, [_ON_CLUSTER])
        self.rights.check_drop_role(name)
        return [Change(ROLES + name, None)]

    def put_binding(
        self, by: Principal, binding_id: str, subject: str, roles: Sequence[str], scope: str, *, now_us: int
    ) -> list[Change]:
        """Add or replace a binding.

        Raises:
            InvalidArgumentError: an invalid id, subject, role or scope, or too many roles.
            PermissionDeniedError: the principal lacks what the binding grants, or may not replace the old one.
            FailedPreconditionError: it would replace the last administrator.
            LimitExceededError: there are ``max_bindings``.
        """
        _check_id("binding", binding_id)
        if len(roles) > self._limits.max_binding_roles:
            raise InvalidArgumentError(
                f"a binding may have {self._limits.max_binding_roles} roles (max_binding_roles), not {len(roles)}"
            )
        where = parse_scope(scope)
        self.rights.check_may_grant(by, roles, where)
        replaced = self.rights.bindings.get(binding_id)
        if replaced is not None:
            self._check_manages(by, [replaced.scope])
        self.rights.check_binding(Binding(binding_id, parse_subject(subject), tuple(roles), where))
        self._check_room(BINDINGS, binding_id, self._limits.max_bindings, "max_bindings")
        record = BindingRecord(
            subject=subject, roles=tuple(dict.fromkeys(roles)), scope=str(where), created_us=now_us, created_by=str(by)
        )
        return [Change(BINDINGS + binding_id, record)]

    def drop_binding(self, by: Principal, binding_id: str) -> list[Change]:
        """Remove a binding.

        Raises:
            NotFoundError: there is no such binding.
            PermissionDeniedError: the principal lacks ManageSecurity within its scope.
            FailedPreconditionError: it is that of the last administrator.
        """
        binding = self.rights.bindings.get(binding_id)
        self._check_manages(by, [_ON_CLUSTER if binding is None else binding.scope])
        self.rights.check_drop(binding_id)
        return [Change(BINDINGS + binding_id, None)]

    def free_binding_id(self) -> str:
        """Return an id that no binding has: ``b-1``, ``b-2`` and so on."""
        number = self._counts.get(BINDINGS, 0) + 1
        while BINDINGS + f"b-{number}" in self.records or BINDINGS + f"b-{number}" in self.unusable:
            number += 1
        return f"b-{number}"

    def narrow_binding(self, by: Principal, binding_id: str, roles: Collection[str]) -> list[Change]:
        """Take roles from a binding; it is removed with its last one.

        Raises:
            NotFoundError, PermissionDeniedError, FailedPreconditionError: as :meth:`drop_binding`.
        """
        record = self.records.get(BINDINGS + binding_id)
        left = tuple(each for each in record.roles if each not in roles) if isinstance(record, BindingRecord) else ()
        if not isinstance(record, BindingRecord) or not left:
            return self.drop_binding(by, binding_id)
        scope = parse_scope(record.scope)
        self._check_manages(by, [scope])
        self.rights.check_binding(Binding(binding_id, record.subject, left, scope))
        return [Change(BINDINGS + binding_id, msgspec.structs.replace(record, roles=left))]

    def suspend(self, by: Principal, subject: str, description: str = "", *, now_us: int) -> list[Change]:
        """Suspend a principal or a group: it has no rights, whatever grants say.

        Raises:
            InvalidArgumentError: an invalid subject or description.
            PermissionDeniedError: the principal lacks ManageSecurity on the cluster.
            FailedPreconditionError: it is the last administrator.
            LimitExceededError: there are ``max_principals``.
        """
        self._check_manages(by, [_ON_CLUSTER])
        self._check_description(description)
        self.rights.check_suspension(parse_subject(subject))
        return self._changed_principal(
            subject, is_suspended=True, description=description, changed_us=now_us, changed_by=str(by)
        )

    def _changed_principal(self, subject: str, **changes: Any) -> list[Change]:
        """Return the change of some fields of a principal's record; one that says nothing is removed."""
        key = principal_key(subject)
        self._check_room(PRINCIPALS, key[len(PRINCIPALS) :], self._limits.max_principals, "max_principals")
        old = self.records.get(key)
        if not isinstance(old, PrincipalRecord):
            # What cannot be read counts as suspended, see apply().
            old = PrincipalRecord(is_suspended=key in self.unusable)
        new = msgspec.structs.replace(old, **changes)
        return [Change(key, new if new.is_suspended or new.quota is not None else None)]

    def quota_of(self, by: Principal, subject: str) -> PrincipalQuota:
        """Return the quota of a principal.

        Raises:
            InvalidArgumentError: an invalid subject.
            PermissionDeniedError: the principal lacks ManageSecurity on the cluster.
        """
        self._check_manages(by, [_ON_CLUSTER])
        _sign_in(subject)
        return self.quotas.get(subject, _NO_QUOTA)

    def change_quota(self, by: Principal, subject: str, changes: Mapping[str, Any], *, now_us: int) -> list[Change]:
        """Change the quota of a principal.

        Args:
            by: who changes it.
            subject: the principal.
            changes: names and plain values; None removes one.
            now_us: the wall clock.

        Raises:
            InvalidArgumentError: an invalid subject, an unknown name, or a value that is out of range.
            PermissionDeniedError: the principal lacks ManageSecurity on the cluster.
            LimitExceededError: there are ``max_principals``.
        """
        self._check_manages(by, [_ON_CLUSTER])
        _sign_in(subject)
        quota = change_principal_quota(self.quotas.get(subject, _NO_QUOTA), changes)
        recorded = quota if quota != _NO_QUOTA else None
        return self._changed_principal(subject, quota=recorded, changed_us=now_us, changed_by=str(by))

    def resume(self, by: Principal, subject: str) -> list[Change]:
        """End a suspension. Gives back what the subject had, so it requires all permissions on the cluster.

        Raises:
            NotFoundError: the subject is not suspended.
            PermissionDeniedError: the principal lacks one of them.
        """
        self.rights.check_may_give(by, Grant(_EVERYTHING, _ON_CLUSTER))
        if parse_subject(subject) not in self.rights.suspended:
            raise NotFoundError(f"{subject} is not suspended")
        return self._changed_principal(subject, is_suspended=False, description="")

    def add_api_key(
        self,
        by: Principal,
        key_id: str,
        key_hash: bytes,
        subject: str,
        ceiling: Sequence[Grant] | None = None,
        *,
        expires_us: int = 0,
        description: str = "",
        now_us: int,
    ) -> list[Change]:
        """Add an API key.

        Raises:
            InvalidArgumentError: an invalid subject, expiry, ceiling or description.
            PermissionDeniedError: the principal lacks what the ceiling allows.
            AlreadyExistsError: another key has this id.
            LimitExceededError: there are ``max_api_keys``.
        """
        _sign_in(subject)
        self._check_description(description)
        if expires_us and expires_us <= now_us:
            raise InvalidArgumentError("the API key would expire in the past")
        self._check_ceiling(by, ceiling)
        if KEYS + key_id in self.records:
            raise AlreadyExistsError(f"there is an API key {key_id} already; make another one")
        self._check_room(KEYS, key_id, self._limits.max_api_keys, "max_api_keys")
        record = ApiKeyRecord(
            subject=subject,
            hash=key_hash,
            ceiling=_recorded(ceiling),
            expires_us=expires_us,
            description=description,
            created_us=now_us,
            created_by=str(by),
        )
        return [Change(KEYS + key_id, record)]

    def drop_api_key(self, by: Principal, key_id: str) -> list[Change]:
        """Remove an API key.

        Raises:
            NotFoundError: there is no such key.
            PermissionDeniedError: the principal lacks ManageSecurity within its ceiling.
        """
        return self._drop_key(by, KEYS + key_id, f"there is no API key {key_id!r}")

    def add_issuer(
        self,
        by: Principal,
        name: str,
        public: bytes,
        ceiling: Sequence[Grant] | None = None,
        *,
        longest_life_s: float,
        description: str = "",
        now_us: int,
    ) -> list[Change]:
        """Accept tokens signed by a key: one of a team, with a ceiling, or another one of the cluster.

        Raises:
            InvalidArgumentError: an invalid key, life or ceiling. Keys without one belong to the cluster.
            InvalidNameError: the name is invalid.
            PermissionDeniedError: the principal lacks what the ceiling allows.
            AlreadyExistsError: the key is registered, or another principal's key has the name.
            LimitExceededError: there are ``max_issuers``.
        """
        validate_identifier("issuer", name)
        self._check_description(description)
        if (ceiling is None) != (name == self._cluster):
            raise InvalidArgumentError(
                f"a key of a team has a ceiling; one of the cluster, whose name is {self._cluster}, has none"
            )
        if not 0 < longest_life_s <= self._limits.max_token_life_s:
            raise InvalidArgumentError(
                f"tokens may live for up to {self._limits.max_token_life_s:g} s (max_token_life_s), not"
                f" {longest_life_s:g} s"
            )
        if name in self._reserved():
            raise AlreadyExistsError(f"an issuer with the name {name!r} is configured; choose another one")
        self._check_ceiling(by, ceiling)
        kid = ed25519_key(public).kid
        if ISSUERS + kid in self.records:
            raise AlreadyExistsError(f"the key {kid} is registered already; remove it first")
        self._check_room(ISSUERS, kid, self._limits.max_issuers, "max_issuers")
        record = IssuerRecord(
            name=name,
            public=public,
            ceiling=_recorded(ceiling),
            longest_life_s=longest_life_s,
            description=description,
            created_us=now_us,
            created_by=str(by),
        )
        return [Change(ISSUERS + kid, record)]

    def drop_issuer(self, by: Principal, kid: str) -> list[Change]:
        """Accept no more tokens of a key; open streams end.

        Raises:
            NotFoundError: there is no such key.
            PermissionDeniedError: the principal lacks ManageSecurity within its ceiling.
        """
        return self._drop_key(by, ISSUERS + kid, f"there is no key {kid!r}")

    def _drop_key(self, by: Principal, key: str, absence: str) -> list[Change]:
        """Remove an API key, or one that signs tokens, which may be unusable; ``absence`` says that there is none."""
        record = self.records.get(key)
        scopes = _scopes(record.ceiling) if isinstance(record, ApiKeyRecord | IssuerRecord) else [_ON_CLUSTER]
        self._check_manages(by, scopes)
        if record is None and key not in self.unusable:
            raise NotFoundError(absence)
        return [Change(key, None)]

    def check_may_issue(self, by: Principal, subject: str, may: Sequence[Grant] | None, life_s: float) -> None:
        """Check that a token of the cluster may be made for a subject: it lets its holder act as that principal.

        Raises:
            InvalidArgumentError: an invalid subject, list or life.
            PermissionDeniedError: the principal lacks what the token allows; without ``may``, a permission on the
                cluster.
        """
        _sign_in(subject)
        if not 0 < life_s <= self._limits.max_token_life_s:
            raise InvalidArgumentError(
                f"tokens live for up to {self._limits.max_token_life_s:g} s (max_token_life_s), not {life_s:g} s"
            )
        self._check_ceiling(by, may)

    def revoke(self, by: Principal, token_id: str, expires_us: int, reason: str = "", *, now_us: int) -> list[Change]:
        """Accept a token no more.

        Args:
            by: who revokes it.
            token_id: its ``jti``, or the id that audits show.
            expires_us: when it expires; unknown: now and ``max_token_life_s``.
            reason: for the audit.
            now_us: the wall clock.

        Raises:
            InvalidArgumentError: an invalid id or reason.
            PermissionDeniedError: the principal lacks ManageSecurity on the cluster.
            LimitExceededError: there are ``max_revocations``; drop the key that has signed the tokens instead.
        """
        self._check_manages(by, [_ON_CLUSTER])
        _check_id("token", token_id)
        self._check_description(reason)
        self._check_room(REVOKED, token_id, self._limits.max_revocations, "max_revocations")
        leeway_us = round(self._limits.token_leeway_s * 1e6)
        record = RevocationRecord(
            expires_us=expires_us + leeway_us, reason=reason, created_us=now_us, created_by=str(by)
        )
        return [Change(REVOKED + token_id, record)]

    def expired(self, now_us: int) -> list[Change]:
        """Return the removal of revocations of expired tokens, and of expired API keys."""
        return [
            Change(key, None)
            for key, record in self.records.items()
            if (isinstance(record, RevocationRecord) and record.expires_us <= now_us)
            or (isinstance(record, ApiKeyRecord) and 0 < record.expires_us <= now_us)
        ]

    # --- Checks

    def _check_manages(self, by: Principal, scopes: Iterable[Scope]) -> None:
        for scope in scopes:
            self.rights.check_may_give(by, Grant(_NOTHING, scope))

    def _check_ceiling(self, by: Principal, ceiling: Sequence[Grant] | None) -> None:
        if ceiling is None:
            self.rights.check_may_give(by, Grant(_EVERYTHING, _ON_CLUSTER))
            return
        if not 0 < len(ceiling) <= self._limits.max_ceiling_grants:
            raise InvalidArgumentError(
                f"a ceiling has 1 to {self._limits.max_ceiling_grants} grants (max_ceiling_grants), not {len(ceiling)}"
            )
        for grant in ceiling:
            self.rights.check_may_give(by, grant)

    def _check_room(self, prefix: str, name: str, most: int, limit: str) -> None:
        if prefix + name not in self.records and self._counts.get(prefix, 0) >= most:
            raise LimitExceededError(f"the cluster has {most} records below {prefix}, which is {limit}; remove some")

    def _check_description(self, text: str) -> None:
        if len(text) > self._limits.max_description_chars:
            raise InvalidArgumentError(
                f"the description has {len(text)} characters, and max_description_chars is"
                f" {self._limits.max_description_chars}"
            )


def _api_key(record: ApiKeyRecord) -> ApiKey:
    ceiling = None if record.ceiling is None else tuple(each.grant for each in record.ceiling)
    expires_at_s = record.expires_us / 1e6 if record.expires_us else float("inf")
    return ApiKey(record.hash, _sign_in(record.subject), expires_at_s, ceiling)


def _sign_in(subject: str) -> Principal:
    """Return the principal of a subject that can sign in: no group."""
    kind, _, name = parse_subject(subject).partition(":")
    if PrincipalType(kind) is PrincipalType.GROUP:
        raise InvalidArgumentError(f"{subject} is a group; credentials belong to user:NAME or service:NAME")
    return Principal(PrincipalType(kind), name)


def _recorded(ceiling: Sequence[Grant] | None) -> tuple[GrantRecord, ...] | None:
    return None if ceiling is None else tuple(map(GrantRecord.of, ceiling))


def _scopes(ceiling: Sequence[GrantRecord] | None) -> list[Scope]:
    return [_ON_CLUSTER] if ceiling is None else [each.grant.scope for each in ceiling]


def _check_id(kind: str, name: str) -> None:
    if not _ID.fullmatch(name):
        raise InvalidArgumentError(f"{name!r} is no id of a {kind}: use 1 to 128 of A-Z a-z 0-9 '_' '.' '-'")


def _administrator(records: Mapping[str, SecurityRecord]) -> BindingRecord | None:
    for record in records.values():
        if isinstance(record, BindingRecord) and record.scope == str(_ON_CLUSTER) and "admin" in record.roles:
            return record
    return None


def first_records(
    cluster: str, public: bytes, administrator: str, existing: Mapping[str, SecurityRecord], *, now_us: int
) -> list[Change]:
    """Return the records with which security begins: the first key of the cluster, and its first administrator.

    Args:
        cluster: its name, the issuer of its tokens.
        public: the public key, 32 bytes; the private one never leaves the data directory.
        administrator: the subject of the first administrator, ``user:admin``.
        existing: the records of the cluster.
        now_us: the wall clock.

    Raises:
        FailedPreconditionError: there is an administrator already.
        InvalidArgumentError: the key or the subject is invalid.
    """
    found = _administrator(existing)
    if found is not None:
        raise FailedPreconditionError(
            f"the cluster {cluster!r} has an administrator already ({found.subject}), who can make tokens"
        )
    _sign_in(administrator)
    key = IssuerRecord(name=cluster, public=public, created_us=now_us, created_by=_INIT)
    binding = BindingRecord(
        subject=administrator, roles=("admin",), scope=str(_ON_CLUSTER), created_us=now_us, created_by=_INIT
    )
    return [Change(ISSUERS + ed25519_key(public).kid, key), Change(BINDINGS + "first-admin", binding)]
