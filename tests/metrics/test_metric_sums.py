"""Sums of topics, the choice of the busiest ones, health, and figures of a process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from danube.metrics.busiest import CHOICE_S, Busiest
from danube.metrics.health import HealthFacts, health_of
from danube.metrics.process import parse_process
from danube.metrics.tallies import OTHER, Consumer, Counts, Rest, SubscriptionCounts, SubscriptionTally, TopicTally


def topic(messages: int, **subscriptions: int) -> TopicTally:
    found = TopicTally()
    found.messages_in, found.offsets = messages, (0, messages)
    for name, delivered in subscriptions.items():
        subscription = found.subscriptions[name] = SubscriptionTally()
        subscription.counts = SubscriptionCounts(delivered=delivered)
        subscription.states = {"moving": 1}
        subscription.consumers = [("one", Consumer(delivered, 0, 0, 0))]
    return found


def test_partitions_are_summed_by_subscription() -> None:
    total = topic(5, a=1)
    total.subscriptions["a"].oldest_age_s = 3.0
    more = topic(7, a=2, b=4)
    more.subscriptions["a"].stuck_s = 9.0
    total.gaps, more.gaps = 1, 2
    total.add(more)
    assert total.gaps == 3
    assert (total.messages_in, total.offsets) == (12, None)
    a, b = total.subscriptions["a"], total.subscriptions["b"]
    assert (a.counts.delivered, b.counts.delivered) == (3, 4)
    assert (a.oldest_age_s, a.stuck_s, a.states) == (3.0, 9.0, {"moving": 2})


def test_topics_are_absorbed_into_one() -> None:
    total = TopicTally()
    first, second = topic(5, a=1), topic(7, b=2)
    first.refused = {"x": 2}
    for each in (first, second, second):
        total.absorb(each)
    assert total.messages_in == 19
    assert total.refused == {"x": 2}
    assert list(total.subscriptions) == [OTHER]
    assert total.subscriptions[OTHER].states == {"moving": 3}
    assert total.counts() == Counts(19, 0, 0, 2, SubscriptionCounts(delivered=5))


@given(st.data())
def test_the_rest_never_falls_and_has_what_was_counted_in_it(data: st.DataObject) -> None:
    rest, expected = Rest(), 0
    counts: dict[str, int] = {}
    last_members: set[str] = set()
    seen: dict[str, int] = {}
    for _ in range(data.draw(st.integers(1, 8))):
        for name in "abc":
            counts[name] = counts.get(name, 0) + data.draw(st.integers(0, 5))
        if data.draw(st.booleans()):
            counts["a"] = 0  # created again
        members = data.draw(st.sets(st.sampled_from("abc")))
        for name in members & last_members:
            grown = counts[name] - seen[name]
            expected += grown if grown >= 0 else counts[name]
        before = rest.counts.messages_in
        for name in members:
            rest.add(name, Counts(counts[name]))
        rest.finish()
        assert len(rest) == len(members)
        assert rest.counts.messages_in == expected >= before
        last_members, seen = members, dict(counts)


def choose(busiest: Busiest, moved: dict[str, int], now: float) -> frozenset[str]:
    busiest.begin(len(moved), now)
    for name, count in moved.items():
        busiest.offer({name: count})
    return busiest.end()


def test_all_topics_are_shown_while_there_is_room() -> None:
    busiest = Busiest(2)
    assert choose(busiest, {"a": 0, "b": 0}, 0.0) == {"a", "b"}


def test_the_busiest_are_chosen_once_a_minute_and_stay() -> None:
    busiest = Busiest(2)
    assert choose(busiest, {"a": 10, "b": 20, "c": 30}, 0.0) == {"b", "c"}
    assert choose(busiest, {"a": 99, "b": 20, "c": 30}, CHOICE_S - 1) == {"b", "c"}
    # a has moved 89 since the choice, c 50, which counts twice, b nothing.
    assert choose(busiest, {"a": 99, "b": 20, "c": 80}, CHOICE_S) == {"a", "c"}
    # d is busier than a, but not twice as busy.
    assert choose(busiest, {"a": 149, "b": 20, "c": 180, "d": 80}, 2 * CHOICE_S) == {"a", "c"}
    assert choose(busiest, {"a": 150, "b": 20, "d": 280}, 2 * CHOICE_S + 1) == {"a"}
    assert choose(busiest, {"a": 150, "b": 20, "d": 480}, 3 * CHOICE_S) == {"a", "d"}


def test_a_broker_is_alive_until_its_journal_fails_or_its_loop_hangs() -> None:
    fine = HealthFacts(started=True)
    assert health_of(fine) == ((True, ()), (True, ()), (True, ()))
    assert health_of(fine).ready.text == "ok\n"
    fenced = health_of(fine._replace(journal_failure="no space left"))
    assert not fenced.live.ok
    assert not fenced.ready.ok
    assert fenced.started.ok
    assert fenced.live.text == "the journal has failed: no space left\n"
    assert health_of(fine._replace(loop_silent_s=10.0)).live.ok
    assert health_of(fine._replace(loop_silent_s=10.1)).live.text == "the event loop has not turned for 10.1 s\n"


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (
            HealthFacts(started=False, starting="it recovers its topics"),
            "the broker is starting: it recovers its topics",
        ),
        (HealthFacts(started=True, draining=True), "the broker is shutting down"),
        (HealthFacts(started=True, metadata_problem="no leader"), "the metadata cannot be reached: no leader"),
    ],
)
def test_a_broker_that_lives_may_not_be_ready(facts: HealthFacts, reason: str) -> None:
    health = health_of(facts)
    assert health.live.ok
    assert health.ready.reasons == (reason,)
    assert health.started.ok is facts.started


def test_figures_of_a_process_with_an_odd_name() -> None:
    numbers = [str(number) for number in range(3, 53)]
    stat = f"4711 (odd) name (x) {' '.join(numbers)}"
    limits = "Limit  Soft Limit  Hard Limit  Units\nMax open files            1024                 4096     files\n"
    found = parse_process(stat, "cpu 1 2\nbtime 1000\n", limits, open_fds=9, ticks_s=100, page_bytes=4096)
    assert found == ((14 + 15) / 100, 24 * 4096, 23, 20, 1000 + 22 / 100, 9, 1024.0)
    assert parse_process(stat, "", "", open_fds=0, ticks_s=1, page_bytes=1)[4::2] == (0.0, float("inf"))
    with pytest.raises(ValueError, match="fields behind its name"):
        parse_process("1 (x) S 1", "", "", open_fds=0, ticks_s=1, page_bytes=1)


def test_figures_of_this_process() -> None:
    proc = Path("/proc/self")
    if not proc.exists():
        pytest.skip("no /proc")
    page = os.sysconf("SC_PAGE_SIZE")
    texts = [(each).read_text() for each in (proc / "stat", Path("/proc/stat"), proc / "limits")]
    found = parse_process(*texts, open_fds=3, ticks_s=os.sysconf("SC_CLK_TCK"), page_bytes=page)
    assert found.threads >= 1
    assert 0 < found.resident_bytes < found.virtual_bytes
    assert found.started_at_s > 1e9
