"""The use of the schema registry by producers, consumers and readers: what they write with, and what they read with."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from danube.client._checks import choice
from danube.model.api import CaughtUp, ConsumeBatch
from danube.model.batch import Record, SchemaRef, check_part, open_records, read_header
from danube.model.errors import (
    CorruptBatchError,
    FailedPreconditionError,
    InvalidSchemaError,
    NotFoundError,
    PermissionDeniedError,
    SchemaError,
)
from danube.model.schema_api import SchemaInfo, SchemaReference
from danube.schema.framed import by_frame, framed
from danube.schema.frames import named_numbers
from danube.schema.kinds import Needed, Source
from danube.schema.modes import SchemaType, parse_type
from danube.schema.subjects import Strategy, subject_for
from danube.schema.typed import Subject, codec_of, codec_of_source

if TYPE_CHECKING:
    from danube.client._delivered import DeliveredBatch
    from danube.client._schemas import Schemas
    from danube.schema.value_codec import ValueCodec

__all__ = ["MOST_WRITERS", "Reading", "Writing", "Written", "open_reading", "open_writing"]

MOST_WRITERS: Final = 1_000
"""Schemas of writers whose decoders a consumer or reader keeps; the oldest are made again when they are needed. Of the
frames of one batch, too: payloads that name further schemas do not decode."""

Decode = Callable[[bytes], Any]


class Written(NamedTuple):
    """What payloads were written with."""

    number: int
    """Of the schema; 0: none is known."""
    is_framed: bool = False
    """Whether they begin with the number, in Confluent's frame."""


_OWN: Final = Written(0)


def _written_of(payloads: Sequence[bytes]) -> list[Written]:
    return [Written(number, is_framed=True) for number in named_numbers(payloads, MOST_WRITERS)]


class Writing:
    """What a producer writes with."""

    def __init__(self, codec: ValueCodec[Any], ref: SchemaRef) -> None:
        self.codec = codec
        self.ref = ref
        """What the headers of batches say."""


class Reading:
    """What a consumer or reader reads with: decoders by the number of the writer's schema."""

    def __init__(self, schemas: Schemas, codec: ValueCodec[Any], number: int) -> None:
        self._schemas = schemas
        self._codec = codec
        # A batch without a number is read as if it were written with the reader's own schema.
        self._decoders: dict[Written, Decode] = {_OWN: codec.decoder()}
        if number:
            self._decoders[Written(number)] = self._decoders[_OWN]

    def unknown(self, item: ConsumeBatch | CaughtUp, max_batch_bytes: int, *, is_framed: bool) -> Written | None:
        """Return what has to be learned before a delivery is opened; None: nothing.

        Args:
            item: the delivery.
            max_batch_bytes: as of :func:`~danube.client._delivered.open_delivery`.
            is_framed: whether the topic's payloads have frames, if the header names no schema.
        """
        if isinstance(item, CaughtUp):
            return None
        try:
            header = read_header(item.part)
            if header.schema_id or not is_framed:
                written = [Written(header.schema_id)]
            else:
                opened: list[Any] = open_records(item.part, check_part(item.part), max_batch_bytes)
                written = _written_of([each.payload if isinstance(each, Record) else each for each in opened])
        except CorruptBatchError:
            return None  # opening the delivery reports that
        return next((each for each in written if each not in self._decoders), None)

    def decoder(self, batch: DeliveredBatch) -> Decode:
        """Return the decoder for an opened delivery of which nothing is unknown."""
        if not batch.is_framed:
            return self._decoders[Written(batch.schema_id)]
        return by_frame({each.number: self._decoders[each] for each in _written_of(batch.payloads())})

    async def learn(self, written: Written) -> None:
        """Ask for a schema, and keep its decoder; one that always fails if the schema cannot be used.

        Raises:
            DanubeError: no broker answers.
        """
        number = written.number
        try:
            info = await self._schemas.get(number)
        except NotFoundError:
            decode = _failing(f"schema {number} is not in the registry, or these credentials may not see it")
        else:
            try:
                source = source_of(info)
                decode = framed(source, self._codec.decoder) if written.is_framed else self._codec.decoder(source)
            except SchemaError as error:
                decode = _failing(error.message)
            except InvalidSchemaError as error:
                decode = _failing(f"schema {number} cannot be used: {error.message}")
        if len(self._decoders) > MOST_WRITERS:
            del self._decoders[next(each for each in self._decoders if each != _OWN)]
        self._decoders[written] = decode


async def open_writing(
    schemas: Schemas, topic: str, schema: Any, *, register: bool, strategy: Strategy | str
) -> Writing:
    """Register or look up the schema of a producer.

    Raises:
        InvalidSchemaError, IncompatibleSchemaError, NotFoundError, DanubeError: as :meth:`Client.producer`.
    """
    codec, subject, name = _chosen(topic, schema, strategy)
    if subject is not None and subject.is_pinned:
        info, codec = await _pinned(schemas, subject, name, codec)
        return Writing(codec, SchemaRef(info.number, info.version))
    assert codec is not None
    return Writing(codec, await _registered(schemas, name, codec.source, register=register))


async def open_reading(
    schemas: Schemas, topic: str, schema: Any, *, register: bool, strategy: Strategy | str
) -> Reading:
    """Prepare to read with a schema; without a pinned version and ``register``, the registry is not asked.

    Raises:
        InvalidSchemaError, IncompatibleSchemaError, NotFoundError, DanubeError: as :meth:`Client.consumer`.
    """
    codec, subject, name = _chosen(topic, schema, strategy)
    number = 0
    if subject is not None and subject.is_pinned:
        info, codec = await _pinned(schemas, subject, name, codec)
        number = info.number
    elif register:
        assert codec is not None
        number = (await _registered(schemas, name, codec.source, register=True)).schema_id
    assert codec is not None
    return Reading(schemas, codec, number)


def source_of(info: SchemaInfo) -> Source:
    """Return a schema of the registry in the form that is parsed: of protobuf the descriptor, not the text."""
    kind = parse_type(info.schema_type)
    text = info.text
    if kind is SchemaType.PROTOBUF and info.descriptor:
        text = base64.b64encode(info.descriptor).decode()
    return Source(kind, text, tuple(Needed(each.name, each.text) for each in info.needs), info.message)


def _chosen(
    topic: str, schema: Any, strategy: Strategy | str
) -> tuple[ValueCodec[Any] | None, Subject[Any] | None, str]:
    """Return the codec (None: of the registry's schema), the subject if one was given, and its name."""
    rule = choice(Strategy, "strategy", strategy)
    if isinstance(schema, Subject):
        return None if schema.schema is None else codec_of(schema.schema), schema, schema.name
    codec = codec_of(schema)
    return codec, None, subject_for(topic, rule, codec.name)


async def _pinned(
    schemas: Schemas, subject: Subject[Any], name: str, codec: ValueCodec[Any] | None
) -> tuple[SchemaInfo, ValueCodec[Any]]:
    info = await schemas.version(name, subject.version if isinstance(subject.version, int) else -1)
    if info.version < subject.min_version:
        raise FailedPreconditionError(
            f"the latest version of subject {name} is {info.version}, and min_version is {subject.min_version};"
            " register a newer one"
        )
    source = source_of(info)
    return info, codec_of_source(source) if codec is None else codec.pinned(source)


async def _registered(schemas: Schemas, subject: str, source: Source, *, register: bool) -> SchemaRef:
    """Return the number and version of a schema in a subject.

    Programs that may not register go on with a schema that is there already.
    """
    if register:
        try:
            return await _asked(schemas.register, subject, source)
        except PermissionDeniedError as error:
            try:
                return await _asked(schemas.find, subject, source)
            except NotFoundError:
                raise error from None
    return await _asked(schemas.find, subject, source)


async def _asked(ask: Callable[..., Any], subject: str, source: Source) -> SchemaRef:
    references = await _references(ask, source) if source.needs else ()
    found = await ask(subject, source.type.value, source.text, references=references, message=source.message)
    return SchemaRef(found.number, found.version)


async def _references(ask: Callable[..., Any], source: Source) -> Sequence[SchemaReference]:
    """Register or look up the files that a protobuf schema imports, under subjects of their names.

    These are the subjects that clients of Confluent's registry give them.
    """
    from danube.schema.protobuf_codec import imports

    found: dict[str, SchemaReference] = {}

    def of(text: str) -> list[SchemaReference]:
        return [found[each] for each in imports(text) if each in found]

    for each in source.needs:
        known = await ask(each.name, source.type.value, each.text, references=of(each.text))
        found[each.name] = SchemaReference(each.name, each.name, known.version)
    return of(source.text)


def _failing(why: str) -> Decode:
    def decode(payload: bytes) -> Any:
        raise SchemaError(why)

    return decode
