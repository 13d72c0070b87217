"""Backups of the metadata: damage is noticed; what is put back is another incarnation; crashes lose nothing."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import msgspec
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from danube.cluster import rebuilding
from danube.cluster.backup_format import (
    EPOCH_STEP,
    another_incarnation,
    decode_backup,
    encode_end,
    encode_head,
    encode_items,
    known_brokers,
    take_piece,
)
from danube.cluster.group import load_memory, save_memory
from danube.cluster.group_memory import MEMBERS, GroupMemory, MemberRecord
from danube.cluster.rebuilding import recover_metadata, restore_metadata
from danube.cluster.records import (
    ASSIGNMENTS,
    BROKERS,
    CLUSTER_KEY,
    SESSIONS,
    Assignment,
    BrokerRecord,
    BrokerState,
    ClusterRecord,
    Reason,
    SessionRecord,
)
from danube.log import RealDisk
from danube.metadata import KeyValue, LeaseId, open_store, read_incarnation
from danube.metadata.embedded import DIRECTORY, LOG_DIRECTORY
from danube.metadata.raft import RaftStore, SqliteStateTable
from danube.model.errors import DataDirectoryError, DataLossError, FailedPreconditionError, NotFoundError
from danube.model.ids import BrokerId, OwnerEpoch
from danube.raft import Conf, NodeId

encode = msgspec.msgpack.encode
CLUSTER = ClusterRecord(name="danube", incarnation=5, feature_level=1)
ASSIGNED = Assignment(owner=BrokerId(1), epoch=OwnerEpoch(3), reason=Reason.CREATED)


def key(name: str, value: bytes, revision: int = 7, lease: int | None = None) -> KeyValue:
    return KeyValue(name, value, 1, revision, 2, LeaseId(lease) if lease else None)


ITEMS = [
    key(ASSIGNMENTS + "0" * 16, encode(ASSIGNED)),
    key(CLUSTER_KEY, encode(CLUSTER)),
    key("/members/1", b"?"),
    key("/sessions/b1", b"?", lease=4),
    *(key(f"/topics/{number:03}", bytes(10_000)) for number in range(120)),
]


def backup() -> bytes:
    pieces = [encode_head("danube", 9, 1_000_000)]
    position = 0
    while piece := take_piece(ITEMS, position):
        pieces.append(encode_items(piece))
        position += len(piece)
    assert len(pieces) > 2
    return b"".join([*pieces, encode_end(len(ITEMS))])


CONTENT = backup()


def test_a_backup_is_read_back() -> None:
    found = decode_backup(CONTENT, "monday")
    assert found.head.cluster == "danube"
    assert list(found.items) == ITEMS


@given(st.integers(0, len(CONTENT) - 1), st.integers(1, 255), st.booleans())
def test_damage_of_a_backup_is_noticed(position: int, mask: int, cut: bool) -> None:
    content = bytearray(CONTENT)
    content[position] ^= mask
    with pytest.raises(DataLossError, match="monday is"):
        decode_backup(CONTENT[:position] if cut else bytes(content), "monday")


def test_another_incarnation_has_higher_epochs_and_no_sessions() -> None:
    cluster, items = another_incarnation(ITEMS, 99)
    assert cluster is not None
    assert (cluster.incarnation, cluster.epoch_base) == (99, EPOCH_STEP)
    found = {item.key: item for item in items}
    assert msgspec.msgpack.decode(found[ASSIGNMENTS + "0" * 16].value, type=Assignment).epoch == 3 + EPOCH_STEP
    assert "/members/1" not in found
    assert "/sessions/b1" not in found
    assert len(found) == 122
    with pytest.raises(DataLossError, match="/cluster does not decode"):
        another_incarnation([key(CLUSTER_KEY, b"\xc1")], 99)


async def seen(directory: Path) -> tuple[int, dict[str, KeyValue], str]:
    async with open_store("embedded://", data_directory=directory) as store:
        items, revision = await store.list("/")
        return revision, {item.key: item for item in items}, (await read_incarnation(store)).reason


def test_brokers_of_metadata_are_named_with_their_addresses() -> None:
    def broker(identity: str, state: BrokerState = BrokerState.ACTIVE) -> bytes:
        return encode(BrokerRecord(identity=identity, state=state))

    items = [
        key(f"{BROKERS}b1", broker("i1")),
        key(f"{BROKERS}b2", broker("i2")),
        key(f"{BROKERS}b3", broker("i3", BrokerState.GONE)),
        key(f"{BROKERS}b10", broker("i10")),
        key(f"{SESSIONS}b1", encode(SessionRecord(address="a:1")), lease=3),
        key(f"{MEMBERS}7", encode(MemberRecord(address="b:1", identity="i2"))),
        key(f"{MEMBERS}8", b"damaged"),
    ]
    assert known_brokers(items) == (("b1", "i1", "a:1"), ("b2", "i2", "b:1"), ("b10", "i10", ""))


async def test_a_backup_is_restored_into_a_directory_without_metadata(tmp_path: Path) -> None:
    file, data = tmp_path / "monday", tmp_path / "data"
    file.write_bytes(CONTENT)
    made = await restore_metadata(data, file, Random(1))
    assert (made.cluster, made.keys, made.revision) == ("danube", 122, 10)
    revision, items, reason = await seen(data)
    assert revision == 10
    assert items["/topics/007"] == ITEMS[11]
    assert reason == f"restored from {file}"
    async with RealDisk(data) as disk:
        memory = await load_memory(disk, "data")
    assert memory is not None
    assert memory.incarnation == made.incarnation
    async with open_store("embedded://", data_directory=data) as store:
        lease = await store.grant_lease(60)
        assert lease > 1000
        async with store.watch("/", 11) as watch:
            assert await store.put("/new", b"", lease=lease) == 11
            assert (await watch.__anext__()).revision == 11
    with pytest.raises(FailedPreconditionError, match="holds metadata, which would be lost"):
        await restore_metadata(data, file, Random(1))
    with pytest.raises(NotFoundError, match="tuesday cannot be read"):
        await restore_metadata(tmp_path / "other", tmp_path / "tuesday", Random(1))


async def member_of_three(data: Path) -> None:
    """Write what a voter of three has: committed entries, and an unconfirmed one."""
    metadata = data / DIRECTORY
    table = SqliteStateTable(metadata)
    async with RealDisk(data) as disk:
        await save_memory(disk, GroupMemory(cluster="danube", member=NodeId(2), incarnation=5), "data")
    async with RealDisk(metadata / LOG_DIRECTORY) as disk:
        conf = Conf((NodeId(2),))
        async with RaftStore(disk, table, member=NodeId(2), first_conf=conf, random=Random(1)) as store:
            await store.put(CLUSTER_KEY, encode(CLUSTER))
            await store.put(ASSIGNMENTS + "0" * 16, encode(ASSIGNED))
            # The majority of the next configuration is this member alone, so it commits it, and then waits for others.
            raft = store.node.raft
            raft.propose_conf((NodeId(1), NodeId(2), NodeId(3)), ())
            store.node._wake()
            await trio.sleep(0.2)
            with trio.move_on_after(0.3):
                await store.put("/unconfirmed", b"1")


async def test_a_member_becomes_the_only_one_with_all_that_it_has(tmp_path: Path) -> None:
    data = tmp_path / "data"
    await member_of_three(data)
    made = await recover_metadata(data, Random(1))
    assert made.kept == data / "metadata.former"
    revision, items, reason = await seen(data)
    assert revision == made.revision
    assert reason == "recovered after a loss of members"
    assert msgspec.msgpack.decode(items[CLUSTER_KEY].value, type=ClusterRecord).epoch_base == EPOCH_STEP
    with pytest.raises(FailedPreconditionError, match="nothing to recover"):
        await recover_metadata(data, Random(1))
    with pytest.raises(NotFoundError, match="no data directory"):
        await recover_metadata(tmp_path / "nothing", Random(1))


@pytest.mark.parametrize("crash_at", range(6))
async def test_a_recovery_that_was_cut_off_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crash_at: int
) -> None:
    data = tmp_path / "data"
    await member_of_three(data)
    steps = 0

    def crashing(real):
        def step(*args, **how):
            nonlocal steps
            if steps == crash_at:
                raise KeyboardInterrupt
            steps += 1
            return real(*args, **how)

        return step

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", crashing(os.rename))
        for name in ("save_memory", "write_member", "another_incarnation"):
            patch.setattr(rebuilding, name, crashing(getattr(rebuilding, name)))
        try:
            await recover_metadata(data, Random(1))
        except BaseException as error:  # noqa: BLE001 - of a trio thread, or a group
            assert "KeyboardInterrupt" in repr(error)  # noqa: PT017
    async with RealDisk(data) as disk:
        memory = await load_memory(disk, "data")
    assert memory is not None
    assert memory.incarnation or memory.is_opened, "it is not taken for a broker that has asked for a place"
    if steps > crash_at or not memory.incarnation or memory.member == 2:
        await recover_metadata(data, Random(2))
    revision, items, _ = await seen(data)
    assert CLUSTER_KEY in items
    assert revision >= 3


async def test_the_directory_of_a_running_broker_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "monday"
    file.write_bytes(CONTENT)
    async with RealDisk(tmp_path / "data"):
        with pytest.raises(DataDirectoryError, match="in use by another broker"):
            await restore_metadata(tmp_path / "data", file, Random(1))
        with pytest.raises(DataDirectoryError, match="in use by another broker"):
            await recover_metadata(tmp_path / "data", Random(1))
