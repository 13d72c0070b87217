"""Requests that repeat an earlier one are served without h2, with the same results."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import hpack
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from wire_harness import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    RawClient,
    frame,
    greeted_server,
    grpc_message,
    parse_frames,
)

from danube.model.errors import Status
from danube.model.limits import Limits
from danube.wire._events import (
    EndOfStream,
    Event,
    MessageReceived,
    RequestReceived,
    StreamFailed,
    StreamReset,
)
from danube.wire._hpack import MAX_REPEAT_BYTES, MAX_REPEATS, Repeats, literals
from danube.wire._outgoing import MAX_WHOLE_BYTES
from danube.wire.connection import GrpcConnection

INITIAL_WINDOW_SIZE = 4


def uint32(value: int) -> bytes:
    return struct.pack(">L", value)


class Answers:
    """What a server said, by stream: decoded headers, DATA and codes of resets, in order."""

    def __init__(self) -> None:
        self.decoder = hpack.Decoder()
        self.streams: dict[int, list[Any]] = {}
        self.goaway = False
        self.block = b""

    def take(self, server: GrpcConnection) -> None:
        while data := server.data_to_send():
            for kind, flags, stream_id, body in parse_frames(data):
                said = self.streams.setdefault(stream_id, [])
                if kind in (HEADERS, CONTINUATION):
                    self.block += body
                    if flags & END_STREAM:
                        said.append("end")
                    if flags & END_HEADERS:
                        said.append(dict(self.decoder.decode(self.block)))
                        self.block = b""
                elif kind == DATA:
                    if said and isinstance(said[-1], bytes):
                        said[-1] += body
                    else:
                        said.append(body)
                elif kind == RST_STREAM:
                    said.append(int.from_bytes(body, "big"))
                self.goaway |= kind == GOAWAY


def is_repeat(server: GrpcConnection, stream_id: int) -> bool:
    return server._streams[stream_id].h2 is None


def call(raw: RawClient, stream_id: int, message: bytes = b"m", **headers: str) -> bytes:
    return raw.request(stream_id, **headers) + frame(DATA, END_STREAM, stream_id, grpc_message(message))


def repeating_server(limits: Limits | None = None, **headers: str) -> tuple[GrpcConnection, RawClient, Answers]:
    """Return a server that has seen the same request twice, so that a third one is a repeat: it has stream 5."""
    server, raw = greeted_server(limits)
    answers = Answers()
    for stream_id in (1, 3):
        assert len(server.receive(call(raw, stream_id, **headers), 0.0)) == 3
        assert not is_repeat(server, stream_id)
        server.answer(stream_id, "application/grpc", b"a")
        answers.take(server)
    assert server.open_streams == 0
    return server, raw, answers


def test_a_repeat_means_the_same() -> None:
    server, raw, answers = repeating_server(x_who="me", grpc_timeout="5S")
    events = server.receive(call(raw, 5, b"third", x_who="me", grpc_timeout="5S"), 0.0)
    assert is_repeat(server, 5)
    assert events == [
        RequestReceived(5, "/t/M", {"x-who": "me"}, 5.0, "application/grpc+msgpack", "x"),
        MessageReceived(5, b"third", 10),
        EndOfStream(5),
    ]
    server.answer(5, "application/grpc+msgpack", b"answer")
    answers.take(server)
    assert answers.streams[5] == [
        {":status": "200", "content-type": "application/grpc+msgpack"},
        grpc_message(b"answer"),
        "end",
        {"grpc-status": "0"},
    ]
    assert server.open_streams == server.pending_bytes == 0
    assert server.terminated is None


def test_answers_do_not_depend_on_how_they_are_made() -> None:
    server, raw, answers = repeating_server()
    server.receive(call(raw, 5) + call(raw, 7) + raw.request(9), 0.0)
    assert all(is_repeat(server, stream_id) for stream_id in (5, 7, 9))
    for stream_id in (5, 9):
        server.send_response_headers(stream_id, "application/grpc", {"x-y": "z"})
        server.send_message(stream_id, (b"a", b"b" * 100_000))
        server.send_trailers(stream_id, Status.NOT_FOUND, "ü" * 10, "topic-not-found", {"x-long": "z" * 60_000})
        server.finish(stream_id)
    server.send_trailers(7, Status.OK)
    server.finish(7)
    server.receive(frame(WINDOW_UPDATE, 0, 5, uint32(1 << 20)) + frame(WINDOW_UPDATE, 0, 0, uint32(1 << 20)), 0.0)
    answers.take(server)
    assert answers.streams[5] == [
        {":status": "200", "content-type": "application/grpc", "x-y": "z"},
        grpc_message(b"a" + b"b" * 100_000),
        "end",
        {"grpc-status": "5", "grpc-message": "%C3%BC" * 10, "danube-error": "topic-not-found", "x-long": "z" * 60_000},
    ]
    assert answers.streams[7] == ["end", {":status": "200", "content-type": "application/grpc", "grpc-status": "0"}]
    # Stream 9 waits for the window; when its answer is out, the peer, which is still sending, is asked to stop.
    assert server.open_streams == 1
    server.receive(frame(WINDOW_UPDATE, 0, 9, uint32(1 << 20)), 0.0)
    answers.take(server)
    assert answers.streams[9] == [*answers.streams[5], 0]
    assert server.open_streams == 0


def test_a_block_that_changes_the_table_ends_all_repeats() -> None:
    server, raw, _answers = repeating_server()
    block = raw.headers()
    for stream_id in (5, 7):
        server.receive(frame(HEADERS, END_HEADERS, stream_id, block), 0.0)
        assert is_repeat(server, stream_id)
    # An insertion moves what the indices in `block` mean: it is not valid any more, and h2 must see what it means now.
    events = server.receive(raw.request(9, x_new="1"), 0.0)
    assert isinstance(events[0], RequestReceived)
    events = server.receive(frame(HEADERS, END_HEADERS, 11, block), 0.0)
    assert not events or events[0] != RequestReceived(11, "/t/M", {}, None, "application/grpc+msgpack", "x")
    assert server.terminated is not None or not is_repeat(server, 11)


def test_a_resized_table_ends_all_repeats() -> None:
    server, raw, _answers = repeating_server()
    old = raw.headers()
    raw.encoder.header_table_size = 0
    raw.encoder.header_table_size = 4096
    assert server.receive(raw.request(5), 0.0)[0] == RequestReceived(
        5, "/t/M", {}, None, "application/grpc+msgpack", "x"
    )
    assert not is_repeat(server, 5)
    assert server._repeats.get(old) is None


def test_lying_about_the_length_is_fatal() -> None:
    for size, fatal in ((6, False), (5, True), (7, True)):
        server, raw, _answers = repeating_server(content_length="6")
        events = server.receive(raw.request(5, content_length="6"), 0.0)
        assert is_repeat(server, 5)
        events = server.receive(frame(DATA, END_STREAM, 5, grpc_message(b"m")[:size].ljust(size, b"\0")), 0.0)
        assert (server.terminated is not None) == fatal, events


def test_padding_is_no_content() -> None:
    server, raw, _answers = repeating_server(content_length="6")
    body = bytes([3]) + grpc_message(b"m") + bytes(3)
    events = server.receive(
        raw.request(5, content_length="6") + frame(DATA, END_STREAM | PADDED, 5, body),
        0.0,
    )
    assert is_repeat(server, 5)
    assert events[1:] == [MessageReceived(5, b"m", 6), EndOfStream(5)]


def test_trailers_end_a_repeat_and_count_for_the_table() -> None:
    server, raw, _answers = repeating_server()
    before = raw.headers()
    server.receive(raw.request(5) + frame(DATA, 0, 5, grpc_message(b"m")), 0.0)
    trailers = raw.encoder.encode([("x-trailer", "1")])
    assert server.receive(frame(HEADERS, END_HEADERS | END_STREAM, 5, trailers), 0.0) == [EndOfStream(5)]
    assert server._repeats.get(before) is None
    events = server.receive(call(raw, 7), 0.0)
    assert events[0] == RequestReceived(7, "/t/M", {}, None, "application/grpc+msgpack", "x")
    assert server.terminated is None


@pytest.mark.parametrize(
    "wrong",
    [
        lambda raw: frame(DATA, 0, 5, b"x"),
        lambda raw: raw.request(5, END_STREAM),
        lambda raw: raw.request(5),
        lambda raw: frame(HEADERS, END_STREAM, 5, raw.headers()),
        lambda raw: raw.request(3),
        lambda raw: raw.request(6),
        lambda raw: frame(RST_STREAM, 0, 5, b"abc"),
        lambda raw: frame(WINDOW_UPDATE, 0, 5, bytes(4)),
        lambda raw: frame(WINDOW_UPDATE, 0, 0, uint32(0x7FFFFFFF)),
        lambda raw: (
            frame(SETTINGS, 0, 0, struct.pack(">HL", INITIAL_WINDOW_SIZE, 0x7FFFFFFF))
            + frame(WINDOW_UPDATE, 0, 5, uint32(1))
            + frame(SETTINGS, 0, 0, struct.pack(">HL", INITIAL_WINDOW_SIZE, 0x80000000))
        ),
        lambda raw: frame(HEADERS, END_HEADERS, 5, b"\xff\xff\xff\xff"),
    ],
)
def test_invalid_header_blocks_stay_invalid(wrong: Callable[[RawClient], bytes]) -> None:
    server, raw, _answers = repeating_server()
    server.receive(call(raw, 5), 0.0)
    assert is_repeat(server, 5)
    server.receive(wrong(raw), 0.0)
    assert server.terminated is not None


def test_a_window_beyond_the_limit_resets_the_stream_and_is_charged() -> None:
    server, raw, answers = repeating_server(Limits(max_resets_per_minute=2))
    for stream_id in (5, 7, 9):
        server.receive(call(raw, stream_id), 0.0)
        assert is_repeat(server, stream_id)
        events = server.receive(frame(WINDOW_UPDATE, 0, stream_id, uint32(0x7FFFFFFF)), 0.0)
        if stream_id < 9:
            assert events == [StreamReset(stream_id, 3)]
            assert server.open_streams == (stream_id - 3) // 2
    assert server.terminated is not None
    answers.take(server)
    assert (answers.streams[5], answers.streams[7]) == ([3], [3])


def test_a_reset_repeat_holds_its_slot() -> None:
    server, raw, answers = repeating_server(Limits(max_streams_per_connection=1))
    server.receive(call(raw, 5), 0.0)
    assert is_repeat(server, 5)
    assert server.receive(frame(RST_STREAM, 0, 5, uint32(8)), 0.0) == [StreamReset(5, 8)]
    assert server.receive(call(raw, 7), 0.0) == []
    server.answer(5, "application/grpc", b"unread answer")
    assert server.open_streams == 0
    assert [type(event) for event in server.receive(call(raw, 9), 0.0)] == [
        RequestReceived,
        MessageReceived,
        EndOfStream,
    ]
    answers.take(server)
    assert 5 not in answers.streams
    assert answers.streams[7] == [7]


def test_repeats_are_refused_while_draining() -> None:
    server, raw, answers = repeating_server()
    server.receive(raw.request(5), 0.0)
    server.goaway("bye")
    assert server.receive(call(raw, 7), 0.0) == []
    server.receive(frame(DATA, END_STREAM, 5, grpc_message(b"m")), 0.0)
    server.answer(5, "application/grpc", b"a")
    answers.take(server)
    assert answers.goaway
    assert answers.streams[7] == [7]
    assert answers.streams[5][-1] == {"grpc-status": "0"}


def test_late_frames_of_a_repeat_that_has_ended() -> None:
    server, raw, answers = repeating_server()
    server.receive(call(raw, 5), 0.0)
    server.answer(5, "application/grpc", b"a")
    late = frame(WINDOW_UPDATE, 0, 5, uint32(10)) + frame(RST_STREAM, 0, 5, uint32(8))
    assert server.receive(late + call(raw, 7), 0.0)[0].stream_id == 7  # type: ignore[attr-defined]
    assert server.terminated is None
    answers.take(server)


def test_unread_answers_hold_their_slots() -> None:
    server, raw, answers = repeating_server(Limits(max_streams_per_connection=20))
    server.receive(frame(WINDOW_UPDATE, 0, 0, uint32(1 << 30)), 0.0)
    data = bytes(10_000)
    taken = 0
    for number in range(100):
        events = server.receive(call(raw, 5 + 2 * number), 0.0)
        if events:
            server.answer(5 + 2 * number, "application/grpc", data)
            taken += 1
    assert server.open_streams == 20
    assert MAX_WHOLE_BYTES < (taken - 20) * len(data) < MAX_WHOLE_BYTES + 2 * len(data)
    answers.take(server)
    assert server.open_streams == 0
    assert sum(said[-1] == {"grpc-status": "0"} for said in answers.streams.values()) == taken + 2
    assert sum(said == [7] for said in answers.streams.values()) == 100 - taken


def test_too_large_a_message_fails_a_repeat() -> None:
    server, raw = greeted_server(message_limit=10)
    for stream_id in (1, 3, 5):
        events = server.receive(call(raw, stream_id, b"x" * 11), 0.0)
    assert is_repeat(server, 5)
    assert [type(event) for event in events] == [RequestReceived, StreamFailed]
    server.send_trailers(5, Status.INVALID_ARGUMENT)
    server.finish(5)
    assert server.terminated is None


def test_remembered_blocks_are_bounded() -> None:
    decoder = hpack.Decoder()
    repeats: Repeats[int] = Repeats(decoder)
    repeats.learn(b"x" * (MAX_REPEAT_BYTES + 1), 0)
    assert repeats.get(b"x" * (MAX_REPEAT_BYTES + 1)) is None
    for number in range(10 * MAX_REPEATS):
        repeats.learn(b"%d" % number, number)
        assert repeats.get(b"%d" % number) == number
        assert len(repeats._known) <= MAX_REPEATS


HEADER_TEXT = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=300)


@given(st.lists(st.tuples(st.text("abcxyz-", min_size=1, max_size=200), HEADER_TEXT)), HEADER_TEXT)
@settings(deadline=None, max_examples=50)
def test_literals_are_what_any_decoder_reads(headers: list[tuple[str, str]], content_type: str) -> None:
    pairs = [(":status", "200"), ("content-type", content_type), *headers]
    decoder = hpack.Decoder(max_header_list_size=1 << 20)
    assert [tuple(pair) for pair in decoder.decode(literals(pairs))] == pairs
    assert not decoder.header_table.dynamic_entries


@given(st.lists(st.tuples(st.sampled_from(["insert", "resize", "plain", "none"]), st.integers(0, 3)), max_size=30))
@settings(deadline=None, max_examples=100)
def test_whatever_changes_the_table_is_noticed(steps: list[tuple[str, int]]) -> None:
    decoder, encoder = hpack.Decoder(), hpack.Encoder()
    repeats: Repeats[None] = Repeats(decoder)
    repeats.changed()
    for kind, number in steps:
        table = decoder.header_table
        before = (list(map(id, table.dynamic_entries)), table.maxsize)
        kept = list(table.dynamic_entries)
        if kind == "resize":
            encoder.header_table_size = [0, 40, 100, 4096][number]
        header = (b"name%d" % number, b"v" * 20 * number)
        decoder.decode(encoder.encode([] if kind == "none" else [(*header, kind == "plain")]))
        after = (list(map(id, table.dynamic_entries)), table.maxsize)
        # Only "the table is as it was" has to be right: to forget too much costs time and nothing else.
        assert repeats.changed() or before == after
        del kept


class Deaf(Repeats[Any]):
    """Learns nothing."""

    def get(self, block: bytes) -> None:
        return None


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("open"), st.integers(0, 2)),
        st.tuples(st.just("call"), st.integers(0, 2)),
        st.tuples(st.just("data"), st.integers(0, 3), st.binary(max_size=5), st.booleans(), st.booleans()),
        st.tuples(st.just("trailers"), st.integers(0, 3)),
        st.tuples(st.just("reset"), st.integers(0, 3)),
        st.tuples(st.just("window"), st.integers(-1, 3), st.sampled_from([1, 20, 1 << 20])),
        st.tuples(st.just("settings"), st.sampled_from([0, 10, 65_535])),
        st.tuples(st.just("answer"), st.integers(0, 3)),
        st.tuples(st.just("reply"), st.integers(0, 3)),
        st.tuples(st.just("fail"), st.integers(0, 3)),
        st.tuples(st.just("abandon"), st.integers(0, 3)),
    ),
    max_size=40,
)


@given(STEPS)
@example([("open", 0), ("open", 0), ("open", 0), ("answer", 0), ("reset", 1), ("reset", 1)])  # a stream ends once
@settings(deadline=None, max_examples=200)
def test_repeated_requests_are_indistinguishable_from_first_ones(steps: list[tuple[Any, ...]]) -> None:
    """The same bytes and the same answers, with and without repeats: the same events and the same responses."""
    raw = RawClient()
    pair = [greeted_server()[0], greeted_server()[0]]
    pair[1]._repeats = Deaf(pair[1]._h2.decoder)
    answers = [Answers(), Answers()]
    open_ids: list[int] = []
    sending: set[int] = set()
    next_id = 1
    for kind, *args in steps:
        sent = b""
        stream_id = open_ids[args[0] % len(open_ids)] if open_ids and kind not in ("open", "call", "settings") else 0
        if kind in ("open", "call"):
            headers = [{}, {"x_a": "b"}, {"content_type": "application/grpc", "grpc_timeout": "1S"}][args[0]]
            sent = raw.request(next_id, **headers) if kind == "open" else call(raw, next_id, **headers)
            open_ids.append(next_id)
            if kind == "open":
                sending.add(next_id)
            next_id += 2
        elif kind == "settings":
            sent = frame(SETTINGS, 0, 0, struct.pack(">HL", INITIAL_WINDOW_SIZE, args[0]))
        elif kind == "window":
            sent = frame(WINDOW_UPDATE, 0, stream_id if args[0] >= 0 else 0, uint32(args[1]))
        elif stream_id and kind == "reset":
            sent = frame(RST_STREAM, 0, stream_id, uint32(8))
            sending.discard(stream_id)
        elif stream_id in sending and kind == "data":
            body = grpc_message(args[1])
            flags = END_STREAM if args[2] else 0
            sent = frame(DATA, flags | PADDED, stream_id, b"\2" + body + b"\0\0") if args[3] else b""
            sent = sent or frame(DATA, flags, stream_id, body)
            if flags:
                sending.discard(stream_id)
        elif stream_id in sending and kind == "trailers":
            sent = frame(HEADERS, END_HEADERS | END_STREAM, stream_id, raw.encoder.encode([("x-t", "1")]))
            sending.discard(stream_id)
        elif stream_id:
            for server in pair:
                if kind == "answer":
                    server.answer(stream_id, "application/grpc", b"answer")
                elif kind == "reply":
                    server.send_response_headers(stream_id, "application/grpc")
                    server.send_message(stream_id, b"reply")
                elif kind == "fail":
                    server.send_trailers(stream_id, Status.NOT_FOUND, "gone")
                    server.finish(stream_id)
                elif kind == "abandon":
                    server.finish(stream_id)
        events: list[list[Event]] = [server.receive(sent, 0.0) for server in pair]
        assert events[0] == events[1]
        for server, said in zip(pair, answers, strict=True):
            said.take(server)
        for server in pair:
            assert server.terminated is None
        assert pair[0].open_streams == pair[1].open_streams
        assert pair[0].pending_bytes == pair[1].pending_bytes
        assert answers[0].streams.keys() == answers[1].streams.keys()
        for stream_id in answers[0].streams:
            assert answers[0].streams[stream_id] == answers[1].streams[stream_id]
        sending &= {stream_id for stream_id in sending if pair[0].open_streams and stream_id in pair[0]._streams}
        open_ids = [stream_id for stream_id in open_ids if stream_id in pair[0]._streams]
