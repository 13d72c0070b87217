"""The journal of a cursor: every flush is answered once, after the acknowledgements before it are durable."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from danube.broker.delivery.cursor_journal import CursorJournal
from danube.dispatch import Cursor, CursorDelta, decode_entry
from danube.log import Entry
from danube.model import Durability, api
from danube.model.errors import DanubeError


class Topic:
    """Collects the submitted entries; :meth:`settle` makes the oldest one durable."""

    lossy = False
    topic_id = 1
    durability = Durability.DISK

    def __init__(self) -> None:
        self.submitted: list[Entry] = []
        self.durable: set[int] = set()
        self.generation = 0

    def submit(self, entry: Entry) -> None:
        self.submitted.append(entry)

    async def next_commit(self) -> None:
        self.settle()

    def settle(self) -> None:
        entry = self.submitted.pop(0)
        found = decode_entry(b"".join(entry.buffers))
        if isinstance(found, CursorDelta):
            for index in range(0, len(found.ranges), 2):
                self.durable |= set(range(found.ranges[index], found.ranges[index + 1]))
        owner: Any = entry.owner
        owner.settled(entry, None)


class Waiter:
    def __init__(self) -> None:
        self.confirmed: list[int] = []

    def send(self, reply: api.ConsumeReply) -> None:
        assert isinstance(reply, api.AcksFlushed)
        self.confirmed.append(reply.token)

    def end(self, error: DanubeError) -> None:
        raise AssertionError(str(error))


def journal() -> tuple[Topic, CursorJournal, Waiter]:
    topic: Any = Topic()
    return topic, CursorJournal(topic, 1, Cursor()), Waiter()


def quiet(cursor: CursorJournal) -> None:
    """Run :meth:`CursorJournal.quiet`, as a seek does before it moves the cursor; here it never has to wait."""
    with pytest.raises(StopIteration):
        cursor.quiet().send(None)


def test_a_flush_is_answered_although_a_seek_settles_expired_messages() -> None:
    """The entry of the seek replaced the waiting flush, so its consumer waited indefinitely."""
    topic, cursor, consumer = journal()
    cursor.add([0, 1])
    cursor.flush(consumer, 1)
    quiet(cursor)
    cursor.reset(lambda: cursor.add([5, 6]))
    topic.settle()
    assert consumer.confirmed == [1]
    cursor.flush(consumer, 2)
    while topic.submitted:
        topic.settle()
    assert consumer.confirmed == [1, 2]


@given(st.lists(st.sampled_from(["add", "flush", "settle", "move", "move and add", "move and flush"]), max_size=30))
def test_every_flush_is_answered_once(steps: list[str]) -> None:
    topic, cursor, consumer = journal()
    tokens: dict[int, set[int]] = {}
    """Each token, and the acknowledgements that must be durable when it is confirmed."""
    acked: set[int] = set()
    offset = 0

    def add() -> None:
        nonlocal offset
        acked.add(offset)
        cursor.add([offset, offset + 1])
        offset += 1

    def flush() -> None:
        tokens[len(tokens) + 1] = set(acked)
        cursor.flush(consumer, len(tokens))

    def settle() -> None:
        if topic.submitted:
            topic.settle()

    moved = {"move": lambda: None, "move and add": add, "move and flush": flush}
    for step in steps:
        if step in moved:
            quiet(cursor)
            acked.clear()  # acknowledgements from before a seek are void
            topic.durable.clear()
            cursor.reset(moved[step])
        else:
            {"add": add, "flush": flush, "settle": settle}[step]()
        for token in consumer.confirmed:
            assert tokens.get(token, set()) & acked <= topic.durable
    for _ in range(len(steps) + 2):
        settle()
    assert not topic.submitted
    assert sorted(consumer.confirmed) == list(tokens)
