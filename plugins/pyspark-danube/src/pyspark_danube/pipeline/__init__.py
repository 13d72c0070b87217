"""Pipeline jobs: topics to tables, anything to topics, topics to topics.

========================  ==================================================================  ========================
function                  what it does                                                        exactly once by
========================  ==================================================================  ========================
:func:`export_table`      topics to Parquet, Delta or Iceberg; once or continuously           the table's own log
:func:`import_table`      anything that Spark reads, to a topic                               producer id and batch id
:func:`import_stream`     new files (or another stream) to a topic                            the query's checkpoint
:func:`transform`         topics to a topic, by SQL                                           the query's checkpoint
:func:`replay`            a range of a topic back into a topic                                producer id and batch id
========================  ==================================================================  ========================

Each is a few lines over the data source ``danube``, for scripts and notebooks; ``danube pipeline`` is the command line
for them. Streams are returned as Spark's ``StreamingQuery``; :func:`follow` waits for one and reports progress.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark_danube.pipeline._export import TableKind, export_table
    from pyspark_danube.pipeline._import import import_stream, import_table
    from pyspark_danube.pipeline._progress import Progress, follow
    from pyspark_danube.pipeline._replay import replay
    from pyspark_danube.pipeline._transform import transform

__all__ = ["Progress", "TableKind", "export_table", "follow", "import_stream", "import_table", "replay", "transform"]

_PLACES = {
    "Progress": "_progress",
    "TableKind": "_export",
    "export_table": "_export",
    "follow": "_progress",
    "import_stream": "_import",
    "import_table": "_import",
    "replay": "_replay",
    "transform": "_transform",
}


def __getattr__(name: str) -> Any:
    """Load a job at its first use: the command line shows its help without Spark."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
