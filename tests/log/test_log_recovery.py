"""Recovery from every kind of damage: cut, flipped, zeroed, files gone. Nothing is misread or lost silently."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable, Sequence
from random import Random

import pytest
import trio
from log_lives import FILE_SIZE, LIMITS, make_part
from trio.testing import MockClock

from danube.log import BatchCache, Entry, EntryType, Journal, Location, Recovered, TopicLog
from danube.log._files import parse_journal_name
from danube.log.format import FILE_HEADER_SIZE
from danube.model import BatchHeader, DanubeError, Durability, Stamp
from danube.model.batch import check_part
from danube.model.errors import DataLossError, JournalFencedError, JournalFullError
from danube.testing.disk import SimulatedDisk


def run(main: Callable[[], Awaitable[None]]) -> None:
    trio.run(main, clock=MockClock(autojump_threshold=0))


class Witness:
    """Everything that recovery shows."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, int, int]] = []
        self.controls: list[tuple[int, int, bytes]] = []
        self.snapshots: list[tuple[int, bytes]] = []
        self.forgotten: list[int] = []

    def batch(self, topic_id: int, stamp: Stamp, header: BatchHeader, location: Location) -> None:
        self.batches.append((topic_id, stamp.base_offset, header.record_count))

    def control(self, entry_type: int, topic_id: int, payload: bytes, durability: Durability) -> None:
        self.controls.append((entry_type, topic_id, payload))

    def snapshot(self, topic_id: int, state: bytes) -> None:
        self.snapshots.append((topic_id, state))

    def forget(self, topic_id: int) -> None:
        self.forgotten.append(topic_id)


def write(
    plan: Sequence[Sequence[tuple[int, int]]],
    *,
    durability: Durability = Durability.DISK,
    close: bool = False,
    disk: SimulatedDisk | None = None,
) -> tuple[SimulatedDisk, list[tuple[int, int, int]]]:
    """Write one commit block for each list of (topic, payload size); return the disk after a kill, and all batches.

    With ``disk``, go on with the journal that is there.
    """
    disk = disk or SimulatedDisk(Random(5))
    written: list[tuple[int, int, int]] = []
    heirs: list[SimulatedDisk] = []

    async def main() -> None:
        logs: dict[int, TopicLog] = {}
        settled = 0

        def on_commit(entries: Sequence[Entry], error: DanubeError | None) -> None:
            nonlocal settled
            assert error is None
            settled += len(entries)
            for entry in entries:
                if entry.type is EntryType.BATCH:
                    logs[entry.topic_id].settled(entry)

        journal = Journal(disk, LIMITS, file_size=FILE_SIZE, on_commit=on_commit)
        recovered = await journal.recover()
        cache = BatchCache(LIMITS.cache_bytes)
        for known, topic in recovered.topics.items():
            logs[known] = TopicLog(known, durability, journal, cache, recovered=topic)
        total = 0
        async with trio.open_nursery() as nursery:
            await nursery.start(journal.run)
            for group in plan:
                for topic_id, size in group:
                    if not topic_id:
                        journal.submit(Entry(EntryType.CURSOR, 1, durability, (bytes(size),)))
                        continue
                    log = logs.setdefault(topic_id, TopicLog(topic_id, durability, journal, cache))
                    part = make_part([bytes(size)], log.next_offset, topic_id)
                    written.append((topic_id, log.next_offset, 1))
                    log.append(part, check_part(part), 1)
                total += len(group)
                while settled < total:  # noqa: ASYNC110 - one block a group, in virtual time
                    await trio.sleep(0.001)
            if close:
                await journal.aclose()
            heirs.append(disk.crash(power_loss=False))
            nursery.cancel_scope.cancel()

    try:
        run(main)
    except* JournalFencedError:
        assert heirs, "only the crash may fence the journal"
    return heirs[0], written


def recover(disk: SimulatedDisk) -> tuple[Recovered, Witness]:
    """Recover, and check that what was reported can be read as the index says."""
    witness = Witness()
    found: list[Recovered] = []

    async def main() -> None:
        async with Journal.open(disk, LIMITS, file_size=FILE_SIZE, visitor=witness) as journal:
            assert journal.recovered is not None
            found.append(journal.recovered)
            stopped = journal.recovered.stopped_topics()
            for topic_id, topic in journal.recovered.topics.items():
                if topic_id in stopped:
                    continue
                log = TopicLog(
                    topic_id, Durability.DISK, journal, BatchCache(0), start_offset=topic.first_offset, recovered=topic
                )
                offset = log.start_offset
                while offset < log.end_offset:
                    batches = await log.read(offset, 5000)
                    for batch in batches:
                        assert batch.base_offset == offset
                        assert batch.header.producer_id == topic_id
                        offset = batch.end_offset

    run(main)
    return found[0], witness


def _refuse_commit(entries: Sequence[Entry], error: DanubeError | None) -> None:
    raise AssertionError("nothing was submitted")


def copy_of(disk: SimulatedDisk) -> SimulatedDisk:
    """Return a copy that the next test may damage; the original lives on, untouched."""
    heir = SimulatedDisk(Random(1))

    async def main() -> None:
        for name in disk.names():
            await heir.create(name, len(disk.content(name)))
            heir.content(name)[:] = disk.content(name)

    run(main)
    return heir


def used_end(disk: SimulatedDisk, name: str) -> int:
    return len(bytes(disk.content(name)).rstrip(b"\0"))


SMALL = [[(1, 20), (2, 30)], [(1, 10), (0, 8)], [(2, 40)], [(1, 5)]]


def test_an_empty_directory_is_an_empty_journal() -> None:
    recovered, witness = recover(SimulatedDisk(Random(1)))
    assert not recovered.topics
    assert not witness.batches
    assert recovered.torn is None


def test_everything_comes_back_after_a_kill_and_after_a_clean_end() -> None:
    for close in (False, True):
        disk, written = write(SMALL, close=close)
        for _ in range(3):  # recovery of a recovery
            recovered, witness = recover(disk)
            assert witness.batches == written
            assert witness.controls == [(EntryType.CURSOR, 1, bytes(8))]
            assert recovered.torn is None
            assert not recovered.corruptions
            assert {t: r.next_offset for t, r in recovered.topics.items()} == {1: 3, 2: 2}
            assert [b.base_offset for b in recovered.topics[1].producers[1]] == [0, 1, 2]


def test_a_file_cut_at_every_byte_of_its_last_blocks_gives_a_prefix() -> None:
    disk, written = write(SMALL)
    name = "journal-0000000000000001.log"
    end = used_end(disk, name)
    content = bytes(disk.content(name))
    third = content.rfind(b"DNJB", 0, content.rfind(b"DNJB"))
    seen = set()
    for cut in (FILE_HEADER_SIZE + 1, *range(third - 2, end)):
        damaged = copy_of(disk)
        damaged.content(name)[cut:] = bytes(FILE_SIZE - cut)
        recovered, witness = recover(damaged)
        assert witness.batches == written[: len(witness.batches)]
        assert not recovered.corruptions
        assert not recovered.stopped_topics()
        seen.add(len(witness.batches))
    assert seen == {0, 3, 4}


def test_a_bit_flipped_anywhere_is_noticed_or_cut_off() -> None:
    disk, written = write(SMALL)
    name = "journal-0000000000000001.log"
    random = Random(7)
    end = used_end(disk, name)
    for position in range(FILE_HEADER_SIZE + random.randrange(3), end, 3):
        damaged = copy_of(disk)
        damaged.flip(name, position, 1 << random.randrange(8))
        recovered, witness = recover(damaged)
        stopped = recovered.stopped_topics()
        missing = [item for item in written if item not in witness.batches]
        assert [item for item in written if item in witness.batches] == witness.batches
        if recovered.corruptions:
            # Before the last block, which may be unsynced.
            assert all(topic_id in stopped for topic_id, _, _ in missing), position
            for topic_id, base, _ in missing:
                assert recovered.topics[topic_id].next_offset > base or recovered.topics[topic_id].suspect
        else:
            assert missing in ([], [written[-1]]), position
            assert not stopped


def test_damage_stops_its_topics_by_name_and_no_others_for_ever() -> None:
    plan = [[(1, 1000), (2, 1000)], *[[(3, 3000)]] * 12, [(1, 100), (2, 100)]]
    disk, written = write(plan)
    name = "journal-0000000000000001.log"
    damaged = copy_of(disk)
    damaged.flip(name, FILE_HEADER_SIZE + 48 + 16 + 48 + 200)  # inside the first batch of topic 1
    for _ in range(2):  # it is found again by the next start
        recovered, witness = recover(damaged)
        (corruption,) = recovered.corruptions
        assert corruption.file == 1
        assert corruption.start == FILE_HEADER_SIZE
        assert corruption.topics == {1: (0, 1), 2: (0, 1)}  # the block is the unit
        assert corruption.complete
        assert "offsets [0, 1)" in str(corruption.error())
        stopped = recovered.stopped_topics()
        assert set(stopped) == {1, 2}
        assert isinstance(stopped[1], DataLossError)
        assert "[0, 1)" in str(stopped[1])
        assert recovered.topics[3].next_offset == 12
        assert [item for item in written if item not in witness.batches] == [(1, 0, 1), (2, 0, 1)]


def test_a_damaged_file_is_free_once_nothing_of_the_damage_is_wanted() -> None:
    """It was kept for as long as its topics were there, and nothing could ever free it."""
    disk, _ = write([[(1, 1000), (2, 1000)], *[[(3, 3000)]] * 12, [(1, 100), (2, 100)]])
    name = "journal-0000000000000001.log"
    disk.flip(name, FILE_HEADER_SIZE + 48 + 16 + 48 + 200)

    async def main() -> None:
        async with Journal.open(disk, LIMITS, file_size=FILE_SIZE, snapshot=lambda topic_id: b"state") as journal:
            for topic_id, end in ((3, 12), (1, 1)):
                journal.release(topic_id, end)
            await trio.sleep(1)
            assert name in disk.names(), "the offset of topic 2 is still missed"
            journal.release(2, 1)
            await trio.sleep(1)
            assert name not in disk.names()

    run(main)


def test_damage_in_the_last_file_is_remembered_although_the_file_is_replaced() -> None:
    disk, _ = write([[(1, 100)], [(2, 100)], [(1, 100)], [(2, 100)]])
    damaged = copy_of(disk)
    damaged.flip("journal-0000000000000001.log", FILE_HEADER_SIZE + 48 + 16 + 48 + 70)
    for _ in range(3):
        recovered, _ = recover(damaged)
        assert recovered.topics[1].damaged == [(0, 1)]
        assert set(recovered.stopped_topics()) == {1}
        assert set(recovered.stopped_topics({1: 1})) == set()  # released meanwhile
        assert recovered.topics[2].next_offset == 2
    assert "damaged-0000000000000001.log" in damaged.names()


def test_a_missing_file_is_noticed() -> None:
    disk, _ = write([[(1, 3000)], [(2, 3000)]] * 12)
    names = [name for name in disk.names() if name.startswith("journal")]
    damaged = copy_of(disk)

    async def remove() -> None:
        await damaged.remove(names[1])

    run(remove)
    recovered, _ = recover(damaged)
    assert recovered.missing_files == [parse_journal_name(names[1])]
    assert set(recovered.stopped_topics()) == {1, 2}


def test_both_copies_of_a_file_header_may_be_lost() -> None:
    disk, written = write([[(1, 3000)], [(2, 3000)]] * 12)
    for name in [name for name in disk.names() if name.startswith("journal")]:
        damaged = copy_of(disk)
        damaged.content(name)[: FILE_HEADER_SIZE - 10] = bytes([7]) * (FILE_HEADER_SIZE - 10)
        recovered, witness = recover(damaged)
        assert witness.batches in (written, []) or len(witness.batches) == len(written)
        assert not recovered.stopped_topics()


def test_a_block_of_zeros_in_the_middle_is_damage_and_not_the_end() -> None:
    disk, _ = write([[(1, 2000)]] * 30)
    damaged = copy_of(disk)
    second = [name for name in disk.names() if name.startswith("journal")][1]
    damaged.content(second)[4096:8192] = bytes(4096)
    recovered, _ = recover(damaged)
    assert recovered.corruptions
    assert set(recovered.stopped_topics()) == {1}


def test_os_entries_that_fill_several_files_are_copied_together() -> None:
    disk, written = write([[(1, 3000)]] * 40, durability=Durability.OS)
    for _ in range(2):
        recovered, witness = recover(disk)
        assert witness.batches == written
        assert not recovered.corruptions
        disk = disk.crash(power_loss=True)  # everything recovered is on the medium


def test_without_space_for_a_fresh_file_recovery_says_so() -> None:
    disk, _ = write(SMALL)
    heir = copy_of(disk)

    async def main() -> None:
        for name in heir.names():
            if not name.startswith("journal-0000000000000001"):
                await heir.remove(name)
        heir.capacity = FILE_SIZE
        with pytest.raises(JournalFullError, match="free space"):
            await Journal(heir, LIMITS, file_size=FILE_SIZE).recover()
        heir.capacity = 3 * FILE_SIZE

    run(main)
    _, witness = recover(heir)
    assert len(witness.batches) == 5


def test_another_file_size_takes_effect_without_losing_anything() -> None:
    disk, written = write([[(1, 3000)]] * 20)
    witness = Witness()

    async def main() -> None:
        async with Journal.open(disk, LIMITS, file_size=2 * FILE_SIZE, visitor=witness) as journal:
            assert journal.usage().files > 1
            while journal.usage().spare_files < 1:  # noqa: ASYNC110 - nothing tells when a file is ready
                await trio.sleep(0.01)
            names = await disk.list()
            assert names.pop(max(n for n in names if n.startswith("journal"))) == 2 * FILE_SIZE

    run(main)
    assert witness.batches == written
    _, again = recover(disk)
    assert again.batches == written


@pytest.mark.parametrize("operation", ["write", "sync", "rename", "create"])
@pytest.mark.parametrize("backwards", [False, True])
def test_remains_of_an_interrupted_recovery_are_no_later_file(
    operation: str, backwards: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy that it was making names the file that it was to be; no other file may get that name."""
    in_order = SimulatedDisk.list

    async def in_some_order(disk: SimulatedDisk) -> dict[str, int]:
        return dict(sorted((await in_order(disk)).items(), reverse=backwards))  # real directories have no order

    monkeypatch.setattr(SimulatedDisk, "list", in_some_order)
    disk, written = write(SMALL)
    interrupted = 0
    for after in range(20):
        trial = copy_of(disk)
        trial.fail(operation, errno.EIO, after=after)
        try:
            run(Journal(trial, LIMITS, file_size=FILE_SIZE, on_commit=_refuse_commit).recover)
            break
        except JournalFencedError:
            interrupted += 1
        trial, more = write([[(1, 30)]] * 5, disk=trial.crash(power_loss=False))
        for _ in range(2):
            recovered, witness = recover(copy_of(trial))
            assert witness.batches == written + more, f"interrupted after {after} calls"
            assert not recovered.corruptions
    assert interrupted or operation == "create", "recovery had enough spare files"
    assert after < 19


def test_a_restart_says_by_how_much_it_takes_the_unsealed_bytes_for_too_many() -> None:
    """The index finds a place to a region; what is sealed may end in the middle of one."""
    disk, written = write([[(1, 1000)]] * 20)

    async def main() -> None:
        async with Journal.open(disk, LIMITS, file_size=FILE_SIZE) as journal:
            assert journal.recovered is not None
            topic = journal.recovered.topics[1]
            whole = TopicLog(1, Durability.DISK, journal, BatchCache(0), recovered=topic)
            each = whole.unsealed_bytes // len(written)
            assert (each * len(written), 0) == (whole.unsealed_bytes, whole.unsealed_surplus_bytes)
            log = TopicLog(1, Durability.DISK, journal, BatchCache(0), recovered=topic, sealed_offset=15)
            exact = 5 * each
            assert log.unsealed_bytes - log.unsealed_surplus_bytes <= exact <= log.unsealed_bytes
            assert log.unsealed_surplus_bytes, "nothing would be measured here"
            log.sealed_up_to(20, exact)
            assert (log.unsealed_bytes, log.unsealed_surplus_bytes) == (0, 0)

    run(main)
