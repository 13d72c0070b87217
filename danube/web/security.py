"""Handlers of access control: who may do what, without secrets, and taking it away.

Each is one native call. Lists come in pages, as the native ones do: ``after`` is the id of the last row of the page
before, and ``more`` says whether there is another page.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from danube.model import security_api as api
from danube.model.security_api import SecurityMethod
from danube.web.caller import ApiCall

if TYPE_CHECKING:
    from danube.web.administration import Handler

__all__ = ["HANDLERS"]


async def list_principals(call: ApiCall) -> Any:
    """Return principals and groups with a binding, an API key or a suspension."""
    return await call.native(SecurityMethod.LIST_PRINCIPALS, api.ListPrincipals(call.values["after"] or ""))


async def show_principal_quota(call: ApiCall) -> Any:
    """Return the quota of a principal."""
    return await call.native(SecurityMethod.SHOW_QUOTA, api.ShowPrincipalQuota(call.path["subject"]))


async def suspend_principal(call: ApiCall) -> None:
    """Take all rights from a principal."""
    description = "" if call.body is None else call.body.description
    await call.native(SecurityMethod.SUSPEND, api.SuspendPrincipal(call.path["subject"], description))


async def resume_principal(call: ApiCall) -> None:
    """End a suspension."""
    await call.native(SecurityMethod.RESUME, api.ResumePrincipal(call.path["subject"]))


async def list_roles(call: ApiCall) -> Any:
    """Return all roles."""
    return await call.native(SecurityMethod.LIST_ROLES, api.ListRoles())


async def list_bindings(call: ApiCall) -> Any:
    """Return bindings."""
    values = call.values
    request = api.ListBindings(values["subject"] or "", values["scope"] or "", values["after"] or "")
    return await call.native(SecurityMethod.LIST_BINDINGS, request)


async def drop_binding(call: ApiCall) -> None:
    """Remove a binding."""
    await call.native(SecurityMethod.DROP_BINDING, api.DropBinding(call.path["id"]))


async def list_keys(call: ApiCall) -> Any:
    """Return API keys, without their secrets."""
    request = api.ListKeys(call.values["subject"] or "", call.values["after"] or "")
    return await call.native(SecurityMethod.LIST_KEYS, request)


async def drop_key(call: ApiCall) -> None:
    """Remove an API key."""
    await call.native(SecurityMethod.DROP_KEY, api.DropKey(call.path["id"]))


async def list_issuers(call: ApiCall) -> Any:
    """Return the keys that sign tokens."""
    return await call.native(SecurityMethod.LIST_ISSUERS, api.ListIssuers())


async def list_revoked_tokens(call: ApiCall) -> Any:
    """Return revoked tokens."""
    return await call.native(SecurityMethod.LIST_REVOKED, api.ListRevoked(call.values["after"] or ""))


async def revoke_token(call: ApiCall) -> None:
    """Revoke a token by its id."""
    reason = "" if call.body is None else call.body.reason
    await call.native(SecurityMethod.REVOKE_TOKEN, api.RevokeToken(call.path["id"], 0, reason))


HANDLERS: Final[Mapping[str, Handler]] = {
    handler.__name__: handler
    for handler in (
        list_principals,
        show_principal_quota,
        suspend_principal,
        resume_principal,
        list_roles,
        list_bindings,
        drop_binding,
        list_keys,
        drop_key,
        list_issuers,
        list_revoked_tokens,
        revoke_token,
    )
}
