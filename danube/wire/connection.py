"""The state machine of one gRPC connection over HTTP/2, without I/O: bytes and time in, events and bytes out.

h2 implements the rules of HTTP/2: header compression, settings, stream states, outbound windows. In front of it is a
separate frame splitter, for four reasons:

* DATA payload goes straight into message assembly instead of through h2's four copies;
* requests that repeat an earlier one are served without h2 (:mod:`danube.wire._repeated`);
* all frames are counted to stop floods, including frames that h2 handles silently (resets of closed streams,
  CONTINUATION);
* GOAWAY is graceful here: h2 would refuse to finish the open streams after one.

Received bytes are returned to the peer as window credit by the rules in :mod:`danube.wire._receiving`.

Too many resets, PING, SETTINGS, empty DATA, new streams or header bytes end the connection with GOAWAY and
ENHANCE_YOUR_CALM. A stream occupies a slot until the application calls :meth:`GrpcConnection.finish`, even if the peer
has reset it, so that unfinished work counts.
"""

from __future__ import annotations

import re

from h2.errors import ErrorCodes
from h2.exceptions import DenialOfServiceError

from danube.wire._calls import ERROR_TRAILER
from danube.wire._core import FatalError, FrameType
from danube.wire._events import ConnectionTerminated, Event, GoAwayReceived, StreamReset
from danube.wire._outgoing import FRAME_HEADER, FRAME_HEADER_SIZE, MAX_FRAME_BYTES
from danube.wire._repeated import RepeatedCalls

__all__ = ["ERROR_TRAILER", "GrpcConnection"]

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HTTP1 = re.compile(rb"[A-Z]{3,10} ")
_MAYBE_HTTP1 = re.compile(rb"[A-Z]{1,10}")
_TLS_HELLO = re.compile(rb"\x16\x03[\x00-\x04]?")
_TLS_REFUSAL = b"\x15\x03\x01\x00\x02\x02\x28"
"""A TLS record: fatal alert, handshake_failure."""

_DATA = FrameType.DATA
_PADDED = FrameType.PADDED
_END_STREAM = FrameType.END_STREAM


def _http1_answer(http_url: str) -> bytes:
    """Return what a browser or curl gets. ``http_url`` is where HTTP/1 is spoken; empty: nowhere."""
    use = f"Use a Danube client, or {http_url} for HTTP" if http_url else "Use a Danube client"
    body = f"This port speaks gRPC over HTTP/2 with prior knowledge. {use}.\n".encode()
    head = (
        "HTTP/1.1 505 HTTP Version Not Supported\r\nContent-Type: text/plain\r\nConnection: close\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class GrpcConnection(RepeatedCalls):
    """The state machine of one connection, for either role.

    ``now`` is in seconds on any monotonic clock. ``message_limit`` (servers) returns the largest request message in
    bytes for a path. A client passes the limit with each request. Errors of the peer are returned by :meth:`receive` as
    events; methods do not raise them unless documented.

    Attributes:
        http_url: where a peer that speaks HTTP/1 is sent; empty: nowhere.
    """

    http_url: str = ""

    def receive(self, data: bytes, now: float) -> list[Event]:
        """Process bytes that arrived at time ``now``, return their events. Never raises for errors of the peer."""
        if self._terminated is not None:
            return []
        self._now = now
        events = self._events = []
        try:
            self._split(data)
            self._return_connection_credit(receiving=True)
        except FatalError as fatal:
            self._terminate(fatal.code, fatal.text)
        except DenialOfServiceError as exc:
            self._terminate(ErrorCodes.ENHANCE_YOUR_CALM, str(exc))
        except Exception as exc:  # noqa: BLE001
            # h2, hpack and hyperframe may raise any exception for invalid input; it ends only this connection.
            code = getattr(exc, "error_code", ErrorCodes.PROTOCOL_ERROR)
            self._terminate(code, f"{type(exc).__name__}: {exc}")
        return events

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
        # Return the position of the first frame, or -1 if `data` needs no further processing.
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
            self._outgoing.raw(_http1_answer(self.http_url))
            self._terminated = ConnectionTerminated(
                int(ErrorCodes.HTTP_1_1_REQUIRED), "the peer speaks HTTP/1; this port takes only HTTP/2"
            )
            self._events.append(self._terminated)
            return -1
        if _TLS_HELLO.match(data):
            self._outgoing.take(0)
            self._outgoing.raw(_TLS_REFUSAL)
            self._terminated = ConnectionTerminated(
                int(ErrorCodes.PROTOCOL_ERROR), "the peer speaks TLS, and this port does not; it should use danube://"
            )
            self._events.append(self._terminated)
            return -1
        if len(data) <= 10 and _MAYBE_HTTP1.fullmatch(data):
            self._tail = data
            return -1
        raise FatalError(ErrorCodes.PROTOCOL_ERROR, "the peer's first bytes are not an HTTP/2 preface")

    def _refuse_frame(self, data: bytes, position: int, length: int) -> None:
        if not self._settings_seen and data.startswith(b"HTTP/", position):
            raise FatalError(
                ErrorCodes.HTTP_1_1_REQUIRED, "the peer answered in HTTP/1; this is not the port of a broker"
            )
        raise FatalError(ErrorCodes.FRAME_SIZE_ERROR, f"a frame of {length} bytes exceeds {MAX_FRAME_BYTES} bytes")

    def _frame(self, kind: int, flags: int, stream_id: int, length: int, data: bytes, position: int) -> None:
        if not self._settings_seen:
            if kind != FrameType.SETTINGS or flags & FrameType.ACK:
                raise FatalError(ErrorCodes.PROTOCOL_ERROR, "the peer's first frame is not SETTINGS")
            self._settings_seen = True
        in_block = self._header_block_id
        if in_block and (kind != FrameType.CONTINUATION or stream_id != in_block):
            raise FatalError(ErrorCodes.PROTOCOL_ERROR, "a header block was interrupted by another frame")
        if kind == _DATA:
            self._odd_data(flags, stream_id, length, data, position)
            return
        if kind in (FrameType.HEADERS, FrameType.CONTINUATION):
            self._count_headers(kind, flags, stream_id, length)
            if not self._client:
                self._take_headers(kind, flags, stream_id, data, position, position + FRAME_HEADER_SIZE + length)
                return
        elif kind == FrameType.RST_STREAM:
            if not self._client:
                self._charge(self._resets, 1)
            if length == 4 and self._take_reset(stream_id, data, position + FRAME_HEADER_SIZE):
                return
        elif kind == FrameType.WINDOW_UPDATE:
            if length == 4:
                body = position + FRAME_HEADER_SIZE
                increment = int.from_bytes(data[body : body + 4], "big") & 0x7FFFFFFF
                if self._take_window_update(stream_id, increment):
                    return
        elif kind == FrameType.PING:
            if not flags & FrameType.ACK:
                # As in gRPC servers: clients that measure their bandwidth send a PING for each answer, which is not a
                # flood.
                if self._outgoing.sent_data:
                    self._outgoing.sent_data = False
                else:
                    self._charge(self._pings, 1)
        elif kind == FrameType.SETTINGS:
            if not flags & FrameType.ACK:
                self._charge(self._settings, 1)
        elif kind == FrameType.GOAWAY:
            self._take_goaway(stream_id, length, data, position + FRAME_HEADER_SIZE)
            return
        else:
            # PRIORITY and extension frames are ignored (h2 reports PUSH_PROMISE to a client).
            self._charge(self._empty, 1)
            if kind != FrameType.PUSH_PROMISE:
                return
        self._pass_to_h2(data[position : position + FRAME_HEADER_SIZE + length])

    def _count_headers(self, kind: int, flags: int, stream_id: int, length: int) -> None:
        self._charge(self._headers, length + FRAME_HEADER_SIZE)
        if kind == FrameType.HEADERS:
            self._header_block_bytes = 0
            if not self._client and stream_id > self._highest_stream_id:
                self._charge(self._opened, 1)
        elif not length:
            self._charge(self._empty, 1)
        self._header_block_bytes += length
        if self._header_block_bytes > self._limits.max_header_bytes:
            raise FatalError(ErrorCodes.ENHANCE_YOUR_CALM, "the peer exceeded the limit max_header_bytes")
        self._header_block_id = 0 if flags & FrameType.END_HEADERS else stream_id

    def _take_goaway(self, stream_id: int, length: int, data: bytes, body: int) -> None:
        if length < 8 or stream_id:
            raise FatalError(ErrorCodes.FRAME_SIZE_ERROR, "a GOAWAY frame is malformed")
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
