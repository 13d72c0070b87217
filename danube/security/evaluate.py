"""Decides whether a principal has a permission on a resource.

Grants only add permissions: there are no deny rules. A decision looks up the principal's grants by the names of the
resource, so it takes as long with ten thousand bindings as with ten, and is cached until anything changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from danube.model.errors import FailedPreconditionError, InvalidArgumentError, PermissionDeniedError
from danube.security.permissions import Permission
from danube.security.roles import BUILT_IN_ROLES, Binding, Principal, PrincipalType, Role
from danube.security.scopes import CLUSTER, Resource, Scope, ScopeKind

__all__ = ["Decision", "Rights"]

_NOTHING = Permission(0)
_MOST_DECISIONS = 100_000
"""Number of cached decisions; beyond it the cache is cleared."""


class Decision(NamedTuple):
    """A decision and its reason."""

    is_allowed: bool
    reason: str
    """Text for people: the binding that grants the permission, or what the bindings grant instead."""


class _Held:
    """Permissions of one subject, indexed by kind and name (or prefix) of the scope."""

    __slots__ = ("bindings", "everywhere", "exact", "prefixes")

    def __init__(self) -> None:
        self.bindings: list[Binding] = []
        # Sets of permissions as plain integers: operators of flags cost a microsecond each.
        self.everywhere = 0
        self.exact: dict[tuple[ScopeKind, str], int] = {}
        self.prefixes: dict[ScopeKind, dict[int, dict[str, int]]] = {}
        """Permissions by kind and by length of the prefix."""

    def add(self, scope: Scope, given: Permission) -> None:
        permissions = int(given)
        if scope.kind is ScopeKind.CLUSTER:
            self.everywhere |= permissions
        elif scope.is_prefix:
            names = self.prefixes.setdefault(scope.kind, {}).setdefault(len(scope.name), {})
            names[scope.name] = names.get(scope.name, 0) | permissions
        else:
            key = scope.kind, scope.name
            self.exact[key] = self.exact.get(key, 0) | permissions

    def on(self, names: Iterable[tuple[ScopeKind, str]]) -> int:
        found = self.everywhere
        for kind, name in names:
            found |= self.exact.get((kind, name), 0)
            for length, prefixes in self.prefixes.get(kind, {}).items():
                found |= prefixes.get(name[:length], 0)
        return found


class Rights:
    """Roles and bindings of a cluster, and decisions based on them.

    Attributes:
        generation: incremented at each change; streams allowed under an older generation must be checked again.
        suspended: subjects that have no permissions, regardless of their bindings.
    """

    def __init__(self) -> None:
        self.generation = 0
        self.suspended: frozenset[str] = frozenset()
        self._roles: dict[str, Role] = dict(BUILT_IN_ROLES)
        self._bindings: dict[str, Binding] = {}
        self._held: dict[str, _Held] = {}
        self._decided: dict[tuple[Principal, int, Resource], bool] = {}

    @property
    def roles(self) -> Mapping[str, Role]:
        """All roles by name."""
        return self._roles

    @property
    def bindings(self) -> Mapping[str, Binding]:
        """All bindings by id."""
        return self._bindings

    # ------------------------------------------------------------------------------------------------------ changes

    def put_role(self, role: Role) -> None:
        """Add a role, or replace the role with the same name.

        Raises:
            FailedPreconditionError: the role is built in.
        """
        if role.name in BUILT_IN_ROLES:
            raise FailedPreconditionError(f"role {role.name!r} is built in and cannot be changed; choose another name")
        self._roles[role.name] = role
        for subject in {each.subject for each in self._bindings.values() if role.name in each.roles}:
            self._gather(subject)
        self._changed()

    def drop_role(self, name: str) -> None:
        """Remove a role.

        Raises:
            InvalidArgumentError: there is no such role.
            FailedPreconditionError: it is built in, or bindings refer to it.
        """
        if name not in self._roles:
            raise InvalidArgumentError(f"there is no role {name!r}")
        if name in BUILT_IN_ROLES:
            raise FailedPreconditionError(f"role {name!r} is built in and cannot be deleted")
        users = sorted(each.id for each in self._bindings.values() if name in each.roles)
        if users:
            raise FailedPreconditionError(f"role {name!r} is in use; delete these bindings first: {', '.join(users)}")
        del self._roles[name]
        self._changed()

    def put_binding(self, binding: Binding) -> None:
        """Add a binding, or replace the binding with the same id.

        Raises:
            InvalidArgumentError: it names no roles, or an unknown role.
            FailedPreconditionError: it would replace the last binding that grants the role admin on the cluster.
        """
        missing = [name for name in binding.roles if name not in self._roles]
        if missing or not binding.roles:
            raise InvalidArgumentError(f"binding {binding.id!r} names unknown roles: {', '.join(missing) or 'none'}")
        replaced = self._bindings.get(binding.id)
        if replaced is not None:
            self._check_not_last_admin(replaced, binding)
        self._bindings[binding.id] = binding
        if replaced is not None:
            self._gather(replaced.subject)
        self._gather(binding.subject)
        self._changed()

    def drop_binding(self, binding_id: str) -> None:
        """Remove a binding.

        Raises:
            InvalidArgumentError: there is no such binding.
            FailedPreconditionError: it is the last binding that grants the role admin on the cluster.
        """
        binding = self._bindings.get(binding_id)
        if binding is None:
            raise InvalidArgumentError(f"there is no binding {binding_id!r}")
        self._check_not_last_admin(binding, None)
        del self._bindings[binding_id]
        self._gather(binding.subject)
        self._changed()

    def suspend(self, subjects: Iterable[str]) -> None:
        """Replace the set of suspended subjects."""
        self.suspended = frozenset(subjects)
        self._changed()

    def _changed(self) -> None:
        self.generation += 1
        self._decided.clear()

    def _gather(self, subject: str) -> None:
        """Recompute the permissions of a subject."""
        held = _Held()
        for binding in self._bindings.values():
            if binding.subject == subject:
                held.bindings.append(binding)
                held.add(binding.scope, self._permissions(binding))
        if held.bindings:
            self._held[subject] = held
        else:
            self._held.pop(subject, None)

    def load(self, roles: Iterable[Role], bindings: Iterable[Binding]) -> None:
        """Replace all roles and bindings by those of a store; a binding's unknown roles grant nothing."""
        self._roles = dict(BUILT_IN_ROLES) | {each.name: each for each in roles if each.name not in BUILT_IN_ROLES}
        self._bindings = {each.id: each for each in bindings}
        self._held = {}
        for binding in self._bindings.values():
            held = self._held.setdefault(binding.subject, _Held())
            held.bindings.append(binding)
            held.add(binding.scope, self._permissions(binding))
        self._changed()

    def _permissions(self, binding: Binding) -> Permission:
        found = _NOTHING
        for name in binding.roles:
            role = self._roles.get(name)
            if role is not None:
                found |= role.permissions
        return found & ~Permission.BROKER_INTERNAL

    def _makes_admin(self, binding: Binding) -> bool:
        return binding.scope.kind is ScopeKind.CLUSTER and "admin" in binding.roles

    def _check_not_last_admin(self, old: Binding, new: Binding | None) -> None:
        if not self._makes_admin(old) or (new is not None and self._makes_admin(new)):
            return
        if not any(self._makes_admin(each) for each in self._bindings.values() if each.id != old.id):
            raise FailedPreconditionError(
                f"binding {old.id!r} is the last one that grants the role admin on the cluster; add another one first"
            )

    # ---------------------------------------------------------------------------------------------------- decisions

    def allows(self, principal: Principal, permission: Permission, resource: Resource = CLUSTER) -> bool:
        """Whether a principal has a permission on a resource."""
        key = principal, int(permission), resource
        decided = self._decided.get(key)
        if decided is None:
            if len(self._decided) >= _MOST_DECISIONS:
                self._decided.clear()
            decided = self._decided[key] = self._decide(principal, permission, resource)
        return decided

    def require(self, principal: Principal, permission: Permission, resource: Resource = CLUSTER) -> None:
        """Check that a principal has a permission on a resource.

        Raises:
            PermissionDeniedError: it does not have it. The message names principal, permission and resource only.
        """
        if not self.allows(principal, permission, resource):
            raise PermissionDeniedError(
                f"{principal} lacks {permission.title} on {_name_of(resource)}; administrators see why with"
                f" 'danube security explain'"
            )

    def _decide(self, principal: Principal, permission: Permission, resource: Resource) -> bool:
        if principal.type is PrincipalType.BROKER:
            return permission is Permission.BROKER_INTERNAL
        if any(subject in self.suspended for subject in principal.subjects):
            return False
        names, wanted = _names_of(resource), int(permission)
        for subject in principal.subjects:
            held = self._held.get(subject)
            if held is not None and held.on(names) & wanted:
                return all(
                    any(grant.gives(permission, resource) for grant in ceiling) for ceiling in principal.ceilings
                )
        return False

    def explain(self, principal: Principal, permission: Permission, resource: Resource = CLUSTER) -> Decision:
        """Return the decision with its reason."""
        what = f"{permission.title} on {_name_of(resource)}"
        if principal.type is PrincipalType.BROKER:
            return Decision(
                self.allows(principal, permission, resource), "brokers have the permission BrokerInternal only"
            )
        suspended = [subject for subject in principal.subjects if subject in self.suspended]
        if suspended:
            return Decision(False, f"{suspended[0]} is suspended")
        instead: list[str] = []
        for subject in principal.subjects:
            held = self._held.get(subject)
            for binding in held.bindings if held is not None else ():
                gives = self._permissions(binding)
                source = f"{', '.join(binding.roles)} ({binding.id}, {binding.scope})"
                if permission in gives and binding.scope.covers(resource):
                    if self.allows(principal, permission, resource):
                        return Decision(True, f"{source} grants {what}")
                    return Decision(
                        False, f"{source} grants {what}, but the credentials are limited to fewer permissions"
                    )
                if binding.scope.covers(resource):
                    instead.append(f"{source} grants {', '.join(gives.titles) or 'nothing'}")
        return Decision(False, "; ".join([f"no binding grants {what}", *instead]))

    def visible(self, principal: Principal, permission: Permission, resources: Iterable[Resource]) -> list[Resource]:
        """Return the resources on which a principal has a permission."""
        return [each for each in resources if self.allows(principal, permission, each)]

    def check_may_grant(self, principal: Principal, roles: Iterable[str], scope: Scope) -> None:
        """Check that a principal may bind roles within a scope: requires ManageSecurity and all their permissions.

        Raises:
            InvalidArgumentError: there is no such role.
            PermissionDeniedError: the principal lacks one of these permissions.
        """
        wanted = Permission.MANAGE_SECURITY
        for name in roles:
            role = self._roles.get(name)
            if role is None:
                raise InvalidArgumentError(f"there is no role {name!r}")
            wanted |= role.permissions
        lacks = wanted & ~self._held_within(principal, scope)
        if lacks:
            raise PermissionDeniedError(
                f"{principal} cannot grant permissions within {scope} that it lacks there: {', '.join(lacks.titles)}"
            )

    def _held_within(self, principal: Principal, scope: Scope) -> Permission:
        """Return the permissions that a principal has on everything a scope covers."""
        if any(subject in self.suspended for subject in principal.subjects):
            return _NOTHING
        found = _NOTHING
        for subject in principal.subjects:
            held = self._held.get(subject)
            for binding in held.bindings if held is not None else ():
                if binding.scope.contains(scope):
                    found |= self._permissions(binding)
        for ceiling in principal.ceilings:
            allowed = _NOTHING
            for grant in ceiling:
                if grant.scope.contains(scope):
                    allowed |= grant.permissions
            found &= allowed
        return found


def _names_of(resource: Resource) -> tuple[tuple[ScopeKind, str], ...]:
    """Return the names by which grants may refer to a resource, or to its parents."""
    kind, name = resource
    found = [(kind, name)]
    if kind is ScopeKind.SUBSCRIPTION:
        found.append((ScopeKind.TOPIC, name.partition("#")[0]))
    if kind is not ScopeKind.NAMESPACE and name.startswith("/"):
        found.append((ScopeKind.NAMESPACE, name[1:].partition("/")[0]))
    return tuple(found)


def _name_of(resource: Resource) -> str:
    return "the cluster" if resource.kind is ScopeKind.CLUSTER else str(resource)
