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
from typing import Final, NamedTuple, TypeVar

import trio

from danube.history.catalogue import HistoryCatalogue
from danube.history.manifest import Bucket, read_bucket
from danube.history.objects import segment_prefix
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
from danube.model.errors import DataLossError, StorageNotFoundError
from danube.model.limits import KIB, MIB
from danube.storage import Storage

__all__ = ["Chain", "FoundObject", "Survey", "enter", "survey_bucket", "survey_topics", "verify_chains"]

T = TypeVar("T")

_TAIL_BYTES: Final = 64 * KIB
_AT_ONCE: Final = 8
"""Number of objects read concurrently."""


class FoundObject(NamedTuple):
    """An object in the bucket."""

    key: str
    size_bytes: int
    footer: SegmentFooter


class Chain(NamedTuple):
    """The restorable parts of one topic or partition."""

    topic_id: int
    start_offset: int
    end_offset: int
    parts: list[tuple[str, SegmentPart]]
    """Keys and parts, in the order of their offsets."""
    unlisted: int
    """Number of these parts that no manifest mentions."""
    gap: tuple[str, SegmentPart] | None
    """The first part after a gap; None if there is none."""


class Survey:
    """Result of surveying a bucket. Created by :func:`survey_bucket`.

    Attributes:
        bucket: contents of the manifests.
        objects: by key; those that have passed the checks made so far.
        damage: by topic id: data listed in the manifests and missing in the bucket.
        broken: objects that no manifest mentions and that are not valid segments: key and reason.
    """

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self.objects: dict[str, FoundObject] = {}
        self.damage: dict[int, list[str]] = {}
        self.broken: list[tuple[str, str]] = []
        self._unlisted: dict[int, list[tuple[str, SegmentPart]]] = {}

    def note_unlisted(self) -> None:
        """Add the parts of objects that no manifest mentions."""
        needed = self.bucket.objects()
        for key, found in self.objects.items():
            if key not in needed:
                for part in found.footer.parts:
                    self._unlisted.setdefault(part.topic_id, []).append((key, part))

    def found_names(self) -> dict[int, str]:
        """Return ids and names of topics that appear only in footers.

        A topic that is missing in the manifests, although they are newer than its objects, was deleted; it is not
        included.
        """
        return {
            topic_id: self.objects[key].footer.names[topic_id]
            for topic_id, parts in self._unlisted.items()
            for key, _ in parts
            if self.objects[key].footer.created_us > self.bucket.created_us
        }

    def chain(self, topic_id: int) -> Chain:
        """Return the restorable parts of a topic."""
        listed = [part for _, part in sorted(self.bucket.parts.get(topic_id, {}).items())]
        parts = list(listed)
        start = self.bucket.starts.get(topic_id, 0)
        spare = [(key, part) for key, part in self._unlisted.get(topic_id, ()) if part.end_offset > start]
        if not parts and not start:
            start = min((part.base_offset for _, part in spare), default=0)
        end = max([start, *(part.end_offset for _, part in parts)])
        epoch = max((part.epoch for _, part in parts), default=0)
        while True:
            # Of two parts that begin here, prefer the later owner's; of one owner's parts, the merged one.
            fitting = [(key, part) for key, part in spare if part.base_offset == end and part.epoch >= epoch]
            if not fitting:
                break
            taken = max(fitting, key=lambda one: (one[1].epoch, one[1].end_offset))
            parts.append(taken)
            end, epoch = taken[1].end_offset, taken[1].epoch
        gap = min(
            ((key, part) for key, part in spare if part.base_offset > end),
            key=lambda one: one[1].base_offset,
            default=None,
        )
        return Chain(topic_id, start, end, parts, len(parts) - len(listed), gap)

    def note_damage(self, parts: Iterable[SegmentPart], what: str) -> None:
        """Record that parts are damaged."""
        for part in parts:
            self.damage.setdefault(part.topic_id, []).append(f"offsets [{part.base_offset}, {part.end_offset}): {what}")


async def survey_bucket(storage: Storage, cluster: str) -> Survey:
    """Survey a bucket: manifests, the listing, and the footer of every object.

    Raises:
        DataLossError: a manifest is damaged or missing.
        StorageError: the backend cannot be read.
    """
    survey = Survey(await read_bucket(storage, cluster))
    await _survey_objects(survey, storage, cluster, _listed_parts(survey.bucket, survey.bucket.parts), unlisted=True)
    survey.broken.sort()
    survey.note_unlisted()
    return survey


async def survey_topics(storage: Storage, cluster: str, bucket: Bucket, topic_ids: Iterable[int]) -> Survey:
    """Survey only the objects that given manifests list for some topics.

    Raises:
        StorageError: the backend cannot be read.
    """
    survey = Survey(bucket)
    await _survey_objects(survey, storage, cluster, _listed_parts(bucket, topic_ids), unlisted=False)
    return survey


def _listed_parts(bucket: Bucket, topic_ids: Iterable[int]) -> dict[str, list[SegmentPart]]:
    """Return the listed parts of topics by object."""
    listed: dict[str, list[SegmentPart]] = {}
    for topic_id in topic_ids:
        for key, part in bucket.parts.get(topic_id, {}).values():
            listed.setdefault(key, []).append(part)
    return listed


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
