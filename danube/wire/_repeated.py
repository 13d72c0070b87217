"""Serves requests that repeat an earlier one of their connection, bypassing h2.

h2 decodes a header block, checks it by the rules of HTTP/2 and HTTP, and tracks the states of the stream; for a
small call that is most of the cost. A block that was found valid and has the same meaning as before
(:mod:`danube.wire._hpack`) need not be checked again. Such a stream is managed here alone. h2 only records that its id
is used, and treats it as closed; frames of the stream reach h2 only after it has been closed here.

Few rules remain: the content-length, if there was one, must be correct; nothing follows the end;
trailers are accepted and ignored. Windows are managed here for all streams.
"""

from __future__ import annotations

from functools import lru_cache

from h2.errors import ErrorCodes
from msgspec.structs import replace

from danube.model.errors import Status
from danube.wire._calls import Calls
from danube.wire._core import FatalError, FrameType
from danube.wire._events import RequestReceived, StreamReset
from danube.wire._hpack import literals
from danube.wire._outgoing import FRAME_HEADER_SIZE
from danube.wire._stream import WireStream

__all__ = ["RepeatedCalls"]

_REFUSED = int(ErrorCodes.REFUSED_STREAM).to_bytes(4, "big")
_PLAIN_ENDS = (FrameType.END_HEADERS, FrameType.END_HEADERS | FrameType.END_STREAM)
_OK_TRAILERS = literals([("grpc-status", str(int(Status.OK)))])


class RepeatedCalls(Calls):
    """Manages streams without h2, and sends complete answers in one step."""

    def _take_headers(self, kind: int, flags: int, stream_id: int, data: bytes, position: int, stop: int) -> None:
        """Server: handle a HEADERS or CONTINUATION frame."""
        repeats = self._repeats
        block = b""
        if kind == FrameType.HEADERS:
            stream = self._streams.get(stream_id)
            if stream is not None and stream.h2 is None:
                self._take_trailers(stream, flags, data[position + FRAME_HEADER_SIZE : stop])
                return
            if flags == FrameType.END_HEADERS:
                block = data[position + FRAME_HEADER_SIZE : stop]
                if stream_id & 1 and stream_id > self._highest_stream_id:
                    request = repeats.get(block)
                    if request is not None:
                        self._repeat(stream_id, request)
                        return
        self._pass_to_h2(data[position:stop])
        request, self._checked_request = self._checked_request, None
        if not repeats.changed() and block and request is not None:
            repeats.learn(block, request)

    def _repeat(self, stream_id: int, request: tuple[RequestReceived, int, int]) -> None:
        self._highest_stream_id = self._h2.highest_inbound_stream_id = stream_id
        if self._refuses():
            self._outgoing.frame(FrameType.RST_STREAM, 0, stream_id, _REFUSED)
            return
        first, content_length, max_message_bytes = request
        stream = WireStream(stream_id, None, self._window_size, self._send_window, max_message_bytes)
        stream.expected = content_length
        self._streams[stream_id] = stream
        self._events.append(replace(first, stream_id=stream_id))

    def _take_trailers(self, stream: WireStream, flags: int, block: bytes) -> None:
        if flags not in _PLAIN_ENDS:
            raise FatalError(ErrorCodes.PROTOCOL_ERROR, "a request's trailers must fit one frame, without padding")
        # Trailers are ignored, but they must be decoded, because they may change the header table.
        self._h2.decoder.decode(block)
        self._repeats.changed()
        if not flags & FrameType.END_STREAM:
            raise FatalError(ErrorCodes.PROTOCOL_ERROR, f"trailers do not end stream {stream.stream_id}")
        if stream.remote_closed and not stream.discarding:
            raise FatalError(ErrorCodes.STREAM_CLOSED, f"trailers on stream {stream.stream_id} after its end")
        self._end_data(stream)

    def _take_reset(self, stream_id: int, data: bytes, body: int) -> bool:
        """Handle a RST_STREAM frame; False if the stream is managed by h2."""
        stream = self._streams.get(stream_id)
        if stream is None or stream.h2 is not None:
            return False
        if stream.remote_closed and stream.local_closed:
            return True  # a stream is ended only once
        self._close_both(stream)
        self._events.append(StreamReset(stream_id, int.from_bytes(data[body : body + 4], "big")))
        return True

    def answer(self, stream_id: int, content_type: str, data: bytes) -> None:
        """Server: answer a unary call with one message and status OK, and free its slot."""
        stream = self._streams.get(stream_id)
        if (
            stream is not None
            and stream.h2 is None
            and stream.remote_closed
            and not stream.local_closed
            and not stream.responded
            and self._terminated is None
            and self._outgoing.whole(stream, _response_head(content_type), data, _OK_TRAILERS)
        ):
            self._complete -= stream.complete
            self._pending -= stream.pending
            del self._streams[stream_id]
            self._return_connection_credit()
            return
        self.send_response_headers(stream_id, content_type)
        self.send_message(stream_id, data)
        self.send_trailers(stream_id, Status.OK)
        self.finish(stream_id)


@lru_cache(maxsize=64)
def _response_head(content_type: str) -> bytes:
    return literals([(":status", "200"), ("content-type", content_type)])
