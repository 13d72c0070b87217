"""Access control of a cluster: roles, bindings, principals, API keys, teams' keys, tokens: ``client.security``.

Any broker answers for all. Permissions, scopes and subjects are texts: ``Produce``, ``topic:/shop/orders*`` (or
``/shop/orders*``), ``service:orders-api``. Changes take effect at once, at open streams within a second.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from danube.client._checks import check_list, check_seconds
from danube.client._retry import Retry
from danube.model import api, security_api
from danube.model.quotas import PrincipalQuota
from danube.model.security_api import SecurityMethod

if TYPE_CHECKING:
    from danube.client._pool import Pool

__all__ = ["Security"]

_MICROSECONDS: Final = 1_000_000

T = TypeVar("T")


class Security:
    """Manages who may do what; it is :attr:`Client.security`.

    All methods but :meth:`who_am_i` need ManageSecurity where they show or change something, and raise
    PermissionDeniedError without it.
    A caller cannot give a permission that it lacks.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    # --- Roles

    async def roles(self) -> list[security_api.RoleRow]:
        """Return all roles, the built-in ones first."""
        return (await self._read(SecurityMethod.LIST_ROLES, security_api.ListRoles(), security_api.RoleList)).roles

    async def put_role(self, name: str, permissions: Sequence[str], description: str = "") -> None:
        """Add or replace a role.

        Raises:
            InvalidArgumentError: an unknown permission, or none.
            FailedPreconditionError: the role is built in.
        """
        check_list("permissions", permissions, "texts")
        request = security_api.PutRole(name, list(permissions), description)
        await self._change(SecurityMethod.PUT_ROLE, request, api.Done)

    async def drop_role(self, name: str) -> None:
        """Remove a role.

        Raises:
            NotFoundError: there is no such role.
            FailedPreconditionError: it is built in, or bindings use it.
        """
        await self._change(SecurityMethod.DROP_ROLE, security_api.DropRole(name), api.Done)

    # --- Bindings

    async def bindings(self, subject: str = "", scope: str = "") -> list[security_api.BindingRow]:
        """Return the bindings of a subject, or of all, with exactly one scope, or any."""
        found: list[security_api.BindingRow] = []
        more = True
        while more:
            request = security_api.ListBindings(subject, scope, found[-1].id if found else "")
            page = await self._read(SecurityMethod.LIST_BINDINGS, request, security_api.BindingList)
            found += page.bindings
            more = page.more
        return found

    async def grant(
        self, subject: str, roles: Sequence[str], scope: str, *, binding: str = ""
    ) -> security_api.BindingRow:
        """Grant roles to a subject within a scope, and return the binding.

        Args:
            subject: ``user:NAME``, ``service:NAME`` or ``group:NAME``.
            roles: one or more.
            scope: ``cluster``, ``namespace:shop``, ``/shop/orders``, ``/shop/ord*``, ``/shop/orders#billing``,
                ``schema:orders-value``.
            binding: id of the binding, which is replaced if it exists. Empty: the roles are added to the binding of
                this subject and scope, or to a new one.

        Raises:
            InvalidArgumentError: an unknown role, or an invalid subject or scope.
        """
        check_list("roles", roles, "texts")
        request = security_api.PutBinding(subject, list(roles), scope, binding)
        return (await self._change(SecurityMethod.PUT_BINDING, request, security_api.BindingList)).bindings[0]

    async def revoke(self, subject: str, scope: str, roles: Sequence[str] = ()) -> list[security_api.BindingRow]:
        """Take roles (all, if none is named) from a subject within exactly this scope; return what is left there.

        Raises:
            NotFoundError: it has none of them within this scope.
            FailedPreconditionError: it is the last administrator.
        """
        check_list("roles", roles, "texts")
        request = security_api.DropBinding(subject=subject, roles=list(roles), scope=scope)
        return (await self._change(SecurityMethod.DROP_BINDING, request, security_api.BindingList)).bindings

    async def drop_binding(self, binding: str) -> None:
        """Remove a binding.

        Raises:
            NotFoundError: there is none of this id.
            FailedPreconditionError: it is that of the last administrator.
        """
        await self._change(SecurityMethod.DROP_BINDING, security_api.DropBinding(binding), security_api.BindingList)

    # --- Principals

    async def principals(self) -> list[security_api.PrincipalRow]:
        """Return the principals and groups with a binding, an API key or a suspension."""
        found: list[security_api.PrincipalRow] = []
        more = True
        while more:
            request = security_api.ListPrincipals(found[-1].subject if found else "")
            page = await self._read(SecurityMethod.LIST_PRINCIPALS, request, security_api.PrincipalList)
            found += page.principals
            more = page.more
        return found

    async def suspend(self, subject: str, description: str = "") -> None:
        """Take all rights from a principal or a group until it is resumed; open streams end.

        Raises:
            FailedPreconditionError: it is the last administrator.
        """
        await self._change(SecurityMethod.SUSPEND, security_api.SuspendPrincipal(subject, description), api.Done)

    async def resume(self, subject: str) -> None:
        """End a suspension.

        Raises:
            NotFoundError: the subject is not suspended.
        """
        await self._change(SecurityMethod.RESUME, security_api.ResumePrincipal(subject), api.Done)

    async def quota(self, subject: str) -> PrincipalQuota:
        """Return what a user or a service may use at most, at each broker."""
        request = security_api.ShowPrincipalQuota(subject)
        return (await self._read(SecurityMethod.SHOW_QUOTA, request, security_api.PrincipalQuotaReport)).quota

    async def change_quota(self, subject: str, **changes: Any) -> PrincipalQuota:
        """Change the quota of a user or a service, and return it. It applies at once; what is open stays.

        Args:
            subject: ``user:NAME`` or ``service:NAME``.
            changes: fields of :class:`danube.model.quotas.PrincipalQuota`; None removes one. Others remain unchanged.

        Raises:
            InvalidArgumentError: an unknown name, or an invalid value.
        """
        request = security_api.ChangePrincipalQuota(subject, changes)
        return (await self._change(SecurityMethod.CHANGE_QUOTA, request, security_api.PrincipalQuotaReport)).quota

    # --- API keys

    async def keys(self, subject: str = "") -> list[security_api.KeyRow]:
        """Return the API keys of a principal, or of all, without their secrets."""
        found: list[security_api.KeyRow] = []
        more = True
        while more:
            request = security_api.ListKeys(subject, found[-1].id if found else "")
            page = await self._read(SecurityMethod.LIST_KEYS, request, security_api.KeyList)
            found += page.keys
            more = page.more
        return found

    async def create_key(
        self,
        subject: str,
        *,
        ceiling: Sequence[security_api.CeilingGrant] | None = None,
        life_s: float | None = None,
        description: str = "",
    ) -> security_api.NewKey:
        """Create an API key. It is made here: the broker gets only its hash, and it cannot be shown again.

        Args:
            subject: the principal that it belongs to.
            ceiling: what it may do at most; None: whatever its principal may do.
            life_s: how long it lasts; None: until it is deleted.
            description: for lists.

        Raises:
            InvalidArgumentError: an invalid subject or ceiling.
        """
        from danube.security.api_keys import RANDOM_BYTES, make_api_key

        expires_us = 0
        if life_s is not None:
            life_us = round(check_seconds("life_s", life_s) * _MICROSECONDS)
            expires_us = self._pool.options.environment.clock_us() + life_us
        new = make_api_key(secrets.token_bytes(RANDOM_BYTES))
        parts = None if ceiling is None else list(ceiling)
        request = security_api.AddKey(new.id, new.hash, subject, parts, expires_us, description)
        await self._change(SecurityMethod.ADD_KEY, request, api.Done)
        return security_api.NewKey(new.text, new.id, expires_us)

    async def drop_key(self, key_id: str) -> None:
        """Remove an API key; open streams that it has proven end.

        Raises:
            NotFoundError: there is none of this id.
        """
        await self._change(SecurityMethod.DROP_KEY, security_api.DropKey(key_id), api.Done)

    # --- Keys that sign tokens

    async def issuers(self) -> list[security_api.IssuerRow]:
        """Return the keys whose tokens are accepted: those of the cluster, and of teams."""
        return (
            await self._read(SecurityMethod.LIST_ISSUERS, security_api.ListIssuers(), security_api.IssuerList)
        ).issuers

    async def add_issuer(
        self,
        name: str,
        public: bytes,
        ceiling: Sequence[security_api.CeilingGrant],
        *,
        longest_life_s: float,
        description: str = "",
    ) -> None:
        """Accept tokens that a team signs with its own key.

        Args:
            name: of the team, the ``iss`` of its tokens.
            public: the Ed25519 public key, 32 bytes.
            ceiling: what its tokens may do at most. They have what the bindings of their principals grant as well.
            longest_life_s: longest life of its tokens.
            description: for lists.

        Raises:
            AlreadyExistsError: the key is registered.
            InvalidArgumentError: an invalid name, key or ceiling.
        """
        request = security_api.AddIssuer(
            name, public, list(ceiling), check_seconds("longest_life_s", longest_life_s), description
        )
        await self._change(SecurityMethod.ADD_ISSUER, request, api.Done)

    async def drop_issuer(self, kid: str) -> None:
        """Accept no more tokens of a key; open streams that they have proven end.

        Raises:
            NotFoundError: there is no such key.
        """
        await self._change(SecurityMethod.DROP_ISSUER, security_api.DropIssuer(kid), api.Done)

    # --- Tokens

    async def issue_token(
        self, subject: str, *, life_s: float, may: Sequence[str] | None = None
    ) -> security_api.IssuedToken:
        """Return a token for a principal, signed by the broker, which does not keep it.

        Args:
            subject: the principal.
            life_s: how long it lasts, up to 366 days.
            may: ``Produce:/shop/orders`` and the like: it may do nothing else. None: whatever its principal may do.

        Raises:
            InvalidArgumentError: an invalid subject, permission or life.
            FailedPreconditionError: access control is off.
        """
        if may is not None:
            check_list("may", may, "texts")
        request = security_api.IssueToken(subject, check_seconds("life_s", life_s), None if may is None else list(may))
        return await self._change(SecurityMethod.ISSUE_TOKEN, request, security_api.IssuedToken)

    async def revoke_token(self, token_id: str, *, expires_us: int = 0, reason: str = "") -> None:
        """Accept a token no more; open streams that it has proven end.

        Args:
            token_id: its ``jti``.
            expires_us: when it expires, Unix time in microseconds; 0: unknown.
            reason: for lists.
        """
        request = security_api.RevokeToken(token_id, expires_us, reason)
        await self._change(SecurityMethod.REVOKE_TOKEN, request, api.Done)

    async def revoked_tokens(self) -> list[security_api.RevokedRow]:
        """Return the revoked tokens that have not expired."""
        found: list[security_api.RevokedRow] = []
        more = True
        while more:
            request = security_api.ListRevoked(found[-1].id if found else "")
            page = await self._read(SecurityMethod.LIST_REVOKED, request, security_api.RevokedList)
            found += page.tokens
            more = page.more
        return found

    # --- Explanations

    async def explain(
        self, subject: str, permission: str, resource: str, *, groups: Sequence[str] = ()
    ) -> security_api.ExplainedAccess:
        """Return whether a principal has a permission on a resource, and why.

        Args:
            subject: the principal.
            permission: ``Consume``, for example.
            resource: ``cluster``, ``namespace:shop``, ``/shop/orders``, ``/shop/orders#billing``, ``schema:SUBJECT``.
            groups: that its credentials would name.

        Raises:
            InvalidArgumentError: an unknown permission, or an invalid subject or resource.
        """
        check_list("groups", groups, "texts")
        request = security_api.ExplainAccess(subject, permission, resource, list(groups))
        return await self._read(SecurityMethod.EXPLAIN, request, security_api.ExplainedAccess)

    # --- The caller itself

    async def who_am_i(self) -> security_api.WhoIAm:
        """Return who the caller is, how that was proven, and what it may do. Every caller may ask that."""
        return await self._read(SecurityMethod.WHO_AM_I, security_api.WhoAmI(), security_api.WhoIAm)

    # --- Files and documents

    async def reload(self) -> security_api.ReloadedSecurity:
        """Have the broker that gets the call read its certificates, and the keys of OIDC issuers, again.

        Brokers do so by themselves: certificates are looked for each five seconds, keys each ten minutes. The answer
        says what is used now, and why something cannot be used. In a cluster connect to each broker in turn.
        """
        return await self._read(SecurityMethod.RELOAD, security_api.ReloadSecurity(), security_api.ReloadedSecurity)

    async def _change(self, path: str, request: Any, kind: type[T]) -> T:
        """Make a call to any broker; it is not repeated, because it may have been executed."""
        options = self._pool.options
        return await self._pool.unary(path, request, kind, timeout_s=options.request_timeout_s)

    async def _read(self, path: str, request: Any, kind: type[T]) -> T:
        call = partial(self._change, path, request, kind)
        return await Retry(self._pool).repeat(call, self._pool.options.request_timeout_s)
