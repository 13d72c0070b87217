"""``danube_admin.SecurityAdmin``: roles and bindings, for upstream's tools.

Creating replaces. A caller's ``system`` is ignored: the built-in roles are the system roles. Bindings of groups, with a
prefix, or within a subscription or a schema subject are shown in the same form; upstream's tools know no such bindings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from danube.compat.admin_methods import methods
from danube.compat.proto import danube_admin_pb2 as pb
from danube.model.errors import InvalidArgumentError, NotFoundError
from danube.model.security_api import BindingRow, DropBinding, DropRole, ListBindings, PutBinding, PutRole, RoleRow
from danube.wire import Context, Service

if TYPE_CHECKING:
    from danube.broker.faces import Served

__all__ = ["SecurityAdmin"]

_TYPES: Final = {"user": "user", "service_account": "service"}
_SHOWN_TYPES: Final = {"service": "service_account"}
_SCOPES: Final = ("cluster", "namespace", "topic")


class SecurityAdmin:
    """Handlers of the service."""

    def __init__(self, broker: Served) -> None:
        self._broker = broker

    def service(self) -> Service:
        """Return the methods, by path."""
        return methods(
            "SecurityAdmin",
            {
                "CreateRole": self.create_role,
                "GetRole": self.get_role,
                "ListRoles": self.list_roles,
                "DeleteRole": self.delete_role,
                "CreateBinding": self.create_binding,
                "GetBinding": self.get_binding,
                "ListBindings": self.list_bindings,
                "ListAllBindings": self.list_all_bindings,
                "DeleteBinding": self.delete_binding,
            },
        )

    # --- Roles

    async def create_role(self, request: pb.CreateRoleRequest, context: Context) -> pb.CreateRoleResponse:
        """Add or replace a role.

        Raises:
            InvalidArgumentError: the role or its name is missing or invalid, or a permission is unknown.
            FailedPreconditionError: it is built in.
        """
        if not request.HasField("role") or not request.role.name:
            raise InvalidArgumentError("the role, or its name, is missing")
        role = PutRole(request.role.name, list(request.role.permissions))
        await self._broker.operations.security.put_role(self._broker.caller(context), role)
        return pb.CreateRoleResponse(success=True)

    async def get_role(self, request: pb.GetRoleRequest, context: Context) -> pb.GetRoleResponse:
        """Return a role.

        Raises:
            InvalidArgumentError: the name is missing.
            NotFoundError: there is no such role.
        """
        _required("name", request.name)
        for row in (await self._broker.operations.security.list_roles(self._broker.caller(context))).roles:
            if row.name == request.name:
                return pb.GetRoleResponse(role=_role(row))
        raise NotFoundError(f"there is no role {request.name!r}")

    async def list_roles(self, _request: pb.Empty, context: Context) -> pb.ListRolesResponse:
        """Return all roles."""
        found = await self._broker.operations.security.list_roles(self._broker.caller(context))
        return pb.ListRolesResponse(roles=[_role(row) for row in found.roles])

    async def delete_role(self, request: pb.DeleteRoleRequest, context: Context) -> pb.DeleteRoleResponse:
        """Remove a role.

        Raises:
            InvalidArgumentError: the name is missing.
            NotFoundError: there is no such role.
            FailedPreconditionError: it is built in, or in use.
        """
        _required("name", request.name)
        await self._broker.operations.security.drop_role(self._broker.caller(context), DropRole(request.name))
        return pb.DeleteRoleResponse(success=True)

    # --- Bindings

    async def create_binding(self, request: pb.CreateBindingRequest, context: Context) -> pb.CreateBindingResponse:
        """Add or replace a binding.

        Raises:
            InvalidArgumentError: a field is missing or invalid, or a role is unknown.
            FailedPreconditionError: it would replace the last administrator.
        """
        if not request.HasField("binding"):
            raise InvalidArgumentError("the binding is missing")
        binding = request.binding
        _required("id", binding.id)
        _required("principal_name", binding.principal_name)
        kind = _TYPES.get(binding.principal_type)
        if kind is None:
            raise InvalidArgumentError(
                f"the principal_type {binding.principal_type!r} is unknown; use user or service_account"
            )
        subject, scope = f"{kind}:{binding.principal_name}", _scope(binding.scope, binding.resource_name)
        put = PutBinding(subject, list(binding.role_names), scope, binding.id)
        await self._broker.operations.security.put_binding(self._broker.caller(context), put)
        return pb.CreateBindingResponse(success=True)

    async def get_binding(self, request: pb.GetBindingRequest, context: Context) -> pb.GetBindingResponse:
        """Return a binding.

        Raises:
            InvalidArgumentError: a field is missing or invalid.
            NotFoundError: there is no such binding within this scope.
        """
        scope = _scope(request.scope, request.resource_name)
        return pb.GetBindingResponse(binding=_binding(await self._find(request.binding_id, scope, context)))

    async def _find(self, binding_id: str, scope: str, context: Context) -> BindingRow:
        _required("binding_id", binding_id)
        found = await self._broker.operations.security.show_binding(self._broker.caller(context), binding_id)
        if found.scope != scope:
            raise NotFoundError(f"there is no binding {binding_id!r} within {scope}")
        return found

    async def list_bindings(self, request: pb.ListBindingsRequest, context: Context) -> pb.ListBindingsResponse:
        """Return the bindings with exactly one scope.

        Raises:
            InvalidArgumentError: the scope is invalid.
        """
        return await self._list(_scope(request.scope, request.resource_name), context)

    async def list_all_bindings(self, _request: pb.Empty, context: Context) -> pb.ListBindingsResponse:
        """Return all bindings."""
        return await self._list("", context)

    async def _list(self, scope: str, context: Context) -> pb.ListBindingsResponse:
        response, after, more = pb.ListBindingsResponse(), "", True
        while more:
            page = await self._broker.operations.security.list_bindings(
                self._broker.caller(context), ListBindings(scope=scope, after=after)
            )
            response.bindings.extend(_binding(row) for row in page.bindings)
            more = page.more
            after = page.bindings[-1].id if page.bindings else ""
        return response

    async def delete_binding(self, request: pb.DeleteBindingRequest, context: Context) -> pb.DeleteBindingResponse:
        """Remove a binding.

        Raises:
            InvalidArgumentError: a field is missing or invalid.
            NotFoundError: there is no such binding within this scope.
            FailedPreconditionError: it is that of the last administrator.
        """
        scope = _scope(request.scope, request.resource_name)
        found = await self._find(request.binding_id, scope, context)
        await self._broker.operations.security.drop_binding(self._broker.caller(context), DropBinding(found.id))
        return pb.DeleteBindingResponse(success=True)


def _required(name: str, value: str) -> None:
    if not value:
        raise InvalidArgumentError(f"the {name} is missing")


def _scope(kind: str, resource: str) -> str:
    """Return a scope in our notation; a namespace may have a slash before it."""
    if kind not in _SCOPES:
        raise InvalidArgumentError(f"the scope {kind!r} is unknown; use one of: {', '.join(_SCOPES)}")
    if kind == "cluster":
        return kind
    _required(f"resource_name of the scope {kind}", resource)
    from danube.security.scopes import parse_scope

    return str(parse_scope(f"{kind}:{resource}"))


def _role(row: RoleRow) -> pb.RoleDefinition:
    return pb.RoleDefinition(name=row.name, permissions=row.permissions, system=row.built_in)


def _binding(row: BindingRow) -> pb.BindingDefinition:
    kind, _, name = row.subject.partition(":")
    scope, _, resource = row.scope.partition(":")
    return pb.BindingDefinition(
        id=row.id,
        principal_type=_SHOWN_TYPES.get(kind, kind),
        principal_name=name,
        role_names=row.roles,
        scope=scope,
        resource_name=resource,
    )
