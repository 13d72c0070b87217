"""The replicated store on real files and threads, in real time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from random import Random

import pytest
import trio

from danube.log import RealDisk
from danube.metadata.raft import NodeOptions, RaftStore, SqliteStateTable, digest_of
from danube.model.errors import DataLossError
from danube.model.limits import KIB
from danube.raft import Conf, NodeId

ME = NodeId(1)
FAST = NodeOptions(
    tick_s=0.01,
    resend_s=0.1,
    piece_bytes=8 * KIB,
    cut_entries=40,
    kept_entries=5,
    most_kept_entries=50,
)


class _Wires:
    """Links without delay."""

    def __init__(self) -> None:
        self.receivers: dict[NodeId, Callable[[bytes], None]] = {}

    def send(self, to: NodeId, payload: bytes, *, bulk: bool = False) -> None:
        receiver = self.receivers.get(to)
        if receiver is not None:
            receiver(payload)


def make_store(disk, directory, member=ME, voters=(ME,), links=None, options=NodeOptions()):  # noqa: B008 - immutable
    table = SqliteStateTable(directory)
    return RaftStore(
        disk, table, member=member, first_conf=Conf(voters), links=links, random=Random(member), options=options
    )


async def test_a_damaged_frame_in_the_log_of_sqlite_costs_nothing(tmp_path):
    """SQLite takes it for the end of its log, and undoes what follows; the Raft log has it all."""
    before = b""
    for number in range(3):
        async with RealDisk(tmp_path / "log") as disk, make_store(disk, tmp_path) as store:
            for each in range(40):
                await store.put(f"/a/{each}", b"%d" % number)
            log = tmp_path / "metadata.db-wal"
            content = bytearray(log.read_bytes())
        # The file is closed by now, and its log gone. Put the table back to where it was, with a damaged log.
        content[len(content) // 3] ^= 1
        if number:
            (tmp_path / "metadata.db").write_bytes(before)
        log.write_bytes(content)
        async with RealDisk(tmp_path / "log") as disk, make_store(disk, tmp_path) as store:
            items, revision = await store.list("/a")
            assert revision == 40 * (number + 1)
            assert {item.value for item in items} == {b"%d" % number}
            await store.node._work(store.node._table.sync)
            before = (tmp_path / "metadata.db").read_bytes()


async def test_a_damaged_row_ends_the_member(tmp_path):
    async with RealDisk(tmp_path / "log") as disk, make_store(disk, tmp_path) as store:
        await store.put("/a", b"the value of this row")
        await store.node._work(store.node._table.sync)
    path = tmp_path / "metadata.db"
    content = bytearray(path.read_bytes())
    content[content.index(b"the value of this row") + 3] ^= 1
    path.write_bytes(content)
    async with RealDisk(tmp_path / "log") as disk:
        with pytest.raises(DataLossError, match="checksum"):
            async with make_store(disk, tmp_path):
                pass


async def test_three_members_with_real_files(tmp_path):
    voters = (NodeId(1), NodeId(2), NodeId(3))
    wires = _Wires()

    async def open_member(stack, member):
        disk = await stack.enter_async_context(RealDisk(tmp_path / str(member) / "log"))
        store = make_store(disk, tmp_path / str(member), member, voters, wires, FAST)
        await stack.enter_async_context(store)
        wires.receivers[member] = store.node.deliver
        return store

    with trio.fail_after(60):
        async with AsyncExitStack() as stack, AsyncExitStack() as third:
            one, two = [await open_member(stack, member) for member in voters[:2]]
            three = await open_member(third, voters[2])
            lease = await three.grant_lease(60.0)
            await one.put("/a", b"1", lease=lease)
            assert (await two.get("/a")).value == b"1"
            await three.keep_alive(lease)
            await third.aclose()
            del wires.receivers[voters[2]]
            for number in range(200):
                await two.put(f"/b/{number}", bytes(200))
            async with AsyncExitStack() as again:
                three = await open_member(again, voters[2])  # it needs a copy of the table
                assert len((await three.list("/"))[0]) == 201
                async with three.watch("/b", 2) as watch:
                    assert [(await watch.__anext__()).revision for _ in range(200)] == list(range(2, 202))
                await two.revoke(lease)
                assert await three.get("/a") is None
                stores = (one, two, three)
                marks = {store.node._state.mark.index for store in stores}
                while len(marks) > 1:
                    await trio.sleep(0.02)
                    marks = {store.node._state.mark.index for store in stores}
                digests = {await store.node.read_here(lambda machine: digest_of(machine.table)) for store in stores}
                assert len(digests) == 1
