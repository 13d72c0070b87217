"""Converts stored batches to Arrow record batches, a column at a time.

A batch is decoded only as far as the columns require::

    wanted                              done for a batch
    offset, partition, producer, ...    nothing: the header has all values
    payload, no keys, one size          the records array is a matrix; one copy leaves out the msgpack headers
    payload, no keys, short             NumPy finds the headers, Arrow takes what is between them
    payload, no keys                    msgspec makes a list of bytes, which are joined
    key, attributes, ...                msgspec makes structs of just these fields, columns are made of those

Batches are collected until there is enough for a record batch; columns that are constant in a stored batch (times,
schemas, producers) are stored once for it, and repeated at the end. There is no work per row in Python on the common
paths.
"""

from __future__ import annotations

from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from danube.model.batch import BatchFlags, BatchHeader, read_header, unpack_body
from danube.model.decoding import UNDECODABLE
from danube.model.errors import CorruptBatchError, DataLossError, InvalidArgumentError
from danube.model.limits import MIB
from pyspark_danube._payloads import MalformedPayloadError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from danube.model.query_api import RawBatch
    from pyspark_danube._columns import Columns
    from pyspark_danube._values import ValueDecoder

__all__ = ["MAX_BATCH_BYTES", "MAX_BATCH_ROWS", "ArrowRows"]

MAX_BATCH_ROWS: Final = 32_768
MAX_BATCH_BYTES: Final = 4 * MIB
"""Rows or payload bytes at which a record batch is returned; it may exceed them by one stored batch."""

MAX_UNPACKED_BYTES: Final = 1 << 30
"""Maximum unpacked size of a valid batch; a larger one is damaged."""

_ARRAY_HEADERS: Final = {0xDC: 3, 0xDD: 5}
_SHORT_HEADER: Final = 0xC4
_MIN_SHORT: Final = 1_000
"""Payloads from which on :class:`_ShortPayloads` pays: it imports ``pyarrow.compute``, which takes 30 ms."""
_MAX_SHORT_BYTES: Final = 160
"""Mean size of a payload and its header up to which it pays: it looks at each byte of the body."""
_SHORT_PASSES: Final = 4
"""Each pass leaves about one in 256 of the bytes that only look like headers, if they are random."""
_BINARY_HEADERS: Final = {0xC4: 2, 0xC5: 3, 0xC6: 5}
_WORDS: Final = {2: 2, 3: 4, 5: 8}
"""Bytes of the number that holds a header."""

_RECORD_FIELDS: Final[tuple[tuple[str, Any, Any], ...]] = (
    ("payload", bytes, b""),
    ("key", bytes | None, None),
    ("attributes", dict[str, str] | None, None),
    ("publish_delta_us", int, 0),
    ("producer", str, ""),
)


class ArrowRows:
    """Collects stored batches of one plain topic or partition, and builds record batches from them."""

    def __init__(
        self,
        columns: Columns,
        topic: str,
        partition: int,
        values: ValueDecoder | None = None,
        *,
        is_framed: bool = False,
    ) -> None:
        """Begin without rows.

        Args:
            columns: what to build.
            topic, partition: where the rows are from.
            values: the decoder of payloads with schemas of the registry; None: they are not decoded.
            is_framed: whether payloads name their schemas in frames, if the header of a batch names none.
        """
        self._schema: pa.Schema = columns.schema
        self._fields = columns.fields
        self._decoder = columns.decoder()
        self._values = values
        self._is_framed = is_framed
        self._topic = topic
        self._partition = partition
        self._demanding = [
            index for index, field in enumerate(self._schema) if field.name not in _NEVER_NULL and _rejects_nulls(field)
        ]
        """Columns that may contain nulls where the query says NOT NULL."""
        wanted = set(columns.names)
        self._payload_wanted = "payload" in wanted or bool(self._fields) or values is not None
        self._opened = [
            name
            for name, needed in (
                ("payload", self._payload_wanted),
                ("key", "key" in wanted),
                ("attributes", "attributes" in wanted),
                ("publish_delta_us", "publish_time" in wanted),
            )
            if needed
        ]
        self._record_decoder = _decoder_of(self._opened)
        with_producer = [*self._opened, "producer"] if "producer" in wanted else self._opened
        self._composite_opened = with_producer
        self._composite_decoder = _decoder_of(with_producer)
        self._constants: dict[str, pa.Array] = {}
        self._short = _ShortPayloads()
        self._clear()

    def _clear(self) -> None:
        self.rows = 0
        """Number of collected rows."""
        self.size = 0
        """Bytes of their records, unpacked."""
        self._starts: list[int] = []
        self._counts: list[int] = []
        self._times: list[int] = []
        self._schemas: list[tuple[int, int]] = []
        self._producers: list[str | list[str]] = []
        # Of each batch: a matrix of bytes, a column, a list of bytes, or nothing if payloads are not wanted.
        self._payloads: list[Any] = []
        # Of each batch: a list, or None if none of its records has any.
        self._keys: list[list[bytes | None] | None] = []
        self._attributes: list[list[dict[str, str] | None] | None] = []
        self._deltas: list[list[int] | None] = []

    @property
    def full(self) -> bool:
        """Whether :meth:`take` should be called."""
        return self.rows >= MAX_BATCH_ROWS or self.size >= MAX_BATCH_BYTES

    def add(self, batch: RawBatch, start: int, end: int) -> None:
        """Add the rows of a stored batch whose offsets are in ``[start, end)``; there may be none.

        Raises:
            DataLossError: the contents of the batch do not match its header.
        """
        try:
            header = read_header(batch.part)
            first = max(0, start - batch.base_offset)
            last = min(header.record_count, end - batch.base_offset)
            if first >= last:
                return
            self._open(batch, header, first, last)
        except (CorruptBatchError, *UNDECODABLE) as error:
            count = batch.record_count
            raise DataLossError(
                f"topic {self._topic}, partition {self._partition}: the batch with the offsets"
                f" [{batch.base_offset}, {batch.base_offset + count}) cannot be decoded: {error}; to skip it, set"
                " startingOffsets and endingOffsets to ranges without it"
            ) from error
        self._starts.append(batch.base_offset + first)
        self._counts.append(last - first)
        self._times.append(header.publish_time_us)
        self._schemas.append((header.schema_id, header.schema_version))
        self.rows += last - first
        self.size += header.unpacked_size * (last - first) // header.record_count

    def _open(self, batch: RawBatch, header: BatchHeader, first: int, last: int) -> None:
        payloads: Any = None
        keys = attributes = deltas = None
        producers: str | list[str] = batch.producer
        if header.flags & BatchFlags.PAYLOADS_ONLY:
            if self._payload_wanted:
                body = unpack_body(batch.part, header, MAX_UNPACKED_BYTES)
                payloads = _matrix(body, header.record_count)
                if payloads is None:
                    payloads = self._short.column(body, header.record_count)
                if payloads is None:
                    payloads = _counted(_PAYLOADS.decode(body), header)
                payloads = payloads[first:last]
        else:
            composite = header.flags & BatchFlags.COMPOSITE
            opened = self._composite_opened if composite else self._opened
            if opened:
                decoder = self._composite_decoder if composite else self._record_decoder
                records = _counted(decoder.decode(unpack_body(batch.part, header, MAX_UNPACKED_BYTES)), header)
                found = {name: list(map(attrgetter(name), records[first:last])) for name in opened}
                payloads = found.get("payload")
                keys, attributes, deltas = found.get("key"), found.get("attributes"), found.get("publish_delta_us")
                producers = found.get("producer", producers)
        self._payloads.append(payloads)
        self._keys.append(keys if keys and keys.count(None) < len(keys) else None)
        self._attributes.append(attributes if attributes and attributes.count(None) < len(attributes) else None)
        self._deltas.append(deltas if deltas and any(deltas) else None)
        self._producers.append(producers)

    def take(self) -> pa.RecordBatch:
        """Return the collected rows as a record batch, and start a new one.

        Raises:
            InvalidArgumentError: a payload does not parse, and ``mode`` is ``FAILFAST``; or there is a null where the
                query's schema declares NOT NULL.
        """
        payloads = self._payload_column() if self._payload_wanted else None
        fields = self._parse(payloads)
        arrays = [
            fields[field.name] if field.name in fields else self._column(field.name, field.type, payloads)
            for field in self._schema
        ]
        for index in self._demanding:
            self._refuse_null(arrays[index], self._schema.field(index))
        made = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        self._clear()
        return made

    def _parse(self, payloads: pa.Array | None) -> dict[str, pa.Array]:
        """Return the columns that are made of payloads."""
        try:
            if self._values is not None:
                runs = [(number, count) for (number, _), count in zip(self._schemas, self._counts, strict=True)]
                return self._values.columns(payloads, runs, is_framed=self._is_framed)
            if self._decoder is not None:
                return dict(zip(self._fields, self._decoder.columns(payloads), strict=True))
        except MalformedPayloadError as error:
            offset = int(self._offsets()[error.row])
            raise InvalidArgumentError(
                f"topic {self._topic}, partition {self._partition}, offset {offset}: the payload does not parse:"
                f" {error}; with the option mode=PERMISSIVE its fields are null"
            ) from error
        return {}

    def _refuse_null(self, array: pa.Array, field: pa.Field) -> None:
        """Raise InvalidArgumentError for a disallowed null: Spark does not check, and would show an arbitrary value."""
        found = _misplaced_null(array, field)
        if found is None:
            return
        row, path = found
        which = "field" if field.name in self._fields else "column"
        raise InvalidArgumentError(
            f"topic {self._topic}, partition {self._partition}, offset {int(self._offsets()[row])}: {which} {path!r} is"
            " null, but NOT NULL in the schema of the query; omit NOT NULL in .schema(), and filter with IS NOT NULL"
        )

    def _column(self, name: str, kind: pa.DataType, payloads: pa.Array | None) -> pa.Array:
        if name == "payload":
            return payloads
        if name == "offset":
            return _from_numpy(self._offsets(), kind)
        if name == "publish_time":
            return _from_numpy(self._publish_times(), kind)
        if name == "topic":
            return self._constant(name, self._topic, kind)
        if name == "partition":
            return self._constant(name, self._partition, kind)
        if name == "key":
            return self._gathered(name, self._keys, kind)
        if name == "attributes":
            return self._gathered(name, self._attributes, kind)
        if name == "producer":
            return self._producer_column(kind)
        return self._schema_column(0 if name == "schema_id" else 1, kind)

    def _offsets(self) -> NDArray[np.int64]:
        if len(self._starts) == 1:
            return np.arange(self._starts[0], self._starts[0] + self.rows, dtype=np.int64)
        counts = np.array(self._counts)
        before = np.cumsum(counts) - counts
        return np.repeat(np.array(self._starts, dtype=np.int64) - before, counts) + np.arange(self.rows)

    def _publish_times(self) -> NDArray[np.int64]:
        times = np.repeat(np.array(self._times, dtype=np.int64), self._counts)
        at = 0
        for count, deltas in zip(self._counts, self._deltas, strict=True):
            if deltas is not None:
                times[at : at + count] += np.array(deltas, dtype=np.int64)
            at += count
        return times

    def _payload_column(self) -> pa.Array:
        blocks = self._payloads
        first = blocks[0]
        if all(isinstance(block, np.ndarray) and block.shape[1] == first.shape[1] for block in blocks):
            return _matrix_column(blocks, self.rows)
        if all(isinstance(block, list) for block in blocks):
            return _joined(list(chain.from_iterable(blocks)))
        columns = list(map(_column_of, blocks))
        return columns[0] if len(columns) == 1 else pa.concat_arrays(columns)

    def _gathered(self, name: str, lists: list[Any], kind: pa.DataType) -> pa.Array:
        """Return the column of a field that most messages lack."""
        if not any(values is not None for values in lists):
            return self._nulls(name, kind)
        values: list[Any] = []
        for count, found in zip(self._counts, lists, strict=True):
            values.extend(found if found is not None else [None] * count)
        return _keys(values, kind) if name == "key" else _maps(values, kind)

    def _producer_column(self, kind: pa.DataType) -> pa.Array:
        first = self._producers[0]
        if isinstance(first, str) and self._producers.count(first) == len(self._producers):
            return self._constant(f"producer {first}", first, kind) if first else self._nulls("producer", kind)
        names: list[str | None] = []
        for count, producer in zip(self._counts, self._producers, strict=True):
            if isinstance(producer, str):
                names.extend([producer or None] * count)
            else:
                names.extend(name or None for name in producer)
        return pa.array(names, kind)

    def _schema_column(self, which: int, kind: pa.DataType) -> pa.Array:
        numbers = [pair[which] for pair in self._schemas]
        if numbers.count(numbers[0]) == len(numbers):
            return self._constant(f"schema {which} {numbers[0]}", numbers[0], kind)
        return _from_numpy(np.repeat(np.array(numbers, dtype=np.int32), self._counts), kind)

    def _constant(self, name: str, value: str | int, kind: pa.DataType) -> pa.Array:
        """Return a column of one value: a slice of a cached one, if it is long enough."""
        if isinstance(value, str):
            return self._cached(name, lambda rows: _repeated(value.encode(), rows, kind))
        return self._cached(name, lambda rows: _from_numpy(np.full(rows, value, np.int32), kind))

    def _nulls(self, name: str, kind: pa.DataType) -> pa.Array:
        return self._cached(f"no {name}", lambda rows: pa.nulls(rows, kind))

    def _cached(self, name: str, make: Any) -> pa.Array:
        made = self._constants.get(name)
        if made is None or len(made) < self.rows:
            if len(self._constants) > _MAX_CONSTANTS:
                self._constants.clear()
            made = self._constants[name] = make(max(self.rows, MAX_BATCH_ROWS))
        return made.slice(0, self.rows)


def _keys(values: list[bytes | None], kind: pa.DataType) -> pa.Array:
    r"""Return the column of keys; in one of text, bytes that are not UTF-8 are escaped (``\xff``)."""
    column = _binary_column(values)
    try:
        return column.cast(kind)
    except pa.ArrowInvalid:
        return pa.array([None if key is None else key.decode(errors="backslashreplace") for key in values], kind)


_NEVER_NULL: Final = frozenset(
    {"topic", "partition", "offset", "publish_time", "payload", "schema_id", "schema_version"}
)


def _rejects_nulls(field: pa.Field) -> bool:
    """Whether a field, or any field in it, is not nullable."""
    if pa.types.is_map(field.type):
        return not field.nullable  # attributes: their values are never null
    inner = range(field.type.num_fields)
    return not field.nullable or any(_rejects_nulls(field.type.field(index)) for index in inner)


def _misplaced_null(array: pa.Array, field: pa.Field) -> tuple[int, str] | None:
    """Return the row of a disallowed null, and the path to its field."""
    if not field.nullable and array.null_count:
        import pyarrow.compute as pc

        return pc.index(array.is_null(), True).as_py(), field.name
    if not _rejects_nulls(field):
        return None
    if pa.types.is_list(field.type):
        element = field.type.value_field
        found = _misplaced_null(array.flatten(), element)
        if found is None:
            return None
        import pyarrow.compute as pc

        row, path = found
        return pc.list_parent_indices(array)[row].as_py(), f"{field.name}[]{path.removeprefix(element.name)}"
    if pa.types.is_struct(field.type):
        rows = np.flatnonzero(array.is_valid().to_numpy(zero_copy_only=False))
        there = array.take(pa.array(rows)) if array.null_count else array
        for index, inner in enumerate(field.type):
            found = _misplaced_null(there.field(index), inner)
            if found is not None:
                return int(rows[found[0]]), f"{field.name}.{found[1]}"
    return None


_MAX_COLUMN_BYTES: Final = (1 << 31) - 1
"""What the offsets of a column of bytes can address."""

_MAX_CONSTANTS: Final = 64
"""Producers change over time; the number of cached columns is bounded."""

_PAYLOADS: Final = msgspec.msgpack.Decoder(list[bytes])


def _decoder_of(names: list[str]) -> msgspec.msgpack.Decoder[list[Any]]:
    """Return a decoder of records that only builds objects of these fields, and stops after the last of them."""
    fields: list[tuple[str, Any, Any]] = []
    for name, kind, default in _RECORD_FIELDS:
        wanted = name in names
        fields.append((name, kind if wanted else msgspec.Raw, default if wanted else msgspec.Raw(b"\xc0")))
    while fields and fields[-1][0] not in names:
        fields.pop()
    row = msgspec.defstruct("Row", fields, array_like=True, gc=False)
    return msgspec.msgpack.Decoder(list[row])  # type: ignore[valid-type]


def _counted(records: list[Any], header: BatchHeader) -> list[Any]:
    if len(records) != header.record_count:
        raise CorruptBatchError(f"it has {len(records)} records instead of the {header.record_count} in its header")
    return records


def _first_payload(body: bytes | memoryview, count: int) -> int:
    """Return the position of the first payload's header; 0 if the array is empty or has not ``count`` payloads."""
    code = body[0]
    if code & 0xF0 == 0x90:
        return 1 if code & 0x0F == count and len(body) > 1 else 0
    begin = _ARRAY_HEADERS.get(code, 0)
    return begin if int.from_bytes(body[1:begin], "big") == count and len(body) > begin else 0


def _matrix(body: bytes | memoryview, count: int) -> NDArray[np.uint8] | None:
    """Return payloads of equal size as a matrix, without their msgpack headers; None if sizes differ."""
    begin = _first_payload(body, count)
    if not begin:
        return None
    stride, rest = divmod(len(body) - begin, count)
    if rest:
        return None
    head = _BINARY_HEADERS.get(body[begin], 0) if stride else 0
    if not head or head > stride or int.from_bytes(body[begin + 1 : begin + head], "big") != stride - head:
        return None
    # The first payload ends where the second header should begin, and so on to the end: equal headers prove it. As
    # numbers of 2, 4 or 8 bytes they take one pass over all rows, each of which is in another line of the cache.
    width = _WORDS[head]
    if stride < width:
        return None
    words = np.ndarray((count,), f"<u{width}", body, begin, (stride,)) & ((1 << 8 * head) - 1)
    if not (words == words[0]).all():
        return None
    matrix = np.frombuffer(body, np.uint8, offset=begin).reshape(count, stride)
    return matrix[:, head:]


class _ShortPayloads:
    """Finds short payloads of varying sizes in a body, without an object for each.

    A header of two bytes precedes each: 0xC4 and its size. Each byte 0xC4 is a candidate. A candidate at which no other
    candidate's payload ends is no header and is dropped; this is repeated until as many are left as there are payloads.
    If each payload then ends where the next header begins, up to the end of the body, no other reading is possible.
    """

    def __init__(self) -> None:
        # For each byte of a body: fresh pages for each body would take most of the time.
        self._equal = np.zeros(0, np.bool_)
        self._reached = np.zeros(0, np.bool_)
        """All False between two uses."""

    def column(self, body: bytes | memoryview, count: int) -> pa.Array | None:
        """Return the payloads as a column; None if that does not pay, or the body has others, too."""
        begin = _first_payload(body, count)
        if not begin or body[begin] != _SHORT_HEADER or count < _MIN_SHORT:
            return None
        if not 2 * count <= len(body) - begin <= _MAX_SHORT_BYTES * count:
            return None
        data = np.frombuffer(body, np.uint8)
        if len(self._equal) < len(data):
            self._equal = np.zeros(len(data) + len(data) // 4, np.bool_)
        equal = self._equal[: len(data) - begin - 1]
        heads = np.flatnonzero(np.equal(data[begin:-1], _SHORT_HEADER, out=equal))
        if not count <= len(heads) <= 2 * count:
            return None
        heads += begin
        ends = heads + 2
        ends += data[heads + 1]
        for _ in range(_SHORT_PASSES):
            if len(heads) <= count:
                break
            kept = self._followed(begin, heads, ends)
            heads, ends = np.compress(kept, heads), np.compress(kept, ends)
        if len(heads) != count or heads[0] != begin or ends[-1] != len(data) or not (heads[1:] == ends[:-1]).all():
            return None
        # As a column of headers and payloads in turns, the body is not copied; taking each second one copies once.
        bounds = np.empty(2 * count + 1, np.int32)
        bounds[:-1:2] = heads
        bounds[1::2] = heads + 2
        bounds[-1] = len(data)
        both = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(bounds), pa.py_buffer(body)])
        return both.take(pa.array(np.arange(1, 2 * count, 2, dtype=np.int32)))

    def _followed(self, begin: int, heads: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which heads are at the beginning, or where another payload ends."""
        most = int(ends.max())
        if len(self._reached) <= most:
            self._reached = np.zeros(most + most // 4 + 1, np.bool_)
        reached = self._reached
        reached[begin] = True
        reached[ends] = True
        kept = reached[heads]
        reached[begin] = False
        reached[ends] = False
        return kept


def _matrix_column(blocks: list[NDArray[np.uint8]], rows: int) -> pa.Array:
    width = blocks[0].shape[1]
    data = np.concatenate(blocks) if len(blocks) > 1 else np.ascontiguousarray(blocks[0])
    bounds = np.arange(rows + 1, dtype=np.int32) * np.int32(width)
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(data.reshape(-1))]
    return pa.Array.from_buffers(pa.binary(), rows, buffers)


def _column_of(block: Any) -> pa.Array:
    if isinstance(block, np.ndarray):
        return _matrix_column([block], len(block))
    return _joined(block) if isinstance(block, list) else block


def _binary_column(values: list[Any]) -> pa.Array:
    """Return a column of bytes and nulls."""
    if None not in values:
        return _joined(values)
    valid = np.fromiter((value is not None for value in values), np.bool_, len(values))
    return _joined([value or b"" for value in values], pa.py_buffer(np.packbits(valid, bitorder="little")))


def _joined(values: list[bytes], there: pa.Buffer | None = None) -> pa.Array:
    """Return a column of bytes, and of nulls where the bitmap says so. All work for a row is done in C.

    Unlike ``pa.array()``, this does not import pandas, which takes half a second.
    """
    data = b"".join(values)
    if len(data) > _MAX_COLUMN_BYTES:
        return pa.array(values, pa.binary())  # which says that it is too large
    bounds = np.zeros(len(values) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, values), np.int32, len(values)), out=bounds[1:])
    return pa.Array.from_buffers(pa.binary(), len(values), [there, pa.py_buffer(bounds), pa.py_buffer(data)])


def _repeated(value: bytes, rows: int, kind: pa.DataType) -> pa.Array:
    """Return a column of one text or sequence of bytes; ``pa.scalar()`` would import pandas, too."""
    bounds = np.arange(rows + 1, dtype=np.int32) * np.int32(len(value))
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(bounds), pa.py_buffer(value * rows)])


def _from_numpy(values: NDArray[Any], kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _maps(values: list[dict[str, str] | None], kind: pa.DataType) -> pa.Array:
    first = values[0]
    if first and values.count(first) == len(values):  # the same attributes in all messages
        bounds = np.arange(len(values) + 1, dtype=np.int32) * np.int32(len(first))
        names, texts = list(first) * len(values), list(first.values()) * len(values)
    else:
        bounds = np.cumsum([0, *(len(value) if value else 0 for value in values)], dtype=np.int32)
        there = [value for value in values if value]
        names = list(chain.from_iterable(there))
        texts = list(chain.from_iterable(value.values() for value in there))
    return pa.MapArray.from_arrays(
        pa.array(bounds),
        pa.array(names, kind.key_type),
        pa.array(texts, kind.item_type),
        type=kind,
        mask=pa.array([value is None for value in values]) if None in values else None,
    )
