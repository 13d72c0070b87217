"""The memory that a broker takes for a topic of another broker."""

from __future__ import annotations

import gc
import random
import tracemalloc

import msgspec
import pytest
from broker.catalogue.test_catalogue import loaded

from danube.cluster.records import ASSIGNMENTS, Assignment, topic_key
from danube.metadata import MemoryStore, Put
from danube.model import Durability
from danube.model.ids import BrokerId, OwnerEpoch, TopicId
from danube.model.records import TopicRecord
from danube.testing.metadata import FaultyMetadataStore

pytestmark = pytest.mark.virtual

TOPICS = 20_000
MOST_BYTES = 340
"""Per topic. About 300 are measured: two entries of dicts, two keys, and two encoded records with their revisions."""


async def test_the_view_of_many_topics_is_small() -> None:
    encode, chance = msgspec.msgpack.encode, random.Random(1)
    async with FaultyMetadataStore(MemoryStore(), random.Random(1)) as store:
        puts = []
        for number in range(TOPICS):
            topic_id = TopicId(chance.getrandbits(63))
            record = TopicRecord(Durability.DISK, 0, [topic_id], 1_700_000_000_000_000 + number)
            assignment = Assignment(BrokerId(number % 3 + 2), OwnerEpoch(1))
            puts.append(Put(f"/topics/default/measured-{number:06}", encode(record)))
            puts.append(Put(ASSIGNMENTS + topic_key(topic_id), encode(assignment)))
        for begin in range(0, len(puts), 100):
            await store.transact([], puts[begin : begin + 100])
        del puts
        gc.collect()
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            catalogue = await loaded(store)
            gc.collect()
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert len(list(catalogue.topics())) == len(catalogue.membership.assignments.values) == TOPICS
        assert (after - before) / TOPICS <= MOST_BYTES
