"""Peers that are cheap to be and dear to serve: each is sent home with ENHANCE_YOUR_CALM."""

from __future__ import annotations

import struct
from collections.abc import Callable

import hpack
import pytest
from wire_harness import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    GOAWAY,
    HEADERS,
    PING,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Pair,
    RawClient,
    frame,
    greeted_server,
    parse_frames,
)

from danube.model.errors import Status
from danube.model.limits import Limits
from danube.wire._abuse import Allowance
from danube.wire._events import ConnectionTerminated, TrailersReceived
from danube.wire.connection import GrpcConnection

LIMITS = Limits(
    max_resets_per_minute=20,
    max_pings_per_minute=20,
    max_settings_per_minute=20,
    max_empty_data_per_minute=20,
    max_new_streams_per_second=50,
    max_header_bytes_per_second=200_000,
    max_header_bytes=8_000,
)


def rapid_reset(raw: RawClient, number: int) -> bytes:
    stream_id = 2 * number + 3
    return raw.request(stream_id) + frame(RST_STREAM, 0, stream_id, b"\0\0\0\x08")


def made_you_reset(raw: RawClient, number: int) -> bytes:
    # A window that overflows makes the server reset the stream (one of MadeYouReset's primitives).
    stream_id = 2 * number + 3
    return raw.request(stream_id) + frame(WINDOW_UPDATE, 0, stream_id, b"\x7f\xff\xff\xff")


FLOODS: dict[str, Callable[[RawClient, int], bytes]] = {
    "rapid reset": rapid_reset,
    "made you reset": made_you_reset,
    "resets of an open stream's predecessors": lambda raw, number: frame(RST_STREAM, 0, 1, b"\0\0\0\x08"),
    "ping": lambda raw, number: frame(PING, 0, 0, b"12345678"),
    "settings": lambda raw, number: frame(SETTINGS, 0, 0),
    "empty data": lambda raw, number: frame(DATA, 0, 1),
    "empty data on a stream that is gone": lambda raw, number: frame(DATA, 0, 1),
    "priority": lambda raw, number: frame(PRIORITY, 0, 1, b"\0\0\0\0\0"),
    "extension frames": lambda raw, number: frame(0xBB, 0, 0, b"?"),
    "new streams": lambda raw, number: raw.request(2 * number + 3, END_STREAM),
}


def finish_all(server: GrpcConnection) -> None:
    for stream_id in list(server._streams):
        server.finish(stream_id)


@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_ends_the_connection(name: str) -> None:
    server, raw = greeted_server(LIMITS)
    server.receive(raw.request(1), 0.0)
    if "gone" in name:
        finish_all(server)
    number = 0
    while number < 1000 and server.terminated is None:
        server.receive(FLOODS[name](raw, number), 0.001 * number)
        if "data" not in name:
            finish_all(server)
        number += 1
    assert server.terminated is not None
    assert server.terminated.code == ENHANCE_YOUR_CALM
    assert 15 <= number <= 60
    kind, _, _, body = parse_frames(server.data_to_send())[-1]
    assert kind == GOAWAY
    assert b"max_" in body


@pytest.mark.parametrize("name", FLOODS)
def test_the_same_at_a_decent_pace_is_fine(name: str) -> None:
    server, raw = greeted_server(LIMITS)
    server.receive(raw.request(1), 0.0)
    for number in range(200):
        server.receive(FLOODS[name](raw, number), 4.0 * number)
        if "data" not in name:
            finish_all(server)
    assert server.terminated is None


def test_a_continuation_flood_ends_before_it_is_decoded() -> None:
    server, raw = greeted_server(LIMITS)
    server.receive(frame(HEADERS, 0, 1, raw.headers()[:10]), 0.0)
    number = 0
    while number < 1000 and server.terminated is None:
        number += 1
        server.receive(frame(CONTINUATION, 0, 1, b"\x82" * 1000), 0.0)
    assert server.terminated is not None
    assert server.terminated.code == ENHANCE_YOUR_CALM
    assert number <= 10


def test_an_hpack_bomb_is_refused() -> None:
    server, raw = greeted_server(LIMITS)
    big = raw.encoder.encode([("x-big", "y" * 3000)], huffman=False)
    small = raw.encoder.encode([("x-big", "y" * 3000)], huffman=False)
    server.receive(frame(HEADERS, END_HEADERS, 1, raw.headers() + big + small * 500), 0.0)
    assert server.terminated is not None
    assert server.terminated.code == ENHANCE_YOUR_CALM


def test_header_bytes_are_bounded_per_second() -> None:
    server, raw = greeted_server(Limits(max_header_bytes_per_second=20_000))
    for number in range(100):
        server.receive(raw.request(2 * number + 1, x_number=f"{number}" * 500), 0.0)
        finish_all(server)
        if server.terminated is not None:
            break
    assert server.terminated is not None
    assert "max_header_bytes_per_second" in server.terminated.message


def test_a_header_block_may_not_be_interrupted() -> None:
    server, raw = greeted_server()
    server.receive(raw.request(1), 0.0)
    server.receive(frame(HEADERS, 0, 3, raw.headers()[:10]), 0.0)
    assert server.in_header_block
    server.receive(frame(DATA, 0, 1, b"\0\0\0\0\0"), 0.0)
    assert server.terminated is not None


def test_a_client_is_not_harmed_by_a_server_that_resets() -> None:
    client = GrpcConnection("client", LIMITS, now=0.0)
    client.receive(frame(SETTINGS, 0, 0) + frame(SETTINGS, ACK, 0), 0.0)
    for _ in range(100):
        call = client.send_request_headers("/x", authority="t", content_type="application/grpc", max_message_bytes=1)
        client.receive(frame(RST_STREAM, 0, call, b"\0\0\0\x00"), 0.0)
        client.finish(call)
    assert client.terminated is None


def test_an_allowance_refills() -> None:
    allowance = Allowance("x", 10, 10.0, 0.0)
    assert all(allowance.take(1, 0.0) for _ in range(10))
    assert not allowance.take(1, 0.5)
    assert allowance.take(1, 3.0)
    assert sum(allowance.take(1, 1000.0) for _ in range(100)) in (10, 11)


def test_a_peer_that_probes_its_bandwidth_is_no_flood() -> None:
    """One PING for each answer, as grpc-go sends them."""
    pair = Pair(Limits(max_pings_per_minute=20))
    for _ in range(100):
        stream_id = pair.open()
        pair.client.end_stream(stream_id)
        pair.pump()
        pair.server.send_response_headers(stream_id, "application/grpc")
        pair.server.send_message(stream_id, b"answer")
        pair.server.send_trailers(stream_id, Status.OK)
        pair.server.finish(stream_id)
        pair.pump()
        pair.client.ping(b"probing.")
        pair.pump()
    for _ in range(30):
        pair.client.ping(b"flooding")
    _, at_server = pair.pump()
    assert isinstance(at_server[-1], ConnectionTerminated)
    assert "max_pings_per_minute" in at_server[-1].message


def test_the_peer_does_not_say_how_much_is_remembered() -> None:
    """Of headers that are sent: each is looked for in all that is remembered."""
    server, raw = greeted_server()
    server.receive(frame(SETTINGS, 0, 0, struct.pack(">HL", 1, 2**32 - 1)), 0.0)
    for stream_id in range(1, 601, 2):
        server.receive(raw.request(stream_id, END_STREAM), 0.0)
        server.send_trailers(stream_id, Status.INTERNAL, f"number {stream_id}")
        server.finish(stream_id)
    assert len(server._h2.encoder.header_table.dynamic_entries) < 100
    found = server.data_to_send()
    decoder = hpack.Decoder()
    decoder.max_allowed_table_size = 2**32 - 1
    statuses = [dict(decoder.decode(body)) for kind, _, _, body in parse_frames(found) if kind == HEADERS]
    assert [each["grpc-message"] for each in statuses] == [f"number {number}" for number in range(1, 601, 2)]


@pytest.mark.parametrize("text", ["x" * 20_000, "字" * 5_000, "%" * 3_000, "\ud800" * 3_000])
def test_a_long_error_fits_into_what_any_peer_takes(text: str) -> None:
    pair = Pair()
    stream_id = pair.open()
    pair.client.end_stream(stream_id)
    pair.pump()
    pair.server.send_trailers(stream_id, Status.INVALID_ARGUMENT, text)
    pair.server.finish(stream_id)
    at_client, _ = pair.pump()
    (ended,) = [event for event in at_client if isinstance(event, TrailersReceived)]
    assert ended.status is Status.INVALID_ARGUMENT
    assert ended.message[:150] == text[:150].encode("utf-8", "replace").decode()
    assert ended.message.endswith("…")
