"""The receiving half of a connection: assembles DATA frames into messages, and returns window credit to the peer.

The connection's window is returned on receipt, so no stream stalls another, as long as the bytes that the application
holds stay within ``max_pending_bytes_per_connection``. A stream's window is returned message by message, when the
application calls :meth:`Receiving.credit`: that is the back-pressure. A message larger than the rest of its
stream's window gets the difference as a loan, at once, up to the stream's message limit; the loan is repaid out of
later credit. So a started message can always end, and a stream never holds more than one window and one message.
"""

from __future__ import annotations

from abc import abstractmethod

from h2.errors import ErrorCodes

from danube.model.errors import DanubeError, LimitExceededError
from danube.wire._core import ConnectionCore, FatalError, FrameType
from danube.wire._events import MessageReceived, StreamFailed
from danube.wire._outgoing import FRAME_HEADER, FRAME_HEADER_SIZE
from danube.wire._stream import WireStream

__all__ = ["Receiving"]


class Receiving(ConnectionCore):
    """DATA frames and flow control of received data."""

    def _consume_window(self, stream: WireStream | None, size: int) -> None:
        self._window -= size
        if self._window < 0:
            raise FatalError(ErrorCodes.FLOW_CONTROL_ERROR, "the peer sent more than the connection's window")
        if stream is not None:
            stream.window -= size
            if stream.window < 0:
                raise FatalError(
                    ErrorCodes.FLOW_CONTROL_ERROR, f"the peer sent more than the window of stream {stream.stream_id}"
                )

    def _begin_data(self, stream: WireStream, length: int, flags: int) -> None:
        if stream.remote_closed and not stream.discarding:
            raise FatalError(ErrorCodes.STREAM_CLOSED, f"DATA on stream {stream.stream_id} after its end")
        if length:
            self._consume_window(stream, length)
            stream.received += length
        elif not flags & FrameType.END_STREAM:
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
        elif not stream.remote_closed:
            # `missing` includes the rest of the current frame, which has been deducted from the window already.
            lack = stream.missing - self._data_left - stream.window
            if lack > 0 and stream.missing > 0:
                # Owed credit is deducted from the loan. Otherwise the next message could begin, and take a loan, too.
                loan = max(0, lack - stream.owed)
                stream.loan += loan
                self._open_window(stream, loan)

    def _end_data(self, stream: WireStream) -> None:
        if stream.remote_closed:
            return
        if stream.h2 is None:
            if stream.expected not in (-1, stream.received):
                raise FatalError(
                    ErrorCodes.PROTOCOL_ERROR,
                    f"stream {stream.stream_id} had {stream.received} bytes and a content-length of {stream.expected}",
                )
            self._ended(stream)
            return
        # h2 must be notified that the peer has closed its side: it gets an empty DATA frame with that flag.
        self._pass_to_h2(FRAME_HEADER.pack(0, 0, FrameType.DATA, FrameType.END_STREAM, stream.stream_id))

    def _odd_data(self, flags: int, stream_id: int, length: int, data: bytes, position: int) -> None:
        """Handle DATA frames outside of the hot path: padded, with a content-length, or not for an open stream."""
        stream = self._streams.get(stream_id)
        if stream is None:
            if stream_id == 0 or stream_id > self._highest_stream_id:
                raise FatalError(ErrorCodes.PROTOCOL_ERROR, f"DATA on stream {stream_id}, which was never opened")
            # The stream has ended here, possibly unknown to the peer. Its bytes have used the window, so they are
            # returned.
            self._consume_window(None, length)
            self._owed += length
            if not length:
                self._charge(self._empty, 1)
            return
        self._begin_data(stream, length, flags)
        start = position + FRAME_HEADER_SIZE
        stop = start + length
        padding = 0
        if flags & FrameType.PADDED:
            if not length or data[start] >= length:
                raise FatalError(ErrorCodes.PROTOCOL_ERROR, f"DATA on stream {stream_id} is padded beyond its length")
            padding = data[start] + 1
            if padding == length:
                self._charge(self._empty, 1)
            start += 1
            stop -= padding - 1
        if padding:
            stream.received -= padding
            if stream.checked:
                self._owed_by_h2 += padding
            else:
                self._owed += padding
            stream.owed += padding
        if stream.checked:
            # h2 compares the length with the content-length, and closes the stream if this is its end.
            self._payload(stream, data, start, stop)
            assert stream.h2 is not None
            if not stream.h2.closed:
                self._pass_to_h2(data[position : position + FRAME_HEADER_SIZE + length])
        else:
            self._payload(stream, data, start, stop)
            if flags & FrameType.END_STREAM:
                self._end_data(stream)

    @abstractmethod
    def _ended(self, stream: WireStream) -> None:
        """The peer has closed its side of a stream."""

    def _fail(self, stream: WireStream, error: DanubeError) -> None:
        self._release(stream, stream.pending - stream.complete)
        stream.drop_partial()
        if self._client:
            self._reset(stream, ErrorCodes.CANCEL)
        self._events.append(StreamFailed(stream.stream_id, error))

    def credit(self, stream_id: int, size: int) -> None:
        """Return ``size`` bytes of credit: the application has processed messages of that ``flow_size``.

        Finished streams are ignored, because :meth:`finish` returns everything.
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
            self._outgoing.raw(_window_update(stream.stream_id, increment))

    def _return_connection_credit(self, *, receiving: bool = False) -> None:
        owed = self._owed + self._owed_by_h2
        if owed * 4 < self._connection_window or self._terminated is not None:
            return
        room = owed
        if self._pending > self._pending_limit:
            if self._complete:
                return  # wait until the application returns credit
            # All pending bytes belong to incomplete messages, so the application cannot return credit. They get the
            # rest of the budget; when it is used up, one message must be dropped.
            budget = self._limits.max_pending_bytes_per_connection
            if receiving and not self._window and self._pending >= budget:
                self._fail_largest()
            room = budget - self._pending - self._window
        plain = min(self._owed, room)
        if plain > 0:
            self._outgoing.raw(_window_update(0, plain))
            self._owed -= plain
            self._window += plain
            room -= plain
        checked = min(self._owed_by_h2, room)
        if checked > 0:
            self._h2.increment_flow_control_window(checked)
            self._outgoing.take_h2()
            self._owed_by_h2 -= checked
            self._window += checked

    def _fail_largest(self) -> None:
        largest = max(self._streams.values(), key=lambda stream: stream.pending)
        allowed = self._limits.max_pending_bytes_per_connection
        self._fail(
            largest,
            LimitExceededError(
                f"the connection holds {self._pending} bytes of incomplete messages; max_pending_bytes_per_connection "
                f"allows {allowed}. Send fewer large messages at a time"
            ),
        )


def _window_update(stream_id: int, increment: int) -> bytes:
    return FRAME_HEADER.pack(0, 4, FrameType.WINDOW_UPDATE, 0, stream_id) + increment.to_bytes(4, "big")
