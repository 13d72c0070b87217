"""The native API of access control: roles, bindings, principals, API keys, keys that sign tokens, tokens, explanations.

Permissions, scopes and subjects are texts: ``Produce``, ``topic:/shop/orders*``, ``service:orders-api``. No secret is
ever part of a record: an API key is made by the client, which sends its hash; a private key never leaves its owner.
Only the answer to IssueToken has a secret, the token.

Lists come in pages of at most :data:`PAGE_ROWS` rows, ordered by their ids: the next page begins ``after`` the last id.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from danube.model.quotas import PrincipalQuota

__all__ = [
    "PAGE_ROWS",
    "AddIssuer",
    "AddKey",
    "BindingList",
    "BindingRow",
    "CeilingGrant",
    "DropBinding",
    "DropIssuer",
    "DropKey",
    "DropRole",
    "ExplainAccess",
    "ExplainedAccess",
    "IssueToken",
    "IssuedToken",
    "IssuerKeys",
    "IssuerList",
    "IssuerRow",
    "KeyList",
    "KeyRow",
    "ListBindings",
    "ListIssuers",
    "ListKeys",
    "ListPrincipals",
    "ListRevoked",
    "ListRoles",
    "NewKey",
    "PrincipalList",
    "PrincipalRow",
    "PutBinding",
    "PutRole",
    "ReloadSecurity",
    "ReloadedSecurity",
    "ResumePrincipal",
    "RevokeToken",
    "RevokedList",
    "RevokedRow",
    "RoleList",
    "RoleRow",
    "SecurityMethod",
    "SuspendPrincipal",
    "WhoAmI",
    "WhoIAm",
]

PAGE_ROWS: Final = 1_000
"""Most rows of one page."""


class SecurityMethod:
    """Paths of the calls."""

    LIST_ROLES: Final = "/danube.native.v1.Security/ListRoles"
    PUT_ROLE: Final = "/danube.native.v1.Security/PutRole"
    DROP_ROLE: Final = "/danube.native.v1.Security/DropRole"
    LIST_BINDINGS: Final = "/danube.native.v1.Security/ListBindings"
    PUT_BINDING: Final = "/danube.native.v1.Security/PutBinding"
    DROP_BINDING: Final = "/danube.native.v1.Security/DropBinding"
    LIST_PRINCIPALS: Final = "/danube.native.v1.Security/ListPrincipals"
    SUSPEND: Final = "/danube.native.v1.Security/SuspendPrincipal"
    RESUME: Final = "/danube.native.v1.Security/ResumePrincipal"
    SHOW_QUOTA: Final = "/danube.native.v1.Security/ShowPrincipalQuota"
    CHANGE_QUOTA: Final = "/danube.native.v1.Security/ChangePrincipalQuota"
    LIST_KEYS: Final = "/danube.native.v1.Security/ListKeys"
    ADD_KEY: Final = "/danube.native.v1.Security/AddKey"
    DROP_KEY: Final = "/danube.native.v1.Security/DropKey"
    LIST_ISSUERS: Final = "/danube.native.v1.Security/ListIssuers"
    ADD_ISSUER: Final = "/danube.native.v1.Security/AddIssuer"
    DROP_ISSUER: Final = "/danube.native.v1.Security/DropIssuer"
    ISSUE_TOKEN: Final = "/danube.native.v1.Security/IssueToken"
    REVOKE_TOKEN: Final = "/danube.native.v1.Security/RevokeToken"
    LIST_REVOKED: Final = "/danube.native.v1.Security/ListRevoked"
    EXPLAIN: Final = "/danube.native.v1.Security/Explain"
    RELOAD: Final = "/danube.native.v1.Security/Reload"
    WHO_AM_I: Final = "/danube.native.v1.Security/WhoAmI"


# --- Roles


class ListRoles(msgspec.Struct, array_like=True, gc=False):
    """Asks for all roles. Answered with a RoleList, which is never paged: there are at most 1,000."""


class RoleRow(msgspec.Struct, array_like=True):
    """A role."""

    name: str
    permissions: list[str]
    description: str = ""
    built_in: bool = False
    """Whether every cluster has it; it cannot be changed or dropped."""
    created_us: int = 0
    """Unix time in microseconds, here and below; 0: unknown."""
    created_by: str = ""
    """Who has made it, here and below; empty: unknown."""


class RoleList(msgspec.Struct, array_like=True):
    """All roles."""

    roles: list[RoleRow]


class PutRole(msgspec.Struct, array_like=True):
    """Adds or replaces a role. Answered with Done."""

    name: str
    permissions: list[str]
    description: str = ""


class DropRole(msgspec.Struct, array_like=True, gc=False):
    """Removes a role that no binding uses. Answered with Done."""

    name: str


# --- Bindings


class ListBindings(msgspec.Struct, array_like=True, gc=False):
    """Asks for the bindings that the caller may manage. Answered with a BindingList."""

    subject: str = ""
    """Only those of this subject; empty: of all."""
    scope: str = ""
    """Only those with exactly this scope; empty: with any."""
    after: str = ""


class BindingRow(msgspec.Struct, array_like=True):
    """A binding: it grants the subject the permissions of the roles within the scope."""

    id: str
    subject: str
    roles: list[str]
    scope: str
    created_us: int = 0
    created_by: str = ""


class BindingList(msgspec.Struct, array_like=True):
    """A page of bindings."""

    bindings: list[BindingRow]
    more: bool = False
    """Whether there is another page, here and below."""


class PutBinding(msgspec.Struct, array_like=True):
    """Adds or replaces a binding. Answered with a BindingList of it."""

    subject: str
    roles: list[str]
    scope: str
    id: str = ""
    """Empty: the broker finds one. A binding of the same subject and scope is extended then by the roles."""


class DropBinding(msgspec.Struct, array_like=True):
    """Removes a binding, or roles of a subject within a scope. Answered with a BindingList of what is left of them."""

    id: str = ""
    """Empty: the bindings of the subject within exactly this scope lose the roles."""
    subject: str = ""
    roles: list[str] = []
    """Empty: all roles."""
    scope: str = ""


# --- Principals


class ListPrincipals(msgspec.Struct, array_like=True, gc=False):
    """Asks for the principals and groups with a binding, an API key or a suspension. Answered with a PrincipalList."""

    after: str = ""


class PrincipalRow(msgspec.Struct, array_like=True):
    """A principal or a group."""

    subject: str
    suspended: bool
    description: str
    """Why it is suspended."""
    bindings: int
    """Bindings of it that the caller may manage."""
    keys: int
    """API keys of it that the caller may manage."""


class PrincipalList(msgspec.Struct, array_like=True):
    """A page of principals."""

    principals: list[PrincipalRow]
    more: bool = False


class SuspendPrincipal(msgspec.Struct, array_like=True, gc=False):
    """Takes all rights from a principal or a group until it is resumed. Answered with Done."""

    subject: str
    description: str = ""


class ResumePrincipal(msgspec.Struct, array_like=True, gc=False):
    """Ends a suspension. Answered with Done."""

    subject: str


class ShowPrincipalQuota(msgspec.Struct, array_like=True, gc=False):
    """Asks for the quota of a user or a service. Answered with a PrincipalQuotaReport."""

    subject: str


class ChangePrincipalQuota(msgspec.Struct, array_like=True, gc=False):
    """Changes the quota of a user or a service. Answered with the new PrincipalQuotaReport."""

    subject: str
    changes: dict[str, Any]
    """Fields of PrincipalQuota; None removes one."""


class PrincipalQuotaReport(msgspec.Struct, array_like=True, gc=False):
    """The quota of a user or a service."""

    subject: str
    quota: PrincipalQuota


# --- API keys


class CeilingGrant(msgspec.Struct, array_like=True):
    """A part of a ceiling: permissions within a scope that a credential has at most."""

    scope: str
    permissions: list[str] = []
    roles: list[str] = []
    """In requests: the permissions that these roles have now are added. In answers: empty."""


class ListKeys(msgspec.Struct, array_like=True, gc=False):
    """Asks for the API keys that the caller may manage. Answered with a KeyList."""

    subject: str = ""
    after: str = ""


class KeyRow(msgspec.Struct, array_like=True):
    """An API key, without its secret, which is stored nowhere."""

    id: str
    subject: str
    ceiling: list[CeilingGrant] | None
    """None: it may do whatever its principal may do."""
    expires_us: int
    """0: never."""
    description: str = ""
    created_us: int = 0
    created_by: str = ""


class KeyList(msgspec.Struct, array_like=True):
    """A page of API keys."""

    keys: list[KeyRow]
    more: bool = False


class AddKey(msgspec.Struct, array_like=True):
    """Adds an API key that the client has made. Answered with a KeyList of it."""

    id: str
    hash: bytes
    """SHA-256, 32 bytes."""
    subject: str
    ceiling: list[CeilingGrant] | None = None
    expires_us: int = 0
    description: str = ""


class NewKey(msgspec.Struct):
    """An API key that was just made; it cannot be shown again."""

    text: str
    """The key itself: ``dnb_...``."""
    id: str
    expires_us: int = 0

    def __repr__(self) -> str:
        return f"NewKey('***', {self.id!r}, {self.expires_us})"


class DropKey(msgspec.Struct, array_like=True, gc=False):
    """Removes an API key; streams that were opened with it end. Answered with Done."""

    id: str


# --- Keys that sign tokens


class ListIssuers(msgspec.Struct, array_like=True, gc=False):
    """Asks for the keys that sign tokens, as far as the caller may manage them. Answered with an IssuerList."""


class IssuerRow(msgspec.Struct, array_like=True):
    """A public key whose tokens are accepted."""

    kid: str
    name: str
    """Of the team, or of the cluster: the ``iss`` of its tokens."""
    ceiling: list[CeilingGrant] | None
    longest_life_s: float
    description: str = ""
    created_us: int = 0
    created_by: str = ""


class IssuerList(msgspec.Struct, array_like=True):
    """All keys that sign tokens; there are at most 1,000."""

    issuers: list[IssuerRow]


class AddIssuer(msgspec.Struct, array_like=True):
    """Accepts tokens that a team signs with its own key. Answered with an IssuerList of it."""

    name: str
    public: bytes
    """The Ed25519 public key, 32 bytes."""
    ceiling: list[CeilingGrant]
    longest_life_s: float
    """Longest life of its tokens."""
    description: str = ""


class DropIssuer(msgspec.Struct, array_like=True, gc=False):
    """Accepts no more tokens of a key; streams that were opened with one end. Answered with Done."""

    kid: str


# --- Tokens


class IssueToken(msgspec.Struct, array_like=True):
    """Asks for a token, signed by the broker. Answered with an IssuedToken."""

    subject: str
    life_s: float
    may: list[str] | None = None
    """``Produce:/shop/orders`` and the like: the token may do nothing else. None: whatever its principal may do."""


class IssuedToken(msgspec.Struct, array_like=True):
    """A token. The broker does not keep it."""

    token: str
    id: str
    """For its revocation."""
    expires_us: int

    def __repr__(self) -> str:
        return f"IssuedToken('***', {self.id!r}, {self.expires_us})"


class RevokeToken(msgspec.Struct, array_like=True, gc=False):
    """Accepts a token no more, on any broker. Answered with Done."""

    id: str
    expires_us: int = 0
    """When it expires; 0: unknown, so that the revocation is kept for as long as a token can live."""
    reason: str = ""


class ListRevoked(msgspec.Struct, array_like=True, gc=False):
    """Asks for the revoked tokens that have not expired. Answered with a RevokedList."""

    after: str = ""


class RevokedRow(msgspec.Struct, array_like=True):
    """A revoked token."""

    id: str
    expires_us: int
    reason: str = ""
    created_us: int = 0
    created_by: str = ""


class RevokedList(msgspec.Struct, array_like=True):
    """A page of revoked tokens."""

    tokens: list[RevokedRow]
    more: bool = False


# --- Explanations


class ExplainAccess(msgspec.Struct, array_like=True):
    """Asks whether a principal has a permission on a resource, and why. Answered with an ExplainedAccess."""

    subject: str
    permission: str
    resource: str
    """``cluster``, ``namespace:shop``, ``/shop/orders``, ``/shop/orders#billing`` or ``schema:orders-value``."""
    groups: list[str] = []
    """Groups that its credentials would name."""


class ExplainedAccess(msgspec.Struct, array_like=True):
    """A decision and its reason."""

    allowed: bool
    reason: str
    """A sentence, without credentials."""


# --- Files and documents


class ReloadSecurity(msgspec.Struct, array_like=True, gc=False):
    """Has the broker that gets the call read its certificates, and the keys of OIDC issuers, again.

    Answered with a ReloadedSecurity.
    """


class IssuerKeys(msgspec.Struct, array_like=True):
    """The keys of one configured OIDC issuer, at one broker."""

    name: str
    """In the broker's configuration."""
    keys: int
    """How many are used now."""
    problem: str
    """Why they could not be read, so that the former ones stay; empty: they were."""


class ReloadedSecurity(msgspec.Struct, array_like=True):
    """What a broker uses after it has read its files again."""

    certificate_names: list[str]
    """Subject alternative names of the certificate that new connections get, as ``DNS:broker.example.org``; none
    without TLS."""
    certificate_expires_us: int
    """When it ends, in microseconds since the epoch; 0 without TLS."""
    certificate_problem: str
    """Why the files cannot be used, so that the former certificate stays; empty: they can."""
    issuers: list[IssuerKeys]


# --- The caller itself


class WhoAmI(msgspec.Struct, array_like=True, gc=False):
    """Asks who the caller is, and what it may do. Answered with a WhoIAm."""

    session: str = ""
    """``begins`` or ``ends``: enter in the audit log that a session of the caller does. Empty: enter nothing."""


class WhoIAm(msgspec.Struct, array_like=True):
    """Who a caller is, and what it may do now."""

    subject: str
    """``service:orders-api``; ``user:anonymous`` at a broker without access control."""
    secured: bool
    """Whether the broker has access control; without it each caller may do everything."""
    proof: str
    """Kind and id of its credential: ``token t-17``; empty without access control."""
    expires_us: int
    """When the credential ends; 0: never, or when it is removed."""
    grants: list[CeilingGrant]
    """Its permissions by scope, limited by its credential; at most :data:`PAGE_ROWS`. ``roles`` are empty."""
    more: bool = False
    """Whether it has more grants than that."""
