"""The base of a connection: its state, abuse limits, and operations that concern no stream."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Literal

import h2.events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.settings import SettingCodes, Settings

from danube.model.limits import Limits
from danube.wire._abuse import Allowance
from danube.wire._events import ConnectionTerminated, Event, RequestReceived
from danube.wire._hpack import Repeats
from danube.wire._outgoing import FRAME_HEADER, MAX_FRAME_BYTES, Outgoing
from danube.wire._stream import WireStream

__all__ = ["ConnectionCore", "FatalError", "FrameType"]


class FrameType:
    """HTTP/2 frame types and flags, by number."""

    DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
    END_STREAM = ACK = 0x1
    END_HEADERS = 0x4
    PADDED = 0x8


class FatalError(Exception):
    """Internal: the connection cannot continue. Never leaves :meth:`danube.wire.connection.GrpcConnection.receive`."""

    def __init__(self, code: ErrorCodes, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class ConnectionCore(ABC):
    """State of one connection. ``GrpcConnection`` consists of this, ``Receiving`` and ``Calls``, in that order."""

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
        self._send_window = self._h2.remote_settings.initial_window_size
        self._repeats: Repeats[tuple[RequestReceived, int, int]] = Repeats(self._h2.decoder)
        self._checked_request: tuple[RequestReceived, int, int] | None = None
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
        # Incoming flow control of the connection: WireStream has the same numbers for a stream.
        self._window = 0
        self._pending = 0
        self._complete = 0
        self._owed = 0
        self._owed_by_h2 = 0
        self._pending_limit = limits.max_pending_bytes_per_connection - self._connection_window
        self._resets = Allowance("max_resets_per_minute", limits.max_resets_per_minute, 60.0, now)
        self._pings = Allowance("max_pings_per_minute", limits.max_pings_per_minute, 60.0, now)
        self._settings = Allowance("max_settings_per_minute", limits.max_settings_per_minute, 60.0, now)
        self._empty = Allowance("max_empty_data_per_minute", limits.max_empty_data_per_minute, 60.0, now)
        self._opened = Allowance("max_new_streams_per_second", limits.max_new_streams_per_second, 1.0, now)
        self._headers = Allowance("max_header_bytes_per_second", limits.max_header_bytes_per_second, 1.0, now)
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
        if not self._client:
            # Huffman coding is pure Python: 2.4 ms for each KiB of an error's text.
            conn.encoder.encode = partial(  # type: ignore[method-assign]
                conn.encoder.encode, huffman=False
            )
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
        """The reason why the connection has ended, None before."""
        return self._terminated

    @property
    def is_used(self) -> bool:
        """Whether a stream was ever opened."""
        return self._highest_stream_id > 0

    @property
    def open_streams(self) -> int:
        """Number of streams whose slot is occupied."""
        return len(self._streams)

    @property
    def pending_bytes(self) -> int:
        """Bytes received and not yet returned by the application."""
        return self._pending

    @property
    def wants_write(self) -> bool:
        """Whether :meth:`data_to_send` would return something."""
        return bool(self._outgoing) and (not self._preface_left or self._terminated is not None)

    def send_buffered(self, stream_id: int) -> int:
        """Return the bytes of a stream queued for the peer's window or for the next write."""
        stream = self._streams.get(stream_id)
        return stream.queued if stream is not None else 0

    @property
    def waiting_bytes(self) -> int:
        """Bytes of all streams queued for the peer's windows or for the next write, and of other frames."""
        outgoing = self._outgoing
        return outgoing.queued + outgoing.control_bytes

    @property
    def framed_bytes(self) -> int:
        """Bytes of messages that :meth:`data_to_send` has returned so far."""
        return self._outgoing.framed

    def can_send(self, stream_id: int) -> bool:
        """Whether messages can still be sent on a stream."""
        stream = self._streams.get(stream_id)
        return stream is not None and not stream.local_closed and not stream.ending

    def _terminate(self, code: int, text: str) -> None:
        self._h2.clear_outbound_data_buffer()
        self._goaway(code, text)
        self._terminated = ConnectionTerminated(int(code), text)
        self._events.append(self._terminated)

    def _charge(self, allowance: Allowance, count: int) -> None:
        if not allowance.take(count, self._now):
            raise FatalError(ErrorCodes.ENHANCE_YOUR_CALM, f"the peer exceeded the limit {allowance.name}")

    def _pass_to_h2(self, frame: bytes) -> None:
        for event in self._h2.receive_data(frame):
            self._on_h2(event)
        self._outgoing.take_h2()

    @abstractmethod
    def _on_h2(self, event: h2.events.Event) -> None:
        """Handle an event of h2."""

    @abstractmethod
    def _end(self, stream: WireStream) -> None:
        """Close the sending side of a stream with an empty queue."""

    @abstractmethod
    def _reset(self, stream: WireStream, code: int) -> None:
        """Abandon a stream."""

    def ping(self, payload: bytes) -> None:
        """Send a PING with a payload of eight bytes."""
        if self._terminated is None:
            self._h2.ping(payload)
            self._outgoing.take_h2()

    def goaway(self, message: str = "") -> None:
        """Announce that no new streams are accepted; open ones continue (new ones are refused, and may be retried)."""
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
        self._outgoing.raw(_header(len(body), FrameType.GOAWAY) + body)

    def data_to_send(self, max_bytes: int = 1024 * 1024) -> bytes:
        """Return the bytes to write next: control frames, and messages up to ``max_bytes`` in all. Call until empty."""
        if self._preface_left and self._terminated is None:
            return b""  # a server sends nothing before the peer's HTTP/2 preface has arrived
        return self._outgoing.take(max_bytes if self._terminated is None else 0)


def _header(length: int, kind: int) -> bytes:
    return FRAME_HEADER.pack(length >> 8, length & 0xFF, kind, 0, 0)
