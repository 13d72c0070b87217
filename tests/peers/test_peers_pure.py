"""Attempts, refusals and frames: pure parts of links."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from danube.model.errors import InvalidArgumentError, ProtocolError
from danube.peers._attempts import Attempts
from danube.peers._refusals import MOST_HOSTS, Refusals
from danube.peers.frames import (
    FRAME_OVERHEAD,
    Answer,
    Ask,
    Cancel,
    Failure,
    Note,
    check_channel,
    decode_reply,
    decode_request,
    encode,
)


def attempts() -> Attempts:
    return Attempts(reconnect_max_s=0.25, loss_window_s=0.2)


def test_pauses_grow_to_the_limit_and_begin_again_after_a_lasting_link() -> None:
    tries = attempts()
    assert [round(tries.next_pause_s(1.0), 3) for _ in range(6)] == [0, 0.05, 0.1, 0.2, 0.25, 0.25]
    tries.linked(10.0)
    tries.broke(10.9)
    assert tries.next_pause_s(10.9) == 0.25, "a link that breaks at once is not opened at once"
    tries.linked(20.0)
    tries.broke(21.0)
    assert tries.next_pause_s(21.0) == 0
    tries.next_pause_s(21.0)
    tries.closed()
    assert tries.next_pause_s(21.0) == 0


def test_pauses_are_short_as_long_as_the_broker_may_count_as_lost() -> None:
    tries = broken()
    assert [tries.next_pause_s(10.0 + 0.05 * number) for number in range(5)] == [0, 0.05, 0.05, 0.05, 0.05]
    assert [tries.next_pause_s(10.21), tries.next_pause_s(10.3)] == [0.05, 0.1]


def broken() -> Attempts:
    tries = attempts()
    tries.linked(0.0)
    tries.broke(10.0)
    return tries


def test_the_second_refusal_soon_after_the_break_is_a_loss_and_only_that() -> None:
    tries = broken()
    assert [tries.refused(at) for at in (10.01, 10.2, 10.2)] == [False, True, False]
    tries.linked(11.0)
    tries.broke(12.0)
    assert [tries.refused(at) for at in (12.0, 12.05)] == [False, True]


Change = Callable[[Attempts], object]


@pytest.mark.parametrize(
    "change",
    [
        lambda tries: tries.failed(),
        lambda tries: tries.answered(),
        lambda tries: tries.closed(),
        lambda tries: tries.linked(10.05),
        lambda tries: tries.linked(10.05) or tries.broke(10.06),
    ],
)
@pytest.mark.parametrize("after", [0, 1])
def test_events_before_the_second_refusal_exclude_a_loss(change: Change, after: int) -> None:
    tries = broken()
    for _ in range(after):
        assert not tries.refused(10.01)
    change(tries)
    assert not tries.refused(10.07)


def test_a_port_that_accepts_while_the_process_ends_is_still_a_loss_when_it_refuses() -> None:
    tries = broken()
    tries.failed()  # accepted, and reset
    assert [tries.refused(at) for at in (10.05, 10.1)] == [False, True]


def test_a_process_that_has_refused_the_link_is_no_loss() -> None:
    tries = broken()
    tries.answered()
    assert not any(tries.refused(at) for at in (10.05, 10.1, 10.15))


@pytest.mark.parametrize(("at", "lost"), [(10.25, True), (10.2501, False)])
def test_a_late_refusal_is_no_loss(at: float, lost: bool) -> None:
    tries = Attempts(reconnect_max_s=0.25, loss_window_s=0.25)
    tries.linked(0.0)
    tries.broke(10.0)
    assert not tries.refused(10.24)
    assert tries.refused(at) is lost


def test_without_a_link_before_there_is_no_loss() -> None:
    tries = attempts()
    assert not any(tries.refused(0.01 * number) for number in range(10))


def test_refusals_of_a_host_are_counted_and_rarely_logged() -> None:
    refusals = Refusals(every_s=10)
    assert [refusals.note("a", at) for at in (0, 1, 9.9, 10, 11, 30)] == [1, 0, 0, 3, 0, 2]
    assert refusals.note("b", 1) == 1


def test_hosts_beyond_the_limit_share_an_entry_until_others_are_forgotten() -> None:
    refusals = Refusals(every_s=10)
    assert all(refusals.note(str(number), 0) == 1 for number in range(MOST_HOSTS))
    assert [refusals.note(host, 1) for host in ("0", "new", "newer", "newest")] == [0, 1, 0, 0]
    assert refusals.note("0", 10) == 2, "a host that is known keeps its entry"
    assert refusals.note("last", 11) == 1, "the others are forgotten"
    assert set(refusals._hosts) == {"0", "last"}


@given(st.lists(st.tuples(st.integers(0, 300), st.floats(0, 3)), max_size=400))
def test_refusals_of_many_hosts_are_bounded(events: list[tuple[int, float]]) -> None:
    refusals, now, lines = Refusals(every_s=10), 0.0, 0
    for host, pause_s in events:
        now += pause_s
        lines += bool(refusals.note(str(host), now))
        assert len(refusals._hosts) <= MOST_HOSTS + 1
    assert lines <= (MOST_HOSTS + 1) * (1 + now / 10)


payloads = st.binary(max_size=100)
numbers = st.integers(0, 2**63 - 1)
texts = st.dictionaries(st.text(), st.text())


@given(st.one_of(st.builds(Note, payloads), st.builds(Ask, numbers, numbers, payloads), st.builds(Cancel, numbers)))
def test_requests_are_decoded(frame: Note | Ask | Cancel) -> None:
    assert decode_request(encode(frame)) == frame


@given(
    st.one_of(st.builds(Answer, numbers, payloads), st.builds(Failure, numbers, numbers, st.text(), st.text(), texts))
)
def test_replies_are_decoded(frame: Answer | Failure) -> None:
    assert decode_reply(encode(frame)) == frame


@given(st.binary(max_size=40))
def test_garbage_is_a_protocol_error(data: bytes) -> None:
    for decode in (decode_request, decode_reply):
        with suppress(ProtocolError):
            decode(data)
    with pytest.raises(ProtocolError, match=f"a message of {len(data) + 1} bytes is not one between brokers"):
        decode_request(b"\xc1" + data)


def test_frames_are_as_drawn() -> None:
    frames = [Note(b"p"), Ask(7, 1000, b"p"), Cancel(7), Answer(7, b"p"), Failure(7, 14, "unavailable", "text")]
    assert [msgspec.msgpack.decode(encode(frame)) for frame in frames] == [
        [0, b"p"],
        [1, 7, 1000, b"p"],
        [2, 7],
        [0, 7, b"p"],
        [1, 7, 14, "unavailable", "text", {}],
    ]
    largest = Ask(2**63 - 1, 2**63 - 1, bytes(100_000))
    assert len(encode(largest)) <= 100_000 + FRAME_OVERHEAD


@pytest.mark.parametrize("name", ["raft", "raft-snapshot", "a", "0", "x" * 40])
def test_valid_channels(name: str) -> None:
    check_channel(name)


@pytest.mark.parametrize("name", ["", "x" * 41, "Raft", "a b", "a/b", "raft\n"])
def test_invalid_channels(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="is not 1 to 40 of a-z, 0-9 and '-'; choose another name"):
        check_channel(name)
