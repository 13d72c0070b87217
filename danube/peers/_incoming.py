"""The links of other brokers to this one: methods of the broker's own wire server.

The stream of a link (:data:`~danube.peers.frames.LINK`) begins with the hello. The streams of its channels are taken
only on the same connection, with the token that the hello resulted in; everything else is refused.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

import trio

from danube.model.errors import (
    CallRefusedError,
    ConnectionLostError,
    DanubeError,
    InternalError,
    LimitExceededError,
    MessageTooLargeError,
    PeerRefusedError,
    PermissionDeniedError,
    UnimplementedError,
    to_wire,
)
from danube.model.log_events import log_event
from danube.peers._contract import CallHandler, MessageHandler, MessageSink, Peer
from danube.peers._shared import Shared
from danube.peers.frames import (
    CHANNEL,
    CHANNEL_HEADER,
    FRAME_OVERHEAD,
    LINK,
    LINK_HEADER,
    Answer,
    Ask,
    Cancel,
    Failure,
    Note,
    decode_request,
    encode,
)
from danube.peers.hello import MAX_HELLO_BYTES, Acceptor, Linked, judge_certificate
from danube.wire import Context, Message, Method, ServerStream, Service

__all__ = ["Handlers", "IncomingLinks"]

SHARE_OF_A_HOST: Final = 4
"""One host may use one in so many of the hellos in progress."""

_log = logging.getLogger("danube.peers")


class _Messages(NamedTuple):
    handler: MessageHandler
    strangers: bool


class _Sink(NamedTuple):
    sink: MessageSink
    strangers: bool


class _Calls(NamedTuple):
    handler: CallHandler
    strangers: bool


class Handlers:
    """The handlers of all channels, by name."""

    def __init__(self) -> None:
        self.messages: dict[str, _Messages] = {}
        self.sinks: dict[str, _Sink] = {}
        self.calls: dict[str, _Calls] = {}
        self.complete = False
        """Whether all channels are here; until then this broker is starting."""

    def on_message(self, channel: str, handler: MessageHandler, *, strangers: bool) -> None:
        """See :meth:`danube.peers.Peers.on_message`."""
        self.messages[channel] = _Messages(handler, strangers)

    def divert(self, channel: str, sink: MessageSink, *, strangers: bool) -> None:
        """See :meth:`danube.peers.Peers.divert`."""
        self.sinks[channel] = _Sink(sink, strangers)

    def on_call(self, channel: str, handler: CallHandler, *, strangers: bool) -> None:
        """See :meth:`danube.peers.Peers.on_call`."""
        self.calls[channel] = _Calls(handler, strangers)

    def __contains__(self, channel: str) -> bool:
        return channel in self.messages or channel in self.sinks or channel in self.calls


class _Link:
    """A link of another broker that is up."""

    def __init__(self, linked: Linked, *, related: bool) -> None:
        self.peer: Peer = linked.peer
        self.token = linked.token
        self.related = related
        """Whether both brokers are members of the same cluster."""
        self.over: DanubeError | None = None
        self.channels = 0
        self._scopes: dict[trio.CancelScope, None] = {}

    @contextmanager
    def alive(self) -> Iterator[None]:
        """Cancel the block when the link is closed, and raise the reason."""
        with trio.CancelScope() as scope:
            self._scopes[scope] = None
            try:
                yield
            finally:
                del self._scopes[scope]
        if scope.cancelled_caught and self.over is not None:
            raise type(self.over)(self.over.message)

    def close(self, reason: str, kind: type[DanubeError] = ConnectionLostError) -> None:
        """Cancel everything that runs for this link; the other broker gets an error of this kind."""
        self.over = kind(reason)
        for scope in list(self._scopes):
            scope.cancel()


class IncomingLinks:
    """The links of other brokers, and the methods that serve them.

    Args:
        shared: see :class:`~danube.peers._shared.Shared`.
        handlers: of the channels.
    """

    def __init__(self, shared: Shared, handlers: Handlers) -> None:
        self._shared = shared
        self._handlers = handlers
        self._links: dict[int, _Link] = {}
        """By connection, the oldest first."""
        self._hellos: dict[int, str] = {}
        """Hosts of connections with a hello in progress."""
        self._served = 0
        self._idle = trio.Event()
        self._closed = False

    @property
    def peers(self) -> list[Peer]:
        """The brokers with links to this one, some maybe with several."""
        return [link.peer for link in self._links.values()]

    def service(self) -> Service:
        """Return the methods, by path, for the server of the broker's port."""
        size = self._shared.limits.max_peer_message_bytes + FRAME_OVERHEAD
        # Early: the metadata of a cluster need them while a broker starts.
        methods = (
            Method(
                path=LINK,
                kind="bidi",
                handler=self._serve_link,
                max_request_bytes=MAX_HELLO_BYTES,
                early=True,
            ),
            Method(
                path=CHANNEL,
                kind="bidi",
                handler=self._serve_channel,
                max_request_bytes=size,
                early=True,
            ),
        )
        return {method.path: method for method in methods}

    def close_all(self, reason: str) -> None:
        """Close all links; their brokers open them again."""
        for link in list(self._links.values()):
            link.close(reason)

    def reopen_all(self, reason: str) -> None:
        """Have the other brokers open their links again at once, with the present hello; none is lost by that."""
        for link in list(self._links.values()):
            link.close(reason, CallRefusedError)

    async def close(self) -> None:
        """Refuse further links, close all, and wait until no handler runs."""
        self._closed = True
        self.close_all("the broker is closing its links")
        while self._served:
            self._idle = trio.Event()
            await self._idle.wait()

    @contextmanager
    def _serving(self) -> Iterator[None]:
        if self._closed:
            raise CallRefusedError("the broker takes no links any more; try again later")
        self._served += 1
        try:
            yield
        finally:
            self._served -= 1
            if not self._served:
                self._idle.set()

    # -- the stream of a link

    async def _serve_link(self, stream: ServerStream, context: Context) -> None:
        with self._serving():
            try:
                link = await self._open(stream, context)
            except (PeerRefusedError, LimitExceededError) as error:
                self._log_refusal(context, error)
                raise
            _log.debug("%s has opened a link from %s", link.peer.name, context.peer)
            try:
                with link.alive():
                    certificate = context.peer_certificate
                    if await self._shared.until_expired(stream.receive, link.peer, certificate) is not None:
                        raise PeerRefusedError(f"{link.peer.name} sent a message behind its hello")
            finally:
                del self._links[context.connection_id]
                link.close(f"the link of {link.peer.name} has ended")

    async def _open(self, stream: ServerStream, context: Context) -> _Link:
        shared, number = self._shared, context.connection_id
        limits = shared.limits
        if number in self._links or number in self._hellos:
            raise PeerRefusedError("there is a link on this connection already; open another connection")
        host, opening = _host(context), len(self._hellos)
        # One host alone, which may be an attacker, cannot keep the others out.
        if opening >= limits.max_peer_hellos or (
            list(self._hellos.values()).count(host) >= max(1, limits.max_peer_hellos // SHARE_OF_A_HOST)
        ):
            raise LimitExceededError(
                f"{opening} links are being opened, and max_peer_hellos is {limits.max_peer_hellos}, of which one host"
                f" may use one in {SHARE_OF_A_HOST}; try again"
            )
        self._hellos[number] = host
        try:
            own = shared.own
            acceptor = Acceptor(own, shared.secret, shared.nonce(), host, shared.lives)
            with trio.move_on_after(limits.handshake_timeout_s):
                stream.send_nowait(acceptor.greet(await _said(stream)))
                answer, linked = acceptor.accept(await _said(stream))
                refusal = judge_certificate(linked.peer, context.peer_certificate)
                if refusal:
                    raise PeerRefusedError(refusal)
                if own is not shared.own:
                    raise CallRefusedError(f"{shared.own.name} has changed during the hello; try again")
                self._make_room(linked.peer)
                related = own.incarnation == linked.peer.incarnation != 0
                link = self._links[number] = _Link(linked, related=related)
                context.on_proven(linked.peer.name)
                stream.outlast()  # the metadata of a cluster need the links until the broker has ended
                stream.send_nowait(answer)
                return link
            raise PeerRefusedError(
                f"the hello was not finished within {limits.handshake_timeout_s:g} s (handshake_timeout_s); try again"
            )
        finally:
            del self._hellos[number]

    def _make_room(self, peer: Peer) -> None:
        """Close links of the same broker's earlier lives, and the oldest of its links if there are too many links."""
        same = [link for link in self._links.values() if link.peer.identity == peer.identity]
        for link in same:
            if link.peer.life < peer.life:
                link.close(f"{peer.name} was started again")
        most = self._shared.limits.max_peers
        if sum(link.over is None for link in self._links.values()) < most:
            return
        live = [link for link in same if link.over is None]
        if not live:
            raise LimitExceededError(
                f"{self._shared.own.name} has links of {most} brokers, which is max_peers; raise it there"
            )
        live[0].close(f"{peer.name} has opened another link")

    def _log_refusal(self, context: Context, error: DanubeError) -> None:
        self._shared.log_refusal("a link from", _host(context), context.peer, error)

    # -- the stream of a channel

    async def _serve_channel(self, stream: ServerStream, context: Context) -> None:
        with self._serving():
            link = self._links.get(context.connection_id)
            token = context.metadata.get(LINK_HEADER, "")
            if link is None or link.over or not hmac.compare_digest(token.encode(), link.token.encode()):
                error = CallRefusedError("there is no link on this connection; it begins with a hello")
                self._log_refusal(context, error)
                raise error
            name = context.metadata.get(CHANNEL_HEADER, "")
            if name not in self._handlers:
                if not self._handlers.complete:
                    raise CallRefusedError(f"{self._shared.own.name} is starting; try again")
                raise UnimplementedError(f"{self._shared.own.name} has no channel {name!r}")
            limits = self._shared.limits
            if link.channels >= limits.max_peer_channels:
                raise LimitExceededError(
                    f"the link has {link.channels} channels, and max_peer_channels is {limits.max_peer_channels}"
                )
            link.channels += 1
            try:
                with link.alive():
                    await _Inlet(self._shared, self._handlers, link, name, stream).run()
            finally:
                link.channels -= 1


class _Inlet:
    """The receiving side of one channel of a link."""

    def __init__(self, shared: Shared, handlers: Handlers, link: _Link, name: str, stream: ServerStream) -> None:
        self._shared = shared
        self._handlers = handlers
        self._link = link
        self._name = name
        self._stream = stream
        self._running: dict[int, trio.CancelScope] = {}
        self._slots = trio.Semaphore(shared.limits.max_peer_calls)

    async def run(self) -> None:
        """Handle messages and calls, until the other broker ends the stream."""
        self._stream.divert(self._take)
        async with trio.open_nursery() as nursery:
            while (message := await self._stream.receive()) is not None:
                frame = decode_request(message.data)
                if isinstance(frame, Ask):
                    await self._slots.acquire()
                    scope = trio.CancelScope(deadline=trio.current_time() + frame.timeout_ms / 1000)
                    if frame.number in self._running:
                        raise PeerRefusedError(f"{self._link.peer.name} used the number of a call twice")
                    self._running[frame.number] = scope
                    nursery.start_soon(self._answer, frame, scope, message)
                    continue
                if isinstance(frame, Note):
                    await self._handle(frame.payload)
                else:
                    self._cancel(frame)
                message.release()
            nursery.cancel_scope.cancel()

    def _take(self, message: Message) -> bool:
        """Pass a message to the channel's sink; False if it is for :meth:`run`."""
        found = self._handlers.sinks.get(self._name)
        if found is None:
            return False
        frame = decode_request(message.data)
        if not isinstance(frame, Note):
            return False
        message.release()
        if self._link.over is None:
            self._pass(found, frame.payload)
        return True

    def _pass(self, found: _Sink, payload: bytes) -> None:
        if self._link.related or found.strangers:
            try:
                found.sink(self._link.peer, payload)
            except Exception as error:  # noqa: BLE001 - see there
                self._report(error)

    def _report(self, error: Exception) -> None:
        """Log why a message was not handled: a bug in one handler costs its message."""
        if isinstance(error, DanubeError):
            _log.warning(
                "a message of %s on the channel %r failed: %s",
                self._link.peer.name,
                self._name,
                error,
                extra=log_event(
                    "peers.message_failed", repeating=True, broker=self._link.peer.name, channel=self._name
                ),
            )
        else:
            _log.error(
                "the handler of the channel %r failed",
                self._name,
                exc_info=error,
                extra=log_event("peers.handler_failed", repeating=True, channel=self._name),
            )

    async def _handle(self, payload: bytes) -> None:
        sink = self._handlers.sinks.get(self._name)
        if sink is not None:  # it has arrived before `run`, or behind a call
            self._pass(sink, payload)
            return
        found = self._handlers.messages.get(self._name)
        if found is None or not (self._link.related or found.strangers):
            return
        try:
            await found.handler(self._link.peer, payload)
        except Exception as error:  # noqa: BLE001 - see there
            self._report(error)

    def _cancel(self, frame: Cancel) -> None:
        scope = self._running.get(frame.number)
        if scope is not None:
            scope.cancel()

    async def _answer(self, frame: Ask, scope: trio.CancelScope, message: Message) -> None:
        try:
            with scope:
                reply = await self._reply(frame)
                await self._stream.wait_send_capacity()
                self._stream.send_nowait(encode(reply))
        finally:
            del self._running[frame.number]
            self._slots.release()
            message.release()

    async def _reply(self, frame: Ask) -> Answer | Failure:
        peer, limits = self._link.peer, self._shared.limits
        try:
            found = self._handlers.calls.get(self._name)
            if found is None:
                raise UnimplementedError(f"{self._shared.own.name} answers no calls on the channel {self._name!r}")
            if not (self._link.related or found.strangers):
                raise PermissionDeniedError(
                    f"{self._shared.own.name} and {peer.name} are not members of the same cluster yet; try again later"
                )
            payload = await found.handler(peer, frame.payload)
            if len(payload) > limits.max_peer_message_bytes:
                raise MessageTooLargeError(
                    f"the answer on the channel {self._name!r} has {len(payload)} bytes, and max_peer_message_bytes is"
                    f" {limits.max_peer_message_bytes}"
                )
            return Answer(frame.number, payload)
        except DanubeError as error:
            return _failure(frame, error)
        except Exception as error:  # noqa: BLE001 - a bug in one handler costs its call
            _log.exception(
                "the handler of the channel %r failed",
                self._name,
                extra=log_event("peers.handler_failed", repeating=True, channel=self._name),
            )
            return _failure(frame, InternalError(to_wire(error).message))


def _failure(frame: Ask, error: DanubeError) -> Failure:
    status, code, text, details = to_wire(error)
    return Failure(frame.number, int(status), code, text, details)


def _host(context: Context) -> str:
    host, _, port = context.peer.rpartition(":")
    return host if port.isdecimal() else context.peer


async def _said(stream: ServerStream) -> bytes:
    message = await stream.receive()
    if message is None:
        raise PeerRefusedError("the other broker ended the hello")
    message.release()
    return message.data
