"""Short names for tests of rights."""

from __future__ import annotations

from danube.security import Binding, Grant, Permission, Principal, PrincipalType, Rights, parse_scope

P = Permission


def service(name: str, *groups: str, ceilings: tuple[tuple[Grant, ...], ...] = ()) -> Principal:
    return Principal(PrincipalType.SERVICE, name, groups, ceilings)


def bind(rights: Rights, subject: str, role: str, scope: str) -> Binding:
    binding = Binding(f"b-{len(rights.bindings) + 1}", subject, (role,), parse_scope(scope))
    rights.put_binding(binding)
    return binding
