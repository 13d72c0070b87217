"""The common interface of codecs: a schema with what encodes values to payloads and decodes payloads to values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from danube.model.errors import SchemaError
from danube.schema.kinds import Source
from danube.schema.modes import SchemaType

__all__ = ["ValueCodec", "misfit", "undecodable"]

V = TypeVar("V")


class ValueCodec(ABC, Generic[V]):
    """Encodes and decodes the values of one schema."""

    source: Source
    """The schema, as it is registered."""
    name: str
    """Name of the record or message type, for naming strategies; empty if the schema has none."""

    @abstractmethod
    def encode(self, value: V) -> bytes:
        """Return the payload of a value.

        Raises:
            SchemaError: the value does not fit the schema; the message names the field.
        """

    def encode_many(self, values: Sequence[V]) -> list[bytes]:
        """Return the payloads of values.

        Raises:
            SchemaError: a value does not fit the schema; the message names its index and the field.
        """
        encode = self.encode
        payloads: list[bytes] = []
        try:
            for value in values:
                payloads.append(encode(value))  # noqa: PERF401 - the length is the index in the error
        except SchemaError as error:
            raise SchemaError(f"value {len(payloads)}: {error.message}", error.details) from error.__cause__
        return payloads

    def decoder(self, writer: Source | None = None) -> Callable[[bytes], V]:
        """Return a function that decodes payloads of a writer's schema, for this one as the reader's.

        It raises SchemaError for a payload that it cannot decode.

        Args:
            writer: schema of the payloads; None: they were written with this codec's schema.

        Raises:
            SchemaError: no payload of the writer's schema can be decoded: it is of another type.
        """
        if writer is not None and writer.type is not self.source.type:
            raise SchemaError(
                f"the payload was written with a schema of type {writer.type.value}, and the reader's schema is of type"
                f" {self.source.type.value}"
            )
        return self._decoder(writer)

    @abstractmethod
    def _decoder(self, writer: Source | None) -> Callable[[bytes], V]:
        """Return the function for a writer's schema of the same type."""

    def pinned(self, source: Source) -> ValueCodec[V]:
        """Return a codec for the same values with another schema, such as an older version of their subject.

        Raises:
            SchemaError: the schema is of another type.
            InvalidSchemaError: the schema cannot be parsed.
        """
        if source.type is not self.source.type:
            raise SchemaError(
                f"the schema is of type {source.type.value}, and the values need one of type {self.source.type.value}"
            )
        return self._pinned(source)

    @abstractmethod
    def _pinned(self, source: Source) -> ValueCodec[V]:
        """Return the codec for another schema of the same type."""


def misfit(why: object) -> SchemaError:
    """Return the error for a value that does not fit its schema."""
    return SchemaError(f"the value does not fit its schema: {why}")


def undecodable(kind: SchemaType, why: object) -> SchemaError:
    """Return the error for a payload that cannot be decoded."""
    return SchemaError(f"the payload cannot be decoded ({kind.value}): {why}")
