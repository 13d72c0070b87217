"""The state machine on its own: framing, splitting, fuzzing, flow control, ends of calls."""

from __future__ import annotations

import struct

import hpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_harness import (
    CONTENT_TYPE,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Pair,
    RawClient,
    frame,
    greeted_server,
    grpc_message,
    messages,
    parse_frames,
    server_connection,
)

from danube.model.errors import (
    InvalidArgumentError,
    LimitExceededError,
    MessageTooLargeError,
    ProtocolError,
    Status,
    UnavailableError,
    UnimplementedError,
)
from danube.model.limits import MIB, Limits
from danube.model.version import __version__
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
from danube.wire.connection import GrpcConnection


def only(events: list[Event], kind: type[Event]) -> Event:
    found = [event for event in events if type(event) is kind]
    assert len(found) == 1, events
    return found[0]


# ------------------------------------------------------------------------------------------------ calls


def test_a_call_from_headers_to_trailers() -> None:
    pair = Pair()
    call = pair.client.send_request_headers(
        "/danube/Ping",
        authority="t",
        content_type=CONTENT_TYPE,
        max_message_bytes=100,
        metadata={"x-token": "secret"},
        timeout_s=1.5,
    )
    pair.client.send_message(call, (b"hel", b"", b"lo"))
    pair.client.end_stream(call)
    _, events = pair.pump()
    assert events == [
        RequestReceived(
            call, "/danube/Ping", {"x-token": "secret"}, 1.5, CONTENT_TYPE, "t", f"danube-python/{__version__}"
        ),
        MessageReceived(call, b"hello", 10),
        EndOfStream(call),
    ]
    pair.server.send_response_headers(call, CONTENT_TYPE, {"x-node": "a"})
    pair.server.send_message(call, b"world")
    pair.server.send_trailers(call, Status.NOT_FOUND, "no topic /ü: 100%\n", "topic-not-found", {"x-hint": "y"})
    pair.server.finish(call)
    events, _ = pair.pump()
    assert events == [
        ResponseReceived(call, {"x-node": "a"}),
        MessageReceived(call, b"world", 10),
        TrailersReceived(call, Status.NOT_FOUND, "topic-not-found", "no topic /ü: 100%\n", {"x-hint": "y"}),
    ]
    pair.client.finish(call)
    assert pair.client.open_streams == pair.server.open_streams == 0


def test_trailers_only() -> None:
    pair = Pair()
    call = pair.open()
    pair.pump()
    pair.server.send_trailers(call, Status.UNIMPLEMENTED, "no such method", "unimplemented")
    pair.server.finish(call)
    events, _ = pair.pump()
    assert events[0] == TrailersReceived(call, Status.UNIMPLEMENTED, "unimplemented", "no such method", {})


def test_small_messages_of_a_stream_share_a_frame() -> None:
    pair = Pair()
    call = pair.open()
    pair.pump()
    for number in range(100):
        pair.client.send_message(call, b"%d" % number)
    data = pair.client.data_to_send()
    assert [kind for kind, *_ in parse_frames(data)] == [DATA]
    assert messages(pair.server.receive(data, 0.0)) == [b"%d" % number for number in range(100)]


def test_a_large_message_is_cut_into_frames_and_streams_take_turns() -> None:
    pair = Pair()
    first, second = pair.open(), pair.open()
    pair.pump()
    pair.client.send_message(first, bytes(MIB))
    pair.client.send_message(second, bytes(MIB))
    frames = parse_frames(pair.client.data_to_send())
    assert all(len(body) <= 64 * 1024 for *_, body in frames)
    assert [stream_id for _, _, stream_id, _ in frames[:6]] == [first, second] * 3


def test_ping_goes_there_and_back() -> None:
    pair = Pair()
    pair.client.ping(b"12345678")
    events, _ = pair.pump()
    assert events == [PingAcked(b"12345678")]


def test_metadata_that_would_break_headers_is_refused() -> None:
    pair = Pair()
    for name, value in [("Upper", "x"), ("x", "a\r\nb"), ("x", "ü"), (":path", "x"), ("x", " padded ")]:
        with pytest.raises(InvalidArgumentError, match="metadata"):
            pair.client.send_request_headers(
                "/x", authority="t", content_type=CONTENT_TYPE, max_message_bytes=1, metadata={name: value}
            )


def test_actions_on_streams_that_are_gone_do_nothing() -> None:
    pair = Pair()
    for side in (pair.client, pair.server):
        side.credit(77, 10)
        side.finish(77)
        side.reset(77)
        side.end_stream(77)
        side.send_trailers(77, Status.OK)
        assert side.send_message(77, b"x") is False
        assert side.send_buffered(77) == 0
        assert not side.can_send(77)
        assert not side.wants_write


# ------------------------------------------------------------------------------------------------ any split, any bytes


def conversation() -> bytes:
    raw = RawClient()
    return b"".join(
        [
            raw.hello(),
            raw.request(1, grpc_timeout="5S"),
            frame(PING, 0, 0, b"abcdefgh"),
            frame(DATA, 0, 1, grpc_message(b"one") + grpc_message(b"") + grpc_message(b"x" * 3000)[:100]),
            raw.request(3, END_STREAM),
            frame(DATA, 0, 1, grpc_message(b"x" * 3000)[100:2000]),
            frame(0x77, 0, 0, b"extension"),
            frame(DATA, PADDED, 1, b"\x03" + grpc_message(b"x" * 3000)[2000:] + b"\0\0\0"),
            frame(DATA, END_STREAM, 1, grpc_message(b"last")),
            raw.request(5, content_length="9"),
            frame(DATA, END_STREAM, 5, grpc_message(b"four")),
            raw.request(7),
            frame(RST_STREAM, 0, 7, b"\0\0\0\x08"),
            frame(WINDOW_UPDATE, 0, 0, b"\0\0\1\0"),
            raw.request(9),
            frame(DATA, 0, 9, grpc_message(b"zipped", compressed=1)),
            frame(DATA, 0, 9, b"thrown away"),
            frame(GOAWAY, 0, 0, b"\0\0\0\0\0\0\0\0bye"),
        ]
    )


@settings(deadline=None, max_examples=150)
@given(st.lists(st.integers(min_value=1, max_value=4000), max_size=40), st.booleans())
def test_any_split_gives_the_same_events(cuts: list[int], bytewise: bool) -> None:
    data = conversation()
    whole = server_connection()
    expected = whole.receive(data, 0.0)
    assert whole.terminated is None
    assert [type(event).__name__ for event in expected].count("MessageReceived") == 5
    split = server_connection()
    events: list[Event] = []
    position = 0
    for cut in [1] * 200 + cuts if bytewise else cuts:
        events += split.receive(data[position : position + cut], 0.0)
        position += cut
    events += split.receive(data[position:], 0.0)
    assert list(map(repr, events)) == list(map(repr, expected))
    assert split.pending_bytes == whole.pending_bytes


@settings(deadline=None, max_examples=300)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 12),
            st.sampled_from([0, 1, 4, 5, 8, 9, 0x20, 0xFF]),
            st.integers(0, 9),
            st.binary(max_size=40),
        ),
        max_size=12,
    ),
    st.booleans(),
)
def test_fuzzed_frames_never_raise(frames: list[tuple[int, int, int, bytes]], open_stream: bool) -> None:
    server, raw = greeted_server()
    if open_stream:
        server.receive(raw.request(1), 0.0)
    for kind, flags, stream_id, body in frames:
        events = server.receive(frame(kind, flags, stream_id, body), 0.0)
        server.data_to_send()
        if server.terminated is not None:
            assert events[-1] is server.terminated
            assert server.receive(b"more", 0.0) == []
            return
    for stream_id in range(1, 10):
        server.send_trailers(stream_id, Status.OK)
        server.finish(stream_id)
    assert server.open_streams == 0
    assert server.pending_bytes == 0


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=200), st.booleans(), st.booleans())
def test_garbage_never_raises(data: bytes, preface: bool, to_client: bool) -> None:
    connection = GrpcConnection("client", Limits(), now=0.0) if to_client else server_connection()
    events = connection.receive((PREFACE if preface else b"") + data, 0.0)
    assert all(isinstance(event, Event) for event in events)


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_a_flipped_byte_never_raises(data: st.DataObject) -> None:
    stream = bytearray(conversation())
    stream[data.draw(st.integers(0, len(stream) - 1))] ^= data.draw(st.integers(1, 255))
    server = server_connection()
    events = server.receive(bytes(stream), 0.0)
    assert events or server.terminated is None
    assert server.receive(bytes(stream), 1.0) is not None


# ------------------------------------------------------------------------------------------------ foreign peers


@pytest.mark.parametrize("request_line", [b"GET / HTTP/1.1\r\n\r\n", b"POST /x HTTP/1.1\r\nHost: y\r\n\r\n"])
@pytest.mark.parametrize("step", [1, 100])
def test_http1_gets_an_answer_that_a_person_can_read(request_line: bytes, step: int) -> None:
    server = server_connection()
    events: list[Event] = []
    for start in range(0, len(request_line), step):
        events += server.receive(request_line[start : start + step], 0.0)
    assert isinstance(events[-1], ConnectionTerminated)
    answer = server.data_to_send()
    assert answer.startswith(b"HTTP/1.1 505 ")
    assert b"gRPC over HTTP/2" in answer
    assert answer.endswith(b"Use a Danube client.\n")


def test_http1_is_sent_to_the_port_that_speaks_it() -> None:
    server = server_connection()
    server.http_url = "http://127.0.0.1:8650/"
    server.receive(b"GET /metrics HTTP/1.1\r\n\r\n", 0.0)
    head, _, body = server.data_to_send().partition(b"\r\n\r\n")
    assert body.endswith(b"Use a Danube client, or http://127.0.0.1:8650/ for HTTP.\n")
    assert b"Content-Length: %d" % len(body) in head


def test_a_client_that_meets_http1_says_so() -> None:
    client = GrpcConnection("client", Limits(), now=0.0)
    terminated = client.receive(b"HTTP/1.1 400 Bad Request\r\n\r\n", 0.0)[-1]
    assert isinstance(terminated, ConnectionTerminated)
    assert "HTTP/1" in terminated.message


@pytest.mark.parametrize(
    ("changed", "status", "text"),
    [
        ({"content_type": "text/html"}, b"415", b"text/html"),
        ({"content_type": "application/grpc-web+proto"}, b"415", b"grpc-web"),
        ({"content_type": "application/grpc+\xe9"}, b"415", b"application/grpc+CODEC"),
        ({":method": "GET"}, b"405", b"not GET"),
    ],
)
def test_http2_that_is_not_grpc_gets_a_sentence(changed: dict[str, str], status: bytes, text: bytes) -> None:
    server, raw = greeted_server()
    assert server.receive(raw.request(1, END_STREAM, **changed), 0.0) == []
    frames = parse_frames(server.data_to_send())
    assert frames[0][0] == HEADERS
    assert (b":status", status) in hpack.Decoder().decode(frames[0][3], raw=True)
    assert text in frames[1][3]
    assert server.open_streams == 0


def test_the_first_frame_must_be_settings() -> None:
    server = server_connection()
    assert isinstance(server.receive(PREFACE + frame(PING, 0, 0, b"12345678"), 0.0)[-1], ConnectionTerminated)


def test_a_client_without_status_or_with_http_error_gets_one() -> None:
    raw = RawClient()
    for headers, status, text in [
        ([(":status", "503"), ("content-type", "text/html")], Status.UNAVAILABLE, "HTTP 503"),
        ([(":status", "200"), ("content-type", "text/html")], Status.UNKNOWN, "text/html"),
        ([(":status", "200"), ("content-type", CONTENT_TYPE)], Status.UNAVAILABLE, "without a status"),
    ]:
        client = GrpcConnection("client", Limits(), now=0.0)
        call = client.send_request_headers("/x", authority="t", content_type=CONTENT_TYPE, max_message_bytes=9)
        data = frame(SETTINGS, 0, 0) + frame(HEADERS, END_HEADERS | END_STREAM, call, raw.encoder.encode(headers))
        trailers = only(client.receive(data, 0.0), TrailersReceived)
        raw = RawClient()
        assert isinstance(trailers, TrailersReceived)
        assert trailers.status == status
        assert text in trailers.message


# ------------------------------------------------------------------------------------------------ refused messages


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (grpc_message(b"x" * 11), MessageTooLargeError),
        (struct.pack(">BI", 0, 2**32 - 1), MessageTooLargeError),
        (grpc_message(b"x", compressed=1), UnimplementedError),
        (grpc_message(b"x", compressed=7), ProtocolError),
    ],
)
def test_a_bad_message_fails_its_stream_only(body: bytes, error: type[Exception]) -> None:
    server, raw = greeted_server(message_limit=10)
    events = server.receive(raw.request(1) + raw.request(3) + frame(DATA, 0, 1, body) + frame(DATA, 0, 1, body), 0.0)
    failed = only(events, StreamFailed)
    assert isinstance(failed, StreamFailed)
    assert isinstance(failed.error, error)
    assert messages(server.receive(frame(DATA, 0, 3, grpc_message(b"fine")), 0.0)) == [b"fine"]
    server.send_trailers(1, Status.INVALID_ARGUMENT, "no")
    server.finish(1)
    kinds = [(kind, stream_id) for kind, _, stream_id, _ in parse_frames(server.data_to_send())]
    assert kinds == [(HEADERS, 1), (RST_STREAM, 1)]
    assert server.receive(frame(DATA, 0, 1, b"late"), 0.0) == []
    assert server.terminated is None


def test_nothing_is_kept_of_a_message_that_is_too_large() -> None:
    server, raw = greeted_server(message_limit=10)
    server.receive(raw.request(1) + frame(DATA, 0, 1, grpc_message(bytes(60_000))), 0.0)
    assert server.pending_bytes == 0


def test_a_request_that_ends_inside_a_message_fails() -> None:
    server, raw = greeted_server()
    events = server.receive(raw.request(1) + frame(DATA, END_STREAM, 1, grpc_message(b"abc")[:-1]), 0.0)
    failed = only(events, StreamFailed)
    assert isinstance(failed, StreamFailed)
    assert "inside a message" in failed.error.message
    assert not any(isinstance(event, EndOfStream) for event in events)


def test_a_bad_timeout_fails_the_call() -> None:
    server, raw = greeted_server()
    failed = only(server.receive(raw.request(1, grpc_timeout="soon"), 0.0), StreamFailed)
    assert isinstance(failed, StreamFailed)
    assert isinstance(failed.error, InvalidArgumentError)


def test_a_client_resets_a_call_whose_response_is_too_large() -> None:
    pair = Pair()
    call = pair.client.send_request_headers("/x", authority="t", content_type=CONTENT_TYPE, max_message_bytes=10)
    pair.pump()
    pair.server.send_response_headers(call, CONTENT_TYPE)
    pair.server.send_message(call, bytes(1000))
    at_client, at_server = pair.pump()
    failed = only(at_client, StreamFailed)
    assert isinstance(failed, StreamFailed)
    assert isinstance(failed.error, MessageTooLargeError)
    assert only(at_server, StreamReset) == StreamReset(call, 8)


# ------------------------------------------------------------------------------------------------ flow control


SMALL = Limits(stream_window_bytes=100_000, max_pending_bytes_per_connection=1_000_000)


def test_credit_is_the_back_pressure() -> None:
    pair = Pair(SMALL)
    call = pair.open()
    for _ in range(50):
        pair.client.send_message(call, bytes(10_000))
    _, events = pair.pump()
    received = [event for event in events if isinstance(event, MessageReceived)]
    assert 9 <= len(received) <= 10
    assert pair.client.send_buffered(call) > 350_000
    total = 0
    while received:
        total += len(received)
        for event in received:
            pair.server.credit(call, event.flow_size)
        _, events = pair.pump()
        received = [event for event in events if isinstance(event, MessageReceived)]
    assert total == 50
    assert pair.server.pending_bytes == 0


def test_a_message_larger_than_every_window_goes_through() -> None:
    pair = Pair(SMALL, message_limit=5_000_000)
    call = pair.open()
    for size in (900_000, 100_001, 3, 800_000):
        pair.client.send_message(call, bytes(size))
    received: list[int] = []
    for _ in range(10):
        _, events = pair.pump()
        for event in events:
            if isinstance(event, MessageReceived):
                received.append(len(event.data))
                pair.server.credit(call, event.flow_size)
    assert received == [900_000, 100_001, 3, 800_000]


@pytest.mark.parametrize("piece", [1_000, 65_000, 100_000])
def test_a_stream_holds_one_window_and_one_message_however_it_is_read(piece: int) -> None:
    pair = Pair(Limits(stream_window_bytes=100_000), message_limit=30_000)
    call = pair.open()
    for _ in range(100):
        pair.client.send_message(call, bytes(30_000))
    for _ in range(20):
        data = pair.client.data_to_send()
        for start in range(0, len(data), piece):
            pair.server.receive(data[start : start + piece], 0.0)
        while answer := pair.server.data_to_send():
            pair.client.receive(answer, 0.0)
    assert 100_000 <= pair.server.pending_bytes <= 130_005


def test_a_stalled_stream_stalls_no_other() -> None:
    pair = Pair(SMALL)
    stalled, lively = pair.open(), pair.open()
    for _ in range(100):
        pair.client.send_message(stalled, bytes(10_000))
    got = 0
    for _ in range(300):
        pair.client.send_message(lively, bytes(10_000))
        _, events = pair.pump()
        for event in events:
            if isinstance(event, MessageReceived) and event.stream_id == lively:
                got += 1
                pair.server.credit(lively, event.flow_size)
    assert got == 300
    assert pair.client.send_buffered(stalled) > 0


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 300_000)), min_size=1, max_size=30),
    st.randoms(use_true_random=False),
)
def test_nothing_deadlocks_and_nothing_is_lost(sends: list[tuple[int, int]], random: object) -> None:
    pair = Pair(SMALL, message_limit=300_000)
    calls = [pair.open() for _ in range(4)]
    for which, size in sends:
        pair.client.send_message(calls[which], bytes([which]) * size)
    held: list[MessageReceived] = []
    got: list[tuple[int, int]] = []
    while True:
        _, events = pair.pump()
        held += [event for event in events if isinstance(event, MessageReceived)]
        assert pair.server.pending_bytes <= SMALL.max_pending_bytes_per_connection
        if not held:
            break
        random.shuffle(held)  # type: ignore[attr-defined]
        for event in held[: len(held) // 2 + 1]:
            got.append((calls.index(event.stream_id), len(event.data)))
            pair.server.credit(event.stream_id, event.flow_size)
        held = held[len(held) // 2 + 1 :]
    assert sorted(got) == sorted(sends)
    assert pair.server.pending_bytes == 0


def test_incomplete_messages_cannot_fill_a_connection_for_ever() -> None:
    # Forty messages take turns, frame by frame: none is complete when the budget is used up.
    limits = Limits(stream_window_bytes=100_000, max_pending_bytes_per_connection=1_000_000)
    pair = Pair(limits, message_limit=10_000_000)
    calls = [pair.open() for _ in range(40)]
    for call in calls:
        pair.client.send_message(call, bytes(90_000))
    complete = 0
    errors = []
    while True:
        _, events = pair.pump()
        assert pair.server.pending_bytes <= 1_000_000
        for event in events:
            if isinstance(event, MessageReceived):
                complete += 1
                pair.server.credit(event.stream_id, event.flow_size)
            elif isinstance(event, StreamFailed):
                errors.append(event.error)
                pair.server.send_trailers(event.stream_id, event.error.status)
                pair.server.finish(event.stream_id)
        if not events:
            break
    assert complete + len(errors) == 40
    assert complete >= 10
    assert all(isinstance(error, LimitExceededError) for error in errors)
    assert pair.server.pending_bytes == 0


def test_a_peer_that_ignores_windows_is_cut() -> None:
    server, raw = greeted_server(SMALL)
    server.receive(raw.request(1), 0.0)
    for _ in range(3):
        events = server.receive(frame(DATA, 0, 1, grpc_message(bytes(49_000))), 0.0)
    assert isinstance(events[-1], ConnectionTerminated)
    assert events[-1].code == 3


def test_a_message_in_single_bytes_is_assembled_without_an_object_for_each() -> None:
    server, raw = greeted_server()
    server.receive(raw.request(1), 0.0)
    body = grpc_message(bytes(range(256)) * 20)
    events: list[Event] = []
    for position in range(len(body)):
        events += server.receive(frame(DATA, 0, 1, body[position : position + 1]), 0.0)
        assert len(server._streams[1].parts) <= 1
    assert messages(events) == [bytes(range(256)) * 20]


def test_the_content_length_of_a_request_must_hold() -> None:
    server, raw = greeted_server()
    body = grpc_message(b"abc")
    events = server.receive(raw.request(1, content_length=str(len(body))) + frame(DATA, END_STREAM, 1, body), 0.0)
    assert messages(events) == [b"abc"]
    server.receive(raw.request(3, content_length="3") + frame(DATA, END_STREAM, 3, body), 0.0)
    assert server.terminated is not None


@pytest.mark.parametrize("honest", [True, False])
def test_a_request_with_content_length_flows_by_the_same_windows(honest: bool) -> None:
    pair = Pair(SMALL)
    size = 30 * 40_005
    call = pair.client.send_request_headers(
        "/t/M",
        authority="t",
        content_type=CONTENT_TYPE,
        max_message_bytes=1,
        metadata={"content-length": str(size if honest else size - 1)},
    )
    for _ in range(30):
        pair.client.send_message(call, bytes(40_000))
    pair.client.end_stream(call)
    received = 0
    events: list[Event] = [EndOfStream(0)]
    while events:
        _, events = pair.pump()
        for event in events:
            if isinstance(event, MessageReceived):
                received += 1
                pair.server.credit(call, event.flow_size)
    assert (pair.server.terminated is None) is honest
    if honest:
        assert received == 30
        assert pair.server.pending_bytes == 0


def test_padding_is_given_back() -> None:
    server, raw = greeted_server(SMALL)
    server.receive(raw.request(1), 0.0)
    body = grpc_message(b"x" * 100)
    for _ in range(2_000):
        events = server.receive(frame(DATA, PADDED, 1, b"\xff" + body + bytes(255)), 0.0)
        for event in events:
            assert isinstance(event, MessageReceived)
            server.credit(1, event.flow_size)
    assert server.terminated is None
    updates = [body for kind, _, stream_id, body in parse_frames(server.data_to_send()) if kind == WINDOW_UPDATE]
    assert sum(int.from_bytes(body, "big") for body in updates) > 2 * 600_000


# ------------------------------------------------------------------------------------------------ ends


def test_a_slot_is_held_until_finish() -> None:
    server, raw = greeted_server(Limits(max_streams_per_connection=2))
    for stream_id in (1, 3):
        server.receive(raw.request(stream_id) + frame(RST_STREAM, 0, stream_id, b"\0\0\0\x08"), 0.0)
    assert server.open_streams == 2
    assert server.receive(raw.request(5), 0.0) == []
    kind, _, stream_id, body = parse_frames(server.data_to_send())[-1]
    assert (kind, stream_id, body[-1]) == (RST_STREAM, 5, 7)
    server.finish(1)
    assert any(isinstance(event, RequestReceived) for event in server.receive(raw.request(7), 0.0))


def test_finish_sends_what_is_queued_first() -> None:
    pair = Pair(SMALL)
    call = pair.open()
    pair.client.end_stream(call)
    pair.pump()
    pair.server.send_response_headers(call, CONTENT_TYPE)
    for _ in range(30):
        pair.server.send_message(call, bytes(10_000))
    pair.server.send_trailers(call, Status.OK)
    pair.server.finish(call)
    assert pair.server.open_streams == 1
    received = 0
    done = False
    while not done:
        events, _ = pair.pump()
        assert events
        for event in events:
            if isinstance(event, MessageReceived):
                received += 1
                pair.client.credit(call, event.flow_size)
            done = done or isinstance(event, TrailersReceived)
    assert received == 30
    assert pair.server.open_streams == 0


def test_finish_without_an_end_resets() -> None:
    pair = Pair()
    call = pair.open()
    pair.pump()
    pair.client.finish(call)
    _, events = pair.pump()
    assert events == [StreamReset(call, 8)]
    assert pair.client.open_streams == 0


def test_goaway_lets_open_calls_end() -> None:
    pair = Pair()
    call = pair.open()
    pair.pump()
    pair.server.goaway("moving")
    late = pair.open()
    events, at_server = pair.pump()
    assert GoAwayReceived(call, 0, "moving") in events
    assert any(isinstance(event, StreamReset) and event.stream_id == late for event in events)
    assert at_server == []
    with pytest.raises(UnavailableError):
        pair.open()
    pair.client.send_message(call, b"still here")
    _, events = pair.pump()
    assert messages(events) == [b"still here"]
    pair.server.send_trailers(call, Status.OK)
    events, _ = pair.pump()
    assert isinstance(events[-1], TrailersReceived)


def test_too_many_calls_are_refused_before_they_are_sent() -> None:
    pair = Pair(Limits(max_streams_per_connection=2))
    pair.open()
    pair.open()
    with pytest.raises(LimitExceededError):
        pair.open()


def test_terminate_says_why() -> None:
    pair = Pair()
    pair.server.terminate("maintenance")
    assert pair.server.receive(b"x", 0.0) == []
    events, _ = pair.pump()
    assert events == [GoAwayReceived(0, 0, "maintenance")]
