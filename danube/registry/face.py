"""The face: requests are matched, judged, carried out, and answered as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
import trio

from danube.http import Dialect, Request, Response, check_caller, host_name, shown
from danube.model.errors import ConnectionLostError, DanubeError, InternalError, LimitExceededError
from danube.model.registry_api import RegistryRequest
from danube.registry.errors import CONTENT_TYPE, Failure, failure_of, full, refusal, reworded
from danube.registry.target import registry_target
from danube.wire import Codec, Context, Method, Service
from danube.wire.codec import MSGPACK

if TYPE_CHECKING:
    from danube.broker.faces import Served, ServedRegistry
    from danube.registry.requests import Call
    from danube.registry.routes import Route

__all__ = ["RegistryFace", "face"]

MOST_BODY_BYTES: Final = 4 * 1024 * 1024
"""Largest body of a request, in bytes; enough for the largest schema, however its text is escaped."""
_HEADERS: Final = (("X-Content-Type-Options", "nosniff"), ("Cache-Control", "no-cache"))


class _Work(RegistryRequest, frozen=True, kw_only=True):
    """A request on its way through the gate."""

    of: Request
    row: Any
    """The :class:`~danube.registry.routes.Route`."""
    path: Mapping[str, str]


class RegistryFace:
    """Confluent's REST interface at one broker; a :class:`danube.broker.Face`.

    Most modules are imported with the first request: many brokers never get one.

    Args:
        broker: whose registry it serves.
    """

    http_door: Literal["registry"] = "registry"
    http_dialect = Dialect(registry_target, reworded)

    def __init__(self, broker: Served) -> None:
        self.services: Service = {}
        self.admin_services: Service = {}
        self.codecs: Mapping[str, Codec] = {}
        self.http_headers: Sequence[tuple[str, str]] = _HEADERS
        self._broker = broker
        self._allowed = frozenset(name.lower() for name in broker.runtime.config.http_allowed_hosts)
        self._methods: Service | None = None

    def subscription_of_consumer(self, _consumer_id: int) -> tuple[str, str] | None:
        """Return None: it has no consumers."""
        return None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Return at once: it has no background work."""
        await trio.lowlevel.checkpoint()
        task_status.started()

    async def http(self, request: Request) -> Response:
        """Answer a request."""
        return await self.answer(request, request.target.segments)

    async def answer(self, request: Request, segments: tuple[str, ...]) -> Response:
        """Answer a request whose path has these segments; errors are answers, too.

        Raises:
            InternalError: a bug.
            ConnectionLostError: the caller has gone.
        """
        from danube.registry.routes import match

        refused = self._refused(request)
        if refused is not None:
            return refusal(refused)
        route, path, methods = match(request.method, segments)
        if route is None:
            return _no_route(request, methods)
        try:
            value = await self._judged(request, route, path)
        except (ConnectionLostError, InternalError):
            raise  # for the server, which logs bugs
        except DanubeError as error:
            return refusal(failure_of(error, of_number=route.of_number))
        body = value.encode() if route.plain else msgspec.json.encode(value)
        return Response(200, body, content_type=CONTENT_TYPE)

    def _refused(self, request: Request) -> Failure | None:
        """Return why a request is refused whatever it asks for: browsers, other content types, while starting."""
        allowed = self._allowed
        if self._broker.has_security:
            # A page under a name of its own has no credentials for this server, so that any name will do.
            allowed = allowed | {host_name(request.host)}
        wrong = check_caller(request.method, request.headers, allowed, "https" if request.secure else "http")
        if wrong is not None:
            found = reworded(wrong)
            assert isinstance(found.body, bytes)
            return Failure(wrong.status, wrong.status, msgspec.json.decode(found.body)["message"])
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if request.method != "GET" and kind:
            from danube.registry.requests import MediaTypes

            if kind not in MediaTypes:
                return Failure(415, 415, f"the body has the type {shown(kind)}; send Content-Type: {CONTENT_TYPE}")
        if not self._broker.started:
            return Failure(503, 503, "the broker is starting; try again")
        return None

    async def _judged(self, request: Request, route: Route, path: Mapping[str, str]) -> Any:
        """Carry out a request as a call that is judged and audited like those of other protocols."""
        if self._methods is None:
            self._methods = self._broker.guarded(self._service())
        from danube.registry.requests import unprefixed

        authorization = request.headers.get("authorization")
        context = Context(
            route.right,
            request.peer,
            request.connection_id,
            {} if authorization is None else {"authorization": authorization},
            math.inf,
            MSGPACK,
            request.host,
            secure=request.secure,
            peer_certificate=request.peer_certificate,
        )
        await trio.lowlevel.checkpoint()
        work = _Work(
            route=f"{route.method} {route.template}",
            subject=unprefixed(path.get("subject", "")),
            of=request,
            row=route,
            path=path,
        )
        handler: Any = self._methods[route.right].handler
        return await handler(work, context)

    def _service(self) -> Service:
        from danube.registry.routes import ROUTES

        return {
            path: Method(path=path, kind="unary", handler=self._carried_out, request_type=RegistryRequest)
            for path in {route.right: None for route in ROUTES}
        }

    async def _carried_out(self, work: _Work, _context: Context) -> Any:
        from danube.broker.faces import may_read_schema
        from danube.registry.requests import Call

        body = await work.of.body.read(MOST_BODY_BYTES) if work.row.method in ("POST", "PUT") else b""
        call = Call(
            work.path, work.of.query, body, cluster=self._broker.runtime.config.cluster, visible=may_read_schema
        )
        try:
            return await _value(self._broker.registry, work.row, call)
        except LimitExceededError as error:
            raise full(error) from error


async def _value(registry: ServedRegistry, route: Route, call: Call) -> Any:
    from danube.registry.routes import Changes, Checks, Finds, Reads
    from danube.schema.modes import Policy

    handler = route.handler
    if isinstance(handler, Reads):
        if handler.stable:  # only what is missing needs a question to the metadata
            return await registry.find(lambda book: handler.answer(book, call))
        return await registry.read(lambda book: handler.answer(book, call))
    if isinstance(handler, Changes):
        value, _ = await registry.change_with(lambda book: handler.prepare(book, call))
        return value
    if isinstance(handler, Finds):
        proposal, deleted = handler.begin(call)
        entry = await registry.lookup(proposal, deleted=deleted)
        return handler.answer(registry.book, call, entry)
    if isinstance(handler, Checks):
        proposal, version = handler.begin(call)
        return handler.answer(call, await registry.check(proposal, version))
    from danube.broker.faces import caller_name

    wanted = handler.begin(call)
    made = await registry.register(
        wanted.proposal, by=caller_name(), born=Policy.STRICT, number=wanted.number, version=wanted.version
    )
    return handler.answer(registry.book, call, made)


def _no_route(request: Request, methods: tuple[str, ...]) -> Response:
    path = shown(request.target.path)
    if not methods:
        return refusal(Failure(404, 404, f"nothing is served at {path}"))
    allowed = ", ".join(sorted({*methods, *(["HEAD"] if "GET" in methods else [])}))
    failure = Failure(405, 405, f"{path} has no {request.method}; use {allowed}")
    return refusal(failure, headers=(("Allow", allowed),))


def face(broker: Served) -> RegistryFace:
    """Create the face of a broker: pass this function as one of its ``faces``."""
    return RegistryFace(broker)
