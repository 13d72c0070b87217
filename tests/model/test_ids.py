"""Ids, epochs and offsets: the type checker tells them apart, and at run time they are ints.

mypy checks this module, too (``files`` in pyproject.toml). Each ``type: ignore`` stands behind a mistake that it must
find: if it does not, the comment is unused, which is an error as well.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import assert_type

import msgspec

from danube.log import TopicIndex
from danube.log.recovered import ProducedBatch
from danube.model import Durability, api
from danube.model.batch import Stamp, read_stamp, write_stamp
from danube.model.ids import FIRST_OFFSET, Offset, OwnerEpoch, ProducerEpoch, ProducerId, TopicId

TOPIC, PRODUCER = TopicId(0x1234), ProducerId(7)
SESSION, OWNER = ProducerEpoch(3), OwnerEpoch(2)
OFFSET = Offset(1000)
ROOT = Path(__file__).parents[2]


def test_a_topic_id_or_a_number_passed_as_an_offset_is_a_type_error() -> None:
    index = TopicIndex()
    index.add(OFFSET, 1, 4096, 1_000_000, 200)
    index.find(OFFSET)
    index.find(TOPIC)  # type: ignore[arg-type]
    index.find(len("seven"))  # type: ignore[arg-type]
    index.find(OFFSET - FIRST_OFFSET)  # type: ignore[arg-type]
    write_stamp(100, TOPIC, OFFSET, 0, OWNER)
    write_stamp(100, OFFSET, TOPIC, 0, OWNER)  # type: ignore[arg-type]


def test_ids_of_one_kind_passed_for_another_are_type_errors() -> None:
    api.PublishOpened(TOPIC, PRODUCER, SESSION, 5, Durability.DISK, 100, 10)
    api.PublishOpened(PRODUCER, TOPIC, SESSION, 5, Durability.DISK, 100, 10)  # type: ignore[arg-type]
    api.PublishOpened(TOPIC, PRODUCER, OWNER, 5, Durability.DISK, 100, 10)  # type: ignore[arg-type]
    write_stamp(100, TOPIC, OFFSET, 0, SESSION)  # type: ignore[arg-type]
    ProducedBatch(OWNER, 5, 10, OFFSET, 0)  # type: ignore[arg-type]
    ProducedBatch(SESSION, 5, 10, 1000, 0)  # type: ignore[arg-type]


def test_offsets_have_arithmetic_and_ids_have_none() -> None:
    count = 10
    assert_type(OFFSET + count, Offset)
    assert_type(count + OFFSET, Offset)
    assert_type(OFFSET - count, Offset)
    assert_type(OFFSET - FIRST_OFFSET, int)
    assert_type(max(OFFSET, FIRST_OFFSET), Offset)
    assert_type(TOPIC + 1, int)
    assert_type(OWNER + 1, int)


def test_at_run_time_they_are_ints() -> None:
    number = 2**40
    assert TopicId(number) is number
    assert Offset is int
    opened = api.PublishOpened(TOPIC, PRODUCER, SESSION, 5, Durability.DISK, 100, 10)
    encoded = msgspec.msgpack.encode(opened)
    assert encoded == msgspec.msgpack.encode([0, 0x1234, 7, 3, 5, "disk", 100, 10])
    decoded = msgspec.msgpack.decode(encoded, type=api.PublishOpened)
    assert decoded == opened
    assert {type(each) for each in (decoded.topic_id, decoded.producer_id, decoded.epoch)} == {int}
    stamp = read_stamp(write_stamp(100, TOPIC, OFFSET, 4, OWNER))
    assert stamp == Stamp(148, TOPIC, OFFSET, 4, OWNER, 0)
    assert set(map(type, stamp)) == {int}


def test_the_type_checker_reads_this_module_and_refuses_comments_that_excuse_nothing() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["mypy"]
    assert str(Path(__file__).relative_to(ROOT)) in settings["files"]
    assert settings["strict"]
    assert settings.get("warn_unused_ignores", True)
