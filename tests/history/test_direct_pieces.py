"""Direct reading over pieces of any size, without a loop or a storage: cutting, skipping, rereading and refusals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from sealed import build, make_batch

from danube.history._direct_reading import DirectPart, Piece, Span
from danube.history.direct import DirectStorage
from danube.history.parts import to_log_part
from danube.log import StoredBatch
from danube.model.errors import DataLossError, StorageDeniedError, StorageNotFoundError, StorageRangeError
from danube.model.query_api import LogParts


class Loop:
    """Hands out pieces of objects that are at hand, of ``size`` bytes each."""

    def __init__(self, objects: dict[str, bytes], size: int) -> None:
        self.objects = objects
        self.size = size
        self.storage = SimpleNamespace(url="s3://box")
        self.started: list[tuple[int, int, bool, bool]] = []
        self.stopped = 0
        self.begin: Callable[[Span], int] = lambda span: span.part.part.start
        self.errors: list[Exception] = []
        self.damage_once: list[int] = []

    def start(self, spans: Sequence[Span], skip_to: int, producers: bool, careful: bool) -> Any:
        self.started.append((len(spans), skip_to, producers, careful))
        damage = self.damage_once.pop() if self.damage_once else -1

        def pieces() -> Any:
            for number, span in enumerate(spans):
                begin, end = self.begin(span), span.part.part.end
                if number == 0 and skip_to:
                    begin = skip_to
                data = self.objects[span.part.object]
                if damage >= 0:
                    data = data[:damage] + bytes([data[damage] ^ 1]) + data[damage + 1 :]
                for at in range(begin, max(end, begin + 1), self.size):  # one piece at least
                    high = min(at + self.size, end)
                    yield Piece(number, at, data[at:high], high == end, {1: "maker"} if producers else {})

        found = pieces()

        def take() -> Piece | None:
            if self.errors:
                raise self.errors.pop()
            return next(found, None)

        return SimpleNamespace(next=take)

    def call(self, function: Callable[[], Any]) -> Any:
        return function()

    def stop(self, run: Any) -> None:
        self.stopped += 1


class Bench:
    """Two objects of topic 1: offsets 5 to 25, and 25 to 45, two to a batch."""

    def __init__(self, size: int = 100) -> None:
        self.batches: list[StoredBatch] = []
        objects: dict[str, bytes] = {}
        self.parts: list[DirectPart] = []
        for number in range(2):
            some = [
                make_batch(1, 5 + 20 * number + 2 * at, [bytes(30 * at)] * 2, 1000 + 10 * (10 * number + at))
                for at in range(10)
            ]
            data, footer = build({9: [make_batch(9, 0, [b"before"])], 1: some, 8: [make_batch(8, 0, [b"behind"])]})
            objects[f"o{number}"] = data
            (part,) = (part for part in footer.parts if part.topic_id == 1)
            self.parts.append(DirectPart("/default/t", "default", f"o{number}", len(data), part))
            self.batches += some
        self.loop = Loop(objects, size)
        self.storage = DirectStorage(self.loop)  # type: ignore[arg-type]

    def position(self, offset: int) -> int:
        """Return where the batch that begins at an offset is in its object."""
        number = (offset - 5) // 20
        at = self.parts[number].part.start
        for batch in self.batches[10 * number :]:
            if batch.base_offset == offset:
                return at
            at += len(batch.stamp) + len(batch.part)
        raise AssertionError(offset)

    def read(self, *spans: tuple[int, int, int], producers: bool = True) -> list[int]:
        """Read ranges of parts, (number of the part, start, end); return the base offsets of what comes."""
        wanted = [(self.parts[number], start, end) for number, start, end in spans]
        found = list(self.storage.read_all(wanted, producers=producers))
        truth = {batch.base_offset: batch for batch in self.batches}
        for raw in found:
            batch = truth[raw.base_offset]
            assert (raw.append_time_us, raw.part) == (batch.append_time_us, batch.part)
            assert raw.producer == ("maker" if producers else "")
        return [raw.base_offset for raw in found]


def expected(start: int, end: int) -> list[int]:
    return [base for base in range(5, 45, 2) if start < end and base + 2 > start and base < end]


@pytest.mark.parametrize("size", [31, 48, 49, 100, 333, 5000])
def test_every_range_over_pieces_of_any_size(size: int) -> None:
    b = Bench(size)
    for start in range(4, 27, 4):
        for end in range(start, 27, 3):
            assert b.read((0, start, end)) == [base for base in expected(start, end) if base < 25]
    assert b.read((0, 0, 99), (1, 0, 99)) == expected(0, 99)
    assert b.read((0, 20, 99), (1, 30, 30), (1, 30, 34)) == expected(20, 25) + expected(30, 34)
    assert b.loop.stopped == len(b.loop.started)
    assert {careful for *_, careful in b.loop.started} == {False}


def test_nothing_is_asked_for_where_nothing_is_wanted() -> None:
    b = Bench()
    assert b.read((0, 25, 99), (1, 0, 25), (0, 9, 9)) == []
    assert b.loop.started == []


def test_producers_are_named_if_they_are_wanted() -> None:
    b = Bench()
    assert b.read((0, 0, 99), producers=False) == expected(0, 25)
    unknown = make_batch(1, 0, [b"x"], producer_id=0xABC)
    unnamed = make_batch(1, 1, [b"x"], producer_id=0)
    data, footer = build({1: [unknown, unnamed]})
    b.loop.objects["o"] = data
    found = list(b.storage.read(DirectPart("/default/t", "default", "o", 0, footer.parts[0])))
    assert [raw.producer for raw in found] == ["0000000000000abc", ""]


@pytest.mark.parametrize("size", [50, 400, 9000])
def test_bytes_damaged_in_transit_are_read_again_from_there(size: int) -> None:
    b = Bench(size)
    b.loop.damage_once = [b.position(15) + 60]
    assert b.read((0, 9, 25), (1, 0, 99)) == expected(9, 99)
    assert b.loop.started == [(2, 0, True, False), (2, b.position(15), True, True)]


def test_damage_before_the_requested_range_is_skipped_with_the_index() -> None:
    b = Bench(9000)
    position = b.position(7) + 60
    b.loop.objects["o0"] = flipped(b.loop.objects["o0"], position)
    b.loop.begin = lambda span: b.position(13) if len(b.loop.started) > 1 else span.part.part.start
    assert b.read((0, 15, 19)) == [15, 17]
    assert b.loop.started == [(1, 0, True, False), (1, 0, True, True)]


def test_damage_behind_the_requested_range_is_ignored() -> None:
    b = Bench(9000)
    b.loop.objects["o0"] = flipped(b.loop.objects["o0"], b.position(17) + 60)
    assert b.read((0, 0, 17)) == expected(0, 17)
    assert len(b.loop.started) == 1


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def test_damage_is_named_and_batches_before_it_are_delivered() -> None:
    for size in (60, 9000):
        b = Bench(size)
        b.loop.objects["o0"] = flipped(b.loop.objects["o0"], b.position(15) + 60)
        found = b.storage.read(b.parts[0], 0, 99)
        assert [next(found).base_offset for _ in range(5)] == expected(0, 15)
        with pytest.raises(DataLossError) as caught:
            next(found)
        text = str(caught.value)
        assert (
            f"topic '/default/t': the batch at offset 15 cannot be read from s3://box/o0, byte {b.position(15)}:"
            in text
        )
        assert "outside of [15, 25)" in text


def test_damage_at_offset_0_before_the_requested_range_is_named_as_such() -> None:
    b = Bench(9000)
    data, footer = build({1: [make_batch(1, 0, [b"x", b"y"]), make_batch(1, 2, [b"z", b"z"])]})
    (part,) = footer.parts
    b.loop.objects["o"] = flipped(data, part.start + 60)
    with pytest.raises(DataLossError, match=r"the batch at offset 0 cannot be read.*outside of \[0, 4\)"):
        list(b.storage.read(DirectPart("/default/t", "default", "o", 0, part), 3))


def test_a_batch_that_does_not_belong_here_is_refused() -> None:
    b = Bench(9000)
    odd = [make_batch(1, 0, [b"x"]), make_batch(1, 5, [b"y"])]
    one, two = (build({1: [batch]}) for batch in odd)
    start, end = one[1].parts[0].start, one[1].parts[0].end
    data = one[0][:end] + two[0][start : two[1].parts[0].end]
    part = msgspec.structs.replace(one[1].parts[0], end=len(data), end_offset=6)
    b.loop.objects["o"] = data
    direct = DirectPart("/default/t", "default", "o", 0, part)
    with pytest.raises(DataLossError, match="the batch found here has offset 5 instead of 1;"):
        list(b.storage.read(direct))
    b.loop.begin = lambda span: end
    with pytest.raises(DataLossError, match="the batch found here has offset 5 instead of at most 3;"):
        list(b.storage.read(direct, 3, 6))
    assert [raw.base_offset for raw in b.storage.read(direct, 5, 6)] == [5]
    wrong = msgspec.structs.replace(one[1].parts[0], base_offset=0, end_offset=1)
    b.loop.objects["o"] = data[:start] + two[0][start : two[1].parts[0].end]
    b.loop.begin = lambda span: start
    with pytest.raises(DataLossError, match="the batch found here has offset 5 instead of 0;"):
        list(b.storage.read(DirectPart("/default/t", "default", "o", 0, wrong)))


def test_a_part_that_ends_too_early_is_damage() -> None:
    for cut, why in ((0, "ends before its last offset"), (10, "extends beyond its part")):
        b = Bench(9000)
        part = msgspec.structs.replace(b.parts[0].part, end=b.position(23) + cut)
        with pytest.raises(DataLossError, match=f"offset 23 cannot be read.*{why}"):
            list(b.storage.read(msgspec.structs.replace(b.parts[0], part=part)))


def test_errors_of_the_storage_say_what_to_do() -> None:
    b = Bench()
    for error, kind, text in (
        (StorageNotFoundError("o0 is not there"), StorageNotFoundError, "plan the query again"),
        (StorageDeniedError("no"), StorageDeniedError, "credentials that may read and list the objects below s3://box"),
        (StorageRangeError("short"), DataLossError, "offset 5 cannot be read.*the object is truncated: short"),
        (DataLossError("its footer"), DataLossError, r"offsets \[5, 25\): its footer; restore the object"),
    ):
        b.loop.errors = [error]
        with pytest.raises(kind, match=text):
            list(b.storage.read(b.parts[0]))
    assert b.loop.stopped == len(b.loop.started)


def test_offsets_by_time() -> None:
    b = Bench()
    parts = [to_log_part("default", part.object, part.object_bytes, part.part) for part in b.parts]
    found = LogParts("/default/t", 1, 9, 43, 9, 45, 45, parts, [], {})
    times = {0: 9, 1000: 9, 1020: 9, 1021: 11, 1030: 11, 1090: 23, 1091: 25, 1100: 25, 1101: 27, 1180: 41, 1191: 43}
    assert {at: b.storage.offset_at(found, at) for at in times} == times
    for at, read in ((1000, 0), (1001, 1), (1091, 0), (1101, 1), (1191, 0)):
        b.loop.started.clear()
        b.storage.offset_at(found, at)
        assert len(b.loop.started) == read, "only a part with times before and after it is read"
