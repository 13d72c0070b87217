"""Rules of a connection one by one: exact bounds, exact accounts, and clean-up."""

from __future__ import annotations

import struct
from collections.abc import Callable

import hpack
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from wire_harness import (
    ACK,
    CONTENT_TYPE,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PRIORITY,
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

from danube.model.errors import MessageTooLargeError, Status, UnimplementedError
from danube.model.limits import KIB, MIB, Limits
from danube.wire._abuse import Allowance
from danube.wire._events import (
    EndOfStream,
    GoAwayReceived,
    MessageReceived,
    RequestReceived,
    StreamFailed,
    StreamReset,
    TrailersReceived,
)
from danube.wire._grpc import encode_message, format_timeout
from danube.wire._hpack import Repeats, literals
from danube.wire._outgoing import MAX_FRAME_BYTES, Outgoing
from danube.wire._server_connection import WRITE_BYTES, WRITE_PIECE_BYTES
from danube.wire._stream import SMALL_CHUNK, WireStream
from danube.wire.connection import GrpcConnection

PROTOCOL_ERROR, FLOW_CONTROL_ERROR, STREAM_CLOSED, FRAME_SIZE_ERROR, REFUSED, CANCEL = 1, 3, 5, 6, 7, 8


def u32(number: int) -> bytes:
    return struct.pack(">L", number)


def frames_of(connection: GrpcConnection) -> list[tuple[int, int, int, bytes]]:
    found = []
    while data := connection.data_to_send():
        found += parse_frames(data)
    return found


def ended_by(server: GrpcConnection) -> int:
    assert server.terminated is not None
    return server.terminated.code


# --- The beginning ---


def greeting(limits: Limits) -> tuple[dict[int, int], int]:
    """What a server says first: its settings, and its connection's window."""
    server = server_connection(limits)
    server.receive(RawClient().hello(), 0.0)
    settings: dict[int, int] = {}
    window = 65_535
    for kind, flags, stream_id, body in frames_of(server):
        if kind == SETTINGS and not flags & ACK:
            settings = dict(struct.iter_unpack(">HL", body))
        elif kind == WINDOW_UPDATE:
            assert stream_id == 0
            window += struct.unpack(">L", body)[0]
    return settings, window


def test_limits_are_what_the_peer_is_told() -> None:
    limits = Limits(
        stream_window_bytes=300 * KIB,
        max_pending_bytes_per_connection=2 * MIB,
        max_streams_per_connection=77,
        max_header_bytes=9_000,
    )
    settings, window = greeting(limits)
    told = {2: 0, 3: 77, 4: 300 * KIB, 5: 64 * KIB, 6: 9_000}  # no pushes, streams, window, frame, headers
    assert {number: settings[number] for number in told} == told
    assert window == 600 * KIB, "two streams may send at once"
    _, window = greeting(Limits(stream_window_bytes=MIB, max_pending_bytes_per_connection=2 * MIB))
    assert window == MIB, "no more than half of what a connection may hold"
    small = Limits(stream_window_bytes=16 * KIB, max_pending_bytes_per_connection=256 * KIB)
    assert greeting(small)[1] == 65_535, "the window that every connection begins with"
    server, raw = greeted_server(small)
    server.receive(raw.request(1) + frame(DATA, 0, 1, grpc_message(bytes(10_000))), 0.0)
    assert frames_of(server) == [], "that is not a quarter of it"


@pytest.mark.parametrize("data", [b"\x16\x03\x01", b"hello", b"get / HTTP", b"\0" * 24])
def test_a_wrong_preface_is_refused_with_its_first_bytes(data: bytes) -> None:
    server = server_connection()
    server.receive(data, 0.0)
    assert ended_by(server) == PROTOCOL_ERROR


@pytest.mark.parametrize("cut", range(1, 12))
def test_http_1_may_come_in_pieces(cut: int) -> None:
    server = server_connection()
    asked = b"PROPPATCH / HTTP/1.1\r\n\r\n"
    server.receive(asked[:cut], 0.0)
    if cut < 10:
        assert (server.terminated, server.wants_write) == (None, False)
        server.receive(asked[cut:], 0.0)
    assert server.data_to_send().startswith(b"HTTP/1.1 505 ")
    assert ended_by(server) == 13


@pytest.mark.parametrize("first", [frame(SETTINGS, ACK, 0), frame(PING, 0, 0, bytes(8))])
def test_the_first_frame_says_settings_and_acknowledges_none(first: bytes) -> None:
    server = server_connection()
    server.receive(RawClient().hello()[: -len(frame(SETTINGS, 0, 0))] + first, 0.0)
    assert ended_by(server) == PROTOCOL_ERROR


def test_trailers_are_no_new_stream() -> None:
    server, raw = greeted_server(Limits(max_new_streams_per_second=3))
    for stream_id in (1, 3, 5):
        head = raw.request(stream_id)
        trailers = raw.encoder.encode([("x-last", "word")], huffman=False)
        server.receive(head + frame(HEADERS, END_HEADERS | END_STREAM, stream_id, trailers), 0.0)
        assert server.terminated is None


def test_a_preface_may_come_in_pieces() -> None:
    hello = RawClient().hello()
    for cut in range(1, len(hello)):
        server = server_connection()
        assert server.receive(hello[:cut], 0.0) == []
        assert server.terminated is None
        server.receive(hello[cut:], 0.0)
        assert server.established


# --- How much is too much ---

FLOODS: dict[str, Callable[[RawClient, int], bytes]] = {
    "max_pings_per_minute": lambda raw, number: frame(PING, 0, 0, b"12345678"),
    "max_settings_per_minute": lambda raw, number: frame(SETTINGS, 0, 0),
    "max_resets_per_minute": lambda raw, number: (
        raw.request(2 * number + 1) + frame(RST_STREAM, 0, 2 * number + 1, u32(CANCEL))
    ),
    "max_empty_data_per_minute": lambda raw, number: frame(PRIORITY, 0, 1, bytes(5)),
    "max_new_streams_per_second": lambda raw, number: raw.request(2 * number + 1, END_STREAM),
}


@pytest.mark.parametrize("name", FLOODS)
def test_as_many_as_the_limit_says_and_not_one_more(name: str) -> None:
    server, raw = server_connection(Limits(**{name: 10})), RawClient()
    server.receive(raw.hello(), 0.0)
    most = 9 if name == "max_settings_per_minute" else 10  # the first SETTINGS counts
    for number in range(most):
        server.receive(FLOODS[name](raw, number), 0.0)
        assert server.terminated is None, number
        server.finish(2 * number + 1)
    server.receive(FLOODS[name](raw, most), 0.0)
    assert ended_by(server) == ENHANCE_YOUR_CALM
    assert server.terminated is not None
    assert name in server.terminated.message


@pytest.mark.parametrize("name", [*FLOODS, "max_header_bytes_per_second"])
def test_as_many_again_when_the_period_has_passed(name: str) -> None:
    probe, raw = RawClient(), RawClient()
    probe.request(1)
    limit = 10 * len(probe.request(3, END_STREAM)) if "bytes" in name else 10
    period_s = 1.0 if "second" in name else 60.0
    server = server_connection(Limits(**{name: limit}), now=-1000.0)
    server.receive(raw.hello() + raw.request(1, END_STREAM), -1000.0)  # the next requests are of one length
    server.finish(1)
    flood = FLOODS.get(name, lambda raw, number: raw.request(2 * number + 1, END_STREAM))
    server.receive(flood(raw, 1), 0.0)
    server.finish(3)
    for turn in range(1, 4):
        for number in range(10 * turn, 10 * turn + 10):
            server.receive(flood(raw, number), turn * period_s)
            assert server.terminated is None, (turn, number)
            server.finish(2 * number + 1)
    for number in range(50, 65):
        server.receive(flood(raw, number), 3 * period_s)
        server.finish(2 * number + 1)
    assert ended_by(server) == ENHANCE_YOUR_CALM


def test_acknowledgements_and_probes_are_not_counted() -> None:
    server, raw = greeted_server(Limits(max_pings_per_minute=2, max_settings_per_minute=2))
    for _ in range(20):
        server.receive(frame(PING, ACK, 0, b"12345678") + frame(SETTINGS, ACK, 0), 0.0)
    assert server.terminated is None
    for number in range(20):  # one PING for each answer
        server.receive(raw.request(2 * number + 1, END_STREAM), 0.0)
        server.answer(2 * number + 1, "application/grpc", b"x")
        assert frames_of(server)
        server.receive(frame(PING, 0, 0, b"12345678"), 0.0)
    assert server.terminated is None


def test_an_allowance_fills_evenly_and_not_beyond_its_size() -> None:
    allowance = Allowance("x", 10, 5.0, 100.0)
    assert allowance.take(10, 100.0)
    assert not allowance.take(1, 100.4)
    allowance = Allowance("x", 10, 5.0, 100.0)
    assert allowance.take(10, 100.0)
    assert allowance.take(4, 102.0)
    assert not allowance.take(1, 102.0)
    allowance = Allowance("x", 10, 5.0, 0.0)
    assert allowance.take(8, 0.0)
    assert allowance.take(10, 1000.0)
    assert not allowance.take(1, 1000.0)


def test_the_expansion_of_a_small_header_block_is_bounded() -> None:
    server, raw = greeted_server(Limits(max_header_bytes=8_000))
    big = raw.encoder.encode([("x-big", "y" * 1000)], huffman=False)
    again = raw.encoder.encode([("x-big", "y" * 1000)], huffman=False)
    server.receive(frame(HEADERS, END_HEADERS, 1, raw.headers() + big + again * 3), 0.0)
    assert server.terminated is None
    server.receive(frame(HEADERS, END_HEADERS, 3, raw.headers() + again * 20), 0.0)
    assert ended_by(server) == ENHANCE_YOUR_CALM


# --- GOAWAY ---


@pytest.mark.parametrize("kind", [DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, 77])
@pytest.mark.parametrize("stream_id", [1, 3])
def test_only_its_own_continuation_comes_inside_a_header_block(kind: int, stream_id: int) -> None:
    """On the stream of the block, too; and frames that mean nothing elsewhere end the connection here."""
    other = frame(kind, 0, stream_id, bytes(8))
    for intruder in (other,) if stream_id == 1 else (other, frame(CONTINUATION, END_HEADERS, stream_id, b"")):
        server, raw = greeted_server()
        block = raw.headers()
        server.receive(frame(HEADERS, 0, 1, block[:10]) + intruder, 0.0)
        assert ended_by(server) == PROTOCOL_ERROR
        (goaway,) = (body for kind, _, _, body in frames_of(server) if kind == GOAWAY)
        assert b"a header block was interrupted by another frame" in goaway
    server, raw = greeted_server()
    block = raw.headers()
    events = server.receive(frame(HEADERS, 0, 1, block[:10]) + frame(CONTINUATION, END_HEADERS, 1, block[10:]), 0.0)
    assert [type(event) for event in events] == [RequestReceived]


def test_a_client_gives_up_the_calls_that_the_server_never_took() -> None:
    pair = Pair()
    calls = [pair.open() for _ in range(4)]
    pair.pump()
    pair.server.send_trailers(calls[2], Status.OK)
    pair.server.finish(calls[2])
    pair.pump()
    events = pair.client.receive(frame(GOAWAY, 0, 0, u32(calls[1]) + u32(0) + b"later"), 0.0)
    assert events == [GoAwayReceived(calls[1], 0, "later"), StreamReset(calls[3], REFUSED)]
    assert [pair.client.can_send(call) for call in calls] == [True, True, False, False]
    pair.client.send_message(calls[0], b"goes on")
    _, at_server = pair.pump()
    assert messages(at_server) == [b"goes on"]


def test_a_goaway_of_a_client_ends_no_call_of_its() -> None:
    server, raw = greeted_server()
    server.receive(raw.request(1), 0.0)
    assert server.receive(frame(GOAWAY, 0, 0, bytes(8)), 0.0) == [GoAwayReceived(0, 0, "")]
    assert messages(server.receive(frame(DATA, 0, 1, grpc_message(b"goes on")), 0.0)) == [b"goes on"]
    assert server.can_send(1)


@pytest.mark.parametrize("text", ["", "x" * 300, "ü" * 400])
def test_a_goaway_of_ours_is_a_frame_without_flags_and_says_why(text: str) -> None:
    server, raw = greeted_server()
    server.receive(raw.request(1) + raw.request(3), 0.0)
    server.send_message(3, b"it is too late for this")
    server.terminate(text, 2)
    (found,) = frames_of(server)
    assert found == (GOAWAY, 0, 0, u32(3) + u32(2) + text.encode()[:512])
    assert server.receive(raw.request(5), 0.0) == []
    assert not server.send_message(1, b"too late")
    server.terminate("again")
    server.goaway()
    server.ping(b"12345678")
    server.reset(1)
    server.credit(1, 10)
    assert frames_of(server) == []
    server.finish(1)
    server.finish(3)
    assert server.open_streams == 0


def test_a_goaway_has_a_code_of_four_bytes() -> None:
    pair = Pair()
    body = u32(0) + u32(0x12345678)
    assert pair.client.receive(frame(GOAWAY, 0, 0, body), 0.0) == [GoAwayReceived(0, 0x12345678, "")]


def test_events_that_were_handed_out_do_not_change() -> None:
    server, raw = greeted_server()
    events = server.receive(raw.request(1), 0.0)
    before = list(events)
    server.terminate("over")
    assert events == before


def test_a_client_takes_no_pushes_and_frames_of_no_known_kind_mean_nothing() -> None:
    client = GrpcConnection("client", Limits(), now=0.0)
    client.receive(frame(SETTINGS, 0, 0) + frame(PRIORITY, 0, 1, bytes(5)) + frame(0xBB, 0xFF, 3, b"?"), 0.0)
    client.receive(frame(PRIORITY, 0, 1, bytes(3)), 0.0)  # of a wrong length, which is nothing either
    assert client.terminated is None
    call = client.send_request_headers("/x", authority="t", content_type=CONTENT_TYPE, max_message_bytes=1)
    client.receive(frame(5, END_HEADERS, call, u32(2) + hpack.Encoder().encode([(":path", "/pushed")])), 0.0)
    assert ended_by(client) == PROTOCOL_ERROR


# --- DATA at odd places ---


def test_data_where_no_stream_ever_was_is_fatal() -> None:
    for stream_id in (0, 3, 99):
        server, raw = greeted_server()
        server.receive(raw.request(1), 0.0)
        server.receive(frame(DATA, 0, stream_id, b"12345"), 0.0)
        assert ended_by(server) == PROTOCOL_ERROR
        assert server.terminated is not None
        assert f"stream {stream_id}" in server.terminated.message


def test_data_of_a_stream_that_is_over_is_taken_and_given_back() -> None:
    server, raw = greeted_server(Limits(max_empty_data_per_minute=3))
    server.receive(raw.request(1) + raw.request(3), 0.0)
    server.reset(1)
    server.finish(1)
    server.data_to_send()
    before = server._window
    assert server.receive(frame(DATA, 0, 1, bytes(100)) + frame(DATA, END_STREAM, 1, bytes(50)), 0.0) == []
    assert (server._window, server._owed) == (before - 150, 150)
    assert frames_of(server) == []
    for _ in range(3):
        server.receive(frame(DATA, 0, 1), 0.0)
    assert server.terminated is None
    server.receive(frame(DATA, 0, 1), 0.0)
    assert ended_by(server) == ENHANCE_YOUR_CALM


@pytest.mark.parametrize("length", [False, True])
def test_late_data_of_a_stream_that_was_reset_here_says_nothing(length: bool) -> None:
    """Its slot is still taken, because the application works on it."""
    server, raw = greeted_server()
    fields = {"content_length": "1000"} if length else {}
    server.receive(raw.request(1, 0, **fields), 0.0)
    server.reset(1)
    server.data_to_send()
    late = frame(DATA, 0, 1, grpc_message(b"late")) + frame(DATA, PADDED, 1, b"\x02xyz\0\0")
    assert server.receive(late + frame(DATA, END_STREAM, 1, b"end"), 0.0) == []
    assert server.terminated is None
    assert [each for each in frames_of(server) if each[0] != WINDOW_UPDATE] == []
    assert server.pending_bytes == 0
    assert server._window + server._owed + server._owed_by_h2 == server._connection_window


def test_data_after_the_end_is_fatal() -> None:
    for body in (b"", b"x"):
        server, raw = greeted_server()
        assert server.receive(raw.request(1, END_STREAM), 0.0)[-1] == EndOfStream(1)
        server.receive(frame(DATA, 0, 1, body), 0.0)
        assert ended_by(server) == STREAM_CLOSED


@pytest.mark.parametrize("length", [False, True])
@pytest.mark.parametrize("padding", [0, 1, 9, 255])
def test_padding_counts_for_the_windows_and_means_nothing(length: bool, padding: int) -> None:
    server, raw = greeted_server()
    message = grpc_message(b"hello")
    fields = {"content_length": str(len(message))} if length else {}
    server.receive(raw.request(1, 0, **fields), 0.0)
    before = server._window
    body = bytes([padding]) + message + bytes(padding)
    assert messages(server.receive(frame(DATA, PADDED | END_STREAM, 1, body), 0.0)) == [b"hello"]
    assert server._window == before - len(body)
    assert server._owed + server._owed_by_h2 == len(body)
    stream = server._streams[1]
    assert (stream.pending, stream.complete) == (10, 10)
    assert server.terminated is None


@pytest.mark.parametrize(("body", "fine"), [(b"", False), (b"\x01", False), (b"\x01\0", True), (b"\x02\0", False)])
def test_padding_is_inside_its_frame(body: bytes, fine: bool) -> None:
    server, raw = greeted_server(Limits(max_empty_data_per_minute=1))
    server.receive(raw.request(1), 0.0)
    server.receive(frame(DATA, PADDED, 1, body), 0.0)
    assert (server.terminated is None) == fine
    if not fine:
        assert ended_by(server) == PROTOCOL_ERROR
    else:  # nothing but padding is nothing
        server.receive(frame(DATA, PADDED, 1, body), 0.0)
        assert ended_by(server) == ENHANCE_YOUR_CALM


def test_empty_data_is_counted_unless_it_is_an_end() -> None:
    server, raw = greeted_server(Limits(max_empty_data_per_minute=2))
    for stream_id in range(1, 21, 2):
        server.receive(raw.request(stream_id) + frame(DATA, END_STREAM, stream_id), 0.0)
    assert server.terminated is None
    server.receive(raw.request(31) + frame(DATA, 0, 31) * 2, 0.0)
    assert server.terminated is None
    server.receive(frame(DATA, 0, 31), 0.0)
    assert ended_by(server) == ENHANCE_YOUR_CALM


@pytest.mark.parametrize("repeat", [False, True])
@pytest.mark.parametrize(("said", "sent", "fine"), [(10, 10, True), (10, 9, False), (10, 11, False), (0, 0, True)])
def test_a_content_length_is_true(repeat: bool, said: int, sent: int, fine: bool) -> None:
    server, raw = greeted_server()
    first = 1
    if repeat:
        for _ in range(2):
            body = (grpc_message(b"12345") + bytes(1000))[:said]
            server.receive(raw.request(first, 0, content_length=str(said)) + frame(DATA, END_STREAM, first, body), 0.0)
            server.finish(first)
            first += 2
    body = (grpc_message(b"12345") + b"!")[:sent]
    events = server.receive(raw.request(first, 0, content_length=str(said)), 0.0)
    assert type(events[0]) is RequestReceived
    assert (server._streams[first].h2 is None) == repeat
    server.receive(frame(DATA, END_STREAM, first, body), 0.0)
    assert (server.terminated is None) == fine


# --- Windows ---


@pytest.mark.parametrize("length", [False, True])
def test_a_peer_never_has_more_window_than_it_began_with(length: bool) -> None:
    limits = Limits(stream_window_bytes=64 * KIB, max_pending_bytes_per_connection=512 * KIB)
    server, raw = greeted_server(limits)
    whole = server._connection_window
    fields = {"content_length": "99999999"} if length else {}
    server.receive(raw.request(1, 0, **fields), 0.0)
    connection, stream = whole, 64 * KIB
    message = grpc_message(bytes(10_000))
    for _ in range(60):
        connection -= len(message)
        stream -= len(message)
        assert min(connection, stream) >= 0
        (event,) = server.receive(frame(DATA, 0, 1, message), 0.0)
        assert isinstance(event, MessageReceived)
        server.credit(1, event.flow_size)
        server.credit(1, event.flow_size)  # twice is once
        for kind, flags, stream_id, body in frames_of(server):
            assert (kind, flags) == (WINDOW_UPDATE, 0)
            if stream_id:
                stream += struct.unpack(">L", body)[0]
            else:
                connection += struct.unpack(">L", body)[0]
        assert connection <= whole
        assert stream <= 64 * KIB
        assert whole - connection < whole / 4 + len(message)
        assert 64 * KIB - stream < 16 * KIB + len(message), "a quarter is worth a frame"
    assert (server.pending_bytes, server._complete) == (0, 0)


def test_a_window_that_is_overdrawn_by_one_byte_is_fatal() -> None:
    limits = Limits(stream_window_bytes=64 * KIB, max_pending_bytes_per_connection=512 * KIB)
    for more in (0, 1):
        server, raw = greeted_server(limits)
        server.receive(raw.request(1) + raw.request(3), 0.0)
        data = grpc_message(bytes(64 * KIB - 5))
        for start in range(0, len(data), 16 * KIB):
            server.receive(frame(DATA, 0, 1, data[start : start + 16 * KIB]), 0.0)
        if more:
            server.receive(frame(DATA, 0, 1, b"!"), 0.0)
            assert ended_by(server) == FLOW_CONTROL_ERROR
        assert more or server.terminated is None


def test_a_connection_window_that_is_overdrawn_is_fatal() -> None:
    limits = Limits(stream_window_bytes=64 * KIB, max_pending_bytes_per_connection=256 * KIB)
    server, raw = greeted_server(limits)
    streams = range(1, 13, 2)
    server.receive(b"".join(map(raw.request, streams)), 0.0)
    data = grpc_message(bytes(64 * KIB - 5))
    sent = 0
    for stream_id in streams:
        for start in range(0, len(data), 16 * KIB):
            left = server._window
            server.receive(frame(DATA, 0, stream_id, data[start : start + 16 * KIB]), 0.0)
            if server.terminated is not None:
                assert left < 16 * KIB
                assert ended_by(server) == FLOW_CONTROL_ERROR
                assert 192 * KIB < sent <= 256 * KIB, "as much as the connection may hold"
                return
            sent += 16 * KIB
    raise AssertionError(f"{sent} bytes were taken, and no credit was returned")


def test_a_message_larger_than_its_window_is_lent_what_is_missing_and_repays_it() -> None:
    limits = Limits(stream_window_bytes=64 * KIB, max_pending_bytes_per_connection=2 * MIB)
    server, raw = greeted_server(limits)
    server.receive(raw.request(1), 0.0)
    data = grpc_message(bytes(200 * KIB))
    window, granted, position = 64 * KIB, 0, 0
    events: list[object] = []
    while position < len(data):
        size = min(10_000, window, len(data) - position)
        assert size, "a message that has begun can always end"
        events += server.receive(frame(DATA, 0, 1, data[position : position + size]), 0.0)
        position += size
        window -= size
        for kind, _, stream_id, body in frames_of(server):
            if kind == WINDOW_UPDATE and stream_id:
                window += struct.unpack(">L", body)[0]
                granted += struct.unpack(">L", body)[0]
    (event,) = events
    assert isinstance(event, MessageReceived)
    assert granted == len(data) - 64 * KIB, "no more than the message needs"
    assert window == 0
    server.credit(1, event.flow_size)
    given = sum(
        struct.unpack(">L", body)[0] for kind, _, sid, body in frames_of(server) if kind == WINDOW_UPDATE and sid
    )
    assert given == 64 * KIB, "the loan is repaid first"


def test_finish_gives_everything_back() -> None:
    server, raw = greeted_server(Limits(stream_window_bytes=64 * KIB, max_pending_bytes_per_connection=512 * KIB))
    for stream_id in range(1, 41, 2):
        body = grpc_message(bytes(10_000)) * 2 + grpc_message(bytes(10_000))[:5_000]
        server.receive(raw.request(stream_id), 0.0)
        for start in range(0, len(body), 16_000):
            server.receive(frame(DATA, 0, stream_id, body[start : start + 16_000]), 0.0)
        assert server.pending_bytes == len(body)
        server.send_trailers(stream_id, Status.OK)
        server.finish(stream_id)
        server.finish(stream_id)
        assert (server.pending_bytes, server._complete, server.open_streams) == (0, 0, 0)
        assert server._window + server._owed + server._owed_by_h2 == server._connection_window
        frames_of(server)


def test_incomplete_messages_take_the_last_byte_of_the_budget_and_then_one_must_go() -> None:
    limits = Limits(stream_window_bytes=64 * KIB, max_pending_bytes_per_connection=256 * KIB + 1)
    server, raw = greeted_server(limits)
    window, failed = server._connection_window, 0
    for stream_id in range(1, 17, 2):
        server.receive(raw.request(stream_id), 0.0)
        text = grpc_message(bytes(60 * KIB))[: 48 * KIB]  # it never ends
        while text and not failed:
            assert window, "a peer without window could only wait"
            size = min(len(text), window, 16 * KIB)
            events = server.receive(frame(DATA, 0, stream_id, text[:size]), 0.0)
            text, window = text[size:], window - size
            failed += sum(type(event) is StreamFailed for event in events)
            window += sum(
                struct.unpack(">L", body)[0]
                for kind, _, number, body in frames_of(server)
                if kind == WINDOW_UPDATE and not number
            )
    assert failed == 1
    assert server.terminated is None


def repeating_server(limits: Limits) -> tuple[GrpcConnection, RawClient]:
    """A server that serves the next requests, from stream 5 on, without h2."""
    server, raw = greeted_server(limits)
    for stream_id in (1, 3):
        server.receive(raw.request(stream_id) + frame(DATA, END_STREAM, stream_id, grpc_message(b"x")), 0.0)
        server.answer(stream_id, "application/grpc", b"a")
    frames_of(server)
    return server, raw


def test_a_block_that_fills_the_table_does_so_each_time_it_comes() -> None:
    server, _ = greeted_server()
    pairs = [(":method", "POST"), (":scheme", "http"), (":path", "/t/M"), (":authority", "x"), ("te", "trailers")]
    pairs += [("content-type", CONTENT_TYPE), ("x-one", "1"), ("x-two", "2")]
    block = hpack.Encoder().encode(pairs, huffman=False)
    inserted = len(server._h2.decoder.header_table.dynamic_entries)
    for stream_id in (1, 3, 5):
        (event,) = server.receive(frame(HEADERS, END_HEADERS, stream_id, block), 0.0)
        assert isinstance(event, RequestReceived)
        before, inserted = inserted, len(server._h2.decoder.header_table.dynamic_entries)
        assert inserted > before
        assert server._streams[stream_id].h2 is not None


def test_trailers_of_a_request_end_it() -> None:
    for flags in (END_HEADERS, END_HEADERS | END_STREAM):
        server, raw = repeating_server(Limits())
        server.receive(raw.request(5) + frame(DATA, 0, 5, grpc_message(b"x")), 0.0)
        assert server._streams[5].h2 is None
        trailers = raw.encoder.encode([("x-last", "word")], huffman=False)
        events = server.receive(frame(HEADERS, flags, 5, trailers), 0.0)
        if flags & END_STREAM:
            assert events == [EndOfStream(5)]
        else:
            assert ended_by(server) == PROTOCOL_ERROR


def test_an_answer_gives_back_what_its_request_held() -> None:
    """Whole messages that wait hold the connection's window back, and the peer may have none left."""
    server, raw = repeating_server(
        Limits(stream_window_bytes=64 * KIB, max_pending_bytes_per_connection=256 * KIB, max_streams_per_connection=100)
    )
    body = grpc_message(bytes(10_000))
    streams = []
    for stream_id in range(5, 205, 2):
        if server._window < len(body):
            break
        server.receive(raw.request(stream_id) + frame(DATA, END_STREAM, stream_id, body), 0.0)
        assert server._streams[stream_id].h2 is None
        streams.append(stream_id)
        frames_of(server)
    before = server._window
    assert before < len(body)
    for stream_id in streams:
        server.answer(stream_id, "application/grpc", b"a")
    assert server._window > 64 * KIB, "nothing else will come that could make it return the window"
    assert (server.pending_bytes, server._complete, server.open_streams) == (0, 0, 0)
    assert server._window + server._owed + server._owed_by_h2 == server._connection_window


def test_a_peer_that_still_sends_when_it_has_its_answer_is_asked_to_stop() -> None:
    server, raw = repeating_server(Limits())
    server.receive(raw.request(5) + frame(DATA, 0, 5, grpc_message(b"question")), 0.0)
    assert server._streams[5].h2 is None
    server.answer(5, "application/grpc", b"enough")
    found = frames_of(server)
    assert [(kind, flags) for kind, flags, *_ in found] == [
        (HEADERS, END_HEADERS),
        (DATA, 0),
        (HEADERS, END_HEADERS | END_STREAM),
        (RST_STREAM, 0),
    ]
    assert found[-1][3] == u32(0), "which is no error"
    assert server.open_streams == 0


def test_the_headers_of_a_response_go_out_once() -> None:
    server, raw = repeating_server(Limits())
    server.receive(raw.request(5) + frame(DATA, END_STREAM, 5, grpc_message(b"x")), 0.0)
    assert server._streams[5].h2 is None
    server.send_response_headers(5, "application/grpc")
    server.answer(5, "application/grpc", b"a")
    found = frames_of(server)
    assert [(kind, flags) for kind, flags, *_ in found] == [
        (HEADERS, END_HEADERS),
        (DATA, 0),
        (HEADERS, END_HEADERS | END_STREAM),
    ]
    assert server.open_streams == 0


def test_an_answer_that_comes_too_late_goes_nowhere() -> None:
    server, raw = repeating_server(Limits())
    server.receive(raw.request(5) + frame(DATA, END_STREAM, 5, grpc_message(b"x")), 0.0)
    server.answer(99, "application/grpc", b"of a stream that never was")
    assert frames_of(server) == []
    server.terminate("over")
    frames_of(server)
    server.answer(5, "application/grpc", b"late")
    assert frames_of(server) == []
    assert server.open_streams == 0


# --- Sending ---


def outgoing(window: int = 10 * MIB, frame_bytes: int = 16 * KIB) -> tuple[Outgoing, H2Connection]:
    h2 = H2Connection(H2Configuration(client_side=False))
    h2.outbound_flow_control_window = window
    h2.max_outbound_frame_size = frame_bytes
    return Outgoing(h2, lambda stream: None), h2


def stream_of(send_window: int = 10 * MIB) -> WireStream:
    return WireStream(1, None, MIB, send_window, MIB)


@pytest.mark.parametrize(
    ("window", "frame_bytes", "send_window", "most"),
    [(1000, 16 * KIB, MIB, 1000), (MIB, 16 * KIB, 2000, 2000), (MIB, 17_000, MIB, 17_000), (MIB, MIB, MIB, 64 * KIB)],
)
def test_a_whole_answer_fits_into_every_window_and_one_frame(
    window: int, frame_bytes: int, send_window: int, most: int
) -> None:
    for size, fits in ((most - 5, True), (most - 4, False)):
        out, h2 = outgoing(window, frame_bytes)
        assert not out
        assert not out.sent_data
        assert out.whole(stream_of(send_window), b"\x88", bytes(size), b"\x00") is fits
        assert h2.outbound_flow_control_window == (window - size - 5 if fits else window)
        assert out.sent_data is fits
        found = parse_frames(out.take(0))
        if fits:
            assert found == [
                (HEADERS, END_HEADERS, 1, b"\x88"),
                (DATA, 0, 1, grpc_message(bytes(size))),
                (HEADERS, END_HEADERS | END_STREAM, 1, b"\x00"),
            ]
        else:
            assert found == []


def test_unread_whole_answers_are_bounded() -> None:
    out, _ = outgoing()
    count = 0
    while out.whole(stream_of(), b"\x88", bytes(10_000), b"\0"):
        count += 1
    assert 256 * KIB < count * 10_005 <= 256 * KIB + 10_005
    out.take(0)
    assert out.whole(stream_of(), b"\x88", bytes(10_000), b"\0"), "what was taken waits no more"


@pytest.mark.parametrize("size", [10, 16 * KIB, 16 * KIB + 1, 40 * KIB])
@pytest.mark.parametrize("end", [False, True])
def test_a_long_header_block_is_continued(size: int, end: bool) -> None:
    out, _ = outgoing()
    block = bytes(range(256)) * 200
    out.headers(7, block[:size], end=end)
    found = parse_frames(out.take(0))
    assert b"".join(body for *_, body in found) == block[:size]
    assert [kind for kind, *_ in found] == [HEADERS, *[CONTINUATION] * (len(found) - 1)]
    assert len(found) == -(-size // (16 * KIB))
    last = len(found) - 1
    for index, (_, flags, stream_id, _) in enumerate(found):
        assert stream_id == 7
        assert flags == (END_STREAM if end and not index else 0) | (END_HEADERS if index == last else 0)


def test_waiting_bytes_are_counted_and_forgotten_with_their_stream() -> None:
    pair = Pair()
    one, two = pair.open(), pair.open()
    pair.pump()
    assert pair.client.waiting_bytes == 0
    pair.client.send_message(one, b"x" * 100)
    pair.client.send_message(two, (b"y" * 300, b"", b"z" * 300))
    assert (pair.client.send_buffered(one), pair.client.send_buffered(two)) == (105, 605)
    assert pair.client.waiting_bytes == 710
    pair.client.reset(two)
    assert pair.client.send_buffered(two) == 0
    assert pair.client.waiting_bytes == 105 + 13, "the message, and the frame that resets"
    assert pair.client.framed_bytes == 0
    pair.pump()
    assert (pair.client.waiting_bytes, pair.client.framed_bytes) == (0, 105)
    assert not pair.client.wants_write


def test_bytes_are_asked_for_in_portions_and_streams_take_turns() -> None:
    limits = Limits(stream_window_bytes=4 * MIB, max_pending_bytes_per_connection=64 * MIB)
    pair = Pair(limits)
    calls = [pair.open() for _ in range(3)]
    pair.pump()
    for call in calls:
        pair.client.send_message(call, bytes(300 * KIB))
    data = pair.client.data_to_send(100 * KIB)
    assert len(data) == 100 * KIB
    assert [stream_id for _, _, stream_id, _ in parse_frames(data)] == calls[:2]
    data = pair.client.data_to_send(150 * KIB)
    assert [stream_id for _, _, stream_id, _ in parse_frames(data)] == [calls[2], *calls[:2]]
    assert all(len(body) <= MAX_FRAME_BYTES for *_, body in parse_frames(data))
    assert pair.client.wants_write


def test_a_portion_is_cut_into_writes_without_a_rest() -> None:
    # A rest of 72 bytes would be a write of its own, which waits for the socket like one of 256 KiB.
    limits = Limits(stream_window_bytes=4 * MIB, max_pending_bytes_per_connection=64 * MIB)
    pair = Pair(limits)
    call = pair.open()
    pair.pump()
    pair.server.send_response_headers(call, CONTENT_TYPE)
    pair.server.send_message(call, bytes(2 * MIB))
    assert WRITE_BYTES % WRITE_PIECE_BYTES == 0
    for _ in range(3):  # the first with headers in front
        assert len(pair.server.data_to_send(WRITE_BYTES)) == WRITE_BYTES


def test_a_portion_with_no_room_for_a_frame_leaves_its_stream_for_the_next() -> None:
    pair = Pair()
    one, two = pair.open(), pair.open()
    pair.pump()
    pair.client.send_message(one, bytes(20))
    pair.client.send_message(two, bytes(20))
    assert [(stream_id, len(body)) for *_, stream_id, body in parse_frames(pair.client.data_to_send(34 + 9))] == [
        (one, 25)
    ]
    assert [(stream_id, len(body)) for *_, stream_id, body in parse_frames(pair.client.data_to_send(10))] == [(two, 1)]
    assert [(stream_id, len(body)) for *_, stream_id, body in parse_frames(pair.client.data_to_send(33))] == [(two, 24)]


@pytest.mark.parametrize("waiting", [1, 2, 30])
def test_many_messages_of_a_stream_are_no_more_turns(waiting: int) -> None:
    pair = Pair(Limits(stream_window_bytes=4 * MIB, max_pending_bytes_per_connection=64 * MIB))
    busy, other = pair.open(), pair.open()
    pair.pump()
    for _ in range(waiting):
        pair.client.send_message(busy, bytes(MAX_FRAME_BYTES))
    for _ in range(2):
        pair.client.send_message(other, bytes(MAX_FRAME_BYTES))
    order = [stream_id for _, _, stream_id, _ in parse_frames(pair.client.data_to_send(4 * MAX_FRAME_BYTES))]
    assert order[:4] == [busy, other, busy, other]


def test_a_stream_without_window_waits_and_holds_up_no_other() -> None:
    pair = Pair(Limits(stream_window_bytes=64 * KIB, max_pending_bytes_per_connection=MIB))
    one, two = pair.open(), pair.open()
    pair.pump()
    pair.client.send_message(one, bytes(64 * KIB - 5))
    pair.client.send_message(one, b"waits")
    pair.client.send_message(two, b"small")
    _, at_server = pair.pump()
    assert b"small" in messages(at_server)
    assert pair.client.waiting_bytes == pair.client.send_buffered(one) == 10
    for event in at_server:
        if isinstance(event, MessageReceived):
            pair.server.credit(event.stream_id, event.flow_size)
    _, at_server = pair.pump()
    assert messages(at_server) == [b"waits"]
    assert pair.client.waiting_bytes == 0


def test_one_stream_that_waits_for_its_window_holds_up_no_other_at_all() -> None:
    pair = Pair(Limits(stream_window_bytes=64 * KIB, max_pending_bytes_per_connection=MIB))
    one, two = pair.open(), pair.open()
    pair.client.send_message(one, bytes(64 * KIB - 5))
    pair.pump()
    pair.client.send_message(one, b"waits")
    pair.client.send_message(two, b"small")
    assert [stream_id for _, _, stream_id, _ in parse_frames(pair.client.data_to_send())] == [two]


def test_a_stream_that_was_reset_while_it_waited_holds_up_no_other() -> None:
    pair = Pair()
    one, two = pair.open(), pair.open()
    pair.pump()
    pair.client.send_message(one, b"is over")
    pair.client.send_message(two, b"goes")
    pair.client.reset(one)
    sent = parse_frames(pair.client.data_to_send())
    assert [(kind, stream_id) for kind, _, stream_id, _ in sent] == [(RST_STREAM, one), (DATA, two)]


@pytest.mark.parametrize("more", [-1, 0, 1, 2])
def test_the_last_byte_of_a_message_goes_in_a_frame_of_its_own_if_it_must(more: int) -> None:
    pair = Pair()
    call = pair.open()
    pair.pump()
    pair.client.send_message(call, bytes(MAX_FRAME_BYTES - 5 + more))
    _, at_server = pair.pump()
    assert [len(each) for each in messages(at_server)] == [MAX_FRAME_BYTES - 5 + more]


def test_calls_that_have_ended_take_no_place() -> None:
    pair = Pair(Limits(max_streams_per_connection=3))
    for number in range(20):
        call = pair.open()
        pair.client.send_message(call, b"question")
        pair.client.end_stream(call)
        _, at_server = pair.pump()
        assert messages(at_server) == [b"question"], number
        pair.server.send_response_headers(call, CONTENT_TYPE)
        pair.server.send_message(call, b"answer")
        pair.server.send_trailers(call, Status.OK)
        pair.server.finish(call)
        at_client, _ = pair.pump()
        assert messages(at_client) == [b"answer"]
        pair.client.finish(call)
    assert pair.client.open_streams == pair.server.open_streams == 0


@pytest.mark.parametrize("size", [0, 10, 300])
def test_an_end_goes_with_the_last_bytes_and_nothing_is_sent_after_it(size: int) -> None:
    pair = Pair()
    call = pair.open()
    pair.client.data_to_send()
    if size:
        pair.client.send_message(call, bytes(size))
    pair.client.end_stream(call)
    assert not pair.client.can_send(call)
    data = pair.client.data_to_send()
    assert [(kind, flags) for kind, flags, *_ in parse_frames(data)] == [(DATA, END_STREAM)]
    assert not pair.client.can_send(call)
    assert not pair.client.send_message(call, b"late")
    pair.client.end_stream(call)
    assert pair.client.data_to_send() == b""


# --- Messages ---


@pytest.mark.parametrize(
    ("prefix", "error"),
    [(b"\x01\0\0\0\x05", UnimplementedError), (b"\0\0\0\x04\x01", MessageTooLargeError)],
)
@pytest.mark.parametrize("cut", [1, 4, 5])
def test_a_message_is_judged_by_its_first_five_bytes(prefix: bytes, error: type[Exception], cut: int) -> None:
    server, raw = greeted_server(message_limit=1024)
    server.receive(raw.request(1), 0.0)
    assert server.receive(frame(DATA, 0, 1, prefix[:cut]), 0.0)[:0] == []
    events = [] if cut == 5 else server.receive(frame(DATA, 0, 1, prefix[cut:]), 0.0)
    if cut < 5:
        (event,) = events
        assert isinstance(event, StreamFailed)
        assert type(event.error) is error
    assert server.pending_bytes == 0
    assert server._streams[1].discarding


def test_a_message_of_the_largest_size_is_taken_and_none_larger() -> None:
    stream = WireStream(1, None, MIB, MIB, 1024)
    found: list[bytes] = []
    data = grpc_message(bytes(1024))
    assert stream.feed(data, 0, len(data), found) is None
    assert found == [bytes(1024)]
    data = grpc_message(bytes(1025))
    assert isinstance(stream.feed(data, 0, len(data), found), MessageTooLargeError)


@pytest.mark.parametrize("cut", [3, 100, 3000])
def test_nothing_is_kept_of_a_message_that_is_given_up(cut: int) -> None:
    stream, found = WireStream(1, None, MIB, MIB, MIB), list[bytes]()
    assert stream.feed(grpc_message(bytes(5000)), 0, cut, found) is None
    assert stream.truncated
    stream.drop_partial()
    assert (stream.parts, stream.head, stream.truncated, stream.discarding) == ([], b"", False, True)


def test_pieces_are_put_together_and_small_ones_are_one_object() -> None:
    for piece in (1, SMALL_CHUNK - 1, SMALL_CHUNK, 5000):
        stream = WireStream(1, None, MIB, MIB, MIB)
        message = bytes(range(256)) * 40
        data, found = grpc_message(message) + grpc_message(b"") + grpc_message(b"x"), list[bytes]()
        for start in range(0, len(data), piece):
            stop = min(start + piece, len(data))
            assert stream.feed(data, start, stop, found) is None, "what lies behind is of another frame"
            if piece < SMALL_CHUNK:
                assert len(stream.parts) <= 1
        assert found == [message, b"", b"x"]
        assert not stream.truncated


@pytest.mark.parametrize("size", [0, 1, 9, 3000])
def test_messages_are_the_same_wherever_their_bytes_are_cut(size: int) -> None:
    """The second piece holds the rest of a prefix, and whole messages behind it."""
    expected = [bytes(range(1, 8)), bytes(size), b"end"]
    data = b"".join(map(grpc_message, expected))
    for cut in sorted({*range(30), *range(len(data) - 30, len(data))} & {*range(len(data))}):
        stream, found = WireStream(1, None, MIB, MIB, MIB), list[bytes]()
        assert stream.feed(data, 0, cut, found) is None
        assert stream.feed(data, cut, len(data), found) is None
        assert found == expected, cut
        assert not stream.truncated


def test_a_request_cut_inside_its_prefix_or_message_fails() -> None:
    for cut in (1, 4, 5, 9):
        server, raw = greeted_server()
        server.receive(raw.request(1), 0.0)
        events = server.receive(frame(DATA, END_STREAM, 1, grpc_message(b"12345")[:cut]), 0.0)
        assert [type(event) for event in events] == [StreamFailed]
        assert server.pending_bytes == 0


# --- Text, and what is remembered ---


def test_a_timeout_is_said_in_the_finest_unit_that_fits() -> None:
    said = {0.0: "0n", 0.05: "50000000n", 0.099999999: "99999999n", 0.1: "100000u", 99.9: "99900000u", 100.0: "100000m"}
    said |= {99_999.0: "99999000m", 100_000.0: "100000S", 10.0**8: "1666667M", 6e9: "1666667H", -5.0: "0n"}
    assert {seconds: format_timeout(seconds) for seconds in said} == said


@pytest.mark.parametrize("text", ["x" * 2048, "x" * 5000, "ü" * 5000, "%" * 700, "字" * 300])
def test_a_long_text_keeps_its_beginning_and_much_of_it(text: str) -> None:
    encoded = encode_message(text)
    assert len(encoded) <= 2048
    if len(text) == 2048:
        assert encoded == text
    else:
        assert len(encoded) > 2048 / 2
        assert encoded.endswith("%E2%80%A6") == (text[0] != "%" or len(text) * 3 > 2048)


def test_some_blocks_are_remembered_until_the_table_changes() -> None:
    decoder = hpack.Decoder()
    repeats: Repeats[int] = Repeats(decoder)
    assert not repeats.changed()
    for number in range(16):
        repeats.learn(b"%d" % number, number)
    assert [repeats.get(b"%d" % number) for number in range(16)] == list(range(16))
    repeats.learn(b"one more", 99)
    assert repeats.get(b"one more") == 99
    assert repeats.get(b"0") is None
    repeats.learn(bytes(2048), 1)
    repeats.learn(bytes(2048 + 1), 2)
    assert (repeats.get(bytes(2048)), repeats.get(bytes(2048 + 1))) == (1, None)
    encoder = hpack.Encoder()
    decoder.decode(encoder.encode([("x-new", "1")]))
    assert repeats.changed()
    assert repeats.get(b"one more") is None
    assert not repeats.changed()
    decoder.header_table.maxsize = 100
    assert repeats.changed()


@pytest.mark.parametrize("length", [0, 1, 126, 127, 128, 254, 255, 127 + 128, 127 + 2**14 - 1, 127 + 2**14])
def test_text_of_any_length_is_read_by_any_decoder(length: int) -> None:
    headers = [(":status", "200"), ("content-type", "y" * length), ("x-a", "z" * length), (":status", "404")]
    decoder = hpack.Decoder(max_header_list_size=2**20)
    found = [(each[0], each[1]) for each in decoder.decode(literals(headers))]
    assert found == headers
    assert not decoder.header_table.dynamic_entries, "nothing is left in the table"


def test_a_response_without_a_status_is_no_answer() -> None:
    pair = Pair()
    call = pair.open()
    pair.pump()
    pair.server.send_response_headers(call, CONTENT_TYPE)
    pair.pump()
    (event,) = pair.client.receive(frame(DATA, END_STREAM, call, grpc_message(b"x")), 0.0)[1:]
    assert isinstance(event, TrailersReceived)
    assert event.status is Status.UNAVAILABLE
