"""What of an answer with a list the caller may see: where the rows are, and which resource each one is. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

from danube.model import api
from danube.model.job_api import JobMethod
from danube.model.overview_api import OverviewMethod
from danube.model.query_api import QueryMethod
from danube.model.schema_api import SchemaMethod
from danube.security.scopes import CLUSTER, Resource

__all__ = ["LISTS", "filtered"]


class _List(NamedTuple):
    field: str
    """The field of the answer with the rows."""
    resource: Callable[[Any, Any], Resource]
    """Returns the resource of a row, for the request and the row."""


def _namespace(_request: Any, row: Any) -> Resource:
    return Resource.namespace(row)


def _topic(_request: Any, row: Any) -> Resource:
    return Resource.topic(row)


_ADMIN: Final = "/danube_admin."

LISTS: Final = {
    api.Method.LIST_TOPICS: _List("topics", lambda _, row: Resource.topic(row.topic)),
    api.Method.LIST_NAMESPACES: _List("namespaces", _namespace),
    api.Method.LIST_SUBSCRIPTIONS: _List(
        "subscriptions", lambda _, row: Resource.subscription(row.topic, row.subscription)
    ),
    JobMethod.LIST: _List("jobs", lambda _, row: Resource.topic(row.topic)),
    OverviewMethod.SUBSCRIPTIONS: _List(
        "subscriptions", lambda _, row: Resource.subscription(row.topic, row.subscription)
    ),
    OverviewMethod.DELIVERIES: _List("deliveries", lambda _, row: Resource.subscription(row.topic, row.subscription)),
    OverviewMethod.FINDINGS: _List("findings", lambda _, row: Resource.topic(row.topic) if row.topic else CLUSTER),
    QueryMethod.NAMES: _List("names", _topic),
    SchemaMethod.SUBJECTS: _List("subjects", lambda _, row: Resource.schema(row.subject)),
    f"{_ADMIN}BrokerAdmin/ListNamespaces": _List("namespaces", _namespace),
    f"{_ADMIN}NamespaceAdmin/GetNamespaceTopics": _List("topics", _topic),
    f"{_ADMIN}TopicAdmin/ListNamespaceTopics": _List("topics", lambda _, row: Resource.topic(row.name)),
    f"{_ADMIN}TopicAdmin/ListBrokerTopics": _List("topics", lambda _, row: Resource.topic(row.name)),
    f"{_ADMIN}TopicAdmin/ListSubscriptions": _List(
        "subscriptions", lambda request, row: Resource.subscription(request.name, row)
    ),
    "/danube_schema.SchemaRegistry/ListSubjects": _List("subjects", lambda _, row: Resource.schema(row.subject)),
}
"""By path, the answers of all paths whose refusal is FILTERED."""


def filtered(path: str, request: Any, answer: Any, sees: Callable[[Resource], bool]) -> Any:
    """Return an answer with the rows that its caller may see.

    Args:
        path: of the call, one of :data:`LISTS`.
        request: the decoded request.
        answer: a struct, which is not changed, or a message of protocol buffers, which is.
        sees: whether the caller may see a resource.
    """
    field, resource = LISTS[path]
    rows = getattr(answer, field)
    kept = [row for row in rows if sees(resource(request, row))]
    if isinstance(answer, msgspec.Struct):
        return msgspec.structs.replace(answer, **{field: kept})
    del rows[:]
    rows.extend(kept)
    return answer
