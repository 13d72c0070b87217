"""Frames of extreme sizes: as short as allowed, one byte shorter, empty, or in the wrong place."""

from __future__ import annotations

import hpack
import pytest
from wire_harness import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    ENHANCE_YOUR_CALM,
    GOAWAY,
    HEADERS,
    SETTINGS,
    Pair,
    frame,
    greeted_server,
    grpc_message,
    messages,
    parse_frames,
    server_connection,
)

from danube.model.limits import Limits
from danube.wire._events import GoAwayReceived, RequestReceived
from danube.wire._hpack import literals
from danube.wire._stream import SMALL_CHUNK
from danube.wire.connection import GrpcConnection


def greeted_client() -> GrpcConnection:
    client = GrpcConnection("client", Limits(), now=0.0)
    client.receive(frame(SETTINGS, 0, 0) + frame(SETTINGS, ACK, 0), 0.0)
    client.data_to_send()
    return client


def test_a_goaway_needs_no_text() -> None:
    client = greeted_client()
    events = client.receive(frame(GOAWAY, 0, 0, bytes([0, 0, 0, 5, 0, 0, 0, 2])), 0.0)
    assert events == [GoAwayReceived(5, 2, "")]
    assert client.terminated is None


@pytest.mark.parametrize(("stream_id", "body"), [(0, bytes(7)), (1, bytes(8)), (0, b"")])
def test_a_goaway_that_is_malformed_ends_the_connection(stream_id: int, body: bytes) -> None:
    client = greeted_client()
    client.receive(frame(GOAWAY, 0, stream_id, body), 0.0)
    assert client.terminated is not None
    assert "malformed" in client.terminated.message


def test_each_side_names_the_last_stream_that_it_took() -> None:
    client = greeted_client()
    client.goaway("bye")
    ((_, _, _, body),) = [each for each in parse_frames(client.data_to_send()) if each[0] == GOAWAY]
    assert body == bytes(8) + b"bye", "a server opens no streams"
    server, raw = greeted_server()
    server.receive(raw.request(1) + raw.request(5), 0.0)
    server.goaway()
    ((_, _, _, body),) = [each for each in parse_frames(server.data_to_send()) if each[0] == GOAWAY]
    assert body == bytes([0, 0, 0, 5]) + bytes(4)


def test_empty_continuations_are_counted_and_others_are_not() -> None:
    limits = Limits(max_empty_data_per_minute=20)
    server, raw = greeted_server(limits)
    block = raw.headers()
    server.receive(frame(HEADERS, 0, 1, block[:1]), 0.0)
    for index in range(1, len(block)):
        assert server.receive(frame(CONTINUATION, 0, 1, block[index : index + 1]), 0.0) == []
    events = server.receive(frame(CONTINUATION, END_HEADERS, 1), 0.0)
    assert [type(event) for event in events] == [RequestReceived], "many pieces of a block are no flood"
    server, raw = greeted_server(limits)
    server.receive(frame(HEADERS, 0, 1, block[:1]), 0.0)
    for _ in range(20):
        server.receive(frame(CONTINUATION, 0, 1), 0.0)
    assert server.terminated is None
    server.receive(frame(CONTINUATION, 0, 1), 0.0)
    assert server.terminated is not None
    assert server.terminated.code == ENHANCE_YOUR_CALM


def test_a_header_block_may_be_as_long_as_the_limit_and_the_next_one_counts_by_itself() -> None:
    server, raw = greeted_server(Limits(max_header_bytes=1_500))
    for stream_id in (1, 3, 5):
        block = raw.headers(extra=[("x-pad", f"{stream_id}" + "~" * 500)])
        assert len(block) < 1_500 < 3 * len(block)
        server.receive(frame(HEADERS, END_HEADERS, stream_id, block), 0.0)
    assert server.terminated is None
    server.receive(frame(HEADERS, 0, 7, bytes(1_500)), 0.0)
    assert server.terminated is None
    server.receive(frame(CONTINUATION, 0, 7, b"\0"), 0.0)
    assert server.terminated is not None
    assert "max_header_bytes" in server.terminated.message


def test_a_server_says_nothing_before_the_preface_unless_it_is_over() -> None:
    server = server_connection()
    assert not server.wants_write
    assert server.data_to_send() == b""
    server.terminate("enough")
    assert server.wants_write
    assert parse_frames(server.data_to_send())[-1][0] == GOAWAY
    assert not server.wants_write
    pair = Pair()
    pair.pump()
    pair.server.ping(bytes(8))
    assert pair.server.wants_write
    pair.server.data_to_send()
    assert not pair.server.wants_write


@pytest.mark.parametrize("pieces", [1, 2])
def test_messages_of_every_small_size_arrive_once_and_whole(pieces: int) -> None:
    """Short ones are put together with their prefix, longer ones are queued behind it."""
    pair = Pair()
    call = pair.open()
    pair.pump()
    sent = [bytes([size % 251]) * size for size in (*range(5), *range(250, 262), 1023, 1024, 4096)]
    for data in sent:
        half = len(data) // 2
        pair.client.send_message(call, data if pieces == 1 else (data[:half], data[half:]))
    _, events = pair.pump()
    assert messages(events) == sent


def test_a_status_that_is_not_200_is_written_out() -> None:
    for status in ("200", "404", "503"):
        headers = [(":status", status), ("content-type", "text/plain"), ("x-status", "200")]
        assert [tuple(pair) for pair in hpack.Decoder().decode(literals(headers))] == headers


def test_messages_cut_anywhere_are_put_together() -> None:
    """Pieces around the size from which they are kept as they are, in any order."""
    server, raw = greeted_server()
    server.receive(raw.request(1), 0.0)
    sizes = [SMALL_CHUNK - 1, SMALL_CHUNK, SMALL_CHUNK + 1, 1, SMALL_CHUNK, 1, 1, SMALL_CHUNK + 1]
    message = bytes(index % 253 for index in range(sum(sizes)))
    stream = grpc_message(message) + grpc_message(b"next")
    events = server.receive(frame(DATA, 0, 1, stream[:3]), 0.0)
    position = 3
    for size in [2, *sizes]:
        events += server.receive(frame(DATA, 0, 1, stream[position : position + size]), 0.0)
        position += size
    events += server.receive(frame(DATA, 0, 1, stream[position:]), 0.0)
    assert messages(events) == [message, b"next"]
