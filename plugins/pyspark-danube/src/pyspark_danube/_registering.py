"""The schema of a sink: made for the DataFrame, and registered or looked up by the driver, once for a query."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from pyspark.sql.types import BinaryType, DataType, StructField, StructType

from danube.model.batch import SchemaRef
from danube.model.errors import ConfigurationError, NotFoundError
from danube.schema.modes import SchemaType
from danube.schema.subjects import Strategy, subject_for
from pyspark_danube._values import VALUE

if TYPE_CHECKING:
    from danube.client.sync import Client
    from danube.model.schema_api import SchemaInfo
    from pyspark_danube._encoding import Encoding
    from pyspark_danube._options import WriteOptions

__all__ = ["encoding_of", "with_payload"]

_TYPES = {"avro": SchemaType.AVRO, "json": SchemaType.JSON}


def with_payload(options: WriteOptions, schema: StructType) -> StructType:
    """Return the columns of rows after their values are encoded.

    Raises:
        ConfigurationError: there is no column ``value`` to encode, or also a ``payload``.
    """
    if options.payload_format == "binary":
        return schema
    names = schema.fieldNames()
    if VALUE not in names or "payload" in names:
        raise ConfigurationError(
            f"payloadFormat={options.payload_format} writes the column {VALUE!r}, and there are"
            f" {', '.join(map(repr, names))}; select the fields of the value, for example"
            f" df.selectExpr('struct(*) AS {VALUE}')"
        )
    return StructType([StructField("payload", BinaryType()) if each.name == VALUE else each for each in schema])


def encoding_of(client: Client, options: WriteOptions, schema: StructType) -> Encoding | None:
    """Register or look up the schema of the column ``value``; None if payloads are written as they are.

    Raises:
        ConfigurationError: a type has no counterpart in such schemas.
        IncompatibleSchemaError: the subject has versions with which the schema is not compatible.
        NotFoundError: it is not registered, and may not be.
    """
    if options.payload_format == "binary":
        return None
    from pyspark_danube._encoding import DEFAULT_NAME, Encoding, derived

    subject = options.schema_subject or _subject_of(client, options.topic)
    if options.payload_format == "protobuf":
        return _protobuf_encoding(client, options, subject, schema[VALUE].dataType)
    kind = _TYPES[options.payload_format]
    try:
        name = client.schemas.version(subject).name or DEFAULT_NAME
    except NotFoundError:
        name = DEFAULT_NAME
    source = derived(schema[VALUE].dataType, kind, name)
    if options.register_schema:
        registered = client.schemas.register(subject, kind.value, source.text)
        ref = SchemaRef(registered.number, registered.version)
    else:
        found = client.schemas.find(subject, kind.value, source.text)
        ref = SchemaRef(found.number, found.version)
    return Encoding(source, ref, schema[VALUE].dataType, options.is_framed)


def _protobuf_encoding(client: Client, options: WriteOptions, subject: str, kind: DataType) -> Encoding:
    """Return the encoding with the subject's latest version, or with one that has fields for new columns."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    from danube.client._values import source_of
    from danube.schema.kinds import Source
    from danube.schema.protobuf_codec import ProtobufCodec
    from pyspark_danube._encoding import DEFAULT_NAME, Encoding
    from pyspark_danube._proto_deriving import grown, used_numbers
    from pyspark_danube._proto_encoding import encoder_of

    latest: SchemaInfo | None = None
    try:
        latest = client.schemas.version(subject)
    except NotFoundError:
        if not options.register_schema:
            raise
    file, message, ref = None, DEFAULT_NAME, SchemaRef()
    source = Source(SchemaType.PROTOBUF, "")
    if latest is not None:
        source = source_of(latest)
        if source.type is not SchemaType.PROTOBUF:
            raise ConfigurationError(
                f"payloadFormat=protobuf does not fit version {latest.version} of subject {subject}"
                f" ({source.type.value}): set payloadFormat={'avro' if source.type is SchemaType.AVRO else 'json'}, or"
                " another schemaSubject"
            )
        file = FileDescriptorProto.FromString(latest.descriptor)
        message = ProtobufCodec.of_source(source).name
        ref = SchemaRef(latest.number, latest.version)
    made = grown(kind, file, message) if options.register_schema else None
    if made is not None:
        if latest is not None:
            # Versions that were deleted count, too: messages with their numbers may be there.
            rows = client.schemas.subject(subject, deleted=True).versions
            others = [client.schemas.version(subject, row.version, deleted=True).descriptor for row in rows]
            made = grown(kind, file, message, used_numbers(map(FileDescriptorProto.FromString, others)))
            assert made is not None
        text = base64.b64encode(made.SerializeToString(deterministic=True)).decode()
        source = Source(SchemaType.PROTOBUF, text, source.needs, source.message)
        encoder_of(ProtobufCodec.of_source(source).descriptor, kind)  # a mistake is reported before it is registered
        references = [] if latest is None else latest.references
        registered = client.schemas.register(
            subject, SchemaType.PROTOBUF.value, text, references=references, message=source.message
        )
        ref = SchemaRef(registered.number, registered.version)
    encoder_of(ProtobufCodec.of_source(source).descriptor, kind)
    return Encoding(source, ref, kind, options.is_framed)


def _subject_of(client: Client, topic: str) -> str:
    """Return the subject of a topic: the one that it is bound to, else the one that producers give it."""
    try:
        bound = client.admin.describe_topic(topic).schema_subject
    except NotFoundError:
        bound = ""  # the write creates the topic, or reports that it may not
    return bound or subject_for(topic, Strategy.TOPIC)
