"""Routes of access control; a part of the one table. Pure."""

from __future__ import annotations

from typing import Final

from danube.model import security_api
from danube.model.security_api import SecurityMethod
from danube.web.route import API, Parameter, Route
from danube.web.twins import twin, without

__all__ = ["SECURITY_ROUTES"]

_AFTER: Final = Parameter("after", str, "The id (of principals: the subject) after which the page begins.")
_SUBJECT: Final = Parameter("subject", str, "Only those of this subject.")

SECURITY_ROUTES: Final = (
    *(
        Route("GET", f"{API}/security/{path}", operation, summary, (call,), parameters, answer=twin(answer))
        for path, operation, summary, call, parameters, answer in (
            (
                "principals",
                "list_principals",
                "Principals and groups with a binding, an API key or a suspension.",
                SecurityMethod.LIST_PRINCIPALS,
                (_AFTER,),
                security_api.PrincipalList,
            ),
            (
                "principals/{subject}/quota",
                "show_principal_quota",
                "The quota of a user or a service.",
                SecurityMethod.SHOW_QUOTA,
                (),
                security_api.PrincipalQuotaReport,
            ),
            ("roles", "list_roles", "All roles.", SecurityMethod.LIST_ROLES, (), security_api.RoleList),
            (
                "bindings",
                "list_bindings",
                "Bindings: which roles a subject has within which scope.",
                SecurityMethod.LIST_BINDINGS,
                (_SUBJECT, Parameter("scope", str, "Only those with exactly this scope."), _AFTER),
                security_api.BindingList,
            ),
            (
                "keys",
                "list_keys",
                "API keys, without their secrets.",
                SecurityMethod.LIST_KEYS,
                (_SUBJECT, _AFTER),
                security_api.KeyList,
            ),
            (
                "issuers",
                "list_issuers",
                "Public keys whose tokens are accepted.",
                SecurityMethod.LIST_ISSUERS,
                (),
                security_api.IssuerList,
            ),
            (
                "revoked-tokens",
                "list_revoked_tokens",
                "Revoked tokens that have not expired.",
                SecurityMethod.LIST_REVOKED,
                (_AFTER,),
                security_api.RevokedList,
            ),
        )
    ),
    *(
        Route(method, f"{API}/security/{path}", operation, summary, (call,), body=body, optional_body=True, status=204)
        for method, path, operation, summary, call, body in (
            (
                "POST",
                "principals/{subject}:suspend",
                "suspend_principal",
                "Take all rights from a principal or a group, until it is resumed.",
                SecurityMethod.SUSPEND,
                without(security_api.SuspendPrincipal, "subject"),
            ),
            (
                "POST",
                "principals/{subject}:resume",
                "resume_principal",
                "End the suspension of a principal or a group.",
                SecurityMethod.RESUME,
                None,
            ),
            ("DELETE", "bindings/{id}", "drop_binding", "Remove a binding.", SecurityMethod.DROP_BINDING, None),
            (
                "DELETE",
                "keys/{id}",
                "drop_key",
                "Remove an API key; streams that were opened with it end.",
                SecurityMethod.DROP_KEY,
                None,
            ),
            (
                "POST",
                "tokens/{id}:revoke",
                "revoke_token",
                "Accept a token no more; streams that were opened with it end.",
                SecurityMethod.REVOKE_TOKEN,
                without(security_api.RevokeToken, "id", "expires_us"),
            ),
        )
    ),
)
"""The rows."""
