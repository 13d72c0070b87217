"""The unary calls of access control: a table of paths and operations, each of which gets the caller, too.

The operations are loaded by the first call, because most brokers never get one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from danube.model import security_api as api
from danube.model.security_api import SecurityMethod
from danube.wire import Context, Method, Service

if TYPE_CHECKING:
    from danube.broker.operations.security import SecurityOperations
    from danube.security import Principal

__all__ = ["security_calls"]


def security_calls(security: Callable[[], SecurityOperations], caller: Callable[[Context], Principal]) -> Service:
    """Return the methods, by path.

    Args:
        security: returns the operations.
        caller: returns the principal of a call.
    """
    table: list[tuple[str, str, type]] = [
        (SecurityMethod.LIST_ROLES, "list_roles", api.ListRoles),
        (SecurityMethod.PUT_ROLE, "put_role", api.PutRole),
        (SecurityMethod.DROP_ROLE, "drop_role", api.DropRole),
        (SecurityMethod.LIST_BINDINGS, "list_bindings", api.ListBindings),
        (SecurityMethod.PUT_BINDING, "put_binding", api.PutBinding),
        (SecurityMethod.DROP_BINDING, "drop_binding", api.DropBinding),
        (SecurityMethod.LIST_PRINCIPALS, "list_principals", api.ListPrincipals),
        (SecurityMethod.SUSPEND, "suspend_principal", api.SuspendPrincipal),
        (SecurityMethod.RESUME, "resume_principal", api.ResumePrincipal),
        (SecurityMethod.SHOW_QUOTA, "show_quota", api.ShowPrincipalQuota),
        (SecurityMethod.CHANGE_QUOTA, "change_quota", api.ChangePrincipalQuota),
        (SecurityMethod.LIST_KEYS, "list_keys", api.ListKeys),
        (SecurityMethod.ADD_KEY, "add_key", api.AddKey),
        (SecurityMethod.DROP_KEY, "drop_key", api.DropKey),
        (SecurityMethod.LIST_ISSUERS, "list_issuers", api.ListIssuers),
        (SecurityMethod.ADD_ISSUER, "add_issuer", api.AddIssuer),
        (SecurityMethod.DROP_ISSUER, "drop_issuer", api.DropIssuer),
        (SecurityMethod.ISSUE_TOKEN, "issue_token", api.IssueToken),
        (SecurityMethod.REVOKE_TOKEN, "revoke_token", api.RevokeToken),
        (SecurityMethod.LIST_REVOKED, "list_revoked", api.ListRevoked),
        (SecurityMethod.EXPLAIN, "explain", api.ExplainAccess),
        (SecurityMethod.RELOAD, "reload", api.ReloadSecurity),
        (SecurityMethod.WHO_AM_I, "who_am_i", api.WhoAmI),
    ]
    return {path: _method(path, name, request, security, caller) for path, name, request in table}


def _method(
    path: str,
    name: str,
    request_type: type,
    security: Callable[[], SecurityOperations],
    caller: Callable[[Context], Principal],
) -> Method:
    def handler(request: Any, context: Context) -> Awaitable[Any]:
        answer: Awaitable[Any] = getattr(security(), name)(caller(context), request)
        return answer

    return Method(path=path, kind="unary", handler=handler, request_type=request_type)
