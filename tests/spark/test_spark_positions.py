"""Positions of streaming queries: the contents of a checkpoint, and the end of the next batch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from danube.model.errors import ConfigurationError

pytest.importorskip("pyspark_danube", reason="pyspark_danube is not installed: see tox.ini")

from pyspark_danube._positions import (
    LogKey,
    Position,
    Span,
    admit,
    advance,
    ahead,
    decode,
    encode,
    pieces,
    resume,
    share,
    spans,
    weigh,
)
from pyspark_danube._stream import StreamReader

ORDERS = LogKey("/default/orders", 0)
MORE = LogKey("/default/orders", 1)

keys = st.builds(LogKey, st.sampled_from(["/default/a", "/default/b", "/other/a"]), st.integers(0, 12))
positions = st.dictionaries(keys, st.builds(Position, st.integers(0, 2**62), st.integers(1, 2**63)), max_size=8)


@dataclass
class Log:
    start_offset: int
    end_offset: int
    topic_id: int = 1
    gaps: Sequence[tuple[int, int]] = ()


@given(positions)
def test_a_position_survives_the_checkpoint(position: dict[LogKey, Position]) -> None:
    assert decode(json.loads(json.dumps(encode(position)))) == position


@given(positions, st.randoms())
def test_the_same_position_is_always_the_same_text(position: dict[LogKey, Position], random) -> None:
    shuffled = list(position.items())
    random.shuffle(shuffled)
    assert json.dumps(encode(dict(shuffled))) == json.dumps(encode(position))


def test_a_position_looks_as_documented() -> None:
    position = {MORE: Position(1187, 72), ORDERS: Position(1200, 71)}
    assert json.dumps(encode(position)) == (
        '{"/default/orders": {"0": 1200, "1": 1187}, "ids": {"/default/orders": {"0": 71, "1": 72}}}'
    )


@pytest.mark.parametrize(
    "foreign", [{"0": 5}, {"/default/a": {"0": 5}}, {"ids": {}, "/a/b": {"0": 1}}, {"logOffset": 1}]
)
def test_a_foreign_checkpoint_is_refused(foreign: dict) -> None:
    with pytest.raises(ConfigurationError, match="checkpointLocation of its own"):
        decode(foreign)


@pytest.mark.parametrize(
    ("start", "log", "goes_on_at", "loss"),
    [
        (None, Log(0, 9), 0, ""),
        (None, Log(4, 9), 4, "offsets 0 to 3 of topic /default/orders, partition 0, have expired"),
        (Position(5, 1), Log(0, 9), 5, ""),
        (Position(9, 1), Log(9, 9), 9, ""),
        (Position(2, 1), Log(4, 9), 4, "offsets 2 to 3 of"),
        (Position(12, 1), Log(4, 9), 9, "ends at offset 9, but was read up to 12"),
        (Position(5, 1), Log(0, 3, topic_id=2), 0, "deleted and created again after offset 5"),
        (Position(0, 1), Log(0, 3, topic_id=2), 0, "deleted and created again after offset 0"),
        (Position(4, 1), Log(20, 22, gaps=[(4, 20)]), 20, ""),
        (Position(2, 1), Log(20, 22, gaps=[(4, 20)]), 20, "offsets 2 to 3 of"),
    ],
)
def test_reading_goes_on(start: Position | None, log: Log, goes_on_at: int, loss: str) -> None:
    resumed = resume({} if start is None else {ORDERS: start}, {ORDERS: log})
    assert resumed.positions == {ORDERS: Position(goes_on_at, log.topic_id)}
    assert len(resumed.losses) == (1 if loss else 0)
    assert loss in "".join(resumed.losses)


def test_a_deleted_topic_is_a_loss() -> None:
    resumed = resume({ORDERS: Position(5, 1)}, {})
    assert resumed.positions == {}
    assert resumed.losses == ["topic /default/orders, partition 0, was deleted after offset 5"]


def test_a_batch_reads_what_lies_between_two_positions() -> None:
    start = {ORDERS: Position(5, 1), MORE: Position(3, 2), LogKey("/default/gone", 0): Position(8, 9)}
    end = {ORDERS: Position(9, 1), MORE: Position(3, 2), LogKey("/default/new", 0): Position(4, 3)}
    assert spans(start, end) == [Span(LogKey("/default/new", 0), 0, 4), Span(ORDERS, 5, 9)]


def test_a_topic_that_was_created_again_is_read_from_its_first_message() -> None:
    assert spans({ORDERS: Position(5, 1)}, {ORDERS: Position(3, 2)}) == [Span(ORDERS, 0, 3)]


@given(st.dictionaries(keys, st.integers(0, 10_000), max_size=10), st.integers(1, 20_000))
@settings(deadline=None)
def test_shares_add_up_and_starve_no_log(waiting: dict[LogKey, int], limit: int) -> None:
    shares = share(waiting, limit)
    assert sum(shares.values()) == min(limit, sum(waiting.values()))
    assert all(0 < amount <= waiting[key] for key, amount in shares.items())
    if limit >= sum(1 for amount in waiting.values() if amount):
        assert shares.keys() == {key for key, amount in waiting.items() if amount}


def test_shares_are_in_proportion() -> None:
    assert share({ORDERS: 9_000, MORE: 1_000}, 1_000) == {ORDERS: 900, MORE: 100}


def test_bytes_become_offsets() -> None:
    runs = [(0, 100, 10.0), (100, 200, 1.0)]
    assert weigh(runs, 50, 150) == 550
    assert advance(runs, 50, 200) == 70
    assert advance(runs, 50, 550) == 150
    assert advance(runs, 50, 5) == 50
    assert advance(runs, 50, 10_000) == 200


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 1 << 42))), st.data())
def test_gaps_are_passed_over_and_counted_as_nothing(runs: list[tuple[int, int]], data: st.DataObject) -> None:
    gaps, at = [], 0
    messages: list[int] = []
    for count, gap in runs:
        messages += range(at, at + count)
        gaps.append((at + count, at + count + gap))
        at += count + gap
    left = [offset for begin, stop in pieces(0, at, gaps) for offset in range(begin, stop)]
    assert left == messages
    taken = data.draw(st.integers(0, len(messages)))
    behind = ahead(0, taken, at, gaps)
    assert [offset for offset in messages if offset < behind] == messages[:taken]
    assert behind == (messages[taken - 1] + 1 if taken else 0) or taken == len(messages)


def test_a_limited_query_gets_beyond_what_a_broker_has_taken_with_it() -> None:
    """A declared gap is long: with its offsets counted, a limit would never be beyond it, and starve all other logs."""
    gap = (10, 10 + (1 << 42))
    logs = {ORDERS: Log(0, gap[1] + 5, gaps=[gap]), MORE: Log(0, 15)}

    def runs(key: LogKey, start: int, end: int) -> list[tuple[int, int, float]]:
        return [(begin, stop, 100.0) for begin, stop in pieces(start, end, logs[key].gaps)]

    at = {ORDERS: Position(0, 1), MORE: Position(0, 1)}
    for limits in ({"max_messages": 6}, {"max_bytes": 600, "runs": runs}):
        steps = [at]
        while (after := admit(steps[-1], logs, **limits)) != steps[-1]:
            steps.append(after)
        assert [step[MORE].offset for step in steps] == [0, 3, 6, 9, 12, 15]
        assert [step[ORDERS].offset for step in steps] == [0, 3, 6, 9, gap[1] + 2, gap[1] + 5]


@given(
    st.dictionaries(keys, st.tuples(st.integers(0, 50), st.integers(0, 500), st.floats(0.5, 2_000)), max_size=6),
    st.one_of(st.none(), st.integers(1, 600)),
    st.one_of(st.none(), st.integers(1, 100_000)),
)
@settings(deadline=None)
def test_a_limited_query_reads_everything_in_the_end(
    logs: dict[LogKey, tuple[int, int, float]], max_messages: int | None, max_bytes: int | None
) -> None:
    known = {key: Log(start, start + count) for key, (start, count, _) in logs.items()}

    def runs(key: LogKey, start: int, end: int) -> list[tuple[int, int, float]]:
        return [(start, end, logs[key][2])]

    at = {key: Position(log.start_offset, 1) for key, log in known.items()}
    for _ in range(sum(count for _, count, _ in logs.values()) + 1):
        after = admit(at, known, max_messages=max_messages, max_bytes=max_bytes, runs=runs)
        counts = {key: after[key].offset - at[key].offset for key in at}
        assert all(count >= 0 for count in counts.values())
        if max_messages is not None:
            assert sum(counts.values()) <= max_messages
        if max_bytes is not None:
            # The first message of each log counts for nothing.
            size = sum(max(0, count - 1) * logs[key][2] for key, count in counts.items())
            assert size <= max_bytes + len(logs)
            if max_messages is None:
                assert all(counts[key] or at[key].offset == known[key].end_offset for key in at)
        if not any(counts.values()):
            break
        at = after
    assert {key: position.offset for key, position in at.items()} == {key: log.end_offset for key, log in known.items()}


def test_a_busy_log_does_not_starve_a_quiet_one_of_bytes() -> None:
    begin = {ORDERS: Position(0, 1), MORE: Position(0, 1)}
    logs = {ORDERS: Log(0, 10_000_000), MORE: Log(0, 3)}
    after = admit(begin, logs, max_bytes=100_000, runs=lambda key, start, end: [(start, end, 1_000.0)])
    assert after == {ORDERS: Position(99, 1), MORE: Position(1, 1)}


class State(msgspec.Struct):
    topic_id: int
    end_offset: int
    start_offset: int = 0
    gaps: Sequence[tuple[int, int]] = ()


def test_a_log_that_appears_while_an_available_now_query_begins_is_no_loss() -> None:
    """Spark asks where the query ends before it asks where it begins, and a topic may be created in between."""
    known, new = LogKey("/default/t", 0), LogKey("/default/new", 0)
    states: Any = {key: State(topic_id=number, end_offset=9) for number, key in ((1, known), (2, new))}
    reader: Any = SimpleNamespace(_target={known: Position(5, 1)})
    start = {known: Position(0, 1), new: Position(3, 2)}
    visible = StreamReader._visible(reader, states, start)
    assert {key: state.end_offset for key, state in visible.items()} == {known: 5, new: 3}
    found = resume(start, visible)
    assert found.losses == []
    assert found.positions[new] == Position(3, 2)
    assert StreamReader._visible(reader, states, {known: Position(0, 1)}).keys() == {known}
    assert StreamReader._visible(reader, states, {new: Position(3, 7)}).keys() == {known}, "it was created again"
