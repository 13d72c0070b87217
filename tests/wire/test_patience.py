"""How long a server waits for a peer, in numbers."""

from __future__ import annotations

from danube.model.limits import Limits
from danube.wire._patience import CLOSING_TIMEOUT_S, Patience

LIMITS = Limits(
    handshake_timeout_s=5, headers_timeout_s=3, keepalive_idle_s=60, keepalive_timeout_s=20, write_timeout_s=30
)


def lost(patience, now, *, closing=False, established=True, in_header_block=False):
    return patience.lost(now, closing=closing, established=established, in_header_block=in_header_block) or ""


def pings(patience, now, *, established=True, in_header_block=False):
    return patience.pings(now, established=established, in_header_block=in_header_block)


def test_a_peer_has_so_long_for_the_preface():
    patience = Patience(LIMITS, 100.0)
    assert not lost(patience, 105.0, established=False)
    assert "handshake_timeout_s" in lost(patience, 105.1, established=False)
    assert not lost(patience, 105.1)


def test_each_block_of_headers_has_its_own_time():
    patience = Patience(LIMITS, 0.0)
    assert not lost(patience, 10.0, in_header_block=True)
    assert not lost(patience, 13.0, in_header_block=True)
    assert not lost(patience, 13.1)
    assert not lost(patience, 14.0, in_header_block=True)
    assert "headers_timeout_s" in lost(patience, 17.1, in_header_block=True)


def test_a_silent_peer_is_asked_once_and_any_data_is_an_answer():
    patience = Patience(LIMITS, 0.0)
    assert not pings(patience, 60.0)
    assert not pings(patience, 61.0, established=False)
    assert not pings(patience, 61.0, in_header_block=True)
    assert pings(patience, 61.0)
    assert not pings(patience, 80.0)
    patience.last_read = 80.0
    assert not lost(patience, 90.0)
    assert not pings(patience, 140.0)
    assert pings(patience, 141.0)
    assert not lost(patience, 161.0)
    assert "keepalive_timeout_s" in lost(patience, 161.1)


def test_a_write_ends_in_time_and_the_last_one_sooner():
    patience = Patience(LIMITS, 0.0)
    patience.write_began = 10.0
    assert not lost(patience, 40.0)
    assert "write_timeout_s" in lost(patience, 40.1)
    assert not lost(patience, 10.0 + CLOSING_TIMEOUT_S, closing=True)
    said = lost(patience, 10.1 + CLOSING_TIMEOUT_S, closing=True)
    assert said == "it did not accept the last data within 1 s"


def test_a_peer_with_too_much_queued_must_accept_some_of_it():
    patience = Patience(LIMITS, 0.0)
    assert not patience.moves(0)
    assert not patience.is_stuck(10.0, full=True)
    assert not patience.is_stuck(40.0, full=True)
    assert patience.is_stuck(40.1, full=True)
    assert patience.moves(5)
    assert not patience.moves(5)
    assert not patience.is_stuck(41.0, full=True)
    assert not patience.is_stuck(60.0, full=False)
    assert not patience.is_stuck(72.0, full=True)
