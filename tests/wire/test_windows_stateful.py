"""Windows of what comes in, against a peer that does everything it may: no byte of window is ever lost or made up.

The peer keeps its own books from the frames that it gets. Whatever becomes of streams (ended, reset by either side,
refused, finished while DATA is on its way), once the application has let go of everything the peer has its windows
back, but for what is too little to be worth a frame.
"""

from __future__ import annotations

import struct

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from wire_harness import (
    DATA,
    END_STREAM,
    GOAWAY,
    PADDED,
    RST_STREAM,
    WINDOW_UPDATE,
    RawClient,
    frame,
    greeted_server,
    grpc_message,
    parse_frames,
    server_connection,
)

from danube.model.errors import Status
from danube.model.limits import Limits
from danube.wire._events import EndOfStream, Event, MessageReceived, RequestReceived, StreamFailed
from danube.wire.connection import GrpcConnection

KIB = 1024
LIMITS = Limits(
    stream_window_bytes=64 * KIB, max_pending_bytes_per_connection=512 * KIB, max_resets_per_minute=10**9,
    max_streams_per_connection=8,
)  # fmt: skip
MAX_MESSAGE = 100 * KIB
CANCEL = struct.pack(">L", 8)


class Windows(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.server: GrpcConnection = server_connection(LIMITS, MAX_MESSAGE)
        self.raw = RawClient()
        self.connection_window = 65_535
        self.windows: dict[int, int] = {}
        """Of the streams that the peer may send on, as it knows them."""
        self.late: dict[int, int] = {}
        """The same of streams that the server may have ended: what the peer sends there was on its way."""
        self.unfinished: dict[int, bytes] = {}
        """What is left of a message that the peer has begun."""
        self.open: set[int] = set()
        """Streams that the application has not finished."""
        self.measured: set[int] = set()
        self.held: list[tuple[int, int]] = []
        """Messages that the application has not given back: stream and size."""
        self.next_id = 1
        self.give(self.raw.hello())

    def give(self, data: bytes) -> None:
        for event in self.server.receive(data, 0.0):
            self.happened(event)
        self.take()

    def happened(self, event: Event) -> None:
        match event:
            case RequestReceived():
                self.open.add(event.stream_id)
            case MessageReceived():
                self.held.append((event.stream_id, event.flow_size))
            case EndOfStream() | StreamFailed():
                pass

    def take(self) -> None:
        while data := self.server.data_to_send():
            for kind, flags, stream_id, body in parse_frames(data):
                if kind == WINDOW_UPDATE:
                    (increment,) = struct.unpack(">L", body)
                    assert increment > 0
                    if not stream_id:
                        self.connection_window += increment
                    for windows in (self.windows, self.late):
                        if stream_id in windows:
                            windows[stream_id] += increment
                elif kind == RST_STREAM or (kind == 1 and flags & END_STREAM):
                    self.gone(stream_id)
                assert kind != GOAWAY, body

    def gone(self, stream_id: int) -> None:
        window = self.windows.pop(stream_id, None)
        if window is not None:
            self.late[stream_id] = window

    # --- The peer

    @precondition(lambda self: len(self.windows) < 12)
    @rule(length=st.booleans())
    def request(self, length: bool) -> None:
        stream_id, self.next_id = self.next_id, self.next_id + 2
        self.windows[stream_id] = LIMITS.stream_window_bytes
        fields: dict[str, str] = {}
        if length:
            fields = {"content_length": "99999999"}  # h2 counts the bytes of such a stream, which never ends
            self.measured.add(stream_id)
        self.give(self.raw.request(stream_id, 0, **fields))

    def payload(self, stream_id: int, size: int) -> bytes:
        return self.unfinished.pop(stream_id, b"") or grpc_message(bytes(size))

    def send(self, windows: dict[int, int], stream_id: int, data: bytes, padding: int = 0, *, end: bool = False) -> int:
        extra = padding + 1 if padding else 0
        size = min(len(data), windows[stream_id] - extra, self.connection_window - extra, 16 * KIB - extra)
        if size <= 0:
            return 0
        flags = (PADDED if padding else 0) | (END_STREAM if end and size == len(data) else 0)
        body = (bytes([padding]) if padding else b"") + data[:size] + bytes(padding)
        windows[stream_id] -= len(body)
        self.connection_window -= len(body)
        if flags & END_STREAM:
            windows.pop(stream_id)
        self.give(frame(DATA, flags, stream_id, body))
        return size

    @precondition(lambda self: self.windows)
    @rule(
        data=st.data(), size=st.sampled_from([0, 1000, 30 * KIB, 90 * KIB, 90 * KIB, MAX_MESSAGE + 1]),
        padding=st.sampled_from([0, 0, 1, 200]), end=st.booleans(), times=st.sampled_from([1, 10, 10]),
    )  # fmt: skip
    def say(self, data: st.DataObject, size: int, padding: int, end: bool, times: int) -> None:
        stream_id = data.draw(st.sampled_from(sorted(self.windows)))
        text = self.payload(stream_id, size)
        for _ in range(times):
            if stream_id not in self.windows or not text:
                break
            text = text[self.send(self.windows, stream_id, text, padding, end=end and stream_id not in self.measured) :]
        if text:
            self.unfinished[stream_id] = text

    @precondition(lambda self: self.late)
    @rule(data=st.data(), size=st.sampled_from([1, 1000, 16 * KIB]), padding=st.sampled_from([0, 7]))
    def say_late(self, data: st.DataObject, size: int, padding: int) -> None:
        """What was on its way when the server ended the stream."""
        self.send(self.late, data.draw(st.sampled_from(sorted(self.late))), bytes(size), padding)

    @precondition(lambda self: self.windows)
    @rule(data=st.data())
    def reset(self, data: st.DataObject) -> None:
        stream_id = data.draw(st.sampled_from(sorted(self.windows)))
        del self.windows[stream_id]
        self.give(frame(RST_STREAM, 0, stream_id, CANCEL))

    # --- The application

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.held) - 1))
        self.server.credit(*self.held.pop(index))
        self.take()

    @precondition(lambda self: self.open)
    @rule(data=st.data(), answer=st.booleans())
    def finish(self, data: st.DataObject, answer: bool) -> None:
        stream_id = data.draw(st.sampled_from(sorted(self.open)))
        self.let_go(stream_id, answer)

    def let_go(self, stream_id: int, answer: bool) -> None:
        self.open.remove(stream_id)
        if answer:
            self.server.send_trailers(stream_id, Status.OK)
        self.server.finish(stream_id)
        self.held = [each for each in self.held if each[0] != stream_id]
        self.take()

    @invariant()
    def no_window_is_overdrawn(self) -> None:
        if not hasattr(self, "server"):
            return
        assert self.server.terminated is None
        assert self.connection_window == self.server._window
        server, streams = self.server, self.server._streams.values()
        assert server._window + server._owed + server._owed_by_h2 == server._connection_window
        assert server._pending == sum(stream.pending for stream in streams)
        assert server._complete == sum(stream.complete for stream in streams)
        for stream in streams:
            held = sum(size for stream_id, size in self.held if stream_id == stream.stream_id)
            assert stream.complete == held
            if stream.remote_closed or stream.discarding:
                assert stream.pending == stream.complete, "credit for unread data is kept"
            else:
                assert stream.window == self.windows[stream.stream_id]
                assert stream.window + stream.pending + stream.owed - stream.loan == LIMITS.stream_window_bytes
                assert stream.loan <= MAX_MESSAGE + 5

    def teardown(self) -> None:
        if not hasattr(self, "server"):
            return
        for stream_id in sorted(self.open):
            self.let_go(stream_id, answer=True)
        assert self.server.pending_bytes == 0
        assert self.server.open_streams == 0
        whole = self.server._connection_window
        assert whole * 3 / 4 < self.connection_window <= whole


TestWindows = Windows.TestCase
TestWindows.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize("padding", [b"", b"\x05"])
def test_the_window_of_data_for_streams_that_ended_comes_back(padding: bytes) -> None:
    """A peer that had much on its way when its streams ended could otherwise send nothing on any stream, for good."""
    server, raw = greeted_server()
    flags = PADDED if padding else 0
    window = server._window
    server.receive(raw.request(1) + frame(RST_STREAM, 0, 1, CANCEL), 0.0)
    server.finish(1)
    sent = returned = 0
    for _ in range(3 * window // 16_000):
        body = padding + bytes(16_000)
        sent += len(body)
        assert sent - returned <= window, "the window is used up"
        server.receive(frame(DATA, flags, 1, body), 0.0)
        while data := server.data_to_send():
            for kind, _, stream_id, increment in parse_frames(data):
                if (kind, stream_id) == (WINDOW_UPDATE, 0):
                    returned += struct.unpack(">L", increment)[0]
    assert server.terminated is None
    assert sent - returned < window / 4


def test_a_stream_holds_one_window_and_one_message() -> None:
    """What the application had given back was granted beside a loan, so that a second large message could begin."""
    server = server_connection(LIMITS, MAX_MESSAGE)
    raw = RawClient()
    server.receive(raw.hello() + raw.request(1), 0.0)
    server.receive(frame(DATA, 0, 1, grpc_message(b"")), 0.0)
    server.credit(1, 5)
    window, sent, left = LIMITS.stream_window_bytes - 5, 0, b""
    server.data_to_send()
    while window:
        left = left or grpc_message(bytes(90 * KIB))
        size = min(len(left), window, 16 * KIB)
        server.receive(frame(DATA, 0, 1, left[:size]), 0.0)
        left, window, sent = left[size:], window - size, sent + size
        for kind, _, stream_id, increment in parse_frames(server.data_to_send()):
            if (kind, stream_id) == (WINDOW_UPDATE, 1):
                window += struct.unpack(">L", increment)[0]
    assert sent <= LIMITS.stream_window_bytes + MAX_MESSAGE + 5
