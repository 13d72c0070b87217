"""Two connections joined in memory, and raw frames for a peer that misbehaves."""

from __future__ import annotations

import struct
from collections.abc import Iterable

import hpack

from danube.model.limits import Limits
from danube.wire._events import Event, MessageReceived
from danube.wire.connection import GrpcConnection

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, END_HEADERS, ACK, PADDED = 0x1, 0x4, 0x1, 0x8
CONTENT_TYPE = "application/grpc+msgpack"
ENHANCE_YOUR_CALM = 11


def frame(kind: int, flags: int, stream_id: int, body: bytes = b"") -> bytes:
    return struct.pack(">HBBBL", len(body) >> 8, len(body) & 0xFF, kind, flags, stream_id) + body


def grpc_message(data: bytes, compressed: int = 0) -> bytes:
    return struct.pack(">BI", compressed, len(data)) + data


def parse_frames(data: bytes) -> list[tuple[int, int, int, bytes]]:
    """Return (type, flags, stream id, body) of each frame."""
    found = []
    position = 0
    while position < len(data):
        high, low, kind, flags, stream_id = struct.unpack_from(">HBBBL", data, position)
        length = high << 8 | low
        found.append((kind, flags, stream_id, data[position + 9 : position + 9 + length]))
        position += 9 + length
    assert position == len(data)
    return found


class RawClient:
    """Makes the bytes of a client, rightly or wrongly."""

    def __init__(self) -> None:
        self.encoder = hpack.Encoder()

    def hello(self) -> bytes:
        return PREFACE + frame(SETTINGS, 0, 0)

    def headers(self, path: str = "/t/M", extra: Iterable[tuple[str, str]] = (), **changed: str) -> bytes:
        pairs = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "x", "te": "trailers"}
        pairs["content-type"] = CONTENT_TYPE
        pairs.update({name.replace("_", "-"): value for name, value in changed.items()})
        return self.encoder.encode([*pairs.items(), *extra], huffman=False)

    def request(self, stream_id: int, flags: int = 0, **changed: str) -> bytes:
        return frame(HEADERS, END_HEADERS | flags, stream_id, self.headers(**changed))


def server_connection(limits: Limits | None = None, message_limit: int = 1 << 24, now: float = 0.0) -> GrpcConnection:
    return GrpcConnection("server", limits or Limits(), now=now, message_limit=lambda _path: message_limit)


def greeted_server(limits: Limits | None = None, message_limit: int = 1 << 24) -> tuple[GrpcConnection, RawClient]:
    """Return a server connection that has shaken hands with a raw client."""
    server, raw = server_connection(limits, message_limit), RawClient()
    assert server.receive(raw.hello(), 0.0) == []
    server.data_to_send()
    return server, raw


class Pair:
    """A client and a server connection, joined."""

    def __init__(self, limits: Limits | None = None, message_limit: int = 1 << 24) -> None:
        self.limits = limits or Limits()
        self.client = GrpcConnection("client", self.limits, now=0.0)
        self.server = server_connection(self.limits, message_limit)
        self.pump()

    def pump(self, now: float = 0.0) -> tuple[list[Event], list[Event]]:
        """Carry bytes both ways until nothing moves; return the events of (client, server)."""
        at_client: list[Event] = []
        at_server: list[Event] = []
        moved = True
        while moved:
            moved = False
            while data := self.client.data_to_send():
                at_server += self.server.receive(data, now)
                moved = True
            while data := self.server.data_to_send():
                at_client += self.client.receive(data, now)
                moved = True
        return at_client, at_server

    def open(self, path: str = "/t/M", timeout_s: float | None = None) -> int:
        return self.client.send_request_headers(
            path, authority="t", content_type=CONTENT_TYPE, max_message_bytes=1 << 24, timeout_s=timeout_s
        )


def messages(events: Iterable[Event]) -> list[bytes]:
    return [event.data for event in events if type(event) is MessageReceived]
