"""Restores history from a bucket whose broker's metadata is lost: surveys it, and enters it into a catalogue.

The manifests describe the contents (:func:`danube.history.manifest.read_bucket`). A survey checks two more things:
whether all of it exists (each object is listed, and its footer describes the same parts), and whether there are objects
that no manifest lists, because their owner died before it wrote the manifest. Objects describe themselves, so such a
part is accepted, too, if it continues its topic without a gap::

    manifests      [0 ... 400) [400 ... 700)
    footers        [0 ... 400) [400 ... 700) [700 ... 820)   [900 ... 950)
                                              taken            a gap: left out, and named

Parts that overlap known ones were merged, or written by a former owner, and are silently left out.
Without any manifest, only footers are used.

A *survey* changes nothing. :func:`enter` writes its result into a catalogue, and may be repeated after an
interruption. Ownership of the bucket changes at the very end, with a manifest of its new owner.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

import trio

from danube.history.catalogue import HistoryCatalogue
from danube.history.manifest import read_bucket
from danube.history.manifest_format import Bucket
from danube.history.packing import segment_prefix
from danube.history.parts import ObjectRef, PartRecord
from danube.history.segment import (
    TRAILER_SIZE,
    SegmentFooter,
    SegmentPart,
    extend_crc,
    read_footer,
    read_index,
    read_trailer,
)
from danube.history.survey import Chain, FoundObject, Survey, promised_parts
from danube.model.errors import DataLossError, StorageNotFoundError
from danube.model.ids import TopicId
from danube.model.limits import KIB, MIB
from danube.storage import Storage

__all__ = ["enter", "survey_bucket", "survey_topics", "verify_chains"]

T = TypeVar("T")

_TAIL_BYTES: Final = 64 * KIB
_AT_ONCE: Final = 8
"""Number of objects read concurrently."""


async def survey_bucket(storage: Storage, cluster: str) -> Survey:
    """Survey a bucket: manifests, the listing, and the footer of every object.

    Raises:
        DataLossError: a manifest is damaged or missing.
        StorageError: the backend cannot be read.
    """
    survey = Survey(await read_bucket(storage, cluster))
    await _survey_objects(survey, storage, cluster, promised_parts(survey.bucket, survey.bucket.parts), unlisted=True)
    survey.broken.sort()
    survey.note_unlisted()
    return survey


async def survey_topics(storage: Storage, cluster: str, bucket: Bucket, topic_ids: Iterable[TopicId]) -> Survey:
    """Survey only the objects that given manifests list for some topics.

    Raises:
        StorageError: the backend cannot be read.
    """
    survey = Survey(bucket)
    await _survey_objects(survey, storage, cluster, promised_parts(bucket, topic_ids), unlisted=False)
    return survey


async def _survey_objects(
    survey: Survey, storage: Storage, cluster: str, listed: Mapping[str, list[SegmentPart]], *, unlisted: bool
) -> None:
    """Read the footers of the listed objects, and of all others if ``unlisted``."""
    if not listed and not unlisted:
        return
    sizes = {
        item.key: item.size_bytes async for page in storage.list_all(segment_prefix(cluster)) for item in page.objects
    }

    async def look(key: str) -> None:
        wanted = listed.get(key, ())
        if key not in sizes:
            survey.note_damage(wanted, f"{storage.url}/{key} is missing")
            return
        try:
            footer = await _read_footer(storage, key, sizes[key])
        except (DataLossError, StorageNotFoundError) as error:
            survey.note_damage(wanted, str(error))
            if not wanted:
                survey.broken.append((key, str(error)))
            return
        survey.objects[key] = FoundObject(key, sizes[key], footer)
        different = [part for part in wanted if part not in footer.parts]
        survey.note_damage(different, f"{storage.url}/{key} has other contents")

    await _for_each(sorted(listed.keys() | sizes.keys() if unlisted else listed), look)


async def verify_chains(storage: Storage, survey: Survey, chains: Iterable[Chain], *, deep: bool) -> None:
    """Compare checksums and record damage: of all parts if ``deep``, else of those that no manifest lists.

    Raises:
        StorageError: the backend cannot be read.
    """
    wanted = [
        (key, part)
        for chain in chains
        for key, part in (chain.parts if deep else chain.parts[len(chain.parts) - chain.unlisted :])
        if key in survey.objects  # else its damage is known
    ]

    async def verify(each: tuple[str, SegmentPart]) -> None:
        key, part = each
        where = f"{storage.url}/{key}"
        try:
            crc = 0
            for at in range(part.start, part.end, MIB):
                crc = extend_crc(crc, await storage.get(key, at, min(at + MIB, part.end)))
            read_index(await storage.get(key, part.index_start, part.index_end), part, where)
        except (DataLossError, StorageNotFoundError) as error:
            survey.note_damage([part], str(error))
            return
        if crc != part.crc:
            survey.note_damage([part], f"the bytes [{part.start}, {part.end}) of {where} do not match their checksum")

    await _for_each(wanted, verify)


async def _read_footer(storage: Storage, key: str, size: int) -> SegmentFooter:
    where = f"{storage.url}/{key}"
    tail = await storage.get(key, max(0, size - _TAIL_BYTES), size)
    trailer = read_trailer(tail, where)
    end = trailer.footer_start + trailer.footer_length
    if end + TRAILER_SIZE != size:
        raise DataLossError(f"{where}: has {size} bytes instead of {end + TRAILER_SIZE}")
    if trailer.footer_length + TRAILER_SIZE <= len(tail):
        encoded = tail[-TRAILER_SIZE - trailer.footer_length : -TRAILER_SIZE]
    else:
        encoded = await storage.get(key, trailer.footer_start, end)
    return read_footer(encoded, trailer, where)


async def _for_each(items: Sequence[T], work: Callable[[T], Awaitable[None]]) -> None:
    """Process items concurrently, a few at a time."""
    left = iter(items)

    async def take_turns() -> None:
        for item in left:
            await work(item)

    try:
        async with trio.open_nursery() as nursery:
            for _ in range(min(_AT_ONCE, len(items))):
                nursery.start_soon(take_turns)
    except BaseExceptionGroup as group:
        failed = group.split(trio.Cancelled)[1]
        if failed is None:
            raise
        raise _first(failed) from None


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def enter(
    catalogue: HistoryCatalogue, storage: str, survey: Survey, chains: Sequence[Chain], now_us: int
) -> None:
    """Enter a survey's result into a catalogue, which then has exactly these parts of the wanted topics.

    Other parts of these topics, from an interrupted attempt or an earlier ownership, are removed, because the last
    owner of the bucket has merged them and may have deleted their objects.

    Args:
        catalogue: of the new owner.
        storage: name of the storage with the bucket.
        survey, chains: the survey, and the parts to enter. Objects that also hold data of other topics are rewritten
            later.
        now_us: wall clock.

    Raises:
        OwnerFencedError: another broker owns the history now.
        MetadataConflictError: other data is sealed under the same topic id.
    """
    wanted = {chain.topic_id for chain in chains}
    by_object: dict[str, list[SegmentPart]] = {}
    for chain in chains:
        known = catalogue.find(chain.topic_id)
        present = {} if known is None else {record.part.base_offset: record for record in known.parts}
        wanted_parts = {part.base_offset: PartRecord(storage, key, part) for key, part in chain.parts}
        stale = [record for base, record in present.items() if wanted_parts.get(base) != record]
        await catalogue.withdraw(chain.topic_id, stale, now_us)
        for key, part in chain.parts:
            if present.get(part.base_offset) != wanted_parts[part.base_offset]:
                by_object.setdefault(key, []).append(part)
    for key, parts in sorted(by_object.items()):
        found = survey.objects[key]
        foreign = any(part.topic_id not in wanted for part in found.footer.parts)
        await catalogue.enter(
            ObjectRef(storage, key), found.size_bytes, found.footer.created_us, parts, tainted=foreign
        )
    for chain in chains:
        if chain.start_offset:
            await catalogue.expire(chain.topic_id, chain.start_offset, now_us)
