"""What the manifests of a lost broker say about the cursors of its subscriptions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import trio

from danube.broker.moving.told_cursors import ToldCursors
from danube.cluster.gaps import GapRecord, GapState
from danube.dispatch import Cursor, decode_entry, encode_entry
from danube.history.manifest import ManifestLog
from danube.history.manifest_format import Stream
from danube.history.parts import PartRecord
from danube.history.segment import SegmentPart
from danube.model import Limits, SubscriptionType
from danube.model.errors import StorageUnavailableError
from danube.model.ids import BrokerId
from danube.model.records import SubscriptionRecord
from danube.storage import MemoryBackend, MemorySpace, Storage

pytestmark = pytest.mark.virtual

TOPIC = 7
ROW = SubscriptionRecord(99, SubscriptionType.SHARED, 0, 1)
NEXT = 21 << 24
"""The first epoch of the new owner."""


class Backend(MemoryBackend):
    """Refuses to list, or never answers, if it is told to."""

    refuses = False
    hangs = False

    async def list(self, *arguments: Any, **options: Any) -> Any:
        if self.hangs:
            await trio.sleep_forever()
        if self.refuses:
            raise StorageUnavailableError("not now")
        return await super().list(*arguments, **options)


def part(base: int, end: int) -> SegmentPart:
    return SegmentPart(TOPIC, base, end, 1, 2, 3, 32, 99, 7, 100, 1, 8, 1)


def cursor_of(floor: int, *acked: tuple[int, int]) -> bytes:
    cursor = Cursor(floor)
    for start, end in acked:
        cursor.ack(start, end)
    return encode_entry(cursor.snapshot(ROW.subscription_id))


def gap(start: int, end: int, state: GapState = GapState.OPEN) -> GapRecord:
    return GapRecord(start=start, end=end, broker=BrokerId(2), since_s=1.0, state=state)


class Room:
    """A storage with manifests, and what a new owner asks of them."""

    def __init__(self) -> None:
        self.backend = Backend(MemorySpace(), url="memory://box", shared=True)
        self.storage = Storage(self.backend, random=Random(1), limits=Limits(storage_max_attempts=1))
        self.history = SimpleNamespace(storages={"box": self.storage}, catalogue=SimpleNamespace(find=lambda _: None))
        runtime = SimpleNamespace(limits=Limits(), config=SimpleNamespace(cluster="c"))
        directory: Any = SimpleNamespace(history=self.history, runtime=runtime)
        self.waiting = {TOPIC: None}
        self.told = ToldCursors(directory, self.waiting.keys())

    async def tell(
        self,
        broker: str,
        epoch: int,
        parts: Iterable[SegmentPart],
        cursor: bytes | None,
        record: bytes | None = None,
        *,
        topics: Sequence[int] = (TOPIC,),
    ) -> None:
        row = record if record is not None else msgspec.msgpack.encode(ROW)
        subscriptions = {topic: {"s": (row, cursor)} for topic in topics} if cursor is not None else {}
        records = [PartRecord("box", f"{broker}-{number}", each) for number, each in enumerate(parts)]
        log = ManifestLog(
            self.storage,
            "c",
            Stream("one", broker),
            1,
            lambda: (records, {}, {}, subscriptions),
            lambda: 5,
            lambda topics: dict.fromkeys(topics, epoch),
            lambda _: {},
        )
        log.note()
        await log.flush()

    async def ask(self, *gaps: GapRecord, storage: str = "box", topic: int = TOPIC) -> list[Cursor]:
        found = []
        for snapshot in await self.told.of_topic(topic, storage, NEXT, {"s": ROW}, gaps):
            found.append(Cursor(0))
            found[-1].apply(decode_entry(snapshot))
        return found


async def test_the_last_owner_before_this_one_counts() -> None:
    """The new owner may have written a snapshot already, and an earlier owner knows less."""
    room = Room()
    await room.tell("b1", 19 << 24 | 3, [part(0, 40)], cursor_of(5))
    await room.tell("b2", 20 << 24 | 1, [part(0, 50)], cursor_of(30))
    await room.tell("b3", NEXT | 4, [part(0, 50)], None)
    (cursor,) = await room.ask(gap(50, 1 << 40))
    assert cursor.floor == 30


async def test_nothing_counts_beyond_what_the_manifest_lists() -> None:
    """Of durability os, offsets beyond it may stand for other messages since a power loss."""
    room = Room()
    await room.tell("b2", 20 << 24, [part(0, 20)], cursor_of(10, (15, 25), (30, 35)))
    (cursor,) = await room.ask(gap(40, 1 << 40))
    assert (cursor.floor, cursor.live(0, 40)) == (10, [(10, 15), (20, 40)])
    (cursor,) = await room.ask(gap(17, 1 << 40))
    assert cursor.live(0, 40) == [(10, 15), (17, 40)]


async def test_earlier_gaps_that_are_settled_count_as_acknowledged() -> None:
    room = Room()
    await room.tell("b2", 20 << 24, [part(0, 10), part(20, 50)], cursor_of(10))
    history = SimpleNamespace(
        parts=[PartRecord("box", "x", each) for each in (part(0, 10), part(14, 16), part(20, 50))]
    )
    room.history.catalogue.find = lambda _: history
    (cursor,) = await room.ask(gap(10, 20, GapState.FORGOTTEN), gap(50, 1 << 40))
    assert cursor.live(0, 60) == [(14, 16), (20, 60)], "what was found of the gap is delivered"
    (cursor,) = await room.ask(gap(10, 20), gap(50, 1 << 40))
    assert cursor.live(0, 60) == [(10, 60)], "an open one is waited for"


async def test_what_cannot_be_decoded_and_other_subscriptions_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    room = Room()
    await room.tell("b2", 20 << 24, [part(0, 50)], b"\x00")
    assert await room.ask(gap(50, 1 << 40)) == []
    assert "cannot be decoded" in caplog.text
    room = Room()
    other = msgspec.structs.replace(ROW, subscription_id=98)
    await room.tell("b2", 20 << 24, [part(0, 50)], cursor_of(30), msgspec.msgpack.encode(other))
    assert await room.ask(gap(50, 1 << 40)) == []
    assert await room.ask(gap(50, 1 << 40), storage="unknown") == []


@pytest.mark.parametrize("trouble", ["refuses", "hangs"])
async def test_a_storage_that_does_not_answer_is_given_up(trouble: str, caplog: pytest.LogCaptureFixture) -> None:
    """After half a minute; one that answers before is read."""
    room = Room()
    await room.tell("b2", 20 << 24, [part(0, 50)], cursor_of(30))
    setattr(room.backend, trouble, True)
    began = trio.current_time()
    if trouble == "refuses":
        with pytest.raises(StorageUnavailableError):
            await room.ask(gap(50, 1 << 40))
        await trio.sleep(5)
        room.backend.refuses = False
        assert [each.floor for each in await room.ask(gap(50, 1 << 40))] == [30]
        room.told.clear()
        room.backend.refuses = True
    failures = 0
    began = trio.current_time()
    while True:
        try:
            assert await room.ask(gap(50, 1 << 40)) == []
            break
        except StorageUnavailableError:
            failures += 1
            await trio.sleep(0.25)
    assert 29 < trio.current_time() - began < 32
    assert failures > 10 if trouble == "refuses" else failures == 0
    assert "begin where they were created" in caplog.text
    assert await room.ask(gap(50, 1 << 40)) == [], "it is not asked again"
    room.waiting[8] = None
    setattr(room.backend, trouble, False)
    assert await room.ask(gap(50, 1 << 40)) == []


OTHER = 9


async def test_a_storage_that_answered_long_ago_is_waited_for_as_long_again() -> None:
    """Topics of another lost broker come to wait while earlier ones are still being served."""
    room = Room()
    await room.tell("b2", 20 << 24, [part(0, 50)], cursor_of(30), topics=[TOPIC, OTHER])
    assert [each.floor for each in await room.ask(gap(50, 1 << 40))] == [30]
    await trio.sleep(31)
    room.waiting[OTHER] = None
    room.backend.refuses = True
    with pytest.raises(StorageUnavailableError):
        await room.ask(gap(50, 1 << 40), topic=OTHER)
    assert [each.floor for each in await room.ask(gap(50, 1 << 40))] == [30], "it was read before"
    await trio.sleep(29)
    room.backend.refuses = False
    assert len(await room.ask(gap(50, 1 << 40), topic=OTHER)) == 1


@pytest.mark.parametrize("trouble", ["refuses", "hangs"])
async def test_what_was_read_before_stays_when_a_storage_is_given_up(trouble: str) -> None:
    room = Room()
    await room.tell("b2", 20 << 24, [part(0, 50)], cursor_of(30), topics=[TOPIC, OTHER])
    assert [each.floor for each in await room.ask(gap(50, 1 << 40))] == [30]
    setattr(room.backend, trouble, True)
    began, given_up = trio.current_time(), []
    for topic in (OTHER, OTHER + 1, OTHER + 2):
        room.waiting[topic] = None
        while True:
            try:
                assert await room.ask(gap(50, 1 << 40), topic=topic) == []
                break
            except StorageUnavailableError:
                await trio.sleep(0.25)
        given_up.append(trio.current_time() - began)
    assert [each.floor for each in await room.ask(gap(50, 1 << 40))] == [30]
    assert 29 < given_up[0] < 32
    assert given_up[2] < 35, "once it was given up, later topics do not wait as long again"
    setattr(room.backend, trouble, False)
    for topic in (OTHER + 3, OTHER + 4):
        room.waiting[topic] = None
        assert await room.ask(gap(50, 1 << 40), topic=topic) == []
        assert [each.floor for each in await room.ask(gap(50, 1 << 40))] == [30], "it answers, and is believed again"
    setattr(room.backend, trouble, True)
    room.waiting[OTHER + 5] = None
    began = trio.current_time()
    with trio.move_on_after(25) as scope:
        while True:
            try:
                await room.ask(gap(50, 1 << 40), topic=OTHER + 5)
                break
            except StorageUnavailableError:
                await trio.sleep(0.25)
    assert scope.cancelled_caught, "and waited for as long as before"
