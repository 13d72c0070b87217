"""A disk that fails under a real broker: what its clients see, and what the next start recovers.

The faults come from the kernel's side of the system call (``strace -e inject``), so everything above it is the real
thing: threads, files, process exit.
"""

from __future__ import annotations

import statistics
from collections.abc import AsyncGenerator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

import pytest
import trio
from brokers import BrokerProcess
from ledgers import Ledger, receipt_ranges
from tracers import require_strace, sabotage, sabotaged

import danube
from danube.client import Client, Producer
from danube.model.errors import AlreadyExistsError, DataLossError, UnavailableError

pytestmark = pytest.mark.extended

TOPIC = "/default/t"
WRITER = "writer"
EXIT_UNAVAILABLE = 69
CONFIGURATION = """
journal_file_size = "2MiB"

[limits]
max_batch_bytes = 524288
max_message_bytes = 131072
cache_bytes = 65536
"""


class Sabotaged(BrokerProcess):
    """A broker whose disk fails in a given way, until it is :meth:`repaired`."""

    def __init__(self, directory: Path, call: str = "", fault: str = "") -> None:
        require_strace()
        configuration = directory / "danube.toml"
        configuration.write_text(CONFIGURATION)
        data = directory / "data"
        prefix = sabotage(data, call, fault) if call else ()
        super().__init__(data, "--config", str(configuration), prefix=prefix, stderr=directory / "stderr")

    def repaired(self) -> Sabotaged:
        self.prefix = ()
        return self

    @property
    def said(self) -> str:
        assert self.stderr is not None
        return self.stderr.read_text()


@asynccontextmanager
async def patient_client(broker: BrokerProcess) -> AsyncGenerator[Client, None]:
    """A client that outlives any number of restarts."""
    async with danube.connect(broker.url, reconnect_timeout_s=None, reconnect_max_s=0.1) as client:
        yield client


@contextmanager
def broker_gone() -> Iterator[None]:
    """The body must end because its client finds no broker any more."""
    gone = False
    try:
        yield
    except* UnavailableError:
        gone = True
    assert gone


async def publish(producer: Producer, ledger: Ledger, count: int) -> None:
    """Send one message at a time, each of which takes one sync."""
    for _ in range(count):
        first, payloads = ledger.next_payloads(WRITER, 1)
        ledger.note(WRITER, first, receipt_ranges(await producer.send_many(payloads)))


async def publish_through(client: Client, ledger: Ledger, count: int) -> None:
    """Send one message at a time, whatever happens to the broker meanwhile."""
    async with client.producer(TOPIC, name=WRITER) as producer:
        await publish(producer, ledger, count)


async def check_after_repair(broker: Sabotaged, ledger: Ledger) -> None:
    """Start the broker on a sound disk: everything acknowledged is there, and the producer goes on where it was."""
    with broker.repaired():
        async with danube.connect(broker.url) as client:
            with suppress(AlreadyExistsError):  # the disk may have failed before it was created
                await client.admin.create_topic(TOPIC)
            assert await ledger.audit(client, name="audit") >= ledger.end
            async with client.producer(TOPIC, name=WRITER) as producer:
                (stored,) = producer.stored_before
                assert stored == ledger.counts.get(WRITER, 0)
                ledger.sent[WRITER] = stored
                await publish(producer, ledger, 10)
            await ledger.audit(client, name="again", whole=True)
            assert ledger.counts[WRITER] == ledger.sent[WRITER] == stored + 10


@pytest.mark.parametrize("nth", [3, 4, 7, 22])
async def test_a_failed_sync_ends_the_broker_and_nothing_more_is_acknowledged(tmp_path: Path, nth: int) -> None:
    broker = Sabotaged(tmp_path, "fdatasync", f"error=EIO:when={nth}")
    ledger = Ledger(TOPIC)
    with ExitStack() as stack, trio.fail_after(30):
        stack.push(broker)
        broker.launch()
        # Syncs are counted by thread. Two belong to the start (the journal's own, and the revision of the metadata),
        # the third to the session of the producer, and each further one to a message. A thread may have served the log
        # of the metadata, too, for a few of them: then the third one may fail before the broker is ready.
        is_ready = broker.wait_ready()
        if is_ready:
            with broker_gone():
                async with (
                    danube.connect(broker.url, reconnect_timeout_s=0.5, request_timeout_s=1.0) as client,
                    client.producer(TOPIC, name=WRITER) as producer,
                ):
                    await publish(producer, ledger, 1000)
        assert await trio.to_thread.run_sync(broker.wait) == EXIT_UNAVAILABLE
        assert abs(len(ledger.acknowledged) - max(0, nth - 4)) <= 4
        assert f"Input/output error{'; nothing more is acknowledged' * is_ready}" in broker.said
        assert "check the disk" in broker.said
        assert "Traceback" not in broker.said
        await check_after_repair(broker, ledger)


async def test_no_other_topic_is_acknowledged_after_a_failed_sync(tmp_path: Path) -> None:
    """The fence is the journal's: writes that need no sync, and acknowledgements, stop too."""
    broker = Sabotaged(tmp_path, "fdatasync", "error=EIO:when=40")
    ledger, fast = Ledger(TOPIC), Ledger("/default/fast")
    flushed = -1
    with broker, trio.fail_after(30):

        async def write_fast(client: Client) -> None:
            async with client.producer(fast.topic, name="fast", durability="os") as producer:
                while True:
                    first, payloads = fast.next_payloads("fast", 3)
                    fast.note("fast", first, receipt_ranges(await producer.send_many(payloads)))

        async def consume(client: Client) -> None:
            nonlocal flushed
            async with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:
                while True:
                    message = await consumer.receive()
                    await message.ack()
                    await consumer.flush_acks()
                    flushed = message.offset

        with broker_gone():
            async with (
                danube.connect(broker.url, reconnect_timeout_s=0.5, request_timeout_s=1.0) as client,
                client.producer(TOPIC, name=WRITER) as producer,
                trio.open_nursery() as nursery,
            ):
                nursery.start_soon(write_fast, client)
                nursery.start_soon(consume, client)
                await publish(producer, ledger, 1000)
        assert await trio.to_thread.run_sync(broker.wait) == EXIT_UNAVAILABLE
        assert len(ledger.acknowledged) > 3
        assert len(fast.acknowledged) > 3
        assert flushed > 0
        broker.repaired().start()
        async with danube.connect(broker.url) as client:
            assert await fast.audit(client, name="audit") >= fast.end
            (info,) = await client.admin.describe_subscription(TOPIC, "s")
            assert info.floor > flushed
        broker.kill()
        await check_after_repair(broker, ledger)


async def test_a_disk_without_space_at_every_fifth_write_loses_and_repeats_nothing(tmp_path: Path) -> None:
    broker = Sabotaged(tmp_path, "pwritev,pwritev2", "error=ENOSPC:when=5+5")
    ledger = Ledger(TOPIC)
    with broker, trio.fail_after(60):
        async with patient_client(broker) as client, trio.open_nursery() as nursery:
            nursery.start_soon(publish_through, client, ledger, 30)
            for _ in range(3):
                assert await trio.to_thread.run_sync(broker.wait) == EXIT_UNAVAILABLE
                broker.launch()
                assert await trio.to_thread.run_sync(broker.wait_ready)
            assert 0 < len(ledger.acknowledged) < 30
            broker.kill()
            await trio.to_thread.run_sync(broker.repaired().start)
        assert "No space left on device; nothing more is acknowledged. Then free space on the disk" in broker.said
        broker.kill()
        assert len(ledger.acknowledged) == 30
        await check_after_repair(broker, ledger)


@pytest.mark.parametrize("nth", [1, 2, 7, 30])
async def test_a_death_at_a_sync_loses_and_repeats_nothing(tmp_path: Path, nth: int) -> None:
    broker = Sabotaged(tmp_path)
    ledger = Ledger(TOPIC)
    with broker, trio.fail_after(30):
        async with patient_client(broker) as client, trio.open_nursery() as nursery:
            with sabotaged(broker.pid, broker.data_directory, "fdatasync", f"signal=SIGKILL:when={nth}"):
                nursery.start_soon(publish_through, client, ledger, 40)
                assert await trio.to_thread.run_sync(broker.wait) == -9
            assert len(ledger.acknowledged) == max(0, nth - 2)
            await trio.to_thread.run_sync(broker.start)
        broker.kill()
        assert len(ledger.acknowledged) == 40
        await check_after_repair(broker, ledger)


async def test_slow_syncs_make_larger_commits_and_do_not_delay_topics_without_sync(tmp_path: Path) -> None:
    delay_s = 0.02
    broker = Sabotaged(tmp_path, "fdatasync", f"delay_exit={delay_s * 1e6:.0f}")
    ledger = Ledger(TOPIC)
    slow: list[float] = []
    fast: list[float] = []
    with broker, trio.fail_after(30):
        async with danube.connect(broker.url) as client:
            async with client.producer(TOPIC, name=WRITER) as producer:
                for _ in range(10):
                    began = trio.current_time()
                    await publish(producer, ledger, 1)
                    slow.append(trio.current_time() - began)
            assert min(slow) >= delay_s, "acknowledged before its sync had returned"

            async def write_slow(number: int) -> None:
                async with client.producer(f"/default/slow-{number}") as producer:
                    for _ in range(5):
                        await producer.send(b"x")

            began = trio.current_time()
            async with client.producer("/default/fast", durability="os") as producer, trio.open_nursery() as nursery:
                for number in range(64):
                    nursery.start_soon(write_slow, number)
                for _ in range(30):
                    sent = trio.current_time()
                    await producer.send(b"x")
                    fast.append(trio.current_time() - sent)
                    await trio.sleep(0.005)
            # 64 sessions and 320 messages; a sync for each would take 7.7 s.
            assert trio.current_time() - began < 7
            assert statistics.median(fast) < delay_s, "writes without a sync waited for those of others"


async def test_a_kill_during_slow_syncs_takes_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    broker = Sabotaged(tmp_path, "fdatasync", "delay_exit=20000")
    ledger = Ledger(TOPIC)
    with broker, trio.fail_after(30):
        async with (
            patient_client(broker) as client,
            client.producer(TOPIC, name=WRITER, batch_max_messages=4) as producer,
        ):
            first, payloads = ledger.next_payloads(WRITER, 400)
            pending = [producer.send_nowait(payload) for payload in payloads]
            await pending[20]
            assert any(not one.done for one in pending)
            await trio.to_thread.run_sync(broker.kill)
            await trio.to_thread.run_sync(broker.repaired().start)
            for number, one in enumerate(pending, first):
                ledger.note(WRITER, number, [((await one).offset, 1)])
        broker.kill()
        await check_after_repair(broker, ledger)


async def test_an_unreadable_file_stops_only_the_topics_in_it(tmp_path: Path) -> None:
    broker = Sabotaged(tmp_path)
    ledger, other = Ledger(TOPIC), Ledger("/default/other")
    with broker, trio.fail_after(30):
        async with danube.connect(broker.url) as client:
            async with client.producer(TOPIC, name=WRITER) as producer:
                for _ in range(20):  # far more than the cache holds
                    first, payloads = ledger.next_payloads(WRITER, 400)
                    ledger.note(WRITER, first, receipt_ranges(await producer.send_many(payloads)))
                with sabotaged(broker.pid, broker.data_directory, "pread64", "error=EIO"):
                    with pytest.raises(DataLossError, match=r"/default/t.*cannot be read.*Input/output error"):
                        async with client.consumer(TOPIC, subscription="behind", start="earliest") as consumer:
                            await consumer.receive()
                    explanation = await client.admin.explain_subscription(TOPIC, "behind")
                    assert explanation.state == "failed"
                    # What is in memory can be had, new messages are taken, and other topics notice nothing.
                    async with client.consumer(TOPIC, subscription="live", start="latest") as consumer:
                        await publish(producer, ledger, 3)
                        assert (await consumer.receive()).payload
                    async with client.producer(other.topic) as another:
                        first, payloads = other.next_payloads(WRITER, 5)
                        other.note(WRITER, first, receipt_ranges(await another.send_many(payloads)))
                    assert await other.audit(client, name="audit") == 5
            # The disk has recovered: a new subscription reads everything, the stopped one after a restart.
            assert await ledger.audit(client, name="audit") == ledger.end
            assert broker.poll() is None
        broker.kill()
        broker.start()
        async with (
            danube.connect(broker.url) as client,
            client.consumer(TOPIC, subscription="behind") as consumer,
        ):
            assert (await consumer.receive()).offset == 0
        broker.kill()
        await check_after_repair(broker, ledger)
