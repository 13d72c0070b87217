"""The data source as Spark sees it: which class reads, which one writes.

Spark makes one object of this class in each Python process that has something to do with a query, from the options
as the user has given them. Everything heavy is imported when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from pyspark_danube._writer import BatchWriter, StreamWriter

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """Danube topics, under the name ``danube``."""

    @classmethod
    def name(cls) -> str:
        """Return what is given to ``format(...)``."""
        return "danube"

    def schema(self) -> StructType | str:
        """Return the columns of a topic."""
        from pyspark_danube._columns import SCHEMA

        return SCHEMA

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Return what writes rows to topics."""
        from pyspark_danube._options import write_options
        from pyspark_danube._writer import batch_writer

        return batch_writer(write_options(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802 - Spark's name
        """Return what writes a stream to topics."""
        from pyspark_danube._options import write_options
        from pyspark_danube._writer import stream_writer

        return stream_writer(write_options(self.options, streaming=True), schema, overwrite=overwrite)
