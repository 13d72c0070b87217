"""The schema of a query that decodes payloads with schemas of the registry: found by the driver, once for a query."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.types import StringType, StructField, StructType

from danube.client._values import source_of
from danube.model.errors import ConfigurationError, NotFoundError
from danube.schema.modes import SchemaType
from danube.schema.subjects import Strategy, subject_for
from pyspark_danube._columns import SCHEMA
from pyspark_danube._connecting import broker_client
from pyspark_danube._values import ERROR, VALUE, Pinned, shape_of

if TYPE_CHECKING:
    from danube.client.sync import Client
    from pyspark_danube._options import ReadOptions

__all__ = ["pin", "schema_of", "subject_of"]

_TYPES = {"avro": SchemaType.AVRO, "protobuf": SchemaType.PROTOBUF, "json": SchemaType.JSON}


def pin(options: ReadOptions) -> Pinned | None:
    """Ask the registry for the reader's schema of a query; None if the query needs none.

    Raises:
        NotFoundError: there is no such subject or version, or no such topic.
        ConfigurationError: the schema is of another type than the option ``payloadFormat``.
        ConnectionLostError: no broker answers.
    """
    if not options.by_registry:
        return None
    with broker_client(options.servers) as client:
        subject = options.schema_subject or subject_of(client, options.topics[0])
        try:
            info = client.schemas.version(subject, options.schema_version or -1)
        except NotFoundError as error:
            raise NotFoundError(
                f"payloadFormat={options.payload_format}: {error.message}; register the schema, or name another subject"
                " with the option schemaSubject"
            ) from error
    pinned = Pinned(source_of(info), info.number, subject, info.version)
    wanted = _TYPES.get(options.payload_format)
    if wanted not in (None, pinned.source.type):
        raise ConfigurationError(
            f"payloadFormat={options.payload_format} does not fit {pinned}: set payloadFormat=registry, or another"
            " schemaSubject"
        )
    return pinned


def schema_of(pinned: Pinned, mode: str) -> StructType:
    """Return the columns of a query that does not name any: those of the topic, and the value.

    Args:
        pinned: the reader's schema.
        mode: ``FAILFAST``; with ``PERMISSIVE`` there are two more, ``payload`` and the reason why it did not decode.
    """
    permissive = mode == "PERMISSIVE"
    fields = [field for field in SCHEMA if field.name != "payload" or permissive]
    fields.append(StructField(VALUE, shape_of(pinned.source).type))
    return StructType([*fields, StructField(ERROR, StringType())] if permissive else fields)


def subject_of(client: Client, topic: str) -> str:
    """Return the subject of a topic: the one that it is bound to, else the one that producers give it."""
    return client.admin.describe_topic(topic).schema_subject or subject_for(topic, Strategy.TOPIC)
