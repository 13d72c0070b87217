"""A broker is killed and declared gone; its topics go on, and its old directory fills what they lack."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import trio
from brokers import danube as danube_command
from cluster_processes import Cluster, patient, report

TOPICS = [f"/default/t{number}" for number in range(6)]


def run(*arguments: str) -> tuple[int, str]:
    """Run a command; return its exit code and what it printed."""
    process = danube_command(*arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    output, _ = process.communicate(timeout=60)
    return process.returncode, output.decode()


@pytest.mark.extended
async def test_a_forgotten_broker_gives_back_what_it_has(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster, trio.fail_after(240):
        await cluster.settle([])
        async with patient(cluster.url()) as client:
            for topic in TOPICS:
                await client.admin.create_topic(topic, durability="disk")
            await cluster.settle(TOPICS)
            for topic in TOPICS:
                async with client.producer(topic) as producer, client.consumer(topic, subscription="s") as consumer:
                    for number in range(10):
                        await producer.send(b"%d" % number)
                        await (await consumer.receive()).ack()
                    await producer.send(b"tail")
            owners = await cluster.owners(client, TOPICS)
            victim = cluster.others(await cluster.leader())[0]
            others = cluster.others(victim)
            mine = sorted(topic for topic, owner in owners.items() if owner == cluster.address(victim))
            assert mine
            status = await cluster.status(others[0])
            (name,) = [row.name for row in status.brokers if row.address == cluster.address(victim)]
            url = others[0].url
            code, told = await trio.to_thread.run_sync(run, "cluster", "forget", name, "--accept-loss", "--url", url)
            assert code == 78, told
            assert "it runs" in told

            await trio.to_thread.run_sync(victim.kill)
            await cluster.noticed(victim, at=others[0])
            code, told = await trio.to_thread.run_sync(run, "cluster", "forget", name, "--url", url)
            assert code == 1, told
            assert "Nothing was changed" in told
            assert all(topic in told for topic in mine), told
            code, told = await trio.to_thread.run_sync(run, "cluster", "forget", name, "--accept-loss", "--url", url)
            assert code == 0, told
            report(told)
            for topic in mine:
                async with client.producer(topic) as producer:
                    assert (await producer.send(b"after")).offset >= 1 << 32

            # The directory is refused, and fills the gap.
            await trio.to_thread.run_sync(victim.launch)
            assert await trio.to_thread.run_sync(lambda: victim.wait(60)) == 78
            code, told = await trio.to_thread.run_sync(
                run, "cluster", "return-tail", "--data-dir", str(victim.data_directory), "--url", url
            )
            assert code == 0, told
            report(told)
            for topic in mine:
                async with client.consumer(topic, subscription="s") as consumer:
                    found = []
                    while len(found) < 12:
                        message = await consumer.receive()
                        found.append(message.payload)
                        await message.ack()
                assert sorted(found) == sorted([*(b"%d" % number for number in range(10)), b"tail", b"after"])
                async with client.reader(topic, start="earliest") as reader:
                    payloads = [(await reader.receive()).payload for _ in range(12)]
                assert payloads == [*(b"%d" % number for number in range(10)), b"tail", b"after"]
