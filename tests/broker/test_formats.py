"""Data of other versions: a broker reads it, or refuses it with advice and changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from broker.broker_harness import raw_producer, running_broker

from danube.log.format import FILE_HEADER_SIZE
from danube.metadata import KeyValue
from danube.metadata.raft.inspection import inspect
from danube.model import Limits
from danube.model.batch import PART_HEADER_SIZE, check_part, crc32c, seal_part
from danube.model.errors import DataDirectoryError, UnsupportedBatchError


def of_format(header: bytes, version: int) -> bytes:
    """The header of a journal file, with its two copies, as another version of the format."""
    half = header[: FILE_HEADER_SIZE // 2 - 4]
    half = half[:4] + version.to_bytes(4, "little") + half[8:]
    return 2 * (half + crc32c(half).to_bytes(4, "little"))


def with_journals_of_format(directory: Path, version: int) -> dict[Path, bytes]:
    """Turn the journal of a data directory into one of another version; return what its files contain then."""
    journals = sorted(directory.glob("journal-*.log"))
    assert journals
    for path in journals:
        data = path.read_bytes()
        path.write_bytes(of_format(data, version) + data[FILE_HEADER_SIZE:])
    return {path: path.read_bytes() for path in journals}


async def metadata_in(directory: Path) -> tuple[Sequence[KeyValue], int]:
    """Return all keys in the metadata of a stopped broker, and their revision."""
    async with inspect(directory, Limits()) as found:
        return await found.store.list("/")


@pytest.mark.parametrize(
    ("version", "sentence"),
    [
        (
            2,
            r"has format 2 \(Danube 0\.1\), and this Danube reads format 4 only; nothing was changed: start the Danube",
        ),
        (
            5,
            "has format 5, and this Danube reads format 4 only; nothing was changed: start the Danube",
        ),
    ],
    ids=["0.1", "a later one"],
)
async def test_a_data_directory_of_another_version_is_refused_unchanged(
    tmp_path: Path, version: int, sentence: str
) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        async with client.producer("/default/orders") as producer:
            await producer.send(b"x", key="k")
        directory = Path(running.config.data_directory)
    kept = with_journals_of_format(directory, version)
    known = await metadata_in(directory)
    with pytest.raises(DataDirectoryError, match=sentence):
        async with running_broker(tmp_path):
            raise AssertionError
    assert {path: path.read_bytes() for path in kept} == kept
    assert await metadata_in(directory) == known


def later(part: bytes, *, fields: bytes = b"", flags: int = 0) -> bytes:
    """A part of a later version: with more fields in its header, and more flags."""
    header = check_part(part)
    header = header._replace(header_size=header.header_size + len(fields), flags=header.flags | flags)
    return seal_part(header, fields + part[PART_HEADER_SIZE:-4])


@pytest.mark.virtual
async def test_batches_of_a_later_version_reach_every_consumer(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as running, running.client() as client:
        async with running.channel() as channel, raw_producer(channel, "/default/later") as producer:
            producer.send_part(later(producer.part(0, [b"a", b"b", b"c"]), fields=bytes(9), flags=1 << 30))
            assert await producer.acked() == [(0, 0, 3)]
        await running.restart()
        for kind in ("exclusive", "shared", "key_shared"):
            async with client.consumer("/default/later", subscription=kind, type=kind, start="earliest") as consumer:
                seen: list[bytes] = []
                async for batch in consumer.batches():
                    seen += batch.payloads()
                    if len(seen) == 3:
                        break
            assert seen == [b"a", b"b", b"c"], kind


@pytest.mark.virtual
async def test_a_feature_that_the_broker_does_not_know_ends_the_call(tmp_path: Path) -> None:
    async with (
        running_broker(tmp_path) as running,
        running.channel() as channel,
        raw_producer(channel, "/default/later") as producer,
    ):
        producer.send_part(later(producer.part(0, [b"a"]), flags=0x8000))
        with pytest.raises(UnsupportedBatchError, match="0x8000 stands for a feature that the receiver"):
            await producer.reply()
