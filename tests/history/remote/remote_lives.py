"""Lives of brokers on one bucket, for the tests of durability ``remote``: publishers, acknowledgements, a ledger.

A :class:`World` is the bucket, the metadata that outlives brokers, and the answers that callers have got. A
:class:`Life` is one broker as far as the remote journal can see it. Its network is not its own: what it has sent may
arrive when it is dead.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from random import Random

import trio

from danube.history.catalogue import HistoryCatalogue
from danube.history.objects import object_name, upload
from danube.history.packing import build
from danube.history.parts import ObjectRef
from danube.history.reader import SegmentReader
from danube.history.remote import (
    RemoteJournal,
    RemoteRecovered,
    RemoteState,
    TopicDeleted,
    TopicStored,
    encode_change,
    highest_epoch,
)
from danube.history.segment import SegmentBuilder, SegmentKind
from danube.history.sole_tenure import SoleTenure
from danube.log import Entry, EntryType, StoredBatch
from danube.metadata import MetadataStore
from danube.metadata.memory import MemoryStore
from danube.model.batch import STAMP_SIZE, check_part, encode_part, open_records, write_stamp
from danube.model.errors import DanubeError
from danube.model.limits import GIB, KIB, Limits
from danube.model.policies import Durability
from danube.storage import ListPage, Marker, MemoryBackend, MemorySpace, ObjectInfo, Storage, StorageBackend
from danube.testing.storage_faults import FaultyStorage

CLUSTER = "main"
START_US = 1_700_000_000_000_000
LIMITS = Limits(
    storage_attempt_timeout_s=2.0,
    storage_operation_timeout_s=10.0,
    remote_commit_bytes=64 * KIB,
    remote_snapshot_commits=8,
)


async def claim(store: MetadataStore, incarnation: str = "one", at_least: int = 1) -> HistoryCatalogue:
    """The catalogue of a broker that owns everything, in a new life."""
    return await HistoryCatalogue.open(store, await SoleTenure.begin(store, at_least=at_least), incarnation)


def wall_clock_us() -> int:
    return START_US + int(trio.current_time() * 1e6)


class Network(StorageBackend):
    """The connection to the bucket: puts arrive late, and also after their caller was cancelled."""

    def __init__(self, backend: MemoryBackend, random: Random, nursery: trio.Nursery, latency_s: float) -> None:
        self._backend = backend
        self._random = random
        self._nursery = nursery
        self.latency_s = latency_s
        self.late = 0.0
        """Probability that a put takes up to 300 times the latency."""

    @property
    def url(self) -> str:
        return self._backend.url

    @property
    def capabilities(self):
        return self._backend.capabilities

    async def put(self, key: str, data: bytes | bytearray, *, if_absent: bool = False) -> None:
        done = trio.Event()
        errors: list[DanubeError] = []
        copy = bytes(data)
        scale = 300 if self._random.random() < self.late else 1

        async def carry() -> None:
            await trio.sleep(self._random.random() * self.latency_s * scale)
            try:
                await self._backend.put(key, copy, if_absent=if_absent)
            except DanubeError as error:
                errors.append(error)
            await trio.sleep(self._random.random() * self.latency_s)
            done.set()

        self._nursery.start_soon(carry)
        await done.wait()
        if errors:
            raise errors[0]

    async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        await trio.sleep(self._random.random() * self.latency_s)
        return await self._backend.get(key, start, end)

    async def head(self, key: str) -> ObjectInfo:
        await trio.sleep(self._random.random() * self.latency_s)
        return await self._backend.head(key)

    async def list(self, prefix: str = "", *, start_after: str = "", limit: int = 1000) -> ListPage:
        await trio.sleep(self._random.random() * self.latency_s)
        return await self._backend.list(prefix, start_after=start_after, limit=min(limit, 7))

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:  # not atomic
            await trio.sleep(self._random.random() * self.latency_s)
            await self._backend.delete([key])


async def hold_store(*, task_status: trio.TaskStatus[MemoryStore]) -> None:
    async with MemoryStore() as store:
        task_status.started(store)
        await trio.sleep_forever()


class World:
    """What is left when brokers die, and what they have promised."""

    def __init__(self, random: Random, nursery: trio.Nursery) -> None:
        self.random = random
        self.nursery = nursery
        self.space = MemorySpace()
        self.store: MemoryStore
        self.acked: dict[int, dict[int, list[bytes]]] = defaultdict(dict)
        """Topic id to base offset to payloads."""
        self.cursors: dict[int, int] = {}
        """Subscription to the highest number that was acknowledged."""
        self.deleted: set[int] = set()
        self.lives = 0
        self.next_id = 100
        self.max_object_bytes = 1 * GIB
        self.mounted = False
        """Whether the bucket is a directory, which may be missing for a while; then it has a marker."""
        self.identity = ""

    async def remember(self, identity: str, replace: bool) -> str:
        if replace or not self.identity:
            self.identity = identity
        return self.identity

    async def lose_metadata(self) -> None:
        """The next broker comes to life on another machine."""
        self.store = await self.nursery.start(hold_store)

    def commits(self) -> list[str]:
        return [key for key in self.space.objects if key.startswith("wal/")]


class Life:
    """One broker; :func:`living` brings it to life."""

    def __init__(self, world: World, limits: Limits = LIMITS, latency_s: float = 0.01) -> None:
        world.lives += 1
        self.world = world
        self.random = Random(world.random.random())
        self.limits = limits
        self.number = world.lives
        self.name = f"life-{world.lives}"
        backend = MemoryBackend(
            world.space, durable=True, max_object_bytes=world.max_object_bytes, wall_clock_us=wall_clock_us
        )
        self.network = Network(backend, self.random, world.nursery, latency_s)
        self.faults = FaultyStorage(self.network, self.random)
        self.faults.mounted = world.mounted
        marker = None
        if world.mounted:
            marker = Marker("default", CLUSTER, random=self.random, remember=world.remember, identity=world.identity)
        self.storage = Storage(self.faults, random=self.random, limits=limits, marker=marker)
        self.topics: dict[int, int] = {}
        """Topic id to the next offset."""
        self.names: dict[str, int] = {}
        self.cursors: dict[int, int] = {}
        self.waiting: dict[Entry, trio.Event] = {}
        self.errors: dict[Entry, DanubeError | None] = {}
        self.stalled: list[tuple[float, int, DanubeError]] = []
        self.settled: list[Entry] = []
        self.manifests_current = True
        """Whether manifests tell of everything that is sealed."""
        self.recovered: RemoteRecovered
        self.catalogue: HistoryCatalogue
        self.journal: RemoteJournal
        self.reader: SegmentReader

    @property
    def is_over(self) -> bool:
        """Whether a later life has begun."""
        return self.world.lives > self.number

    async def claim(self) -> None:
        """Everything up to :meth:`RemoteJournal.run`."""
        at_least = await highest_epoch(self.storage, CLUSTER) + 1
        self.catalogue = await claim(self.world.store, "incarnation", at_least)
        self.journal = RemoteJournal(
            self.storage,
            self.catalogue,
            self,
            self.limits,
            place=CLUSTER,
            owner=self.name,
            wall_clock_us=wall_clock_us,
            manifests_current=lambda: self.manifests_current,
        )
        self.recovered = recovered = await self.journal.recover()
        for name, (ids, _) in recovered.state.topics.items():
            self.names[name] = ids[0]
            found = recovered.topics.get(ids[0])
            self.topics[ids[0]] = found.next_offset if found is not None else 0
        self.cursors = {number: int(value) for number, value in recovered.state.cursor_snapshots.items()}
        recovered.replay(self)
        self.reader = SegmentReader(self.catalogue, {"default": self.storage}, self.limits)

    # --- Visitor ---

    def batch(self, *_: object) -> None:
        raise AssertionError("batches are not told to the visitor")

    def control(self, entry_type: int, topic_id: int, payload: bytes, durability: Durability) -> None:
        assert entry_type == EntryType.CURSOR
        assert durability is Durability.REMOTE
        number, value = map(int, payload.split(b"="))
        self.cursors[number] = max(value, self.cursors.get(number, 0))

    # --- RemoteBroker ---

    def on_commit(self, entries: Sequence[Entry], error: DanubeError | None) -> None:
        for entry in entries:
            self.errors[entry] = error
            if error is None:
                self.settled.append(entry)
                self._promise(entry)
            self.waiting.pop(entry).set()

    def _promise(self, entry: Entry) -> None:
        if entry.type is EntryType.BATCH:
            batch = entry.batch
            records = open_records(batch.part, batch.header, 2**30)
            assert batch.base_offset not in self.world.acked[entry.topic_id], "an offset was given out twice"
            self.world.acked[entry.topic_id][batch.base_offset] = records
        elif entry.type is EntryType.CURSOR:
            number, value = map(int, entry.buffers[0].split(b"="))
            self.world.cursors[number] = max(value, self.world.cursors.get(number, 0))

    def on_stall(self, entries: Sequence[Entry], error: DanubeError) -> None:
        self.stalled.append((trio.current_time(), len(entries), error))

    def remote_state(self) -> RemoteState:
        topics = {name: ([number], b"record of " + name.encode()) for name, number in self.names.items()}
        return RemoteState(topics, {}, {}, {number: str(value).encode() for number, value in self.cursors.items()})

    def topic_name(self, topic_id: int) -> str:
        return f"/default/t{topic_id}"

    def producer_name(self, topic_id: int, producer_id: int) -> str:
        return "maker"

    # --- Doing things ---

    def submit(self, entry: Entry) -> Entry:
        self.waiting[entry] = trio.Event()
        try:
            self.journal.submit(entry)
        except DanubeError:
            del self.waiting[entry]
            raise
        return entry

    async def wait(self, entry: Entry) -> None:
        event = self.waiting.get(entry)
        if event is not None:
            await event.wait()
        error = self.errors[entry]
        if error is not None:
            raise error

    async def create_topic(self) -> int:
        self.world.next_id += 1
        topic_id = self.world.next_id
        name = f"/default/t{topic_id}"
        payload = encode_change(TopicStored(name, [topic_id], b"record of " + name.encode()))
        self.names[name] = topic_id  # before the entry: a snapshot must not know less than what has settled
        await self.wait(self.submit(Entry(EntryType.TOPIC, topic_id, Durability.REMOTE, (payload,))))
        self.topics[topic_id] = 0
        return topic_id

    async def delete_topic(self, topic_id: int) -> None:
        name = f"/default/t{topic_id}"
        payload = encode_change(TopicDeleted(name, [topic_id]))
        del self.topics[topic_id], self.names[name]
        self.world.deleted.add(topic_id)  # from now on it need not exist
        await self.wait(self.submit(Entry(EntryType.TOPIC, topic_id, Durability.REMOTE, (payload,))))
        await self.catalogue.drop_topic(topic_id, wall_clock_us())

    def publish(self, topic_id: int, payloads: Sequence[bytes]) -> Entry:
        base = self.topics[topic_id]
        now_us = wall_clock_us()
        part = encode_part(payloads, producer_id=7, producer_epoch=1, base_sequence=base, publish_time_us=now_us)
        header = check_part(part)
        stamp = write_stamp(len(part), topic_id, base, now_us, self.catalogue.epoch)
        batch = StoredBatch(base, base + header.record_count, stamp, part, header, now_us)
        entry = Entry(
            EntryType.BATCH,
            topic_id,
            Durability.REMOTE,
            (stamp, part),
            end_offset=batch.end_offset,
            batch=batch,
            size=STAMP_SIZE + len(part),
        )
        self.submit(entry)
        self.topics[topic_id] = batch.end_offset
        return entry

    def ack(self, subscription: int) -> Entry:
        value = self.cursors[subscription] = self.cursors.get(subscription, 0) + 1
        payload = f"{subscription}={value}".encode()
        return self.submit(Entry(EntryType.CURSOR, 1, Durability.REMOTE, (payload,)))

    async def seal(self, topic_id: int) -> int:
        """Put what only commits hold into a segment; return how many parts went there."""
        old = self.journal.unsealed(topic_id)
        if not old:
            return 0
        builder = SegmentBuilder(SegmentKind.SEGMENT, self.catalogue.epoch, wall_clock_us())
        builder.begin(topic_id, self.topic_name(topic_id))
        offset, end = old[0].part.base_offset, old[-1].part.end_offset
        while offset < end:
            batches = await self.reader.read(topic_id, offset, 2**20)
            if not batches:
                return 0  # deleted in the meantime
            for batch in batches:
                builder.add(batch)
                offset = batch.end_offset
        builder.end({7: "maker"})
        key = object_name(CLUSTER, wall_clock_us(), "b1", self.catalogue.epoch, self.random)
        built = build(key, builder, wall_clock_us())
        await upload(self.storage, built)
        ref = ObjectRef("default", built.key)
        (part,) = built.footer.parts
        if await self.catalogue.replace(old, ref, len(built.data), wall_clock_us(), part):
            return len(old)
        return 0

    async def read_all(self, topic_id: int) -> dict[int, list[bytes]]:
        found: dict[int, list[bytes]] = {}
        offset = 0
        while batches := await self.reader.read(topic_id, offset, 2**20):
            for batch in batches:
                assert batch.base_offset == offset, "a gap, or something twice"
                found[offset] = list(open_records(batch.part, batch.header, 2**30))
                offset = batch.end_offset
        return found

    async def check_promises(self) -> None:
        """Everything that a caller was told is there, and only once."""
        for number, value in self.world.cursors.items():
            assert self.cursors.get(number, 0) >= value, f"cursor {number} went back"
        for topic_id, batches in self.world.acked.items():
            if topic_id in self.world.deleted:
                continue
            found = await self.read_all(topic_id)
            lost = {base: records for base, records in batches.items() if found.get(base) != records}
            assert not lost, f"{self.name}: topic {topic_id} has lost {sorted(lost)} of {sorted(batches)}"

    async def check_promises_patiently(self) -> None:
        """The same, with a network and a reader of its own."""
        clean = MemoryBackend(self.world.space, durable=True)
        storage = Storage(clean, random=self.random, limits=self.limits)
        reader, self.reader = self.reader, SegmentReader(self.catalogue, {"default": storage}, self.limits)
        async with trio.open_nursery() as nursery:
            await nursery.start(self.reader.run)
            await self.check_promises()
            nursery.cancel_scope.cancel()
        self.reader = reader


@asynccontextmanager
async def living(life: Life, *, close: bool = True) -> AsyncIterator[Life]:
    """Let a broker live; in the end it closes, or just stops."""
    await life.claim()
    async with trio.open_nursery() as nursery:
        await nursery.start(life.reader.run)
        await nursery.start(life.journal.run)
        yield life
        if close:
            await life.journal.aclose()
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def world(seed: int = 0) -> AsyncIterator[World]:
    async with trio.open_nursery() as nursery:
        everything = World(Random(seed), nursery)
        await everything.lose_metadata()
        yield everything
        nursery.cancel_scope.cancel()
