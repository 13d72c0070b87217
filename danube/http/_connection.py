"""One connection of an HTTP server: reads requests, runs the handler, writes answers. One task; h11 knows the protocol.

A request has ``headers_timeout_s`` from its first byte to the end of its head, and ``http_request_timeout_s`` for its
body and its handler. Streamed answers have neither: a second task notices that the caller is gone, and a third keeps
streams of events alive. Each piece that is written has ``write_timeout_s``.
"""

from __future__ import annotations

import logging
import math
import zlib
from collections.abc import AsyncIterator, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import h11
import trio

from danube.http._events import KEEP_ALIVE
from danube.http._framing import METHODS, check_framing, content_length, head_bytes, joined, wants_continue
from danube.http._messages import Request, Response, Stream
from danube.http._negotiation import COMPRESS_FROM_BYTES, accepts_gzip, entity_tag, is_text, matches
from danube.http._problem import problem, problem_of, single_error
from danube.model.errors import ConnectionLostError, InvalidArgumentError, MessageTooLargeError
from danube.model.log_events import log_event
from danube.wire._transport import SocketTransport

if TYPE_CHECKING:
    from danube.http.server import HttpServer
    from danube.model.tls import PeerCertificate
    from danube.wire._transport import Transport

__all__ = ["HttpConnection"]

_READ_BYTES: Final = 64 * 1024
_PIECE_BYTES: Final = 64 * 1024
_REASONS: Final = {status.value: status.phrase.encode() for status in HTTPStatus}
"""Optional in RFC 9112, section 4, but some clients read no status from a line without one."""
_LINGER_S: Final = 1.0
"""How long a refused caller may take to read the reason; closing at once would discard it on its side."""
KEEP_ALIVE_S: Final = 15.0
"""Silence of a stream of events after which a comment is sent."""

log = logging.getLogger("danube.http")


class HttpConnection:
    """The I/O shell of one connection. Created and driven by :class:`danube.http.server.HttpServer`.

    Args:
        server: its server.
        transport: of its bytes; the connection owns it.
        connection_id: unique among the connections of the server.
        peer: address of the peer.
        received: bytes that were read already.
        secure: whether the transport is TLS.
        peer_certificate: the verified certificate of the peer, if it has presented one.
    """

    def __init__(
        self,
        server: HttpServer,
        transport: Transport,
        connection_id: int,
        peer: str,
        *,
        received: bytes = b"",
        secure: bool = False,
        peer_certificate: PeerCertificate | None = None,
    ) -> None:
        self.server = server
        self.connection_id = connection_id
        self.peer = peer
        self.secure = secure
        self.peer_certificate = peer_certificate
        self.scope = trio.CancelScope()
        """Ends the connection."""
        self.busy = False
        """Whether a request is being answered; a connection that is not may be ended at any time."""
        self.streaming: trio.CancelScope | None = None
        """Ends the streamed answer that is being sent."""
        self._transport = transport
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=server.limits.http_max_header_bytes)
        if received:
            self._http.receive_data(received)
        self._began = bool(received)
        self._sending = trio.Lock()
        self._torn = False
        """Whether a write was cancelled half-way, so that nothing can follow."""

    async def run(self) -> None:
        """Serve requests until the connection ends."""
        try:
            with self.scope:
                while await self._serve():
                    self.busy = False
                    if self.server.draining:
                        break
                    self._http.start_next_cycle()
                    self._began = bool(self._http.trailing_data[0])
        except ConnectionLostError:
            pass  # the peer has closed it, or does not read
        finally:
            with trio.CancelScope(shield=True):  # bounded: closing waits for at most half a second, with TLS
                await self._transport.close()

    # --- Requests

    async def _serve(self) -> bool:
        """Serve one request; return whether another one may follow."""
        head = await self._head()
        if head is None:
            return False
        self.busy = True
        method = head.method.decode("ascii")
        if head_bytes(head.target, head.headers) > self.server.limits.http_max_header_bytes:
            return await self._refuse(self._large_head())
        try:
            headers = joined(head.headers)
            check_framing(method, head.http_version, headers)
            target = self.server.dialect.parse_target(head.target)
        except InvalidArgumentError as error:
            return await self._refuse(problem_of(error))
        if method not in METHODS:
            names = ", ".join(sorted(METHODS))
            return await self._refuse(problem(501, "unimplemented", f"the method {method} is unknown; use {names}"))
        limits = self.server.limits
        announced = content_length(headers)
        if announced == 0:
            await self._event()  # the end of the request: from now on, what is received tells of the connection
        body = _Body(self, announced, limits.http_max_body_bytes)
        with trio.CancelScope(deadline=trio.current_time() + limits.http_request_timeout_s) as scope:

            def extend(seconds: float | None) -> None:
                scope.deadline = math.inf if seconds is None else trio.current_time() + seconds

            request = Request(
                "GET" if method == "HEAD" else method,
                target,
                headers,
                body,
                peer=self.peer,
                connection_id=self.connection_id,
                secure=self.secure,
                peer_certificate=self.peer_certificate,
                extend=extend,
            )
            response = await self._handled(request)
        if scope.cancelled_caught:
            response = self._worded(self._late(body))
        await self._answer(request, response, with_body=method != "HEAD")
        return not response.close and await self._finished(headers)

    def _late(self, body: _Body) -> Response:
        seconds = f"http_request_timeout_s = {self.server.limits.http_request_timeout_s:g} s"
        if body.complete:
            return problem(504, "deadline-exceeded", f"no answer was ready within {seconds}; try again", close=True)
        return problem(408, "deadline-exceeded", f"the request did not arrive within {seconds}; try again", close=True)

    async def _handled(self, request: Request) -> Response:
        try:
            return await self.server.handler(request)
        except Exception as error:
            found = single_error(error)
            if isinstance(found, ConnectionLostError) and self._http.their_state is h11.ERROR:
                raise found from error  # the caller has gone while its body was read
            if isinstance(found, h11.RemoteProtocolError):
                return self._worded(
                    problem(
                        found.error_status_hint, "invalid-argument", f"the body is no valid HTTP: {found}", close=True
                    )
                )
            response = problem_of(found)
            if response.status >= 500 and response.status == 500:
                log.error(
                    "%s %s has failed",
                    request.method,
                    request.target.path,
                    exc_info=error,
                    extra=log_event("http.request_failed", repeating=True, peer=self.peer),
                )
            return self._worded(response)

    def _worded(self, response: Response) -> Response:
        return self.server.dialect.reworded(response)

    async def _head(self) -> h11.Request | None:
        """Return the next request; None: there is none, and what had to be said was said."""
        limits = self.server.limits
        if not self._began:
            with trio.move_on_after(limits.http_idle_timeout_s) as idle:
                if not await self._receive():
                    return None
            if idle.cancelled_caught:
                return None
        with trio.move_on_after(limits.headers_timeout_s) as waiting:
            try:
                event = await self._event()
            except h11.RemoteProtocolError as error:
                await self._refuse(self._malformed(error))
                return None
            return event if isinstance(event, h11.Request) else None
        assert waiting.cancelled_caught
        seconds = f"headers_timeout_s = {limits.headers_timeout_s:g} s"
        await self._refuse(
            problem(408, "deadline-exceeded", f"the head of the request did not arrive within {seconds}")
        )
        return None

    def _malformed(self, error: h11.RemoteProtocolError) -> Response:
        if error.error_status_hint == 431:
            return self._large_head()
        text = f"this is no valid HTTP/1.1 request: {error}; Danube clients use the port of danube:// URLs"
        return problem(error.error_status_hint, "invalid-argument", text)

    def _large_head(self) -> Response:
        most = self.server.limits.http_max_header_bytes
        text = f"the head of the request is larger than http_max_header_bytes = {most}; send fewer or shorter headers"
        return problem(431, "limit-exceeded", text)

    async def _event(self) -> Any:
        """Return the next event of the caller; raise ConnectionLostError or RemoteProtocolError."""
        while True:
            event = self._http.next_event()
            if event is not h11.NEED_DATA:
                return event
            await self._receive()

    async def _receive(self) -> bool:
        """Pass received bytes to h11; return whether there were any, and not the end."""
        data = await self._transport.receive(_READ_BYTES)
        self.server.received_bytes += len(data)
        self._http.receive_data(data)
        return bool(data)

    async def _finished(self, headers: Any) -> bool:
        """Read what is left of the request, if that is little; return whether the connection can go on."""
        http = self._http
        if http.their_state is h11.SEND_BODY and not (
            wants_continue(headers) and http.they_are_waiting_for_100_continue
        ):
            left = _READ_BYTES
            with trio.move_on_after(_LINGER_S):
                try:
                    while left > 0 and http.their_state is h11.SEND_BODY:
                        event = await self._event()
                        left -= len(event.data) if isinstance(event, h11.Data) else 0
                except h11.RemoteProtocolError:
                    return False
        if http.our_state is h11.DONE and http.their_state is h11.DONE:
            return True
        if http.their_state is h11.SEND_BODY:
            await self._linger()
        return False

    async def _refuse(self, response: Response) -> bool:
        """Say why the connection ends; return False."""
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            response = self._worded(response)
            await self._send_whole(response, response.body if isinstance(response.body, bytes) else b"", close=True)
            await self._linger()
        return False

    async def _linger(self) -> None:
        """Let the caller read the answer before the connection closes."""
        if isinstance(self._transport, SocketTransport):
            self._transport.finish()
        with trio.move_on_after(_LINGER_S):
            while await self._transport.receive(_READ_BYTES):
                pass

    # --- Answers

    async def _answer(self, request: Request, response: Response, *, with_body: bool) -> None:
        if isinstance(response.body, bytes):
            await self._answer_whole(request, response, response.body, with_body=with_body)
        elif not with_body:
            await self._send(self._http.send(self._response(response, ())) + self._http.send(h11.EndOfMessage()))
        elif response.events and self.server.event_streams >= self.server.limits.http_max_sse:
            most = self.server.limits.http_max_sse
            text = f"{most} streams of events are open, and http_max_sse is {most}; close one of them, or try later"
            await self._answer(request, problem(429, "limit-exceeded", text), with_body=with_body)
        else:
            await self._answer_stream(response, response.body)

    async def _answer_whole(self, request: Request, response: Response, body: bytes, *, with_body: bool) -> None:
        extra: list[tuple[str, str]] = []
        if response.status == 200 and request.method == "GET" and body:
            tag = next((value for name, value in response.headers if name.lower() == "etag"), "")
            if not tag:
                tag = entity_tag(body)
                extra.append(("ETag", tag))
            if matches(request.headers.get("if-none-match", ""), tag):
                plain = [each for each in response.headers if each[0].lower() not in ("content-disposition",)]
                await self._send_whole(Response(304, headers=[*plain, *extra], close=response.close), b"")
                return
        if len(body) >= COMPRESS_FROM_BYTES and is_text(response.content_type):
            extra.append(("Vary", "Accept-Encoding"))
            if accepts_gzip(request.headers):
                body = await _compressed(body)
                extra.append(("Content-Encoding", "gzip"))
        await self._send_whole(response, body, extra, close=response.close, with_body=with_body)

    async def _send_whole(
        self,
        response: Response,
        body: bytes,
        extra: Sequence[tuple[str, str]] = (),
        *,
        close: bool = False,
        with_body: bool = True,
    ) -> None:
        http = self._http
        headers = list(extra)
        if response.status not in (204, 304):
            headers.append(("Content-Length", str(len(body))))
        if close or response.close or self.server.draining:
            headers.append(("Connection", "close"))
        data = http.send(self._response(response, headers))
        if with_body and body and response.status not in (204, 304):
            data += http.send(h11.Data(data=body))
        await self._send(data + http.send(h11.EndOfMessage()))

    def _response(self, response: Response, extra: Sequence[tuple[str, str]]) -> h11.Response:
        headers = [*response.headers, *extra, *self.server.common_headers()]
        if response.content_type:
            headers.append(("Content-Type", response.content_type))
        return h11.Response(
            status_code=response.status,
            reason=_REASONS.get(response.status, b""),
            headers=[(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in headers],
        )

    async def _answer_stream(self, response: Response, stream: Stream) -> None:
        """Send an answer piece by piece, while its caller reads it."""
        server, http = self.server, self._http
        extra = [("Connection", "close"), ("Cache-Control", "no-store")] if response.events else []
        await self._send(http.send(self._response(response, extra)))
        server.event_streams += response.events
        sink = _Sink(self)
        ended = False
        failure: BaseException | None = None
        try:
            async with trio.open_nursery() as nursery:
                self.streaming = nursery.cancel_scope
                if server.draining:
                    nursery.cancel_scope.cancel()
                nursery.start_soon(self._watch_caller, nursery.cancel_scope)
                if response.events:
                    nursery.start_soon(sink.keep_alive)
                await stream(sink)
                ended = True
                nursery.cancel_scope.cancel()
        except Exception as error:  # noqa: BLE001 - the answer has begun: nothing but its end can tell the caller
            failure = single_error(error)
        finally:
            self.streaming = None
            server.event_streams -= response.events
        if failure is not None:
            if not isinstance(failure, ConnectionLostError):
                log.error(
                    "a streamed answer to %s has failed",
                    self.peer,
                    exc_info=failure,
                    extra=log_event("http.request_failed", repeating=True, peer=self.peer),
                )
            raise ConnectionLostError("the streamed answer has failed") from failure
        if ended or response.events:
            await self._send(http.send(h11.EndOfMessage()))
        else:
            raise ConnectionLostError("the streamed answer was not completed")

    async def _watch_caller(self, scope: trio.CancelScope) -> None:
        """Cancel the answer when its caller has closed the connection. What it sends meanwhile is dropped."""
        if self._http.their_state is h11.SEND_BODY:
            return  # the stream itself may be reading the request
        try:
            while await self._transport.receive(_READ_BYTES):
                pass
        except ConnectionLostError:
            pass
        scope.cancel()

    async def _send(self, data: bytes) -> None:
        """Write bytes; raise ConnectionLostError if the peer accepts none for ``write_timeout_s``."""
        transport, limit_s = self._transport, self.server.limits.write_timeout_s
        view = memoryview(data)
        async with self._sending:
            if self._torn:
                raise ConnectionLostError("an answer was cancelled while it was being written")
            self._torn = True
            for at in range(0, len(view), _PIECE_BYTES):
                piece = view[at : at + _PIECE_BYTES]
                sent = transport.send_now(piece)
                if sent < len(piece):
                    with trio.move_on_after(limit_s) as waiting:
                        await transport.send(piece[sent:])
                    if waiting.cancelled_caught:
                        raise ConnectionLostError(f"the peer accepts nothing for write_timeout_s = {limit_s:g} s")
            self._torn = False
        self.server.sent_bytes += len(view)


class _Sink:
    """Where one streamed answer goes."""

    def __init__(self, connection: HttpConnection) -> None:
        self._connection = connection
        self._sent_at_s = trio.current_time()

    async def send(self, data: bytes) -> None:
        """Send a piece."""
        if data:
            self._sent_at_s = trio.current_time()
            await self._connection._send(self._connection._http.send(h11.Data(data=data)))
        else:
            await trio.lowlevel.checkpoint()

    async def keep_alive(self) -> None:
        """Send a comment after each silence, until cancelled."""
        while True:
            await trio.sleep_until(self._sent_at_s + KEEP_ALIVE_S)
            if trio.current_time() >= self._sent_at_s + KEEP_ALIVE_S:
                await self.send(KEEP_ALIVE)


class _Body:
    """The body of the request that a connection reads."""

    def __init__(self, connection: HttpConnection, announced: int | None, most_bytes: int) -> None:
        self._connection = connection
        self._announced = announced
        self._most_bytes = most_bytes
        self.complete = announced == 0

    async def read(self, most_bytes: int | None = None) -> bytes:
        """Return the whole body."""
        return b"".join([chunk async for chunk in self.chunks(most_bytes)])

    async def chunks(self, most_bytes: int | None = None) -> AsyncIterator[bytes]:
        """Iterate over the body as it arrives."""
        most = self._most_bytes if most_bytes is None else most_bytes
        if self._announced is not None and self._announced > most:
            raise self._too_large(most)
        connection, size = self._connection, 0
        http = connection._http
        if http.they_are_waiting_for_100_continue:
            await connection._send(
                http.send(h11.InformationalResponse(status_code=100, headers=[], reason=_REASONS[100]))
            )
        while http.their_state is h11.SEND_BODY:
            event = await connection._event()
            if isinstance(event, h11.Data):
                size += len(event.data)
                if size > most:
                    raise self._too_large(most)
                yield bytes(event.data)
            elif isinstance(event, h11.ConnectionClosed):
                raise ConnectionLostError("the caller has closed the connection within a request")
        self.complete = True

    def _too_large(self, most: int) -> MessageTooLargeError:
        name = "http_max_body_bytes = " if most == self._most_bytes else ""
        return MessageTooLargeError(f"the body of the request is larger than {name}{most} bytes; send less at once")


async def _compressed(body: bytes) -> bytes:
    """Return a body in gzip's format; other tasks run after each piece."""
    packer = zlib.compressobj(1 if len(body) > 4 * _PIECE_BYTES else 6, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    found = []
    for at in range(0, len(body), _PIECE_BYTES):
        found.append(packer.compress(body[at : at + _PIECE_BYTES]))
        await trio.lowlevel.checkpoint()
    found.append(packer.flush())
    return b"".join(found)
