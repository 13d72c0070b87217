"""The schema of a sink: derived from the DataFrame, and registered or looked up by the driver, once for a query."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.types import BinaryType, StructField, StructType

from danube.model.batch import SchemaRef
from danube.model.errors import ConfigurationError, NotFoundError
from danube.schema.modes import SchemaType
from danube.schema.subjects import Strategy, subject_for
from pyspark_danube._values import VALUE

if TYPE_CHECKING:
    from danube.client.sync import Client
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
    kind = _TYPES[options.payload_format]
    try:
        name = client.schemas.version(subject).name or DEFAULT_NAME
    except NotFoundError:
        name = DEFAULT_NAME
    source = derived(schema[VALUE].dataType, kind, name)
    if options.register_schema:
        registered = client.schemas.register(subject, kind.value, source.text)
        return Encoding(source, SchemaRef(registered.number, registered.version))
    found = client.schemas.find(subject, kind.value, source.text)
    return Encoding(source, SchemaRef(found.number, found.version))


def _subject_of(client: Client, topic: str) -> str:
    """Return the subject of a topic: the one that it is bound to, else the one that producers give it."""
    try:
        bound = client.admin.describe_topic(topic).schema_subject
    except NotFoundError:
        bound = ""  # the write creates the topic, or reports that it may not
    return bound or subject_for(topic, Strategy.TOPIC)
