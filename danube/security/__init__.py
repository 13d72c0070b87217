"""Access control as pure functions: permissions, scopes, roles, bindings and decisions. Does not authenticate."""

from danube.security.decisions import Decision, Reason, Source
from danube.security.evaluate import Rights
from danube.security.permissions import Permission
from danube.security.roles import BUILT_IN_ROLES, Binding, Grant, Principal, PrincipalType, Role
from danube.security.scopes import CLUSTER, Resource, Scope, ScopeKind, parse_scope

__all__ = [
    "BUILT_IN_ROLES",
    "CLUSTER",
    "Binding",
    "Decision",
    "Grant",
    "Permission",
    "Principal",
    "PrincipalType",
    "Reason",
    "Resource",
    "Rights",
    "Role",
    "Scope",
    "ScopeKind",
    "Source",
    "parse_scope",
]
