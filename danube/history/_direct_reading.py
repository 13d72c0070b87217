"""The decisions of direct reading: from spans and pieces of objects to verified batches.

Pure: the bytes come from a :class:`PieceLoop`.

* A request is cut down to the offsets that its parts hold; what is empty is left out.
* Batches are cut out of pieces of any size; only a batch across the edge of two pieces is copied.
* Every batch must follow the one before it, and the last one of a range must be there. Damage outside of the requested
  range is ignored: these bytes were fetched only because small parts are read whole.
* Bytes that fail verification are fetched once more, from the last good batch on, before the damage is reported.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from danube.history.parts import from_log_part
from danube.history.segment import SegmentPart, cut_batches
from danube.log.cache import StoredBatch
from danube.model.batch import STAMP_SIZE
from danube.model.errors import (
    CorruptBatchError,
    DataLossError,
    StorageDeniedError,
    StorageNotFoundError,
    StorageRangeError,
)
from danube.model.ids import Offset, ProducerId
from danube.model.limits import MIB
from danube.model.query_api import LogParts, RawBatch

__all__ = [
    "DirectPart",
    "Piece",
    "PieceLoop",
    "PieceRun",
    "Span",
    "batches_of",
    "cut_range",
    "denied",
    "direct_parts",
    "first_since",
]

_PIECE_BYTES: Final = 4 * MIB
"""Minimum size of a piece, unless the range is smaller; pieces are less than twice as large."""


class DirectPart(msgspec.Struct, frozen=True, array_like=True):
    """A run of sealed batches in one object. Small and picklable; contains no secrets of the storage."""

    topic: str
    """Name of the plain topic or partition."""
    storage: str
    """Name of the storage that holds the object."""
    object: str
    """Key of the object."""
    object_bytes: int
    """Size of the object; 0 if unknown."""
    part: SegmentPart


class Span(NamedTuple):
    """A range of offsets that one part holds."""

    part: DirectPart
    start: Offset
    end: Offset

    @property
    def is_whole(self) -> bool:
        """Whether it covers the whole part."""
        return self.start <= self.part.part.base_offset and self.end >= self.part.part.end_offset


class Piece(NamedTuple):
    """Consecutive bytes of a span."""

    number: int
    """Number of the span."""
    position: int
    """Position of the first byte in the object."""
    data: bytes
    is_last: bool
    """Whether this is the last piece of its span."""
    producers: dict[ProducerId, str]
    """Names of producers by id, from the object's footer; empty if not requested."""


class PieceRun(Protocol):
    """One pass over spans, which fetches ahead."""

    def next(self) -> Awaitable[Piece | None]:
        """Return the next piece; None after the last one."""
        ...


class PieceLoop(Protocol):
    """Fetches pieces of objects, for a caller that blocks."""

    def start(self, spans: Sequence[Span], skip_to: int, producers: bool, careful: bool, /) -> PieceRun:
        """Start a run; see :class:`danube.history._direct_run.DirectRun` for the arguments."""
        ...

    def call(self, function: Callable[[], Awaitable[Piece | None]], /) -> Piece | None:
        """Wait for the next piece of a run."""
        ...

    def stop(self, run: Any, /) -> None:
        """End a run, without waiting for it."""
        ...


def cut_range(start: int, end: int) -> list[tuple[int, int]]:
    """Cut a range of bytes into pieces of about the same size: 4 MiB to 8 MiB, unless the range is smaller."""
    count = max(1, (end - start) // _PIECE_BYTES)
    edges = [start + (end - start) * number // count for number in range(count + 1)]
    return list(pairwise(edges))


def direct_parts(found: LogParts) -> list[DirectPart]:
    """Return the parts from a broker's answer, for reading them directly."""
    return [
        DirectPart(found.topic, part.storage, part.object, part.object_bytes, from_log_part(found.topic_id, part))
        for part in found.parts
    ]


def batches_of(
    loop: PieceLoop, url: str, spans: Iterable[tuple[DirectPart, int, int]], producers: bool
) -> Iterator[RawBatch]:
    """Yield the batches of parts that overlap the given ranges; see :meth:`DirectStorage.read_all`.

    Args:
        loop: fetches the pieces.
        url: of the storage, without secrets, for error messages.
        spans, producers: as there.
    """
    wanted = [
        Span(part, max(Offset(start), part.part.base_offset), min(Offset(end), part.part.end_offset))
        for part, start, end in spans
    ]
    return _read(loop, url, [span for span in wanted if span.start < span.end], producers)


def first_since(found: LogParts, time_us: int, read: Callable[[DirectPart], Iterator[RawBatch]]) -> Offset:
    """Return the first offset within ``found`` appended at or after a time; its end if there is none.

    At most one part is read: the one whose times include the wanted one.

    Args:
        found: the parts.
        time_us: microseconds since the epoch.
        read: yields the batches of a part within ``found``.
    """
    for part in direct_parts(found):
        if part.part.last_time_us < time_us:
            continue
        if part.part.first_time_us >= time_us:
            return max(found.start, part.part.base_offset)
        for batch in read(part):
            if batch.append_time_us >= time_us:
                return max(found.start, batch.base_offset)
    return found.end


def denied(error: StorageDeniedError, url: str) -> StorageDeniedError:
    """Return a refusal of the storage with the remedy."""
    return StorageDeniedError(
        f"{error.message}; give this process credentials that may read and list the objects below {url}"
    )


def _read(loop: PieceLoop, url: str, spans: Sequence[Span], producers: bool) -> Iterator[RawBatch]:
    """Yield the batches of spans; read again from where bytes were damaged, once for each place."""
    place = _Place()
    damaged_at = (-1, -1)
    careful = False
    while place.number < len(spans):
        run = loop.start(spans[place.number :], place.position, producers, careful)
        try:
            yield from _decode(loop, run, spans, place)
            return
        except CorruptBatchError as error:
            where = (place.number, place.position)
            if where == damaged_at:
                raise _lost(url, spans[place.number], place, str(error)) from error
            # Read again: the damage may be from the transfer. Damage before the requested range is ignored: these
            # bytes were only fetched because small parts are read whole.
            damaged_at, careful = where, True
            if place.expected < spans[place.number].start:
                place.position, place.expected = 0, -1
        except DataLossError as error:
            part = spans[place.number].part
            raise DataLossError(
                f"topic {part.topic!r}, offsets [{part.part.base_offset}, {part.part.end_offset}): {error.message};"
                " restore the object from a copy"
            ) from error
        except StorageRangeError as error:
            raise _lost(url, spans[place.number], place, f"the object is truncated: {error.message}") from error
        except StorageNotFoundError as error:
            raise StorageNotFoundError(
                f"{error.message}; it was merged or has expired since (plan the query again), or this process reads"
                " another storage than the one that the broker writes to"
            ) from error
        except StorageDeniedError as error:
            raise denied(error, url) from error
        finally:
            loop.stop(run)


def _decode(loop: PieceLoop, run: PieceRun, spans: Sequence[Span], place: _Place) -> Iterator[RawBatch]:
    """Cut batches out of the pieces of a run; update ``place``, where reading can continue after an error."""
    first = place.number
    rest = b""
    while (piece := loop.call(run.next)) is not None:
        assert piece.number + first == place.number
        span = spans[place.number]
        if not place.position:
            place.position = piece.position
            if piece.position == span.part.part.start:
                place.expected = span.part.part.base_offset
        data, at = piece.data, 0
        while rest:
            # A batch across the edge of two pieces: only this batch is joined, so that the pieces are not copied.
            batch, _, missing = next(cut_batches(rest, 0, len(rest), span.part.part.topic_id))
            if batch is None:
                if at == len(data):
                    break
                taken = data[at : at + missing]
                rest += taken
                at += len(taken)
                continue
            rest = b""
            if place.passes(span, batch):
                yield _raw(batch, piece)
        if not rest and place.expected < span.end:
            for batch, following, missing in cut_batches(data, at, len(data), span.part.part.topic_id):
                if batch is None:
                    if missing:
                        rest = data[at:]
                    break
                at = following
                if place.passes(span, batch):
                    yield _raw(batch, piece)
                if place.expected >= span.end:
                    break  # later bytes are not needed and may be damaged
        if piece.is_last:
            if place.expected < span.end:
                raise CorruptBatchError(
                    "the last batch extends beyond its part" if rest else "the part ends before its last offset"
                )
            rest = b""
            place.number, place.position, place.expected = place.number + 1, 0, -1


def _lost(url: str, span: Span, place: _Place, why: str) -> DataLossError:
    part = span.part
    offset = place.expected if place.expected >= 0 else span.start
    return DataLossError(
        f"topic {part.topic!r}: the batch at offset {offset} cannot be read from {url}/{part.object}, byte"
        f" {place.position or part.part.start}: {why}; restore the object from a copy, or read only what lies"
        f" outside of [{offset}, {part.part.end_offset})"
    )


class _Place:
    """Progress of a read."""

    __slots__ = ("expected", "number", "position")

    def __init__(self) -> None:
        self.number = 0
        """Number of the span."""
        self.position = 0
        """Position of the next batch in the object; 0 if the span has not begun."""
        self.expected = -1
        """Offset of the next batch; -1 if unknown."""

    def passes(self, span: Span, batch: StoredBatch) -> bool:
        """Record a batch; return whether it is in the requested range. The caller stops at the end of the range.

        Raises:
            CorruptBatchError: its offset is not the expected one.
        """
        if batch.base_offset != self.expected and (self.expected >= 0 or batch.base_offset > span.start):
            expected = f"{self.expected}" if self.expected >= 0 else f"at most {span.start}"
            raise CorruptBatchError(f"the batch found here has offset {batch.base_offset} instead of {expected}")
        self.position += STAMP_SIZE + len(batch.part)
        self.expected = batch.end_offset
        return batch.end_offset > span.start


def _raw(batch: StoredBatch, piece: Piece) -> RawBatch:
    header = batch.header
    producer = ""
    if piece.producers and header.producer_id:
        producer = piece.producers.get(header.producer_id) or f"{header.producer_id:016x}"
    return RawBatch(batch.base_offset, batch.append_time_us, producer, batch.part)
