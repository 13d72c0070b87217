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

    from pyspark_danube._options import ReadOptions
    from pyspark_danube._stream import StreamReader
    from pyspark_danube._values import Pinned
    from pyspark_danube._writer import BatchWriter, StreamWriter

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """Danube topics, under the name ``danube``."""

    _pinned: Pinned | None = None
    """The reader's schema, which :meth:`schema` has found. Spark pickles this object afterwards."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format(...)``."""
        return "danube"

    def schema(self) -> StructType:
        """Return the columns of a topic, and with a schema of the registry the value.

        Raises:
            ConfigurationError: a payload format without a schema.
            NotFoundError: the subject or version does not exist.
        """
        from pyspark_danube._columns import SCHEMA, format_of
        from pyspark_danube._options import asks_registry, schema_options

        if asks_registry(self.options):
            from pyspark_danube._pinning import pin, schema_of

            options = schema_options(self.options)
            self._pinned = pin(options)
            assert self._pinned is not None
            return schema_of(self._pinned, options.mode)

        name = self.options.get("payloadFormat", "binary")
        if format_of(name) is not None:
            raise ConfigurationError(
                f"payloadFormat={name} needs a schema: .schema('offset BIGINT, user STRING, sum DOUBLE'), with fields"
                " of the payload and any columns of the topic; or payloadFormat=registry, which takes it from there"
            )
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query."""
        from pyspark_danube._batch import BatchReader, PruningReader
        from pyspark_danube._options import read_options
        from pyspark_danube._spark_apis import spark_version
        from pyspark_danube._versions import Needs, require
        from pyspark_danube._warming import OPTION, WarmUpReader

        if OPTION in self.options:
            return WarmUpReader()
        options = read_options(self.options)
        if options.pushdown:
            require(spark_version(), Needs.PUSHDOWN, "pushdown=true")
        return (PruningReader if options.pushdown else BatchReader)(options, schema, self._reader_schema(options))

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 - Spark's name
        """Return the reader of a stream."""
        from pyspark_danube._options import read_options
        from pyspark_danube._spark_apis import spark_version
        from pyspark_danube._stream import StreamReader, UnlimitedStreamReader
        from pyspark_danube._versions import Needs, has, require

        options = read_options(self.options, streaming=True)
        limited = has(spark_version(), Needs.READ_LIMITS)
        for name, limit in (
            ("maxOffsetsPerTrigger", options.max_offsets_per_trigger),
            ("maxBytesPerTrigger", options.max_bytes_per_trigger),
        ):
            if limit is not None:
                require(spark_version(), Needs.READ_LIMITS, name)
        return (StreamReader if limited else UnlimitedStreamReader)(options, schema, self._reader_schema(options))

    def _reader_schema(self, options: ReadOptions) -> Pinned | None:
        """Return the reader's schema; it is not known yet if the query has named its columns."""
        if self._pinned is None and options.by_registry:
            from pyspark_danube._pinning import pin

            self._pinned = pin(options)
        return self._pinned

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
