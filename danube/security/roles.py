"""Principals, roles, and bindings that grant roles to subjects within a scope."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

import msgspec

from danube.model.errors import InvalidArgumentError
from danube.security.permissions import Permission
from danube.security.scopes import Resource, Scope

__all__ = ["BUILT_IN_ROLES", "Binding", "Grant", "Principal", "PrincipalType", "Role", "parse_subject"]


class PrincipalType(Enum):
    """Kinds of principals."""

    USER = "user"
    SERVICE = "service"
    GROUP = "group"
    """A group named in credentials (a claim of an OIDC token). Groups can be bound to roles, but cannot sign in."""
    BROKER = "broker"
    """A broker, identified by its certificate. It has only BrokerInternal, and cannot be bound."""


class Grant(NamedTuple):
    """Some permissions within a scope."""

    permissions: Permission
    scope: Scope

    def gives(self, permission: Permission, resource: Resource) -> bool:
        """Whether the grant includes a permission on a resource."""
        return permission in self.permissions and self.scope.covers(resource)


class Principal(msgspec.Struct, frozen=True, cache_hash=True):
    """The authenticated identity of a request, according to its credentials.

    Credentials may be narrower than the principal: it has the permissions that its bindings grant *and* each entry of
    ``ceilings`` allows. A team's signing key has a ceiling, and so has a token with ``may``.

    Each decision looks up the principal in a dict, and ceilings may be long, so the hash is computed once.
    """

    type: PrincipalType
    name: str
    groups: tuple[str, ...] = ()
    ceilings: tuple[tuple[Grant, ...], ...] = ()

    def __str__(self) -> str:
        return f"{self.type.value}:{self.name}"

    def limited(self, ceiling: tuple[Grant, ...]) -> Principal:
        """Return the principal with a further ceiling."""
        return msgspec.structs.replace(self, ceilings=(*self.ceilings, ceiling))

    @property
    def subjects(self) -> tuple[str, ...]:
        """The subjects by which bindings may name it."""
        return (str(self), *(f"{PrincipalType.GROUP.value}:{group}" for group in self.groups))


class Role(msgspec.Struct, frozen=True, array_like=True):
    """A named set of permissions."""

    name: str
    permissions: Permission
    description: str = ""
    is_built_in: bool = False
    """Whether the role is built in, and cannot be changed or deleted."""


class Binding(msgspec.Struct, frozen=True, array_like=True):
    """Grants a subject the permissions of some roles, within a scope."""

    id: str
    subject: str
    """``user:ada``, ``service:orders-api``, ``group:platform``."""
    roles: tuple[str, ...]
    scope: Scope


def _role(name: str, description: str, permissions: Permission) -> Role:
    return Role(name, permissions, description, is_built_in=True)


_P = Permission
_ALL = ~_P.BROKER_INTERNAL
_SEE = _P.LOOKUP | _P.DESCRIBE | _P.READ_SCHEMA

BUILT_IN_ROLES = {
    role.name: role
    for role in (
        _role("admin", "Everything.", _ALL),
        _role(
            "operator",
            "Runs the cluster; reads and writes no messages.",
            _ALL & ~(_P.PRODUCE | _P.CONSUME | _P.MANAGE_SECURITY),
        ),
        _role("producer", "Writes messages.", _SEE | _P.PRODUCE),
        _role(
            "consumer",
            "Reads messages, and makes and moves its subscriptions.",
            _SEE | _P.CONSUME | _P.MANAGE_SUBSCRIPTION,
        ),
        _role("viewer", "Sees everything but messages.", _SEE | _P.READ_METRICS),
        _role(
            "namespace-admin",
            "Everything in a namespace, its grants included.",
            _SEE
            | _P.PRODUCE
            | _P.CONSUME
            | _P.MANAGE_NAMESPACE
            | _P.MANAGE_TOPIC
            | _P.MANAGE_SUBSCRIPTION
            | _P.MANAGE_SCHEMA
            | _P.MANAGE_SECURITY,
        ),
        _role("schema-admin", "Manages schemas.", _P.READ_SCHEMA | _P.MANAGE_SCHEMA | _P.LOOKUP),
        _role("metrics", "Reads metrics.", _P.READ_METRICS),
    )
}
"""Roles that every cluster has."""


def parse_subject(text: str) -> str:
    """Validate a subject given as text and return it.

    Raises:
        InvalidArgumentError: it is invalid, or a broker.
    """
    type_name, colon, name = text.partition(":")
    known = (PrincipalType.USER.value, PrincipalType.SERVICE.value, PrincipalType.GROUP.value)
    if not colon or not name or type_name not in known or not name.isprintable() or len(name) > 255:
        raise InvalidArgumentError(f"{text!r} is not a subject: use user:NAME, service:NAME or group:NAME")
    return text
