"""The send side of a connection: queues messages per stream, and frames them as late as possible.

Messages stay in a queue for each stream until bytes are requested. Small messages of one stream then share a DATA
frame, large ones are split, and streams take turns frame by frame, so that no stream starves another. The payload is
copied once, by the join that makes the bytes for the socket.

A DATA frame::

    0           3        4        5                   9
    +-----------+--------+--------+-------------------+---------...
    |  length   |  0x0   | flags  |     stream id     | payload     flags: 0x1 = END_STREAM
    +-----------+--------+--------+-------------------+---------...

h2 keeps the connection's window and the states of streams; only the framing of DATA is done here, because h2 copies
each payload five times on its way out.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable

from h2.connection import H2Connection

from danube.wire._grpc import PREFIX
from danube.wire._stream import WireStream

__all__ = ["FRAME_HEADER", "FRAME_HEADER_SIZE", "MAX_FRAME_BYTES", "MAX_WHOLE_BYTES", "Outgoing"]

FRAME_HEADER = struct.Struct(">HBBBL")
FRAME_HEADER_SIZE = FRAME_HEADER.size
MAX_FRAME_BYTES = 64 * 1024
"""Largest frame sent or accepted. Larger ones gain nothing and delay other streams."""
MAX_WHOLE_BYTES = 256 * 1024
"""Limit of complete answers queued for the next write."""

_END_STREAM = 0x1
_END_HEADERS = 0x4
_HEADERS = 1
_CONTINUATION = 9


class Outgoing:
    """The send side of a connection. ``end`` closes a stream with an empty queue."""

    __slots__ = ("_chunks", "_end", "_h2", "_ready", "_whole_bytes", "control_bytes", "framed", "queued", "sent_data")

    def __init__(self, h2: H2Connection, end: Callable[[WireStream], None]) -> None:
        self._h2 = h2
        self._end = end
        self._chunks: list[bytes | memoryview] = []
        self._ready: deque[WireStream] = deque()
        self._whole_bytes = 0
        self.queued = 0
        """Bytes of messages in the queues of all streams."""
        self.framed = 0
        """Total bytes of messages that have left those queues for the socket."""
        self.control_bytes = 0
        """Bytes of frames without messages queued for the next write."""
        self.sent_data = False
        """Whether DATA was sent since this was last reset to False."""

    def __bool__(self) -> bool:
        return bool(self._chunks) or (bool(self._ready) and self._h2.outbound_flow_control_window > 0)

    def raw(self, frame: bytes) -> None:
        """Send bytes that are already framed."""
        self.control_bytes += len(frame)
        self._chunks.append(frame)

    def headers(self, stream_id: int, block: bytes, *, end: bool) -> None:
        """Send a header block for a stream that is not managed by h2."""
        flags = _END_STREAM if end else 0
        limit = self._h2.max_outbound_frame_size
        kind = _HEADERS
        while len(block) > limit:
            self.frame(kind, flags, stream_id, block[:limit])
            block = block[limit:]
            kind, flags = _CONTINUATION, 0
        self.frame(kind, flags | _END_HEADERS, stream_id, block)

    def frame(self, kind: int, flags: int, stream_id: int, body: bytes) -> None:
        """Send a frame that is not larger than the peer allows."""
        size = len(body)
        self.raw(FRAME_HEADER.pack(size >> 8, size & 0xFF, kind, flags, stream_id) + body)

    def whole(self, stream: WireStream, head: bytes, data: bytes, trailers: bytes) -> bool:
        """Send headers, one message and trailers at once, for a stream that is not managed by h2.

        Return False, and send nothing, if the windows have no room for the message, or if so much data is queued that
        the peer may not be reading: data sent this way does not count against a stream's slot.
        """
        h2 = self._h2
        size = len(data) + PREFIX.size
        room = h2.outbound_flow_control_window
        if size > room or size > stream.send_window or size > h2.max_outbound_frame_size or size > MAX_FRAME_BYTES:
            return False
        if self._whole_bytes > MAX_WHOLE_BYTES:
            return False
        self._whole_bytes += size
        self.sent_data = True
        h2.outbound_flow_control_window = room - size
        pack = FRAME_HEADER.pack
        stream_id = stream.stream_id
        self._chunks += (
            pack(len(head) >> 8, len(head) & 0xFF, _HEADERS, _END_HEADERS, stream_id),
            head,
            pack(size >> 8, size & 0xFF, 0, 0, stream_id),
            PREFIX.pack(0, size - PREFIX.size),
            data,
            pack(0, len(trailers), _HEADERS, _END_HEADERS | _END_STREAM, stream_id),
            trailers,
        )
        return True

    def take_h2(self) -> None:
        """Queue the bytes that h2 wants to send, in order with other frames."""
        data = self._h2.data_to_send()
        if data:
            self.raw(data)

    def message(self, stream: WireStream, data: bytes | tuple[bytes, ...]) -> None:
        """Queue one gRPC message; a tuple is one message in several buffers."""
        queue = stream.queue
        if type(data) is tuple:
            size = sum(map(len, data))
            queue.append(PREFIX.pack(0, size))
            queue.extend(part for part in data if part)
        else:
            size = len(data)
            queue.append(PREFIX.pack(0, size) + data if size < 256 else PREFIX.pack(0, size))  # type: ignore[operator]
            if size >= 256:
                queue.append(data)  # type: ignore[arg-type]
        size += PREFIX.size
        stream.queued += size
        self.queued += size
        self.wake(stream)

    def drop(self, stream: WireStream) -> None:
        """Drop the queue of a stream; nothing more will be sent on it."""
        self.queued -= stream.queued
        stream.drop_queue()

    def wake(self, stream: WireStream) -> None:
        """Schedule a stream with queued data again."""
        if not stream.ready:
            stream.ready = True
            self._ready.append(stream)

    def take(self, max_bytes: int) -> bytes:
        """Return the next bytes for the socket: control frames, whole answers, and DATA up to ``max_bytes`` in all."""
        if self._ready:
            self._pump(max_bytes - self.control_bytes - self._whole_bytes)
        chunks = self._chunks
        if not chunks:
            return b""
        data = b"".join(chunks)
        chunks.clear()
        self._whole_bytes = self.control_bytes = 0
        return data

    def _pump(self, budget: int) -> None:
        h2 = self._h2
        ready = self._ready
        frame_limit = min(MAX_FRAME_BYTES, h2.max_outbound_frame_size)
        while ready and budget > FRAME_HEADER_SIZE:
            stream = ready.popleft()
            if stream.local_closed:
                stream.ready = False
                continue
            if stream.queued:
                room = h2.outbound_flow_control_window
                if room <= 0:
                    ready.appendleft(stream)
                    return
                size = min(stream.queued, frame_limit, stream.send_window, room, budget - FRAME_HEADER_SIZE)
                if size <= 0:
                    stream.ready = False
                    stream.blocked = True
                    continue
                self._frame(stream, size)
                budget -= FRAME_HEADER_SIZE + size
                if stream.queued:
                    ready.append(stream)
                    continue
            stream.ready = False
            if stream.ending:
                self._end(stream)

    def _frame(self, stream: WireStream, size: int) -> None:
        stream.queued -= size
        stream.send_window -= size
        self.queued -= size
        self.framed += size
        self.sent_data = True
        self._h2.outbound_flow_control_window -= size
        flags = 0
        if stream.ending and not stream.queued and stream.trailers is None:
            # h2 would send the end of a stream as an empty DATA frame. Here h2 is only notified of the end, and the
            # flag is sent with the last data.
            self._h2.end_stream(stream.stream_id)
            self._h2.clear_outbound_data_buffer()
            stream.ending = False
            stream.local_closed = True
            flags = _END_STREAM
        chunks = self._chunks
        chunks.append(FRAME_HEADER.pack(size >> 8, size & 0xFF, 0, flags, stream.stream_id))
        queue = stream.queue
        while size:
            piece = queue[0]
            length = len(piece)
            if length <= size:
                chunks.append(piece)
                queue.popleft()
                size -= length
            else:
                view = memoryview(piece)
                chunks.append(view[:size])
                queue[0] = view[size:]
                size = 0
