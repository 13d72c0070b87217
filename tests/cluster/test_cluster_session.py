"""Sessions: a broker that is certain of its session has one in the metadata, whatever is lost or late."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from danube.cluster.session import KEEP_ALIVE_S, SESSION_MARGIN_S, SESSION_TTL_S, SessionClock


def test_a_session_is_certain_from_the_grant_that_was_sent() -> None:
    clock = SessionClock(100.0)
    assert clock.certain_until == 100.0 + SESSION_TTL_S - SESSION_MARGIN_S
    assert clock.is_certain(100.0)
    assert clock.is_certain(102.69)
    assert not clock.is_certain(102.70)


def test_an_answer_counts_from_when_its_request_was_sent() -> None:
    clock = SessionClock(100.0)
    clock.answered(101.0)
    assert clock.certain_until == 103.7
    clock.answered(100.5)
    assert clock.certain_until == 103.7, "answers may come in any order"


def test_the_end_of_a_session_is_final() -> None:
    clock = SessionClock(100.0)
    clock.end()
    clock.answered(102.0)
    assert clock.has_ended
    assert not clock.is_certain(100.0)


def test_three_keep_alives_may_be_lost() -> None:
    clock = SessionClock(0.0)
    assert clock.next_keep_alive(0.0) == KEEP_ALIVE_S
    assert clock.is_certain(3 * KEEP_ALIVE_S)
    assert SessionClock(0.0, ttl_s=1.0).next_keep_alive(5.0) == 5.25


times = st.lists(st.tuples(st.floats(0, 5), st.floats(0, 5), st.booleans(), st.booleans()), max_size=20)


@given(times, st.floats(0, 60))
def test_a_certain_session_has_not_ended_in_the_metadata(
    requests: list[tuple[float, float, bool, bool]], now: float
) -> None:
    """Requests with delays each way, some lost, some whose answer is lost; the leader counts from its receipt."""
    clock = SessionClock(0.0)
    sent_at, deadline, events = 0.0, SESSION_TTL_S, []
    for pause, delay, arrives, is_answered in requests:
        sent_at += pause
        if arrives:
            events.append((sent_at + delay, sent_at, is_answered))
    for received, sent, is_answered in sorted(events):
        if received > deadline:
            break  # The session has ended; the metadata answer nothing more.
        if received > now:
            break
        deadline = received + SESSION_TTL_S
        if is_answered:
            clock.answered(sent)
    if clock.is_certain(now):
        assert now < deadline
