"""What is read next of a topic's log, answered by hand: from the journal, sealed history or the cache."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from log_lives import make_part

from danube.log import BatchCache, Entry, StoredBatch
from danube.log._topic_state import FindSealed, Reading, ReadSealed, TopicState, Window
from danube.log.format import FILE_HEADER_SIZE, TERMINATOR, encode_block
from danube.model import Durability
from danube.model.batch import check_part
from danube.model.errors import DataLossError, NotFoundError


class Answers:
    """A journal of bytes and a history of batches, which answer what a read asks for."""

    def __init__(self, cache_bytes: int = 0, chunk: int = 300) -> None:
        self.chunk = chunk
        self.files: dict[int, bytearray] = {}
        self.sequence = 0
        self.batches: list[StoredBatch] = []
        self.sealed: list[StoredBatch] = []
        self.asked: list[str] = []
        self.entries: list[Entry] = []
        self.state = TopicState(1, Durability.DISK, self, BatchCache(cache_bytes), 3)
        self.roll()

    def roll(self) -> None:
        self.active = len(self.files) + 1
        self.files[self.active] = bytearray(FILE_HEADER_SIZE) + TERMINATOR

    def put(self, records: int, size: int) -> None:
        part = make_part([bytes(size)] * records)
        batch = self.state.append(part, check_part(part), len(self.batches) + 1)
        (entry,) = self.entries
        self.entries.clear()
        self.sequence += 1
        file = self.files[self.active]
        position = len(file) - len(TERMINATOR)
        buffers, _ = encode_block([entry], file_id=self.active, position=position, sequence=self.sequence, watermark=0)
        file[position:] = b"".join(buffers)
        self.state.settled(entry)
        self.batches.append(batch)

    def seal(self, count: int) -> None:
        """Seal so many more batches; files with sealed batches only are gone."""
        more = self.batches[len(self.sealed) :][:count]
        self.sealed += more
        if more:
            self.state.sealed_up_to(more[-1].end_offset, sum(len(batch.part) for batch in more))
            needed = self.state.index.find(self.state.journal_start)
            first = needed.file if needed is not None and len(self.sealed) < len(self.batches) else self.active
            for file_id in [each for each in self.files if each < first]:
                del self.files[file_id]

    # Share of the journal

    def submit(self, entry: Entry) -> None:
        self.entries.append(entry)

    def release(self, topic_id: int, up_to_offset: int) -> None:
        pass

    def drop_topic(self, topic_id: int) -> None:
        self.asked.append("drop")

    def is_live(self, file_id: int) -> bool:
        return file_id in self.files

    def stored_bytes(self, topic_id: int) -> int:
        return 0

    # Answers

    def answer(self, request: object) -> Any:
        if isinstance(request, Window):
            self.asked.append("window")
            if request.file_id not in self.files:
                raise NotFoundError("recycled")
            before = min(request.position, 7)
            data = self.files[request.file_id][request.position - before :][: before + max(request.size, self.chunk)]
            return bytes(data), before
        if isinstance(request, ReadSealed):
            self.asked.append("sealed")
            return [batch for batch in self.sealed if batch.end_offset > request.offset][:2]
        assert isinstance(request, FindSealed)
        self.asked.append("find")
        found = [batch.base_offset for batch in self.sealed if batch.append_time_us >= request.time_us]
        return found[0] if found else None

    def run(self, steps: Reading[Any], meanwhile: list[int] | None = None) -> Any:
        """Answer all requests; ``meanwhile`` says how many batches are sealed before each answer."""
        try:
            request = next(steps)
            while True:
                if meanwhile:
                    self.seal(meanwhile.pop())
                try:
                    result = self.answer(request)
                except NotFoundError as error:
                    request = steps.throw(error)
                else:
                    request = steps.send(result)
        except StopIteration as stop:
            return stop.value


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 200), st.booleans()), min_size=1, max_size=25),
    st.sampled_from([0, 3_000, 1 << 20]),
    st.integers(40, 700),
    st.integers(0, 25),
    st.lists(st.integers(0, 3), max_size=40),
    st.integers(0, 60),
)
def test_a_log_is_read_without_a_gap_whatever_is_sealed_meanwhile(
    puts: list[tuple[int, int, bool]], cache_bytes: int, chunk: int, sealed: int, meanwhile: list[int], first: int
) -> None:
    log = Answers(cache_bytes, chunk)
    for records, size, rolls in puts:
        if rolls:
            log.roll()
        log.put(records, size)
    log.seal(sealed)
    end = log.state.end_offset
    offset = min(first, end)
    while offset < end:
        found = log.run(log.state.read_steps(offset, 500), meanwhile)
        assert found, "it never comes back empty-handed before the end"
        assert found[0].base_offset <= offset < found[0].end_offset
        for one, following in pairwise(found):
            assert one.end_offset == following.base_offset
        for batch in found:
            same = next(each for each in log.batches if each.base_offset == batch.base_offset)
            assert batch.part == same.part
        offset = found[-1].end_offset
    assert log.run(log.state.read_steps(end, 500)) == []
    for batch in log.batches:
        assert log.run(log.state.offset_steps(batch.append_time_us)) == batch.base_offset
    assert log.run(log.state.offset_steps(len(puts) + 1)) == end


def test_what_is_cached_needs_no_step() -> None:
    log = Answers(cache_bytes=1 << 20)
    log.put(2, 10)
    steps = log.state.read_steps(0, 100)
    with pytest.raises(StopIteration) as stop:
        next(steps)
    assert [batch.base_offset for batch in stop.value.value] == [0]


def test_a_file_that_is_gone_is_a_loss_unless_its_batches_were_released() -> None:
    log = Answers()
    for _ in range(3):
        log.put(1, 100)
        log.roll()
    del log.files[1]
    with pytest.raises(DataLossError, match="offset 0 was in a journal file that is gone"):
        log.run(log.state.read_steps(0, 100))
    steps = log.state.read_steps(0, 100)
    assert isinstance(next(steps), Window)
    log.state.expire(1)
    request: Any = steps.throw(NotFoundError("recycled"))
    log.asked.clear()
    assert isinstance(request, Window), "it goes on behind what has expired"
    assert request.file_id == 2


def test_expired_and_dropped_data_is_released() -> None:
    log = Answers()
    for _ in range(4):
        log.put(1, 10)
    state = log.state
    state.sealed_up_to(2, 20)
    state.sealed_up_to(1, 10)
    assert (state.start_offset, state.journal_start) == (0, 2)
    state.expire(3)
    assert (state.start_offset, state.journal_start, state.end_offset) == (3, 3, 4)
    state.expire(9)
    assert (state.start_offset, state.journal_start, state.unsealed_bytes) == (4, 4, 0)
    state.drop()
    assert log.asked == ["drop"]
