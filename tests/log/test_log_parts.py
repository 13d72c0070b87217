"""Small parts of the journal, each by itself: names and books of files, and the line in front of it."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from danube.log._admission import Admission
from danube.log._files import (
    FREED_MARGIN,
    FileTable,
    JournalFile,
    damaged_name,
    is_spare_name,
    journal_name,
    number_of,
    parse_journal_name,
    spare_name,
)
from danube.log.format import BLOCK_HEADER_SIZE, FILE_HEADER_SIZE
from danube.model.errors import DanubeError, JournalFencedError, JournalFullError, UnavailableError
from danube.model.limits import Limits

LIMITS = Limits(journal_full_wait_s=10.0)
PENDING, MOST = LIMITS.journal_pending_bytes, LIMITS.journal_max_bytes


def test_names_of_files_have_numbers_and_foreign_ones_have_none() -> None:
    names = [journal_name(7), spare_name(8), damaged_name(9)]
    assert [number_of(name) for name in names] == [7, 8, 9]
    assert [parse_journal_name(name) for name in names] == [7, None, None]
    assert [is_spare_name(name) for name in names] == [False, True, False]
    for foreign in ("journal-1.log", "notes.txt", "journal-0000000000000007.log.bak", ""):
        assert number_of(foreign) == 0
        assert parse_journal_name(foreign) is None
        assert not is_spare_name(foreign)


def table_of(*files: JournalFile) -> FileTable:
    table = FileTable()
    for file in files:
        table.add(file)
    return table


def test_a_new_file_is_empty_open_and_idle() -> None:
    file = JournalFile(3, 10_000)
    assert (file.end, file.written, file.in_flight, file.last_sequence) == (0, 0, 0, 0)
    assert (file.closed, file.freed, file.live, file.name) == (False, False, {}, journal_name(3))
    room = 10_000 - FILE_HEADER_SIZE - BLOCK_HEADER_SIZE
    assert file.room(margin=True) == room, "its header is not there yet, and will be"
    assert file.room() == room - FREED_MARGIN
    file.end = 5_000
    assert file.room(margin=True) == 5_000 - BLOCK_HEADER_SIZE


def test_bytes_that_a_topic_needs_of_a_file_are_counted_and_released() -> None:
    first, second = JournalFile(1, 1_000), JournalFile(2, 1_000)
    table = table_of(first, second)
    first.count_batch(7, 100, 10)
    first.count_batch(7, 50, 5)
    first.count_batch(8, 1, 1)
    second.count_batch(7, 30, 20)
    assert first.live == {7: (150, 10), 8: (1, 1)}
    assert not table.release(7, 9)
    assert 7 in first.live
    assert not table.release(7, 10), "another topic needs the file"
    assert (first.live, second.live) == ({8: (1, 1)}, {7: (30, 20)})
    assert table.release(8, 1)
    assert not table.release(8, 1), "it was free before"
    assert table.drop_topic(7)
    assert not table.drop_topic(7)


def test_closed_bytes_are_those_of_closed_files_and_stopped_ones_are_known() -> None:
    first, second = JournalFile(1, 1_000), JournalFile(2, 500)
    table = table_of(first, second)
    for file in (first, second):
        file.count_batch(7, 10, 1)
    second.count_batch(8, 10, 1)
    table.close(first)
    table.close(second)
    assert (table.closed_bytes, table.stopped_bytes) == (1_500, 0)
    table.stop_topic(7)
    assert table.stopped_bytes == 1_000, "the other one has something of a topic that lives"
    table.stop_topic(8)
    assert table.stopped_bytes == 1_500
    table.drop_topic(8)
    assert table.stopped_bytes == 1_500
    table.drop_topic(7)
    assert table.stopped_bytes == 0
    table.remove(first)
    assert (table.closed_bytes, len(table), table.get(1), table.get(2)) == (500, 1, None, second)


def test_the_bounds_of_submitted_entries() -> None:
    admission = Admission(LIMITS)
    assert admission.try_admit(PENDING)
    assert admission.try_admit(PENDING + 1), "what is larger goes by itself"
    admission.pending_bytes = 1
    assert admission.try_admit(PENDING - 1)
    assert not admission.try_admit(PENDING)
    admission.pending_bytes, admission.used_bytes = 0, MOST - 10
    assert admission.try_admit(10)
    assert not admission.try_admit(11)
    admission.used_bytes, admission.space_left = 0, 10
    assert admission.try_admit(10)
    assert not admission.try_admit(11)
    admission.close(None)
    assert not admission.try_admit(1)


@pytest.mark.parametrize("missing", [0, 1])
@pytest.mark.parametrize("bound", ["pending_bytes", "used_bytes", "space_left"])
async def test_the_first_in_line_has_the_same_bounds(bound: str, missing: int) -> None:
    admission = Admission(LIMITS)
    admission.pending_bytes = PENDING
    served: list[int] = []

    async def wait() -> None:
        await admission.admit(100)
        served.append(100)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        admission.pending_bytes = PENDING - 100 + missing if bound == "pending_bytes" else 10
        admission.used_bytes = MOST - 110 + missing if bound == "used_bytes" else 0
        admission.space_left = 110 - missing if bound == "space_left" else 10**12
        admission.wake()
        await trio.testing.wait_all_tasks_blocked()
        assert served == ([] if missing else [100])
        nursery.cancel_scope.cancel()
    assert admission.try_admit(100) is not bool(missing), "as for a batch that meets no line"


async def test_the_time_that_a_full_journal_is_waited_for_begins_when_it_is_full(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """It was full, had room (but too much was pending), and is full again: that is another wait."""
    admission = Admission(LIMITS)
    admission.space_left = 0
    begun = trio.current_time()
    ended: list[float] = []

    async def wait() -> None:
        with pytest.raises(JournalFullError):
            await admission.admit(1)
        ended.append(trio.current_time() - begun)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.sleep(6)
        admission.space_left, admission.pending_bytes = 10**12, PENDING
        admission.wake()
        await trio.sleep(1)
        admission.space_left = 0
        admission.wake()
    assert ended == [pytest.approx(17.0)]


async def test_the_queue_is_served_in_order_and_a_cancelled_waiter_wakes_the_next(
    autojump_clock: trio.testing.MockClock,
) -> None:
    admission = Admission(LIMITS)
    admission.pending_bytes = PENDING
    served: list[str] = []

    async def wait(name: str, size: int, patience_s: float = 1_000.0) -> None:
        with trio.move_on_after(patience_s):
            await admission.admit(size)
            served.append(name)

    async with trio.open_nursery() as nursery:
        for name, size, patience_s in (("large", PENDING, 5.0), ("a", 10, 999.0), ("b", 10, 999.0)):
            nursery.start_soon(wait, name, size, patience_s)
            await trio.testing.wait_all_tasks_blocked()
        admission.pending_bytes = 20
        admission.wake()
        await trio.testing.wait_all_tasks_blocked()
        assert served == [], "no overtaking"
        assert not admission.try_admit(1), "nor by a new caller"
        await trio.sleep(6)
    assert served == ["a", "b"]
    assert admission.try_admit(1)


@pytest.mark.parametrize("failure", [JournalFencedError("the disk failed"), None])
async def test_a_journal_that_closes_refuses_those_in_line(failure: DanubeError | None) -> None:
    admission = Admission(LIMITS)
    admission.pending_bytes = PENDING
    refused: list[DanubeError] = []

    async def wait() -> None:
        with pytest.raises(DanubeError) as caught:
            await admission.admit(10)
        refused.append(caught.value)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        admission.close(failure)
        admission.close(UnavailableError("later"))
    assert len(refused) == 2
    assert all(error is failure for error in refused) if failure else isinstance(refused[0], UnavailableError)
    assert "later" not in str(refused[0])
