"""What danube.wire reads and writes inside h2 and hpack, beyond their documented faces.

One test for each attribute: a version of h2 or hpack that has moved it, or has given it another meaning, fails here and
says which, and not somewhere in a stream.
"""

from __future__ import annotations

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings
import hpack
import pytest

HEADERS = [(":method", "POST"), (":scheme", "http"), (":path", "/a"), (":authority", "b")]


def pair() -> tuple[h2.connection.H2Connection, h2.connection.H2Connection]:
    """A client and a server that have exchanged their settings."""
    client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
    server = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
    client.initiate_connection()
    server.initiate_connection()
    for _ in range(2):
        server.receive_data(client.data_to_send())
        client.receive_data(server.data_to_send())
    return client, server


def request(client: h2.connection.H2Connection, server: h2.connection.H2Connection) -> int:
    stream_id = client.get_next_available_stream_id()
    client.send_headers(stream_id, HEADERS)
    server.receive_data(client.data_to_send())
    return stream_id


def test_the_highest_inbound_stream_id_decides_which_ids_are_new() -> None:
    """``wire._repeated`` opens streams past h2, and sets it."""
    client, server = pair()
    assert request(client, server) == server.highest_inbound_stream_id == 1
    server.highest_inbound_stream_id = 7
    client.highest_outbound_stream_id = 3
    client.send_headers(5, HEADERS)
    with pytest.raises(h2.exceptions.StreamIDTooLowError):
        server.receive_data(client.data_to_send())


def test_the_outbound_window_of_the_connection_bounds_what_is_sent() -> None:
    """``wire._outgoing`` frames DATA by itself, and takes its bytes from it."""
    client, server = pair()
    stream_id = request(client, server)
    before = client.outbound_flow_control_window
    client.send_data(stream_id, b"12345")
    assert client.outbound_flow_control_window == before - 5
    client.outbound_flow_control_window = 3
    assert client.local_flow_control_window(stream_id) == 3
    with pytest.raises(h2.exceptions.FlowControlError):
        client.send_data(stream_id, b"1234")


def test_streams_are_kept_by_id_and_know_whether_they_are_closed() -> None:
    """``wire._calls`` keeps the stream itself, and asks it whether a reset is still allowed."""
    client, server = pair()
    stream_id = request(client, server)
    stream = server.streams[stream_id]
    assert not stream.closed
    server.reset_stream(stream_id, h2.errors.ErrorCodes.CANCEL)
    assert stream.closed


def test_the_encoder_takes_whether_to_use_huffman_coding() -> None:
    """``wire._core`` turns it off for a server."""
    _, server = pair()
    plain = server.encoder.encode([("x", "aaaaaaaaaaaaaaaa")], huffman=False)
    assert b"aaaaaaaaaaaaaaaa" in plain
    assert b"aaaaaaaaaaaaaaaa" not in hpack.Encoder().encode([("x", "aaaaaaaaaaaaaaaa")], huffman=True)


def test_h2_encodes_by_the_attribute_of_its_encoder() -> None:
    client, server = pair()
    stream_id = request(client, server)
    called: list[object] = []
    encode = server.encoder.encode

    def spying(headers: object, **how: object) -> bytes:
        called.append(headers)
        return encode(headers, **how)  # type: ignore[arg-type]

    server.encoder.encode = spying  # type: ignore[assignment, method-assign]
    server.send_headers(stream_id, [(":status", "200")])
    assert called


def test_the_table_of_the_encoder_may_be_made_smaller() -> None:
    """``wire._calls`` bounds what a peer may make it remember."""
    client, _ = pair()
    client.encoder.header_table_size = 64
    assert client.encoder.header_table_size == 64
    decoder = hpack.Decoder()
    decoder.max_allowed_table_size = 4096
    assert decoder.decode(client.encoder.encode([("a", "b")])) == [("a", "b")]
    assert decoder.header_table.maxsize == 64


def test_the_decoder_bounds_a_list_of_headers() -> None:
    client, server = pair()
    server.decoder.max_header_list_size = 100
    client.send_headers(1, [*HEADERS, ("x", "y" * 100)])
    with pytest.raises(h2.exceptions.DenialOfServiceError):
        server.receive_data(client.data_to_send())


def test_the_table_of_the_decoder_shows_whether_a_block_has_changed_it() -> None:
    """``wire._hpack`` remembers what blocks mean as long as the table is what it was."""
    encoder, decoder = hpack.Encoder(), hpack.Decoder()
    table = decoder.header_table
    decoder.decode(encoder.encode([("a", "b")]))
    assert len(table.dynamic_entries) == 1
    first = table.dynamic_entries[0]
    decoder.decode(encoder.encode([("a", "b")]))
    assert table.dynamic_entries[0] is first
    decoder.decode(encoder.encode([("c", "d")]))
    assert table.dynamic_entries[0] is not first
    assert len(table.dynamic_entries) == 2
    assert table is decoder.header_table
    encoder.header_table_size = 128
    decoder.decode(encoder.encode([("a", "b")]))
    assert table.maxsize == 128


def test_clearing_what_h2_has_to_send_leaves_its_state() -> None:
    """``wire._core`` drops what h2 would say about frames that it answers by itself."""
    client, server = pair()
    stream_id = request(client, server)
    server.send_headers(stream_id, [(":status", "200")])
    server.clear_outbound_data_buffer()
    assert server.data_to_send() == b""
    assert not server.streams[stream_id].closed


def test_settings_may_be_replaced_before_the_connection_begins() -> None:
    """``wire._core`` announces its own ones with the first frame."""
    server = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
    codes = h2.settings.SettingCodes
    server.local_settings = h2.settings.Settings(client=False, initial_values={codes.INITIAL_WINDOW_SIZE: 77})
    server.max_inbound_frame_size = 20_000
    server.initiate_connection()
    client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
    client.initiate_connection()
    events = client.receive_data(server.data_to_send())
    (changed,) = [event for event in events if isinstance(event, h2.events.RemoteSettingsChanged)]
    assert changed.changed_settings[codes.INITIAL_WINDOW_SIZE].new_value == 77
    assert server.inbound_flow_control_window == 65_535
