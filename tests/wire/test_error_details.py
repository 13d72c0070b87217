"""Details of errors: in the trailer with the error's code, through every kind of call."""

from __future__ import annotations

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from wire_harness import Pair

from danube.model.errors import DanubeError, NotOwnerError, Status, TopicNotFoundError
from danube.wire import Context, Method, Server, ServerStream, UnaryCall, connect_channel
from danube.wire._events import TrailersReceived
from danube.wire._grpc import MAX_DETAILS_BYTES, decode_error, encode_error

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
codes = st.from_regex(r"[a-z][a-z-]{0,20}", fullmatch=True)


@given(codes, st.dictionaries(texts.filter(bool), texts, max_size=3))
def test_details_survive_their_encoding(code: str, details: dict[str, str]) -> None:
    text = encode_error(code, details)
    assert text.isascii()
    assert text.isprintable()
    assert decode_error(text) == (code, details)


def test_an_error_without_details_is_its_code() -> None:
    assert encode_error("topic-not-found", {}) == "topic-not-found"
    assert encode_error("not-owner", {"address": "[::1]:6650"}) == "not-owner;address=%5B%3A%3A1%5D%3A6650"


def test_too_many_details_are_left_out() -> None:
    for size, kept in ((MAX_DETAILS_BYTES - 3, True), (MAX_DETAILS_BYTES - 2, False)):
        text = encode_error("not-owner", {"a": "x" * size})
        assert decode_error(text) == ("not-owner", {"a": "x" * size} if kept else {})
    assert encode_error("not-owner", {"a": "ü" * MAX_DETAILS_BYTES}) == "not-owner"


def test_half_a_character_is_replaced() -> None:
    assert encode_error("not-owner", {"address": "\ud800"}) == "not-owner;address=%3F"


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126)))
def test_whatever_a_peer_sends_is_decoded(text: str) -> None:
    code, details = decode_error(text)
    assert code == text.split(";")[0]
    assert "" not in details


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", ("", {})),
        (";", ("", {})),
        ("x;a", ("x", {})),
        ("x;=b", ("x", {})),
        ("x;a=", ("x", {"a": ""})),
        ("x;a=b=c;d=%zz", ("x", {"a": "b=c", "d": "%zz"})),
        ("x;a=1;a=2", ("x", {"a": "2"})),
    ],
)
def test_odd_trailers(text: str, found: tuple[str, dict[str, str]]) -> None:
    assert decode_error(text) == found


def test_a_connection_reports_details_and_hides_the_trailer() -> None:
    pair = Pair()
    stream_id = pair.open()
    pair.pump()
    pair.server.send_trailers(
        stream_id, Status.UNAVAILABLE, "elsewhere", "not-owner", {"x-more": "1"}, details={"address": "b:6650"}
    )
    (event,) = [event for event in pair.pump()[0] if type(event) is TrailersReceived]
    assert (event.code, event.details) == ("not-owner", {"address": "b:6650"})
    assert event.metadata == {"x-more": "1"}


def refusal() -> DanubeError:
    return NotOwnerError("topic /default/a belongs to broker b2", {"address": "b:6650", "ü;=&%": "ö;=&%"})


def methods() -> dict[str, Method]:
    async def unary(_request: bytes, _context: Context) -> bytes:
        raise refusal()

    def start(_request: bytes, call: UnaryCall) -> None:
        call.fail(refusal())

    async def stream(stream: ServerStream, _context: Context) -> None:
        await stream.receive()
        raise refusal()

    async def abandoned(stream: ServerStream, _context: Context) -> None:
        stream.abandon(refusal())
        await trio.sleep_forever()

    found = (
        Method(path="/t/unary", kind="unary", handler=unary),
        Method(path="/t/start", kind="unary", start=start),
        Method(path="/t/stream", kind="bidi", handler=stream),
        Method(path="/t/abandoned", kind="bidi", handler=abandoned),
    )
    return {method.path: method for method in found}


async def test_details_arrive_with_the_error_of_every_kind_of_call() -> None:
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        await nursery.start(Server([methods()]).run, [listener])
        with trio.fail_after(60):
            async with connect_channel("127.0.0.1", listener.socket.getsockname()[1]) as channel:
                for path in methods():
                    with pytest.raises(NotOwnerError) as caught:
                        await channel.unary(path, b"", bytes)
                    assert caught.value.address == "b:6650"
                    assert caught.value.details == refusal().details
                    assert str(caught.value) == str(refusal())
                channel.close(TopicNotFoundError("gone", {"why": "a test"}))
                with pytest.raises(TopicNotFoundError) as lost:
                    channel.open_stream("/t/stream")
                assert lost.value.details == {"why": "a test"}
        nursery.cancel_scope.cancel()
