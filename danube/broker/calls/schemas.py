"""The unary calls of the schema registry: a table of paths and operations.

The operations are loaded by the first call, because most brokers never get one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from danube.model import schema_api as api
from danube.model.schema_api import SchemaMethod
from danube.wire import Context, Method, Service

if TYPE_CHECKING:
    from danube.broker.operations.schemas import SchemaOperations

__all__ = ["schema_calls"]


def schema_calls(schemas: Callable[[], SchemaOperations]) -> Service:
    """Return the methods, by path.

    Args:
        schemas: returns the operations.
    """
    table: list[tuple[str, str, type]] = [
        (SchemaMethod.REGISTER, "register", api.RegisterSchema),
        (SchemaMethod.GET, "get", api.GetSchema),
        (SchemaMethod.VERSION, "get_version", api.GetSchemaVersion),
        (SchemaMethod.FIND, "find", api.FindSchema),
        (SchemaMethod.SUBJECT, "show", api.ShowSubject),
        (SchemaMethod.SUBJECTS, "list_subjects", api.ListSubjects),
        (SchemaMethod.CHECK, "check", api.CheckSchema),
        (SchemaMethod.DELETE, "delete", api.DeleteSchema),
        (SchemaMethod.SET_MODE, "set_mode", api.SetSchemaMode),
        (SchemaMethod.SET_COMPATIBILITY, "set_compatibility", api.SetCompatibility),
        (SchemaMethod.PURGE, "purge", api.PurgeSchema),
        (SchemaMethod.BIND, "bind", api.BindSchema),
    ]
    return {path: _method(path, name, request, schemas) for path, name, request in table}


def _method(path: str, name: str, request_type: type, schemas: Callable[[], SchemaOperations]) -> Method:
    def handler(request: Any, _context: Context) -> Awaitable[Any]:
        answer: Awaitable[Any] = getattr(schemas(), name)(request)
        return answer

    return Method(path=path, kind="unary", handler=handler, request_type=request_type)
