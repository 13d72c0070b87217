"""One HTTP/2 connection that speaks gRPC, as a pure state machine: bytes and time in, events and bytes out.

h2 keeps the rules of HTTP/2: header compression, settings, stream states, outbound windows. In front of it stands a frame
splitter of our own, for three reasons:

* DATA payload goes straight into message assembly instead of through h2's four copies;
* every frame is seen and counted, also those that h2 swallows (resets of closed streams, CONTINUATION), and that is
  where floods are stopped;
* GOAWAY is graceful here: h2 would refuse to finish the open streams after one.

Incoming flow control. The connection's window is given back on receipt, so no stream stalls another, as long as the bytes
that the application holds stay within ``max_pending_bytes_per_connection``. A stream's window is given back message by
message, when the application calls :meth:`GrpcConnection.credit`: that is the back-pressure. A message larger than what
is left of its stream's window gets the difference as a loan, at once, up to the stream's message limit; the loan is
repaid out of later credit. So a message that has begun can always end, and a stream never holds more than one
window and one message.

Abuse ends the connection with GOAWAY and ENHANCE_YOUR_CALM: too many resets, PING, SETTINGS, empty DATA, new streams or
header bytes. The slot of a stream is free when the application calls :meth:`GrpcConnection.finish`, not when the
peer resets it: work that goes on counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import h2.events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.exceptions import DenialOfServiceError, H2Error, TooManyStreamsError
from h2.settings import SettingCodes, Settings

from danube.model.errors import (
    DanubeError,
    InvalidArgumentError,
    LimitExceededError,
    ProtocolError,
    Status,
    UnavailableError,
)
from danube.model.limits import Limits
from danube.wire._abuse import TokenBucket
from danube.wire._events import (
    ConnectionTerminated,
    EndOfStream,
    Event,
    GoAwayReceived,
    MessageReceived,
    PingAcked,
    RequestReceived,
    ResponseReceived,
    StreamFailed,
    StreamReset,
    TrailersReceived,
)
from danube.wire._grpc import decode_message, encode_message, format_timeout, parse_timeout, status_from_http
from danube.wire._outgoing import FRAME_HEADER, FRAME_HEADER_SIZE, MAX_FRAME_BYTES, Outgoing
from danube.wire._stream import WireStream

__all__ = ["ERROR_TRAILER", "GrpcConnection"]

ERROR_TRAILER = "danube-error"
"""The trailer that carries the stable code of an error, beside ``grpc-status``."""

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HTTP1 = re.compile(rb"[A-Z]{3,10} ")
_MAYBE_HTTP1 = re.compile(rb"[A-Z]{1,10}")
_HTTP1_BODY = b"This port speaks gRPC over HTTP/2 with prior knowledge. Use a Danube client.\n"
_HTTP1_ANSWER = (
    b"HTTP/1.1 505 HTTP Version Not Supported\r\nContent-Type: text/plain\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n" % len(_HTTP1_BODY)
) + _HTTP1_BODY

_DATA, _HEADERS, _PRIORITY, _RST_STREAM, _SETTINGS, _PUSH, _PING, _GOAWAY, _WINDOW_UPDATE, _CONTINUATION = range(10)
_END_STREAM = _ACK = 0x1
_END_HEADERS = 0x4
_PADDED = 0x8
_NOT_METADATA = frozenset({"content-type", "te", "grpc-timeout", "grpc-encoding", "grpc-accept-encoding", "user-agent"})


class _FatalError(Exception):
    """Inside this module: the connection cannot go on."""

    def __init__(self, code: ErrorCodes, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class GrpcConnection:
    """The state machine of one connection, for either role.

    ``now`` is in seconds on any monotonic clock. ``message_limit`` (servers) gives the largest request message in bytes
    for a path. A client gives the limit with each request. No method but those that say so raises anything that a peer
    could provoke; what a peer does wrong comes out of :meth:`receive` as an event.
    """

    def __init__(
        self,
        role: Literal["server", "client"],
        limits: Limits,
        *,
        now: float,
        message_limit: Callable[[str], int] | None = None,
    ) -> None:
        self._limits = limits
        self._client = role == "client"
        self._message_limit = message_limit or (lambda _path: limits.max_request_bytes)
        self._window_size = limits.stream_window_bytes
        self._connection_window = min(2 * limits.stream_window_bytes, limits.max_pending_bytes_per_connection // 2)
        self._h2 = H2Connection(
            H2Configuration(
                client_side=self._client,
                header_encoding="utf-8",
                validate_outbound_headers=False,
                normalize_outbound_headers=False,
            )
        )
        self._outgoing = Outgoing(self._h2, self._end)
        self._streams: dict[int, WireStream] = {}
        self._events: list[Event] = []
        self._now = now
        self._tail = b""
        self._in_data: WireStream | None = None
        self._data_left = 0
        self._data_ends = False
        self._header_block_id = 0
        self._header_block_bytes = 0
        self._preface_left = not self._client
        self._settings_seen = False
        self._highest_stream_id = 0
        self._draining = False
        self._peer_draining = False
        self._terminated: ConnectionTerminated | None = None
        # Incoming flow control of the connection: see WireStream for the same numbers of a stream.
        self._window = 0
        self._pending = 0
        self._complete = 0
        self._owed = 0
        self._owed_by_h2 = 0
        self._pending_limit = limits.max_pending_bytes_per_connection - self._connection_window
        self._resets = TokenBucket("max_resets_per_minute", limits.max_resets_per_minute, 60.0, now)
        self._pings = TokenBucket("max_pings_per_minute", limits.max_pings_per_minute, 60.0, now)
        self._settings = TokenBucket("max_settings_per_minute", limits.max_settings_per_minute, 60.0, now)
        self._empty = TokenBucket("max_empty_data_per_minute", limits.max_empty_data_per_minute, 60.0, now)
        self._opened = TokenBucket("max_new_streams_per_second", limits.max_new_streams_per_second, 1.0, now)
        self._headers = TokenBucket("max_header_bytes_per_second", limits.max_header_bytes_per_second, 1.0, now)
        self._start()

    def _start(self) -> None:
        conn, limits = self._h2, self._limits
        conn.local_settings = Settings(
            client=self._client,
            initial_values={
                SettingCodes.ENABLE_PUSH: 0,
                SettingCodes.MAX_CONCURRENT_STREAMS: limits.max_streams_per_connection,
                SettingCodes.INITIAL_WINDOW_SIZE: self._window_size,
                SettingCodes.MAX_FRAME_SIZE: MAX_FRAME_BYTES,
                SettingCodes.MAX_HEADER_LIST_SIZE: limits.max_header_bytes,
            },
        )
        conn.max_inbound_frame_size = MAX_FRAME_BYTES
        conn.decoder.max_header_list_size = limits.max_header_bytes
        conn.initiate_connection()
        self._window = conn.inbound_flow_control_window
        if self._connection_window > self._window:
            conn.increment_flow_control_window(self._connection_window - self._window)
            self._window = self._connection_window
        self._connection_window = self._window
        self._outgoing.take_h2()

    # ------------------------------------------------------------------------------------------------ state

    @property
    def established(self) -> bool:
        """Whether the peer's preface and first SETTINGS have arrived."""
        return self._settings_seen

    @property
    def in_header_block(self) -> bool:
        """Whether a header block has begun and not ended (the shell gives it ``headers_timeout_s``)."""
        return self._header_block_id != 0

    @property
    def terminated(self) -> ConnectionTerminated | None:
        """Why the connection has ended, once it has."""
        return self._terminated

    @property
    def open_streams(self) -> int:
        """Streams whose slot is taken."""
        return len(self._streams)

    @property
    def pending_bytes(self) -> int:
        """Bytes that were received and that the application has not given back."""
        return self._pending

    @property
    def wants_write(self) -> bool:
        """Whether :meth:`data_to_send` would return something."""
        return bool(self._outgoing)

    def send_buffered(self, stream_id: int) -> int:
        """Return the bytes of a stream that wait for the peer's window or for the next write."""
        stream = self._streams.get(stream_id)
        return stream.queued if stream is not None else 0

    def can_send(self, stream_id: int) -> bool:
        """Whether messages can still be sent on a stream."""
        stream = self._streams.get(stream_id)
        return stream is not None and not stream.local_closed and not stream.ending

    # ------------------------------------------------------------------------------------------------ bytes in

    def receive(self, data: bytes, now: float) -> list[Event]:
        """Take bytes that arrived at time ``now`` and return what they mean. Never raises for what a peer sent."""
        if self._terminated is not None:
            return []
        self._now = now
        events = self._events = []
        try:
            self._split(data)
            self._return_connection_credit()
        except _FatalError as fatal:
            self._terminate(fatal.code, fatal.text)
        except DenialOfServiceError as exc:
            self._terminate(ErrorCodes.ENHANCE_YOUR_CALM, str(exc))
        except Exception as exc:  # noqa: BLE001
            # Hostile bytes inside h2, hpack and hyperframe: whatever they raise, this connection is over, nothing else.
            code = getattr(exc, "error_code", ErrorCodes.PROTOCOL_ERROR)
            self._terminate(code, f"{type(exc).__name__}: {exc}")
        return events

    def _terminate(self, code: int, text: str) -> None:
        self._h2.clear_outbound_data_buffer()
        self._goaway(code, text)
        self._terminated = ConnectionTerminated(int(code), text)
        self._events.append(self._terminated)

    def _split(self, data: bytes) -> None:
        if self._tail:
            data = self._tail + data
            self._tail = b""
        position = 0
        end = len(data)
        if self._preface_left:
            position = self._take_preface(data)
            if position < 0:
                return
        if self._in_data is not None:
            position = self._continue_data(data, end)
        unpack = FRAME_HEADER.unpack_from
        streams = self._streams
        while end - position >= FRAME_HEADER_SIZE:
            high, low, kind, flags, stream_id = unpack(data, position)
            length = high << 8 | low
            if length > MAX_FRAME_BYTES:
                self._refuse_frame(data, position, length)
            body = position + FRAME_HEADER_SIZE
            if kind == _DATA and not flags & _PADDED and self._settings_seen and not self._header_block_id:
                stream = streams.get(stream_id)
                if stream is not None and not stream.checked:
                    # The hot path: no frame object, no copy before the message, and no waiting for the frame's end.
                    self._begin_data(stream, length, flags)
                    stop = body + length
                    if stop <= end:
                        self._payload(stream, data, body, stop)
                        if flags & _END_STREAM:
                            self._end_data(stream)
                        position = stop
                        continue
                    self._in_data = stream
                    self._data_left = stop - end
                    self._data_ends = bool(flags & _END_STREAM)
                    self._payload(stream, data, body, end)
                    return
            stop = body + length
            if stop > end:
                break
            self._frame(kind, flags, stream_id & 0x7FFFFFFF, length, data, position)
            position = stop
        if position < end:
            self._tail = data[position:]

    def _take_preface(self, data: bytes) -> int:
        # Returns where the frames begin, or -1 when there is nothing more to do with `data`.
        size = len(_PREFACE)
        if data[:size] == _PREFACE[: len(data)]:
            if len(data) < size:
                self._tail = data
                return -1
            self._h2.receive_data(_PREFACE)
            self._preface_left = False
            return size
        if _HTTP1.match(data):
            self._outgoing.take(0)
            self._outgoing.raw(_HTTP1_ANSWER)
            self._terminated = ConnectionTerminated(
                int(ErrorCodes.HTTP_1_1_REQUIRED), "the peer speaks HTTP/1; this port takes only HTTP/2"
            )
            self._events.append(self._terminated)
            return -1
        if len(data) <= 10 and _MAYBE_HTTP1.fullmatch(data):
            self._tail = data
            return -1
        raise _FatalError(ErrorCodes.PROTOCOL_ERROR, "the peer's first bytes are not an HTTP/2 preface")

    def _refuse_frame(self, data: bytes, position: int, length: int) -> None:
        if not self._settings_seen and data.startswith(b"HTTP/", position):
            raise _FatalError(ErrorCodes.HTTP_1_1_REQUIRED, "the peer answered in HTTP/1; this is no Danube broker's port")
        raise _FatalError(ErrorCodes.FRAME_SIZE_ERROR, f"a frame of {length} bytes exceeds {MAX_FRAME_BYTES} bytes")

    # ------------------------------------------------------------------------------------------------ DATA

    def _consume_window(self, stream: WireStream | None, size: int) -> None:
        self._window -= size
        if self._window < 0:
            raise _FatalError(ErrorCodes.FLOW_CONTROL_ERROR, "the peer sent more than the connection's window")
        if stream is not None:
            stream.window -= size
            if stream.window < 0:
                raise _FatalError(
                    ErrorCodes.FLOW_CONTROL_ERROR, f"the peer sent more than the window of stream {stream.stream_id}"
                )

    def _begin_data(self, stream: WireStream, length: int, flags: int) -> None:
        if stream.remote_closed and not stream.discarding:
            raise _FatalError(ErrorCodes.STREAM_CLOSED, f"DATA on stream {stream.stream_id} after its end")
        if length:
            self._consume_window(stream, length)
        elif not flags & _END_STREAM:
            self._charge(self._empty, 1)

    def _continue_data(self, data: bytes, end: int) -> int:
        stream = self._in_data
        assert stream is not None
        stop = min(self._data_left, end)
        self._data_left -= stop
        self._payload(stream, data, 0, stop)
        if self._data_left == 0:
            self._in_data = None
            if self._data_ends:
                self._end_data(stream)
        return stop

    def _payload(self, stream: WireStream, data: bytes, position: int, stop: int) -> None:
        size = stop - position
        if stream.checked:
            self._owed_by_h2 += size
        else:
            self._owed += size
        if stream.discarding:
            return
        stream.pending += size
        self._pending += size
        messages: list[bytes] = []
        error = stream.feed(data, position, stop, messages)
        for message in messages:
            flow_size = len(message) + 5
            stream.complete += flow_size
            self._complete += flow_size
            self._events.append(MessageReceived(stream.stream_id, message, flow_size))
        if error is not None:
            self._fail(stream, error)
        elif stream.missing > stream.window and not stream.remote_closed:
            loan = stream.missing - stream.window
            stream.loan += loan
            self._open_window(stream, loan)

    def _end_data(self, stream: WireStream) -> None:
        # h2 must learn that the peer has closed its side: it gets an empty DATA frame that says so.
        if stream.remote_closed:
            return
        self._pass_to_h2(FRAME_HEADER.pack(0, 0, _DATA, _END_STREAM, stream.stream_id))

    def _odd_data(self, flags: int, stream_id: int, length: int, data: bytes, position: int) -> None:
        """Handle the DATA frames that the hot path leaves: padded, with a content-length, or for no open stream."""
        stream = self._streams.get(stream_id)
        if stream is None:
            if stream_id == 0 or stream_id > self._highest_stream_id:
                raise _FatalError(ErrorCodes.PROTOCOL_ERROR, f"DATA on stream {stream_id}, which was never opened")
            # The stream ended here and the peer may not know yet. The bytes cost it window, so they are given back.
            self._consume_window(None, length)
            self._owed += length
            if not length:
                self._charge(self._empty, 1)
            return
        self._begin_data(stream, length, flags)
        start = position + FRAME_HEADER_SIZE
        stop = start + length
        padding = 0
        if flags & _PADDED:
            if not length or data[start] >= length:
                raise _FatalError(ErrorCodes.PROTOCOL_ERROR, f"DATA on stream {stream_id} is padded beyond its length")
            padding = data[start] + 1
            self._charge(self._empty, 1)
            start += 1
            stop -= padding - 1
        if padding:
            if stream.checked:
                self._owed_by_h2 += padding
            else:
                self._owed += padding
            stream.owed += padding
        if stream.checked:
            # h2 compares the length with the content-length, and closes the stream if this is its end.
            self._payload(stream, data, start, stop)
            self._pass_to_h2(data[position : position + FRAME_HEADER_SIZE + length])
        else:
            self._payload(stream, data, start, stop)
            if flags & _END_STREAM:
                self._end_data(stream)

    def _fail(self, stream: WireStream, error: DanubeError) -> None:
        self._release(stream, stream.pending - stream.complete)
        stream.drop_partial()
        if self._client:
            self._reset(stream, ErrorCodes.CANCEL)
        self._events.append(StreamFailed(stream.stream_id, error))

    # ------------------------------------------------------------------------------------------------ window credit

    def credit(self, stream_id: int, size: int) -> None:
        """Give back ``size`` bytes: the application is done with messages of that ``flow_size``.

        Nothing happens for a stream that is finished, because :meth:`finish` gives back everything.
        """
        stream = self._streams.get(stream_id)
        if stream is None or self._terminated is not None:
            return
        size = min(size, stream.complete)
        stream.complete -= size
        self._complete -= size
        self._release(stream, size)
        repaid = min(size, stream.loan)
        stream.loan -= repaid
        stream.owed += size - repaid
        if stream.owed * 4 >= self._window_size and not stream.remote_closed:
            self._open_window(stream, 0)
        self._return_connection_credit()

    def _release(self, stream: WireStream, size: int) -> None:
        stream.pending -= size
        self._pending -= size

    def _open_window(self, stream: WireStream, extra: int) -> None:
        increment = stream.owed + extra
        stream.owed = 0
        stream.window += increment
        if stream.checked:
            self._h2.increment_flow_control_window(increment, stream.stream_id)
            self._outgoing.take_h2()
        else:
            self._outgoing.raw(FRAME_HEADER.pack(0, 4, _WINDOW_UPDATE, 0, stream.stream_id) + increment.to_bytes(4, "big"))

    def _return_connection_credit(self) -> None:
        owed = self._owed + self._owed_by_h2
        if owed * 4 < self._connection_window or self._terminated is not None:
            return
        if self._pending > self._pending_limit:
            if self._complete == 0:
                # Nothing that the application could give back: only messages that are not complete. One must go.
                largest = max(self._streams.values(), key=lambda stream: stream.pending)
                self._fail(
                    largest,
                    LimitExceededError(
                        f"the connection holds {self._pending} bytes of incomplete messages; "
                        f"max_pending_bytes_per_connection allows {self._limits.max_pending_bytes_per_connection}"
                    ),
                )
            return
        if self._owed:
            increment = self._owed
            self._outgoing.raw(FRAME_HEADER.pack(0, 4, _WINDOW_UPDATE, 0, 0) + increment.to_bytes(4, "big"))
        if self._owed_by_h2:
            self._h2.increment_flow_control_window(self._owed_by_h2)
            self._outgoing.take_h2()
        self._window += owed
        self._owed = self._owed_by_h2 = 0

    # ------------------------------------------------------------------------------------------------ other frames

    def _charge(self, bucket: TokenBucket, count: int) -> None:
        if not bucket.take(count, self._now):
            raise _FatalError(ErrorCodes.ENHANCE_YOUR_CALM, f"the peer exceeded the limit {bucket.name}")

    def _frame(self, kind: int, flags: int, stream_id: int, length: int, data: bytes, position: int) -> None:
        if not self._settings_seen:
            if kind != _SETTINGS or flags & _ACK:
                raise _FatalError(ErrorCodes.PROTOCOL_ERROR, "the peer's first frame is not SETTINGS")
            self._settings_seen = True
        in_block = self._header_block_id
        if in_block and (kind != _CONTINUATION or stream_id != in_block):
            raise _FatalError(ErrorCodes.PROTOCOL_ERROR, "a header block was interrupted by another frame")
        if kind == _DATA:
            self._odd_data(flags, stream_id, length, data, position)
            return
        if kind in (_HEADERS, _CONTINUATION):
            self._count_headers(kind, flags, stream_id, length)
        elif kind == _RST_STREAM:
            if not self._client:
                self._charge(self._resets, 1)
        elif kind == _PING:
            if not flags & _ACK:
                self._charge(self._pings, 1)
        elif kind == _SETTINGS:
            if not flags & _ACK:
                self._charge(self._settings, 1)
        elif kind == _GOAWAY:
            self._take_goaway(stream_id, length, data, position + FRAME_HEADER_SIZE)
            return
        elif kind != _WINDOW_UPDATE:
            # PRIORITY and extension frames mean nothing here (a client that gets PUSH_PROMISE is told by h2).
            self._charge(self._empty, 1)
            if kind != _PUSH:
                return
        self._pass_to_h2(data[position : position + FRAME_HEADER_SIZE + length])

    def _count_headers(self, kind: int, flags: int, stream_id: int, length: int) -> None:
        self._charge(self._headers, length + FRAME_HEADER_SIZE)
        if kind == _HEADERS:
            self._header_block_bytes = 0
            if not self._client and stream_id > self._highest_stream_id:
                self._charge(self._opened, 1)
        elif not length:
            self._charge(self._empty, 1)
        self._header_block_bytes += length
        if self._header_block_bytes > self._limits.max_header_bytes:
            raise _FatalError(ErrorCodes.ENHANCE_YOUR_CALM, "the peer exceeded the limit max_header_bytes")
        self._header_block_id = 0 if flags & _END_HEADERS else stream_id

    def _take_goaway(self, stream_id: int, length: int, data: bytes, body: int) -> None:
        if length < 8 or stream_id:
            raise _FatalError(ErrorCodes.FRAME_SIZE_ERROR, "a GOAWAY frame is malformed")
        last = int.from_bytes(data[body : body + 4], "big") & 0x7FFFFFFF
        code = int.from_bytes(data[body + 4 : body + 8], "big")
        text = data[body + 8 : body + length].decode("utf-8", "replace")
        self._peer_draining = True
        self._events.append(GoAwayReceived(last, code, text))
        if self._client:
            for stream in list(self._streams.values()):
                if stream.stream_id > last and not stream.remote_closed:
                    self._close_both(stream)
                    self._events.append(StreamReset(stream.stream_id, int(ErrorCodes.REFUSED_STREAM)))

    def _pass_to_h2(self, frame: bytes) -> None:
        for event in self._h2.receive_data(frame):
            handler = _H2_HANDLERS.get(type(event))
            if handler is not None:
                handler(self, event)
        self._outgoing.take_h2()

    def _on_window(self, event: h2.events.WindowUpdated) -> None:
        stream = self._streams.get(event.stream_id or 0)
        if stream is not None and stream.blocked:
            stream.blocked = False
            self._outgoing.wake(stream)

    def _on_settings(self, event: h2.events.RemoteSettingsChanged) -> None:
        for stream in self._streams.values():
            if stream.blocked:
                stream.blocked = False
                self._outgoing.wake(stream)

    def _on_request(self, event: h2.events.RequestReceived) -> None:
        stream_id = event.stream_id
        assert stream_id is not None
        self._highest_stream_id = stream_id
        if self._draining or len(self._streams) >= self._limits.max_streams_per_connection:
            # Not looked at, so the peer may retry elsewhere. A slot is held until finish(), whatever the peer resets.
            if not self._draining:
                self._charge(self._resets, 1)
            self._h2.reset_stream(stream_id, ErrorCodes.REFUSED_STREAM)
            return
        pseudo: dict[str, str] = {}
        metadata: dict[str, str] = {}
        for name, value in event.headers:
            target = pseudo if name[0] == ":" or name in _NOT_METADATA or name == "content-length" else metadata
            target[name] = f"{target[name]},{value}" if name in target else value  # type: ignore[index]
        path = pseudo.get(":path", "")
        content_type = pseudo.get("content-type", "")
        stream = WireStream(stream_id, self._h2.streams[stream_id], self._window_size, self._message_limit(path))
        stream.checked = "content-length" in pseudo
        if pseudo.get(":method") != "POST":
            self._answer_http(stream, 405, f"gRPC calls use POST, not {pseudo.get(':method')}")
            return
        if not content_type.startswith("application/grpc"):
            self._answer_http(stream, 415, f"content-type must begin with application/grpc; this one is {content_type!r}")
            return
        self._streams[stream_id] = stream
        timeout_s = None
        error = None
        if "grpc-timeout" in pseudo:
            try:
                timeout_s = parse_timeout(pseudo["grpc-timeout"])
            except InvalidArgumentError as exc:
                error = exc
        self._events.append(RequestReceived(stream_id, path, metadata, timeout_s, content_type))
        if error is not None:
            self._fail(stream, error)

    def _answer_http(self, stream: WireStream, status: int, text: str) -> None:
        # For peers that speak HTTP/2 and not gRPC: an answer that a person can read. The stream takes no slot.
        body = (text + "\n").encode()
        stream_id = stream.stream_id
        self._h2.send_headers(stream_id, [(":status", str(status)), ("content-type", "text/plain; charset=utf-8")])
        if self._h2.local_flow_control_window(stream_id) >= len(body):
            self._h2.send_data(stream_id, body)
        self._h2.end_stream(stream_id)
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
        self._events.append(
            TrailersReceived(stream.stream_id, status, headers.get(ERROR_TRAILER, ""), message, _own(headers))
        )

    def _fail_call(self, stream: WireStream, status: Status, text: str) -> None:
        stream.drop_partial()
        self._reset(stream, ErrorCodes.CANCEL)
        self._events.append(TrailersReceived(stream.stream_id, status, "", text, {}))

    def _on_end(self, event: h2.events.StreamEnded) -> None:
        stream = self._streams.get(event.stream_id or 0)
        if stream is None or stream.remote_closed:
            # Trailers close the stream before this event comes; then only a server has something left to say.
            if stream is not None and not self._client and not stream.discarding:
                self._end_of_request(stream)
            return
        self._close_remote(stream)
        if self._client:
            if not stream.discarding:
                self._fail_call(stream, Status.INTERNAL, "the peer ended the response without a status")
        elif not stream.discarding:
            self._end_of_request(stream)

    def _end_of_request(self, stream: WireStream) -> None:
        if stream.truncated:
            self._fail(stream, ProtocolError("the request ended inside a message"))
        else:
            self._events.append(EndOfStream(stream.stream_id))

    def _on_reset(self, event: h2.events.StreamReset) -> None:
        if not event.remote_reset and not self._client:
            # h2 reset it, for something that the peer did wrong (MadeYouReset): that counts like a reset by the peer.
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
        stream.drop_queue()
        if stream.finished:
            self._streams.pop(stream.stream_id, None)

    # ------------------------------------------------------------------------------------------------ actions

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

        ``max_message_bytes`` bounds each message of the response. Raises UnavailableError when the connection takes no new
        streams, and LimitExceededError when the peer's limit of concurrent streams is reached.
        """
        if self._terminated is not None or self._peer_draining:
            raise UnavailableError("the connection takes no new calls; open another one")
        headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", authority),
            ("te", "trailers"),
            ("content-type", content_type),
        ]
        if timeout_s is not None:
            headers.append(("grpc-timeout", format_timeout(timeout_s)))
        headers.extend(_checked(metadata))
        try:
            stream_id = self._h2.get_next_available_stream_id()
            self._h2.send_headers(stream_id, headers)
        except TooManyStreamsError as exc:
            raise LimitExceededError(f"the broker takes no more streams on this connection: {exc}") from exc
        except H2Error as exc:
            raise UnavailableError(f"the connection takes no new calls: {exc}") from exc
        self._highest_stream_id = stream_id
        self._streams[stream_id] = WireStream(
            stream_id, self._h2.streams[stream_id], self._window_size, max_message_bytes
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
        self._h2.send_headers(stream_id, [(":status", "200"), ("content-type", content_type), *_checked(metadata)])
        self._outgoing.take_h2()

    def send_message(self, stream_id: int, data: bytes | tuple[bytes, ...]) -> bool:
        """Queue one message; a tuple is one message in several buffers. False when the stream is closed for sending.

        The buffers must not change until they are sent.
        """
        stream = self._streams.get(stream_id)
        if stream is None or stream.local_closed or stream.ending or self._terminated is not None:
            return False
        self._outgoing.message(stream, data)
        return True

    def end_stream(self, stream_id: int) -> None:
        """Client: send nothing more on a stream, once its queue is sent."""
        self._begin_end(stream_id, None)

    def send_trailers(
        self,
        stream_id: int,
        status: Status,
        message: str = "",
        code: str = "",
        metadata: Mapping[str, str] | None = None,
        content_type: str = "application/grpc",
    ) -> None:
        """Server: end a call with a status, once its queue is sent; without any response headers sent, trailers only."""
        trailers = [("grpc-status", str(int(status)))]
        if message:
            trailers.append(("grpc-message", encode_message(message)))
        if code:
            trailers.append((ERROR_TRAILER, code))
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
        else:
            self._h2.send_headers(stream.stream_id, trailers, end_stream=True)
        self._outgoing.take_h2()
        if stream.finished:
            self._drop(stream)

    def reset(self, stream_id: int, code: int = ErrorCodes.CANCEL) -> None:
        """Abandon a stream in both directions. Its slot stays taken until :meth:`finish`."""
        stream = self._streams.get(stream_id)
        if stream is not None and self._terminated is None:
            self._reset(stream, code)

    def _reset(self, stream: WireStream, code: int) -> None:
        if not stream.h2.closed:
            self._h2.reset_stream(stream.stream_id, code)
            self._outgoing.take_h2()
        self._close_both(stream)

    def finish(self, stream_id: int) -> None:
        """Free a stream's slot: the application's work for it has ended. Gives back all its bytes.

        What is still queued is sent first; a stream that the application did not end is reset.
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
        if not stream.local_closed and not stream.ending:
            self._reset(stream, ErrorCodes.CANCEL if self._client else ErrorCodes.INTERNAL_ERROR)
        elif stream.local_closed:
            self._drop(stream)
        self._return_connection_credit()

    def _drop(self, stream: WireStream) -> None:
        if not stream.remote_closed:
            # The answer is complete and the peer still sends: ask it to stop (RFC 9113, 8.1).
            self._reset(stream, ErrorCodes.CANCEL if self._client else ErrorCodes.NO_ERROR)
        self._streams.pop(stream.stream_id, None)

    def ping(self, payload: bytes) -> None:
        """Send a PING with a payload of eight bytes."""
        if self._terminated is None:
            self._h2.ping(payload)
            self._outgoing.take_h2()

    def goaway(self, message: str = "") -> None:
        """Announce that no new streams are taken; the open ones go on (new ones are refused, and may be retried)."""
        if self._terminated is None and not self._draining:
            self._draining = True
            self._goaway(ErrorCodes.NO_ERROR, message)

    def terminate(self, message: str, code: int = ErrorCodes.NO_ERROR) -> None:
        """End the connection with GOAWAY: flush :meth:`data_to_send`, then close."""
        if self._terminated is None:
            self._events = []
            self._terminate(code, message)

    def _goaway(self, code: int, text: str) -> None:
        last = 0 if self._client else self._highest_stream_id
        debug = text.encode("utf-8", "replace")[:512]
        body = last.to_bytes(4, "big") + int(code).to_bytes(4, "big") + debug
        self._outgoing.raw(_header(len(body), _GOAWAY) + body)

    def data_to_send(self, max_bytes: int = 1024 * 1024) -> bytes:
        """Return the bytes to write next: all control frames and about ``max_bytes`` of messages. Call until empty."""
        return self._outgoing.take(max_bytes if self._terminated is None else 0)


def _header(length: int, kind: int) -> bytes:
    return FRAME_HEADER.pack(length >> 8, length & 0xFF, kind, 0, 0)


def _to_dict(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in headers:
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
    # h2's validation of outgoing headers is off for speed; these are the only ones that are not our own constants.
    if not metadata:
        return ()
    for name, value in metadata.items():
        if not _METADATA_NAME.fullmatch(name) or not _METADATA_VALUE.fullmatch(value):
            raise InvalidArgumentError(f"metadata {name!r}: names are lower-case ASCII, values printable ASCII")
    return metadata.items()


_H2_HANDLERS: dict[type[h2.events.Event], Callable[[GrpcConnection, h2.events.Event], None]] = {
    h2.events.RequestReceived: GrpcConnection._on_request,
    h2.events.ResponseReceived: GrpcConnection._on_response,
    h2.events.TrailersReceived: GrpcConnection._on_trailers,
    h2.events.StreamEnded: GrpcConnection._on_end,
    h2.events.StreamReset: GrpcConnection._on_reset,
    h2.events.WindowUpdated: GrpcConnection._on_window,
    h2.events.RemoteSettingsChanged: GrpcConnection._on_settings,
    h2.events.PingAckReceived: GrpcConnection._on_ping_ack,
}
