"""Logins of browsers: ``/api/v1/session``, and what the cookie of a session means for all other requests.

A request with the cookie of a session is carried out as if it had the session's credential in ``authorization``, so it
is identified, judged and audited like any other. If it is no GET, it needs the session's CSRF token as well. A request
with an ``authorization`` of its own has nothing to do with sessions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import msgspec
import trio

from danube.http import Request, Response, Stream, TextSink, event_text, problem, problem_of
from danube.model.errors import FailedPreconditionError, UnauthenticatedError
from danube.model.security_api import SecurityMethod, WhoAmI, WhoIAm
from danube.web.bodies import SessionState
from danube.web.caller import ApiCall
from danube.web.session_table import (
    CSRF_HEADER,
    RANDOM_BYTES,
    Session,
    SessionLimits,
    SessionTable,
    cookie_of,
    set_cookie,
)
from danube.web.twins import plain

if TYPE_CHECKING:
    from danube.broker.faces import Served
    from danube.web.administration import Handler

__all__ = ["HANDLERS", "Sessions"]

_JSON: Final = "application/json"
_PATH: Final = "/api/v1/session"
_SWEEP_S: Final = 60.0
_NO_STORE: Final = ("Cache-Control", "no-store")


class Sessions:
    """The sessions of one broker, in its memory: they end when it stops, and no other broker knows them."""

    def __init__(self, broker: Served) -> None:
        self._broker = broker
        limits = broker.runtime.limits
        self.table = SessionTable(
            SessionLimits(
                limits.http_max_sessions,
                limits.http_max_sessions_per_caller,
                limits.http_session_idle_s,
                limits.http_session_life_s,
            )
        )
        self._ended: dict[str, trio.Event] = {}
        """By the key of a session, what its streams wait for."""

    def of(self, request: Request) -> Session | None:
        """Return the session that a request belongs to; None: it has none, or a proof of its own."""
        if "authorization" in request.headers or not len(self.table):
            return None
        session_id = cookie_of(request.headers, secure=request.secure)
        return None if session_id is None else self.table.use(session_id, trio.current_time())

    async def run(self) -> None:
        """Forget sessions whose time is over, and their credentials, until cancelled."""
        while True:
            await trio.sleep(_SWEEP_S)
            for each in self.table.sweep(trio.current_time()):
                self._tell(each)

    def admit(self, session: Session, request: Request) -> Response | None:
        """Give a request the credential of its session; return why it is refused instead."""
        if request.method != "GET" and not session.accepts(request.headers.get(CSRF_HEADER)):
            self._broker.note_refused(request.peer, _PATH, "the cookie of a session without its CSRF token")
            return problem(
                403,
                "csrf",
                "the call has the cookie of a session, but not its CSRF token; send the `csrf` that GET /api/v1/session"
                " returns as the header Danube-CSRF, or a token or API key as Authorization instead of the cookie",
            )
        request.headers = {**request.headers, "authorization": session.authorization.reveal()}
        return None

    def begin(self, answer: WhoIAm, authorization: str) -> tuple[str, Session]:
        """Begin a session for a credential that was just verified; return its id, too.

        Raises:
            LimitExceededError: there are too many.
        """
        runtime = self._broker.runtime
        left_s = answer.expires_us / 1e6 - runtime.clock_us() / 1e6 if answer.expires_us else float("inf")
        begun = self.table.begin(
            answer.subject, authorization, runtime.random_bytes(RANDOM_BYTES), trio.current_time(), left_s
        )
        for each in begun.ended:
            self._tell(each)
        return begun.id, begun.session

    def end(self, session: Session) -> None:
        """End a session, and its streams."""
        self.table.end(session)
        self._tell(session)

    def _tell(self, session: Session) -> None:
        ended = self._ended.pop(session.key, None)
        if ended is not None:
            ended.set()

    def lasting(self, session: Session, stream: Stream) -> Stream:
        """Return a stream of events that ends with a session, which is in use while it is open."""

        async def bounded(sink: TextSink) -> None:
            # It may have ended while the stream was being opened.
            if not self.table.holds(session) or await self._outlasted(session, stream, sink):
                body = problem_of(UnauthenticatedError("the session has ended; log in again")).body
                assert isinstance(body, bytes)
                await sink.send(event_text(body, name="error"))

        return bounded

    async def _outlasted(self, session: Session, stream: Stream, sink: TextSink) -> bool:
        """Run a stream; return whether its session has ended before it."""
        idle_s = self._broker.runtime.limits.http_session_idle_s
        ended = self._ended.setdefault(session.key, trio.Event())
        over = False

        async def watch(scope: trio.CancelScope) -> None:
            nonlocal over
            while not ended.is_set() and trio.current_time() < session.ends_s:
                session.used_s = trio.current_time()  # who looks at a stream uses the session
                with trio.move_on_at(min(session.ends_s, session.used_s + idle_s / 2)):
                    await ended.wait()
            over = True
            scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch, nursery.cancel_scope)
            await stream(sink)
            nursery.cancel_scope.cancel()
        return over


# --- Handlers


async def show_session(call: ApiCall) -> Response:
    """Return who the caller is, and what it may do."""
    if not call.broker.has_security:
        await trio.lowlevel.checkpoint()
        return _answer(call, _unsecured(), None)
    answer = await call.native(SecurityMethod.WHO_AM_I, WhoAmI())
    return _answer(call, answer, call.session)


async def begin_session(call: ApiCall) -> Response:
    """Verify a token or an API key, and begin a session for it."""
    if not call.broker.has_security:
        raise FailedPreconditionError("this broker has no access control, so every call is served; do not log in")
    authorization = f"Bearer {call.body.token.strip()}"
    old = call.sessions.of(call.request)
    call.request.headers = {**call.request.headers, "authorization": authorization}
    answer = await call.native(SecurityMethod.WHO_AM_I, WhoAmI())
    session_id, session = call.sessions.begin(answer, authorization)
    if old is not None:
        call.sessions.end(old)
    await call.native(SecurityMethod.WHO_AM_I, WhoAmI("begins"))
    cookie = set_cookie(call.request.host, session_id, secure=call.request.secure)
    return _answer(call, answer, session, status=201, headers=(cookie,))


async def end_session(call: ApiCall) -> Response:
    """End the session of the caller; without one, do nothing."""
    await call.native(SecurityMethod.WHO_AM_I, WhoAmI("ends" if call.session is not None else ""))
    if call.session is not None:
        call.sessions.end(call.session)
    cookie = set_cookie(call.request.host, None, secure=call.request.secure)
    return Response(204, headers=(cookie, _NO_STORE))


def _unsecured() -> WhoIAm:
    """Return what a broker without access control says; the rules of access control are not loaded for it."""
    return WhoIAm("user:anonymous", False, "", 0, [])


def _answer(
    call: ApiCall,
    answer: WhoIAm,
    session: Session | None,
    *,
    status: int = 200,
    headers: tuple[tuple[str, str], ...] = (),
) -> Response:
    state = SessionState(
        subject=answer.subject,
        secured=answer.secured,
        proof=answer.proof,
        expires_us=answer.expires_us,
        grants=[plain(each) for each in answer.grants],
        more=answer.more,
        csrf=session.csrf if session is not None else "",
        ends_in_s=max(0.0, session.ends_s - trio.current_time()) if session is not None else 0.0,
        idle_s=call.broker.runtime.limits.http_session_idle_s if session is not None else 0.0,
    )
    return Response(status, msgspec.json.encode(state), content_type=_JSON, headers=(*headers, _NO_STORE))


HANDLERS: Final[Mapping[str, Handler]] = {
    handler.__name__: handler for handler in (show_session, begin_session, end_session)
}
