"""Power cuts on a real file system: what was acknowledged as synced is there afterwards, in order, once.

The broker's data directory is on an ext4 of its own. Producers and consumers work, at a random moment the file system
stops without writing anything back, the broker is killed, the file system is mounted again and the broker started. The
data directory and the clients of the ``disk`` topics live on through all cuts.

After each cut:

* every acknowledged message of the ``disk`` topics is at its offset, once, byte for byte; offsets have no gaps;
* acknowledgements that were flushed still hold, out-of-order ones too;
* the ``os`` topic holds the beginning of what was sent, at least as much as after the cut before, and its cursor is not
  beyond its end.
"""

from __future__ import annotations

import enum
import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
from brokers import BrokerProcess
from ledgers import Ledger, receipt_ranges
from loop_disks import LoopDisk, require_loop_disks

import danube
from danube.client import Batch, Client, Message, Producer
from danube.model.errors import DanubeError

pytestmark = pytest.mark.extended

CYCLES = 50
WHOLE_AUDIT_EVERY = 10
PATIENCE_S = 600
DISK_BYTES = 2 * 2**30
CONFIGURATION = """
journal_file_size = "2MiB"

[limits]
max_batch_bytes = 524288
max_message_bytes = 131072
segment_bytes = 262144
segment_merge_parts = 8
"""
"""Small files and segments, so that each life of the broker rolls, seals and recycles several of them."""
BATCH_BYTES = 256 * 1024
CHURN_BYTES = 5 * 2**20

ORDERED = "/default/ordered"
MIXED = "/default/mixed"
FAST = "/default/fast"
CHURN = "/default/churn"


class Cut(enum.Enum):
    """When the power goes."""

    WORKING = "while clients work"
    QUIET = "while only the os topic is written, so that nothing syncs it"
    STARTING = "during the start, recovery included"
    DRAINING = "after SIGTERM"


def _plan(rng: random.Random) -> list[Cut]:
    kinds = [Cut.WORKING] * 22 + [Cut.QUIET] * 10 + [Cut.STARTING] * 12 + [Cut.DRAINING] * 6
    assert len(kinds) == CYCLES
    rng.shuffle(kinds)
    return kinds


class Machine:
    """A disk with a broker on it, which lose their power together."""

    def __init__(self, disk: LoopDisk, configuration: Path, rng: random.Random) -> None:
        self._disk = disk
        self._rng = rng
        self.broker = BrokerProcess(
            disk.mount_point / "data", "--config", str(configuration), stderr=configuration.with_name("stderr")
        )
        self.start_time_s = 1.0
        self.cut_while_recovering = 0

    def start(self) -> None:
        began = time.monotonic()
        self.broker.start()
        self.start_time_s = time.monotonic() - began

    def lose_power(self) -> None:
        """Cut it; the broker may notice, or may not."""
        self._disk.cut_power()
        time.sleep(self._rng.choice([0.0, 0.0, 0.02]))
        self.broker.kill()
        self._disk.unmount()
        self._disk.mount()

    def lose_power_while_draining(self) -> None:
        self.broker.request_drain()
        time.sleep(self._rng.uniform(0.0, 0.06))
        self.lose_power()

    def lose_power_while_starting(self) -> None:
        """Begin to start, and cut either somewhere in that time, or right after the journal's files begin to change."""
        before = self._names()
        began = time.monotonic()
        self.broker.launch()
        if self._rng.random() < 0.25:
            time.sleep(self._rng.uniform(0.3, 1.0) * self.start_time_s)
        else:
            while self._names() == before and time.monotonic() < began + 5 * self.start_time_s:
                time.sleep(0.0005)
            time.sleep(self._rng.choice([0.0, self._rng.uniform(0.0, 0.01)]))
        self.cut_while_recovering += self._names() != before
        self.lose_power()

    def _names(self) -> list[str]:
        return sorted(os.listdir(self.broker.data_directory))


class World:
    """The clients, and what they were promised."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.ordered = Ledger(ORDERED)
        self.mixed = Ledger(MIXED)
        self.fast = Ledger(FAST)
        self.flushed: dict[str, set[int]] = {ORDERED: set(), MIXED: set()}
        """Offsets whose acknowledgement is durable, by topic."""
        self._noisy = trio.Event()
        self._noisy.set()
        self.finished = False
        self.life = 0
        self.dying = False
        """The power is about to be cut: from here on clients may see any error (a file that cannot be read, say)."""
        self.lost_from_fast = 0

    def set_quiet(self, quiet: bool) -> None:
        """Have the producers of the disk topics pause, or go on."""
        if quiet:
            self._noisy = trio.Event()
        else:
            self._noisy.set()

    # --- Producers of disk topics: they live through everything ---

    async def produce_one_by_one(self, client: Client) -> None:
        """``send_many``, one call after the other."""
        async with client.producer(ORDERED, name="single", batch_max_bytes=BATCH_BYTES) as producer:
            while not self.finished:
                first, payloads = self.ordered.next_payloads("single", self.rng.randrange(1, 12))
                receipt = await producer.send_many(payloads)
                self.ordered.note("single", first, receipt_ranges(receipt))
                await self._noisy.wait()

    async def produce_in_flight(self, client: Client, writer: str) -> None:
        """Many sends under way at a time, compressed, beside another producer of the same topic."""
        async with (
            client.producer(MIXED, name=writer, compression="lz4", batch_max_bytes=BATCH_BYTES) as producer,
            trio.open_nursery() as nursery,
        ):
            while not self.finished:
                for _ in range(self.rng.randrange(1, 6)):
                    first, payloads = self.mixed.next_payloads(writer, self.rng.randrange(1, 6))
                    await nursery.start(self._send, producer, writer, first, payloads)
                await trio.sleep(self.rng.uniform(0.005, 0.03))
                await self._noisy.wait()

    async def _send(
        self,
        producer: Producer,
        writer: str,
        first: int,
        payloads: list[bytes],
        *,
        task_status: trio.TaskStatus[None],
    ) -> None:
        pending = [producer.send_nowait(one) for one in payloads]
        task_status.started()
        for index, one in enumerate(pending):
            self.mixed.note(writer, first + index, [((await one).offset, 1)])

    # --- Clients of one life of the broker ---

    async def live(self, url: str) -> None:
        """Consume the disk topics, write and consume the ``os`` topic, fill and delete a topic; until cancelled."""
        try:
            async with danube.connect(url, close_timeout_s=0.05) as client, trio.open_nursery() as nursery:
                nursery.start_soon(self._consume_in_order, client)
                nursery.start_soon(self._consume_out_of_order, client)
                nursery.start_soon(self._write_fast, client)
                nursery.start_soon(self._consume_fast, client)
                if self.life % 2:
                    nursery.start_soon(self._churn, client)
        except* DanubeError:
            if not self.dying:
                raise

    async def _consume_in_order(self, client: Client) -> None:
        async with client.consumer(ORDERED, subscription="s", start="earliest") as consumer:
            taken: list[int] = []
            while True:
                batch = await consumer.receive_batch()
                self._check_new(ORDERED, batch)
                await batch.ack()
                taken += [message.offset for message in batch]
                if self.rng.random() < 0.2:
                    promised, taken = taken, []
                    await consumer.flush_acks()
                    self.flushed[ORDERED].update(promised)

    async def _consume_out_of_order(self, client: Client) -> None:
        """Acknowledge two of three messages at once, the others later or only in a later life."""
        async with client.consumer(MIXED, subscription="s", type="shared", start="earliest") as consumer:
            late: list[Message] = []
            taken: list[int] = []
            while True:
                batch = await consumer.receive_batch()
                self._check_new(MIXED, batch)
                for message in batch:
                    if self.rng.randrange(3):
                        await message.ack()
                        taken.append(message.offset)
                    else:
                        late.append(message)
                if len(late) > 50:
                    for message in late:
                        await message.ack()
                        taken.append(message.offset)
                    late.clear()
                if self.rng.random() < 0.05:
                    promised, taken = taken, []
                    await consumer.flush_acks()
                    self.flushed[MIXED].update(promised)

    def _check_new(self, topic: str, batch: Batch) -> None:
        again = [message.offset for message in batch if message.offset in self.flushed[topic]]
        assert not again, f"{topic}: {again} came again after their acknowledgement was flushed"

    async def _write_fast(self, client: Client) -> None:
        writer = f"life{self.life}"
        async with client.producer(FAST, durability="os", batch_max_bytes=BATCH_BYTES) as producer:
            while True:
                first, payloads = self.fast.next_payloads(writer, self.rng.randrange(1, 12))
                self.fast.note(writer, first, receipt_ranges(await producer.send_many(payloads)))
                await trio.sleep(0.002)

    async def _consume_fast(self, client: Client) -> None:
        (info,) = await client.admin.describe_subscription(FAST, "s")
        position = info.floor
        async with client.consumer(FAST, subscription="s", start="earliest") as consumer:
            while True:
                batch = await consumer.receive_batch()
                for message in batch:
                    assert message.offset == position, f"{FAST}: {message.offset} came where {position} was to be"
                    position += 1
                await batch.ack()

    async def _churn(self, client: Client) -> None:
        """Fill files with messages that are no longer needed, so that some are recycled."""
        async with client.producer(CHURN, batch_max_bytes=BATCH_BYTES) as producer:
            for _ in range(CHURN_BYTES // 65536):
                await producer.send_many([bytes(8192)] * 8)
        await client.admin.delete_topic(CHURN)

    # --- After a cut ---

    async def check(self, client: Client, *, whole: bool) -> None:
        """Hold the broker to everything that it has promised."""
        name = f"audit{self.life}"
        for ledger in (self.ordered, self.mixed):
            promised = ledger.end
            end = await ledger.audit(client, name=name, whole=whole)
            assert end >= promised, f"{ledger.topic} ends at {end}, but {promised} messages were acknowledged"
            (info,) = await client.admin.describe_subscription(ledger.topic, "s")
            flushed = self.flushed[ledger.topic]
            assert info.backlog_messages <= info.end_offset - len(flushed), (
                "acknowledgements that were flushed are gone"
            )
        end = await self.fast.audit(client, name=name, whole=whole)
        self.lost_from_fast += self.fast.forget_behind(end)
        (info,) = await client.admin.describe_subscription(FAST, "s")
        assert info.floor <= info.end_offset == end


@contextmanager
def _explained(machine: Machine, what: str) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        log = machine.broker.stderr
        if log is not None and log.exists():
            error.add_note(f"{what}; the broker's log ends with:\n" + "\n".join(log.read_text().splitlines()[-40:]))
        raise


@pytest.mark.slow
async def test_fifty_power_cuts_lose_nothing_that_was_synced(tmp_path: Path) -> None:
    require_loop_disks()
    seed = int(os.environ.get("DANUBE_TEST_SEED", "1"))
    rng = random.Random(seed)
    configuration = tmp_path / "danube.toml"
    configuration.write_text(CONFIGURATION)
    with LoopDisk(tmp_path, DISK_BYTES) as disk:
        machine = Machine(disk, configuration, rng)
        world = World(rng)
        with _explained(machine, f"seed {seed}"), machine.broker, trio.fail_after(PATIENCE_S):
            async with danube.connect(machine.broker.url, reconnect_timeout_s=None, reconnect_max_s=0.2) as client:
                await _create(client)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(world.produce_one_by_one, client)
                    nursery.start_soon(world.produce_in_flight, client, "left")
                    nursery.start_soon(world.produce_in_flight, client, "right")
                    for cycle, cut in enumerate(_plan(rng), 1):
                        await _one_life(machine, world, cut)
                        whole = cycle % WHOLE_AUDIT_EVERY == 0
                        async with danube.connect(machine.broker.url) as auditor:
                            await world.check(auditor, whole=whole)
                    world.finished = True
                await world.check(client, whole=True)
                for ledger in (world.ordered, world.mixed):
                    assert ledger.counts == ledger.sent
                    assert len(ledger.acknowledged) == len(ledger.stored)
                    await _consume_the_rest(client, ledger, world.flushed[ledger.topic])

    assert machine.cut_while_recovering >= 3, "hardly any cut came while files were changed by a recovery"
    assert world.lost_from_fast > 0, "no cut ever took anything: was the power really cut?"
    assert len(world.ordered.stored) > 50 * CYCLES
    assert len(world.mixed.stored) > 50 * CYCLES


async def _create(client: Client) -> None:
    for topic, kind in ((ORDERED, "exclusive"), (MIXED, "shared"), (FAST, "exclusive")):
        await client.admin.create_topic(topic, durability="os" if topic == FAST else "disk")
        async with client.consumer(topic, subscription="s", type=kind, start="earliest"):
            pass


async def _one_life(machine: Machine, world: World, cut: Cut) -> None:
    """Let all clients work for a while and cut the power as planned; return when the broker is up again."""
    world.life += 1
    world.dying = False
    rng = world.rng
    async with trio.open_nursery() as life:
        life.start_soon(world.live, machine.broker.url)
        await trio.sleep(rng.uniform(0.1, 0.6))
        if cut is Cut.QUIET:
            world.set_quiet(True)
            await trio.sleep(rng.uniform(0.1, 0.2))
        world.dying = True
        if cut is Cut.DRAINING:
            await trio.to_thread.run_sync(machine.lose_power_while_draining)
        else:
            await trio.to_thread.run_sync(machine.lose_power)
        life.cancel_scope.cancel()
    if cut is Cut.STARTING:
        await trio.to_thread.run_sync(machine.lose_power_while_starting)
    world.set_quiet(False)
    await trio.to_thread.run_sync(machine.start)


async def _consume_the_rest(client: Client, ledger: Ledger, flushed: set[int]) -> None:
    """Drain the subscription: what is left comes, and what was flushed does not."""
    (info,) = await client.admin.describe_subscription(ledger.topic, "s")
    left = info.backlog_messages
    kind = "shared" if ledger.topic == MIXED else "exclusive"
    got: set[int] = set()
    with trio.fail_after(60):
        async with client.consumer(ledger.topic, subscription="s", type=kind) as consumer:
            while len(got) < left:
                batch = await consumer.receive_batch()
                got.update(message.offset for message in batch)
                await batch.ack()
            await consumer.flush_acks()
    assert got.isdisjoint(flushed)
    (info,) = await client.admin.describe_subscription(ledger.topic, "s")
    assert info.floor == info.end_offset == len(ledger.stored)
