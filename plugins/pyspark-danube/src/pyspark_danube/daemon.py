"""Spark's Python daemon, with everything imported before it forks. Opt-in: ``session(frozen_daemon=True)``.

A worker calls ``gc.collect()`` after each task: 40 ms once NumPy, pandas and PyArrow are loaded. Objects that were
frozen before the fork are not scanned, nor are their memory pages copied for it.

Spark itself imports these libraries after the fork, because they may start threads. None of them does so at import
today; users who do not want to rely on that should not use the daemon.
"""

from __future__ import annotations

import gc

__all__ = ["main"]


def main() -> None:
    """Import, freeze, and become Spark's daemon."""
    import numpy  # noqa: F401
    import pandas  # noqa: F401
    import pyarrow  # noqa: F401
    import pyspark.worker  # noqa: F401
    from pyspark.daemon import manager

    import pyspark_danube._reading  # noqa: F401

    gc.collect()
    gc.freeze()
    manager()


if __name__ == "__main__":
    main()
