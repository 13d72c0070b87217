"""Packing single messages into batches: when a batch is closed, and its contents."""

from __future__ import annotations

from typing import cast

import pytest

from danube.broker.intake.packing import NO_SCHEMA, Packing
from danube.model import Limits
from danube.model.batch import PART_OVERHEAD, CompositeRecord, SchemaRef, open_records
from danube.model.errors import DanubeError, UnavailableError
from danube.model.limits import MIB

Outcome = DanubeError | None


def add(packing: Packing, *payloads: bytes, time_us: int = 1_000, schema: SchemaRef = NO_SCHEMA, size: int = 0) -> None:
    for payload in payloads:
        packing.add(CompositeRecord(payload), time_us, size or len(payload), lambda error: None, schema)


def closed(packing: Packing) -> list[list[CompositeRecord]]:
    return [
        cast("list[CompositeRecord]", list(open_records(batch.part, batch.header, MIB))) for batch in packing.closed
    ]


def payloads(packing: Packing) -> list[list[bytes]]:
    return [[record.payload for record in batch] for batch in closed(packing)]


def test_messages_share_a_batch_until_it_is_closed() -> None:
    packing = Packing(Limits())
    assert not packing.is_open
    add(packing, b"1", b"2")
    assert packing.is_open
    assert not packing.closed
    packing.close()
    assert not packing.is_open
    assert payloads(packing) == [[b"1", b"2"]]


def test_times_are_relative_to_the_first_message_of_the_batch() -> None:
    packing = Packing(Limits())
    add(packing, b"1", time_us=5_000)
    add(packing, b"2", time_us=4_000)
    packing.close()
    add(packing, b"3", time_us=9_000)
    packing.close()
    assert [batch.header.publish_time_us for batch in packing.closed] == [5_000, 9_000]
    assert [[record.publish_delta_us for record in batch] for batch in closed(packing)] == [[0, -1_000], [0]]


def test_a_batch_has_one_schema() -> None:
    packing = Packing(Limits())
    add(packing, b"1")
    add(packing, b"2", schema=SchemaRef(1, 1))
    add(packing, b"3", schema=SchemaRef(1, 1))
    add(packing, b"4", schema=SchemaRef(1, 2))
    packing.close()
    assert payloads(packing) == [[b"1"], [b"2", b"3"], [b"4"]]
    schemas = [(batch.header.schema_id, batch.header.schema_version) for batch in packing.closed]
    assert schemas == [(0, 0), (1, 1), (1, 2)]


def test_a_batch_is_bounded_by_the_number_of_its_messages() -> None:
    packing = Packing(Limits(max_batch_records=2))
    add(packing, b"1", b"2", b"3")
    assert payloads(packing) == [[b"1", b"2"]]


@pytest.mark.parametrize(
    ("size", "limit", "first"),
    [
        (MIB // 2 - 64, 16 * MIB, 2),
        (MIB // 2 - 63, 16 * MIB, 1),
        (2 * MIB, 16 * MIB, 1),
        (936, PART_OVERHEAD + 3_000, 3),
    ],
    ids=["exactly full", "one too many", "too large alone", "by the limit of the broker"],
)
def test_a_batch_is_bounded_by_its_size(size: int, limit: int, first: int) -> None:
    packing = Packing(Limits(max_batch_bytes=limit))
    add(packing, b"1", b"2", b"3", b"4", size=size)
    assert len(payloads(packing)[0]) == first


def test_each_message_is_told_the_outcome_of_its_batch() -> None:
    packing = Packing(Limits(max_batch_records=2))
    told: list[tuple[int, Outcome]] = []
    for number in range(3):

        def tell(error: Outcome, number: int = number) -> None:
            told.append((number, error))

        packing.add(CompositeRecord(b"x"), 0, 1, tell, NO_SCHEMA)
    packing.close()
    error = UnavailableError("full")
    packing.closed.popleft().tell(error)
    assert told == [(0, error), (1, error)]
    packing.closed.popleft().tell(None)
    assert told[2:] == [(2, None)]
