"""Decides whether a principal has a permission on a resource.

Grants only add permissions: there are no deny rules. A decision looks up the principal's grants by the names of the
resource, so it takes as long with ten thousand bindings as with ten, and is cached until anything changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from danube.model.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError, PermissionDeniedError
from danube.security.decisions import Decision, Reason, Source, name_of
from danube.security.permissions import Permission
from danube.security.roles import BUILT_IN_ROLES, Binding, Grant, Principal, PrincipalType, Role
from danube.security.scopes import CLUSTER, Resource, Scope, ScopeKind, scope_of

__all__ = ["Effective", "Rights"]

_NOTHING = Permission(0)
_MOST_DECISIONS = 100_000
"""Number of cached decisions; beyond it the cache is cleared."""
_MOST_ELSEWHERE = 10
"""Bindings for other resources that an explanation names."""
_MOST_NAMED = 10
"""Bindings that an error names."""


class _Held:
    """Permissions of one subject, indexed by kind and name (or prefix) of the scope."""

    __slots__ = ("_counts", "_given", "bindings", "everywhere", "exact", "prefixes")

    def __init__(self) -> None:
        self.bindings: dict[str, Binding] = {}
        # Sets of permissions as plain integers: operators of flags cost a microsecond each.
        self.everywhere = 0
        self.exact: dict[tuple[ScopeKind, str], int] = {}
        self.prefixes: dict[ScopeKind, dict[int, dict[str, int]]] = {}
        """Permissions by kind and by length of the prefix."""
        self._given: dict[str, int] = {}
        """Permissions by binding, as they were added."""
        self._counts: dict[Scope, Counter[int]] = {}
        """How many bindings give the same permissions, by scope: what one gives may be given by another one, too."""

    def add(self, binding: Binding, given: Permission) -> None:
        """Add a binding whose id is not there."""
        permissions = int(given)
        self.bindings[binding.id] = binding
        self._given[binding.id] = permissions
        counts = self._counts.setdefault(binding.scope, Counter())
        counts[permissions] += 1
        if counts[permissions] == 1:
            self._index(binding.scope, counts)

    def remove(self, binding_id: str) -> None:
        """Remove a binding, whatever else there is within its scope."""
        scope = self.bindings.pop(binding_id).scope
        counts, permissions = self._counts[scope], self._given.pop(binding_id)
        counts[permissions] -= 1
        if not counts[permissions]:
            del counts[permissions]
            self._index(scope, counts)
            if not counts:
                del self._counts[scope]

    def _index(self, scope: Scope, counts: Counter[int]) -> None:
        """Enter what is given within a scope; an empty entry is removed."""
        permissions = 0
        for each in counts:
            permissions |= each
        if scope.kind is ScopeKind.CLUSTER:
            self.everywhere = permissions
        elif scope.is_prefix:
            lengths = self.prefixes.setdefault(scope.kind, {})
            names = lengths.setdefault(len(scope.name), {})
            names[scope.name] = permissions
            if not counts:
                del names[scope.name]
                if not names:
                    del lengths[len(scope.name)]
        else:
            self.exact[scope.kind, scope.name] = permissions
            if not counts:
                del self.exact[scope.kind, scope.name]

    def on(self, names: Iterable[tuple[ScopeKind, str]]) -> int:
        found = self.everywhere
        for kind, name in names:
            found |= self.exact.get((kind, name), 0)
            for length, prefixes in self.prefixes.get(kind, {}).items():
                found |= prefixes.get(name[:length], 0)
        return found


_WRITES: Final = Permission.PRODUCE | Permission.MANAGE_TOPIC | Permission.MANAGE_NAMESPACE
"""What only brokers may do in the namespace ``system``: an administrator does not change the audit log."""


class Effective(NamedTuple):
    """Permissions that a principal has within a scope."""

    permissions: Permission
    scope: Scope
    binding: Binding
    """The binding that grants them."""


class Rights:
    """Roles and bindings of a cluster, and decisions based on them.

    Attributes:
        generation: incremented at each change; streams allowed under an older generation must be checked again.
        suspended: subjects that have no permissions, regardless of their bindings.
    """

    def __init__(self) -> None:
        self.generation = 0
        self.suspended: set[str] = set()
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

    def bindings_of(self, subject: str) -> Mapping[str, Binding]:
        """Return the bindings of a subject by id."""
        held = self._held.get(subject)
        return {} if held is None else held.bindings

    # ------------------------------------------------------------------------------------------------------ changes

    def put_role(self, role: Role) -> None:
        """Add a role, or replace the role with the same name.

        Raises:
            FailedPreconditionError: the role is built in.
        """
        if role.name in BUILT_IN_ROLES:
            raise FailedPreconditionError(f"role {role.name!r} is built in and cannot be changed; choose another name")
        self.set_role(role.name, role)

    def drop_role(self, name: str) -> None:
        """Remove a role.

        Raises:
            NotFoundError: there is no such role.
            FailedPreconditionError: it is built in, or bindings refer to it.
        """
        self.check_drop_role(name)
        self.set_role(name, None)

    def check_drop_role(self, name: str) -> None:
        """Check that a role can be removed; raises what :meth:`drop_role` does."""
        if name not in self._roles:
            raise NotFoundError(f"there is no role {name!r}")
        if name in BUILT_IN_ROLES:
            raise FailedPreconditionError(f"role {name!r} is built in and cannot be deleted")
        users = sorted(each.id for each in self._bindings.values() if name in each.roles)
        if users:
            named = ", ".join(users[:_MOST_NAMED]) + (
                f" and {len(users) - _MOST_NAMED} more" * (len(users) > _MOST_NAMED)
            )
            raise FailedPreconditionError(f"role {name!r} is in use; delete these bindings first: {named}")

    def put_binding(self, binding: Binding) -> None:
        """Add a binding, or replace the binding with the same id.

        Raises:
            InvalidArgumentError: it names no roles, or an unknown role.
            FailedPreconditionError: it would replace the last binding that grants the role admin on the cluster.
        """
        self.check_binding(binding)
        self.set_binding(binding.id, binding)

    def check_binding(self, binding: Binding) -> None:
        """Check that a binding can be put; raises what :meth:`put_binding` does."""
        missing = [name for name in binding.roles if name not in self._roles]
        if missing or not binding.roles:
            raise InvalidArgumentError(f"binding {binding.id!r} names unknown roles: {', '.join(missing) or 'none'}")
        replaced = self._bindings.get(binding.id)
        if replaced is not None:
            self._check_not_last_admin(replaced, binding)

    def drop_binding(self, binding_id: str) -> None:
        """Remove a binding.

        Raises:
            NotFoundError: there is no such binding.
            FailedPreconditionError: it is the last binding that grants the role admin on the cluster.
        """
        self.check_drop(binding_id)
        self.set_binding(binding_id, None)

    def check_drop(self, binding_id: str) -> Binding:
        """Check that a binding can be removed, and return it; raises what :meth:`drop_binding` does."""
        binding = self._bindings.get(binding_id)
        if binding is None:
            raise NotFoundError(f"there is no binding {binding_id!r}")
        self._check_not_last_admin(binding, None)
        return binding

    def check_suspension(self, subject: str) -> None:
        """Check that another subject can administer the cluster when this one is suspended.

        Raises:
            FailedPreconditionError: it has the last binding that grants the role admin on the cluster.
        """
        gone = {subject, *self.suspended}
        if not any(self._makes_admin(each) and each.subject not in gone for each in self._bindings.values()):
            raise FailedPreconditionError(
                f"{subject} has the last binding that grants the role admin on the cluster; add another one first"
            )

    # --- As the metadata say, without checks

    def set_role(self, name: str, role: Role | None) -> None:
        """Set or remove a role. Built-in roles stay as they are; bindings to a missing role grant nothing by it."""
        if name in BUILT_IN_ROLES:
            return
        if role is None:
            self._roles.pop(name, None)
        else:
            self._roles[name] = role
        for subject in {each.subject for each in self._bindings.values() if name in each.roles}:
            self._gather(subject, self._held[subject].bindings)
        self._changed()

    def set_binding(self, binding_id: str, binding: Binding | None) -> None:
        """Set or remove a binding."""
        replaced = self._bindings.pop(binding_id, None)
        if replaced is not None:
            held = self._held[replaced.subject]
            held.remove(binding_id)
            if not held.bindings:
                del self._held[replaced.subject]
        if binding is not None:
            self._bindings[binding_id] = binding
            self._add(binding)
        self._changed()

    def suspend(self, subjects: Iterable[str]) -> None:
        """Replace the set of suspended subjects."""
        self.suspended = set(subjects)
        self._changed()

    def set_suspended(self, subject: str, suspended: bool) -> None:
        """Add a subject to the suspended ones, or remove it."""
        if suspended != (subject in self.suspended):
            (self.suspended.add if suspended else self.suspended.discard)(subject)
            self._changed()

    def _changed(self) -> None:
        self.generation += 1
        self._decided.clear()

    def _gather(self, subject: str, bindings: Mapping[str, Binding]) -> None:
        """Recompute the permissions of a subject from all of its bindings."""
        held = _Held()
        for binding in bindings.values():
            held.add(binding, self._permissions(binding))
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
            self._add(binding)
        self._changed()

    def _add(self, binding: Binding) -> None:
        self._held.setdefault(binding.subject, _Held()).add(binding, self._permissions(binding))

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
        if not self._makes_admin(old) or old.subject in self.suspended:
            return
        if new is not None and self._makes_admin(new) and new.subject not in self.suspended:
            return
        others = (each for each in self._bindings.values() if each.id != old.id)
        if not any(self._makes_admin(each) and each.subject not in self.suspended for each in others):
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

    def is_suspended(self, principal: Principal) -> bool:
        """Whether a principal or one of its groups is suspended."""
        return bool(self.suspended) and any(subject in self.suspended for subject in principal.subjects)

    def require(self, principal: Principal, permission: Permission, resource: Resource = CLUSTER) -> None:
        """Check that a principal has a permission on a resource.

        Raises:
            PermissionDeniedError: it does not have it. The message names principal, permission and resource only.
        """
        if not self.allows(principal, permission, resource):
            raise PermissionDeniedError(
                f"{principal} lacks {permission.title} on {name_of(resource)}; administrators see why with"
                f" 'danube security explain'"
            )

    def _decide(self, principal: Principal, permission: Permission, resource: Resource) -> bool:
        if principal.type is PrincipalType.BROKER:
            return permission is Permission.BROKER_INTERNAL
        if self.is_suspended(principal) or _is_protected(permission, resource):
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
        allowed = self.allows(principal, permission, resource)
        if principal.type is PrincipalType.BROKER:
            return Decision(allowed, Reason.BROKER, permission, resource)
        for subject in principal.subjects:
            if subject in self.suspended:
                return Decision(False, Reason.SUSPENDED, permission, resource, suspended=subject)
        if _is_protected(permission, resource):
            return Decision(False, Reason.PROTECTED, permission, resource)
        others: list[Source] = []
        elsewhere: list[Source] = []
        for source in self.sources(principal):
            covers = source.binding.scope.covers(resource)
            if permission in source.permissions and covers:
                return Decision(allowed, Reason.GRANTED if allowed else Reason.LIMITED, permission, resource, source)
            if covers:
                others.append(source)
            elif permission in source.permissions:
                elsewhere.append(source)
        return Decision(
            False,
            Reason.NOT_GRANTED,
            permission,
            resource,
            others=tuple(others),
            elsewhere=tuple(elsewhere[:_MOST_ELSEWHERE]),
        )

    def sources(self, principal: Principal) -> Iterator[Source]:
        """Yield the bindings of a principal and of its groups with what they grant, regardless of ceilings."""
        for subject in principal.subjects:
            held = self._held.get(subject)
            for binding in held.bindings.values() if held is not None else ():
                yield Source(binding, self._permissions(binding))

    def touches(self, principal: Principal, permission: Permission, resource: Resource = CLUSTER) -> bool:
        """Whether a principal may have a permission on a resource or on something in it.

        True for each namespace in which it has the permission on a topic, for example.
        """
        if principal.type is PrincipalType.BROKER:
            return permission is Permission.BROKER_INTERNAL
        place = scope_of(resource)
        return any(
            permission in each.permissions and each.scope.overlap(place) is not None
            for each in self.effective(principal)
        )

    def effective(self, principal: Principal) -> Iterator[Effective]:
        """Yield all permissions of a principal, limited by its credentials: none if it is suspended, or a broker."""
        if self.is_suspended(principal):
            return
        for source in self.sources(principal):
            found = [Grant(source.permissions, source.binding.scope)]
            for ceiling in principal.ceilings:
                found = list(_within(found, ceiling))
            for permissions, scope in found:
                yield Effective(permissions, scope, source.binding)

    def visible(self, principal: Principal, permission: Permission, resources: Iterable[Resource]) -> list[Resource]:
        """Return the resources on which a principal has a permission; of namespaces, those that it touches."""
        return [
            each
            for each in resources
            if self.allows(principal, permission, each)
            or (each.kind is ScopeKind.NAMESPACE and self.touches(principal, permission, each))
        ]

    def check_may_grant(self, principal: Principal, roles: Iterable[str], scope: Scope) -> None:
        """Check that a principal may bind roles within a scope: requires ManageSecurity and all their permissions.

        Raises:
            InvalidArgumentError: there is no such role.
            PermissionDeniedError: the principal lacks one of these permissions.
        """
        wanted = _NOTHING
        for name in roles:
            role = self._roles.get(name)
            if role is None:
                raise InvalidArgumentError(f"there is no role {name!r}")
            wanted |= role.permissions
        self.check_may_give(principal, Grant(wanted, scope))

    def check_may_give(self, principal: Principal, grant: Grant) -> None:
        """Check that a principal may give permissions within a scope: requires ManageSecurity and all of them there.

        Raises:
            PermissionDeniedError: the principal lacks one of these permissions.
        """
        lacks = (grant.permissions | Permission.MANAGE_SECURITY) & ~self._held_within(principal, grant.scope)
        if lacks:
            raise PermissionDeniedError(
                f"{principal} cannot grant permissions within {grant.scope} that it lacks there:"
                f" {', '.join(lacks.titles)}"
            )

    def manages(self, principal: Principal, scope: Scope) -> bool:
        """Whether a principal has ManageSecurity on everything a scope covers."""
        return Permission.MANAGE_SECURITY in self._held_within(principal, scope)

    def manager(self, principal: Principal) -> Callable[[Scope], bool]:
        """Return a function that tells what :meth:`manages` does, quickly for many scopes, until something changes."""
        if self.is_suspended(principal):
            return lambda _: False
        wanted = Permission.MANAGE_SECURITY
        held = {
            binding.scope
            for subject in principal.subjects
            for binding in self.bindings_of(subject).values()
            if wanted in self._permissions(binding)
        }
        parts = [held, *({each.scope for each in one if wanted in each.permissions} for one in principal.ceilings)]
        if not all(parts):
            return lambda _: False
        return lambda scope: all(any(each.contains(scope) for each in part) for part in parts)

    def check_may_change(self, principal: Principal, role: Role) -> None:
        """Check that a principal may put a role: requires ManageSecurity on the cluster.

        Where the role is bound already, the change grants its permissions, so that all of them are required there.

        Raises:
            PermissionDeniedError: the principal lacks one of these permissions.
        """
        self.check_may_give(principal, Grant(_NOTHING, Scope(ScopeKind.CLUSTER, "")))
        for binding in self._bindings.values():
            if role.name in binding.roles:
                self.check_may_give(principal, Grant(role.permissions, binding.scope))

    def _held_within(self, principal: Principal, scope: Scope) -> Permission:
        """Return the permissions that a principal has on everything a scope covers."""
        if self.is_suspended(principal):
            return _NOTHING
        found = _NOTHING
        for subject in principal.subjects:
            held = self._held.get(subject)
            for binding in held.bindings.values() if held is not None else ():
                if binding.scope.contains(scope):
                    found |= self._permissions(binding)
        for ceiling in principal.ceilings:
            allowed = _NOTHING
            for grant in ceiling:
                if grant.scope.contains(scope):
                    allowed |= grant.permissions
            found &= allowed
        return found


def _within(grants: Iterable[Grant], ceiling: Iterable[Grant]) -> Iterator[Grant]:
    for grant in grants:
        for limit in ceiling:
            permissions, scope = grant.permissions & limit.permissions, grant.scope.overlap(limit.scope)
            if permissions and scope is not None:
                yield Grant(permissions, scope)


def _names_of(resource: Resource) -> tuple[tuple[ScopeKind, str], ...]:
    """Return the names by which grants may refer to a resource, or to its parents."""
    kind, name = resource
    found = [(kind, name)]
    if kind is ScopeKind.SUBSCRIPTION:
        found.append((ScopeKind.TOPIC, name.partition("#")[0]))
    if kind is not ScopeKind.NAMESPACE and name.startswith("/"):
        found.append((ScopeKind.NAMESPACE, name[1:].partition("/")[0]))
    return tuple(found)


def _is_protected(permission: Permission, resource: Resource) -> bool:
    """Whether only brokers may do that, whatever is granted."""
    return bool(permission & _WRITES) and resource.is_system
