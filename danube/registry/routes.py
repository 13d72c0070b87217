"""The table of routes, and which route a request means. Pure.

To add a route, add a row and its handler. Each row names the row of the table of rights by which it is judged.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from danube.model.registry_api import RegistryMethod
from danube.registry import changing, listing, proposing, reading, settings
from danube.registry.requests import Call
from danube.schema.book import Book, Change, Entry, Proposal, Registered
from danube.schema.examine import Finding

__all__ = ["ROUTES", "Changes", "Checks", "Finds", "Matched", "Reads", "Registers", "Route", "match"]


class Reads(NamedTuple):
    """The answer is in the registry's state."""

    answer: Callable[[Book, Call], Any]
    stable: bool = False
    """Whether an answer stays right, so that an outdated state will do unless it raises NotFoundError."""


class Changes(NamedTuple):
    """The request changes the registry: the answer, and the change."""

    prepare: Callable[[Book, Call], tuple[Any, Change]]


class Finds(NamedTuple):
    """The request has a schema, which is looked for among the versions of a subject."""

    begin: Callable[[Call], tuple[Proposal, bool]]
    answer: Callable[[Book, Call, Entry | None], Any]


class Checks(NamedTuple):
    """The request has a schema, which is compared with versions of a subject."""

    begin: Callable[[Call], tuple[Proposal, int | None]]
    answer: Callable[[Call, Finding], Any]


class Registers(NamedTuple):
    """The request has a schema to register."""

    begin: Callable[[Call], proposing.Registration]
    answer: Callable[[Book, Call, Registered], Any]


Handler: TypeAlias = "Reads | Changes | Finds | Checks | Registers"


class Route(NamedTuple):
    """One row."""

    method: str
    template: str
    """Segments in braces are parameters."""
    right: str
    """The row of the table of rights."""
    handler: Handler
    plain: bool = False
    """Whether the answer is text instead of JSON."""

    @property
    def segments(self) -> tuple[str, ...]:
        """The segments of the template; none for ``/``."""
        return tuple(self.template[1:].split("/")) if self.template != "/" else ()

    @property
    def of_number(self) -> bool:
        """Whether it names a schema by its number or GUID."""
        return self.template.startswith("/schemas/")


_M = RegistryMethod


def _get(
    template: str, right: str, answer: Callable[[Book, Call], Any], *, stable: bool = False, plain: bool = False
) -> Route:
    return Route("GET", template, right, Reads(answer, stable), plain)


ROUTES: Final = (
    # The registry
    _get("/", _M.INFO, reading.nothing, stable=True),
    _get("/schemas/types", _M.INFO, reading.types, stable=True),
    _get("/contexts", _M.INFO, reading.contexts, stable=True),
    _get("/v1/metadata/id", _M.INFO, reading.cluster_id, stable=True),
    _get("/v1/metadata/version", _M.INFO, reading.version_of_server, stable=True),
    _get("/associations/resources/{namespace}/{name}", _M.INFO, reading.associations, stable=True),
    # Subjects and versions
    _get("/subjects", _M.FIND, listing.subjects),
    Route("POST", "/subjects/{subject}", _M.READ, Finds(proposing.to_find, proposing.found)),
    Route("DELETE", "/subjects/{subject}", _M.DELETE, Changes(changing.delete_subject)),
    _get("/subjects/{subject}/metadata", _M.READ, reading.by_metadata),
    _get("/subjects/{subject}/versions", _M.READ, listing.versions),
    Route(
        "POST",
        "/subjects/{subject}/versions",
        _M.REGISTER,
        Registers(proposing.to_register, proposing.registered),
    ),
    _get("/subjects/{subject}/versions/{version}", _M.READ, reading.one_version),
    Route("DELETE", "/subjects/{subject}/versions/{version}", _M.DELETE, Changes(changing.delete_version)),
    _get("/subjects/{subject}/versions/{version}/schema", _M.READ, reading.text_of_version, plain=True),
    _get("/subjects/{subject}/versions/{version}/referencedby", _M.READ, reading.referrers),
    # Schemas
    _get("/schemas", _M.FIND, listing.schemas),
    _get("/schemas/ids/{id}", _M.FIND, reading.by_number, stable=True),
    _get("/schemas/ids/{id}/schema", _M.FIND, reading.text_of_number, stable=True, plain=True),
    _get("/schemas/ids/{id}/subjects", _M.FIND, reading.subjects_of_number),
    _get("/schemas/ids/{id}/versions", _M.FIND, reading.carriers),
    _get("/schemas/guids/{guid}", _M.FIND, reading.by_guid, stable=True),
    _get("/schemas/guids/{guid}/ids", _M.FIND, reading.ids_of_guid, stable=True),
    # Compatibility
    Route(
        "POST",
        "/compatibility/subjects/{subject}/versions",
        _M.READ,
        Checks(proposing.to_check, proposing.checked),
    ),
    Route(
        "POST",
        "/compatibility/subjects/{subject}/versions/{version}",
        _M.READ,
        Checks(proposing.to_check, proposing.checked),
    ),
    # Settings
    _get("/config", _M.INFO, settings.show_config),
    Route("PUT", "/config", _M.CONFIGURE_ALL, Changes(settings.put_config)),
    Route("DELETE", "/config", _M.CONFIGURE_ALL, Changes(settings.drop_config)),
    _get("/config/{subject}", _M.READ, settings.show_config),
    Route("PUT", "/config/{subject}", _M.CONFIGURE, Changes(settings.put_config)),
    Route("DELETE", "/config/{subject}", _M.CONFIGURE, Changes(settings.drop_config)),
    _get("/mode", _M.INFO, settings.show_mode),
    Route("PUT", "/mode", _M.CONFIGURE_ALL, Changes(settings.put_mode)),
    Route("DELETE", "/mode", _M.CONFIGURE_ALL, Changes(settings.drop_mode)),
    _get("/mode/{subject}", _M.READ, settings.show_mode),
    Route("PUT", "/mode/{subject}", _M.CONFIGURE, Changes(settings.put_mode)),
    Route("DELETE", "/mode/{subject}", _M.CONFIGURE, Changes(settings.drop_mode)),
)


def _by_length() -> Mapping[int, list[tuple[tuple[str, ...], Route]]]:
    found: dict[int, list[tuple[tuple[str, ...], Route]]] = defaultdict(list)
    for route in ROUTES:
        found[len(route.segments)].append((route.segments, route))
    return found


_BY_LENGTH: Final = _by_length()


class Matched(NamedTuple):
    """What a request means."""

    route: Route | None
    """None: no route has this method."""
    path: Mapping[str, str]
    """Parameters of the path."""
    methods: tuple[str, ...]
    """Methods of the routes with this path; empty: there is none."""


def match(method: str, segments: tuple[str, ...]) -> Matched:
    """Return what a request means.

    Args:
        method: ``GET``.
        segments: of the path, decoded after it was split.
    """
    methods: list[str] = []
    for wanted, route in _BY_LENGTH.get(len(segments), ()):
        if all(each.startswith("{") or each == given for each, given in zip(wanted, segments, strict=True)):
            if route.method == method:
                names = zip(wanted, segments, strict=True)
                return Matched(route, {each[1:-1]: given for each, given in names if each.startswith("{")}, (method,))
            methods.append(route.method)
    return Matched(None, {}, tuple(methods))
