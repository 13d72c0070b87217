"""The four jobs of ``pyspark_danube.pipeline``, one after the other, on orders of a shop.

::

    danube serve &
    python docs/examples/pipeline_jobs.py --url danube://127.0.0.1:6650 --directory ./shop

Run it again: nothing is stored twice. (On the command line each job is a ``danube pipeline`` command.)
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pyspark_danube
from pyspark.sql import SparkSession
from pyspark_danube.pipeline import export_table, follow, import_table, replay, transform

ORDER = "id BIGINT, user STRING, total DOUBLE"


def jobs(spark: SparkSession, url: str, directory: Path) -> None:
    """Import, transform, export and replay."""
    directory.mkdir(parents=True, exist_ok=True)
    orders = [{"id": n, "user": f"user-{n % 10}", "total": n * 1.5} for n in range(1000)]
    (directory / "orders.json").write_text("".join(json.dumps(order) + "\n" for order in orders))

    # Files to a topic. Producer and batch number make a repetition known.
    source = str(directory / "orders.json")
    names: dict[str, Any] = {"format": "json", "path": source, "key": "user", "producer_id": "shop-import"}
    import_table(spark, "/default/shop-orders", servers=url, batch_id=1, **names)

    # Topic to topic, by SQL. The checkpoint knows what was read.
    query = transform(
        spark,
        {"orders": "/default/shop-orders"},
        "/default/shop-totals",
        "SELECT id, user, round(total * 1.19, 2) AS total FROM orders WHERE total >= 100",
        servers=url,
        schemas={"orders": ORDER},
        key="user",
        checkpoint=str(directory / "transform-checkpoint"),
        once=True,
    )
    print("transformed:", follow(query).rows, "read")

    # Topic to a Delta table. Its log knows what it has.
    query = export_table(spark, "/default/shop-totals", str(directory / "totals"), servers=url, schema=ORDER, once=True)
    print("exported:", follow(query).rows)

    # Part of a topic into another one, as if it happened again.
    again = replay(
        spark,
        "/default/shop-orders",
        "/default/shop-orders-again",
        servers=url,
        where="key = 'user-3'",
        producer_id="shop-replay",
        batch_id=1,
    )
    print("replayed:", again)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--url", default="danube://127.0.0.1:6650")
    parser.add_argument("--directory", type=Path, default=Path("shop"))
    given = parser.parse_args()
    session = pyspark_danube.session("shop", master="local[2]")
    jobs(session, given.url, given.directory)
    session.stop()
