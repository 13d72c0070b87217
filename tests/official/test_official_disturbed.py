"""The official client survives restarts of brokers: kill -9, a drain, a topic that is unloaded."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from brokers import BrokerProcess
from official_client import Official, Script, official_python

import danube

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize(("how", "times"), [("kill", 2), ("drain", 1)])
async def test_restart_under_a_live_producer_and_a_live_consumer(tmp_path: Path, how: str, times: int) -> None:
    """Both go on by themselves, under the ids they have, and nothing acknowledged is lost."""
    official_python()
    broker = BrokerProcess(tmp_path / "data", "--journal-file-size", "16MiB", "--log-level", "error")
    with broker, trio.fail_after(90):
        official = Official(broker, "/default/restarted", tmp_path)
        async with (
            official.producing(endless=True, pause_s=0.002, retries=60) as producer,
            official.consuming() as consumer,
        ):
            await producer.go()
            for _ in range(times):
                before, received = len(producer.sent), len(consumer.messages)
                await producer.until(lambda script, before=before: len(script.sent) > before + 50)
                await consumer.until(lambda script, received=received: len(script.messages) > received + 50)
                if how == "kill":
                    broker.kill()
                else:
                    await trio.to_thread.run_sync(broker.terminate)
                await trio.to_thread.run_sync(broker.start)
            before, received = len(producer.sent), len(consumer.messages)
            await producer.until(lambda script: len(script.sent) > before + 50)
            await consumer.until(lambda script: len(script.messages) > received + 50)
            await producer.stop()
            assert producer.with_field("failed") == []
            await consumer.until(lambda script: script.distinct_texts.issuperset(producer.sent))
            await consumer.stop()
        sent, texts = producer.sent, consumer.texts
        assert sent == [f"p-{number}" for number in range(len(sent))]
        assert list(dict.fromkeys(texts)) == sent
        assert len({message["producer_id"] for message in consumer.messages}) == 1

        # What the consumer was told is acknowledged does not come again.
        answered = {line["text"] for line in consumer.messages if line["offset"] in set(consumer.acked)}
        async with official.producing(messages=[{"text": "last"}]) as producer:
            await producer.go()
            await producer.done()
        async with official.consuming() as consumer:
            await consumer.until(lambda script: "last" in script.texts)
            await consumer.stop()
        assert answered.isdisjoint(consumer.texts)


async def test_idle_consumer_across_an_unload(official: Official) -> None:
    def messages(count: int) -> object:
        return lambda script: len(script.distinct_acked) >= count

    async def send(script: Script) -> None:
        await script.go()
        await script.done()

    with trio.fail_after(40):
        async with (
            official.producing(messages=[{"text": "first"}]) as producer,
            official.producing(producers=["q"], messages=[{"text": "second"}]) as later,
            official.consuming() as consumer,
        ):
            await send(producer)
            await consumer.until(messages(1))
            async with danube.connect(official.broker.url) as client:
                await client.admin.unload_topic(official.topic)
            await send(later)
            await consumer.until(messages(2))
            await consumer.stop()
    assert consumer.texts == ["first", "second"]
