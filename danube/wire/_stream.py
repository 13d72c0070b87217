"""State of one stream of a connection: its message under assembly, its two windows, its send queue."""

from __future__ import annotations

from collections import deque

from h2.stream import H2Stream

from danube.model.errors import DanubeError, MessageTooLargeError, ProtocolError, UnimplementedError
from danube.wire._grpc import PREFIX, PREFIX_SIZE

__all__ = ["SMALL_CHUNK", "Trailers", "WireStream"]

SMALL_CHUNK = 1024
"""Chunks below this are collected in one buffer, so that a message sent byte by byte costs no object per byte."""

Trailers = list[tuple[str, str]]


class WireStream:
    """State of one stream. Used only by :class:`danube.wire.connection.GrpcConnection`."""

    __slots__ = (
        "blocked",
        "checked",
        "complete",
        "discarding",
        "ending",
        "expected",
        "finished",
        "h2",
        "head",
        "length",
        "loan",
        "local_closed",
        "max_message_bytes",
        "missing",
        "owed",
        "parts",
        "pending",
        "queue",
        "queued",
        "ready",
        "received",
        "remote_closed",
        "responded",
        "send_window",
        "stream_id",
        "trailers",
        "window",
    )

    def __init__(
        self, stream_id: int, h2: H2Stream | None, window: int, send_window: int, max_message_bytes: int
    ) -> None:
        self.stream_id = stream_id
        self.h2 = h2  # None: the stream is not managed by h2, because its request was a repeat
        self.max_message_bytes = max_message_bytes
        # Receiving. `window` is what the peer may still send; `pending` was received and not returned, of which
        # `complete` is in whole messages; `loan` was granted ahead, for a large message; `owed` is to be
        # granted with the next WINDOW_UPDATE.
        self.window = window
        self.pending = 0
        self.complete = 0
        self.loan = 0
        self.owed = 0
        self.head = b""
        self.length = 0
        self.missing = -1  # -1: between messages, or inside the prefix
        self.parts: list[bytes | bytearray] = []
        self.checked = False  # h2 compares the bytes of this stream with its content-length
        self.received = 0  # bytes in DATA frames, for streams not managed by h2
        self.expected = -1  # the content-length, for streams not managed by h2
        self.discarding = False
        self.remote_closed = False
        # Sending. `send_window` is what the peer still accepts.
        self.send_window = send_window
        self.queue: deque[bytes | memoryview] = deque()
        self.queued = 0
        self.ready = False  # in the connection's queue of streams with data to send
        self.blocked = False  # waits for the peer's WINDOW_UPDATE of this stream
        self.ending = False
        self.responded = False
        self.trailers: Trailers | None = None
        self.local_closed = False
        self.finished = False

    def feed(self, data: bytes, position: int, stop: int, messages: list[bytes]) -> DanubeError | None:
        """Take ``data[position:stop]``, append the completed messages, return an error if the stream must fail."""
        while position < stop:
            if self.missing < 0:
                if not self.head and stop - position >= PREFIX_SIZE:
                    compressed, length = PREFIX.unpack_from(data, position)
                    position += PREFIX_SIZE
                else:
                    taken = min(PREFIX_SIZE - len(self.head), stop - position)
                    self.head += data[position : position + taken]
                    position += taken
                    if len(self.head) < PREFIX_SIZE:
                        return None
                    compressed, length = PREFIX.unpack(self.head)
                    self.head = b""
                error = self._check_prefix(compressed, length)
                if error is not None:
                    return error
                if stop - position >= length:
                    messages.append(data[position : position + length])
                    position += length
                else:
                    self.length = self.missing = length
                continue
            size = min(self.missing, stop - position)
            chunk = data[position : position + size]
            position += size
            self.missing -= size
            parts = self.parts
            if size >= SMALL_CHUNK:
                parts.append(chunk)
            elif parts and type(parts[-1]) is bytearray:
                parts[-1] += chunk
            else:
                parts.append(bytearray(chunk))
            if self.missing == 0:
                messages.append(b"".join(parts))
                self.parts = []
                self.missing = -1
        return None

    def _check_prefix(self, compressed: int, length: int) -> DanubeError | None:
        # Checked before any byte of the message is stored.
        if compressed == 1:
            return UnimplementedError("compressed gRPC messages are not supported; send with grpc-encoding identity")
        if compressed:
            return ProtocolError(f"a gRPC message begins with {compressed}, which is neither 0 nor 1")
        if length > self.max_message_bytes:
            return MessageTooLargeError(
                f"a message of {length} bytes exceeds this call's limit of {self.max_message_bytes} bytes; "
                "send less at a time"
            )
        return None

    @property
    def truncated(self) -> bool:
        """Whether a message has begun and is incomplete."""
        return self.missing >= 0 or bool(self.head)

    def drop_partial(self) -> None:
        """Drop the message under assembly, and ignore following data."""
        self.discarding = True
        self.parts = []
        self.head = b""
        self.missing = -1

    def drop_queue(self) -> None:
        """Drop the send queue; nothing more will be sent."""
        self.queue.clear()
        self.queued = 0
        self.trailers = None
        self.ending = False
        self.local_closed = True
