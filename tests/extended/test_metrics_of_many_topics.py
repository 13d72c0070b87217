"""What a scrape of a broker with ten thousand topics costs, and for how long it holds up the event loop."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import trio
from broker.broker_harness import running_broker
from metrics_text import parse

pytestmark = [pytest.mark.extended, pytest.mark.virtual]

TOPICS, PARTITIONS = 400, 25
LONGEST_TURN_S = 0.02
"""Processor time, four times the goal: this process collects its garbage as usual."""


async def test_a_scrape_of_ten_thousand_topics_lets_others_run(tmp_path: Path) -> None:
    async with running_broker(tmp_path, patience_s=1000) as running, running.client() as client:
        for number in range(TOPICS):
            await client.admin.create_topic(f"/default/t{number}", partitions=PARTITIONS, durability="none")
        for number in range(3):
            async with client.producer(f"/default/t{number}") as producer:
                await producer.send_many([b"x"] * 50)
        metrics = running.broker.operations.metrics
        turns: list[float] = []

        async def watch() -> None:
            while True:
                before = time.thread_time()
                await trio.lowlevel.checkpoint()
                turns.append(time.thread_time() - before)

        for detailed in (False, False, True):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch)
                await trio.lowlevel.checkpoint()
                turns.clear()
                began = time.thread_time()
                pieces = [piece async for piece in metrics.metrics(detailed)]
                took_s = time.thread_time() - began
                nursery.cancel_scope.cancel()
            assert took_s < 2
            # One turn in a hundred may pay for the garbage collector.
            assert sorted(turns)[-1 - len(turns) // 100] < LONGEST_TURN_S
            series = parse(b"".join(pieces).decode())
            assert len(series) <= 20_020
            if not detailed:
                assert series.one("danube_metrics_omitted_topics") == TOPICS - 200
                assert series.one("danube_broker_topics_owned") == TOPICS * PARTITIONS
                assert {f"/default/t{number}" for number in range(3)} < series.labels(
                    "danube_topic_messages_in_total", "topic"
                )
