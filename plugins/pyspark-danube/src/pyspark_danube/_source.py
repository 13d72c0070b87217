"""The data source as Spark sees it: which class reads, which one writes.

Spark makes one object of this class in each Python process that has something to do with a query, from the options
as the user has given them. Everything heavy is imported when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

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
