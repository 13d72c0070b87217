"""The data source registered with Spark: creates readers and writers from the user's options.

Spark creates one object of this class in each Python process that takes part in a query, from the options
given by the user. Large modules are imported on demand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from danube.model.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader
    from pyspark.sql.types import StructType

    from pyspark_danube._stream import StreamReader
    from pyspark_danube._writer import BatchWriter, StreamWriter

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """Danube topics, under the name ``danube``."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format(...)``."""
        return "danube"

    def schema(self) -> StructType:
        """Return the columns of a topic.

        Raises:
            ConfigurationError: a payload format without a schema.
        """
        from pyspark_danube._columns import SCHEMA
        from pyspark_danube._payloads import find_format

        name = self.options.get("payloadFormat", "binary")
        if find_format(name) is not None:
            raise ConfigurationError(
                f"payloadFormat={name} needs a schema: .schema('offset BIGINT, user STRING, sum DOUBLE'), with fields"
                " of the payload and any columns of the topic"
            )
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query."""
        from pyspark_danube._batch import BatchReader, PruningReader
        from pyspark_danube._options import read_options

        options = read_options(self.options)
        return (PruningReader if options.pushdown else BatchReader)(options, schema)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 - Spark's name
        """Return the reader of a stream."""
        from pyspark_danube._options import read_options
        from pyspark_danube._stream import StreamReader

        return StreamReader(read_options(self.options, streaming=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Return the writer of a batch."""
        from pyspark_danube._options import write_options
        from pyspark_danube._writer import batch_writer

        return batch_writer(write_options(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802 - Spark's name
        """Return the writer of a stream."""
        from pyspark_danube._options import write_options
        from pyspark_danube._writer import stream_writer

        return stream_writer(write_options(self.options, streaming=True), schema, overwrite=overwrite)
