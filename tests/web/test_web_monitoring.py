"""Tests of what monitoring systems ask for over HTTP, with a real broker."""

from __future__ import annotations

from pathlib import Path

import trio
from web_harness import API, TOPIC, web_broker


async def test_metrics_count_what_was_published(tmp_path: Path) -> None:
    async with web_broker(tmp_path) as web:
        async with web.running.client() as client, client.producer(TOPIC) as producer:
            await producer.send_many([b"x"] * 7)
        said = await web.ask("GET", "/metrics")
        assert (said.status, said.headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
        assert f'danube_topic_messages_in_total{{topic="{TOPIC}"}} 7\n'.encode() in said.data
        assert b"# EOF" not in said.data
        accept = {"Accept": "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2"}
        said = await web.ask("GET", "/metrics", headers=accept)
        assert said.headers["content-type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
        assert said.data.endswith(b"# EOF\n")


async def test_a_scraper_of_the_client_port_is_sent_to_the_other_one(tmp_path: Path) -> None:
    async with web_broker(tmp_path) as web:
        async with await trio.open_tcp_stream("127.0.0.1", web.running.port) as stream:
            await stream.send_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            said = b"".join([data async for data in stream])
        assert f"or http://127.0.0.1:{web.port}/ for HTTP.".encode() in said


async def test_detailed_metrics_are_of_the_topics_that_match(tmp_path: Path) -> None:
    async with web_broker(tmp_path) as web:
        async with web.running.client() as client:
            await client.admin.create_topic("/default/parts", partitions=2)
        said = await web.ask("GET", "/metrics/detailed?topic=/default/p*")
        assert said.status == 200
        assert b'{topic="/default/parts-part-1"' in said.data
        assert TOPIC.encode() not in said.data
        assert TOPIC.encode() in (await web.ask("GET", "/metrics/detailed")).data


async def test_a_broker_whose_metadata_have_no_leader_lives_and_is_not_ready(tmp_path: Path) -> None:
    async with web_broker(tmp_path) as web:
        web.running.broker._metadata_problem = lambda: "cut off"  # type: ignore[method-assign]
        assert (await web.ask("GET", "/livez")).status == 200
        said = await web.ask("GET", "/readyz")
        assert (said.status, said.data) == (503, b"the metadata cannot be reached: cut off\n")


async def test_a_broker_whose_loop_has_stopped_does_not_live(tmp_path: Path) -> None:
    async with web_broker(tmp_path) as web:
        pulse = web.running.broker._pulse
        pulse.silent_s = lambda: 12.5  # type: ignore[method-assign]
        said = await web.ask("GET", "/livez")
        assert (said.status, said.data) == (503, b"the event loop has not turned for 12.5 s\n")


async def test_the_state_of_the_broker_has_the_latencies_of_the_last_minute(tmp_path: Path) -> None:
    async with web_broker(tmp_path) as web:
        before = await web.get(f"{API}/broker")
        assert before["publish_p99_s"] == -1
        for _ in range(5):
            await web.publish("x")
        async with web.events(f"{API}/events") as events:
            (stats,) = await events.take(1, "stats")
        for what in ("publish", "sync"):
            p50, p99 = stats.data[f"{what}_p50_s"], stats.data[f"{what}_p99_s"]
            assert 0 < p50 <= p99 <= 10
        assert stats.data["memory_bytes"] >= 0
