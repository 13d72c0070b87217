"""Calls on a connection: headers, trailers and ends of requests and responses, for either role."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import h2.events
from h2.errors import ErrorCodes
from h2.exceptions import H2Error, TooManyStreamsError

from danube.model.errors import CallRefusedError, InvalidArgumentError, LimitExceededError, ProtocolError, Status
from danube.model.version import __version__
from danube.wire._core import FatalError, FrameType
from danube.wire._events import (
    EndOfStream,
    PingAcked,
    RequestReceived,
    ResponseReceived,
    StreamReset,
    TrailersReceived,
)
from danube.wire._grpc import (
    decode_error,
    decode_message,
    encode_error,
    encode_message,
    format_timeout,
    parse_timeout,
    status_from_http,
)
from danube.wire._hpack import literals
from danube.wire._receiving import Receiving
from danube.wire._stream import WireStream

__all__ = ["ERROR_TRAILER", "Calls"]

ERROR_TRAILER = "danube-error"
"""The trailer with the stable code of an error, in addition to ``grpc-status``, and its details: see
:func:`danube.wire._grpc.encode_error`."""

_MAX_WINDOW = 2**31 - 1
_USER_AGENT = f"danube-python/{__version__}"
_MAX_TABLE_BYTES = 4096
"""Size of the table for sent headers."""
_GRPC_TYPE = re.compile(r"application/grpc(\+[a-z0-9.+-]{1,40})?", re.ASCII)
_NOT_METADATA = frozenset({"content-type", "te", "grpc-timeout", "grpc-encoding", "grpc-accept-encoding", "user-agent"})


class Calls(Receiving):
    """Requests, responses, trailers and resets, for either role."""

    def _on_h2(self, event: h2.events.Event) -> None:
        handler = _H2_HANDLERS.get(type(event))
        if handler is not None:
            handler(self, event)

    def _take_window_update(self, stream_id: int, increment: int) -> bool:
        """Handle a WINDOW_UPDATE frame; False if h2 must handle it: invalid, or not for an open stream."""
        if not increment:
            return False
        if not stream_id:
            window = self._h2.outbound_flow_control_window + increment
            if window > _MAX_WINDOW:
                raise FatalError(
                    ErrorCodes.FLOW_CONTROL_ERROR,
                    f"the peer increased the connection's window to {window}, beyond the maximum",
                )
            self._h2.outbound_flow_control_window = window
            return True
        stream = self._streams.get(stream_id)
        if stream is None:
            return False
        stream.send_window += increment
        if stream.send_window > _MAX_WINDOW:
            if not self._client:
                self._charge(self._resets, 1)
            if not stream.local_closed or not stream.remote_closed:
                self._reset(stream, ErrorCodes.FLOW_CONTROL_ERROR)
                self._events.append(StreamReset(stream_id, int(ErrorCodes.FLOW_CONTROL_ERROR)))
        elif stream.blocked:
            stream.blocked = False
            self._outgoing.wake(stream)
        return True

    def _on_settings(self, event: h2.events.RemoteSettingsChanged) -> None:
        encoder = self._h2.encoder
        if encoder.header_table_size > _MAX_TABLE_BYTES:
            # The peer's limit allows a larger table, but a small one is cheaper: it is searched for each header.
            encoder.header_table_size = _MAX_TABLE_BYTES
        before, self._send_window = self._send_window, self._h2.remote_settings.initial_window_size
        delta = self._send_window - before
        if not delta:
            return
        for stream in self._streams.values():
            stream.send_window += delta
            if stream.send_window > _MAX_WINDOW:
                raise FatalError(
                    ErrorCodes.FLOW_CONTROL_ERROR, "the peer's SETTINGS increase a stream's window beyond the maximum"
                )
            if stream.blocked:
                stream.blocked = False
                self._outgoing.wake(stream)

    def _on_request(self, event: h2.events.RequestReceived) -> None:
        stream_id = event.stream_id
        assert stream_id is not None
        self._highest_stream_id = stream_id
        if self._refuses():
            self._h2.reset_stream(stream_id, ErrorCodes.REFUSED_STREAM)
            return
        pseudo: dict[str, str] = {}
        metadata: dict[str, str] = {}
        for name, value in _pairs(event.headers):
            target = pseudo if name[0] == ":" or name in _NOT_METADATA or name == "content-length" else metadata
            target[name] = f"{target[name]},{value}" if name in target else value
        path = pseudo.get(":path", "")
        # Parameters are dropped, and the characters checked, because responses repeat part of it in a header.
        content_type = pseudo.get("content-type", "").partition(";")[0].strip()
        limit = self._message_limit(path)
        stream = WireStream(stream_id, self._h2.streams[stream_id], self._window_size, self._send_window, limit)
        stream.checked = "content-length" in pseudo
        if pseudo.get(":method") != "POST":
            self._answer_http(stream, 405, f"gRPC calls use POST, not {pseudo.get(':method')}")
            return
        if not _GRPC_TYPE.fullmatch(content_type):
            self._answer_http(stream, 415, f"content-type must be application/grpc+CODEC, not {content_type!r}")
            return
        self._streams[stream_id] = stream
        timeout_s = None
        error = None
        if "grpc-timeout" in pseudo:
            try:
                timeout_s = parse_timeout(pseudo["grpc-timeout"])
            except InvalidArgumentError as exc:
                error = exc
        authority = pseudo.get(":authority", "")
        agent = pseudo.get("user-agent", "")
        request = RequestReceived(stream_id, path, metadata, timeout_s, content_type, authority, agent)
        self._events.append(request)
        if error is not None:
            self._fail(stream, error)
        else:
            self._checked_request = request, int(pseudo.get("content-length", -1)), limit

    def _refuses(self) -> bool:
        # The peer may retry refused calls elsewhere. A slot is held until finish(), even if the peer resets the stream.
        if self._draining:
            return True
        if len(self._streams) < self._limits.max_streams_per_connection:
            return False
        self._charge(self._resets, 1)
        return True

    def _answer_http(self, stream: WireStream, status: int, text: str) -> None:
        # A plain-text answer for HTTP/2 peers that do not use gRPC. The stream takes no slot.
        body = (text + "\n").encode()
        stream_id = stream.stream_id
        self._h2.send_headers(stream_id, [(":status", str(status)), ("content-type", "text/plain; charset=utf-8")])
        if self._h2.local_flow_control_window(stream_id) >= len(body):
            self._h2.send_data(stream_id, body)
        self._h2.end_stream(stream_id)
        assert stream.h2 is not None
        if not stream.h2.closed:
            self._charge(self._resets, 1)
            self._h2.reset_stream(stream_id, ErrorCodes.NO_ERROR)

    def _on_response(self, event: h2.events.ResponseReceived) -> None:
        stream = self._streams.get(event.stream_id or 0)
        if stream is None:
            return
        headers = _to_dict(event.headers)
        http_status = headers.get(":status", "")
        if "grpc-status" in headers:
            self._close_remote(stream)
            self._trailers(stream, headers)
        elif http_status != "200" or not headers.get("content-type", "").startswith("application/grpc"):
            status = status_from_http(int(http_status) if http_status.isascii() and http_status.isdigit() else 0)
            text = f"the peer answered HTTP {http_status} ({headers.get('content-type', 'no content-type')}), not gRPC"
            self._fail_call(stream, status, text)
        else:
            if "content-length" in headers:
                stream.checked = True
            self._events.append(ResponseReceived(stream.stream_id, _own(headers)))

    def _on_trailers(self, event: h2.events.TrailersReceived) -> None:
        stream = self._streams.get(event.stream_id or 0)
        if stream is None:
            return
        self._close_remote(stream)
        if self._client:
            self._trailers(stream, _to_dict(event.headers))

    def _trailers(self, stream: WireStream, headers: Mapping[str, str]) -> None:
        if stream.truncated and not stream.discarding:
            self._fail(stream, ProtocolError("the response ended inside a message"))
            return
        text = headers.get("grpc-status", "")
        number = int(text) if text.isascii() and text.isdigit() and len(text) < 4 else int(Status.UNKNOWN)
        status = Status(number) if number <= max(Status) else Status.UNKNOWN
        message = decode_message(headers.get("grpc-message", ""))
        code, details = decode_error(headers.get(ERROR_TRAILER, ""))
        self._events.append(TrailersReceived(stream.stream_id, status, code, message, _own(headers), details))

    def _fail_call(self, stream: WireStream, status: Status, text: str) -> None:
        stream.drop_partial()
        self._reset(stream, ErrorCodes.CANCEL)
        self._events.append(TrailersReceived(stream.stream_id, status, "", text, {}))

    def _on_end(self, event: h2.events.StreamEnded) -> None:
        stream = self._streams.get(event.stream_id or 0)
        if stream is None or stream.remote_closed:
            # After trailers the stream is closed already, and only a server may still have data to send.
            if stream is not None and not self._client and not stream.discarding:
                self._end_of_request(stream)
            return
        self._ended(stream)

    def _ended(self, stream: WireStream) -> None:
        self._close_remote(stream)
        if self._client:
            if not stream.discarding:
                # Brokers end every call with a status, so an intermediary has lost its connection to the broker.
                self._fail_call(stream, Status.UNAVAILABLE, "the peer ended the response without a status")
        elif not stream.discarding:
            self._end_of_request(stream)

    def _end_of_request(self, stream: WireStream) -> None:
        if stream.truncated:
            self._fail(stream, ProtocolError("the request ended inside a message"))
        else:
            self._events.append(EndOfStream(stream.stream_id))

    def _on_reset(self, event: h2.events.StreamReset) -> None:
        if not event.remote_reset and not self._client:
            # h2 reset it because of the peer's error (MadeYouReset): that counts as a reset by the peer.
            self._charge(self._resets, 1)
        stream = self._streams.get(event.stream_id or 0)
        if stream is None:
            return
        self._close_both(stream)
        self._events.append(StreamReset(stream.stream_id, int(event.error_code or 0)))

    def _on_ping_ack(self, event: h2.events.PingAckReceived) -> None:
        self._events.append(PingAcked(event.ping_data or b""))

    def _close_remote(self, stream: WireStream) -> None:
        stream.remote_closed = True
        stream.owed = 0

    def _close_both(self, stream: WireStream) -> None:
        self._close_remote(stream)
        self._release(stream, stream.pending - stream.complete)
        stream.drop_partial()
        self._outgoing.drop(stream)
        if stream.finished:
            self._streams.pop(stream.stream_id, None)

    def send_request_headers(
        self,
        path: str,
        *,
        authority: str,
        content_type: str,
        max_message_bytes: int,
        metadata: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """Client: open a stream for a call and return its id.

        ``max_message_bytes`` bounds each message of the response. Raises CallRefusedError if the connection accepts no
        new streams, and LimitExceededError if the peer's limit of concurrent streams is reached.
        """
        if self._terminated is not None or self._peer_draining:
            raise CallRefusedError("the connection accepts no new calls; open another one")
        headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", authority),
            ("te", "trailers"),
            ("content-type", content_type),
            ("user-agent", _USER_AGENT),
        ]
        if timeout_s is not None:
            headers.append(("grpc-timeout", format_timeout(timeout_s)))
        headers.extend(_checked(metadata))
        try:
            stream_id = self._h2.get_next_available_stream_id()
            self._h2.send_headers(stream_id, headers)
        except TooManyStreamsError as exc:
            raise LimitExceededError(f"the broker accepts no more streams on this connection: {exc}") from exc
        except H2Error as exc:
            raise CallRefusedError(f"the connection accepts no new calls: {exc}") from exc
        self._highest_stream_id = stream_id
        self._streams[stream_id] = WireStream(
            stream_id, self._h2.streams[stream_id], self._window_size, self._send_window, max_message_bytes
        )
        self._outgoing.take_h2()
        return stream_id

    def send_response_headers(
        self, stream_id: int, content_type: str, metadata: Mapping[str, str] | None = None
    ) -> None:
        """Server: send the headers of a response. Does nothing if they were sent or the stream is closed."""
        stream = self._streams.get(stream_id)
        if stream is None or stream.local_closed or stream.responded or self._terminated is not None:
            return
        stream.responded = True
        self._send_headers(stream, [(":status", "200"), ("content-type", content_type), *_checked(metadata)], end=False)

    def _send_headers(self, stream: WireStream, headers: list[tuple[str, str]], *, end: bool) -> None:
        if stream.h2 is None:
            self._outgoing.headers(stream.stream_id, literals(headers), end=end)
        else:
            self._h2.send_headers(stream.stream_id, headers, end_stream=end)
            self._outgoing.take_h2()

    def send_message(self, stream_id: int, data: bytes | tuple[bytes, ...]) -> bool:
        """Queue one message; a tuple is one message in several buffers. False if the stream is closed for sending.

        The buffers must not change until they are sent.
        """
        stream = self._streams.get(stream_id)
        if stream is None or stream.local_closed or stream.ending or self._terminated is not None:
            return False
        self._outgoing.message(stream, data)
        return True

    def end_stream(self, stream_id: int) -> None:
        """Client: close the sending side of a stream, once its queue is sent."""
        self._begin_end(stream_id, None)

    def send_trailers(
        self,
        stream_id: int,
        status: Status,
        message: str = "",
        code: str = "",
        metadata: Mapping[str, str] | None = None,
        content_type: str = "application/grpc",
        details: Mapping[str, str] | None = None,
    ) -> None:
        """Server: end a call with a status, once its queue is sent. Without response headers: trailers only.

        ``code`` and ``details`` are those of an error.
        """
        trailers = [("grpc-status", str(int(status)))]
        if message:
            trailers.append(("grpc-message", encode_message(message)))
        if code:
            trailers.append((ERROR_TRAILER, encode_error(code, details or {})))
        trailers.extend(_checked(metadata))
        stream = self._streams.get(stream_id)
        if stream is not None and not stream.responded:
            stream.responded = True
            trailers[:0] = [(":status", "200"), ("content-type", content_type)]
        self._begin_end(stream_id, trailers)

    def _begin_end(self, stream_id: int, trailers: list[tuple[str, str]] | None) -> None:
        stream = self._streams.get(stream_id)
        if stream is None or stream.local_closed or stream.ending or self._terminated is not None:
            return
        stream.ending = True
        stream.trailers = trailers
        if trailers is not None and not stream.queued:
            self._end(stream)
        else:
            self._outgoing.wake(stream)

    def _end(self, stream: WireStream) -> None:
        trailers = stream.trailers
        stream.ending = False
        stream.trailers = None
        stream.local_closed = True
        if trailers is None:
            self._h2.end_stream(stream.stream_id)
            self._outgoing.take_h2()
        else:
            self._send_headers(stream, trailers, end=True)
        if stream.finished:
            self._drop(stream)

    def reset(self, stream_id: int, code: int = ErrorCodes.CANCEL) -> None:
        """Abandon a stream in both directions. Its slot stays occupied until :meth:`finish`."""
        stream = self._streams.get(stream_id)
        if stream is not None and self._terminated is None:
            self._reset(stream, code)

    def _reset(self, stream: WireStream, code: int) -> None:
        if stream.h2 is None:
            if not stream.local_closed or not stream.remote_closed:
                self._outgoing.frame(FrameType.RST_STREAM, 0, stream.stream_id, int(code).to_bytes(4, "big"))
        elif not stream.h2.closed:
            self._h2.reset_stream(stream.stream_id, code)
            self._outgoing.take_h2()
        self._close_both(stream)

    def finish(self, stream_id: int) -> None:
        """Free a stream's slot when the application has finished its work for it. Returns all its bytes as credit.

        A server's last messages and trailers are sent first. A client abandons the call if it has not ended.
        """
        stream = self._streams.get(stream_id)
        if stream is None or stream.finished:
            return
        stream.finished = True
        self._complete -= stream.complete
        stream.complete = 0
        self._release(stream, stream.pending)
        stream.drop_partial()
        if self._terminated is not None:
            del self._streams[stream_id]
            return
        if stream.local_closed or self._client:
            self._drop(stream)
        elif not stream.ending:
            self._reset(stream, ErrorCodes.INTERNAL_ERROR)
        self._return_connection_credit()

    def _drop(self, stream: WireStream) -> None:
        if not stream.remote_closed or not stream.local_closed:
            # On a server the response is complete while the peer still sends: ask it to stop (RFC 9113, 8.1).
            self._reset(stream, ErrorCodes.CANCEL if self._client else ErrorCodes.NO_ERROR)
        self._streams.pop(stream.stream_id, None)


def _pairs(headers: Any) -> Iterable[tuple[str, str]]:
    # With a header encoding, h2 returns text; its annotations say bytes.
    pairs: Iterable[tuple[str, str]] = headers
    return pairs


def _to_dict(headers: Any) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in _pairs(headers):
        found[name] = f"{found[name]},{value}" if name in found else value
    return found


def _own(headers: Mapping[str, str]) -> dict[str, str]:
    hidden = ("grpc-status", "grpc-message", ERROR_TRAILER)
    return {
        name: value
        for name, value in headers.items()
        if name[0] != ":" and name not in _NOT_METADATA and name not in hidden
    }


_METADATA_NAME = re.compile(r"[0-9a-z_.-]+")
_METADATA_VALUE = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?|")


def _checked(metadata: Mapping[str, str] | None) -> Iterable[tuple[str, str]]:
    # h2's validation of outgoing headers is off for speed; only these headers are not our own constants.
    if not metadata:
        return ()
    for name, value in metadata.items():
        if not _METADATA_NAME.fullmatch(name) or not _METADATA_VALUE.fullmatch(value):
            raise InvalidArgumentError(f"metadata {name!r}: names are lower-case ASCII, values printable ASCII")
    return metadata.items()


_H2_HANDLERS: dict[type[h2.events.Event], Callable[[Calls, Any], None]] = {
    h2.events.RequestReceived: Calls._on_request,
    h2.events.ResponseReceived: Calls._on_response,
    h2.events.TrailersReceived: Calls._on_trailers,
    h2.events.StreamEnded: Calls._on_end,
    h2.events.StreamReset: Calls._on_reset,
    h2.events.RemoteSettingsChanged: Calls._on_settings,
    h2.events.PingAckReceived: Calls._on_ping_ack,
}
