"""Batches and segment objects for the tests of history."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from random import Random

import trio
from trio.testing import MockClock

from danube.history.catalogue import HistoryCatalogue
from danube.history.parts import ObjectRef, TopicHistory
from danube.history.segment import SegmentBuilder, SegmentFooter, SegmentKind
from danube.history.sole_tenure import SoleTenure, TenureRecord
from danube.history.tenure import Tenure
from danube.log import StoredBatch
from danube.metadata import MetadataStore, TableWriter
from danube.metadata._guard import Guard
from danube.model.batch import check_part, encode_part, write_stamp


def make_batch(
    topic_id: int, base: int, payloads: Sequence[bytes], time_us: int = 1000, *, producer_id: int = 1, epoch: int = 1
) -> StoredBatch:
    part = encode_part(payloads, producer_id=producer_id, producer_epoch=1, base_sequence=base, publish_time_us=time_us)
    stamp = write_stamp(len(part), topic_id, base, time_us, epoch)
    header = check_part(part)
    return StoredBatch(base, base + header.record_count, stamp, part, header, time_us)


def make_batches(
    random: Random,
    topic_id: int,
    count: int,
    *,
    base: int = 0,
    time_us: int = 1000,
    sizes: Sequence[int] = (5, 80, 3000),
) -> list[StoredBatch]:
    """Batches that follow each other, of random sizes, appended at times that never go back."""
    batches = []
    for _ in range(count):
        payloads = [random.randbytes(random.choice(sizes)) for _ in range(random.randrange(1, 4))]
        batches.append(make_batch(topic_id, base, payloads, time_us))
        base = batches[-1].end_offset
        time_us += random.choice((0, 1, 700))
    return batches


def build(
    parts: Mapping[int, Iterable[StoredBatch]], *, epoch: int = 1, created_us: int = 77
) -> tuple[bytes, SegmentFooter]:
    """An object with one part for each topic."""
    builder = SegmentBuilder(SegmentKind.SEGMENT, epoch, created_us)
    for topic_id, batches in parts.items():
        builder.begin(topic_id, f"/default/t{topic_id}")
        for batch in batches:
            builder.add(batch)
        builder.end({1: "maker"})
    data, footer = builder.finish()
    return bytes(data), footer


def same(found: Iterable[StoredBatch], expected: Iterable[StoredBatch]) -> bool:
    """Whether two runs of batches are equal, byte for byte."""
    return [_identity(batch) for batch in found] == [_identity(batch) for batch in expected]


def _identity(batch: StoredBatch) -> tuple[object, ...]:
    return batch.base_offset, batch.end_offset, batch.stamp, batch.part, batch.header, batch.append_time_us


def run_virtual(work: Callable[..., Awaitable[None]], *arguments: object) -> None:
    """Run an async function under a clock that jumps; Hypothesis makes Trio's scheduler repeatable."""
    trio.run(work, *arguments, clock=MockClock(autojump_threshold=0))


async def claim(store: MetadataStore, incarnation: str = "one", at_least: int = 1) -> HistoryCatalogue:
    """The catalogue of a broker that owns everything, in a new life."""
    return await HistoryCatalogue.open(store, await SoleTenure.begin(store, at_least=at_least), incarnation)


async def reload(store: MetadataStore, tenure: Tenure | None = None) -> HistoryCatalogue:
    """What the store has, without becoming its owner."""
    life = SoleTenure(store, "b1", TenureRecord(1, 1), 0)
    catalogue = HistoryCatalogue(store, tenure or life, TableWriter(store, Guard("/none", 1, 0)), "", life)
    await catalogue.load()
    return catalogue


def check_counts(catalogue: HistoryCatalogue) -> None:
    references = Counter(record.ref for record in catalogue.all_parts())
    live: Counter[ObjectRef] = Counter()
    for record in catalogue.all_parts():
        live[record.ref] += record.part.size_bytes
    for ref, found in catalogue.objects.items():
        assert found.references == references.pop(ref, 0)
        assert found.live_bytes == live.pop(ref, 0)
        assert found.references > 0
    assert not references
    assert not catalogue.objects.keys() & catalogue.garbage.keys()
    for topic in catalogue.topics.values():
        bounds = [bound for record in topic.parts for bound in (record.part.base_offset, record.part.end_offset)]
        assert bounds == sorted(bounds)
        assert topic.end_offset == (bounds[-1] if bounds else 0)


async def check_catalogue(store: MetadataStore, catalogue: HistoryCatalogue) -> None:
    """Memory and store agree, and the counts are right."""
    check_counts(catalogue)
    stored = await reload(store)
    assert stored.objects == catalogue.objects
    assert stored.garbage == catalogue.garbage
    for topic_id in stored.topics.keys() | catalogue.topics.keys():
        ours, theirs = catalogue.find(topic_id) or TopicHistory(), stored.find(topic_id) or TopicHistory()
        assert theirs.parts == ours.parts
        assert theirs.start_offset == ours.start_offset
