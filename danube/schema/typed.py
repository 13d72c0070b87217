"""What ``schema=`` takes: Python types and texts of schemas, and the codec of each.

The libraries for Avro, JSON Schema and protobuf, and pydantic, are imported only for schemas that need them.
"""

from __future__ import annotations

import sys
from typing import Any, Generic, TypeVar, cast, overload

from danube.model.errors import InvalidArgumentError, InvalidSchemaError
from danube.schema.kinds import Source
from danube.schema.modes import SchemaType
from danube.schema.value_codec import ValueCodec

__all__ = ["Avro", "Json", "Protobuf", "Subject", "codec_of", "codec_of_source"]

V = TypeVar("V")


class Avro(Generic[V]):
    """Values in Avro: ``schema=danube.Avro(Order)``, or the text of a schema, whose records are dicts.

    The table in :mod:`danube.schema.avro_types` says what becomes of each type. Needs ``danube-broker[avro]``.
    """

    @overload
    def __init__(self: Avro[Any], kind: str) -> None: ...

    @overload
    def __init__(self, kind: type[V], *, name: str = "", namespace: str = "") -> None: ...

    def __init__(self, kind: Any, *, name: str = "", namespace: str = "") -> None:
        """Choose Avro.

        Args:
            kind: a type, or the text of a schema.
            name: of the record; empty: that of the class. Readers find fields only in records of the same name.
            namespace: of the record.
        """
        if isinstance(kind, str) and (name or namespace):
            raise InvalidArgumentError("name and namespace are for types; the text of an Avro schema has its own")
        self.kind = kind
        self.name = name
        self.namespace = namespace


class Json(Generic[V]):
    """Values in JSON, with a JSON Schema: ``schema=danube.Json(Order)``, or the text of a schema.

    A type alone (``schema=Order``) means the same. Values of a text are dicts, lists and so on, which are checked
    against it; that needs ``danube-broker[json]``.
    """

    @overload
    def __init__(self: Json[Any], kind: str) -> None: ...

    @overload
    def __init__(self, kind: type[V], *, name: str = "") -> None: ...

    def __init__(self, kind: Any, *, name: str = "") -> None:
        """Choose JSON.

        Args:
            kind: a type, or the text of a schema.
            name: title of the schema; empty: name of the class.
        """
        if isinstance(kind, str) and name:
            raise InvalidArgumentError("name is for types; the text of a JSON Schema has a title")
        self.kind = kind
        self.name = name


class Protobuf(Generic[V]):
    """Values are protobuf messages: ``schema=danube.Protobuf(OrderPb)``; the class alone means the same."""

    def __init__(self, kind: type[V]) -> None:
        """Choose protobuf.

        Args:
            kind: a generated message class.
        """
        self.kind = kind


class Subject(Generic[V]):
    """A subject of the registry, instead of the one that the topic has by the strategy.

    ``Subject("orders", Order)`` registers the type there. ``Subject("orders", Order, version=3)`` pins a version that
    exists: producers write it, whatever the type's own schema is, and readers of Avro read as it says. Without a type
    the schema is the registry's, and values are dicts, lists and so on, or messages of a class that is made for them.
    """

    @overload
    def __init__(
        self: Subject[Any], name: str, schema: None = None, *, version: int | str | None = None, min_version: int = 0
    ) -> None: ...

    @overload
    def __init__(
        self,
        name: str,
        schema: type[V] | Avro[V] | Json[V] | Protobuf[V],
        *,
        version: int | str | None = None,
        min_version: int = 0,
    ) -> None: ...

    def __init__(
        self, name: str, schema: Any = None, *, version: int | str | None = None, min_version: int = 0
    ) -> None:
        """Choose a subject.

        Args:
            name: of the subject.
            schema: as ``schema=`` takes it; None: that of the registry.
            version: a number from 1, or ``"latest"``, found when the producer, consumer or reader is opened. None:
                the schema is registered or looked up by its content; without a schema: the latest.
            min_version: the latest version, which must not be older than this.

        Raises:
            InvalidArgumentError: a name or version is invalid.
        """
        given: Any = name
        if not isinstance(given, str) or not given:
            raise InvalidArgumentError("a subject has a name, such as '/default/orders-value'")
        if isinstance(schema, Subject):
            raise InvalidArgumentError("a Subject takes a type or a schema, not another Subject")
        is_number = type(version) is int and version > 0
        if not is_number and version not in (None, "latest"):
            raise InvalidArgumentError(f"version is a number from 1 or 'latest', not {version!r}")
        if type(min_version) is not int or min_version < 0:
            raise InvalidArgumentError(f"min_version is a number from 1, not {min_version!r}")
        if min_version and is_number:
            raise InvalidArgumentError("give either a version or min_version, which means the latest one")
        self.name = name
        self.schema = schema
        self.version = version
        self.min_version = min_version

    @property
    def is_pinned(self) -> bool:
        """Whether a version that exists is wanted."""
        return self.version is not None or self.min_version > 0 or self.schema is None


def codec_of(schema: Any) -> ValueCodec[Any]:
    """Return the codec for what ``schema=`` takes, other than a Subject.

    Raises:
        InvalidSchemaError: it has no schema, or the library for it is not installed.
    """
    if isinstance(schema, Avro):
        from danube.schema.avro_codec import AvroCodec

        if isinstance(schema.kind, str):
            return AvroCodec(Source(SchemaType.AVRO, schema.kind))
        return AvroCodec.of_type(schema.kind, schema.name, schema.namespace)
    if isinstance(schema, Protobuf):
        if not _is_message(schema.kind):
            raise InvalidSchemaError(f"Protobuf takes a generated message class, not {schema.kind!r:.60}")
        return _protobuf(schema.kind)
    if isinstance(schema, Json):
        return _json(schema.kind, schema.name)
    if isinstance(schema, str | bytes):
        raise InvalidSchemaError("the text of a schema needs its type: danube.Avro(text) or danube.Json(text)")
    if schema in (str, bytes, int, float):
        return _plain(schema)
    if _is_message(schema):
        return _protobuf(schema)
    return _json(schema, "")


def codec_of_source(source: Source) -> ValueCodec[Any]:
    """Return the codec for a registered schema, without a type of values.

    Raises:
        InvalidSchemaError: the schema cannot be parsed, or the library for it is not installed.
    """
    if source.type is SchemaType.AVRO:
        from danube.schema.avro_codec import AvroCodec

        return AvroCodec(source)
    if source.type is SchemaType.JSON:
        from danube.schema.json_codec import JsonTextCodec

        return JsonTextCodec(source)
    if source.type is SchemaType.PROTOBUF:
        from danube.schema.protobuf_codec import ProtobufCodec

        return ProtobufCodec.of_source(source)
    return _plain({SchemaType.STRING: str, SchemaType.BYTES: bytes}.get(source.type, float))


def _plain(kind: Any) -> ValueCodec[Any]:
    from danube.schema.plain_codec import BytesCodec, NumberCodec, TextCodec

    if kind is str:
        return TextCodec()
    return BytesCodec() if kind is bytes else NumberCodec(kind)


def _json(kind: Any, name: str) -> ValueCodec[Any]:
    from danube.schema import json_codec

    if isinstance(kind, str):
        return json_codec.JsonTextCodec(Source(SchemaType.JSON, kind))
    # A model of pydantic exists only if pydantic is loaded.
    pydantic = sys.modules.get("pydantic")
    if pydantic is not None and isinstance(kind, type) and issubclass(kind, pydantic.BaseModel):
        return json_codec.PydanticCodec(kind, name)
    return json_codec.JsonTypeCodec(kind, name)


def _is_message(kind: Any) -> bool:
    """Whether this is a class of protobuf messages, which exists only if the library is loaded."""
    library = sys.modules.get("google.protobuf.message")
    return library is not None and isinstance(kind, type) and issubclass(kind, cast("Any", library).Message)


def _protobuf(kind: Any) -> ValueCodec[Any]:
    from danube.schema.protobuf_codec import ProtobufCodec

    return ProtobufCodec(kind)
