"""The face: requests are matched, guarded, decoded, handled, and answered as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
import trio

from danube.http import Request, Response, problem, shown, single_error
from danube.model.decoding import UNDECODABLE
from danube.model.errors import (
    ConfigurationError,
    DanubeError,
    InvalidArgumentError,
    NotOwnerError,
    TopicReplacedError,
    UnauthenticatedError,
)
from danube.web import (
    administration,
    attached,
    dead_letters,
    defining,
    inspecting,
    monitoring,
    pulls,
    reading,
    schemas,
    searching,
    security,
    sessions,
)
from danube.web.administration import Handler
from danube.web.caller import ApiCall
from danube.web.guard import HEADERS, check_caller, media_type
from danube.web.idempotency import KeyBook
from danube.web.owners import answer_of_owner
from danube.web.packaged import console_files
from danube.web.pulls import Pulls
from danube.web.router import Router, values_of
from danube.web.routes import JSON, ROUTES, Route
from danube.web.searching import Searches
from danube.web.session_table import CONSOLE_HEADER, Session
from danube.web.sessions import Sessions
from danube.web.twins import json_response
from danube.wire import Codec, Service

if TYPE_CHECKING:
    from danube.broker.faces import Served
    from danube.registry import RegistryFace

__all__ = ["WebFace", "face"]

_HANDLERS: Final[Mapping[str, Handler]] = {
    **administration.HANDLERS,
    **attached.HANDLERS,
    **defining.HANDLERS,
    **inspecting.HANDLERS,
    **monitoring.HANDLERS,
    **reading.HANDLERS,
    **pulls.HANDLERS,
    **schemas.HANDLERS,
    **searching.HANDLERS,
    **sessions.HANDLERS,
    **dead_letters.HANDLERS,
    **security.HANDLERS,
}


class WebFace:
    """The HTTP API of one broker; a :class:`danube.broker.Face`.

    Args:
        broker: whose calls it makes.

    Raises:
        ConfigurationError: a route has no handler, or makes a call that has no row in the table of rights.
    """

    def __init__(self, broker: Served) -> None:
        self.services: Service = {}
        self.admin_services: Service = {}
        self.codecs: Mapping[str, Codec] = {}
        self.http_headers = HEADERS
        self.http_door: Literal["http"] = "http"
        self.http_dialect = None
        self._broker = broker
        self._router = Router()
        self._registry: RegistryFace | None = None
        self._console = console_files()
        self._pulls = Pulls(broker)
        self._searches = Searches(broker)
        self._sessions = Sessions(broker)
        self._keys = KeyBook(broker.runtime.limits.http_max_idempotency_keys)
        self._allowed = frozenset(name.lower() for name in broker.runtime.config.http_allowed_hosts)
        for route in ROUTES:
            if route.operation not in _HANDLERS:
                raise ConfigurationError(f"the route {route.method} {route.template} has no handler; add one")
        if broker.has_security:
            check_rights()

    def subscription_of_consumer(self, _consumer_id: int) -> tuple[str, str] | None:
        """Return None: it gives consumers no numbers."""
        return None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Hold the sessions of pullers and browsers and the search processes until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._sessions.run)
            await nursery.start(self._pulls.run)
            await nursery.start(self._searches.run)
            task_status.started()

    async def http(self, request: Request) -> Response:
        """Answer a request."""
        if request.target.segments[:1] == ("registry",):
            return await self._schemas(request)
        matched = self._router.match(request.method, request.target)
        route = matched.route
        if route is None or route.guarded:
            scheme = "https" if request.secure else "http"
            refused = check_caller(request.method, request.headers, self._allowed, scheme)
            if refused is not None:
                return refused
        if route is None:
            page = (
                self._console.answer(request.target.path) if request.method == "GET" and not matched.methods else None
            )
            return page or _no_route(request, matched.methods)
        if not route.early and not self._broker.started:
            return problem(503, "call-refused", "the broker is starting; try again")
        wrong = _wrong_body(route, request)
        if wrong is not None:
            return wrong
        values = values_of(route, request.query, request.headers)
        if route.matched and "if-match" not in request.headers and not values.get("dry_run"):
            return problem(
                428,
                "if-match-required",
                "this call needs If-Match; send the topic_id of the topic, in quotation marks, so that no"
                " other topic of the same name is meant",
            )
        # A login brings a proof in its body, and no session of before counts for it.
        session = self._sessions.of(request) if route.calls and route.operation != "begin_session" else None
        refused = self._sessions.admit(session, request) if session is not None else None
        if refused is not None:
            return refused
        if route.lasting:
            request.extend(None)
        body = await _body(route, request)
        call = ApiCall(
            self._broker,
            self._pulls,
            self._searches,
            request,
            route,
            matched.path,
            values,
            body,
            sessions=self._sessions,
            session=session,
            keys=self._keys,
        )
        try:
            return self._answered(_answer(route, await _HANDLERS[route.operation](call)), session)
        except TopicReplacedError as error:
            return problem(412, "if-match", error.message)
        except (DanubeError, ExceptionGroup) as error:
            found = single_error(error)
            if isinstance(found, UnauthenticatedError) and session is not None:
                self._sessions.end(session)  # its credential has expired, or was revoked
            if isinstance(found, UnauthenticatedError) and CONSOLE_HEADER in request.headers:
                # Without the scheme Basic, for which browsers would ask in a window of their own before the page
                # learns it.
                bearer = (("WWW-Authenticate", 'Bearer realm="danube"'),)
                return problem(401, found.code, found.message, headers=bearer)
            if not isinstance(found, NotOwnerError):
                raise
            return answer_of_owner(found, self._broker.http_urls(), request.target, whole=self._is_whole(call))

    def _answered(self, response: Response, session: Session | None) -> Response:
        """Return an answer that ends with the session of its caller, if it lasts."""
        if session is not None and not isinstance(response.body, bytes):
            response.body = self._sessions.lasting(session, response.body)
        return response

    def _is_whole(self, call: ApiCall) -> bool:
        """Whether one broker owns all that a call is about."""
        if "name" not in call.path:
            return False
        record = self._broker.directory.catalogue.find(call.topic)
        return record is None or not record.partitions

    async def _schemas(self, request: Request) -> Response:
        """Answer a request of the schema registry's REST interface, which is served here, too."""
        if self._registry is None:
            from danube.registry import RegistryFace

            self._registry = RegistryFace(self._broker)
        return await self._registry.answer(request, request.target.segments[1:])


def check_rights() -> None:
    """Check that each call of each route has a row in the table of rights.

    Raises:
        ConfigurationError: one has none.
    """
    from danube.security.rights import RULES  # not imported with security off

    for route in ROUTES:
        for path in route.calls:
            if path not in RULES:
                raise ConfigurationError(
                    f"the route {route.method} {route.template} calls {path}, which has no row in the table of rights"
                )


def _no_route(request: Request, methods: tuple[str, ...]) -> Response:
    path = shown(request.target.path)
    if not methods:
        return problem(404, "not-found", f"nothing is served at {path}; GET /api/v1/openapi.json describes the API")
    allowed = ", ".join(sorted({*methods, *(["HEAD"] if "GET" in methods else [])}))
    return problem(
        405, "method-not-allowed", f"{path} has no {request.method}; use {allowed}", headers=(("Allow", allowed),)
    )


def _wrong_body(route: Route, request: Request) -> Response | None:
    """Return why the kind of body is refused: browsers send others without asking for permission."""
    has_body = "transfer-encoding" in request.headers or request.headers.get("content-length", "0") != "0"
    if request.method == "GET" or (not has_body and (route.body is None or route.optional_body)):
        return None
    kind = media_type(request.headers)
    kinds = route.body_types if route.body is not None else (JSON,)
    if kind in kinds:
        return None
    given = shown(kind) if kind else "no Content-Type"
    return problem(415, "unsupported-media-type", f"the body has {given}; send Content-Type: {' or '.join(kinds)}")


async def _body(route: Route, request: Request) -> Any:
    """Return the decoded JSON body of a request; None if there is none, or the handler reads it."""
    if route.body is None or media_type(request.headers) not in ("", JSON):
        return None
    data = await request.body.read()
    if not data and route.optional_body:
        return None
    try:
        return msgspec.json.decode(data, type=route.body)
    except UNDECODABLE as error:
        text = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise InvalidArgumentError(f"the body is not what {route.operation} takes: {text}") from error


def _answer(route: Route, found: Any) -> Response:
    if isinstance(found, Response):
        return found
    if found is None:
        return Response(204)
    return json_response(found, route.status)


def face(broker: Served) -> WebFace:
    """Create the face of a broker: pass this function as one of its ``faces``."""
    return WebFace(broker)
