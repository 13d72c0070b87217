"""The files of stages: their bytes, and failures of the disk."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
import trio
from broker.broker_harness import wait_until
from hypothesis import given, settings
from hypothesis import strategies as st

from danube.broker.runtime.stage_disk import RealStageDisk
from danube.broker.stages.format import (
    END_SIZE,
    StageEnd,
    StageHead,
    chain_part,
    cut_parts,
    encode_end,
    encode_head,
    frame_part,
    read_end,
    read_head,
)
from danube.broker.stages.store import StageStore
from danube.broker.stages.stored import StoredStage
from danube.model.batch import BatchHeader, check_part, crc32c, encode_part
from danube.model.errors import CorruptBatchError, DataLossError, LimitExceededError, UnavailableError
from danube.model.limits import MIB, Limits
from danube.model.stage_api import StageState
from danube.testing.disk import SimulatedDisk

HEAD = StageHead(0x1234, "/default/a", 7, "job", 3, "0.1", 1_000_000)


def part(*payloads: bytes) -> tuple[bytes, BatchHeader]:
    data = encode_part(list(payloads), producer_id=0, producer_epoch=0, base_sequence=0, publish_time_us=1)
    return data, check_part(data)


async def staged(store: StageStore, *parts: tuple[bytes, BatchHeader], head: StageHead = HEAD) -> StoredStage:
    stage = store.create(head)
    for one in parts:
        await store.append(stage, [one])
    await store.append(stage, [], finish=True)
    return stage


async def read(store: StageStore, stage: StoredStage) -> list[bytes]:
    reader, found = store.read(stage), []
    while parts := await reader.next_parts():
        found += [data for data, _ in parts]
    return found


def test_the_bytes_are_those_of_the_picture() -> None:
    head = encode_head(HEAD)
    assert (head[:4], head[4:8]) == (b"DNG1", (2).to_bytes(4, "little"))
    assert int.from_bytes(head[8:12], "little") == len(head) - 16
    assert read_head(head + b"what follows") == read_head(head) == (HEAD, len(head))
    foreign = b"DNG2" + head[4:-4]
    with pytest.raises(CorruptBatchError):
        read_head(foreign + crc32c(foreign).to_bytes(4, "little"))
    end = StageEnd(2, 30, 400, 0xABCD)
    data = encode_end(end)
    assert len(data) == END_SIZE == 36
    assert data[:8] == b"\0\0\0\0DNGE"
    assert read_end(data) == end


@given(st.integers(0, 10_000), st.integers(0, 7))
def test_a_flipped_bit_is_seen(position: int, bit: int) -> None:
    head, end = bytearray(encode_head(HEAD)), bytearray(encode_end(StageEnd(1, 2, 3, 4)))
    head[position % len(head)] ^= 1 << bit
    end[position % len(end)] ^= 1 << bit
    with pytest.raises(CorruptBatchError):
        read_head(bytes(head))
    assert read_end(bytes(end)) is None


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=8), st.integers(0, 500))
def test_only_whole_parts_are_cut(parts: list[bytes], cut: int) -> None:
    data = b"".join(piece for one in parts for piece in frame_part(one))
    found = list(cut_parts(data[:cut]))
    assert found == parts[: len(found)]
    rest = data[sum(4 + len(one) for one in found) : cut]
    assert len(found) == len(parts) or not rest[4:] or len(rest) < 4 + len(parts[len(found)])
    assert list(cut_parts(data + bytes(100))) == parts


async def test_the_chain_knows_the_order_of_the_parts() -> None:
    disk = SimulatedDisk(Random(1), growing=True)
    store = StageStore(disk, Limits())
    one, two = part(b"aaaa"), part(b"bbbb")
    stage = await staged(store, one, two)
    assert await read(store, stage) == [one[0], two[0]]
    begin, size = stage.head_size, 4 + len(one[0])
    content = disk.content(stage.name)
    first, second = content[begin : begin + size], content[begin + size : begin + 2 * size]
    content[begin : begin + 2 * size] = second + first
    with pytest.raises(DataLossError, match="parts are missing"):
        await read(store, stage)
    assert stage.end.chain == chain_part(chain_part(0, one[0]), two[0])


async def test_parts_larger_than_one_read() -> None:
    store = StageStore(SimulatedDisk(Random(1), growing=True), Limits())
    parts = [part(bytes([number]) * (5 * MIB if number % 3 == 1 else 900_000)) for number in range(8)]
    stage = await staged(store, *parts)
    assert await read(store, stage) == [data for data, _ in parts]
    assert stage.staged("b").size_bytes == sum(len(data) for data, _ in parts)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), power_loss=st.booleans(), finish=st.booleans(), sizes=st.lists(st.integers(1, 3000)))
def test_a_crash_keeps_finished_stages_only(seed: int, power_loss: bool, finish: bool, sizes: list[int]) -> None:
    async def main() -> None:
        disk = SimulatedDisk(Random(seed), growing=True, write_delay_s=0, sync_delay_s=0, read_delay_s=0)
        store = StageStore(disk, Limits())
        parts = [part(bytes(size)) for size in sizes]
        kept = await staged(store, *parts)
        other = store.create(StageHead(9, "/default/b", 8, "job", 3, "", 1))
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:

                async def write() -> None:
                    with suppress(UnavailableError):  # the disk is gone
                        for one in parts:
                            await store.append(other, [one])
                        if finish:
                            await store.append(other, [], finish=True)

                nursery.start_soon(write)
                for _ in range(seed % 40):
                    await trio.lowlevel.checkpoint()
                heir = disk.crash(power_loss=power_loss)
                scope.cancel()
        again = StageStore(heir, Limits())
        await again.load()
        found = {stage.head.stage_id: stage for stage in again}
        assert await read(again, found[kept.head.stage_id]) == [data for data, _ in parts]
        if other.state == StageState.STAGED:
            assert await read(again, found[9]) == [data for data, _ in parts]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(again.sweep)
            while again.used_bytes > sum(stage.size for stage in again):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        assert heir.names() == sorted(stage.name for stage in again)

    trio.run(main)


async def test_a_full_disk_is_a_limit_and_passes() -> None:
    disk = SimulatedDisk(Random(1), growing=True, capacity=10_000)
    store = StageStore(disk, Limits())
    stage = store.create(HEAD)
    with pytest.raises(LimitExceededError, match="disk of the broker is full") as caught:
        await store.append(stage, [part(bytes(20_000))])
    assert caught.value.retryable
    store.drop(stage)
    disk.fail("create", errno.EDQUOT)
    refused = store.create(HEAD)
    with pytest.raises(LimitExceededError, match="full"):
        await store.append(refused, [part(b"x")])
    store.drop(refused)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.sweep)
        while store.used_bytes:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert disk.names() == []
    assert await read(store, await staged(store, part(b"x"))) == [part(b"x")[0]]


@pytest.mark.parametrize("operation", ["write", "sync"])
async def test_a_disk_that_fails_costs_the_stage_and_nothing_else(operation: str) -> None:
    disk = SimulatedDisk(Random(1), growing=True)
    store = StageStore(disk, Limits())
    stage = store.create(HEAD)
    disk.fail(operation, errno.EIO)
    with pytest.raises(UnavailableError, match="stage again"):
        await store.append(stage, [part(b"x")])
    store.drop(stage)
    other = await staged(store, part(b"y"), head=StageHead(9, "/default/b", 8, "job", 3, "", 1))
    assert await read(store, other) == [part(b"y")[0]]


async def test_a_disk_that_cannot_be_read_now_is_no_damage() -> None:
    disk = SimulatedDisk(Random(1), growing=True)
    store = StageStore(disk, Limits())
    stage = await staged(store, part(b"x"))
    disk.fail("read", errno.EIO)
    with pytest.raises(UnavailableError, match="cannot be read"):
        await read(store, stage)
    assert await read(store, stage) == [part(b"x")[0]]
    del disk.content(stage.name)[-40:]
    with pytest.raises(DataLossError, match="too short"):
        await read(store, stage)


async def test_a_write_to_a_real_disk_is_synced_behind_its_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = RealStageDisk(tmp_path / "stages")
    synced: list[bytes] = []
    monkeypatch.setattr(os, "fdatasync", lambda fd: synced.append(os.pread(fd, 99, 0)))
    await disk.create("f", 0)
    await disk.write("f", 0, [b"one", b", two"], sync=True)
    assert synced == [b"one, two"]
    await disk.write("f", 8, [b", three"], sync=False)
    assert len(synced) == 1
    assert await disk.read("f", 0, 99) == b"one, two, three"


async def test_files_on_a_real_disk(tmp_path: Path) -> None:
    directory = tmp_path / "data" / "stages"
    disk = RealStageDisk(directory, sync_delay_s=0.001)
    await disk.list()  # its first thread is there
    held = len(os.listdir("/proc/self/fd"))
    store = StageStore(disk, Limits())
    await store.load()
    assert not directory.exists()
    parts = [part(bytes(3 * MIB)), part(b"x"), part(b"y" * MIB, b"z")]
    stage = await staged(store, *parts)
    (directory / "rubbish").write_bytes(b"unknown file")
    again = StageStore(disk, Limits())
    await again.load()
    (found,) = again
    assert (found.head, found.end, found.size) == (stage.head, stage.end, stage.size)
    assert await read(again, found) == [data for data, _ in parts]
    assert again.used_bytes == stage.size + len(b"unknown file")
    again.drop(found)
    again.drop(found)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(again.sweep)
        await wait_until(lambda: not again.used_bytes)
        nursery.cancel_scope.cancel()
    assert list(directory.iterdir()) == []
    await disk.sync_directory()
    assert len(os.listdir("/proc/self/fd")) == held, "no file stays open"
