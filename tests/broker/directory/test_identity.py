"""The file ``broker`` of a data directory: an identity that stays, a number of starts, and no start without it."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import trio
from broker.broker_harness import running_broker
from trio.testing import MockClock

from danube.broker.directory.identity import DirectoryIdentity
from danube.broker.directory.identity_file import (
    BROKER_NAME,
    FILE_BYTES,
    SLOT_BYTES,
    BrokerFile,
    decode_broker_file,
    encode_slot,
)
from danube.broker.doctor import _data
from danube.cluster.membership import Membership
from danube.cluster.records import LastStart, SessionRecord
from danube.log import RealDisk
from danube.metadata import MemoryStore
from danube.model import Limits
from danube.model.batch import crc32c
from danube.model.errors import DataDirectoryError, DataLossError, JournalFullError
from danube.testing.disk import SimulatedDisk


async def opened(disk: SimulatedDisk, seed: int = 1) -> DirectoryIdentity:
    return await DirectoryIdentity.open(disk, Random(seed), "here")


def slot(letter: str, life: int, entered: int | None = None) -> bytes:
    return encode_slot(letter * 16, life, LastStart(life if entered is None else entered, 9))


async def test_identity_and_life_stay(autojump_clock: MockClock) -> None:
    disk = SimulatedDisk(Random(1))
    first = await opened(disk)
    assert (len(first.identity), first.life) == (16, 0)
    for life in range(1, 5):
        again = await opened(disk, seed=life)
        assert (again.identity, again.life) == (first.identity, life - 1)
        await again.store_life(life)
        await again.store_life(life)
        assert again.life == life - 1, "what the directory said when it was opened"
        disk = disk.crash(power_loss=True)
    assert disk.names() == [BROKER_NAME]


@pytest.mark.parametrize("seed", range(40))
async def test_every_moment_of_the_first_starts_may_be_the_last(autojump_clock: MockClock, seed: int) -> None:
    """What is stored is found again; what is being stored is found, or what was before."""
    random = Random(seed)
    disk = SimulatedDisk(random)
    identity, life = "", 0
    start = entering = LastStart(0, 0)
    for _ in range(12):
        with trio.move_on_after(random.choice((0.002, 0.005, 0.02)) * random.random()):
            while True:
                found = await opened(disk, seed=random.getrandbits(32))
                assert found.identity == (identity or found.identity)
                assert found.life in (life, life + 1)
                identity = found.identity
                assert found.last_start in (start, entering)
                start = found.last_start
                await found.store_life(found.life + 1)
                life = found.life + 1
                entering = LastStart(life, random.getrandbits(63))
                await found.store_start(*entering)
                start = entering
        disk = disk.crash(power_loss=random.random() < 0.7)


async def test_damage_is_no_new_directory(autojump_clock: MockClock) -> None:
    disk = SimulatedDisk(Random(1))
    identity = (await opened(disk)).identity
    disk.flip(BROKER_NAME, 20)
    before = disk.held(BROKER_NAME)
    with pytest.raises(DataLossError, match=r"'broker', which says .* is damaged. Nothing was changed.*'accept-loss'"):
        await opened(disk)
    assert disk.held(BROKER_NAME) == before
    await disk.create("accept-loss", 0)
    other = await opened(disk, seed=2)
    assert other.identity != identity
    assert (await opened(disk)).identity == other.identity


@pytest.mark.parametrize("left", ["journal-0000000000000001.log", "damaged-0000000000000003.log"])
async def test_a_directory_that_lost_the_file_is_not_new(autojump_clock: MockClock, left: str) -> None:
    disk = SimulatedDisk(Random(1))
    await disk.create(left, 100)
    with pytest.raises(DataLossError, match=r"'broker', .* is missing"):
        await opened(disk)
    assert disk.names() == [left]


async def test_a_directory_of_an_earlier_danube_is_refused(autojump_clock: MockClock) -> None:
    disk = SimulatedDisk(Random(1))
    for name in ("journal-0000000000000001.log", "metadata.db"):
        await disk.create(name, 100)
    with pytest.raises(DataDirectoryError, match="metadata of an earlier Danube"):
        await opened(disk)
    assert sorted(disk.names()) == ["journal-0000000000000001.log", "metadata.db"]


async def test_a_disk_that_fails_is_named(autojump_clock: MockClock) -> None:
    disk = SimulatedDisk(Random(1))
    found = await opened(disk)
    disk.fail("sync", 5)
    with pytest.raises(DataDirectoryError, match="'broker' of the data directory cannot be read or written"):
        await found.store_life(1)


async def test_a_full_disk_is_no_broken_one(autojump_clock: MockClock) -> None:
    disk = SimulatedDisk(Random(1), capacity=0)
    with pytest.raises(JournalFullError, match="'broker' of the data directory cannot be written, because the disk is"):
        await opened(disk)
    disk.capacity = 1_000_000
    assert (await opened(disk)).life == 0


async def test_files_of_others_do_not_matter(tmp_path: Path) -> None:
    (tmp_path / "danube.toml").write_text("")
    async with RealDisk(tmp_path) as disk:
        made = await DirectoryIdentity.open(disk, Random(1), "here")
        await made.store_life(1)
    text = (tmp_path / BROKER_NAME).read_bytes()[SLOT_BYTES:].rstrip(b"\0").decode()
    assert text.startswith(f"danube broker 2 {made.identity} life 1 entered 0 start {0:016x} crc ")


@pytest.mark.parametrize(
    ("content", "life"),
    [
        (slot("a", 0) + bytes(SLOT_BYTES), 0),
        (slot("a", 2) + slot("a", 1), 2),
        (slot("a", 2) + slot("a", 3), 3),
        (slot("a", 2) + slot("a", 3)[:512].ljust(SLOT_BYTES, b"?"), 2),
        (slot("a", 2) + slot("b", 3), None),
        (bytes(FILE_BYTES), None),
        (slot("a", 2), None),
        (slot("a", 2) + bytes(SLOT_BYTES + 1), None),
        (b"", None),
        (slot("a", 3, 3) + slot("a", 3, 2), 3),
        (slot("a", 3, 2) + slot("a", 3, 3), 3),
    ],
)
def test_the_newest_whole_slot_counts(content: bytes, life: int | None) -> None:
    found = decode_broker_file(content)
    assert (found and found.life) == life
    assert found is None or found.last_start.life == life


async def test_a_broker_counts_its_starts(tmp_path: Path) -> None:
    async with running_broker(tmp_path / "data") as running:
        await running.restart()
        await running.restart(crash=True)
    found = decode_broker_file((tmp_path / "data" / BROKER_NAME).read_bytes())
    assert found is not None
    assert found.life == 3


def test_the_doctor_misses_the_file(tmp_path: Path) -> None:
    async def start() -> None:
        async with running_broker(tmp_path):
            pass

    trio.run(start)
    (tmp_path / BROKER_NAME).unlink()
    (check,) = _data(str(tmp_path), Limits())
    assert not check.ok
    assert "'broker'" in check.detail


def copy_of(disk: SimulatedDisk) -> SimulatedDisk:
    made = SimulatedDisk(Random(1))
    made.put_back(BROKER_NAME, bytes(disk.content(BROKER_NAME)))
    return made


async def enter(store: MemoryStore, disk: SimulatedDisk, seed: int) -> int:
    """Start a broker with neighbours as far as its entry in the metadata; return its life there."""
    directory = await opened(disk)
    await directory.store_life(directory.life + 1)  # before others hear of it
    member = Membership(
        store,
        cluster="danube",
        identity=directory.identity,
        record=SessionRecord(address="b1:6650"),
        storages=(),
        random=Random(seed),
    )
    await member.join(directory.life, directory.last_start, directory.store_start)
    return member.brokers.values["b1"].life


async def test_a_copy_is_refused_however_often_it_is_started(autojump_clock: MockClock) -> None:
    """Each attempt counted as a start, so at some time a supervisor had the copy accepted."""
    async with MemoryStore() as store:
        disk = SimulatedDisk(Random(1))
        assert await enter(store, disk, 1) == 1
        copied = copy_of(disk)
        for seed in (2, 3):
            await enter(store, disk, seed)
        for seed in range(10, 20):
            with pytest.raises(DataLossError, match="of start 1 of broker b1, which has been started 3 times"):
                await enter(store, copied, seed)
        assert await enter(store, disk, 4) == 4


async def test_a_copy_that_started_at_the_same_time_is_refused_for_good(autojump_clock: MockClock) -> None:
    async with MemoryStore() as store:
        disk = SimulatedDisk(Random(1))
        await enter(store, disk, 1)
        copied = copy_of(disk)
        directory = await opened(copied)
        await directory.store_life(2)
        await directory.store_start(2, 77)  # and the other one was faster
        assert await enter(store, disk, 2) == 2
        for seed in range(10, 20):
            with pytest.raises(DataLossError, match="another process has made start 2 of broker b1"):
                await enter(store, copied, seed)
        assert await enter(store, disk, 3) == 3


async def test_a_start_that_ends_before_its_entry_is_no_copy(autojump_clock: MockClock) -> None:
    async with MemoryStore() as store:
        disk = SimulatedDisk(Random(1))
        await enter(store, disk, 1)
        for life in (2, 3):
            directory = await opened(disk)
            await directory.store_life(life)
            await directory.store_start(life, life)
            disk = disk.crash(power_loss=True)
        directory = await opened(disk)
        await directory.store_life(4)
        assert await enter(store, disk, 2) == 5
        assert await enter(store, disk, 3) == 6


def test_a_file_of_an_earlier_version_tells_no_start() -> None:
    text = f"danube broker 1 {'a' * 16} life 7".encode()
    slot = (text + b" crc %08x\n" % crc32c(text)).ljust(SLOT_BYTES, b"\0")
    assert decode_broker_file(slot + bytes(SLOT_BYTES)) == BrokerFile("a" * 16, 7, LastStart(7, 0), 0)
